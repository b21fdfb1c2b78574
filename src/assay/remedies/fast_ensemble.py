"""Walk from the trained weights to other good ones nearby, and let the nets answer together."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.methods.train.fast_ensemble import fast_ensemble
from assay.nn.members import Ensemble
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

BATCH = 128


@dataclass(frozen=True)
class FastEnsemble(Remedy):
    """Makes more nets out of the trained one, at a few percent of a training each; they answer with their mean.

    The subject's own weights are the first member. Each other one takes `share` of a plain training of `epochs`, half
    of it moving away from the members so far, with weight `lam`, half of it coming back to a low loss.
    """

    members: int = 5
    share: float = 0.06
    lam: float = 5.0
    lr: float = 1e-3
    epochs: int = 10

    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 5.4"

    def cost(self) -> Cost | None:
        return Cost((self.members - 1) * self.share, self.members)

    def apply(self, subject: Subject, run: Run) -> Subject:
        if not 0 < self.share <= 2:
            raise AssayError(f"share={self.share} of a training for each net is out of reach; print has 0.03 to 0.08.")
        train = subject.data["train"]
        steps = max(1, round(self.share * self.epochs * math.ceil(len(train) / BATCH) / 2))  # of either kind
        with run.progress(f"walking to {self.members - 1} other nets", self.members - 1) as tick:
            nets = fast_ensemble(
                subject.model,
                train,
                members=self.members,
                escape=steps,
                settle=steps,
                lam=self.lam,
                lr=self.lr,
                batch=BATCH,
                rng=run.rng(),
                on_member=lambda count: tick(1),
                device=run.device,
            )
        return subject.cured(Ensemble(nets).eval(), self.name())

    def frame(self, subject: Subject) -> Subject:
        nets = [copy.deepcopy(subject.model) for _ in range(self.members)]
        return subject.cured(Ensemble(nets).eval(), self.name())


SHELVED = FastEnsemble
