"""Pairs of inputs: what a model that compares is asked about."""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError

ORDER = ("lower", "higher")
LIKENESS = ("different", "same")


class Singles(Protocol):
    """Inputs that can be taken a few at a time; what `take` gives beside them is not looked at."""

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...  # k -> k *d, k

    def fingerprint(self) -> str: ...


class Pairs:
    """Pair k is the inputs `pairs[k, 0]` and `pairs[k, 1]` of `singles`, each of which has one of the `values`.

    Of a ranking (`classes` lower, higher) the label is 1 where the first value is at least the second; pairs with equal
    values stand last, so that the first `untied` have an order. Of a similarity (different, same) it is 1 where the two
    values are equal: they are classes then.
    """

    def __init__(
        self, singles: Singles, values: ArrayLike, pairs: ArrayLike, classes: tuple[str, str] = ORDER
    ) -> None:  # n *d, n, m 2
        self.singles, self.classes = singles, classes
        self.values = np.asarray(values, dtype=np.float64)
        self.pairs = np.asarray(pairs, dtype=np.int64)
        if self.values.shape != (len(singles),):
            raise ShapeError(f"There are {len(singles)} inputs and values of shape {self.values.shape}; give one each.")
        if not np.isfinite(self.values).all():
            where = int(np.flatnonzero(~np.isfinite(self.values))[0])
            raise AssayError(f"The value of input {where} is {self.values[where]}; give each input a number.")
        if self.pairs.ndim != 2 or self.pairs.shape[1] != 2:
            raise ShapeError(f"Pairs have shape {self.pairs.shape}; give two places of inputs in each row.")
        if self.pairs.size and not 0 <= self.pairs.min() <= self.pairs.max() < len(singles):
            strange = int(self.pairs.min() if self.pairs.min() < 0 else self.pairs.max())
            raise AssayError(f"A pair names input {strange}; there are {len(singles)}, from 0 to {len(singles) - 1}.")
        if classes == ORDER:
            self.pairs = self.pairs[np.argsort(self.gaps == 0, kind="stable")]
        self.labels = ((self.gaps >= 0) if classes == ORDER else (self.gaps == 0)).astype(np.int64)

    @classmethod
    def ranked(cls, singles: Singles, values: ArrayLike, count: int, *, seed: int = 0) -> Pairs:
        """`count` pairs whose two places are drawn uniformly at random, as the published training does."""
        drawn = np.random.default_rng(seed).integers(0, len(singles), (count, 2))
        return cls(singles, values, drawn)

    @classmethod
    def alike(cls, singles: Singles, labels: ArrayLike, count: int, *, seed: int = 0) -> Pairs:
        """`count` pairs of different inputs, every second of one class."""
        y, rng = np.asarray(labels), np.random.default_rng(seed)
        members = [rows for c in np.unique(y) if len(rows := np.flatnonzero(y == c)) > 1]
        if len(members) < 2:
            raise AssayError("Similarity needs two classes with at least two inputs each; give more inputs.")
        weight = np.array([len(rows) for rows in members]) / sum(map(len, members))
        pairs = np.empty((count, 2), dtype=np.int64)
        for k in range(count):
            first, second = rng.choice(len(members), 2, replace=False, p=weight)
            pairs[k] = (
                rng.choice(members[first], 2, replace=False)
                if k % 2
                else (rng.choice(members[first]), rng.choice(members[second]))
            )
        return cls(singles, y, pairs, LIKENESS)

    @property
    def gaps(self) -> NDArray[np.float64]:  # m
        """The first value less the second."""
        first, second = self.values[self.pairs].T
        return np.asarray(first - second)

    @property
    def untied(self) -> int:
        """How many pairs come before the first with equal values."""
        return int((self.gaps != 0).sum()) if self.classes == ORDER else len(self)

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:  # k -> k 2 *d, k
        x, _ = self.singles.take(self.pairs[indices].ravel())
        return x.view(len(indices), 2, *x.shape[1:]), torch.from_numpy(self.labels[indices])

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.singles.fingerprint().encode(), digest_size=16)
        for array in (self.values, self.pairs):
            digest.update(np.ascontiguousarray(array).data)
        digest.update(repr(self.classes).encode())
        return digest.hexdigest()
