"""Which labelled inputs may still be fitted on after a model's training, and which then stay to ask about.

A temperature or a conformal threshold wants inputs that the model was not trained on, and what it is judged by wants
inputs that it was not fitted on. A split named 'calibration' or 'validation' serves the first. Without one, the test
data are cut in half, class by class, at random but always in the same way: whatever the seed of a run, a fitted model
must not meet the half that it was fitted on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError

FITTING = ("calibration", "validation")
"""Splits that are there to be fitted on, the first that there is."""
CUT = 20170806  # any number, but never another one


class Labelled(Protocol):
    """Labelled inputs that can be taken a few at a time."""

    @property
    def labels(self) -> NDArray[np.int64]: ...  # n

    @property
    def classes(self) -> tuple[str, ...] | None: ...

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...  # k -> k *d, k

    def fingerprint(self) -> str: ...


class Part:
    """Some rows of other data, read when taken."""

    def __init__(self, whole: Labelled, rows: NDArray[np.int64]) -> None:
        self.whole, self.rows = whole, rows
        self.labels = np.asarray(whole.labels)[rows]
        self.classes = whole.classes

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        return self.whole.take(self.rows[indices])

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.whole.fingerprint().encode(), digest_size=16)
        digest.update(self.rows.astype(np.int64).tobytes())
        return digest.hexdigest()


def _rows_of(data: Labelled) -> tuple[Labelled, NDArray[np.int64]]:
    """The data that these are a part of, which is no part itself, and their rows there."""
    rows = np.arange(len(data), dtype=np.int64)
    while isinstance(data, Part):
        rows = data.rows[rows]
        data = data.whole
    return data, rows


def apart_from(splits: Mapping[str, Labelled], used: Iterable[Labelled]) -> dict[str, Labelled]:
    """The splits without the rows of what was `used`, wherever a split is of the same data: a domain of --domain-column
    is rows of 'test', and whoever fits on it has seen those of 'test' too."""
    taken = [_rows_of(each) for each in used]
    left: dict[str, Labelled] = {}
    for name, split in splits.items():
        whole, rows = _rows_of(split)
        seen = [np.isin(rows, gone) for of, gone in taken if of is whole]
        kept = ~np.logical_or.reduce(seen) if seen else None
        left[name] = split if kept is None or kept.all() else Part(split, np.flatnonzero(kept))
    return left


class HeldOut(NamedTuple):
    """Rows of `split` to fit on, and rows to ask about, of 'test' unless `split` is a domain; none is both."""

    split: str
    fit: NDArray[np.int64]
    ask: NDArray[np.int64]


def left_to_ask(splits: Mapping[str, Labelled], part: HeldOut) -> tuple[dict[str, Labelled], str]:
    """The data without what was fitted on, and in words what left them."""
    data = {name: split for name, split in splits.items() if name != part.split}
    if part.split in FITTING:
        return data, f"the split {part.split!r}, which left the data"
    left = apart_from(splits, [Part(splits[part.split], part.fit)])
    return left, f"one half of {part.split!r}, which left the data"


def held_out(splits: Mapping[str, Labelled], domain: str | None = None) -> HeldOut:
    """A split of its own, and then all of 'test'; or one half of 'test', and then the other; or halves of a domain."""
    cut = domain or "test"
    labels = np.asarray(splits[cut].labels)
    for name in FITTING if domain is None else ():
        if name in splits:
            return HeldOut(name, np.arange(len(splits[name])), np.arange(len(labels)))
    if len(labels) < 2:
        raise AssayError(
            f"The split {cut!r} has {len(labels)} input and cannot be cut in two, to fit on and to ask about; give "
            f"more inputs, or a split 'calibration'."
        )
    order = np.random.default_rng(CUT).permutation(len(labels))
    if labels.ndim == 1 and labels.dtype.kind in "iub":
        order = order[np.argsort(labels[order], kind="stable")]  # class by class, at random in each
    return HeldOut(cut, np.sort(order[1::2]), np.sort(order[::2]))
