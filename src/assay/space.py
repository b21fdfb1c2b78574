"""Space: the shape of one input and what its values lie between, as told or as the data have it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.column import WHOLE
from assay.data.texts import Texts
from assay.errors import AssayError, SubjectError
from assay.given import Bound, Data, pixel_bounds
from assay.inputs.kind import Bounded, Told

ALIKE = 0.1  # columns are alike where the middle one has at least this share of the widest range


@dataclass(frozen=True)
class InputSpace(Told):
    """The shape of one input and the bounds of its values, in natural units.

    A radius is a share of the range: where the bounds are not 0 and 1, questions about changes are put in shares of it
    (`Subject.in_shares`), so that a budget means the same for pixels up to 255, and for every column of a table.
    """

    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    ranges: tuple[tuple[float, float], ...] | None = None
    """What each feature lies between, in the order of the flattened input, where features have ranges of their own."""
    natural: InputSpace | None = None
    """The space that values are shares of; None where they are in natural units."""
    beyond: tuple[str, ...] = field(default=(), repr=False)
    """Domains of a table whose values may lie outside: its ranges are those of the data at home."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise AssayError(f"Bounds must have low < high, got {self.low} and {self.high}; images are usually 0 1.")
        if self.ranges is None:
            return
        if len(self.ranges) != math.prod(self.shape):
            raise AssayError(
                f"Bounds for {len(self.ranges)} features, and an input of shape {self.shape} has "
                f"{math.prod(self.shape)}; give one low and one high for each, or one for all."
            )
        wrong = next((i for i, (low, high) in enumerate(self.ranges) if not low <= high), None)
        if wrong is not None:
            low, high = self.ranges[wrong]
            raise AssayError(f"Bounds must have low <= high, got {low:g} and {high:g} for feature {wrong}; mend them.")

    @classmethod
    def between(cls, shape: tuple[int, ...], low: Bound, high: Bound) -> InputSpace:
        """The space of inputs of this shape between these bounds."""
        if isinstance(low, int | float) and isinstance(high, int | float):
            return cls(shape, float(low), float(high))
        count = math.prod(shape)
        lows, highs = ([float(b)] * count if isinstance(b, int | float) else [float(v) for v in b] for b in (low, high))
        if len(lows) != len(highs):
            raise AssayError(f"Bounds have {len(lows)} lows and {len(highs)} highs; give one of each for each feature.")
        return cls(shape, min(lows), max(highs), tuple(zip(lows, highs, strict=True)))

    def edges(self) -> tuple[Tensor, Tensor]:  # -> *d or (), *d or (): float64
        """The lower bound and the width of the range, for each feature where they differ."""
        if self.ranges is None:
            low, high = torch.tensor([self.low, self.high], dtype=torch.float64)
            return low, high - low
        low, high = torch.tensor(self.ranges, dtype=torch.float64).T
        return low.reshape(self.shape), (high - low).reshape(self.shape)

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3 and self.shape[0] in (1, 3)

    @property
    def is_picture(self) -> bool:
        """An image, or a pair of them."""
        return self.is_image or (len(self.shape) == 4 and self.shape[0] == 2 and self.shape[1] in (1, 3))


def space_of(
    splits: Mapping[str, Data], shape: tuple[int, ...], bounds: tuple[Bound, Bound] | None
) -> tuple[InputSpace, tuple[str, ...]]:
    """The input space, and what to say of it where nobody said what the columns of a table lie between."""
    if bounds is None and isinstance(splits["test"], Texts):  # whichever words the data have, others are words too
        size = splits["test"].vocabulary
        return InputSpace(shape, 0.0, float(WHOLE if size is None else max(size, 2)) - 1), ()
    numbers = bounds is None or all(isinstance(b, int | float) for b in bounds)
    if len(shape) != 1 or not numbers:
        return InputSpace.between(shape, *(bounds or (0.0, 1.0))), ()
    low, high = extremes(splits, shape)
    widths = high - low
    given = pixel_bounds(bounds)
    inside = bool((low >= given[0]).all() and (high <= given[1]).all())
    alike = float(np.sort(widths)[(len(widths) - 1) // 2]) >= ALIKE * float(widths.max())
    if inside and (bounds is None or alike):
        return InputSpace.between(shape, *given), ()
    if not (np.isfinite(widths).all() and (widths > 0).any()) or (bounds is not None and not inside):
        return InputSpace.between(shape, *given), ()  # `check` says which value is wrong
    wide, narrow = int(widths.argmax()), int(np.where(widths > 0, widths, np.inf).argmin())
    return InputSpace.between(shape, low.tolist(), high.tolist()), (
        f"Nobody said what each column lies between: a radius is a share of what it has in the data, from "
        f"{widths[narrow]:.3g} (column {narrow}) to {widths[wide]:.3g} (column {wide}). Give bounds for each column.",
    )


def extremes(splits: Mapping[str, Data], shape: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The smallest and the largest value of each feature in all splits: *d, *d."""
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    for data in splits.values():
        for start in range(0, len(data), 4096):
            x = data.take(np.arange(start, min(start + 4096, len(data))))[0].numpy().astype(np.float64)
            if x.shape[1:] != shape:
                break  # told where the split is asked about
            low, high = np.fmin(low, np.fmin.reduce(x)), np.fmax(high, np.fmax.reduce(x))  # an empty cell is no value
    return low, high


def left_open(space: InputSpace, domains: Mapping[str, Data]) -> tuple[InputSpace, tuple[str, ...]]:
    """The space of a table for which nobody told bounds: domains may lie outside, and a note says how many inputs do.

    A radius is a share of the ranges at home, which no data from elsewhere may widen.
    """
    if len(space.shape) != 1:
        return space, ()
    low, span = space.edges()
    outside: dict[str, str] = {}
    for name, data in domains.items():
        count = 0
        for start in range(0, len(data), 4096):
            x = data.take(np.arange(start, min(start + 4096, len(data))))[0]
            if x.shape[1:] != space.shape:
                break  # told where the domain is looked at
            count += int(((x < low) | (x > low + span)).any(1).sum())
        if count:
            outside[name] = f"{count:,} of {len(data):,} in {name!r}"
    if not outside:
        return space, ()
    return replace(space, beyond=(*space.beyond, *outside)), (
        f"Inputs of domains have values outside what the columns have at home: {', '.join(outside.values())}. Radii "
        "are shares of the ranges at home.",
    )


def check_bounds(
    x: Tensor,
    indices: NDArray[np.int64],
    split: str,
    inputs: InputSpace,
    kind: Bounded | None = None,
    *,
    missing: bool = True,
) -> None:
    """Refuse values outside the bounds: a budget of 8/255 means nothing on pixels from 0 to 255.

    A cell that is empty, NaN where the kind says that the model takes that, is no value, and fine where `missing`.
    """
    if tuple(x.shape[1:]) != inputs.shape:
        raise SubjectError(
            f"Inputs of {split!r} have shape {tuple(x.shape[1:])}, those of 'test' {inputs.shape}; make them the same."
        )
    if not x.numel():
        return
    low, span = (edge.to(x.device) for edge in inputs.edges())
    slack = 1e-6 * span.clamp_min(torch.finfo(torch.float32).tiny)
    fine = (x >= low - slack) & (x <= low + span + slack)  # NaN compares false, so that it is caught too
    if split in (inputs.natural or inputs).beyond:
        fine = torch.isfinite(x)
    known = kind if kind is not None and kind.shape == inputs.shape else None
    may_miss = torch.zeros(inputs.shape, dtype=torch.bool) if known is None else known.may_miss().expand(inputs.shape)
    if missing:
        fine = fine | (x.isnan() & may_miss.to(x.device))
    if not bool(fine.all()):
        row = int(torch.nonzero(~fine.flatten(1))[0, 0])
        beyond = torch.maximum(low - x[row], x[row] - low - span).where(~fine[row], -torch.inf).flatten()
        feature = int(torch.nan_to_num(beyond, nan=torch.inf).argmax())
        value = float(x[row].flatten()[feature])
        what = f"Input {indices[row]} of {split!r}"
        if math.isnan(value):
            place = tuple(map(int, np.unravel_index(feature, inputs.shape)))
            where = f"feature {feature}" if known is None else known.place(place)
            raise SubjectError(f"{what} {_empty(where, allowed=bool(may_miss[place]), row=len(inputs.shape) == 1)}")
        lowest, highest = (inputs.low, inputs.high) if inputs.ranges is None else inputs.ranges[feature]
        column = "" if inputs.ranges is None else f" in feature {feature}"
        raise SubjectError(
            f"{what} has the value {value:g}{column} outside the bounds [{lowest:g}, "
            f"{highest:g}]; scale the data (pixels: divide by 255) or give --bounds LOW HIGH."
        )


def _empty(where: str, *, allowed: bool, row: bool) -> str:
    """What is wrong with a NaN, and how to mend it."""
    if allowed:
        return f"has an empty cell in {where}, and here inputs are computed with, not only shown to the model; fill it."
    if row:
        return (
            f"has the value nan in {where}; fill it, or say that the model takes empty cells there: "
            "kind=Row((Column(..., missing=True), ...))."
        )
    return f"has the value nan in {where}; mend that input or leave it out."
