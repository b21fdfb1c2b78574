"""Data in shares of the range that its values have."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.held_out import Labelled


class Shares:
    """Other data with each value as its share (x - low) / span of the range; a feature without a range is 0."""

    def __init__(self, whole: Labelled, low: Tensor, span: Tensor) -> None:
        self.whole, self.low, self.span = whole, low, span
        self.labels, self.classes = whole.labels, whole.classes

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        x, y = self.whole.take(indices)
        wide = torch.where(self.span > 0, self.span, torch.inf).double()
        return ((x.double() - self.low.double()) / wide).float(), y

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.whole.fingerprint().encode(), digest_size=16)
        digest.update(repr((self.low.tolist(), self.span.tolist())).encode())
        return digest.hexdigest()
