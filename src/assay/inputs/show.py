"""How one input is shown, as small data: what draws reads these, nothing here draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Picture:
    """An image of one or three channels with values in [low, high]: c h w."""

    pixels: NDArray[Any]
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Reel:
    """A few pictures in their order, and the places in the video that they were taken from."""

    frames: tuple[Picture, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class Cells:
    """A row as pairs of name and value, with its unit."""

    cells: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Trace:
    """One channel against time; what is not a number is None."""

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]


@dataclass(frozen=True)
class Traces:
    lines: tuple[Trace, ...]
    x_label: str = "time step"


@dataclass(frozen=True)
class Words:
    text: str


@dataclass(frozen=True)
class Dots:
    """Points in the plane, with the bounds of both axes and what each of them is."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_label: str
    y_label: str


@dataclass(frozen=True)
class SideBySide:
    first: Show
    second: Show


Show = Picture | Reel | Cells | Traces | Words | Dots | SideBySide
