"""Train the same architecture on inputs under Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.gaussian_training import GaussianTraining as Method
from assay.remedies._retraining import Hardening, why_no_noise

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class GaussianTraining(Hardening):
    """Trains it on inputs under noise, as the network behind a smoothed certificate wants it; no noise when it answers.

    `sigma` is the noise of a value as a share of its range; ask a certificate by smoothing with the same.
    """

    sigma: float = 0.25

    source: ClassVar[str] = "Cohen, Rosenfeld & Kolter, ICML 2019, arXiv:1902.02918; Lecuyer et al., S&P 2019"
    mends: ClassVar[tuple[str, ...]] = ("certified-radius", "everyday-change")

    def __post_init__(self) -> None:
        super().__post_init__()
        Method(self.sigma)  # a noise that cannot be is refused before anything is trained

    def why_not(self, subject: Subject) -> str | None:
        return super().why_not(subject) or (why_no_noise(subject) if self.sigma else None)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        method = Method(self.sigma, span=subject.inputs.edges()[1])
        self.hardened(model, subject, run, rng, about="training under noise", augment=method.augment)
        return subject.cured(model, self.name())


SHELVED = GaussianTraining
