"""Train the same architecture with ReLUs that stop growing, on inputs under a little noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.train.gaussian_training import GaussianTraining
from assay.nn.bounded_relu import BoundedReLU, relus, with_bounded_relus
from assay.remedies._retraining import Hardening, why_no_noise

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class BoundedRelu(Hardening):
    """Trains it with ReLUs that stop at a bound, on inputs under a little noise; free at inference.

    Only ReLUs that are modules are bounded (nn.ReLU), not those called in a forward pass. `sigma` is the noise of a
    value as a share of its range. A bound of inf without noise is the plain training.
    """

    bound: float = 1.0
    sigma: float = 0.05

    source: ClassVar[str] = "Zantedeschi, Nicolae & Rawat, AISec 2017, arXiv:1707.06728"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy",)
    of_layers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        BoundedReLU(self.bound)
        GaussianTraining(self.sigma)

    def why_not(self, subject: Subject) -> str | None:
        without = f"it bounds layers of nn.ReLU, and {type(subject.model).__name__} has none"
        lacks = super().why_not(subject) or (None if relus(subject.model) else without)
        return lacks or (why_no_noise(subject) if self.sigma else None)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = with_bounded_relus(self.begun(subject.model, rng), self.bound)
        method = GaussianTraining(self.sigma, span=subject.inputs.edges()[1])
        self.hardened(model, subject, run, rng, about="training with bounded ReLUs", augment=method.augment)
        return subject.cured(model, self.name())

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(with_bounded_relus(subject.model, self.bound).eval(), self.name())


SHELVED = BoundedRelu
