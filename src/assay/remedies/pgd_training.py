"""Train the same architecture on inputs as an attacker would change them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from assay.methods.train.adversary import Adversary
from assay.methods.train.pgd_training import PgdTraining as Method
from assay.remedies._retraining import Hardening, why_no_attack
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class PgdTraining(Hardening):
    """Trains it on inputs as an attacker would change them, by several steps up the loss at each step of training.

    `radius` is the largest change of a value and `step` the length of one of the `steps` (left out: 2.5 radius /
    steps), as shares of the range, as in the question worst-case-accuracy: what is fixed stays, whole numbers move in
    whole steps, and categories, which that question changes one at a time, not at all. 0 is the plain training; one
    step is the fast form, which can lose all that it gained from one epoch to the next.
    """

    radius: float = 8 / 255
    steps: int = 7
    step: float | None = None

    source: ClassVar[str] = "Madry et al., ICLR 2018, arXiv:1706.06083; one step: Wong et al., ICLR 2020"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy", "distance-to-failure")

    def __post_init__(self) -> None:
        super().__post_init__()
        Adversary(nn.Identity(), self.radius, steps=self.steps, step=self.step)

    def cost(self) -> Cost | None:
        return Cost(1 if self.radius == 0 else self.steps + 1, 1)

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or (why_no_attack(subject) if self.radius else None)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        method = Method(self.adversary(model, subject, run, self.radius, self.steps, self.step))
        self.hardened(model, subject, run, rng, about="training under attack", augment=method.augment)
        return subject.cured(model, self.name())


SHELVED = PgdTraining
