"""Observation: what an environment shows at one moment, a bounded vector of readings. The changes are Assay's own.

A delayed observation is not here: it needs those of before, which one input does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.inputs.change import Change
from assay.inputs.features import Features
from assay.inputs.kind import Bounded, as_float
from assay.inputs.sensor import LEVELS, NOISE, Channel, channels_of, chosen, noisy, quantised, rest, sign
from assay.inputs.show import Cells


@dataclass(frozen=True)
class Observation(Bounded):
    """One reading of each channel."""

    channels: tuple[Channel, ...]

    def __post_init__(self) -> None:
        if not self.channels:
            raise ShapeError("An observation has at least one reading, got none.")

    @classmethod
    def of(
        cls,
        x: object,
        *,
        names: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
    ) -> Observation:  # n d
        """Observations like these; bounds that are not given, or not finite, are what they show.

        An environment often says that a velocity has no bounds: no radius is a share of that; what was seen counts.
        """
        given = as_float(x)
        if given.ndim != 2:
            raise ShapeError(f"Observation.of wants observations n d, got shape {tuple(given.shape)}; flatten each.")
        if bool(given.isnan().any()):
            raise AssayError(f"Observation {int(given.isnan().any(1).nonzero()[0])} holds NaN; mend the environment.")
        return cls(channels_of(given, names, units, low, high))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.channels),)

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        return tuple((c.low, c.high) for c in self.channels)

    def place(self, index: tuple[int, ...]) -> str:
        return repr(self.channels[index[0]].name)

    def changes(self) -> Iterator[Change[Tensor]]:
        low, span = self.edges()
        yield Change(
            "sensor-noise", "Normal noise; strength: its deviation, of the range.", partial(noisy, span=span), NOISE
        )
        yield Change(
            "bias",
            "Every reading off by the same share of its range, up or down; strength: that share.",
            partial(biased, span=span),
            NOISE,
        )
        yield Change(
            "dropout",
            "Readings that are zero, or the bound next to it; strength: the share of readings.",
            partial(dropped, value=partial(rest, low, span)),
            (0.03, 0.07, 0.15, 0.3, 0.5),
        )
        yield Change(
            "quantisation",
            "Few levels; strength: how many over the range.",
            partial(quantised, low=low, span=span),
            LEVELS,
        )

    def features(self, x: Tensor) -> Features:  # d
        return Features(tuple(c.name for c in self.channels), torch.arange(len(self.channels)))

    def show(self, x: Tensor) -> Cells:  # d
        values = x.detach().cpu().double().tolist()
        told = ((c.name, f"{v:.4g} {c.unit}".rstrip()) for c, v in zip(self.channels, values, strict=True))
        return Cells(tuple(told))


def biased(x: Tensor, size: float, rng: torch.Generator, *, span: Tensor) -> Tensor:  # n d -> n d
    """x + sign size span, up or down for each reading of each input."""
    return x + size * span.to(x) * sign(x.shape, rng, like=x)


def dropped(x: Tensor, share: float, rng: torch.Generator, *, value: partial[Tensor]) -> Tensor:  # n d -> n d
    return torch.where(chosen(share, x.shape, rng, like=x), value(x), x)
