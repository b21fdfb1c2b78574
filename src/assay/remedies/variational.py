"""Train the same architecture again with a Gaussian for every weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.methods.train.fit import Optimiser, trainable
from assay.methods.train.variational import negative_elbo
from assay.nn.variational import Variational as Net
from assay.nn.variational import as_variational
from assay.remedies._retraining import Retraining, anew, how_alike, loss_of
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Variational(Retraining):
    """Trains it again with a Gaussian for every weight; answers are averages over nets drawn from them.

    `draws` nets are averaged. `sigma` is the standard deviation that each weight starts with, `prior` that of its prior
    and `beta` the price on leaving it: 1 is the evidence lower bound. The prior takes the place of weight decay, and
    Adam that of SGD, under which the standard deviations hardly move.
    """

    weight_decay: float = 0.0
    optimiser: Optimiser = "adam"
    draws: int = 15
    sigma: float = 0.004
    prior: float = 0.1
    beta: float = 0.01

    needs: ClassVar[tuple[str, ...]] = ("mean",)
    source: ClassVar[str] = "Blundell et al., ICML 2015, arXiv:1505.05424; Liu, UCLA 2021, ch. 5"
    mends: ClassVar[tuple[str, ...]] = (
        "confidence-under-shift",
        "does-it-know",
        "does-it-know-where-it-is-wrong",
    )

    def cost(self) -> Cost | None:
        return Cost(1, self.draws)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = anew(self._random(replace(subject, model=trainable(subject.model))), rng)
        assert isinstance(model, Net)  # anew copies
        loss = negative_elbo(model.kl, len(subject.data["train"]), beta=self.beta, loss=loss_of(subject))
        self.train(model, subject, run, rng, loss=loss)
        return subject.cured(model, self.name(), draws=self.draws)

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        return how_alike(cured, run)

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self._random(subject).eval(), self.name(), draws=self.draws)

    def _random(self, subject: Subject) -> Net:
        if self.draws < 2:
            raise AssayError(f"The setting draws={self.draws} of {self.name()!r} must be at least 2; 15 is usual.")
        return as_variational(subject.model, draws=self.draws, sigma=self.sigma, prior=self.prior)


SHELVED = Variational
