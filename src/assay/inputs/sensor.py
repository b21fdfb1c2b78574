"""What goes wrong with anything that measures: noise, an offset, a dead channel, too few levels. Strengths are Assay's.

Each function takes inputs n *d with the lower bound and the width of the range of their features (which broadcast to
*d) and may leave the bounds: the kind that uses it clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.data.bounds import refuse_bounds
from assay.errors import AssayError

NOISE = (0.01, 0.02, 0.04, 0.08, 0.15)
LEVELS = (64.0, 32.0, 16.0, 8.0, 4.0)


@dataclass(frozen=True)
class Channel:
    """One thing that is measured, what its values lie between and in which unit."""

    name: str
    low: float
    high: float
    unit: str = ""

    def __post_init__(self) -> None:
        refuse_bounds(self.low, self.high, f"the channel {self.name!r}")

    @property
    def label(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


def channels_of(
    values: Tensor,
    names: Sequence[str] | None,
    units: Sequence[str] | None,
    low: Sequence[float] | None,
    high: Sequence[float] | None,
) -> tuple[Channel, ...]:  # m c, NaN where nothing was measured
    """Channels with the bounds given, and where these are missing or infinite what the values show."""
    c = values.shape[1]
    names = tuple(names or (f"channel {k}" for k in range(c)))
    units = tuple(units or ("" for _ in range(c)))
    for what, given in (("names", names), ("units", units), ("lows", low), ("highs", high)):
        if given is not None and len(given) != c:
            raise AssayError(f"There are {len(given)} {what} for {c} channels; give one each.")
    held = values.double()
    if held.isinf().any():
        k = int(held.isinf().any(0).nonzero()[0])
        raise AssayError(f"The channel {names[k]!r} holds an infinite value; take it out.")
    told = torch.tensor([low or [-torch.inf] * c, high or [torch.inf] * c], dtype=torch.float64)
    if not bool(told.isfinite().all()) and not len(values):
        raise AssayError("There is no input to read bounds from; give at least one, or finite bounds.")
    if len(values):
        seen = torch.stack([held.nan_to_num(nan=torch.inf).amin(0), held.nan_to_num(nan=-torch.inf).amax(0)])
        told = torch.where(told.isfinite(), told, seen)
    lows, highs = told.tolist()
    return tuple(Channel(*each) for each in zip(names, lows, highs, units, strict=True))


def noisy(x: Tensor, sigma: float, rng: torch.Generator, *, span: Tensor) -> Tensor:
    """x + sigma span e,  e ~ N(0, 1)."""
    return x + sigma * span.to(x) * torch.randn(x.shape, generator=rng, device=x.device, dtype=x.dtype)


def quantised(x: Tensor, levels: float, _rng: torch.Generator | None = None, *, low: Tensor, span: Tensor) -> Tensor:
    """The nearest of `levels` values that divide the range evenly, both ends included."""
    return stepped(x, span / (levels - 1), low)


def stepped(x: Tensor, step: Tensor, low: Tensor) -> Tensor:
    """The nearest of low + k step; as it is where the step is 0."""
    low, step = low.to(x), step.to(x)
    return torch.where(step > 0, low + ((x - low) / torch.where(step > 0, step, 1)).round() * step, x)


def chosen(share: float, shape: Sequence[int], rng: torch.Generator, *, like: Tensor) -> Tensor:
    """True with this chance; with the same state of `rng`, what a smaller share chooses a larger one does too."""
    return torch.rand(tuple(shape), generator=rng, device=like.device) < share


def sign(shape: Sequence[int], rng: torch.Generator, *, like: Tensor) -> Tensor:
    """1 or -1 with equal chance."""
    return (2 * torch.randint(2, tuple(shape), generator=rng, device=like.device) - 1).to(like.dtype)


def rest(low: Tensor, span: Tensor, x: Tensor) -> Tensor:
    """What a dead sensor reads: zero, or the bound nearest to it."""
    low, high = low.to(x), (low + span).to(x)
    return torch.minimum(torch.maximum(torch.zeros_like(low), low), high)
