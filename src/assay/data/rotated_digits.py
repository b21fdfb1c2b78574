"""Rotated digits: domains that differ by one angle alone, of scikit-learn's digits or of any images.

The protocol of Ghifary et al. (ICCV 2015, arXiv:1508.07680) on MNIST: the same images at 0, 15, ..., 75
degrees, one angle a domain. `rotate` takes images of any size, so that of MNIST too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import Arrays
from assay.data.digits import CLASSES, load_digits
from assay.errors import AssayError, ShapeError

ANGLES = (0, 15, 30, 45, 60, 75)


def rotate(x: NDArray[np.floating], degrees: float) -> NDArray[np.float32]:  # n c h w -> n c h w
    """Images turned anticlockwise about their centre; what comes in from outside is 0.

    The pixel at (i, j) of the new image, counted down and to the right from the centre, is read at

        (i cos a + j sin a, j cos a - i sin a)

    of the old one, between the four pixels around that point in proportion (bilinear). Values are rounded to four
    digits, so that they are the same on any machine.
    """
    if x.ndim != 4:
        raise ShapeError(f"rotate got images of shape {x.shape}; it wants n c h w.")
    height, width = x.shape[2:]
    a = math.radians(degrees)
    down, right = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    # a whole turn or a quarter lands on pixels, up to rounding that must not be taken for a step beyond the edge
    row = (down * math.cos(a) + right * math.sin(a) + (height - 1) / 2).round(9)
    column = (right * math.cos(a) - down * math.sin(a) + (width - 1) / 2).round(9)
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    padded = np.pad(np.asarray(x, dtype=np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros(x.shape)
    for below, beside in ((0, 0), (0, 1), (1, 0), (1, 1)):
        i, j = top + below, left + beside
        weight = (1 - abs(row - i)) * (1 - abs(column - j))  # h w
        out += weight * padded[:, :, (i + 1).clip(0, height + 1), (j + 1).clip(0, width + 1)]
    return out.round(4).astype(np.float32)


def domain(seed: int, n: int, degrees: float, *, part: Literal["train", "test"] = "train") -> Arrays:
    """`n` digits of 8 x 8 in [0, 1] at one angle: n 1 8 8. One seed draws the same digits at every angle."""
    return domains(seed, n, (degrees,), part=part)[f"rotated-{degrees:g}"]


def domains(
    seed: int, n: int, angles: Sequence[float] = ANGLES, *, part: Literal["train", "test"] = "train"
) -> dict[str, Arrays]:
    """The same `n` digits at each angle, by name: "rotated-15" and so on."""
    digits = load_digits()[part]
    if not 1 <= n <= len(digits):
        raise AssayError(f"There are {len(digits):,} digits to {part} on, not {n}; give 1 to {len(digits):,}.")
    rows = np.random.default_rng(seed).permutation(len(digits))[:n]
    x = np.asarray(digits.x)[rows]
    return {f"rotated-{angle:g}": Arrays(rotate(x, angle), digits.labels[rows], CLASSES) for angle in angles}
