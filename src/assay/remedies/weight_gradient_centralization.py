"""Train the same architecture again with centred weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.centralize import Centralizer
from assay.methods.train.fit import fit, reset
from assay.remedy import Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class WeightGradientCentralization(Remedy):
    """Trains it again from scratch, subtracting the filter's mean from weights and gradients; free at inference.

    With `weights` and `gradients` False it is the plain training to compare with. `fully` centres the penultimate
    fully connected layer too.
    """

    epochs: int = 10
    lr: float = 0.1
    weight_decay: float = 5e-4
    weights: bool = True
    gradients: bool = True
    fully: bool = False

    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "Fuhl & Kasneci, ICANN 2021, doi:10.1007/978-3-030-86380-7_19"

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = reset(subject.model, rng)
        centring = Centralizer(
            model, weights=self.weights, gradients=self.gradients, fully=self.fully, output=subject.layers.get("head")
        )
        with run.progress(f"training for {self.epochs} epochs", self.epochs) as tick:
            fit(
                model,
                subject.data["train"],
                epochs=self.epochs,
                lr=self.lr,
                weight_decay=self.weight_decay,
                rng=rng,
                after_backward=centring.after_backward,
                after_step=centring.after_step,
                on_epoch=lambda epoch, loss: tick(1),
                device=run.device,
            )
        return subject.cured(model.eval(), self.name())


SHELVED = WeightGradientCentralization
