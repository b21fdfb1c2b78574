"""Train the same architecture again with a Gaussian for every weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.methods.train.fit import fit, reset
from assay.methods.train.variational import negative_elbo
from assay.nn.variational import Variational as Net
from assay.nn.variational import as_variational
from assay.remedies._retraining import Retraining
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

    lr: float = 3e-3
    weight_decay: float = 0.0
    draws: int = 15
    sigma: float = 0.004
    prior: float = 0.1
    beta: float = 0.01

    source: ClassVar[str] = "Blundell et al., ICML 2015, arXiv:1505.05424; Liu, UCLA 2021, ch. 5"

    def cost(self) -> Cost | None:
        return Cost(1, self.draws)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = reset(self._random(subject), rng)
        assert isinstance(model, Net)  # reset copies
        data = subject.data["train"]
        with run.progress(f"training for {self.epochs} epochs", self.epochs) as tick:
            fit(
                model,
                data,
                epochs=self.epochs,
                lr=self.lr,
                weight_decay=self.weight_decay,
                optimiser="adam",
                rng=rng,
                loss=negative_elbo(model.kl, len(data), beta=self.beta),
                on_epoch=lambda epoch, loss: tick(1),
                device=run.device,
            )
        return subject.cured(model.eval(), self.name(), draws=self.draws)

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self._random(subject).eval(), self.name(), draws=self.draws)

    def _random(self, subject: Subject) -> Net:
        if self.draws < 2:
            raise AssayError(f"The setting draws={self.draws} of {self.name()!r} must be at least 2; 15 is usual.")
        return as_variational(subject.model, draws=self.draws, sigma=self.sigma, prior=self.prior)


SHELVED = Variational
