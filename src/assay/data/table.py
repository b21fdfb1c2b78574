"""A table with a target: a .csv or .parquet file, or a data frame. A number for each column is what a model is shown.

Types are read off the cells and told in sentences, as is all that was done on the way: ids left out, gaps filled, and
columns that give the target away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrow import MOST_COLUMNS, columns_of_frame, find, read_columns, short
from assay.data.cells import Cells, cells_of, refuse_mixed_words
from assay.data.column import WHOLE, Column
from assay.data.digest import of_files
from assay.data.plain_file import MOST_UNPACKED, some
from assay.data.target import Asked, Target
from assay.errors import AssayError

Encoding = Literal["codes", "one-hot"]
MISSING = "(missing)"  # the category of cells without one
MOST_CATEGORIES = 1000
LEAK = 0.999  # of a correlation with the target
LEAST = 8  # rows below which a correlation shows nothing


class Table:
    """The rows of a table with their targets, as float32 numbers: numbers as they are, booleans as 0 and 1, categories
    as their places among the sorted ones (`encode="codes"`) or as a 0 or 1 for each (`"one-hot"`).

    `columns` are those that the model is shown, in its order: all but the target and ids unless given. `categories`
    names columns that are some whatever they look like (a postcode). Where cells are missing a number is the median, a
    category one of its own. `classes` and `task` are as for `Target`. What `train` is given, a table, decides all but
    the cells: its columns, codes, medians and classes; see `like`. Rows that nobody `labelled` need no target, and have
    zeros. The column `apart` says where rows come from, and is shown to no model that does not name it. Columns named
    `beside` are kept as they are, whether a model is shown them or not.
    """

    def __init__(
        self,
        source: Any,
        target: str,
        *,
        classes: Sequence[str] | None = None,
        task: Asked | None = None,
        encode: Encoding = "codes",
        columns: Sequence[str] | None = None,
        categories: Sequence[str] = (),
        train: Table | None = None,
        labelled: bool = True,
        apart: str | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        if encode not in ("codes", "one-hot"):
            raise AssayError(f"encode is {encode!r}; give 'codes' or 'one-hot'.")
        self.path = Path(source) if isinstance(source, str | Path) else None
        where = "The frame" if self.path is None else str(self.path)
        words = categories if train is None else [c.name for c in train.source if c.type == "category"]
        if self.path is None:
            table = columns_of_frame(source)
            self.content = _content(table)
        else:
            table = read_columns(self.path, words)
        if labelled:
            asked = find(table, target, "target column", where)
            self.target = Target.of(target, asked, classes=classes, task=task, constant=train is not None)
        else:
            self.target = Target(target, np.zeros(table.num_rows, dtype=np.int64), None)
        self.apart = apart
        self.origins = _told(table.column(apart)) if apart in table.column_names else None
        """What each row has in the column `apart`, in words, None where the cell is empty."""
        self.names: tuple[str, ...] = tuple(table.column_names)
        self.beside = {name: table.column(name) if name in self.names else None for name in beside}
        """Columns as Arrow has them; None where the table has none of that name."""
        self.encoding: Encoding = encode
        self.notes: list[str] = []
        """What a reader should know of the columns, in sentences."""
        self.lines: list[str] = []
        self.source: tuple[Column, ...] = ()
        """The columns of the table that the model is shown."""
        for name in (*categories, *(columns or ())):
            find(table, name, "column", where)
        shown = [name for name in columns or table.column_names if name != target and (columns or name != apart)]
        if columns is not None and (len(shown) < len(columns) or len(set(shown)) < len(shown)):
            raise AssayError(f"`columns` names the target or a column twice ({some(list(columns))}); name each once.")
        values = self._fitted(table, shown, set(words), columns is not None) if train is None else None
        if train is not None:
            self.source = train.source
            values = [self._applied(c, find(table, c.name, "column", where)) for c in train.source]
        assert values is not None
        self.columns: tuple[Column, ...] = tuple(c for column in self.source for c in self._parts(column))
        """What each number of an input is: `Row(table.columns)` is its kind."""
        self.x = self._numbers(values, where)
        if train is None and any(c.categories for c in self.source) and encode == "codes":
            self.notes.append("The code of a category is its place among the sorted ones of this table.")

    @classmethod
    def of(cls, frame: Any, target: str, **told: Any) -> Table:
        """A data frame of pandas, polars or pyarrow, or a dict of columns."""
        return cls(frame, target, **told)

    def like(self, source: Any, *, labelled: bool = True) -> Table:
        """Another file or frame read as this one, which was trained on, is: the same columns, codes, medians, classes.

        A category that this one does not have is refused. `labelled` says whether it has the target.
        """
        classes = self.target.classes
        asked: Asked = "classification" if classes is not None else "regression"
        return Table(
            source, self.target.name, classes=classes, task=asked, encode=self.encoding, train=self, labelled=labelled,
            apart=self.apart, beside=tuple(self.beside),
        )  # fmt: skip

    @property
    def labels(self) -> NDArray[Any]:
        return self.target.labels

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.target.classes

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k d, k
        """Rows as float32, with int64 class indices or float32 numbers."""
        return torch.from_numpy(self.x[indices]), torch.from_numpy(self.labels[indices])

    def fingerprint(self) -> str:
        """A hash of every cell, and of how the table is read."""
        settings = f"Table {self.target.name!r} {self.classes} {self.labels.dtype} {self.encoding} {self.source}"
        if self.path is not None:
            return of_files(self.path.parent, [self.path], settings)
        return hashlib.sha256(f"{settings} {self.content}".encode()).hexdigest()

    def described(self) -> list[str]:
        """What was understood: a line for the target, one for each column, and what is to be known of them."""
        return [self.target.told(), *self.lines, *self.notes]

    def _fitted(self, table: Any, names: list[str], words: set[str], wanted: bool) -> list[NDArray[np.float64]]:
        """Read off each column what it is; ids and empty ones are left out unless they are wanted."""
        source, values = [], []
        for name in names:
            cells = cells_of(name, table.column(name), as_words=name in words)
            if cells.gone.all():
                if wanted:
                    raise AssayError(f"The column {short(name)} holds nothing; leave it out.")
                self.notes.append(f"{short(name)} holds nothing; it is left out.")
                continue
            if cells.sort == "words" and name not in words:
                refuse_mixed_words(cells)
            sort = None if wanted or name in words else _id(cells)
            if sort is not None:
                self.notes.append(f"{short(name)} is another {sort} in every row: an id, left out.")
                continue
            column = _column(cells)
            encoded = _encoded(cells, column)
            source.append(column)
            values.append(encoded)
            self.lines.append(_line(column, cells))
            self.notes += _filled(column, cells)
            if column.low == column.high:
                self.notes.append(f"{short(name)} is {short(column.told(column.low))} in every row.")
            leak = _leak(column, encoded, self.target)
            if leak:
                self.notes.append(leak)
        if not source:
            raise AssayError(
                f"Nothing is left of the columns {some(names)} to show a model; name those that it takes in `columns`."
                if names
                else "The table has no column beside the target; give those that the model takes."
            )
        self.source = tuple(source)
        return values

    def _applied(self, column: Column, found: Any) -> NDArray[np.float64]:
        """A column read as another one of its name was, which was trained on."""
        cells = cells_of(column.name, found, as_words=column.type == "category")
        encoded = _encoded(cells, column)
        self.lines.append(_line(column, cells))
        self.notes += _filled(column, cells, " here")
        low, high = encoded.min(), encoded.max()
        if low < column.low or high > column.high:
            self.notes.append(
                f"{short(column.name)} runs from {low:g} to {high:g} here, and from {column.low:g} to {column.high:g} "
                "in training."
            )
        return encoded

    def _parts(self, column: Column) -> tuple[Column, ...]:
        if self.encoding == "codes" or column.type != "category":
            return (column,)
        made = replace(column, type="boolean", low=0, high=1, categories=())
        return tuple(
            replace(made, name=f"{column.name}={word}", usual=float(k == column.usual))
            for k, word in enumerate(column.categories)
        )

    def _numbers(self, values: list[NDArray[np.float64]], where: str) -> NDArray[np.float32]:  # -> n d
        n, d = len(self.labels), len(self.columns)
        if d > MOST_COLUMNS or n * d * 4 > MOST_UNPACKED:
            raise AssayError(f"{where} becomes {n:,} rows of {d:,} numbers, more than are held at once; give a part.")
        x = np.zeros((n, d), dtype=np.float32)
        place = 0
        for column, encoded in zip(self.source, values, strict=True):
            width = len(self._parts(column))
            if self.encoding == "codes" or column.type != "category":
                x[:, place] = encoded
            else:
                x[np.arange(n), place + encoded.astype(np.int64)] = 1
            place += width
        return x


def _content(table: Any) -> str:  # pyarrow.Table
    """A hash of every cell of a frame."""
    import pyarrow as pa

    digest = hashlib.sha256()
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        batch = pa.table({name: column}).combine_chunks().to_batches()[0]
        digest.update(f"{name!r} {column.type}".encode())
        digest.update(batch.serialize())
    return digest.hexdigest()


def _told(column: Any) -> list[str | None]:  # pyarrow.ChunkedArray
    """The cells of a column in words."""
    return [
        None if cell is None or cell != cell else f"{cell:.12g}" if isinstance(cell, float) else str(cell)
        for cell in column.to_pylist()
    ]


def _id(cells: Cells) -> str | None:
    """What a column holds that only numbers the rows, else None: another word in each, or whole numbers in a run."""
    n = len(cells)
    if n < 2 or cells.gone.any():
        return None
    if cells.sort == "words":
        return "word" if len(cells.words) == n else None
    if cells.sort != "whole numbers" or np.ptp(cells.values) != n - 1:
        return None
    return "number of one run" if len(np.unique(cells.values)) == n else None


def _column(cells: Cells) -> Column:
    """What the cells show, as `Column.of` reads it; a gap is a category of its own, and no number is missing."""
    gaps = bool(cells.gone.any())
    words = cells.words if cells.sort == "words" else ("false", "true")
    if cells.sort == "words" or (cells.sort == "booleans" and gaps):
        if len(words) > MOST_CATEGORIES:
            raise AssayError(
                f"The column {short(cells.name)} has {len(words):,} categories, more than {MOST_CATEGORIES:,}; leave "
                "it out (`columns` names those that the model is shown), or open texts with their column as `text`."
            )
        if gaps and MISSING in words:
            raise AssayError(f"The column {short(cells.name)} has gaps and a category {MISSING!r}; rename that.")
        usual = float(np.bincount(cells.there.astype(np.int64)).argmax())
        names = (*words, MISSING) if gaps else words
        return Column(cells.name, "category", 0, len(names) - 1, usual, categories=names)
    there = cells.there
    if cells.sort == "booleans":
        return Column(cells.name, "boolean", 0, 1, float(there.mean() >= 0.5))
    low, high = float(there.min()), float(there.max())
    middle = (len(there) - 1) // 2
    usual = float(np.partition(there, middle)[middle])
    whole = cells.sort == "whole numbers" and max(abs(low), abs(high)) <= WHOLE
    return Column(cells.name, "integer" if whole else "number", low, high, usual, cells.unit)


def _encoded(cells: Cells, column: Column) -> NDArray[np.float64]:  # -> n
    """The cells as this column has them, without gaps."""
    name, gaps = short(column.name), np.flatnonzero(cells.gone)
    if column.type == "category":
        place = {word: float(k) for k, word in enumerate(column.categories)}
        words = cells.words if cells.sort == "words" else ("false", "true")
        codes = np.array([place.get(word, np.nan) for word in words])
        out: NDArray[np.float64] = codes[cells.values.astype(np.int64)]
        if len(gaps) and MISSING not in place:
            raise AssayError(f"The column {name} is empty in row {gaps[0]}, and none was in training; fill it.")
        out[gaps] = place.get(MISSING, np.nan)
        strange = np.flatnonzero(np.isnan(out))
        if len(strange):
            raise AssayError(
                f"The column {name} has the category {cells.told(int(strange[0]))} in row {strange[0]}, never seen in "
                f"training; known are {some(column.categories)}."
            )
        return out
    numbers = ("whole numbers", "numbers", "nothing")
    if cells.sort not in (("booleans", "nothing") if column.type == "boolean" else numbers):
        refuse_mixed_words(cells)
        row = int((~cells.gone).argmax())
        raise AssayError(
            f"The column {name} has {cells.told(row)} in row {row}; it was a column of type {column.type} in training."
        )
    if column.type == "boolean" and len(gaps):
        raise AssayError(f"The column {name} is empty in row {gaps[0]}, and none was in training; fill it.")
    out = np.where(cells.gone, column.usual, cells.values)
    broken = np.flatnonzero(out != np.round(out))
    if column.type == "integer" and len(broken):
        raise AssayError(
            f"The column {name} has {out[broken[0]]:g} in row {broken[0]}; it is a column of whole numbers."
        )
    return out


def _line(column: Column, cells: Cells) -> str:
    """A column in one line: name, type, range or categories, and what is missing."""
    if column.type == "category":
        told = f"{len(column.categories)} categories: {some([_brief(w) for w in column.categories])}"
    elif column.type == "boolean":
        told = "boolean"
    else:
        unit = f" {column.unit}" if column.unit else ""
        told = f"{column.type} from {column.low:g} to {column.high:g}{unit}, half are up to {column.usual:g}"
    gaps = float(cells.gone.mean())
    if not gaps:
        return f"{short(column.name)}: {told}."
    read = " and read as a category of their own" if column.type == "category" else ""
    return f"{short(column.name)}: {told}; {gaps:.1%} are missing{read}."


def _filled(column: Column, cells: Cells, where: str = "") -> list[str]:
    """A sentence where a model is shown a number that nobody measured."""
    gaps = float(cells.gone.mean())
    if not gaps or column.type == "category":
        return []
    return [
        f"{short(column.name)} is empty in {gaps:.1%} of the rows{where}, and the model is shown the median, "
        f"{column.usual:g}; one that takes empty cells gets them from Subject.of(..., kind=Row(...))."
    ]


def _brief(word: str) -> str:
    return word if len(word) <= 30 else word[:27] + "..."


def _leak(column: Column, values: NDArray[np.float64], target: Target) -> str | None:
    """A sentence where a column gives the target away: its values and the classes go one to one, or it correlates."""
    name, y = short(column.name), target.labels
    if target.classes is not None and column.low < column.high:
        kinds = int((np.bincount(y) > 0).sum())
        # more values than classes in the first rows: no need to sort them all
        if kinds < len(y) and len(np.unique(values[:1000])) <= kinds:
            different, places = np.unique(values, return_inverse=True)
            pairs = len(np.unique(places.astype(np.int64) * len(target.classes) + y))
            if pairs == len(different) == kinds:
                return (
                    f"{name} gives the target away: each of its {kinds} values goes with one class. Did the model see "
                    "it in training, and will it have it in use?"
                )
    if column.type != "category" and len(y) >= LEAST:
        a, b = values - values.mean(), y - y.mean(dtype=np.float64)
        size = float(np.sqrt((a @ a) * (b @ b)))
        if size > 0 and abs(float(a @ b)) > LEAK * size:
            return (
                f"{name} gives the target away: their correlation is {float(a @ b) / size:.4f}. Did the model see it "
                "in training, and will it have it in use?"
            )
    return None
