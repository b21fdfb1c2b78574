"""Train the same architecture again with a Gaussian for every weight, on inputs as they are worst for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from assay.errors import AssayError
from assay.methods.train.adv_bnn import check_alpha, robust_elbo, worst_inputs
from assay.methods.train.fit import Optimiser
from assay.nn.variational import NORMALISED, Variational, as_variational
from assay.remedies._retraining import Hardening, how_alike, why_no_attack
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class AdvBnn(Hardening):
    """Trains it again with a Gaussian for every weight on attacked inputs; answers are averages over nets drawn.

    `radius` is the largest change of a value, as a share of its range, that the training defends against, `steps` those
    of the search for it and `eot` the draws that each step averages; `as_published` searches as the public code does.
    `prior` is the standard deviation of the prior of each weight, `sigma` that with which it starts (print: as wide as
    the prior, which takes far longer) and `alpha` the price on leaving the prior, at most 1: less costs less clean
    accuracy. `draws` nets are averaged.
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

    source: ClassVar[str] = "Liu, Li, Wu & Hsieh, ICLR 2019, arXiv:1810.01279; Liu, UCLA 2021, sec. 2.2"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy", "distance-to-failure")
    of_layers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha(self.alpha)
        if self.as_published and self.eot != 1:
            raise AssayError(f"as_published takes one draw a step, as the public code does; leave eot={self.eot} out.")
        worst_inputs(nn.Identity(), radius=self.radius, steps=self.steps, eot=self.eot)

    def cost(self) -> Cost | None:
        searching = self.steps * self.eot if self.radius else 0
        return Cost(1 + searching, self.draws)

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or (why_no_attack(subject) if self.radius else None)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self._random(replace(subject, model=self.begun(subject.model, rng)))
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
            reach=subject.reach,
            as_published=self.as_published,
        )
        about = "training Gaussian weights under attack"
        self.hardened(model, subject, run, rng, about=about, loss=robust.loss, augment=robust.augment)
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
