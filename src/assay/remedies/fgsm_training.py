"""Go on training the network, on inputs one step up their loss half of the time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from torch import nn

from assay.methods.train.adversary import Adversary
from assay.methods.train.fgsm_training import FgsmTraining as Method
from assay.remedies._retraining import Hardening, Start, why_no_attack
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


LEAST = 0.1  # print's shortest step


@dataclass(frozen=True)
class FgsmTraining(Hardening):
    """Goes on training it, each batch as it is or one long step up its loss; holds against that step, little more.

    A step goes from `least` to `radius` far, shares of the range drawn anew for each batch; `least` left out is 0.1, or
    the radius where that is less. `clean` is the share of batches that stay as they are. An old baseline: believe what
    an attacker who takes several steps leaves of it.
    """

    start: Start = "weights"
    radius: float = 0.3
    least: float | None = None
    clean: float = 0.5

    source: ClassVar[str] = "Goodfellow et al., ICLR 2015, arXiv:1412.6572; as a baseline: Liu, UCLA 2021, sec. 2.1.6"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._method(Adversary(nn.Identity(), self.radius))

    def cost(self) -> Cost | None:
        return Cost(2 - self.clean if self.radius else 1, 1)

    def settled(self, subject: Subject) -> Self:
        return replace(super().settled(subject), least=self._least)

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or (why_no_attack(subject) if self.radius else None)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        method = self._method(self.adversary(model, subject, run, self.radius))
        self.hardened(model, subject, run, rng, about="training with single steps", augment=method.augment)
        return subject.cured(model, self.name())

    @property
    def _least(self) -> float:
        return min(LEAST, self.radius) if self.least is None else self.least

    def _method(self, adversary: Adversary) -> Method:
        return Method(adversary, least=self._least, clean=self.clean)


SHELVED = FgsmTraining
