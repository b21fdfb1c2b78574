"""What holds its items itself: a torch DataLoader, a set of Hugging Face's datasets, or one by MAITE's protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, SubsetRandomSampler

from assay.data.arrays import UNIT, as_inputs, as_labels, as_targets
from assay.data.digest import of_array
from assay.data.image import channels_first
from assay.data.parquet import one_line
from assay.data.plain_file import some
from assay.data.rows_at import rows_at
from assay.errors import AssayError, ShapeError

INPUTS = ("image", "img", "pixel_values", "input_ids", "x", "input", "inputs", "features")
TARGETS = ("label", "labels", "target", "targets", "y", "fine_label")
BATCH = 256
SUM = 1e-3  # how far from 1 the probabilities of one target may add up to


class Loaded:
    """Items (input, target, ...) or {name: value}, read when taken, from anything with `len` and indexing.

    Of a DataLoader the items go through its collate function, in the order of its data set: how it draws does not
    matter here, but a SubsetRandomSampler says which items there are. `input` and `target` name the parts of items that
    are dicts, guessed from the usual names unless given. Targets are class indices, names of classes, one-hot rows or
    probabilities (the largest is the class), numbers, or rows of numbers; without `classes` only numbers, which stay as
    they are.
    """

    def __init__(
        self,
        source: Any,
        *,
        input: str | None = None,
        target: str | None = None,
        pixels: tuple[float, float] = UNIT,
        classes: bool = True,
    ) -> None:
        self.pixels = pixels
        self.collate = source.collate_fn if isinstance(source, DataLoader) else None
        self.dataset = cast(Any, source.dataset if isinstance(source, DataLoader) else source)
        self.name = type(self.dataset).__name__
        if not (hasattr(self.dataset, "__len__") and hasattr(self.dataset, "__getitem__")):
            raise AssayError(
                f"A {self.name} gives items in a row and none by its number; make a data set with len and indexing."
            )
        self.rows: NDArray[np.int64] = np.arange(len(self.dataset))
        if isinstance(source, DataLoader) and isinstance(source.sampler, SubsetRandomSampler):
            self.rows = np.asarray(source.sampler.indices, dtype=np.int64)
        if not len(self.rows):
            raise AssayError(f"The {self.name} holds no items; give at least one.")
        self.input, self.asked = input, target
        first = self._item(0)
        if isinstance(first, Mapping):
            self.input = _key(first, input, INPUTS, "input")
            self.asked = _key(first, target, TARGETS, "target")
        elif not isinstance(first, tuple | list) or len(first) < 2:
            raise AssayError(
                f"The items of {self.name} are {type(first).__name__}, not (input, target); give both in one item."
            )
        self.labels, named = _labels(list(self._targets()), self.name, classes)
        self.classes: tuple[str, ...] | None = named or _names(self.dataset, self.asked)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k *t
        """Inputs as float32 in natural units, and their targets."""
        rows = rows_at(indices, len(self))
        if not len(rows):
            x = self._batch(np.arange(1))[:0]
        else:
            x = self._batch(rows)
        return as_inputs(x, self.pixels), torch.from_numpy(self.labels[rows])

    def fingerprint(self) -> str:
        """A hash of the targets and of every input: what a stranger's data set reads from cannot be known otherwise."""
        digest = hashlib.sha256(of_array(self.labels) + f"Loaded {self.classes} {self.pixels}".encode())
        for place in range(len(self)):
            try:
                digest.update(of_array(self._batch(np.array([place]))))
            except AssayError as e:  # the questions that meet it say so, each for itself
                digest.update(str(e).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def _item(self, place: int) -> Any:
        try:
            return self.dataset[int(self.rows[place])]
        except Exception as error:  # a stranger's data set may raise whatever it likes
            raise AssayError(
                f"Item {self.rows[place]} of {self.name} cannot be read: {type(error).__name__}: {one_line(error)}."
            ) from error

    def _collated(self, places: NDArray[np.int64]) -> Any:
        assert self.collate is not None
        items = [self._item(int(place)) for place in places]
        try:
            batch = self.collate(items)
        except Exception as error:
            raise AssayError(
                f"The collate function of the loader raised {type(error).__name__} on {len(items)} items of "
                f"{self.name}: {one_line(error)}."
            ) from error
        if isinstance(batch, Mapping) or (isinstance(batch, tuple | list) and len(batch) > 1):
            return batch
        raise AssayError(f"The collate function of the loader gives a {type(batch).__name__}; give (inputs, targets).")

    def _part(self, item: Any, name: str | None, place: int) -> Any:
        """Of an item or a batch, the input (0) or the target (1)."""
        try:
            return item[name] if isinstance(item, Mapping) else item[place]
        except (KeyError, IndexError, TypeError) as error:
            raise AssayError(f"An item of {self.name} has no {'target' if place else 'input'}; give both.") from error

    def _batch(self, places: NDArray[np.int64]) -> NDArray[np.generic]:  # k -> k *d
        if self.collate is not None:
            x = _array(self._part(self._collated(places), self.input, 0), f"The batch of {self.name}")
            if len(x) != len(places):
                raise ShapeError(f"The loader gives {len(x)} inputs for {len(places)} items; give one for each.")
            return x
        arrays: list[NDArray[np.generic]] = []
        pictures = False
        for place in places:
            value = self._part(self._item(int(place)), self.input, 0)
            pictures = pictures or _is_picture(value)
            arrays.append(_array(value, f"Item {self.rows[place]} of {self.name}"))
            if arrays[-1].shape != arrays[0].shape:
                raise ShapeError(
                    f"Item {self.rows[place]} of {self.name} has shape {arrays[-1].shape} where item "
                    f"{self.rows[places[0]]} has {arrays[0].shape}; bring all to one shape."
                )
        x = np.stack(arrays)
        return channels_first(x) if pictures else x

    def _targets(self) -> Iterator[Any]:
        """The target of each item: from a column or a list where there is one, else in one pass over the items."""
        column = None
        if self.collate is None and self.asked is not None and hasattr(self.dataset, "column_names"):
            column = self.dataset[self.asked]
        elif self.collate is None and self.asked is None:
            column = getattr(self.dataset, "targets", None)
        if column is not None and len(column) == len(self.dataset):
            yield from (column[int(row)] for row in self.rows)
            return
        if self.collate is None:
            for place in range(len(self)):
                yield self._part(self._item(place), self.asked, 1)
            return
        for start in range(0, len(self), BATCH):
            places = np.arange(start, min(start + BATCH, len(self)))
            found = self._part(self._collated(places), self.asked, 1)
            if not hasattr(found, "__len__") or len(found) != len(places):
                raise ShapeError(f"The loader gives no target for each of {len(places)} items; give one for each.")
            yield from found


def _key(item: Mapping[str, Any], given: str | None, usual: tuple[str, ...], what: str) -> str:
    """The name of the input or the target among the parts of an item."""
    if given is not None and given not in item:
        raise AssayError(f"Items have no {given!r}, only {some([str(k) for k in item])}; name the {what}.")
    found = given or next((name for name in usual if name in item), None)
    if found is None:
        raise AssayError(f"Items have {some([str(k) for k in item])}; name the {what} among them ({what}=...).")
    return found


def _names(dataset: Any, asked: str | None) -> tuple[str, ...] | None:
    """The names of the classes, where a data set keeps them: torchvision's, datasets', MAITE's way."""
    names = getattr(dataset, "classes", None)
    features, metadata = getattr(dataset, "features", None), getattr(dataset, "metadata", None)
    if not names and isinstance(features, Mapping) and asked in features:
        names = getattr(features[asked], "names", None)
    if not names and isinstance(metadata, Mapping):
        index = metadata.get("index2label") or {}
        names = [index[k] for k in range(len(index))] if set(index) == set(range(len(index))) else None
    return tuple(str(name) for name in names) if names else None


def _labels(targets: list[Any], name: str, chosen: bool) -> tuple[NDArray[Any], tuple[str, ...] | None]:  # -> n *t
    """Targets as class indices where one may be `chosen`, or as the numbers that they are; and the classes where they
    are words."""
    if chosen and all(isinstance(t, str) for t in targets):
        classes = tuple(sorted(set(targets)))
        return np.array([classes.index(t) for t in targets], dtype=np.int64), classes
    arrays: list[NDArray[Any]] = []
    for k, target in enumerate(targets):
        value = np.asarray(target.detach().cpu() if isinstance(target, Tensor) else target)
        if value.dtype.kind not in "iubf":
            raise AssayError(
                f"The target of item {k} of {name} is a {type(target).__name__}; give a class index, a row of "
                "probabilities, or numbers. Boxes and captions are no classes."
            )
        if arrays and value.shape != arrays[0].shape:
            raise ShapeError(f"The target of item {k} of {name} has shape {value.shape}, the first {arrays[0].shape}.")
        arrays.append(value)
    y = np.stack(arrays)
    if not np.isfinite(y).all():
        row = int(np.argwhere(~np.isfinite(y))[0][0])
        raise AssayError(f"The target of item {row} of {name} is {y[row]}; give finite numbers.")
    if not chosen:
        return as_targets(y, len(y)), None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2 and (y >= 0).all() and np.abs(y.sum(1) - 1).max() <= SUM:
        return y.argmax(1).astype(np.int64), None
    if y.dtype.kind == "f":
        return y.astype(np.float32), None
    return (as_labels(y, len(y)) if y.ndim == 1 else y.astype(np.int64)), None


def _is_picture(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "size")  # of Pillow, without importing it


def _array(value: Any, where: str) -> NDArray[np.generic]:
    """An input as uint8 or float32."""
    try:
        x = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AssayError(f"{where} is no array: {one_line(error)}; give numbers of one shape.") from error
    if x.dtype.kind not in "iubf":
        raise AssayError(
            f"{where} is a {type(value).__name__}, no numbers; give a tensor. Texts open with assay.data.texts."
        )
    return x if x.dtype == np.uint8 else x.astype(np.float32)
