r"""How good a mask is: all of its measures from one table of counts, and how good its outline is.

With the counts of true and false positives and negatives of one class,

    IoU = TP / (TP + FP + FN)                 F1 = 2 TP / (2 TP + FP + FN) = 2 IoU / (1 + IoU)
    sensitivity = TP / (TP + FN)              specificity = TN / (TN + FP)
    accuracy = p sensitivity + (1 - p) specificity, p the share of the class

so that F1 >= IoU, and accuracy lies between sensitivity and specificity. Of means over images 2 IoU / (1 + IoU) is a
limit from above, as it is concave: IoU <= F1 <= 2 IoU / (1 + IoU). Two figures outside are not of the same masks.

Boundary F1 compares outlines alone: the share of the answer's within `tolerance` of a true one (precision), the share
of the true ones within it of the answer's (recall), and their harmonic mean.

Source: Csurka et al., BMVC 2013, doi:10.5244/C.27.32 (boundary F1, for each image); Jensen's inequality.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from assay.errors import AssayError, ShapeError

TOLERANCE = 2  # pixels


class Counts(NamedTuple):
    """Of one class: true and false positives, false and true negatives, one number for each image or of all."""

    tp: Tensor
    fp: Tensor
    fn: Tensor
    tn: Tensor

    @property
    def iou(self) -> Tensor:
        """1 where the class is neither said nor true."""
        return _share(self.tp, self.tp + self.fp + self.fn)

    @property
    def f1(self) -> Tensor:
        return _share(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def sensitivity(self) -> Tensor:
        return _share(self.tp, self.tp + self.fn)

    @property
    def specificity(self) -> Tensor:
        return _share(self.tn, self.tn + self.fp)

    @property
    def accuracy(self) -> Tensor:
        return _share(self.tp + self.tn, self.tp + self.fp + self.fn + self.tn)

    def pooled(self) -> Counts:
        """Of all images together."""
        return Counts(*(count.sum() for count in self))


def counts(said: Tensor, true: Tensor) -> Counts:  # n *p bool, n *p bool -> n each
    """Of each image."""
    if said.shape != true.shape or said.ndim < 2:
        raise ShapeError(f"counts got masks of shape {tuple(said.shape)} and {tuple(true.shape)}; give (n, places).")
    a, t = said.bool().flatten(1), true.bool().flatten(1)
    return Counts(*((x & y).sum(1) for x, y in ((a, t), (a, ~t), (~a, t), (~a, ~t))))


def f1_between(iou: float, *, pooled: bool = False) -> tuple[float, float]:
    """What F1 lies between where the IoU is this: one number of pooled counts, a range of means over images."""
    if not 0 <= iou <= 1:
        raise AssayError(f"An IoU of {iou} is none; give a number from 0 to 1.")
    most = 2 * iou / (1 + iou)
    return (most if pooled else iou), most


def edges(classes: Tensor, *, width: int = 1) -> Tensor:  # n h w whole -> n h w bool
    """The morphological gradient: pixels with another class within `width`, so on both sides of each outline."""
    if classes.ndim != 3 or width < 1:
        raise ShapeError(f"edges got {tuple(classes.shape)} and width={width}; give (n, h, w) and at least 1.")
    own = classes[:, None].float()
    most, least = _highest(own, width), -_highest(-own, width)
    return (most != least)[:, 0]


def boundary_f1(said: Tensor, true: Tensor, *, tolerance: int = TOLERANCE) -> Tensor:  # n h w bool, same -> n
    """Of each image, with a square of `tolerance` pixels around each pixel of an outline; 1 where neither has one.

    An outline is the pixels of the mask with one outside beside them; what lies beyond the image counts as the mask.
    """
    if said.shape != true.shape or said.ndim != 3 or tolerance < 0:
        raise ShapeError(
            f"boundary_f1 got {tuple(said.shape)}, {tuple(true.shape)} and tolerance={tolerance}; give two of "
            "shape (n, h, w), and 0 or more."
        )
    ours, theirs = (_outline(mask) for mask in (said, true))  # n 1 h w of 0 and 1
    hit, found = (
        (line * _highest(other, tolerance)).flatten(1).sum(1) for line, other in ((ours, theirs), (theirs, ours))
    )
    drawn, there = (line.flatten(1).sum(1) for line in (ours, theirs))
    precision, recall = hit / drawn.clamp_min(1), found / there.clamp_min(1)
    both = 2 * precision * recall / (precision + recall).clamp_min(1e-12)
    return torch.where((drawn == 0) & (there == 0), torch.ones_like(both), both)


def _outline(mask: Tensor) -> Tensor:  # n h w -> n 1 h w
    own = mask[:, None].float()
    return own * _highest(1 - own, 1)


def _highest(x: Tensor, width: int) -> Tensor:  # n 1 h w -> n 1 h w; what lies beyond the image is not looked at
    return max_pool2d(x, 2 * width + 1, stride=1, padding=width) if width else x


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """1 of nothing."""
    return torch.where(whole > 0, part / whole.clamp_min(1), torch.ones_like(part / 1))
