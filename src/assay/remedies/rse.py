"""Train the same architecture again with noise in front of its convolutions, and leave the noise on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch.nn.modules.conv import _ConvNd

from assay.errors import AssayError
from assay.nn.members import Drawn
from assay.nn.noisy import with_noise
from assay.remedies._retraining import Hardening, how_alike, why_no_noise
from assay.remedy import Cost

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Rse(Hardening):
    """Trains it again with noise before every convolution and keeps it on; answers are averages of noisy passes.

    `first` is the standard deviation of the noise on the input, as a share of its range, `inner` that before each other
    convolution, in its own units; `draws` passes are averaged (print has 50 and finds 10 enough).
    """

    first: float = 0.2
    inner: float = 0.1
    draws: int = 10

    source: ClassVar[str] = "Liu, Cheng, Zhang & Hsieh, ECCV 2018, arXiv:1712.00673; Liu, UCLA 2021, sec. 2.1"
    mends: ClassVar[tuple[str, ...]] = ("worst-case-accuracy", "distance-to-failure")
    of_layers: ClassVar[bool] = True

    def cost(self) -> Cost | None:
        return Cost(1, self.draws)

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if not any(isinstance(module, _ConvNd) for module in subject.model.modules()):
            return "it puts noise in front of convolutions, and the model has none"
        return why_no_noise(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self._random(replace(subject, model=self.begun(subject.model, rng)))
        self.hardened(model, subject, run, rng, about="training with noise inside")
        return subject.cured(model, self.name(), draws=self.draws)

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        return how_alike(cured, run)

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self._random(subject).eval(), self.name(), draws=self.draws)

    def _random(self, subject: Subject) -> Drawn:
        if self.draws < 2:
            raise AssayError(f"The setting draws={self.draws} of {self.name()!r} must be at least 2; 10 is usual.")
        x, _ = subject.data["test"].take(np.arange(1))
        device = next((p.device for p in subject.model.parameters()), x.device)
        _, span = subject.inputs.edges()
        return with_noise(subject.model, x.to(device), first=self.first, inner=self.inner, draws=self.draws, span=span)


SHELVED = Rse
