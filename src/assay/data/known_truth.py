"""Pictures made by code in which it is known what decides the class: a planted patch, or segments of a digit.

Planted: noise of SIDE x SIDE pixels in cells of CELL x CELL; one cell, anywhere, holds one of four patterns, which is
the class, and another holds as many bright pixels in random order, which tell nothing. The truth is the one cell.

Segments: digits of seven bars, as on a pocket calculator, each bar lit with its own brightness, over a little noise. Of
two digits the bars that only one of them has are the truth about "why this one and not that": lit ones whose loss, and
dark ones whose lighting, makes the one the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

SIDE, CELL = 16, 4
PATTERNS = ("rows", "columns", "checks", "ring")
NOISE = 0.3  # the brightest pixel of what is only noise
BARS: dict[str, tuple[slice, slice]] = {
    "top": (slice(0, 2), slice(2, 6)),
    "upper left": (slice(2, 6), slice(0, 2)),
    "upper right": (slice(2, 6), slice(6, 8)),
    "middle": (slice(6, 8), slice(2, 6)),
    "lower left": (slice(8, 12), slice(0, 2)),
    "lower right": (slice(8, 12), slice(6, 8)),
    "bottom": (slice(12, 14), slice(2, 6)),
}
LIT = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011")
HEIGHT, WIDTH = 14, 8


class Planted(NamedTuple):
    x: NDArray[np.float32]  # n 1 SIDE SIDE in [0, 1]
    label: NDArray[np.int64]  # n
    cell: NDArray[np.int64]  # n: the cell that decides, row by row


def make_planted(n: int, rng: np.random.Generator) -> Planted:
    """`n` pictures, patterns and places drawn with equal chance."""
    _some(n, "make_planted")
    across = SIDE // CELL
    x = rng.uniform(0, NOISE, (n, 1, SIDE, SIDE))
    label = rng.integers(len(PATTERNS), size=n)
    cell = rng.integers(across**2, size=n)
    decoy = (cell + rng.integers(1, across**2, size=n)) % across**2
    row, column = np.indices((CELL, CELL))
    inside = (row % (CELL - 1) > 0) & (column % (CELL - 1) > 0)
    drawn = np.stack([row % 2 == 0, column % 2 == 0, (row + column) % 2 == 0, ~inside])
    for k in range(n):
        bright = drawn[label[k]]
        for place, shape in ((decoy[k], rng.permutation(bright.ravel()).reshape(bright.shape)), (cell[k], bright)):
            top, left = divmod(int(place), across)
            x[k, 0, top * CELL : (top + 1) * CELL, left * CELL : (left + 1) * CELL] = np.where(shape, 1.0, 0.1)
    return Planted(x.astype(np.float32), label, cell)


class Segments(NamedTuple):
    x: NDArray[np.float32]  # n 1 HEIGHT WIDTH in [0, 1]
    label: NDArray[np.int64]  # n


def make_segments(n: int, rng: np.random.Generator) -> Segments:
    """`n` digits, drawn with equal chance."""
    _some(n, "make_segments")
    label = rng.integers(len(LIT), size=n)
    x = rng.uniform(0, 0.1, (n, 1, HEIGHT, WIDTH))
    bright = rng.uniform(0.6, 1, (n, len(BARS)))
    for k in range(n):
        for b, place in enumerate(BARS.values()):
            if LIT[label[k]][b] == "1":
                x[k, 0][place] = bright[k, b]
    return Segments(x.astype(np.float32), label)


def bar_map() -> NDArray[np.int64]:
    """Which bar a pixel belongs to, -1 where to none: 1 HEIGHT WIDTH."""
    label = np.full((1, HEIGHT, WIDTH), -1)
    for b, place in enumerate(BARS.values()):
        label[0][place] = b
    return label


def differing(one: int, other: int) -> NDArray[np.bool_]:
    """The bars that only one of two digits has: 7."""
    return np.array([a != b for a, b in zip(LIT[one], LIT[other], strict=True)])


def _some(n: int, who: str) -> None:
    if n < 1:
        raise AssayError(f"{who} needs a count of at least 1, got {n}.")
