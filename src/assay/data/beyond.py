"""Data sets beyond the bundled sample, read from the folder that the environment variable ASSAY_DATA names."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.arrays import Arrays
from assay.data.fashion import CLASSES as FASHION
from assay.data.idx import read_idx
from assay.data.parquet import Parquet
from assay.errors import AssayError


class Table(NamedTuple):
    """Rows of numbers with a class each."""

    x: NDArray[np.float32]  # n d
    y: NDArray[np.int64]  # n
    columns: tuple[str, ...]  # d names


def assay_data() -> Path | None:
    """The folder that ASSAY_DATA names, or None where it is not set."""
    named = os.environ.get("ASSAY_DATA")
    return Path(named) if named else None


def mnist() -> dict[str, Arrays]:
    """MNIST, `train` 60,000 and `test` 10,000 grey digits n 1 28 28 (LeCun et al. 1998)."""
    return idx_pair("mnist", tuple("0123456789"))


def fashion_mnist() -> dict[str, Arrays]:
    """All of Fashion-MNIST, `train` 60,000 and `test` 10,000, n 1 28 28 (Xiao et al. 2017, arXiv:1708.07747)."""
    return idx_pair("fashion-mnist", FASHION)


def cifar10() -> dict[str, Arrays]:
    """CIFAR-10, `train` 50,000 and `test` 10,000, n 3 32 32 (Krizhevsky 2009), from a JPEG copy: not bit-equal."""
    return {part: decode_all(entry("cifar-10", f"{part}.parquet")) for part in ("train", "test")}


def imagenet_sample() -> Parquet:
    """One ImageNet image per class, 1000 centre crops n 3 256 256 in the standard order of classes, streamed."""
    path = entry("imagenet-sample", "val.parquet")
    return Parquet(path, channels=3, classes=class_names(path))


def tabular(name: str) -> Table:
    """A table by name; numbers stay in their own units, and a category becomes one 0/1 column `column=value` per value.

    - `adult` (Kohavi 1996): income over 50K is class 1. Without fnlwgt, a survey weight, and education, which
      education-num repeats. A missing value (?) is a value of its own.
    - `compas` (Larson et al., ProPublica 2016): reoffence within two years is class 1. Their filter is kept: arrest
      within 30 days of the screening, is_recid known, no ordinary traffic offence, a score given. Without the scores.
    - `letter` (Frey and Slate 1991): 16 numbers from 0 to 15, 26 letters.
    - `pendigits` (Alpaydin and Alimoglu 1998): 8 pen positions x, y from 0 to 100, 10 digits.
    """
    readers: Mapping[str, Callable[[], Table]] = {
        "adult": adult,
        "compas": compas,
        "letter": lambda: numbered("letter.csv.gz"),
        "pendigits": lambda: numbered("pendigits.csv.gz"),
    }
    if name not in readers:
        raise AssayError(f"There is no table {name!r}; choose one of {', '.join(readers)}.")
    return readers[name]()


def adult() -> Table:
    rows = read_csv("adult.csv.gz")
    numbers = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
    kinds = ("workclass", "marital-status", "occupation", "relationship", "race", "sex", "native-country")
    return encode(rows, numbers, kinds, [int(row["income-per-year"].startswith(">50K")) for row in rows])


def compas() -> Table:
    def kept(row: Mapping[str, str]) -> bool:
        days = row["days_b_screening_arrest"]
        near = days != "" and abs(float(days)) <= 30
        return near and row["is_recid"] != "-1" and row["c_charge_degree"] != "O" and row["score_text"] != "N/A"

    rows = [row for row in read_csv("propublica-recidivism.csv.gz") if kept(row)]
    numbers = ("age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count")
    return encode(rows, numbers, ("sex", "race", "c_charge_degree"), [int(row["two_year_recid"]) for row in rows])


def numbered(file: str) -> Table:
    """A table of numbers with a row number in an unnamed first column and the class, by name, in the last."""
    rows = read_csv(file)
    _, y = np.unique([row["class"] for row in rows], return_inverse=True)
    return encode(rows, [name for name in rows[0] if name not in ("", "class")], (), y.tolist())


def encode(rows: Sequence[Mapping[str, str]], numbers: Sequence[str], kinds: Sequence[str], y: Sequence[int]) -> Table:
    """Numbers as they are, then one 0/1 column for each value that each of `kinds` takes, in sorted order."""
    parts, columns = [np.array([[float(row[name]) for name in numbers] for row in rows])], list(numbers)
    for kind in kinds:
        values, which = np.unique([row[kind] for row in rows], return_inverse=True)
        parts.append(np.eye(len(values))[which])
        columns += [f"{kind}={value}" for value in values]
    return Table(np.concatenate(parts, 1, dtype=np.float32), np.asarray(y, dtype=np.int64), tuple(columns))


def read_csv(file: str) -> list[dict[str, str]]:
    """The rows of a gzipped CSV with a header line; of two columns with one name the last is kept."""
    with gzip.open(entry("tabular", file), "rt", encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def idx_pair(folder: str, classes: tuple[str, ...]) -> dict[str, Arrays]:
    """`train` and `test` from the four standard files."""
    return {
        part: Arrays(
            read_idx(entry(folder, f"{prefix}-images-idx3-ubyte.gz"))[:, None],  # n 28 28 -> n 1 28 28
            read_idx(entry(folder, f"{prefix}-labels-idx1-ubyte.gz")),
            classes,
        )
        for part, prefix in (("train", "train"), ("test", "t10k"))
    }


@cache  # 60,000 JPEGs take seconds to decode
def decode_all(path: Path) -> Arrays:
    """Every image of a Parquet file as uint8."""
    data = Parquet(path, classes=class_names(path))
    x = np.empty((len(data), *data.shape), dtype=np.uint8)
    for rows in np.array_split(np.arange(len(data)), max(1, len(data) // 1000)):
        x[rows] = (data.take(rows)[0] * 255).round().numpy()
    return Arrays(x, data.labels, data.classes)


def class_names(path: Path) -> tuple[str, ...]:
    """The names in column `name`, in the order of the labels."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["label", "name"])
    named = dict(zip(table["label"].to_pylist(), table["name"].to_pylist(), strict=True))
    return tuple(named[label] for label in sorted(named))


WATCHED: list[Callable[[Path], None]] = []
"""Told of every file of ASSAY_DATA that is looked for and there: how a record comes to know its data."""


def entry(folder: str, file: str) -> Path:
    """A file in ASSAY_DATA, or a line that says how to have it."""
    root = assay_data()
    if root is None:
        raise AssayError(f"ASSAY_DATA is not set; set it to a folder that holds {folder}/{file}.")
    path = root / folder / file
    if not path.is_file():
        raise AssayError(f"There is no {folder}/{file} in ASSAY_DATA={root}; put it there or set ASSAY_DATA anew.")
    for told in WATCHED:
        told(path)
    return path
