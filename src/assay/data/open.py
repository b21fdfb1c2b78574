"""Open a data set by what its path is."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from assay.data.arrays import UNIT
from assay.data.arrow import MOST_LINE, read_columns
from assay.data.arrow import SUFFIXES as TABLES
from assay.data.image_folder import ImageFolder, class_folders
from assay.data.npz import Npz, npz_has_labels
from assay.data.parquet import Parquet, names_in_parquet
from assay.data.plain_file import open_plain
from assay.data.table import Table
from assay.data.target import Asked
from assay.data.texts import Texts, Tokenizer, holds_texts
from assay.errors import AssayError


def open_data(
    path: str | Path,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    *,
    pixels: tuple[float, float] = UNIT,
    target: str | None = None,
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    train: str | Path | None = None,
    task: Asked | None = None,
    classes: Sequence[str] | None = None,
    images: bool = True,
    chosen: bool = True,
    labelled: bool = True,
) -> ImageFolder | Npz | Parquet | Table | Texts:
    """A folder of images or texts, an .npz file, a .parquet file of images, or a table (.csv, .parquet, .jsonl).

    `size` and `channels` bring encoded images to one form; their 8-bit pixels are brought from 0..255 to `pixels`.
    `target` names the column to predict, which makes a table of a file, and `text` the column of its texts; `train` is
    the file that a model of tables was trained on, whose columns, codes and medians are taken. Arrays of three axes are
    `images`, or else series, and targets in arrays are classes where one of them is `chosen`. What nobody `labelled`
    has inputs alone (see `has_labels`), and its labels are zeros.
    """
    path = Path(path)
    if not path.exists():
        raise AssayError(f"There is nothing at {path}; give the path of an existing folder or file.")
    suffix = path.suffix.lower()
    formed = size is not None or channels is not None
    if path.is_dir() and (text is not None or holds_texts(path)):
        return Texts(path, tokenizer=tokenizer, classes=classes)
    if not path.is_dir() and (suffix in (".csv", ".jsonl") or (suffix == ".parquet" and target is not None)):
        if target is None:
            raise AssayError(f"{path} is a table; name the column that a model should predict: --target COLUMN.")
        if formed:
            raise AssayError(f"{path} is a table, it holds no images; leave size and channels out.")
        if text is not None:
            return Texts(path, target, text=text, tokenizer=tokenizer, classes=classes, task=task)
        if train is None:
            return Table(path, target, classes=classes, task=task)
        return Table(train, target, classes=classes, task=task).like(path)
    if target is not None or text is not None or train is not None:
        raise AssayError(f"{path} is no table; leave target, text and train out, or give a .csv, .parquet or .jsonl.")
    if path.is_dir():
        return ImageFolder(path, size, channels, pixels=pixels, labelled=labelled)
    if suffix == ".parquet":
        return Parquet(path, size, channels, pixels=pixels, labelled=labelled)
    if suffix != ".npz":
        raise AssayError(
            f"{path} is no data set that can be opened; give a folder with one sub-folder of images per class, "
            "an .npz file with x and y, a .parquet file with image and label, or a table (.csv) and its target."
        )
    if formed:
        raise AssayError(f"{path} holds plain numbers, not encoded images; leave size and channels out.")
    return Npz(path, pixels=pixels, images=images, chosen=chosen, labelled=labelled)


def has_labels(path: str | Path, target: str | None = None) -> bool:
    """Whether what lies there has labels: class folders, an array of them, the column `target` or 'label'.

    What is not there or cannot be read has some, as far as this goes: who opens it says what is wrong.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        return bool(class_folders(path))
    if not path.exists():
        return True
    if suffix == ".npz":
        return npz_has_labels(path)
    if suffix == ".parquet" and target is None:
        return "label" in names_in_parquet(path)
    if suffix not in TABLES or target is None:
        return True
    names = _header(path) if suffix == ".csv" else read_columns(path).column_names
    return target in names


def _header(path: Path) -> list[str]:
    """The names of the columns of a CSV, which stand on its first line."""
    with open_plain(path) as file:
        line = file.readline(MOST_LINE).decode("utf-8-sig", errors="replace")
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=max(",;\t", key=line.count)), [])
    except csv.Error:  # a name longer than any: told by who opens it
        return []
