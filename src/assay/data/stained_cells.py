r"""Fields of cells made by code: what a microscope shows without a stain, and the stain that belongs to it.

A scene is a seed: everything in it is drawn by a generator of that seed alone, so that scene 7 is the same in any set.

    long cells        ellipses of half axes a and b = a / r, elliptic radius d; a dark body with stripes along it and a
                      bright halo; stain 255 s exp(-1.5 d^2), where s = 0.3 + 0.6 (r - 2) / 2 is tied to the ratio r
    foreign cells     as dark and as bright at the rim, but round, with grain for stripes, and stained by another rule:
                      a rim at d = 0.8, the fainter the larger the cell; in known boxes
    impurities        scratches, rings and speckles as bright as can be, in known boxes; speckles glow in the stain

A set has one density (DENSITIES: cells to a field). The stain is a function of what is in the scene, without noise of
its own: whatever a model misses can be known.

Source: a stand-in, made here, for the microscopy of Liu, "Building Trustworthy Machine Learning Models", UCLA 2021,
    sec. 5.3 (MSC-Clean, MSC-LNCaP, MSC-Impurities, LNCaP-Density), which is not public.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from assay.data.marked import Marked
from assay.errors import AssayError

SIDE = 64
DENSITIES = {"very sparse": 3, "sparse": 8, "dense": 20, "very dense": 45}
"""Cells to a field of SIDE x SIDE pixels."""
USUAL = "sparse"
With = Literal["nothing", "foreign", "impurities"]
MOST_MARKED = 3  # things in boxes, of one scene
SHARE = {"foreign": 1.0, "impurities": 0.25}
"""Of the scenes of such a set, how many hold any: a quarter of MSC-Impurities does."""
LONG = (5.0, 9.0)  # half a long cell, in pixels
RATIO = (2.0, 4.0)  # of its half axes
ROUND = (4.0, 6.0)  # the radius of a foreign cell
GROUND, BODY, HALO = 0.5, 0.25, 0.3  # brightness of nothing, how much darker a cell is, and how much brighter its rim
STRIPES, NOISE = 0.06, 0.03  # the texture of a cell, and the noise of the camera
RIM = 1.45  # radii from the middle of a foreign cell beyond which nothing of it shows
AROUND = 20  # pixels from the middle of a cell beyond which nothing of it shows
Floats = NDArray[np.float32]


class Fields(NamedTuple):
    x: NDArray[np.uint8]  # n 1 side side
    stain: NDArray[np.uint8]  # n 1 side side
    boxes: NDArray[np.int64]  # n MOST_MARKED 4: left, top, right, bottom in pixels, the last two excluded; -1 for none

    def marked(self) -> Marked:
        """As data: images between 0 and 1, their stain, and what lies in boxes."""
        return Marked(self.x, self.stain.astype(np.float32) / 255, self.boxes)


def make_fields(
    seeds: Iterable[int], *, cells: int = DENSITIES[USUAL], holds: With = "nothing", share: float | None = None,
    side: int = SIDE,
) -> Fields:  # fmt: skip
    """The scenes of these seeds, each of so many long cells; what they hold beside is in boxes.

    `share` of the scenes hold any of it, by default as SHARE says; each scene decides by its own seed.
    """
    given = [int(seed) for seed in seeds]
    if not given or min(given) < 0:
        raise AssayError(f"make_fields got the seeds {given[:3]}; give at least one, none below 0.")
    if cells < 0 or side < 32 or holds not in get_args(With):
        raise AssayError(
            f"make_fields got cells={cells}, side={side}, holds={holds!r}; it wants 0 or more, at least 32, and one of "
            f"{', '.join(get_args(With))}."
        )
    share = SHARE.get(holds, 0.0) if share is None else share
    made = [_scene(np.random.default_rng(seed), cells, side, holds, share) for seed in given]
    x, stain, boxes = (np.stack(part) for part in zip(*made, strict=True))
    return Fields(_bytes(x)[:, None], _bytes(stain)[:, None], boxes)


def load_fields(*, train: int = 200, test: int = 60, elsewhere: int = 40) -> dict[str, Fields]:
    """`train` and `test` at the usual density, `foreign` and `impurities` in boxes, and the four densities."""
    sets = {
        "train": make_fields(range(train)),
        "test": make_fields(range(10_000, 10_000 + test)),
        "foreign": make_fields(range(20_000, 20_000 + elsewhere), holds="foreign"),
        "impurities": make_fields(range(30_000, 30_000 + elsewhere), holds="impurities"),
    }
    densities = {
        name: make_fields(range(40_000 + 1000 * k, 40_000 + 1000 * k + elsewhere), cells=cells)
        for k, (name, cells) in enumerate(DENSITIES.items())
    }
    return sets | densities


def _scene(
    rng: np.random.Generator, cells: int, side: int, holds: With, share: float
) -> tuple[Floats, Floats, NDArray[np.int64]]:  # h w, h w, MOST_MARKED 4
    """One scene. Its cells are drawn last: the same seed at another density has the same ones, and more or fewer."""
    noise, grain = rng.standard_normal((2, side, side), dtype=np.float32)
    count = int(rng.integers(1, MOST_MARKED + 1)) * (rng.random() < share)
    kinds = rng.integers(3, size=MOST_MARKED)
    places = rng.uniform(ROUND[1] + 2, side - ROUND[1] - 2, size=(MOST_MARKED, 2))  # column, row
    radii, angles = rng.uniform(*ROUND, size=MOST_MARKED), rng.uniform(0, np.pi, size=MOST_MARKED)
    x, stain = _long_cells(rng.random((cells, 5)), side)
    boxes = np.full((MOST_MARKED, 4), -1, dtype=np.int64)
    for slot in range(count):
        column, row = places[slot]
        d, along = _ellipse(column, row, radii[slot], 1.0, angles[slot], np.arange(side), np.arange(side))
        if holds == "foreign":
            x, stain = _foreign(x, stain, d, radii[slot], grain)
        else:
            x, stain = _impurity(x, stain, d, along, radii[slot], kinds[slot], grain)
        reach = radii[slot] * (RIM if holds == "foreign" else 1)
        low, high = np.floor(places[slot] - reach), np.ceil(places[slot] + reach)
        boxes[slot] = np.clip([*low, *high], 0, side)
    return x + NOISE * noise, stain, boxes


def _long_cells(shares: NDArray[np.float64], side: int) -> tuple[Floats, Floats]:  # cells 5 -> h w, h w
    """The image and the stain of long cells: where each lies, how long and slim it is and which way it points."""
    low, high = np.array([0, 0, LONG[0], RATIO[0], 0]), np.array([side, side, LONG[1], RATIO[1], np.pi])
    body, halo, stripes, stain = np.zeros((4, side, side), dtype=np.float32)
    for column, row, half, ratio, angle in low + (high - low) * shares:
        down, right = (slice(max(0, int(at) - AROUND), int(at) + AROUND + 1) for at in (row, column))
        d, along = _ellipse(column, row, half, ratio, angle, np.arange(side)[down], np.arange(side)[right])
        inside = _step((1 - d) / 0.15)
        here = (down, right)
        stripes[here] = np.where(inside > body[here], STRIPES * np.cos(2 * np.pi * along / 4), stripes[here])
        body[here] = np.maximum(body[here], inside)
        halo[here] = np.maximum(halo[here], np.exp(-(((d - 1.15) / 0.15) ** 2)))
        stain[here] = np.maximum(stain[here], (0.3 + 0.6 * (ratio - 2) / 2) * np.exp(-1.5 * d * d))
    return GROUND - BODY * body + HALO * halo * (1 - body) + stripes * body, stain


def _ellipse(
    column: float, row: float, half: float, ratio: float, angle: float, rows: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> tuple[Floats, Floats]:  # fmt: skip
    """The elliptic radius of these pixels, 1 on the rim, and how far along the axis each lies, in pixels."""
    u, v = (columns + 0.5 - column)[None, :], (rows + 0.5 - row)[:, None]
    along, across = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
    d = np.sqrt(along**2 + (across * ratio) ** 2) / half
    return d.astype(np.float32), along.astype(np.float32)


def _foreign(x: Floats, stain: Floats, d: Floats, radius: float, grain: Floats) -> tuple[Floats, Floats]:
    body, halo = _step((1 - d) / 0.15), np.exp(-(((d - 1.15) / 0.15) ** 2))
    faint = 0.8 - 0.2 * (radius - ROUND[0]) / (ROUND[1] - ROUND[0])
    seen = np.where(d < 1, GROUND - BODY * body + STRIPES * grain, x + HALO * halo * (1 - body))
    return seen, np.where(d < 1, faint * np.exp(-(((d - 0.8) / 0.25) ** 2)), stain).astype(np.float32)


def _impurity(
    x: Floats, stain: Floats, d: Floats, along: Floats, radius: float, kind: int, grain: Floats
) -> tuple[Floats, Floats]:
    away = np.sqrt(np.maximum((d * radius) ** 2 - along**2, 0))
    seen = (np.exp(-((away / 0.8) ** 2)), np.exp(-(((d - 0.75) / 0.15) ** 2)), grain > 1.2)[kind] * (d < 1)
    return np.maximum(x, 0.98 * seen), np.maximum(stain, 0.9 * seen * (kind == 2)).astype(np.float32)


def _step(z: Floats) -> Floats:
    return (1 / (1 + np.exp(-np.clip(z, -30, 30)))).astype(np.float32)


def _bytes(image: Floats) -> NDArray[np.uint8]:
    return np.clip(np.rint(255 * image), 0, 255).astype(np.uint8)
