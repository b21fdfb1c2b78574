"""Train the same architecture again, so that its logits change little with the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.fit import fit, reset
from assay.methods.train.jacobian_regularization import JacobianRegularizer
from assay.remedy import Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class JacobianRegularization(Remedy):
    """Trains it again from scratch with a price on how fast its logits change; against changes that fit all inputs.

    `lam` is that price; 0 is the plain training to compare with. `projections` directions estimate it at each step.
    """

    lam: float = 0.05
    projections: int = 1
    epochs: int = 10
    lr: float = 0.1
    weight_decay: float = 5e-4

    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "Co, Martinez Rego & Lupu, ICANN 2021; Hoffman et al. 2019, arXiv:1908.02729"

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = reset(subject.model, rng)
        priced = JacobianRegularizer(self.lam, projections=self.projections)
        with run.progress(f"training for {self.epochs} epochs", self.epochs) as tick:
            fit(
                model,
                subject.data["train"],
                epochs=self.epochs,
                lr=self.lr,
                weight_decay=self.weight_decay,
                rng=rng,
                loss=priced.loss,
                augment=priced.augment,
                on_epoch=lambda epoch, loss: tick(1),
                device=run.device,
            )
        return subject.cured(model.eval(), self.name())


SHELVED = JacobianRegularization
