"""Data whose labels are counted in another order: that of the model that is asked about them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.held_out import Labelled
from assay.errors import AssayError


class Relabelled:
    """Other data, with label i told as `places[i]`, and the names of all classes in the new order."""

    def __init__(self, whole: Labelled, places: NDArray[np.int64], classes: tuple[str, ...] | None) -> None:
        self.whole, self.places = whole, places
        self.labels = places[np.asarray(whole.labels)]
        self.classes = classes

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        x, y = self.whole.take(indices)
        return x, torch.from_numpy(self.places)[y]

    def fingerprint(self) -> str:
        told = f"{self.whole.fingerprint()} {self.places.tolist()} {self.classes}"
        return hashlib.sha256(told.encode()).hexdigest()


def places_of(labels: Sequence[Any], y: NDArray[Any]) -> NDArray[np.int64]:  # n -> n
    """The place of each label of `y` among `labels`, which a model has in its own order and its own words."""
    known = {label: place for place, label in enumerate(labels)}
    told, at = np.unique(np.asarray(y), return_inverse=True)
    found = [known.get(label) for label in told.tolist()]
    if None in found:
        strange = found.index(None)
        row = int(np.flatnonzero(at == strange)[0])
        shown = ", ".join([*map(repr, labels[:8]), *(["..."] if len(labels) > 8 else [])])
        raise AssayError(
            f"Label {told.tolist()[strange]!r} of input {row} is none of the model's classes {shown}; "
            "give labels that it was trained on."
        )
    return np.asarray(found, dtype=np.int64)[at.reshape(-1)]


def in_order(data: Labelled, classes: Sequence[str], labels: Sequence[Any] | None = None) -> Labelled:
    """The data with labels in the order of a model's classes, matched by name, or by the numbers that it calls them.

    Where no name is the same the order is taken for the model's, as it is where there are no names on one side.
    """
    if data.classes is not None:
        shared = set(data.classes) & set(classes)
        if not shared or tuple(data.classes) == tuple(classes):
            return data
        return Relabelled(data, places_of(classes, np.asarray(data.classes)), tuple(classes))
    numbers = labels is not None and all(isinstance(label, int) for label in labels)
    if not numbers or labels is None or list(labels) == list(range(len(labels))) or not len(data):
        return data
    y = np.asarray(data.labels)
    if not set(np.unique(y).tolist()) <= set(labels):
        return data
    table = np.zeros(int(y.max()) + 1, dtype=np.int64)
    table[y] = places_of(labels, y)
    return Relabelled(data, table, tuple(classes))
