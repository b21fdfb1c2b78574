"""Attribute: something about the people behind the inputs (sex, origin, who), beside the label; no model reads it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.arrow import find, read_columns, short
from assay.data.cells import cells_of
from assay.data.column import Column
from assay.data.npz import read_npy
from assay.data.plain_file import open_plain, some
from assay.errors import AssayError

LEAST = 30
"""Inputs of a group, below which no number about it is worth telling."""
MOST = 30  # values: more are no groups
FEW = 8  # values of a column of numbers that are taken for names
CUT = re.compile(r"(?P<name>.+?)\s*(?P<sign><=|>=|<|>)\s*(?P<at>-?\d+(?:\.\d+)?)")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
OTHERS = {"<": ">=", ">=": "<", "<=": ">", ">": "<="}


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute by name: what it can be, and by split what each row is, as its place among `values`.

    A code of -1 is unknown. A split that `codes` do not have is unknown in all its rows.
    """

    name: str
    values: tuple[str, ...]
    codes: Mapping[str, NDArray[np.int64]] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.name or len(self.name.splitlines()) != 1:
            raise AssayError(f"An attribute cannot be named {short(self.name)}; give it a name of one line.")
        if len(self.values) < 2:
            only = f"one value, {self.values[0]!r}" if self.values else "no value"
            raise AssayError(f"The attribute {self.name!r} has {only}; give one that parts the rows into groups.")
        if len(self.values) > MOST:
            raise AssayError(
                f"The attribute {self.name!r} has {len(self.values):,} values, more than {MOST}; join some, or cut "
                "numbers, as in age<25."
            )
        if len(set(self.values)) < len(self.values):
            raise AssayError(f"The attribute {self.name!r} has one value twice among {some(self.values)}; join them.")
        for split, codes in self.codes.items():
            if codes.ndim != 1 or codes.dtype.kind != "i":
                raise AssayError(
                    f"The codes of {self.name!r} in {split!r} are {codes.dtype} of shape {codes.shape}; give one whole "
                    "number for each row, its place among the values, or -1."
                )
            if len(codes) and not (codes.min() >= -1 and codes.max() < len(self.values)):
                wrong = codes[(codes < -1) | (codes >= len(self.values))][0]
                raise AssayError(
                    f"The code {wrong} of {self.name!r} in {split!r} is none of its {len(self.values)} values; -1 is "
                    "unknown."
                )

    @classmethod
    def of(cls, name: str, given: Any, *, cut: str | None = None) -> Attribute:
        """What was given for each row: words, whole numbers or booleans, by split, or an array of those of 'test'.

        None, NaN and empty words are unknown. A `cut` such as "<25" makes two groups of numbers.
        """
        splits = given if isinstance(given, Mapping) else {"test": given}
        if not splits:
            raise AssayError(f"The attribute {name!r} is given for no split; give {{'test': one value for each row}}.")
        told = {str(split): _words(name, str(split), each, cut) for split, each in splits.items()}
        seen = {word for words in told.values() for word in words.tolist() if word}
        values = _in_order(seen)
        if len(values) > MOST:  # told before a place is looked up for each
            return cls(name, values, {})
        place = {"": -1, **{value: k for k, value in enumerate(values)}}
        codes = {}
        for split, words in told.items():
            unique, inverse = np.unique(words, return_inverse=True)
            codes[split] = np.array([place[word] for word in unique.tolist()], dtype=np.int64)[inverse.reshape(-1)]
        return cls(name, values, codes)

    def counts(self, split: str) -> dict[str, int]:
        """How many rows of a split have each value, in the order of `values`."""
        codes = self.codes[split]
        found = np.bincount(codes[codes >= 0], minlength=len(self.values))
        return dict(zip(self.values, found.tolist(), strict=True))

    def told(self) -> str:
        """The values with their counts, split by split."""
        parts = []
        for split, codes in self.codes.items():
            seen = [f"{value} {n:,}" for value, n in self.counts(split).items()]
            unknown = int((codes < 0).sum())
            parts.append(f"{split} {', '.join(seen)}{f', unknown {unknown:,}' if unknown else ''}")
        return f"{self.name}: {'; '.join(parts)}"

    def note(self) -> str | None:
        """A sentence where groups of the test data are too small to say anything about."""
        few = {value: n for value, n in self.counts("test").items() if n < LEAST} if "test" in self.codes else {}
        if not few:
            return None
        told = ", ".join(f"{value} ({n})" for value, n in few.items())
        one = len(few) == 1
        return (
            f"{'A group' if one else 'Groups'} of {self.name!r} {'has' if one else 'have'} fewer than {LEAST} test "
            f"inputs, too few to tell anything about: {told}."
        )


class Shown(NamedTuple):
    """Where an input shows an attribute: its places, and what stands there for each value."""

    places: tuple[int, ...]
    states: tuple[tuple[float, ...], ...]


def shown_in(attribute: Attribute, columns: Sequence[Column]) -> Shown | None:
    """Where rows of these columns show an attribute: in one of its name, or in one for each value, as in sex=female.

    None where they do not, or where what stands there is not one of its values in words.
    """
    at = {column.name: place for place, column in enumerate(columns)}
    if attribute.name in at:
        column = columns[at[attribute.name]]
        known: dict[str, float] = {word: float(code) for code, word in enumerate(column.categories)}
        if column.type == "boolean":
            known = {"false": 0.0, "true": 1.0, "0": 0.0, "1": 1.0}
        elif column.type != "category":
            known = {value: float(value) for value in attribute.values if NUMBER.fullmatch(value)}
        if any(value not in known for value in attribute.values):
            return None
        return Shown((at[attribute.name],), tuple((known[value],) for value in attribute.values))
    parts = [f"{attribute.name}={value}" for value in attribute.values]
    if any(part not in at for part in parts):
        return None
    return Shown(tuple(at[part] for part in parts), tuple(map(tuple, np.eye(len(parts)).tolist())))


def parted(word: str) -> tuple[str, str | None]:
    """The column in a word of --sensitive, and the cut through its numbers where there is one: ("age", "<25")."""
    found = CUT.fullmatch(word)
    return (word, None) if found is None else (found["name"], f"{found['sign']}{found['at']}")


def column_of(name: str, column: Any, cut: str | None, few: int = FEW) -> NDArray[Any]:  # pyarrow.ChunkedArray -> n
    """The cells of a column of a table as `Attribute.of` takes them; numbers of more than a few values need a cut."""
    cells = cells_of(name, column)
    if cells.sort == "words":
        words: NDArray[Any] = np.array([*cells.words, ""])[np.where(cells.gone, -1, cells.values).astype(np.int64)]
        return words
    if cells.sort == "booleans":
        return np.where(cells.gone, "", np.where(cells.values > 0, "true", "false"))
    numbers = np.where(cells.gone, np.nan, cells.values)
    different = len(np.unique(cells.there))
    if cut is None and different > few:
        middle = float(np.median(cells.there))
        raise AssayError(
            f"The column {short(name)} has {different:,} different numbers; part them with a cut, such as "
            f"{name}<{middle:g}."
        )
    return numbers


def group_file(path: Path) -> Any:
    """The values of a .npy file, or of a .csv, .parquet or .jsonl file with one column, one for each row.

    The first line of a .csv is its name. An empty line before the last is somebody of whom nothing is known.
    """
    if path.suffix.lower() == ".npy":
        return read_npy(path)
    table = read_columns(path)
    names = table.column_names
    if len(names) != 1:
        raise AssayError(f"{path} has {len(names)} columns ({some(names)}); give one, the group of each row.")
    values = column_of(names[0], find(table, names[0], "column", str(path)), None, few=MOST)
    if path.suffix.lower() != ".csv":
        return values
    if names[0] in _words(names[0], "test", values, None):
        raise AssayError(
            f"{path} begins with {short(names[0])}, which is one of its values too; its first line is taken for a "
            "name, so write one above it."
        )
    return _with_blanks(path, values)


def _with_blanks(path: Path, values: NDArray[Any]) -> NDArray[Any]:  # m -> n
    """The values with an unknown one for each empty line, which a reader of tables leaves out."""
    with open_plain(path) as file:
        lines = [line.strip(b"\r\n") for line in file]
    there = np.array([bool(line) for line in lines])
    places = np.flatnonzero(there)
    if len(places) != len(values) + 1:  # a cell of several lines: no line is a row
        return values
    out = np.full(places[-1] - places[0], np.nan if values.dtype.kind == "f" else "", dtype=values.dtype)
    out[places[1:] - places[0] - 1] = values
    return out


def refuse_label(attribute: Attribute, labels: NDArray[Any], split: str) -> None:  # n
    """Refuse an attribute that goes one to one with the labels: it is what the model is asked for."""
    codes = attribute.codes[split]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (codes >= 0).sum() < LEAST:
        return
    labels, codes = labels[codes >= 0], codes[codes >= 0]
    pairs = len(np.unique(np.stack([codes, labels], 1), axis=0))
    if pairs == len(np.unique(codes)) == len(np.unique(labels)) > 1:
        raise AssayError(
            f"The attribute {attribute.name!r} is the label: each of its values goes with one class; give something "
            "else about the people."
        )


def by_name(given: Any, splits: Collection[str]) -> dict[str, Attribute]:
    """What was given as attributes, by name: each an `Attribute`, or values by split, or those of 'test'."""
    if not isinstance(given, Mapping):
        raise AssayError(f"The attributes are a {type(given).__name__}; give a mapping, such as {{'sex': array}}.")
    found = {
        str(name): each if isinstance(each, Attribute) else Attribute.of(str(name), each)
        for name, each in given.items()
    }
    for name, attribute in found.items():
        if attribute.name != name:
            raise AssayError(f"The attribute {attribute.name!r} is given as {name!r}; call it by its name.")
        if strange := [split for split in attribute.codes if split not in splits]:
            raise AssayError(
                f"The attribute {name!r} is given for {strange[0]!r}, which is no split; there are {some([*splits])}."
            )
    return found


def _words(name: str, split: str, given: Any, cut: str | None) -> NDArray[np.str_]:  # -> n
    """Each row's value in words, "" where it is unknown."""
    cells = np.asarray(given)
    if cells.ndim != 1:
        raise AssayError(
            f"The attribute {name!r} has shape {cells.shape} in {split!r}; give one value for each row, shape (n,)."
        )
    if cut is not None:
        return _cut(name, cells, cut)
    if cells.dtype.kind == "b":
        return np.where(cells, "true", "false")
    if cells.dtype.kind in "iu":
        return cells.astype(str)
    if cells.dtype.kind == "f":
        gone = np.isnan(cells)
        different = np.unique(cells[~gone])
        if len(different) > FEW and (different != np.round(different)).any():
            raise AssayError(
                f"The attribute {name!r} has {len(different):,} different numbers; give groups, such as x < "
                f"{np.median(different):g}."
            )
        unique, inverse = np.unique(np.where(gone, 0.0, cells), return_inverse=True)
        words = np.array([f"{value:.12g}" for value in unique])[inverse.reshape(-1)]
        return np.where(gone, "", words)
    return np.char.strip(np.array([_word(cell) for cell in cells.tolist()], dtype=str))


def _word(cell: Any) -> str:
    """A cell in words, "" for None, NaN and pandas' NA, which nobody may ask whether it is itself."""
    if cell is None or type(cell).__name__ == "NAType" or cell != cell:
        return ""
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)


def _cut(name: str, cells: NDArray[Any], cut: str) -> NDArray[np.str_]:  # n -> n
    if cells.dtype.kind not in "iuf":
        raise AssayError(f"The column {name!r} holds words, and {name}{cut} cuts numbers; leave the cut out.")
    sign = cut.rstrip("-.0123456789")
    at = float(cut[len(sign) :])
    numbers = cells.astype(np.float64)
    below = {"<": numbers < at, ">=": numbers < at, "<=": numbers <= at, ">": numbers <= at}[sign]
    low, high = (sign, OTHERS[sign]) if sign in ("<", "<=") else (OTHERS[sign], sign)
    words = np.where(below, f"{name}{low}{at:g}", f"{name}{high}{at:g}")
    return np.where(np.isnan(numbers), "", words)


def _in_order(words: Collection[str]) -> tuple[str, ...]:
    """Numbers by size, words by the alphabet."""
    try:
        return tuple(sorted(words, key=lambda word: (float(word), word)))
    except ValueError:
        return tuple(sorted(words))
