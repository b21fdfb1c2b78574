"""Train the same architecture again with centred weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.centralize import Centralizer
from assay.methods.train.fit import reset
from assay.remedies._retraining import Retraining

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class WeightGradientCentralization(Retraining):
    """Trains it again from scratch, subtracting the filter's mean from weights and gradients; free at inference.

    With `weights` and `gradients` False it is the plain training to compare with. `fully` centres the penultimate
    fully connected layer too.
    """

    weights: bool = True
    gradients: bool = True
    fully: bool = False

    source: ClassVar[str] = "Fuhl & Kasneci, ICANN 2021, doi:10.1007/978-3-030-86380-7_19"

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = reset(subject.model, rng)
        centring = Centralizer(
            model, weights=self.weights, gradients=self.gradients, fully=self.fully, output=subject.layers.get("head")
        )
        self.train(model, subject, run, rng, after_backward=centring.after_backward, after_step=centring.after_step)
        return subject.cured(model, self.name())


SHELVED = WeightGradientCentralization
