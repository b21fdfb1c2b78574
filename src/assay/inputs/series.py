"""Series: time by channels, t by c, each channel with bounds of its own. The changes and strengths are Assay's own.

A ragged series is padded at its end: where `padding` is a value (NaN too), the times after the last one at which any
channel is something else are no part of the series, have no bounds and never change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.inputs.change import Change
from assay.inputs.features import NEVER, Features
from assay.inputs.kind import SLACK, Bounded, as_float
from assay.inputs.sensor import LEVELS, NOISE, Channel, channels_of, chosen, noisy, quantised, rest, sign
from assay.inputs.show import Trace, Traces

WINDOWS = 8  # pieces of time that an explanation speaks of
GAPS = (0.05, 0.1, 0.2, 0.35, 0.5)


@dataclass(frozen=True)
class Series(Bounded):
    """`steps` times by channels; shorter ones are filled up with `padding`, where that is allowed."""

    steps: int
    channels: tuple[Channel, ...]
    padding: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.channels:
            raise ShapeError(f"A series has a time and a channel, got {self.steps} by {len(self.channels)}.")

    @classmethod
    def of(
        cls,
        x: object,
        *,
        names: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
        padding: float | None = None,
    ) -> Series:
        """Series like these: an array n t c, or a list of arrays t c, of different lengths where a padding is given.

        Bounds that are not given, or not finite, are what the series show.
        """
        each = [as_float(one) for one in x] if isinstance(x, list | tuple) else list(as_float(x))
        if not each:
            raise AssayError("There is no series to look at; give at least one.")
        _refuse_ragged(each, padding, len(each[0]), each[0].shape[-1] if each[0].ndim else 0, most=False)
        steps = max(len(one) for one in each)
        there = torch.cat([one if padding is None else one[: _length(one, padding)] for one in each])
        if bool(there.isnan().any()):
            raise AssayError("A series holds NaN; fill gaps first, or give padding=nan where it only follows the end.")
        return cls(steps, channels_of(there, names, units, low, high), padding)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.steps, len(self.channels))

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        return tuple((c.low, c.high) for c in self.channels) * self.steps

    def bounds(self) -> tuple[Tensor, Tensor]:  # -> t c, t c
        low, high = torch.tensor([(c.low, c.high) for c in self.channels], dtype=torch.float64).T
        return low.expand(self.shape), high.expand(self.shape)

    def pad(self, given: Sequence[object]) -> Tensor:
        """Series of up to `steps` times as one batch: n arrays t c -> n steps c."""
        each = [as_float(one) for one in given]
        _refuse_ragged(each, self.padding, self.steps, len(self.channels), most=True)
        batch = torch.full((len(each), *self.shape), math.nan if self.padding is None else self.padding)
        for row, one in zip(batch, each, strict=True):
            row[: len(one)] = one
        return batch

    def lengths(self, x: Tensor) -> Tensor:  # n t c -> n
        """How many times each series has."""
        if self.padding is None:
            return torch.full((len(x),), self.steps, device=x.device)
        return _ends(x, self.padding, self.edges()[1][0].to(x.device))

    def present(self, x: Tensor) -> Tensor:  # n t c -> n t 1
        return (torch.arange(self.steps, device=x.device) < self.lengths(x)[:, None])[..., None]

    def place(self, index: tuple[int, ...]) -> str:
        return f"{self.channels[index[1]].name!r} at time {index[0]}"

    def changes(self) -> Iterator[Change[Tensor]]:
        low, span = (edge[0] for edge in self.edges())  # c, c
        still = partial(rest, low, span)

        def timed(x: Tensor) -> Tensor:
            return self.lengths(x)

        yield Change(
            "sensor-noise", "Normal noise; strength: its deviation, of the range.", partial(noisy, span=span), NOISE
        )
        yield Change(
            "gaps",
            "A stretch without readings, the last one held; strength: its share of the time.",
            lambda x, s, rng: gap(x, s, rng, timed(x)),
            GAPS,
        )
        yield Change(
            "dropouts",
            "A stretch that reads zero, or the bound next to it; strength: its share of the time.",
            lambda x, s, rng: gap(x, s, rng, timed(x), still(x)),
            GAPS,
        )
        yield Change(
            "drift",
            "A steady slide away from the truth; strength: how far at the end, of the range.",
            lambda x, s, rng: drift(x, s, rng, timed(x), span),
            (0.02, 0.05, 0.1, 0.2, 0.35),
        )
        yield Change(
            "time-warp",
            "Time runs fast, then slow, or the other way; strength: the largest shift, of the length.",
            lambda x, s, rng: time_warp(x, s, rng, timed(x)),
            (0.01, 0.02, 0.04, 0.07, 0.11),
        )
        yield Change(
            "spikes",
            "Single readings half a range off; strength: the share of readings.",
            partial(spikes, span=span),
            (0.01, 0.02, 0.04, 0.08, 0.15),
        )
        yield Change(
            "clock-jitter",
            "Readings taken a little early or late; strength: by how many steps at most.",
            lambda x, s, rng: clock_jitter(x, s, rng, timed(x)),
            (0.15, 0.3, 0.5, 0.8, 1.2),
        )
        yield Change(
            "channel-loss",
            "Channels die and read zero; strength: the share of the time without them; half that share of channels.",
            lambda x, s, rng: channel_loss(x, s, rng, timed(x), still(x)),
            (0.2, 0.4, 0.6, 0.8, 1.0),
        )
        yield Change(
            "quantisation",
            "Few levels; strength: how many over the range.",
            partial(quantised, low=low, span=span),
            LEVELS,
        )

    def features(self, x: Tensor, windows: int = WINDOWS) -> Features:  # t c
        """Stretches of time by channel; as many stretches as the series has times, where these are fewer."""
        length, c = int(self.lengths(x[None])[0]), len(self.channels)
        windows = min(windows, max(length, 1))
        time = torch.arange(self.steps)
        window = (time * windows).div(max(length, 1), rounding_mode="floor")  # t
        groups = torch.where((time < length)[:, None], window[:, None] + windows * torch.arange(c), NEVER)
        names = []
        for channel in self.channels if length else ():
            for w in range(windows):
                inside = (window == w) & (time < length)
                first, last = (int(t) for t in (time[inside].min(), time[inside].max()))
                names.append(f"{channel.name}, {first} to {last}")
        return Features(tuple(names), groups)

    def show(self, x: Tensor) -> Traces:  # t c
        length = int(self.lengths(x[None])[0])
        times = tuple(float(t) for t in range(length))
        values = x[:length].detach().cpu().double().T.tolist()
        return Traces(
            tuple(
                Trace(channel.label, times, tuple(v if math.isfinite(v) else None for v in line))
                for channel, line in zip(self.channels, values, strict=True)
            )
        )


def gap(
    x: Tensor, share: float, rng: torch.Generator, lengths: Tensor, value: Tensor | None = None
) -> Tensor:  # n t c, n, c -> n t c
    """One stretch of every series reads what came just before it, or `value`.

    Where it begins does not depend on its share, so that a longer gap holds the shorter; none begins with the series.
    """
    start = 1 + (torch.rand(len(x), generator=rng, device=x.device) * (lengths - 1) * (1 - GAPS[-1])).long()  # n
    inside = _from(x, start) & ~_from(x, start + (share * lengths).ceil().long())
    if value is None:
        before = (start - 1).clamp(0, x.shape[1] - 1)
        return torch.where(inside, x.gather(1, before[:, None, None].expand(-1, 1, x.shape[2])), x)
    return torch.where(inside, value, x)


def drift(x: Tensor, size: float, rng: torch.Generator, lengths: Tensor, span: Tensor) -> Tensor:  # n t c -> n t c
    """x_t + sign size span t / (length - 1), up or down for each channel."""
    ramp = torch.arange(x.shape[1], device=x.device) / (lengths[:, None] - 1).clamp_min(1)  # n t
    return x + size * span.to(x) * sign((len(x), 1, x.shape[2]), rng, like=x) * ramp[..., None].to(x)


def time_warp(x: Tensor, size: float, rng: torch.Generator, lengths: Tensor) -> Tensor:  # n t c -> n t c
    """x read at t + sign size length sin(pi t / length): both ends stay, and time never runs back below 1 / pi."""
    last = (lengths - 1).clamp_min(1)[:, None].to(x)  # n 1
    time = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    return _read(x, time + sign((len(x), 1), rng, like=x) * size * last * torch.sin(math.pi * time / last), lengths)


def clock_jitter(x: Tensor, size: float, rng: torch.Generator, lengths: Tensor) -> Tensor:  # n t c -> n t c
    """x read at t + U(-size, size), in the order of these times: a clock does not run backwards."""
    u = 2 * torch.rand(x.shape[:2], generator=rng, device=x.device, dtype=x.dtype) - 1
    time = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    return _read(x, (time + size * u).sort(1).values, lengths)


def spikes(x: Tensor, share: float, rng: torch.Generator, *, span: Tensor) -> Tensor:  # n t c -> n t c
    """`share` of the readings lie half a range higher or lower."""
    way = sign(x.shape, rng, like=x)
    return torch.where(chosen(share, x.shape, rng, like=x), x + way * span.to(x) / 2, x)


def channel_loss(
    x: Tensor, part: float, rng: torch.Generator, lengths: Tensor, value: Tensor
) -> Tensor:  # n t c, n, c -> n t c
    """At least one channel, and half of `part` of them, read `value` for the last `part` of the time."""
    c = x.shape[2]
    rank = torch.rand(len(x), c, generator=rng, device=x.device).argsort(1).argsort(1)
    lost = rank < max(1, round(part / 2 * c))  # n c
    late = _from(x, lengths - (part * lengths).ceil().long())
    return torch.where(late & lost[:, None], value, x)


def _from(x: Tensor, start: Tensor) -> Tensor:  # n t c, n -> n t 1
    return (torch.arange(x.shape[1], device=x.device) >= start[:, None])[..., None]


def _read(x: Tensor, time: Tensor, lengths: Tensor) -> Tensor:  # n t c, n t, n -> n t c
    """Each series at these times, on straight lines between its readings; beyond its ends the outermost."""
    time = torch.minimum(time.clamp_min(0), (lengths[:, None] - 1).clamp_min(0).to(time))
    before = time.floor()
    share = (time - before)[..., None]  # n t 1
    first = before.long()
    second = torch.minimum(first + 1, (lengths[:, None] - 1).clamp_min(0))
    rows = torch.arange(len(x), device=x.device)[:, None]
    return x[rows, first] * (1 - share) + x[rows, second] * share


def _length(one: Tensor, padding: float) -> int:  # t c
    """How many times one series has that may be padded already."""
    return int(_ends(one[None], padding, one.new_zeros(one.shape[1]).double())[0]) if len(one) else 0


def _ends(x: Tensor, padding: float, span: Tensor) -> Tensor:  # n t c, c -> n
    """One more than the last time at which a channel is not padding, up to rounding.

    A channel without a range says nothing of where a series ends: as a share of its range, padding is like the rest.
    """
    telling = span > 0 if bool((span > 0).any()) else torch.ones_like(span, dtype=torch.bool)
    if math.isnan(padding):
        filled = x.isnan()
    else:
        filled = (x.double() - padding).abs() <= SLACK * torch.maximum(span, torch.tensor(abs(padding)).to(span))
    there = ~(filled | ~telling).all(-1)  # n t
    return (there * torch.arange(1, x.shape[1] + 1, device=x.device)).amax(-1)


def _refuse_ragged(each: Sequence[Tensor], padding: float | None, steps: int, channels: int, *, most: bool) -> None:
    """Refuse other channels; without padding other than `steps` times, and more where these are the `most`."""
    for k, one in enumerate(each):
        if one.ndim != 2 or one.shape[1] != channels:
            raise ShapeError(f"Series {k} has shape {tuple(one.shape)}; each is times by {channels} channels.")
        if padding is None and len(one) != steps:
            raise ShapeError(
                f"Series {k} has {len(one)} times where others have {steps}; make them equal, or allow ragged ones "
                "with padding=0.0."
            )
        if most and len(one) > steps:
            raise ShapeError(f"Series {k} has {len(one)} times, more than the {steps} of this kind; cut it.")
