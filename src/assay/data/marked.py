"""Images with targets and boxes around what does not belong in them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.data.arrays import UNIT, Targets
from assay.data.digest import of_array
from assay.errors import AssayError


class Marked(Targets):
    """Images in memory with targets and boxes (n k 4): left, top, right, bottom in pixels, the last two excluded.

    -1 in all four stands for no box. Boxes are for whoever judges: `take` does not give them.
    """

    def __init__(
        self, x: NDArray[np.generic] | Tensor, targets: ArrayLike | Tensor, boxes: ArrayLike | Tensor, *,
        pixels: tuple[float, float] = UNIT,
    ):  # fmt: skip
        super().__init__(x, targets, pixels=pixels)
        self.boxes = _checked(np.asarray(boxes), self.x.shape)

    def inside(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:  # k -> k h w
        """Which pixels of these images lie in a box."""
        return in_boxes(self.boxes[rows], self.x.shape[-2], self.x.shape[-1])

    def fingerprint(self) -> str:
        return hashlib.sha256(super().fingerprint().encode() + of_array(self.boxes)).hexdigest()


def in_boxes(boxes: NDArray[np.int64], height: int, width: int) -> NDArray[np.bool_]:  # n k 4 -> n h w
    """Which pixels lie in any of an image's boxes."""
    left, top, right, bottom = (boxes[..., side, None] for side in range(4))  # n k 1
    rows, columns = np.arange(height), np.arange(width)
    down, across = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)  # n k h, n k w
    covered: NDArray[np.bool_] = np.einsum("nkh,nkw->nhw", down.astype(np.uint8), across.astype(np.uint8)) > 0
    return covered


def _checked(boxes: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int64]:
    if boxes.ndim != 3 or boxes.shape[::2] != (shape[0], 4) or boxes.dtype.kind not in "iu" or len(shape) != 4:
        raise AssayError(
            f"Boxes have shape {boxes.shape} and dtype {boxes.dtype} for inputs of shape {shape}; give whole numbers "
            f"(n, k, 4) for images (n, c, h, w): left, top, right, bottom, or -1 for none."
        )
    none = (boxes == -1).all(-1)
    left, top, right, bottom = (boxes[..., side] for side in range(4))
    fits = (left >= 0) & (top >= 0) & (left < right) & (top < bottom) & (right <= shape[3]) & (bottom <= shape[2])
    wrong = np.argwhere(~(none | fits))
    if len(wrong):
        raise AssayError(
            f"Box {wrong[0][1]} of image {wrong[0][0]} is {boxes[tuple(wrong[0])].tolist()}, which is none in an image "
            f"of {shape[3]} x {shape[2]}; give left < right and top < bottom inside it, or -1 four times."
        )
    return boxes.astype(np.int64)
