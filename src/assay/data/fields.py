"""Displacement fields made by code: a sheet of SIDE x SIDE points under a stamp, as a drawing simulation would give it.

The stamp presses at (u, v) of the unit square with a force f and a width w; a point at (a, b), with the distance
r^2 = (a - u)^2 + (b - v)^2 and the bump g = exp(-r^2 / 2 w^2), w between NARROW and WIDE, moves by

    down    -DEPTH f g + RISE hold (1 - g) exp(-r^2 / 8 w^2)       the rim of the dent rises, the more it is held
    along   SLIP slip f g (u - a) / w,  and likewise across        the sheet is drawn in, the more it slips

in millimetres. The parameters are drawn evenly from 0 to 1; the fields are rounded to 0.0001 mm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

PARAMETERS = ("along", "across", "force", "width", "slip", "hold")
SIDE = 8
DEPTH, RISE, SLIP = 10.0, 3.0, 10.0  # mm
NARROW, WIDE = 0.12, 0.3  # of the sheet's side


class Fields(NamedTuple):
    x: NDArray[np.float32]  # n 6
    moved: NDArray[np.float32]  # n 3 SIDE^2: along of all points, then across, then down


def sheet(side: int = SIDE) -> NDArray[np.float64]:  # -> side^2 2
    """The points at rest; neighbours are 1 / (side - 1) apart."""
    if side < 2:
        raise AssayError(f"A sheet has at least 2 points on a side, got {side}.")
    at = np.linspace(0, 1, side)
    return np.stack(np.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2)


def make_fields(n: int, rng: np.random.Generator, *, side: int = SIDE) -> Fields:
    """`n` fields."""
    if n < 1:
        raise AssayError(f"make_fields needs a count of at least 1, got {n}.")
    x = rng.random((n, len(PARAMETERS)), dtype=np.float32)
    return Fields(x, fields_of(x, side=side))


def fields_of(x: NDArray[np.float32], *, side: int = SIDE) -> NDArray[np.float32]:  # n 6 -> n 3 side^2
    """What these parameters do to the sheet."""
    u, v, force, width, slip, hold = (column[:, None] for column in x.T.astype(np.float64))  # n 1
    w = NARROW + (WIDE - NARROW) * width
    along, across = (place - at for place, at in zip((u, v), sheet(side).T, strict=True))  # n m, towards the stamp
    far = (along**2 + across**2) / (2 * w**2)
    bump = np.exp(-far)
    down = -DEPTH * force * bump + RISE * hold * (1 - bump) * np.exp(-far / 4)
    drawn = SLIP * slip * force * bump / w
    moved = np.concatenate([drawn * along, drawn * across, down], 1)
    return moved.round(4).astype(np.float32)


def load_fields(*, train: int = 3000, test: int = 500, seed: int = 0) -> dict[str, Fields]:
    """`train` and `test`."""
    rng = np.random.default_rng(seed)
    return {"train": make_fields(train, rng), "test": make_fields(test, rng)}
