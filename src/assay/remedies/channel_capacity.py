"""Train the same architecture again with a price on what it can tell of its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from assay.methods.train.channel_capacity import CapacityPenalty, check_prices, weighted
from assay.remedies._retraining import Hardening
from assay.remedy import Cost

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class ChannelCapacity(Hardening):
    """Trains it with a price on its capacity as a noisy channel, whole and layer by layer; free at inference.

    `eic` is the price on how far its outputs spread when its inputs are Gaussian noise, as shares of their range (of
    one linear layer that is weight decay, and nothing else), `mic` that on how much it lengthens them and how unevenly.
    Without both it is the plain training. `as_published` adds the spread up over the outputs, as print does, instead of
    dividing by their number: prices must be smaller then by about that number.
    """

    eic: float = 0.05
    mic: float = 0.0
    as_published: bool = False

    source: ClassVar[str] = "Ye & Lin, ICANN 2021, doi:10.1007/978-3-030-86380-7_21"
    mends: ClassVar[tuple[str, ...]] = ("accuracy", "how-steep")

    def __post_init__(self) -> None:
        check_prices(self.eic, self.mic)

    def cost(self) -> Cost | None:
        return Cost(
            2 if self.eic or self.mic else 1, 1
        )  # 64 fake inputs beside 128, for each price, whole and by layer

    def why_not(self, subject: Subject) -> str | None:
        if subject.tokens:
            return "it draws inputs that are noise, and an input here is a row of words by number"
        if not weighted(subject.model):
            name = type(subject.model).__name__
            return f"it prices convolutions and fully connected layers, and {name} has neither"
        return super().why_not(subject)

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        model = self.begun(subject.model, rng)
        priced = self._priced(model, subject)
        self.hardened(
            model, subject, run, rng, about="training with less capacity", loss=priced.loss, augment=priced.augment
        )
        return subject.cured(model, self.name())

    def _priced(self, model: nn.Module, subject: Subject) -> CapacityPenalty:
        x: Tensor
        x, _ = subject.data["test"].take(np.arange(1))
        place = next(p.device for p in model.parameters())
        low, span = subject.inputs.edges()
        return CapacityPenalty(
            model, x.to(place), eic=self.eic, mic=self.mic, low=low, span=span, as_published=self.as_published
        )


SHELVED = ChannelCapacity
