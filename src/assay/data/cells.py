"""Cells: one column of Arrow as numpy, with its sort: words, booleans, whole numbers or numbers. Dates are days."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.arrow import is_words, short
from assay.data.parquet import one_line
from assay.errors import AssayError

LARGEST = float(np.finfo(np.float32).max)
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY = 86_400


@dataclass(frozen=True)
class Cells:
    """`values` are numbers, or of words their places among the sorted `words`; where `gone` is True nothing counts."""

    name: str
    sort: str
    values: NDArray[np.float64]  # n
    gone: NDArray[np.bool_]  # n
    words: tuple[str, ...] = ()
    unit: str = ""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def there(self) -> NDArray[np.float64]:
        return self.values if not self.gone.any() else self.values[~self.gone]

    def told(self, row: int) -> str:
        """The cell as it is shown in a message."""
        if self.gone[row]:
            return "nothing"
        value = float(self.values[row])
        if self.sort == "booleans":
            return "true" if value else "false"
        return short(self.words[int(value)]) if self.sort == "words" else f"{value:g}"


def cells_of(name: str, column: Any, *, as_words: bool = False) -> Cells:  # pyarrow.ChunkedArray
    """The cells of a column; `as_words` takes whatever it holds for words."""
    import pyarrow as pa

    types, kind = pa.types, column.type
    if types.is_dictionary(kind) and not is_words(kind.value_type):
        column, kind = column.cast(kind.value_type), kind.value_type
    n = len(column)
    if types.is_null(kind):
        return Cells(name, "nothing", np.zeros(n), np.ones(n, dtype=bool))
    if is_words(kind) or types.is_dictionary(kind):
        return _words(name, column)
    if as_words:
        try:
            return _words(name, column.cast(pa.string()))
        except pa.ArrowException as error:
            raise AssayError(f"The column {short(name)} is {one_line(kind)}, no words; write them as text.") from error
    gone = column.is_null().to_numpy() if column.null_count else np.zeros(n, dtype=bool)
    unit, scale = "", 1.0
    if types.is_boolean(kind):
        return Cells(name, "booleans", _floats(column.cast(pa.int8())), gone)
    if types.is_integer(kind):
        return Cells(name, "whole numbers", _floats(column), gone)
    if types.is_date(kind) or types.is_timestamp(kind):
        unit = "days since 1970"
        scale = 1.0 if kind == pa.date32() else DAY * TICKS["ms" if kind == pa.date64() else kind.unit]
    elif types.is_time(kind) or types.is_duration(kind):
        unit, scale = "s", float(TICKS[kind.unit])
    elif types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif not types.is_floating(kind):
        raise AssayError(
            f"The column {short(name)} is {one_line(kind)}; give numbers, words, booleans or dates, or leave it out."
        )
    if unit:
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    values = _floats(column) / scale
    gone = gone | np.isnan(values)
    broken = np.flatnonzero(~gone & ~(np.abs(values) <= LARGEST))
    if len(broken):
        raise AssayError(
            f"The column {short(name)} has {values[broken[0]]:g} in row {broken[0]}, infinite in single precision; "
            "take it out or leave it empty."
        )
    # a gap makes floating point of whole numbers
    filled = np.where(gone, 0.0, values)
    whole = not unit and bool(gone.any() and not gone.all() and (filled == np.round(filled)).all())
    return Cells(name, "whole numbers" if whole else "numbers", filled, gone, unit=unit)


def refuse_mixed_words(cells: Cells) -> None:
    """Words most of which are numbers: name the first that is not one."""
    numeric = np.array([_is_number(word) for word in cells.words], dtype=bool)
    if not numeric.any() or numeric.all():
        return
    is_number = numeric[cells.values.astype(np.int64)] & ~cells.gone
    if is_number.sum() * 2 > (~cells.gone).sum():
        row = int(np.flatnonzero(~is_number & ~cells.gone)[0])
        raise AssayError(
            f"The column {short(cells.name)} mixes numbers ({cells.told(int(is_number.argmax()))}) and words: row "
            f"{row} is {cells.told(row)}; leave missing cells empty, or name it among `categories` if it holds some."
        )


def _floats(column: Any) -> NDArray[np.float64]:
    """Missing ones as 0."""
    import pyarrow as pa

    if column.null_count:
        column = column.fill_null(pa.scalar(0, column.type))
    return column.to_numpy().astype(np.float64)  # type: ignore[no-any-return]


def _words(name: str, column: Any) -> Cells:
    """Sorted by their characters, as Python sorts; an empty word is a missing cell."""
    import pyarrow as pa

    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    if isinstance(whole, pa.ChunkedArray):  # an older pyarrow keeps the chunks of a dictionary apart
        whole = whole.unify_dictionaries().chunk(0) if whole.num_chunks else pa.array([], whole.type)
    try:
        found: list[str | None] = whole.dictionary.to_pylist()
    except UnicodeDecodeError as error:
        raise AssayError(f"The column {short(name)} holds words that are not UTF-8; write it again.") from error
    indices = whole.indices
    gone = indices.is_null().to_numpy(zero_copy_only=False)
    codes = indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not found:
        return Cells(name, "nothing", np.zeros(len(codes)), np.ones(len(codes), dtype=bool))
    empty = np.array([not word for word in found], dtype=bool)
    gone = gone | empty[codes]
    used = np.bincount(codes[~gone], minlength=len(found)) > 0  # a category that no row has is none of this table
    words = sorted({word for word, seen in zip(found, used, strict=True) if seen and word})
    if not words:
        return Cells(name, "nothing", np.zeros(len(codes)), np.ones(len(codes), dtype=bool))
    place = {word: k for k, word in enumerate(words)}
    renumbered = np.array([place.get(word or "", 0) for word in found], dtype=np.float64)
    return Cells(name, "words", np.where(gone, 0.0, renumbered[codes]), gone, tuple(words))


def _is_number(word: str) -> bool:
    if not any(c.isdigit() for c in word):  # nan and infinity are words here
        return False
    try:
        float(word)
    except ValueError:
        return False
    return True
