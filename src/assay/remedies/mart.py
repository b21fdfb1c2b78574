"""Train the same architecture under attack, with more weight on what it gets wrong as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from assay.methods.train.adversary import Adversary
from assay.methods.train.mart import Mart as Method
from assay.remedies._retraining import Hardening, why_no_attack
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Mart(Hardening):
    """Trains it under attack and weighs what it is unsure of without one; `lam` is how much that counts.

    `radius`, `steps` and `step` are those of pgd-training.
    """

    radius: float = 8 / 255
    steps: int = 10
    step: float | None = None
    lam: float = 5.0

    source: ClassVar[str] = "Wang et al., ICLR 2020 (MART)"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy", "distance-to-failure")

    def __post_init__(self) -> None:
        super().__post_init__()
        Method(Adversary(nn.Identity(), self.radius, steps=self.steps, step=self.step), lam=self.lam)

    def cost(self) -> Cost | None:
        return Cost(1 if self.radius == 0 else self.steps + 2, 1)

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or (why_no_attack(subject) if self.radius else None)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        method = Method(self.adversary(model, subject, run, self.radius, self.steps, self.step), lam=self.lam)
        self.hardened(model, subject, run, rng, about="training by MART", augment=method.augment, loss=method.loss)
        return subject.cured(model, self.name())


SHELVED = Mart
