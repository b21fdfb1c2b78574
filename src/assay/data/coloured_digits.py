"""Coloured digits: a cue, the colour, that agrees with the label at a rate that is chosen. The shape is always true.

A model that reads the colour is as right as the cue where the cue holds, and falls with it where it does not; one that
reads the shape does not notice. After the coloured MNIST of Arjovsky et al. (arXiv:1907.02893), without the wrong
labels that are put in there. `cues` and `colour` take any labels and grey images, so those of MNIST too.
"""

from __future__ import annotations

import colorsys
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import Arrays
from assay.data.digits import CLASSES, load_digits
from assay.errors import AssayError, ShapeError

HALVES = ("0 to 4", "5 to 9")


class Coloured(Arrays):
    """Coloured images with their labels. `cue` is the class that the colour of each speaks for."""

    def __init__(
        self, x: NDArray[np.float32], y: NDArray[np.int64], cue: NDArray[np.int64], classes: tuple[str, ...]
    ) -> None:
        super().__init__(x, y, classes)
        self.cue = cue

    @property
    def agrees(self) -> NDArray[np.bool_]:  # n
        """Where the colour speaks for the true class."""
        return np.asarray(self.cue == self.labels)


def domain(
    seed: int,
    n: int,
    agreement: float,
    *,
    classes: Literal[2, 10] = 10,
    channels: Literal[2, 3] = 3,
    part: Literal["train", "test"] = "train",
) -> Coloured:
    """`n` digits in [0, 1], n c 8 8, of which the share `agreement` has the colour of its class, the rest another.

    There are ten classes, or `classes=2`: the digits up to 4, and the others. An agreement of 1 / classes is a colour
    that says nothing; with two classes, 0 is one that is always wrong. One seed draws the same digits at any agreement.
    """
    digits = load_digits()[part]
    if not 1 <= n <= len(digits):
        raise AssayError(f"There are {len(digits):,} digits to {part} on, not {n}; give 1 to {len(digits):,}.")
    if classes not in (2, 10):
        raise AssayError(f"classes={classes}; digits are told apart as 10, or as 2 halves.")
    rows = np.random.default_rng(seed).permutation(len(digits))[:n]
    y = digits.labels[rows] if classes == 10 else (digits.labels[rows] >= 5).astype(np.int64)
    cue = cues(y, classes, agreement, seed=seed)
    x = colour(np.asarray(digits.x, dtype=np.float32)[rows], cue, palette(classes, channels))
    return Coloured(x, y, cue, CLASSES if classes == 10 else HALVES)


def cues(y: NDArray[np.int64], classes: int, agreement: float, *, seed: int) -> NDArray[np.int64]:  # n -> n
    """A class for each input to speak for: its own for a share `agreement` of them, rounded; else any other alike."""
    if not 0 <= agreement <= 1:
        raise AssayError(f"The cue agrees with a share {agreement} of the labels; give a number from 0 to 1.")
    rng = np.random.default_rng((seed, 1))  # another stream than the one that draws digits
    wrong = rng.permutation(len(y))[round(agreement * len(y)) :]
    cue = np.array(y, dtype=np.int64)
    cue[wrong] = (cue[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return cue


def palette(colours: int, channels: int = 3) -> NDArray[np.float32]:  # -> k c
    """As many colours as that: a channel each where there are enough, else hues around the circle, all as bright."""
    if colours <= channels:
        return np.eye(colours, channels, dtype=np.float32)
    if channels != 3:
        raise AssayError(f"{colours} colours do not fit into {channels} channels; give 3.")
    return np.array([colorsys.hsv_to_rgb(k / colours, 1, 1) for k in range(colours)]).round(4).astype(np.float32)


def colour(
    x: NDArray[np.float32], cue: NDArray[np.int64], colours: NDArray[np.float32]
) -> NDArray[np.float32]:  # n 1 h w, n, k c -> n c h w
    """Grey images, each in the colour of its cue; black stays black."""
    if x.ndim != 4 or x.shape[1] != 1:
        raise ShapeError(f"colour got images of shape {x.shape}; it wants grey ones, n 1 h w.")
    return x * colours[cue][:, :, None, None]
