"""Image: c by h by w, in [low, high].

Everyday changes: `assay.data.corruptions`, after Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations", ICLR 2019, arXiv:1903.12261; it says where each departs from print.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.data.bounds import refuse_bounds
from assay.data.corruptions import CORRUPTIONS, corrupt
from assay.errors import AssayError, MissingExtra, ShapeError
from assay.inputs.change import Change
from assay.inputs.features import Features
from assay.inputs.kind import Bounded, as_float
from assay.inputs.show import Picture

Cut = Literal["patches", "superpixels", "pixels"]
SOURCE = "Hendrycks & Dietterich, ICLR 2019, arXiv:1903.12261"
SMALLEST = 8  # no corruption of a smaller side means anything


@dataclass(frozen=True)
class Image(Bounded):
    """An image of any number of channels; it is a picture where it has one or three."""

    shape: tuple[int, int, int]  # c h w
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        refuse_bounds(self.low, self.high, "an image")
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise ShapeError(f"An image has the shape (c, h, w), got {self.shape}; for grey ones c is 1.")
        if self.low == self.high:
            raise AssayError(f"Bounds must have low < high, got {self.low:g} twice; images are usually 0 1.")

    @classmethod
    def of(cls, x: object, low: float = 0.0, high: float = 1.0) -> Image:  # n c h w
        """Images like these."""
        given = as_float(x)
        if given.ndim != 4:
            raise ShapeError(f"Image.of wants images n c h w, got shape {tuple(given.shape)}; for grey ones c is 1.")
        _, c, h, w = given.shape
        made = cls((c, h, w), low, high)
        made.check(given)
        return made

    @property
    def is_image(self) -> bool:
        return self.shape[0] in (1, 3)

    def changes(self) -> Iterator[Change[Tensor]]:
        """None where a side is too short for them."""
        if min(self.shape[1:]) < SMALLEST:
            return
        for name, corruption in CORRUPTIONS.items():
            function = partial(_corrupted, name=name, low=self.low, high=self.high)
            yield Change(name, corruption.description, function, (1, 2, 3, 4, 5), SOURCE)

    def features(self, x: Tensor, cut: Cut = "patches", count: int = 16) -> Features:  # c h w
        """About `count` squares or regions of like colour; or every pixel."""
        if cut not in get_args(Cut):
            raise AssayError(f"An image is cut into {', '.join(get_args(Cut))}, got {cut!r}.")
        if cut == "superpixels":
            groups = superpixels((x - self.low) / (self.high - self.low), count)
            return Features(tuple(f"region {k}" for k in range(int(groups.max()) + 1)), groups)
        side = 1 if cut == "pixels" else max(1, round(max(self.shape[1:]) / count**0.5))
        groups = patches(self.shape, side)
        what, across = ("pixel" if side == 1 else "patch"), -(-self.shape[2] // side)
        names = (f"{what} {k // across}, {k % across}" for k in range(int(groups.max()) + 1))
        return Features(tuple(names), groups)

    def show(self, x: Tensor) -> Picture:  # c h w
        """The image; of one with other than one or three channels, their mean."""
        told = x.detach().cpu() if self.is_image else x.detach().cpu().float().mean(0, keepdim=True)
        return Picture(told.float().numpy(), self.low, self.high)


def patches(shape: tuple[int, int, int], side: int) -> Tensor:
    """Squares of `side` pixels from the upper left corner, row by row, smaller at the far edges: (c h w) -> c h w."""
    c, h, w = shape
    label = torch.arange(h)[:, None] // side * -(-w // side) + torch.arange(w) // side  # h w
    return label.expand(c, h, w).clone()


def superpixels(image: Tensor, count: int, *, compactness: float = 0.1) -> Tensor:
    """About `count` connected regions of like colour: c h w in [0, 1] -> c h w.

    Source: SLIC, Achanta et al., TPAMI 2012, as scikit-image has it. A large `compactness` gives squares.
    """
    try:
        from skimage.segmentation import slic
    except ImportError:
        raise MissingExtra.of("A cut into superpixels", "scikit-image", "explain") from None
    plain = image.detach().cpu().double().movedim(0, -1).numpy()  # h w c
    found = slic(plain, n_segments=count, compactness=compactness, start_label=0, convert2lab=len(image) == 3)
    label: Tensor = torch.unique(torch.from_numpy(found), return_inverse=True)[1]  # no label is left empty
    return label.expand(len(image), -1, -1).clone()


def _corrupted(x: Tensor, severity: float, rng: torch.Generator, *, name: str, low: float, high: float) -> Tensor:
    return corrupt(x, name, int(severity), rng=rng, low=low, high=high)
