"""Go on training the network, on inputs one step up their loss half of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.adversary import check_radius
from assay.methods.train.fgsm_training import FgsmTraining as Method
from assay.remedies._retraining import Hardening, Start
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class FgsmTraining(Hardening):
    """Goes on training it, each batch as it is or one long step up its loss; holds against that step, little more.

    A step goes from `least` to `radius` far, shares of the range drawn anew for each batch; `clean` is the share of
    batches that stay as they are. An old baseline: believe what an attacker who takes several steps leaves of it.
    """

    start: Start = "weights"
    radius: float = 0.3
    least: float = 0.1
    clean: float = 0.5

    source: ClassVar[str] = "Goodfellow et al., ICLR 2015, arXiv:1412.6572; as a baseline: Liu, UCLA 2021, sec. 2.1.6"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy",)

    def __post_init__(self) -> None:
        check_radius(self.radius)

    def cost(self) -> Cost | None:
        return Cost(2 - self.clean, 1)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        method = Method(self.adversary(model, subject, run, self.radius), least=self.least, clean=self.clean)
        self.hardened(model, subject, run, rng, about="training with single steps", augment=method.augment)
        return subject.cured(model, self.name())


SHELVED = FgsmTraining
