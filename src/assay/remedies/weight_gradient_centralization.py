"""Train the same architecture again with centred weights and gradients."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from assay.methods.train.centralize import Centralizer, centred_errors, reparametrised
from assay.remedies._retraining import Retraining, anew

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class WeightGradientCentralization(Retraining):
    """Trains it again from scratch, subtracting the filter's mean from weights and gradients; free at inference.

    `weights` may be normalised to length 1 or standardised to mean 0 and deviation 1 instead, through which the
    training goes; standardised ones want a batch normalisation behind them. `gradients` centres those of the weights,
    `errors` what comes back to each layer, by channel (which a batch normalisation right behind it does already) or by
    sample; the source found that harmful. `fully` includes the penultimate fully connected layer. With weights=leave
    and gradients=false it is the plain training. Under SGD centring the weights, the gradients or both is one and the
    same; under `optimiser` adam it is not.
    """

    weights: Literal["centre", "normalise", "standardise", "leave"] = "centre"
    gradients: bool = True
    errors: Literal["leave", "channel", "sample"] = "leave"
    fully: bool = False

    source: ClassVar[str] = "Fuhl & Kasneci, ICANN 2021, doi:10.1007/978-3-030-86380-7_19"
    mends: ClassVar[tuple[str, ...]] = ("accuracy",)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = anew(subject.model, rng)
        output = subject.layers.get("head")
        with ExitStack() as during:
            if self.errors != "leave":
                area: Literal["channel", "tensor"] = "channel" if self.errors == "channel" else "tensor"
                during.enter_context(centred_errors(model, area=area, fully=self.fully, output=output))
            if self.weights in ("normalise", "standardise"):
                during.enter_context(
                    reparametrised(model, self.weights, gradients=self.gradients, fully=self.fully, output=output)
                )
                self.train(model, subject, run, rng)
            else:
                centring = Centralizer(
                    model,
                    weights=self.weights == "centre",
                    gradients=self.gradients,
                    fully=self.fully,
                    output=output,
                )
                self.train(
                    model, subject, run, rng, after_backward=centring.after_backward, after_step=centring.after_step
                )
        return subject.cured(model, self.name())


SHELVED = WeightGradientCentralization
