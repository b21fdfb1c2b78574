"""Train the same architecture again with a Gaussian for every weight, on inputs as they are worst for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.errors import AssayError
from assay.methods.train.adv_bnn import robust_elbo
from assay.methods.train.fit import Optimiser, reset
from assay.nn.variational import NORMALISED, Variational, as_variational
from assay.remedies._retraining import Retraining, how_alike
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class AdvBnn(Retraining):
    """Trains it again with a Gaussian for every weight on attacked inputs; answers are averages over nets drawn.

    `radius` is the largest change of a value, as a share of its range, that the training defends against, `steps` those
    of the search for it and `eot` the draws that each step averages; `as_published` searches as the public code does.
    `prior` is the standard deviation of the prior of each weight, `sigma` that with which it starts (print: as wide as
    the prior, which takes far longer) and `alpha` the price on leaving the prior, at most 1: less costs less clean
    accuracy. `draws` nets are averaged. `fine_tune` goes on from the subject's own weights, at a tenth of the rate, and
    is compared with the subject itself.
    """

    weight_decay: float = 0.0
    optimiser: Optimiser = "adam"
    radius: float = 8 / 255
    steps: int = 10
    eot: int = 1
    alpha: float = 0.02
    prior: float = 0.1
    sigma: float = 0.02
    draws: int = 10
    as_published: bool = False
    fine_tune: bool = False

    source: ClassVar[str] = "Liu, Li, Wu & Hsieh, ICLR 2019, arXiv:1810.01279; Liu, UCLA 2021, sec. 2.2"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy", "distance-to-failure")

    def cost(self) -> Cost | None:
        return Cost(1 + self.steps * (1 if self.as_published else self.eot), self.draws)

    @property
    def learning_rate(self) -> float:
        return super().learning_rate / (10 if self.fine_tune and self.lr is None else 1)

    def control(self) -> Remedy | None:
        return None if self.fine_tune else super().control()

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        random = self._random(subject)
        model = random if self.fine_tune else reset(random, rng)
        assert isinstance(model, Variational)  # reset copies
        low, span = subject.inputs.edges()
        robust = robust_elbo(
            model,
            len(subject.data["train"]),
            radius=self.radius,
            alpha=self.alpha,
            steps=self.steps,
            eot=self.eot,
            low=low,
            span=span,
            as_published=self.as_published,
        )
        self.train(model, subject, run, rng, loss=robust.loss, augment=robust.augment)
        return subject.cured(model, self.name(), draws=self.draws)

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        return how_alike(cured, run)

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self._random(subject).eval(), self.name(), draws=self.draws)

    def _random(self, subject: Subject) -> Variational:
        if self.draws < 2:
            raise AssayError(f"The setting draws={self.draws} of {self.name()!r} must be at least 2; 10 is usual.")
        return as_variational(
            subject.model, draws=self.draws, sigma=self.sigma, prior=self.prior, kinds=NORMALISED, spread="exp"
        )


SHELVED = AdvBnn
