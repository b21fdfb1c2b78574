"""Textured places: an image is an object before a background. The place is the object, the domain the background.

For searching one's way across domains (Wang et al., ICCV Workshops 2019): the same building in an old photograph and in
a new one. A place has a geo-tag, in metres, and tags of its images stray by a few: near ones show the same place, which
is all that a weakly supervised training is told. Backgrounds are as bright as objects and take most of the image, so
that whoever compares whole images compares backgrounds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import Arrays
from assay.errors import AssayError

Texture = Literal["stripes", "checks", "grain"]
TEXTURES: tuple[Texture, ...] = ("stripes", "checks", "grain")
SIDE = 32  # pixels of an image
OBJECT = 12  # and of an object
BLOCK = 3  # pixels of one of the 4 x 4 tiles of an object
STREET = 100.0  # metres between one place and the next, along one of ten streets
NEAR = 25.0
"""Metres up to which two images are of the same place: STREET is more, and what tags stray less."""
STRAY = 5.0  # metres, at most, in each direction


class Places(Arrays):
    """Images n 1 32 32 in [0, 1] with their place. `geo` (n 2) is the tag in metres, `mask` (n 32 32) the object."""

    def __init__(
        self, x: NDArray[np.float32], y: NDArray[np.int64], geo: NDArray[np.float64], mask: NDArray[np.bool_], k: int
    ) -> None:
        super().__init__(x, y, [f"place {i}" for i in range(k)])
        self.geo, self.mask = geo, mask


class City(NamedTuple):
    """What there is to find: the objects (k 12 12, in [0, 1]) and where they stand (k 2, in metres)."""

    objects: NDArray[np.float64]
    geo: NDArray[np.float64]


def city(places: int, *, seed: int = 0) -> City:
    """So many places: an object is 4 x 4 tiles that are black, grey or white, on a street grid."""
    if places < 1:
        raise AssayError(f"A city of {places} places is none; give at least 1.")
    tiles = np.random.default_rng((seed, 2)).integers(0, 3, (places, OBJECT // BLOCK, OBJECT // BLOCK)) / 2.0
    number = np.arange(places)
    geo = np.stack([number % 10, number // 10], 1).astype(np.float64) * STREET
    return City(tiles.repeat(BLOCK, 1).repeat(BLOCK, 2), geo)


def domain(seed: int, n: int, texture: Texture, *, places: int = 20, of: int = 0) -> Places:
    """`n` images of the places of one city, `of` which seed, before one kind of background; each place as often.

    Where the object stands in the image, its light, the background and the tag differ from one image to the next. One
    seed draws the same objects at the same places of the image before any background: query by another one.
    """
    town, rng = city(places, seed=of), np.random.default_rng((seed, 3))
    y = rng.permutation(np.arange(n) % places)
    x = background(n, texture, np.random.default_rng((seed, 4)))
    corner = rng.integers(0, SIDE - OBJECT + 1, (n, 2))
    rows, columns = (corner[:, axis, None] + np.arange(OBJECT) for axis in (0, 1))  # n 12
    light = rng.uniform(0.8, 1.0, (n, 1, 1))
    each = np.arange(n)[:, None, None]
    x[each, rows[:, :, None], columns[:, None, :]] = light * town.objects[y]
    mask = np.zeros(x.shape, dtype=bool)
    mask[each, rows[:, :, None], columns[:, None, :]] = True
    geo = town.geo[y] + rng.uniform(-STRAY, STRAY, (n, 2))
    return Places(x[:, None].round(4).astype(np.float32), y, geo, mask, places)


def outliers(seed: int, n: int, texture: Texture) -> NDArray[np.float32]:  # -> n 1 32 32
    """Images of no place: backgrounds alone."""
    return background(n, texture, np.random.default_rng((seed, 5)))[:, None].round(4).astype(np.float32)


def background(n: int, texture: Texture, rng: np.random.Generator) -> NDArray[np.float64]:  # -> n 32 32
    """Backgrounds in [0, 1], each with a phase, a period and grain of its own: stripes, checks, or coarse noise."""
    if texture not in TEXTURES:
        raise AssayError(f"There is no texture {texture!r}; choose from {', '.join(TEXTURES)}.")
    down, right = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
    period, phase = rng.uniform(5, 9, (2, n, 1, 1)), rng.uniform(0, 1, (2, n, 1, 1))
    if texture == "stripes":
        x = (right / period[0] + phase[0]) % 1 < 0.5
    elif texture == "checks":
        x = ((right / period[0] + phase[0]) % 1 < 0.5) ^ ((down / period[1] + phase[1]) % 1 < 0.5)
    else:
        coarse = rng.integers(0, 2, (n, SIDE // 4, SIDE // 4))
        x = coarse.repeat(4, 1).repeat(4, 2)
    found: NDArray[np.float64] = np.clip(0.1 + 0.8 * x + rng.uniform(-0.1, 0.1, (n, SIDE, SIDE)), 0, 1)
    return found
