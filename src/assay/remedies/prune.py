"""Take out the channels that one criterion puts last, and train what is left."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.methods.compress.criteria import Criterion, sample, scaled, scores
from assay.methods.compress.price import Per, affordable
from assay.methods.compress.surgery import cut
from assay.remedies._shrinking import Shrinking, refuse_without_norms, timed

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

SAMPLE = 1024


@dataclass(frozen=True)
class Prune(Shrinking):
    """Takes out the channels that matter least by one criterion, at once, and trains what is left for a while.

    `criterion` is one of twelve: of weights (l1, l2, fpgm, fermat), of batch normalisation (bn-gamma, bn-beta), of
    answers (apoz, entropy) or of what the loss would lose (taylor-l1, taylor-l2, taylor-bn-gamma, taylor-bn-beta); the
    last six look at `sample` training inputs, as far as they need any. `per` "layer" takes the same share of each
    layer; "network" compares channels of all layers by scores between 0 and 1 in each. Channels that a residual sum
    joins go together, by the sum of their scores.
    """

    criterion: Criterion = field(default="l1", kw_only=True)
    per: Per = field(default="layer", kw_only=True)
    sample: int = field(default=SAMPLE, kw_only=True)

    needs: ClassVar[tuple[str, ...]] = ("classes",)
    source: ClassVar[str] = "Li et al., ICLR 2017, arXiv:1608.08710; for the criteria He et al., ICANN 2021, sec. 2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample < 1:
            raise AssayError(f"sample={self.sample} leaves criteria nothing to look at; give at least 1, as 1024.")

    def foresee(self, subject: Subject) -> None:
        found = self.prunable(subject)
        refuse_without_norms(subject.model, found, [self.criterion])
        self.refuse_dear(subject.model, found, subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        found = self.prunable(subject)
        x, y = sample(subject.data["train"], self.sample)
        model = copy.deepcopy(subject.model).to(run.device)
        told = scores(model, found, x.to(run.device), y.to(run.device), criteria=[self.criterion])
        keep = affordable(
            subject.model, found, {name: scaled(of)[0] for name, of in told.items()}, self.priced, timed(subject),
            per=self.per, device=run.device,
        )  # fmt: skip
        rng = run.rng()
        small = self.begun(cut(subject.model, found, keep), rng)
        return subject.cured(self.finetuned(small, subject, run, rng), self.name())


SHELVED = Prune
