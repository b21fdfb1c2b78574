"""Domain: one of the places that data come from, another camera, another year, with labels or without."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrow import short
from assay.data.held_out import FITTING, Part
from assay.data.open import has_labels, open_data
from assay.data.plain_file import some
from assay.data.relabelled import Relabelled
from assay.data.shares import Shares
from assay.errors import AssayError, SubjectError
from assay.given import Bound, Data, as_data, as_targets, pixel_bounds

OUTLIERS = "outliers"
"""A split whose inputs belong to no class: confidence in them can be measured, and accuracy cannot."""
NO_DOMAIN = ("train", "test", *FITTING, OUTLIERS)
"""Splits that have a part of their own to play. Every other one is a domain with labels."""
LONGEST = 80  # letters of a name, which stands in tables and above pictures
LEAST = 30  # inputs of a domain, below which no number about it is worth telling
NUMBER = re.compile(r"(?:(?:^|(?<=[^0-9A-Za-z]))-)?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Domain:
    """A domain by name. `at` is where it lies along what changes from one to the next: an angle, a year."""

    name: str
    data: Data
    labelled: bool
    at: float | None = None


class Unlabelled:
    """Other data of which the inputs alone are known: every label is 0, and nobody may read it."""

    def __init__(self, whole: Data) -> None:
        self.whole, self.classes = whole, None
        self.labels: NDArray[np.int64] = np.zeros(len(whole), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        return self.whole.take(indices)[0], torch.zeros(len(indices), dtype=torch.int64)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"unlabelled {self.whole.fingerprint()}".encode()).hexdigest()


def number_in(name: str) -> float | None:
    """The one number in a name: 15 in "rotated-15", 2009 in "2009", -5 in "celsius=-5"; None where there are several.

    A hyphen after a letter or a digit joins, and is no sign. A number that belongs to a word, as in "camera2", counts
    things and lies along nothing.
    """
    found = list(NUMBER.finditer(name))
    if len(found) != 1 or name[: found[0].start()][-1:].isalnum():
        return None
    number = float(found[0][0])
    return number if math.isfinite(number) else None


def refuse_domain(name: str, splits: Collection[str] = ()) -> None:
    """Refuse a name that stands for something else, or in no line."""
    if len(name) > LONGEST or len(name.splitlines()) != 1:
        wrong = f"has {len(name):,} letters" if len(name) > LONGEST else "is not one line"
        raise AssayError(f"The name {short(name)} of a domain {wrong}; give one line of up to {LONGEST} letters.")
    if name in NO_DOMAIN:
        raise AssayError(f"A domain cannot be named {name!r}, which is a split with a part of its own; rename it.")
    if name in splits:
        raise AssayError(f"The domain {name!r} is given twice, as a split too; give each a name of its own.")


def refuse_few(name: str, n: int) -> None:
    """Refuse a domain that is too small to say anything about."""
    if n < LEAST:
        raise AssayError(
            f"The domain {name!r} has {n} inputs; give at least {LEAST}, or leave it out: fewer say too little."
        )


def not_to_fit_on(name: str, domains: Mapping[str, Domain]) -> str | None:
    """Why nothing can be fitted on the labels of the domain of this name and then be asked about there, or None."""
    labelled = sorted(each.name for each in domains.values() if each.labelled)
    if name not in labelled:
        why = "has no labels" if name in domains else "is none of this subject's"
        known = ", ".join(labelled) or "none"
        return f"it is fitted on labels, and the domain {name!r} {why}; domains with labels: {known}"
    if len(domains[name].data) < 2 * LEAST:
        return (
            f"it is fitted on one half of a domain and asked about on the other, and {name!r} has "
            f"{len(domains[name].data)} inputs; give at least {2 * LEAST}"
        )
    return None


def named_apart(data: Mapping[str, Data], unlabelled: Mapping[str, Data]) -> dict[str, Unlabelled]:
    """Domains without labels, none of which has the name of a split; what else was given is hidden.

    `Unlabelled` that came as a split is one of them.
    """
    unlabelled = {**unlabelled, **{n: d for n, d in data.items() if isinstance(d, Unlabelled) and n not in unlabelled}}
    for name, domain in unlabelled.items():
        refuse_domain(name)
        if name in data and not (isinstance(domain, Unlabelled) and data[name] is domain):
            raise AssayError(f"The domain {name!r} is given twice, with labels and without; give each a name.")
    return {name: d if isinstance(d, Unlabelled) else Unlabelled(d) for name, d in unlabelled.items()}


def by_name(domains: Any) -> dict[str, Any]:
    """What was given as domains, by names; a number is one too, as a year."""
    if not isinstance(domains, Mapping):
        raise AssayError(f"The domains are a {type(domains).__name__}; give a mapping, such as {{'night': (x, y)}}.")
    found: dict[str, Any] = {}
    for name, given in domains.items():
        if str(name) in found:
            raise AssayError(f"The domain {str(name)!r} is given twice; give each a name of its own.")
        found[str(name)] = given
    return found


def positions(at: Mapping[Any, Any], domains: Collection[str]) -> dict[str, float]:
    """Where domains were told to lie, by name; what is none of them, or no number, is refused."""
    found: dict[str, float] = {}
    for name, given in by_name(at).items():
        if name not in domains:
            raise AssayError(f"There is no domain {name!r} to lie at {given}, only {some(list(domains)) or 'none'}.")
        number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
        if not number or not math.isfinite(given):
            raise AssayError(f"The domain {name!r} cannot lie at {given!r}; give a number, such as an angle or a year.")
        found[name] = float(given)
    return found


@contextmanager
def about_domain(name: str) -> Iterator[None]:
    """Errors in here say which domain they are about."""
    try:
        yield
    except AssayError as e:
        raise SubjectError(f"The domain {name!r}: {e}") from e


def in_their_order(splits: Mapping[str, Data], names: Sequence[str] | None) -> dict[str, Data]:
    """The splits; domains among them with labels as the test data count them, whose classes are called `names`."""
    found = dict(splits)
    for name in found if names else ():
        if name not in NO_DOMAIN:
            with about_domain(name):
                found[name] = _in_order(found[name], tuple(names or ()))
    return found


def _in_order(data: Data, names: tuple[str, ...]) -> Data:
    if data.classes is None or tuple(data.classes) == names:
        return data
    strange = [name for name in data.classes if name not in names]
    if strange:
        raise AssayError(
            f"it has the class {strange[0]!r}, which the model does not know, only {some(names)}; mend its name, or "
            "give the inputs without labels."
        )
    return Relabelled(data, np.array([names.index(name) for name in data.classes], dtype=np.int64), names)


def rows_apart(home: Data, domain: Data) -> NDArray[np.int64]:  # -> k
    """The rows of `home` that are none of the domain's, which may be a part of it."""
    whole, rows = rows_of(home)
    other, gone = rows_of(domain)
    return np.flatnonzero(~np.isin(rows, gone)) if whole is other else np.arange(len(home), dtype=np.int64)


def rows_of(data: Any) -> tuple[Any, NDArray[np.int64]]:
    """What the data were before they were cut, counted anew or brought to shares, and their rows there."""
    rows = np.arange(len(data), dtype=np.int64)
    while isinstance(data, Part | Relabelled | Shares | Unlabelled):
        rows = data.rows[rows] if isinstance(data, Part) else rows
        data = data.whole
    return data, rows


def apart(given: Any, bounds: tuple[Bound, Bound] | None = None) -> tuple[Any, bool]:
    """What was given as a domain, as a split is given, and whether it has labels; zeros stand for those it has not.

    An array or a tensor alone, a pair (x, None), `Unlabelled`, and a path at which there are inputs alone have none.
    8-bit pixels of such a path come between the `bounds`.
    """
    if isinstance(given, Unlabelled):
        return given, False
    if isinstance(given, str | Path) and not has_labels(given):
        return open_data(given, pixels=pixel_bounds(bounds), labelled=False), False
    alone = isinstance(given, tuple | list) and len(given) == 2 and given[1] is None
    if alone or isinstance(given, np.ndarray | Tensor):
        x = given[0] if alone else given
        if not np.ndim(x):
            raise AssayError("it is one number, no inputs; give an array of them (n, ...), or a pair (x, y).")
        return (x, np.zeros(len(x), dtype=np.int64)), False
    return given, True


def taken(
    domains: Any,
    splits: Mapping[str, Any],
    bounds: tuple[Bound, Bound] | None,
    *,
    classes: bool = True,
    names: Sequence[str] | None = None,
) -> tuple[dict[str, Data], dict[str, Unlabelled]]:
    """What was given as domains beside these splits: those with labels, and those without; `classes` as in Loaded.

    Where the classes of the test data have `names`, those of a domain are matched by theirs.
    """
    labelled: dict[str, Data] = {}
    unlabelled: dict[str, Unlabelled] = {}
    for name, given in by_name(domains).items():
        refuse_domain(name, splits)
        with about_domain(name):
            each, known = apart(given, bounds)
        data = as_data(each, name, bounds) if classes or not known else as_targets(each, name, bounds)
        refuse_few(name, len(data))
        if known:
            labelled[name] = data
        else:
            unlabelled[name] = data if isinstance(data, Unlabelled) else Unlabelled(data)
    return in_their_order(labelled, names), unlabelled


def domains_of(data: Mapping[str, Data], unlabelled: Mapping[str, Data], at: Mapping[str, float]) -> dict[str, Domain]:
    """The domains by name, those with labels first, each in the order given."""
    labelled = {name: each for name, each in data.items() if name not in NO_DOMAIN and name not in unlabelled}
    return {
        name: Domain(name, each, name in labelled, at.get(name, number_in(name)))
        for name, each in {**labelled, **unlabelled}.items()
    }
