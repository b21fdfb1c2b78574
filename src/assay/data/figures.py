"""Figures: drawn persons, of whom the clothes tell who it is, and pose, place, light and background change.

For telling persons apart who are seen in part. The number of a person draws the looks: hair, skin, shirt and its
stripes, sleeves, trousers and shoes, each of a few colours, so that two persons often share some of them. Key points
are known, as they were drawn: those of `POINTS`, from the upper left, in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import Arrays
from assay.errors import AssayError

HEIGHT, WIDTH = 32, 16
POINTS = (
    "head", "neck", "left shoulder", "right shoulder", "left elbow", "right elbow", "left wrist", "right wrist",
    "left hip", "right hip", "left knee", "right knee", "left ankle", "right ankle",
)  # fmt: skip
LEFT, RIGHT = (2, 4, 6, 8, 10, 12), (3, 5, 7, 9, 11, 13)
LEVELS = (0.1, 0.5, 0.9)  # of each channel of a colour
HAIR, SKIN, SHIRT, STRIPE, TROUSERS, SHOES = range(6)
Floats = NDArray[np.float64]


class Figures(Arrays):
    """Images n 3 32 16 in [0, 1] with their person. `points` (n 14 2) are rows and columns of the key points."""

    def __init__(self, x: NDArray[np.float32], y: NDArray[np.int64], points: NDArray[np.float32]) -> None:
        super().__init__(x, y, [f"person {k}" for k in range(int(y.max()) + 1)])
        self.points = points


def figures(people: Sequence[int], each: int, *, seed: int) -> Figures:
    """`each` images of every person of these numbers, person by person."""
    if not len(people) or each < 1 or min(people) < 0:
        raise AssayError(
            f"figures got {len(people)} people, {each} images each; give numbers from 0, at least 1 of each."
        )
    y = np.repeat(np.asarray(people, dtype=np.int64), each)
    rng = np.random.default_rng((seed, 7))
    colours, sleeves = _looks(people)
    looks, long = np.repeat(colours, each, axis=0), np.repeat(sleeves, each)  # n 6 3, n
    points = _poses(len(y), rng)
    row, column = np.meshgrid(np.arange(HEIGHT) + 0.5, np.arange(WIDTH) + 0.5, indexing="ij")
    place = np.stack([row, column], -1)  # h w 2
    x = np.clip(rng.uniform(0.2, 0.8, (len(y), 3, 1, 1)) + rng.normal(0, 0.1, (len(y), 3, HEIGHT, WIDTH)), 0, 1)
    size = np.linalg.norm(points[:, 13] - points[:, 1], axis=-1) / 22  # 1 for a figure of the usual height
    sleeve = np.where(long[:, None], looks[:, SHIRT], looks[:, SKIN])
    stripes = (row // 2 % 2 == 0)[None, None]  # 1 1 h w
    shirt = np.where(stripes, looks[:, SHIRT, :, None, None], looks[:, STRIPE, :, None, None])  # n 3 h w
    hips, crown = points[:, [8, 9]].mean(1), points[:, 0] - np.stack([0.9 * size, 0 * size], -1)
    limbs: list[tuple[Floats, Floats, float, NDArray[np.floating[Any]]]] = []
    for hip, knee, ankle in ((8, 10, 12), (9, 11, 13)):
        limbs += [
            (points[:, ankle], points[:, ankle], 1.4, looks[:, SHOES]),
            (points[:, hip], points[:, knee], 1.4, looks[:, TROUSERS]),
            (points[:, knee], points[:, ankle] - [1, 0], 1.2, looks[:, TROUSERS]),
        ]
    limbs.append((points[:, 1] + [1.5, 0], hips, 2.6, shirt))
    for shoulder, elbow, wrist in ((2, 4, 6), (3, 5, 7)):
        limbs += [
            (points[:, elbow], points[:, wrist], 0.9, sleeve),
            (points[:, shoulder], points[:, elbow], 1.1, looks[:, SHIRT]),
        ]
    limbs += [
        (crown, crown, 2.0, looks[:, HAIR]),
        (points[:, 0] + [0.6, 0], points[:, 0] + [0.6, 0], 1.7, looks[:, SKIN]),
    ]
    for start, end, radius, paint in limbs:
        inside = (_distance(place, start, end) < radius * size[:, None, None])[:, None]  # n 1 h w
        x = np.where(inside, paint if paint.ndim == 4 else paint[:, :, None, None], x)
    light = rng.uniform(0.6, 1.0, (len(y), 1, 1, 1)) * rng.uniform(0.85, 1.0, (len(y), 3, 1, 1))
    x = np.clip(x * light + rng.normal(0, 0.04, x.shape), 0, 1)
    return Figures(x.round(4).astype(np.float32), y, points.round(4).astype(np.float32))


def _looks(people: Sequence[int]) -> tuple[Floats, NDArray[np.bool_]]:  # -> k 6 3, k
    """Colours of each person, and whether the sleeves are long. Half of all shirts have no stripes."""
    colours, long = [], []
    for person in people:
        rng = np.random.default_rng((int(person), 6))
        own = rng.choice(LEVELS, (6, 3))
        own[SKIN] = np.array([0.9, 0.7, 0.5]) * rng.choice((0.4, 0.7, 1.0))
        own[STRIPE] = own[SHIRT] if rng.random() < 0.5 else own[STRIPE]
        colours.append(own)
        long.append(rng.random() < 0.5)
    return np.stack(colours), np.array(long)


def _poses(n: int, rng: np.random.Generator) -> Floats:  # -> n 14 2
    """Key points of figures that stand, with arms and legs as they come."""
    at = np.zeros((n, 14, 2))
    middle, top, size = 8 + rng.uniform(-1.5, 1.5, n), rng.uniform(2.5, 5.0, n), rng.uniform(0.85, 1.05, n)
    for k, down in {0: 0, 1: 3, 2: 4.2, 3: 4.2, 8: 12, 9: 12}.items():
        at[:, k, 0] = down
    at[:, [2, 8], 1], at[:, [3, 9], 1] = (-2.8, -1.3), (2.8, 1.3)
    for side, joints in ((-1, (2, 4, 6)), (1, (3, 5, 7))):
        _limb(at, joints, side * rng.uniform(0.0, 0.8, n), side * rng.uniform(-0.8, 0.4, n), (4.0, 4.0))
    for side, joints in ((-1, (8, 10, 12)), (1, (9, 11, 13))):
        _limb(at, joints, side * rng.uniform(-0.1, 0.35, n), side * rng.uniform(-0.2, 0.1, n), (6.0, 6.0))
    return at * size[:, None, None] + np.stack([top, middle], -1)[:, None]


def _limb(at: Floats, joints: Sequence[int], angle: Floats, bend: Floats, lengths: Sequence[float]) -> None:
    """Hang two bones from the first joint; angles from straight down, to the right."""
    for (here, there), length in zip(((joints[0], joints[1]), (joints[1], joints[2])), lengths, strict=True):
        at[:, there] = at[:, here] + length * np.stack([np.cos(angle), np.sin(angle)], -1)
        angle = angle + bend


def _distance(place: Floats, start: Floats, end: Floats) -> Floats:  # h w 2, n 2, n 2 -> n h w
    """From each pixel to the line between two points."""
    along = (end - start)[:, None, None]
    away = place[None] - start[:, None, None]
    share = ((away * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-9)).clip(0, 1)
    found: Floats = np.linalg.norm(away - share[..., None] * along, axis=-1)
    return found
