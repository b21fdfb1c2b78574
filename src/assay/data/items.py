"""A torch Dataset of (input, label) pairs, read when taken."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import UNIT, as_inputs, as_labels
from assay.data.digest import of_array
from assay.errors import AssayError


class Items:
    """Anything with `len` and items (input, label). Labels come from its `targets` if it has them, else one pass."""

    def __init__(self, dataset: Any, *, pixels: tuple[float, float] = UNIT) -> None:
        self.dataset, self.pixels = dataset, pixels
        targets = getattr(dataset, "targets", None)
        try:
            labels = [int(dataset[i][1]) for i in range(len(dataset))] if targets is None else targets
        except (TypeError, ValueError, IndexError, KeyError) as e:
            raise AssayError(
                f"The items of {type(dataset).__name__} are not (input, label): {e}; return a tensor and a class index."
            ) from e
        self.labels = as_labels(np.asarray(labels), len(dataset))
        names = getattr(dataset, "classes", None)
        self.classes = tuple(str(n) for n in names) if names else None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        x = torch.stack([torch.as_tensor(self.dataset[int(i)][0]) for i in indices])
        return as_inputs(x.numpy(), self.pixels), torch.from_numpy(self.labels[indices])

    def fingerprint(self) -> str:
        """A hash of the labels and of every input: what a stranger's data set reads from cannot be known otherwise."""
        digest = hashlib.sha256(of_array(self.labels) + f"{self.classes} {self.pixels}".encode())
        for i in range(len(self)):
            try:
                digest.update(of_array(torch.as_tensor(self.dataset[i][0]).numpy()))
            except Exception as e:  # the questions that meet it say so, each for itself
                digest.update(type(e).__name__.encode())
        return digest.hexdigest()
