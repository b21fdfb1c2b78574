"""Train the same architecture again with a price on what it can tell of its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from assay.methods.train.channel_capacity import CapacityPenalty, check_prices, weighted
from assay.remedies._retraining import Hardening
from assay.remedy import Cost

if TYPE_CHECKING:
    from torch import Tensor

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
    of_layers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_prices(self.eic, self.mic)

    def cost(self) -> Cost | None:
        prices = bool(self.eic) + bool(self.mic)
        return Cost(1 + prices, 1)  # 64 fake inputs beside 128, for each, through the whole and through each layer

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if subject.tokens:
            return "it draws inputs that are noise, and an input here is a row of words by number"
        if not weighted(subject.model):
            name = type(subject.model).__name__
            return f"it prices convolutions and fully connected layers, and {name} has neither"
        return None

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
        return _Typed(
            model, x.to(place), eic=self.eic, mic=self.mic, low=low, span=span, as_published=self.as_published
        )


class _Typed(CapacityPenalty):
    """Shows each layer its fake inputs in the type of its own weights, and prices what it says in that of the inputs.

    A model that takes float32 and reckons in another type inside changes it on the way; a layer alone does not.
    """

    @staticmethod
    def _said(module: nn.Module, x: Tensor) -> Tensor:  # v k *d -> v k *o
        own = next(module.parameters()).dtype if module in weighted(module) else x.dtype
        return CapacityPenalty._said(module, x.to(own)).to(x.dtype)


SHELVED = ChannelCapacity
