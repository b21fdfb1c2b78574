"""Column: what one column of a table holds, read off its cells; and cells as the numbers that a model is shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.data.bounds import refuse_bounds
from assay.errors import AssayError, ShapeError

ColumnType = Literal["number", "integer", "category", "boolean"]
WHOLE = 2**24  # single precision holds every whole number up to here


class Table(Protocol):
    """Columns by name: a dict of lists or arrays, a data frame."""

    def items(self) -> Iterable[tuple[Any, Any]]: ...


@dataclass(frozen=True)
class Column:
    """What one column holds. `usual` is its median or most common value, which stands in for a missing cell.

    `missing`: the model takes NaN here. `fixed`: nobody can change it (a date of birth), by mistake or on purpose.
    """

    name: str
    type: ColumnType
    low: float
    high: float
    usual: float
    unit: str = ""
    categories: tuple[str, ...] = ()
    missing: bool = False
    fixed: bool = False

    def __post_init__(self) -> None:
        refuse_bounds(self.low, self.high, f"the column {self.name!r}")
        if self.type == "category" and (self.low, self.high) != (0, len(self.categories) - 1):
            raise AssayError(
                f"The column {self.name!r} has {len(self.categories)} categories and the bounds {self.low:g} and "
                f"{self.high:g}; they are 0 and {len(self.categories) - 1}."
            )
        if not self.low <= self.usual <= self.high:
            raise AssayError(
                f"The usual value {self.usual:g} of {self.name!r} is outside [{self.low:g}, {self.high:g}]."
            )

    def told(self, value: float) -> str:
        """A value in words."""
        if math.isnan(value):
            return "missing"
        if self.type == "category":
            return self.categories[min(max(round(value), 0), len(self.categories) - 1)]
        if self.type == "boolean":
            return "yes" if value >= 0.5 else "no"
        number = f"{value:.0f}" if self.type == "integer" else f"{value:.4g}"
        return f"{number} {self.unit}".rstrip()

    @classmethod
    def of(
        cls,
        name: str,
        cells: NDArray[Any],
        *,
        unit: str = "",
        bounds: tuple[float, float] | None = None,
        fixed: bool = False,
    ) -> Column:
        """A column like these cells: its type, bounds, categories, usual value and whether any is missing."""
        sort, gone = _sort_of(name, cells)
        there = cells[~gone]
        if not len(there):
            raise AssayError(f"The column {name!r} holds nothing; leave it out.")
        if bounds and sort in ("words", "booleans"):
            raise AssayError(f"There are bounds for {name!r}, a column of {sort}; they are for numbers.")
        made = partial(cls, name=name, unit=unit, missing=bool(gone.any()), fixed=fixed)
        if sort == "words":
            counts = Counter(there.tolist())
            names = tuple(sorted(counts))
            usual = float(names.index(max(names, key=lambda word: counts[word])))
            return made(type="category", low=0, high=len(names) - 1, usual=usual, categories=names)
        values = there.astype(np.float64)
        if not np.isfinite(values).all():
            raise AssayError(f"The column {name!r} holds an infinite value; take it out.")
        if sort == "booleans":
            return made(type="boolean", low=0, high=1, usual=float(values.mean() >= 0.5))
        low, high = bounds or (float(values.min()), float(values.max()))
        whole = (
            sort == "whole numbers" and max(abs(low), abs(high)) <= WHOLE and low == round(low) and high == round(high)
        )
        middle = float(np.sort(values)[(len(values) - 1) // 2])
        usual = min(max(middle, low), high)
        return made(type="integer" if whole else "number", low=low, high=high, usual=usual)

    def encode(self, cells: NDArray[Any]) -> NDArray[np.float64]:  # n -> n
        """Cells as numbers, missing ones as NaN."""
        if not len(cells):
            return np.zeros(0)
        if all(is_missing(v) for v in cells.tolist()):
            sort, gone = "", np.ones(len(cells), dtype=bool)
        else:
            sort, gone = _sort_of(self.name, cells)
        if gone.any() and not self.missing:
            raise AssayError(
                f"The column {self.name!r} is empty in row {int(gone.argmax())}, and none was in training; fill it."
            )
        wanted = {"category": ("words",), "boolean": ("booleans",)}.get(self.type, ("whole numbers", "numbers"))
        if sort and sort not in wanted:
            raise AssayError(f"The column {self.name!r} holds {sort}; it is a column of {' or '.join(wanted)}.")
        out = np.full(len(cells), np.nan)
        if self.type == "category":
            code = {word: k for k, word in enumerate(self.categories)}
            for row in np.flatnonzero(~gone):
                if cells[row] not in code:
                    known = ", ".join(self.categories[:8]) + (", ..." if len(self.categories) > 8 else "")
                    raise AssayError(
                        f"The column {self.name!r} has the category {str(cells[row])!r} in row {row}, never seen in "
                        f"training; known are {known}."
                    )
                out[row] = code[cells[row]]
        else:
            out[~gone] = cells[~gone].astype(np.float64)
        broken = np.flatnonzero(~gone & (out != np.round(out)))
        if self.type == "integer" and len(broken):
            raise AssayError(
                f"The column {self.name!r} has {out[broken[0]]:g} in row {broken[0]}; it is a column of whole numbers."
            )
        return out


def columns_of(table: Table) -> dict[str, NDArray[Any]]:
    """The columns of a table as arrays of one length; of lists each value as it is, or numpy makes words of numbers."""
    columns = {
        str(name): np.array(cells, dtype=object) if isinstance(cells, list | tuple) else np.asarray(cells)
        for name, cells in table.items()
    }
    if not columns:
        raise AssayError("The table has no columns; give at least one.")
    for name, cells in columns.items():
        if cells.ndim != 1:
            raise ShapeError(f"The column {name!r} has shape {cells.shape}; give one value for each row.")
    shortest, longest = (pick(columns, key=lambda name: len(columns[name])) for pick in (min, max))
    n, m = len(columns[shortest]), len(columns[longest])
    if n != m:
        raise ShapeError(f"The column {shortest!r} has {n} rows and {longest!r} has {m}; give one value for each row.")
    return columns


def _sort_of(name: str, cells: NDArray[Any]) -> tuple[str, NDArray[np.bool_]]:  # -> the sort of value, where missing: n
    """Whether cells are 'booleans', 'whole numbers', 'numbers' or 'words', and which are missing."""
    kind = cells.dtype.kind
    if kind == "b":
        return "booleans", np.zeros(len(cells), dtype=bool)
    if kind in "iu":
        return "whole numbers", np.zeros(len(cells), dtype=bool)
    if kind == "f":
        gone = np.isnan(cells)
        # a gap makes floating point of whole numbers
        whole = gone.any() and not gone.all() and bool((cells[~gone] == np.round(cells[~gone])).all())
        return "whole numbers" if whole else "numbers", gone
    gone = np.array([is_missing(v) for v in cells.tolist()], dtype=bool)
    first: dict[str, Any] = {}
    for value in cells[~gone].tolist():
        first.setdefault(sort(name, value), value)
    if "numbers" in first:
        first.pop("whole numbers", None)  # 1 and 2.5 are numbers
    if len(first) > 1:
        (one, a), (other, b) = list(first.items())[:2]
        raise AssayError(
            f"The column {name!r} mixes {one} ({a!r}) and {other} ({b!r}); make them one type, empty where missing."
        )
    if not first:
        raise AssayError(f"The column {name!r} holds nothing; leave it out.")
    return next(iter(first)), gone


def sort(name: str, value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "booleans"
    if isinstance(value, int | np.integer):
        return "whole numbers"
    if isinstance(value, float | np.floating):
        return "numbers"
    if isinstance(value, str):
        return "words"
    raise AssayError(
        f"The column {name!r} holds a {type(value).__name__} ({value!r}); give numbers, words or booleans."
    )


def is_missing(value: Any) -> bool:
    if type(value).__name__ in ("NAType", "NaTType"):  # of data frames; they cannot be compared
        return True
    return value is None or (isinstance(value, str) and not value) or (isinstance(value, float) and math.isnan(value))
