"""Blobs and vessels made by code: thick things with soft outlines and thin curves, on noise, known to the pixel.

An image of SIDE x SIDE pixels holds one to BLOBS blobs, each the places where three bumps 1 - r^2 / R^2 near each other
add up to more than a third, and one to VESSELS vessels, each the places at most a half-width from a parabola that goes
from side to side. A vessel lies over a blob. All is then smoothed by the weights 1, 2, 1 along both axes, and noise is
put on it. Pixels are bytes, and nothing is computed but sums, products and roots: a seed makes the same everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

CLASSES = ("ground", "blob", "vessel")
SIDE = 32
BLOBS, VESSELS = 2, 2  # at most
BUMPS = 3  # of a blob
RADII = (4, 7)  # of a bump, in pixels
HALF = (0.8, 1.8)  # of a vessel's width
GROUND = (40, 90)  # of 255: the brightness of an image's ground
BRIGHTER = {"blob": (30, 70), "vessel": (50, 100)}  # than the ground
GRAIN = 35  # noise, to either side


class Vessels(NamedTuple):
    x: NDArray[np.uint8]  # n 1 SIDE SIDE
    kind: NDArray[np.int64]  # n SIDE SIDE: the place in CLASSES


def make_vessels(n: int, rng: np.random.Generator) -> Vessels:
    """`n` images."""
    if n < 1:
        raise AssayError(f"make_vessels needs a count of at least 1, got {n}.")
    at = np.arange(SIDE)
    kind = np.zeros((n, SIDE, SIDE), dtype=np.int64)
    bright = np.broadcast_to(rng.integers(*GROUND, size=(n, 1, 1), endpoint=True), kind.shape).copy()
    ground = bright.copy()
    many = rng.integers(1, BLOBS, size=n, endpoint=True)
    for blob in range(BLOBS):
        radius = rng.integers(*RADII, size=(n, BUMPS, 1, 1), endpoint=True)
        middle = rng.integers(RADII[0], SIDE - RADII[0], size=(n, 1, 2)) + rng.integers(-4, 4, (n, BUMPS, 2))
        down, right = (at - middle[..., axis, None] for axis in (0, 1))  # n bumps SIDE
        square = (down**2)[..., :, None] + (right**2)[..., None, :]
        inside = np.maximum(0, 1 - square / radius**2).sum(1) > 1 / 3
        drawn = inside & (blob < many)[:, None, None]
        more = rng.integers(*BRIGHTER["blob"], size=(n, 1, 1), endpoint=True)
        kind, bright = np.where(drawn, 1, kind), np.where(drawn, ground + more, bright)
    many = rng.integers(1, VESSELS, size=n, endpoint=True)
    for vessel in range(VESSELS):
        ends = rng.integers(4, SIDE - 4, size=(n, 3))  # its place at the one side, in the middle and at the other
        half = rng.uniform(*HALF, size=(n, 1, 1))
        t = at / (SIDE - 1)
        a, b, c = (each[:, None] for each in ends.T)
        curve = a * (1 - t) * (1 - 2 * t) + 4 * b * t * (1 - t) - c * t * (1 - 2 * t)  # n SIDE
        slope = np.diff(curve, append=2 * curve[:, -1:] - curve[:, -2:-1])
        near = np.abs(at[:, None] - curve[:, None, :]) <= half * np.sqrt(1 + slope**2)[:, None, :]
        turned = rng.random(n) < 0.5
        drawn = np.where(turned[:, None, None], near.swapaxes(1, 2), near) & (vessel < many)[:, None, None]
        more = rng.integers(*BRIGHTER["vessel"], size=(n, 1, 1), endpoint=True)
        kind, bright = np.where(drawn, 2, kind), np.where(drawn, ground + more, bright)
    for axis in (1, 2):
        padded = np.pad(bright, [(int(axis == i),) * 2 for i in range(3)], mode="edge")
        low, high = (np.take(padded, at + shift, axis) for shift in (0, 2))
        bright = (low + 2 * bright + high) // 4
    x = bright + rng.integers(-GRAIN, GRAIN, size=bright.shape, endpoint=True)
    return Vessels(x.clip(0, 255).astype(np.uint8)[:, None], kind)


def load_vessels(*, train: int = 1000, test: int = 300, seed: int = 0) -> dict[str, Vessels]:
    """`train` and `test`."""
    rng = np.random.default_rng(seed)
    return {"train": make_vessels(train, rng), "test": make_vessels(test, rng)}
