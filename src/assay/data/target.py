"""Target: what a table asks a model for, as class indices or numbers, read off one of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.data.arrow import short
from assay.data.cells import Cells, cells_of, refuse_mixed_words
from assay.data.plain_file import some
from assay.errors import AssayError

Asked = Literal["classification", "regression"]
FEW = 20
"""Different whole numbers up to which they are taken for classes."""
MOST_CLASSES = 1000


@dataclass(frozen=True)
class Target:
    """`labels` are int64 class indices, `classes` their names; or float32 numbers, and `classes` is None."""

    name: str
    labels: NDArray[Any]  # n
    classes: tuple[str, ...] | None

    @classmethod
    def of(
        cls,
        name: str,
        column: Any,
        *,
        classes: Sequence[str] | None = None,
        task: Asked | None = None,
        constant: bool = False,
    ) -> Target:  # pyarrow.ChunkedArray
        """The target of every row; `classes` in the model's order where they are given, else sorted.

        Words, booleans and few different whole numbers are classes unless `task` says otherwise. `constant` allows one
        value alone, as in a part of a set.
        """
        if task not in (None, "classification", "regression"):
            raise AssayError(f"task is {task!r}; give 'classification', 'regression' or nothing.")
        if classes is not None and task == "regression":
            raise AssayError("A regression has no classes; leave `classes` or `task` out.")
        cells = cells_of(name, column)
        if cells.gone.all():
            raise AssayError(f"The target {short(name)} has no value in any row; give the column that holds it.")
        if cells.gone.any():
            row = int(cells.gone.argmax())
            raise AssayError(f"The target {short(name)} has no value in row {row}; fill it or drop the row.")
        different = np.unique(cells.values)
        if len(different) == 1 and not constant:
            raise AssayError(
                f"The target {short(name)} is {cells.told(0)} in every row; there is nothing to tell apart."
            )
        whole = bool((different == np.round(different)).all())
        if task is None:
            few = cells.sort == "whole numbers" and len(different) <= FEW
            named = classes is not None or cells.sort in ("words", "booleans") or few
            task = "classification" if named else "regression"
        if task == "regression":
            if cells.sort == "words":
                refuse_mixed_words(cells)
                raise AssayError(f"The target {short(name)} holds words ({cells.told(0)}); a regression needs numbers.")
            return cls(name, cells.values.astype(np.float32), None)
        if not whole:
            row = int(np.flatnonzero(cells.values != np.round(cells.values))[0])
            raise AssayError(
                f"The target {short(name)} has {cells.told(row)} in row {row}; classes are words or whole numbers. "
                "For numbers, leave `classes` and `task` out."
            )
        if cells.sort == "words":
            refuse_mixed_words(cells)
        return cls(name, *_classed(cells, different, classes))

    def told(self) -> str:
        """The target in one line."""
        if self.classes is None:
            y = self.labels
            return (
                f"The target {short(self.name)} is a number, from {y.min():g} to {y.max():g}, on average {y.mean():g}."
            )
        counts = np.bincount(self.labels, minlength=len(self.classes)) / len(self.labels)
        shares = [f"{short(c)} {share:.1%}" for c, share in zip(self.classes[:8], counts, strict=False)]
        more = ", ..." if len(self.classes) > 8 else ""
        return f"The target {short(self.name)} has {len(self.classes)} classes: {', '.join(shares)}{more}."


def _classed(
    cells: Cells, different: NDArray[np.float64], classes: Sequence[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The label of each row, and the names of the classes."""
    if len(different) > MOST_CLASSES:
        raise AssayError(
            f"The target {short(cells.name)} has {len(different):,} different values, more than {MOST_CLASSES:,} "
            "classes; give the column that holds the class, or numbers for a regression."
        )
    found = [_name(cells, value) for value in different]
    names = tuple(found) if classes is None else tuple(str(c) for c in classes)
    place = {name: k for k, name in enumerate(names)}
    if len(place) < len(names):
        raise AssayError(f"Two classes have one name among {some(names)}; name each once.")
    strange = next((k for k, name in enumerate(found) if name not in place), None)
    if strange is not None:
        row = int((cells.values == different[strange]).argmax())
        raise AssayError(
            f"The target {short(cells.name)} is {short(found[strange])} in row {row}, not among the classes "
            f"{some(names)}; name every class, or mend the row."
        )
    code = np.array([place[name] for name in found], dtype=np.int64)
    return code[np.searchsorted(different, cells.values)], names


def _name(cells: Cells, value: float) -> str:
    if cells.sort == "booleans":
        return "true" if value else "false"
    return cells.words[int(value)] if cells.sort == "words" else str(int(value))
