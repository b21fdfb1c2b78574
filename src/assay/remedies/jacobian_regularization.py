"""Train the same architecture again, so that its logits change little with the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.jacobian_regularization import JacobianRegularizer
from assay.remedies._retraining import Retraining, anew
from assay.remedy import Cost, Tried

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class JacobianRegularization(Retraining):
    """Trains it again from scratch with a price on how fast its logits change; against changes that fit all inputs.

    `lam` is that price; 0 is the plain training to compare with. `projections` directions estimate it at each step.
    """

    lam: float = 0.05
    projections: int = 1

    source: ClassVar[str] = "Co, Martinez Rego & Lupu, ICANN 2021; Hoffman et al. 2019, arXiv:1908.02729"
    mends: ClassVar[tuple[str, ...]] = ("one-change-for-all",)
    tried: ClassVar[tuple[Tried, ...]] = (
        Tried(
            probe="one-change-for-all",
            says="LeNet on Fashion-MNIST, changes of 0.15: error under one change from 71.9 to 36.3 %, "
            "test error from 9.8 to 14.1 %",
            claim="co2021/universal-error-fashion-mnist",
        ),
        Tried(
            probe="one-change-for-all",
            says="LeNet on MNIST, changes of 0.2: error under one change from 19.3 to 7.3 %, test error "
            "from 0.7 to 1.6 %",
            claim="co2021/universal-error-mnist",
        ),
    )

    def cost(self) -> Cost | None:
        return Cost(1 + self.projections, 1)  # a projection goes back and through that once more

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        priced = JacobianRegularizer(self.lam, projections=self.projections)
        model = anew(subject.model, rng)
        self.train(model, subject, run, rng, loss=priced.loss, augment=priced.augment)
        return subject.cured(model, self.name())


SHELVED = JacobianRegularization
