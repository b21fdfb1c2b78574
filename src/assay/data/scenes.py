"""Scenes made by code: discs, squares and triangles on noise, with what is where known to the pixel.

A scene of SIDE x SIDE pixels has four quarters; each holds a thing with a chance of a half, wholly inside it, of any
kind, size and brightness. Pixels are bytes and places whole numbers, so a seed makes the same scenes everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

KINDS = ("disc", "square", "triangle")
GROUND = "ground"
SIDE = 32
RADII = (4, 6)  # smallest and largest, in pixels
CHANCE = 0.5  # of a thing in a quarter
NOISE = 90  # the brightest pixel of the ground, of 255
BRIGHT = (110, 220)  # a thing's own brightness
GRAIN = 30  # the noise on a thing


class Scenes(NamedTuple):
    x: NDArray[np.uint8]  # n 1 SIDE SIDE
    kind: NDArray[np.int64]  # n SIDE SIDE: 0 for the ground, else 1 + the place in KINDS
    boxes: NDArray[np.float32]  # n 4 5: place in KINDS, left, top, right, bottom in shares; -1 for none
    holds: NDArray[np.int64]  # n 3: whether there is one of each kind


def make_scenes(n: int, rng: np.random.Generator) -> Scenes:
    """`n` scenes."""
    if n < 1:
        raise AssayError(f"make_scenes needs a count of at least 1, got {n}.")
    half = SIDE // 2
    there = rng.random((n, 4)) < CHANCE
    which = rng.integers(len(KINDS), size=(n, 4))
    radius = rng.integers(RADII[0], RADII[1] + 1, size=(n, 4))
    corner = half * np.stack(np.divmod(np.arange(4), 2), 1)  # of each quarter: row, column
    centre = corner + rng.integers(radius[..., None], half - radius[..., None], size=(n, 4, 2))  # n 4 2
    bright = rng.integers(*BRIGHT, size=(n, 4), endpoint=True)
    x = rng.integers(0, NOISE, size=(n, SIDE, SIDE), endpoint=True)
    grain = rng.integers(-GRAIN, GRAIN, size=(n, SIDE, SIDE), endpoint=True)
    kind, boxes = np.zeros((n, SIDE, SIDE), dtype=np.int64), np.full((n, 4, 5), -1.0)
    place = np.arange(SIDE)
    for quarter in range(4):
        r = radius[:, quarter, None, None]
        down, right = (place - centre[:, quarter, axis, None] for axis in (0, 1))  # n SIDE
        v, u = down[:, :, None], right[:, None, :]  # n SIDE 1, n 1 SIDE
        wide = 2 * abs(u) <= v + r
        inside = np.stack([u * u + v * v <= r * r, (abs(u) < r) & (abs(v) < r), (abs(v) <= r) & wide])  # kinds n h w
        drawn = inside[which[:, quarter], np.arange(n)] & there[:, quarter, None, None]
        kind[drawn] = np.broadcast_to(1 + which[:, quarter, None, None], kind.shape)[drawn]
        x = np.where(drawn, bright[:, quarter, None, None] + grain, x)
        rows, columns = np.asarray(drawn.any(2)), np.asarray(drawn.any(1))  # n SIDE
        edges = [columns.argmax(1), rows.argmax(1), SIDE - columns[:, ::-1].argmax(1), SIDE - rows[:, ::-1].argmax(1)]
        told = np.stack([which[:, quarter], *(edge / SIDE for edge in edges)], 1)
        boxes[:, quarter] = np.where(there[:, quarter, None], told, -1.0)
    holds = np.stack([(there & (which == k)).any(1) for k in range(len(KINDS))], 1)
    return Scenes(x[:, None].astype(np.uint8), kind, boxes.astype(np.float32), holds.astype(np.int64))


def load_scenes(*, train: int = 3000, test: int = 500, seed: int = 0) -> dict[str, Scenes]:
    """`train` and `test`."""
    rng = np.random.default_rng(seed)
    return {"train": make_scenes(train, rng), "test": make_scenes(test, rng)}
