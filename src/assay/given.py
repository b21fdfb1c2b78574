"""What is given as data, by split, in whatever form: opened, and read for the task that its targets tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from assay.data.arrays import UNIT, Arrays, Targets
from assay.data.loader import Loaded
from assay.data.open import open_data
from assay.data.pairs import Pairs
from assay.data.valued_images import open_valued
from assay.errors import AssayError, ShapeError, SubjectError
from assay.tasks import Labels, Regression, Task

PAIRS = 2000  # drawn from each split where nobody says how many
SERIAL = ("Tagging", "Forecast", "Detection")
PLACED: Mapping[tuple[bool, int], tuple[str, tuple[str, ...]]] = {
    (True, 2): ("classes along a sequence", SERIAL[:1]),
    (True, 3): ("a class for each pixel", ("Segmentation",)),
    (False, 3): ("the steps of a series, or boxes", SERIAL[1:]),
    (False, 4): ("images", ("ImageToImage",)),
}
"""What targets are by whether they are whole numbers and how many axes they have, and the tasks that have such."""

Bound = float | Sequence[float]
"""What values lie above or below: one number for all features, or one for each."""


@runtime_checkable
class Data(Protocol):
    """Inputs with their targets that can be taken a few at a time, so that a set larger than memory streams."""

    @property
    def labels(self) -> NDArray[Any]: ...  # n *t: class indices, or whatever the task's targets are

    @property
    def classes(self) -> tuple[str, ...] | None: ...  # names, where the source has them

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...  # k -> k *d in natural units, k *t

    def fingerprint(self) -> str: ...


@runtime_checkable
class Valued(Protocol):
    """Inputs with a number each, that can be taken a few at a time."""

    @property
    def values(self) -> NDArray[np.float64]: ...  # n

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...  # k -> k *d, k

    def fingerprint(self) -> str: ...


def pixel_bounds(bounds: tuple[Bound, Bound] | None) -> tuple[float, float]:
    """What 8-bit pixels are brought to: the bounds, where they are the same for all features; else 0 and 1."""
    if bounds is not None and isinstance(bounds[0], int | float) and isinstance(bounds[1], int | float):
        return float(bounds[0]), float(bounds[1])
    return UNIT


def in_splits(data: Any, bounds: tuple[Bound, Bound] | None = None, *, classes: bool = True) -> dict[str, Any]:
    """The data by split, each opened once: `Data`, or a pair (x, targets) as it was given; `classes` as in Loaded."""
    given = data if isinstance(data, Mapping) else {"test": data}
    return {
        split: each if _is_pair(each) else as_data(each, split, bounds, classes=classes)
        for split, each in given.items()
    }


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def task_of(given: Mapping[str, Any]) -> Task | None:
    """The task that the targets tell of, or None for class indices; what more than one task has is refused."""
    like = given.get("train", given.get("test"))
    if like is None:
        return None
    told = like[1] if _is_pair(like) else like.labels
    y = np.asarray(told.detach().cpu() if isinstance(told, Tensor) else told)
    whole = y.dtype.kind in "iub"
    flags = whole and y.ndim == 2 and bool(np.isin(y, (0, 1)).all())
    found = PLACED.get((whole, y.ndim))
    if found is not None and y.dtype.kind in "fiub" and not flags and y.shape[1:] != (1,):
        raise SubjectError(
            f"Targets of shape {y.shape} and dtype {y.dtype} are {found[0]}, no class or numbers for each input "
            f"(Classification, Regression); {_named(found[1])}."
        )
    if y.dtype.kind == "f":
        return Regression.of(y)
    if flags and y.shape[1] > 1 and not (y.sum(1) == 1).all():
        return Labels(tuple(str(i) for i in range(y.shape[1])))
    return None


def refuse_places(out: Tensor, who: str) -> None:  # 1 *o
    """Refuse an answer to one input that is no choice of one class, with the tasks whose answer it may be."""
    found = {
        3: ("rows: a class for each place of a sequence, the steps of a series, or boxes", SERIAL),
        4: ("a map over the image", ("Segmentation", "ImageToImage")),
    }.get(out.ndim)
    if found is not None:
        raise SubjectError(
            f"{who} returned {' x '.join(map(str, out.shape))} for one input: it gives {found[0]}, which is no choice "
            f"of one class (Classification); {_named(found[1])}."
        )


def _named(tasks: tuple[str, ...]) -> str:
    return f"name its task, {' or '.join(tasks)}, as in Subject.of(model, data, {tasks[0]}(...))"


def as_targets(given: Any, split: str, bounds: tuple[Bound, Bound] | None = None) -> Data:
    """Whatever the user brought for a split of a model that is no classifier, as `Data`."""
    if _is_pair(given):
        try:
            return Targets(*given, pixels=pixel_bounds(bounds))
        except AssayError as e:
            raise SubjectError(f"The split {split!r}: {e}") from e
    return as_data(given, split, bounds)


def as_data(given: Any, split: str, bounds: tuple[Bound, Bound] | None = None, *, classes: bool = True) -> Data:
    """Whatever the user brought for a split, as `Data`; 8-bit pixels between these bounds, `classes` as in Loaded."""
    pixels = pixel_bounds(bounds)
    try:
        if isinstance(given, Data):
            return given
        if isinstance(given, str | Path):
            return open_data(given, pixels=pixels)
        if _is_pair(given):
            return Arrays(*given, pixels=pixels)
        if isinstance(given, DataLoader) or (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
            return Loaded(given, pixels=pixels, classes=classes)
    except AssayError as e:
        raise SubjectError(f"The split {split!r}: {e}") from e
    if hasattr(given, "reset") and hasattr(given, "step"):
        raise AssayError(
            f"The data of {split!r} is an environment ({type(given).__name__}), whose task is Control; give what it "
            "observes and what a reference does there: Subject.of(policy, (observations, actions), Control(names))."
        )
    raise AssayError(
        f"The data of {split!r} is a {type(given).__name__}; give a pair (x, y), a torch Dataset or DataLoader, "
        "a path, or `Data`."
    )


def as_pairs(given: Any, count: int) -> dict[str, Pairs]:
    """Whatever the user brought for a ranker, as pairs by split; inputs come as arrays, a folder, or as they are."""
    if not isinstance(given, Mapping):
        given = {"test": given}
    return {split: _pairs_of(data, count, split) for split, data in given.items()}


def _pairs_of(given: Any, count: int, split: str) -> Pairs:
    if isinstance(given, Pairs):
        return given
    if isinstance(given, str | Path):
        given = open_valued(given)
    if isinstance(given, Valued):
        return Pairs.ranked(given, given.values, count)
    if isinstance(given, tuple | list) and len(given) == 2:
        try:
            x, values = (np.asarray(g.detach().cpu() if isinstance(g, Tensor) else g) for g in given)
        except ValueError:
            shapes = sorted({np.shape(one) for one in given[0]}, key=str)
            raise ShapeError(
                f"The inputs of {split!r} have the shapes {shapes}; a pair needs two of one shape."
            ) from None
        return Pairs.ranked(Arrays(x, np.zeros(len(x), dtype=np.int64)), values, count)
    raise AssayError(
        f"The data of {split!r} is a {type(given).__name__}; give a pair (x, values), a folder of images, or `Pairs`."
    )
