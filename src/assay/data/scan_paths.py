"""Scan paths made by code: where somebody looks over time, with two things to read off it that have nothing in common.

What was looked at is a layout of attractors between which the eye jumps. Who looked is a tremor, with a frequency and a
direction of its own, an offset of all points as of a tracker set up badly, and how long the eye rests. Both are drawn
independently of each other, so that one can be hidden and the other kept. No recording is in here: the data sets that
print used (ETRA 2019, Gaze, WherePeopleLook, DOVES) are public downloads, not part of a package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import Arrays
from assay.errors import AssayError

PEOPLE, STIMULI = 8, 4  # as ETRA 2019
STIMULUS_NAMES = tuple(f"stimulus {i + 1}" for i in range(STIMULI))
PEOPLE_NAMES = tuple(f"person {i + 1}" for i in range(PEOPLE))
SPOTS = 4  # attractors of a stimulus
POINTS = 128  # gaze points of a path
BETWEEN = 8  # places at which the line between two points is drawn
GRID = 2**12  # coordinates are whole multiples of 1/GRID, so that a seed draws the same picture everywhere
OFFSET = 0.08  # of the picture: how far the points of a person lie off
TREMOR = 0.07  # of the picture: how far a person's eye swings
STILL = 0.3  # of the time between two jumps: the eye rests, then it glides to the next attractor
SPREAD = 0.03  # of the picture: where in an attractor a rest lands
CYCLES = (2.0, 8.0)  # swings in 32 points, of the slowest and of the fastest tremor
RESTS = (16, 32)  # points from one attractor to the next, of the quickest and of the slowest person


class Paths(NamedTuple):
    points: NDArray[np.float32]  # n t 2: across and down, mostly in [0, 1]
    who: NDArray[np.int64]  # n
    what: NDArray[np.int64]  # n

    def take(self, index: NDArray[np.int64]) -> Paths:
        return Paths(self.points[index], self.who[index], self.what[index])


def layout(what: int) -> NDArray[np.float64]:  # -> SPOTS 2
    """Where the attractors of a stimulus lie: a ring, turned and squeezed differently for each."""
    turn = np.pi * what / STIMULI + 2 * np.pi * np.arange(SPOTS) / SPOTS
    wide, high = [(0.36, 0.12), (0.12, 0.36), (0.34, 0.34), (0.2, 0.2)][what % 4]
    return 0.5 + np.stack([wide * np.cos(turn), high * np.sin(turn)], 1)


def make_paths(each: int, rng: np.random.Generator) -> Paths:
    """`each` paths of every person at every stimulus."""
    if each < 1:
        raise AssayError(f"make_paths needs at least 1 path of each person at each stimulus, got {each}.")
    who, what = (part.ravel() for part in np.mgrid[:PEOPLE, :STIMULI].repeat(each, 2))
    n, time = len(who), np.arange(POINTS)
    share = who / (PEOPLE - 1)
    rest = RESTS[0] + (RESTS[1] - RESTS[0]) * ((5 * who) % PEOPLE) / (PEOPLE - 1)
    number = (time / rest[:, None]).astype(np.int64)  # n t: the how-many-th rest a point is of
    longest = int(number.max()) + 2
    steps = rng.integers(1, SPOTS, size=(n, longest))  # never the same attractor twice in a row
    visited = (rng.integers(SPOTS, size=(n, 1)) + np.cumsum(steps, 1)) % SPOTS
    spots = np.stack([layout(w) for w in range(STIMULI)])  # w s 2
    rests = spots[what[:, None], visited] + rng.normal(0, SPREAD, (n, longest, 2))
    here, there = (np.take_along_axis(rests, (number + k)[..., None], 1) for k in (0, 1))  # n t 2
    gone = ((time / rest[:, None] - number - STILL) / (1 - STILL)).clip(0, 1)[..., None]
    base = here + gone * (there - here)
    cycles = CYCLES[0] + (CYCLES[1] - CYCLES[0]) * share
    phase = 2 * np.pi * (cycles[:, None] * time / 32 + rng.random((n, 1)))
    lean = np.pi * ((3 * who) % PEOPLE) / PEOPLE
    swing = np.sin(phase)[..., None] * np.stack([np.cos(lean), np.sin(lean)], 1)[:, None]
    off = 2 * np.pi * who / PEOPLE
    offset = OFFSET * np.stack([np.cos(off), np.sin(off)], 1)[:, None]
    points = base + offset + TREMOR * swing
    return Paths(on_grid(points), who, what)


def on_grid(points: NDArray[np.floating]) -> NDArray[np.float32]:
    """Rounded, so that what is drawn does not hang on the last digit of a sine."""
    rounded: NDArray[np.float32] = (np.round(points * GRID) / GRID).astype(np.float32)
    return rounded


def draw(points: NDArray[np.floating], size: int = 64) -> NDArray[np.float32]:  # n t 2 -> n 3 size size
    """Paths as pictures in [0, 1]: red the gaze points, green their time as intensity, blue the lines between them.

    What lies off the picture is not drawn. Source: Fuhl et al., ICANN 2021, sec. 3 (64 x 64 x 3).
    """
    if points.ndim != 3 or points.shape[2] != 2 or points.shape[1] < 1:
        raise AssayError(f"draw got points of shape {points.shape}; it wants n paths of t points, shape (n, t, 2).")
    if size < 1:
        raise AssayError(f"draw got size={size}; a picture has at least 1 pixel on a side, such as 64.")
    n, t = points.shape[:2]
    picture = np.zeros((n, 3, size * size), dtype=np.float32)
    place, inside = _pixels(points, size)
    which, late = (np.broadcast_to(part, (n, t))[inside] for part in (np.arange(n)[:, None], np.arange(1, t + 1) / t))
    picture[which, 0, place[inside]] = 1
    picture[which, 1, place[inside]] = late  # of points in one pixel the last is the latest
    if t > 1:
        along = np.arange(BETWEEN) / BETWEEN
        line = points[:, :-1, None] + along[:, None] * (points[:, 1:, None] - points[:, :-1, None])
        place, inside = _pixels(line.reshape(n, -1, 2), size)
        picture[np.broadcast_to(np.arange(n)[:, None], place.shape)[inside], 2, place[inside]] = 1
    return picture.reshape(n, 3, size, size)


def _pixels(points: NDArray[np.floating], size: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:  # n m 2 -> n m
    """The pixel that each point falls into, and whether it is on the picture at all."""
    at = np.floor(points * size)
    inside = ((at >= 0) & (at < size)).all(2)
    at = np.where(inside[..., None], at, 0).astype(np.int64)
    return at[..., 1] * size + at[..., 0], inside


def halves(paths: Paths, rng: np.random.Generator) -> tuple[Paths, Paths]:
    """Split in half, with as many paths of each person at each stimulus on either side; odd ones are left out."""
    cell = paths.who * STIMULI + paths.what
    first, second = [], []
    for c in np.unique(cell):
        rows = rng.permutation(np.flatnonzero(cell == c))
        half = len(rows) // 2
        if half == 0:
            raise AssayError(f"A person has {len(rows)} path at a stimulus; a split in half needs at least 2.")
        first.append(rows[:half])
        second.append(rows[half : 2 * half])
    return paths.take(np.concatenate(first)), paths.take(np.concatenate(second))


class ScanPaths(Arrays):
    """Drawn paths with the stimulus as the label; `paths` are the coordinates behind them."""

    def __init__(self, paths: Paths, size: int) -> None:
        super().__init__((draw(paths.points, size) * 255 + 0.5).astype(np.uint8), paths.what, STIMULUS_NAMES)
        self.paths, self.size = paths, size


def load_scan_paths(*, each: int = 60, size: int = 32, seed: int = 0) -> dict[str, ScanPaths]:
    """`train` and `test`: half of `each` paths of every person at every stimulus on either side."""
    rng = np.random.default_rng(seed)
    train, test = halves(make_paths(each, rng), rng)
    return {"train": ScanPaths(train, size), "test": ScanPaths(test, size)}
