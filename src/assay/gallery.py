"""How a gallery and queries come in: opened, matched by labels, pairs or places, and described by a model once.

Relevance is kept as a list of items for each group of queries that share them, see `assay.tasks.search`:

    labels   the items with the query's label; names decide where both sides have them
    pairs    the items that are named with the query
    places   the items within some metres of it, by the great circle on a sphere of the Earth's mean radius (which
             is within 0.6 % of the ellipsoid's distance)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from assay.data.arrays import UNIT, Targets
from assay.data.nearest import Metric
from assay.errors import AssayError, ShapeError, SubjectError
from assay.given import Bound, Data, as_data, as_targets, pixel_bounds
from assay.tasks.search import Described, Items

EARTH = 6_371_008.8  # metres, the mean radius
TOGETHER = 256  # items that are described at a time
SEED = 271_828  # of what a random model draws for them
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Answer = Callable[[Tensor], Tensor]  # k *d -> k s
Check = Callable[[Tensor, Ints], None]  # of items and their rows


class Queries:
    """Other data whose targets are numbers of groups: n 1."""

    def __init__(self, whole: Data, group: Ints) -> None:
        self.whole, self.labels, self.classes = whole, group[:, None], None

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, indices: Ints) -> tuple[Tensor, Tensor]:  # k -> k *d, k 1
        return self.whole.take(indices)[0], torch.from_numpy(self.labels[indices])

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.whole.fingerprint().encode())
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Matched:
    """A gallery, queries by split, and which items answer which of them."""

    gallery: Data
    splits: Mapping[str, Queries]
    starts: Ints
    rows: Ints
    shape: tuple[int, ...]
    groups: Sequence[str] | None = None
    names: Sequence[str] | None = None
    bounds: tuple[float, float] = UNIT

    def described(self, answer: Answer, check: Check, metric: Metric, by: str) -> Described:
        """The gallery as the model sees it; `by` as in Described."""
        if metric not in ("cosine", "euclidean"):
            raise AssayError(f"There is no metric {metric!r}; choose cosine or euclidean.")
        x, _ = self.gallery.take(np.arange(1))
        if tuple(x.shape[1:]) != self.shape:
            raise SubjectError(
                f"Items of the gallery have shape {tuple(x.shape[1:])}, queries {self.shape}; make them the same."
            )
        return Described(
            self.gallery, descriptors_of(self.gallery, answer, check, metric), metric, self.starts, self.rows,
            groups=self.groups, names=self.names, bounds=self.bounds, by=by,
        )  # fmt: skip


def descriptors_of(items: Items, answer: Answer, check: Check, metric: Metric) -> Tensor:  # -> g d
    """What the model makes of each item, a few at a time; items and descriptors that cannot be compared are refused.

    A random model draws from a seed, so that it describes a gallery alike each time, and from one of its own: noise
    that queries share with items would draw them together.
    """
    parts = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        for start in range(0, len(items), TOGETHER):
            rows = np.arange(start, min(start + TOGETHER, len(items)))
            x, _ = items.take(rows)
            check(x, rows)
            parts.append(_checked(answer(x), rows, metric))
    descriptors = torch.cat(parts)
    if bool((descriptors == descriptors[:1]).all()):
        raise SubjectError(
            f"The model describes all {len(descriptors)} items of the gallery alike; check its weights and the "
            "scaling of the inputs."
        )
    return descriptors


def _checked(out: Tensor, rows: Ints, metric: Metric) -> Tensor:  # k d
    if out.ndim != 2 or len(out) != len(rows) or not out.shape[1]:
        raise SubjectError(
            f"The model returned shape {tuple(out.shape)} for {len(rows)} items of the gallery; return one descriptor "
            f"each, shape ({len(rows)}, d)."
        )
    out = out.float()
    finite = torch.isfinite(out).all(1)
    if not bool(finite.all()):
        raise SubjectError(
            f"The model returned NaN or infinity for item {rows[int((~finite).nonzero()[0])]} of the gallery; check "
            "its weights and scaling."
        )
    still = (out == 0).all(1)
    if metric == "cosine" and bool(still.any()):
        raise SubjectError(
            f"The descriptor of item {rows[int(still.nonzero()[0])]} of the gallery is 0, which has no direction; "
            "mend the model, or compare with metric='euclidean'."
        )
    return normalize(out, dim=1) if metric == "cosine" else out  # the mean of several passes is shorter than 1


def matched(
    gallery: Any,
    queries: Any,
    *,
    metres: float | None = None,
    pairs: Any = None,
    bounds: tuple[Bound, Bound] | None = None,
) -> Matched:
    """A gallery and queries in any form that `Subject.of` takes, by whichever tells what is relevant."""
    if metres is not None and pairs is not None:
        raise AssayError("Relevance comes from metres or from pairs; give one of them.")
    if metres is not None and not (isinstance(metres, int | float | np.number) and 0 < metres < np.inf):
        raise AssayError(f"metres={metres!r} is no distance; give a number above 0, such as 25.")
    given = queries if isinstance(queries, Mapping) else {"test": queries}
    if "test" not in given:
        raise AssayError(f"The queries have no split 'test', only {sorted(given)}; name one 'test'.")
    labelled = metres is None and pairs is None
    held = _opened(gallery, "gallery", bounds, labelled)
    asked = {split: _opened(each, split, bounds, labelled) for split, each in given.items()}
    if len(held.data) < 2:
        raise SubjectError(f"The gallery has {len(held.data)} item; give at least 2, or there is nothing to choose.")
    for split, each in asked.items():
        if len(each.data) == 0:
            raise SubjectError(f"The split {split!r} is empty; give it at least one query.")
        if len(each.data) == len(held.data) and each.data.fingerprint() == held.data.fingerprint():
            raise SubjectError(
                f"The queries of {split!r} are the gallery itself, where each would find itself; give other queries."
            )
    names: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    if labelled:
        lists, groups, names = _by_label(held.data, {split: each.data for split, each in asked.items()})
    elif metres is not None:
        lists = _by_place(held.places("gallery"), {s: e.places(s) for s, e in asked.items()}, metres)
    else:
        told = pairs if isinstance(pairs, Mapping) else {"test": pairs}
        if sorted(told) != sorted(asked):
            raise AssayError(f"Pairs are given for {sorted(told)}, queries for {sorted(asked)}; give both for each.")
        lists = _by_pairs(len(held.data), {s: len(e.data) for s, e in asked.items()}, told)
    lists.check(len(held.data))
    return Matched(
        gallery=held.data,
        splits={split: Queries(each.data, lists.group[split]) for split, each in asked.items()},
        starts=np.concatenate([[0], np.cumsum(lists.counts)]).astype(np.int64),
        rows=lists.rows,
        shape=tuple(asked["test"].data.take(np.arange(1))[0].shape[1:]),
        groups=groups,
        names=names,
        bounds=pixel_bounds(bounds),
    )


@dataclass(frozen=True)
class _Given:
    """Inputs, and what was given with them where that is no label."""

    data: Data
    told: NDArray[Any] | None = None

    def places(self, split: str) -> Floats:  # -> n 2
        told = np.asarray(self.data.labels if self.told is None else self.told)
        if told.dtype.kind not in "fiu" or told.shape != (len(self.data), 2):
            raise ShapeError(
                f"The geo-tags of {split!r} have shape {told.shape} for {len(self.data)} inputs; give latitude and "
                f"longitude in degrees for each, shape ({len(self.data)}, 2)."
            )
        place = told.astype(np.float64)
        for column, (what, most) in enumerate((("latitude", 90.0), ("longitude", 180.0))):
            beyond = np.flatnonzero(~(np.abs(place[:, column]) <= most))  # NaN compares false
            if len(beyond):
                raise SubjectError(
                    f"The {what} of input {beyond[0]} of {split!r} is {place[beyond[0], column]:g}, outside "
                    f"{-most:g} to {most:g} degrees; give latitude first, then longitude."
                )
        return place


def _opened(given: Any, split: str, bounds: tuple[Bound, Bound] | None, labelled: bool) -> _Given:
    """The data; where relevance comes from elsewhere, inputs may stand alone, or with their geo-tags."""
    if labelled:
        data = as_data(given, split, bounds)
        labels = np.asarray(data.labels)
        if labels.ndim != 1 or labels.dtype.kind not in "iub":
            raise SubjectError(
                f"The labels of {split!r} have shape {labels.shape} and dtype {labels.dtype}; give one whole number "
                "each, or say what is relevant with metres=... (geo-tags) or pairs=..."
            )
        return _Given(data)
    pixels = pixel_bounds(bounds)
    paired = isinstance(given, tuple | list) and len(given) == 2
    if not paired and not isinstance(given, np.ndarray | Tensor):
        return _Given(as_targets(given, split, bounds))
    x, told = given if paired else (given, None)
    if not np.ndim(x):
        raise ShapeError(f"The inputs of {split!r} are one number, {x}; give a row for each input.")
    told = None if told is None else _array(told, f"The geo-tags of {split!r}")
    if told is not None and told.shape[:1] != (len(x),):
        raise ShapeError(
            f"The split {split!r} has {len(x)} inputs and geo-tags of shape {told.shape}; give one for each."
        )
    return _Given(Targets(x, np.zeros(len(x), dtype=np.int64), pixels=pixels), told)


def _array(given: Any, what: str) -> NDArray[Any]:
    try:
        return np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
    except ValueError as e:
        raise ShapeError(f"{what} are no array, their rows are not as long as each other; mend them.") from e


@dataclass(frozen=True)
class _Lists:
    """The relevant items of each group one after the other, and of each query its group."""

    counts: Ints  # m
    rows: Ints  # sum of counts
    group: Mapping[str, Ints]  # split: n
    why: Callable[[str, int], str] = field(repr=False)
    """What nothing was found for, in words."""

    def check(self, items: int) -> None:
        """Refuse a query that nothing answers, or everything."""
        for split, group in self.group.items():
            count = np.where(group < 0, 0, self.counts[np.maximum(group, 0)] if len(self.counts) else 0)
            none, every = np.flatnonzero(count == 0), np.flatnonzero(count == items)
            if len(none):
                more = f", nor for {len(none) - 1} others" if len(none) > 1 else ""
                raise SubjectError(
                    f"No item of the gallery is relevant for query {none[0]} of {split!r} "
                    f"({self.why(split, int(none[0]))}){more}; there is nothing to find: leave such queries out."
                )
            if len(every):
                raise SubjectError(
                    f"Every item of the gallery is relevant for query {every[0]} of {split!r}: whatever comes first "
                    "is right; add items that are not."
                )


def _by_label(gallery: Data, queries: Mapping[str, Data]) -> tuple[_Lists, tuple[str, ...], tuple[str, ...]]:
    labels = np.asarray(gallery.labels)
    kinds, owner, counts = np.unique(labels, return_inverse=True, return_counts=True)
    called = [str(k) if gallery.classes is None else gallery.classes[k] for k in kinds.tolist()]
    group = {}
    for split, data in queries.items():
        asked = np.asarray(data.labels)
        if gallery.classes is not None and data.classes is not None and gallery.classes != data.classes:
            known = {name: place for place, name in enumerate(called)}
            place = np.array([known.get(name, -1) for name in data.classes], dtype=np.int64)[asked]
        else:
            place = np.searchsorted(kinds, asked).clip(max=len(kinds) - 1)
            place = np.where(kinds[place] == asked, place, -1)
        group[split] = place.astype(np.int64)

    def why(split: str, query: int) -> str:
        data = queries[split]
        label = int(np.asarray(data.labels)[query])
        return f"label {label if data.classes is None else data.classes[label]!r}"

    rows = np.argsort(owner, kind="stable").astype(np.int64)
    names = tuple(called[i] for i in owner.tolist())
    return _Lists(counts.astype(np.int64), rows, group, why), tuple(called), names


def _by_pairs(items: int, queries: Mapping[str, int], pairs: Mapping[str, Any]) -> _Lists:
    group, counts, rows, before = {}, [], [], 0
    for split, n in queries.items():
        told = _array(pairs[split], f"The pairs of {split!r}")
        if told.ndim != 2 or told.shape[1] != 2 or told.dtype.kind not in "iu":
            raise ShapeError(
                f"The pairs of {split!r} have shape {told.shape} and dtype {told.dtype}; give whole numbers of shape "
                "(p, 2): the row of a query, the row of an item that is relevant for it."
            )
        for column, (what, most) in enumerate((("query", n), ("item", items))):
            strange = np.flatnonzero((told[:, column] < 0) | (told[:, column] >= most))
            if len(strange):
                raise SubjectError(
                    f"Pair {strange[0]} of {split!r} names {what} {told[strange[0], column]}, and there are {most}, "
                    "numbered from 0; mend the pairs."
                )
        each = np.unique(told.astype(np.int64), axis=0)  # by query, then by item
        counts.append(np.bincount(each[:, 0], minlength=n))
        rows.append(each[:, 1])
        group[split], before = np.arange(before, before + n), before + n
    return _Lists(np.concatenate(counts), np.concatenate(rows), group, lambda split, query: "no pair names it")


def _by_place(gallery: Floats, queries: Mapping[str, Floats], metres: float) -> _Lists:
    from scipy.spatial import cKDTree

    tree = cKDTree(_on_sphere(gallery))
    chord = 2 * EARTH * np.sin(min(metres / (2 * EARTH), np.pi / 2))
    group, lists, before = {}, [], 0
    for split, place in queries.items():
        lists.extend(tree.query_ball_point(_on_sphere(place), chord, return_sorted=True))
        group[split], before = np.arange(before, before + len(place)), before + len(place)

    def why(split: str, query: int) -> str:
        far, _ = tree.query(_on_sphere(queries[split][query : query + 1]))
        return f"the nearest is {2 * EARTH * np.arcsin(min(1.0, far[0] / (2 * EARTH))):,.0f} m away, not {metres:g}"

    counts = np.array([len(each) for each in lists], dtype=np.int64)
    rows = np.concatenate([np.asarray(each, dtype=np.int64) for each in lists]) if counts.sum() else np.zeros(0, int)
    return _Lists(counts, rows.astype(np.int64), group, why)


def _on_sphere(place: Floats) -> Floats:  # n 2 -> n 3
    latitude, longitude = np.radians(place).T
    flat = np.cos(latitude)
    return EARTH * np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)
