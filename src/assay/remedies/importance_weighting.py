"""Train the same architecture with more weight on inputs that are like those of another domain."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from assay.data.held_out import Part
from assay.data.joined import Joined
from assay.domain import LEAST, Unlabelled
from assay.errors import AssayError
from assay.methods.shift.importance_weights import NU, effective_size, fit_ratio, importance_weights, too_few
from assay.methods.shift.principal import principal
from assay.methods.train.importance_weighted import Weighted, weighted_loss
from assay.remedies._across_domains import Adapting
from assay.run import HELD_BYTES

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run
    from assay.subject import Subject

INPUTS = 1000  # of each side at most, fewer of wide ones, drawn by seed, that the densities are fitted to


@dataclass(frozen=True)
class ImportanceWeighting(Adapting):
    """Trains it with more weight on inputs that are like those of another domain, whose labels it need not know.

    The weight is the ratio of two densities, of `nu` degrees of freedom (inf: Gaussian), of the first `components`
    principal components of the inputs, to the power `power`: 0 is the plain training. `target` names the domains it is
    weighted towards, by default those without labels; `hold_out` one that is not seen at all. It mends a shift of the
    inputs alone, and none where the same input has another label.
    """

    power: float = 1.0
    nu: float = NU
    components: int = 3

    source: ClassVar[str] = "Shimodaira 2000; Wang, dissertation, TU Delft 2024, sec. 5.4.1"
    mends: ClassVar[tuple[str, ...]] = ("what-will-it-score-there", "confidence-under-shift")
    evenly: ClassVar[bool] = False  # the ratio is that of the inputs as they come

    def __post_init__(self) -> None:
        super().__post_init__()
        importance_weights(torch.zeros(1), power=self.power)
        if not self.nu > 0:
            raise AssayError(f"nu={self.nu} are no degrees of freedom; give a number above 0, such as {NU:g}, or inf.")
        if self.components < 1:
            raise AssayError(f"components={self.components}; give a whole number of at least 1, such as 3.")

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if subject.tokens:
            return "it compares inputs by their values, and an input here is a row of words by number"
        if not self.roles(subject).targets:
            return "it weighs inputs towards a domain that it sees without labels, and there is none; set target=NAME"
        return None

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        rows = Weighted(Joined(self.roles(subject).sources), self._weights(subject, run))
        self.trained(model, subject, run, rng, about="training with weights", loss=weighted_loss, rows=rows)
        return self.cured(model, subject)

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        weights = self._weights(self._before(cured), run)
        size, n = effective_size(weights), len(weights)
        told = f"The weights of {n:,} training inputs are worth {size:,.0f} equal ones (effective sample size)."
        return (*super().remarks(cured, run), too_few(weights) or told)

    def _before(self, cured: Subject) -> Subject:
        """The subject with its domains whole again; the weights hang on inputs alone, not on the model."""
        data = dict(cured.data)
        for name, domain in cured.domains().items():
            if isinstance(domain.data, Part) and domain.labelled and name != self.hold_out:
                data[name] = domain.data.whole
        hidden = dict(cured.unlabelled)
        for name, each in hidden.items():
            if self.sees(name) and isinstance(each, Unlabelled) and isinstance(each.whole, Part):
                hidden[name] = Unlabelled(each.whole.whole)
        return replace(cured, data=data, unlabelled=hidden)

    def _weights(self, subject: Subject, run: Run) -> Tensor:  # -> n
        sources, targets, *_ = self.roles(subject)
        sides = replace(subject, data={**subject.data, "train": Joined(sources), "there": Joined(targets)})
        low, span = subject.inputs.edges()

        def shares(x: Tensor) -> Tensor:  # n *d -> n *d
            return (x.cpu().double() - low) / span.clamp_min(torch.finfo(torch.float64).tiny)

        draw = np.random.default_rng(run.seed)
        most = max(LEAST, min(INPUTS, HELD_BYTES // (16 * math.prod(subject.inputs.shape))))  # two sides, held twice
        some = []
        for side in ("train", "there"):
            n = len(sides.data[side])
            index = np.sort(draw.choice(n, min(n, most), replace=False))
            rows = run.map(
                lambda shard: {"x": shares(shard.x).flatten(1).float()}, sides, side, index, "inputs to weigh by"
            )
            some.append(torch.from_numpy(rows["x"]))
        onto = principal(some, self.components)
        ratio = fit_ratio(*(onto(each) for each in some), nu=self.nu)
        whole = np.arange(len(sides.data["train"]))
        rows = run.map(lambda shard: {"z": onto(shares(shard.x))}, sides, "train", whole, "weights of inputs")
        return importance_weights(ratio(torch.from_numpy(rows["z"])), power=self.power)


SHELVED = ImportanceWeighting
