r"""What members of an image-to-image predictor say together: their mean, and how far they are apart, pixel by pixel.

    mean(p) = (1/M) sum_m f_m(p),    U(p) = sqrt( (1/M) sum_m (f_m(p) - mean(p))^2 ),  the mean over channels of it

    squared error of the mean = mean squared error of the members - mean of U^2                       (ambiguity)

exactly, pixel by pixel in each channel. With one member, or with members that are all alike, U is 0 everywhere: that is
no certainty but no uncertainty at all, and whoever shows it says so.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021, sec. 5.1; Krogh and Vedelsby, NIPS 1994 (the
    ambiguity).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from assay.errors import ShapeError


class Together(NamedTuple):
    mean: Tensor  # n c h w
    spread: Tensor  # n h w


class Gain(NamedTuple):
    """Squared errors, means over all pixels and inputs: of the members by themselves, and of their mean."""

    members: int
    single: float
    together: float

    @property
    def share(self) -> float:
        """What the mean takes away of the members' error; 0 where they are all alike."""
        return max(0.0, 1 - self.together / self.single) if self.single > 0 else 0.0


class Region(NamedTuple):
    """Neighbouring flagged pixels: the box around them, the last two sides excluded, and how many they are."""

    left: int
    top: int
    right: int
    bottom: int
    pixels: int


def together(members: Tensor) -> Together:  # m n c h w -> n c h w, n h w
    """Mean and spread; in double precision where members are near each other."""
    if members.ndim != 5 or not len(members):
        raise ShapeError(f"Members have shape {tuple(members.shape)}; give (members, images, channels, height, width).")
    wide = members.double()
    mean = wide.mean(0)
    return Together(mean.to(members), (wide - mean).square().mean(0).sqrt().mean(1).to(members))


def gain(members: Tensor, target: Tensor) -> Gain:  # m n c h w, n c h w
    """How much better the mean is than its members."""
    wide, true = members.double(), target.double()
    return Gain(len(members), float((wide - true).square().mean()), float((wide.mean(0) - true).square().mean()))


def regions(spread: NDArray[np.floating], threshold: float, *, least: int = 1) -> list[Region]:  # h w
    """Where the spread reaches the threshold, in pieces of at least so many pixels that touch, the largest first."""
    labels, count = ndimage.label(spread >= threshold, structure=np.ones((3, 3), dtype=int))
    if not count:
        return []
    sizes = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    found = [
        Region(across.start, down.start, across.stop, down.stop, int(size))
        for (down, across), size in zip(ndimage.find_objects(labels), sizes, strict=True)
        if size >= least
    ]
    return sorted(found, key=lambda region: -region.pixels)
