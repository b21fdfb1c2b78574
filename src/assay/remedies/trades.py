"""Train the same architecture to be right, and to say the same around each input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from assay.methods.train.adversary import Adversary
from assay.methods.train.trades import Trades as Method
from assay.remedies._retraining import Hardening, why_no_attack
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Trades(Hardening):
    """Trains it to be right and to say the same of changed inputs; `beta` trades the one for the other.

    `radius`, `steps` and `step` are those of pgd-training. A `beta` of 0 is the plain training.
    """

    radius: float = 8 / 255
    steps: int = 10
    step: float | None = None
    beta: float = 6.0

    source: ClassVar[str] = "Zhang et al., ICML 2019, arXiv:1901.08573"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy", "distance-to-failure")

    def __post_init__(self) -> None:
        super().__post_init__()
        Method(Adversary(nn.Identity(), self.radius, steps=self.steps, step=self.step), beta=self.beta)

    def cost(self) -> Cost | None:
        return Cost(1 if 0 in (self.radius, self.beta) else self.steps + 2, 1)  # inputs go through beside their changes

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or (why_no_attack(subject) if self.radius else None)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        method = Method(self.adversary(model, subject, run, self.radius, self.steps, self.step), beta=self.beta)
        self.hardened(model, subject, run, rng, about="training by TRADES", augment=method.augment, loss=method.loss)
        return subject.cured(model, self.name())


SHELVED = Trades
