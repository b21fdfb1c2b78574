"""A data set that is held in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.data.digest import of_array
from assay.errors import AssayError, ShapeError

EXACT = 2**24  # up to which single precision tells whole numbers apart
UNIT = (0.0, 1.0)
"""What 8-bit pixels are brought to where nobody says otherwise."""


class Arrays:
    """Inputs and labels in memory: numpy arrays or tensors.

    `x` (n *d) is uint8, kept as uint8 and brought from 0..255 to `pixels` by `take`, or of other numbers, which `take`
    gives back as float32 and otherwise as they are. `y` (n) holds class indices from 0; `classes` names them where the
    names are known.
    """

    def __init__(
        self,
        x: NDArray[np.generic] | Tensor,
        y: ArrayLike | Tensor,
        classes: Sequence[str] | None = None,
        *,
        pixels: tuple[float, float] = UNIT,
    ):
        self.x = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        check_inputs(self.x)
        self.labels: NDArray[Any] = as_labels(
            y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y), len(self.x)
        )
        self.classes: tuple[str, ...] | None = None if classes is None else tuple(classes)
        check_classes(self.labels, self.classes)
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        """Inputs as float32 in natural units and their int64 labels."""
        return as_inputs(self.x[indices], self.pixels), torch.from_numpy(self.labels[indices])

    def fingerprint(self) -> str:
        """A hash of every byte, so that equal data are equal wherever they lie."""
        digest = hashlib.sha256(of_array(self.x) + of_array(self.labels))
        digest.update(f"{self.classes} {self.pixels}".encode())
        return digest.hexdigest()


class Targets(Arrays):
    """Inputs in memory with targets that are more than a class: numbers, labels that hold together, masks, images.

    `targets` (n *t) are given back as float32 or int64.
    """

    def __init__(
        self, x: NDArray[np.generic] | Tensor, targets: ArrayLike | Tensor, *, pixels: tuple[float, float] = UNIT
    ):
        self.x = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        check_inputs(self.x)
        self.labels = as_targets(
            targets.detach().cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets), len(self.x)
        )
        self.classes, self.pixels = None, pixels


def as_targets(y: NDArray[np.generic], n: int) -> NDArray[Any]:  # n *t -> n *t
    """Check that there are `n` rows of numbers and give them as float32 or int64."""
    if y.shape[:1] != (n,):
        raise ShapeError(f"Targets have shape {y.shape} for {n} inputs; give one row for each, shape ({n}, ...).")
    if y.dtype.kind in "iub":
        return y.astype(np.int64)
    if y.dtype.kind != "f":
        raise AssayError(f"Targets have dtype {y.dtype}; give numbers.")
    return y.astype(np.float32)


def as_answers(y: NDArray[np.generic], n: int) -> NDArray[Any]:  # n *t -> n *t
    """Class indices where that is what they are, one for each input or in one-hot rows; else targets as they are."""
    whole = y.dtype.kind in "iub"
    if whole and y.ndim == 2 and y.shape[1] > 1 and bool((np.isin(y, (0, 1)).all(1) & (y.sum(1) == 1)).all()):
        y = y.argmax(1)
    return as_labels(y, n) if whole and (y.ndim == 1 or y.shape[1:] == (1,)) else as_targets(y, n)


def check_inputs(x: NDArray[np.generic]) -> None:
    """Refuse what `take` could not turn into inputs."""
    if x.dtype.kind not in "fiu":
        raise AssayError(f"Inputs have dtype {x.dtype}; give pixels as uint8 (0 to 255), or anything else as float32.")
    if x.ndim < 2:
        raise ShapeError(f"Inputs have shape {x.shape}; give one row per input, such as (n, c, h, w).")


def as_inputs(x: NDArray[np.generic], pixels: tuple[float, float] = UNIT) -> Tensor:  # n *d -> n *d
    """uint8 becomes float32 from 0..255 to `pixels`; other numbers become float32 and stay. Always a copy."""
    if x.dtype == np.uint8:
        low, high = pixels
        if pixels != UNIT:
            return torch.from_numpy((x.astype(np.float64) * ((high - low) / 255) + low).astype(np.float32))
        return torch.from_numpy(x.astype(np.float32)).div_(255)
    if x.dtype.kind in "iu" and x.size and (most := max(abs(int(x.max())), abs(int(x.min())))) > EXACT:
        raise AssayError(f"Inputs are whole numbers up to {most:,}, and above {EXACT:,} they are rounded; scale them.")
    return torch.from_numpy(x.astype(np.float32))


def as_labels(y: NDArray[np.generic], n: int) -> NDArray[np.int64]:  # n -> n
    """Check that there are `n` class indices and give them as int64."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (n,):
        raise ShapeError(
            f"Labels have shape {y.shape} for {n} inputs; give one class index each, shape ({n},). "
            "If the rows are one-hot, pass y.argmax(-1)."
        )
    if y.dtype.kind not in "iub":
        raise AssayError(f"Labels have dtype {y.dtype}; give class indices as integers from 0.")
    labels = y.astype(np.int64)
    if n and labels.min() < 0:
        raise AssayError(f"Label {labels.min()} at row {labels.argmin()} is negative; class indices start at 0.")
    return labels


def check_classes(labels: NDArray[np.int64], classes: tuple[str, ...] | None) -> None:
    """Refuse a label that has no name, where names are given."""
    if classes is not None and len(labels) and labels.max() >= len(classes):
        raise AssayError(
            f"Label {labels.max()} at row {labels.argmax()} has no name among the {len(classes)} classes; "
            "name every class or leave `classes` out."
        )
