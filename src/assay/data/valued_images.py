"""A folder of images with a number each, from a CSV file in it or from the names of the files."""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import as_inputs
from assay.data.digest import of_files
from assay.data.image import Form, check_form, check_same, decode
from assay.data.image_folder import SUFFIXES
from assay.data.plain_file import files_below, open_plain, read_plain, refuse_leading_out
from assay.data.rows_at import rows_at
from assay.errors import AssayError

MOST_TABLE = 64 * 2**20  # bytes of a CSV file
MOST_CELLS = 20_000_000  # short rows are filled up to the longest: one long row among many would make any number
CUT = 20170806  # any number, but never another one: what was trained on must not be tested on another day


class ValuedImages:
    """Images with a number each (`values`), decoded when they are taken; see `open_valued`."""

    def __init__(self, root: Path, paths: Sequence[Path], values: NDArray[np.float64], form: Form) -> None:
        self.root, self.paths, self.values, self.form = root, list(paths), values, form
        self.shape = decode(self.paths[0], str(self.paths[0]), form).shape  # c h w, of every image

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k c h w, k
        """Decode these images: float32 in [0, 1], and their numbers."""
        rows = rows_at(indices, len(self))
        each, where = np.unique(rows, return_inverse=True)  # pairs of few images name the same one again and again
        pixels = np.empty((len(each), *self.shape), dtype=np.uint8)
        for place, row in enumerate(each):
            path = self.paths[row]
            image = decode(path, str(path), self.form)
            check_same(str(path), image, self.shape, f"the first image {self.paths[0]}")
            pixels[place] = image
        return as_inputs(pixels[where]), torch.from_numpy(self.values[rows])

    def fingerprint(self) -> str:
        """A hash of names and contents, of the numbers, and of how images are brought to one form."""
        files = of_files(self.root, self.paths, f"ValuedImages {tuple(self.form)}")
        return hashlib.blake2b(files.encode() + self.values.tobytes(), digest_size=16).hexdigest()

    def rows(self, rows: NDArray[np.integer]) -> ValuedImages:
        """These images alone."""
        return ValuedImages(self.root, [self.paths[row] for row in rows], self.values[rows], self.form)

    def split(self, share: float) -> dict[str, ValuedImages]:
        """`train` and `test`, the latter with `share` of the images, drawn at random but always in the same way."""
        tested = round(share * len(self))
        if not 0 < tested < len(self):
            raise AssayError(
                f"{share:g} of {len(self)} images leaves {len(self) - tested} to train on and {tested} to test on; "
                "give a share between 0 and 1, and more images."
            )
        order = np.random.default_rng(CUT).permutation(len(self))
        return {"train": self.rows(np.sort(order[tested:])), "test": self.rows(np.sort(order[:tested]))}

    def marks(self) -> NDArray[np.int64]:  # n
        """A hash of each file's bytes, by which an image is known again under another name and in another folder."""
        digests = []
        for path in self.paths:
            with open_plain(path) as file:
                digests.append(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).digest())
        return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def open_valued(path: str | Path, size: tuple[int, int] | None = None, channels: int | None = None) -> ValuedImages:
    """The images of a folder and of the folders in it, with their numbers.

    Where the folder holds a CSV file, one column names the images (by their path in the folder, or by their name alone
    where no other image has it) and another gives the numbers: the only other column of numbers, or the one that is
    called `value`. A first row that names no image is a heading. Without a CSV the number is the digits before the
    first underscore of an image's name, as in UTKFace: 25_0_1_20170109.jpg has 25.

    `size` and `channels` are as for `ImageFolder`.
    """
    check_form(size, channels)
    root = Path(path)
    if not root.is_dir():
        raise AssayError(f"There is no folder {root}; give a folder of images with a number each.")
    paths = sorted(files_below(root, root, SUFFIXES))
    if not paths:
        raise AssayError(f"{root} holds no images ({' '.join(SUFFIXES)}); give a folder of images with a number each.")
    tables = sorted(p for p in root.iterdir() if p.suffix.lower() == ".csv" and p.name[0] != "." and p.is_file())
    if len(tables) > 1:
        names = " and ".join(table.name for table in tables)
        raise AssayError(f"{root} holds {len(tables)} CSV files, {names}; leave only the one with the numbers there.")
    for table in tables:
        refuse_leading_out(table, root)
    values = _numbers_of_table(tables[0], root, paths) if tables else [_number_of_name(found) for found in paths]
    form = Form(channels or len(decode(paths[0], str(paths[0]), None)), size)
    return ValuedImages(root, paths, np.array(values, dtype=np.float64), form)


def _number_of_name(path: Path) -> float:
    found = re.match(r"([0-9]+)_", path.name)
    if found is None:
        raise AssayError(
            f"{path} has no number: its name does not begin with digits and an underscore, and no CSV file lies in its "
            "folder; name it like 25_anything.jpg, or write a CSV file with a row for each image: its name, its number."
        )
    return float(found[1])


class _Row(NamedTuple):
    place: str
    cells: list[str]


def _numbers_of_table(table: Path, root: Path, paths: Sequence[Path]) -> list[float]:
    """The number of each image, by the rows of a CSV file; every row must name an image and every image have a row."""
    heading, rows = _read(table)
    known = {path.relative_to(root).as_posix(): path for path in paths}
    count = Counter(path.name for path in paths)
    known |= {path.name: path for path in paths if count[path.name] == 1 and path.name not in known}
    naming = max(range(len(heading)), key=lambda column: sum(row.cells[column] in known for row in rows))
    if not any(row.cells[naming] in known for row in rows):
        example = paths[0].relative_to(root).as_posix()
        raise AssayError(f"{table} names no image of {root}, such as {example}; give a column of names.")
    giving = _column_of_numbers(table, heading, rows, naming)
    values: dict[Path, float] = {}
    for place, cells in rows:
        name, text = cells[naming], cells[giving]
        if name not in known:
            raise AssayError(f"{place} names {name!r}, and {root} holds no such image; remove the row or add the file.")
        if known[name] in values:
            raise AssayError(f"{place} names {name!r}, which an earlier row names too; leave one of them.")
        number = _number(text)
        if number is None:
            raise AssayError(f"{place} gives {text!r} as the number of {name!r}; give a finite number.")
        values[known[name]] = number
    for path in paths:
        if path not in values:
            raise AssayError(f"{path} has no number: no row of {table.name} names it; add one or remove the image.")
    return [values[path] for path in paths]


def _column_of_numbers(table: Path, heading: list[str], rows: Sequence[_Row], naming: int) -> int:
    others = [column for column in range(len(heading)) if column != naming]
    called = [column for column in others if heading[column].lower() == "value"]
    numeric = [column for column in others if all(_number(row.cells[column]) is not None for row in rows)]
    for found in (called, numeric, others):
        if len(found) == 1:
            return found[0]
    if numeric:
        names = " and ".join(repr(heading[column]) for column in numeric)
        raise AssayError(f"The columns {names} of {table} all hold numbers; call the one to rank by 'value'.")
    raise AssayError(f"{table} has no column with a number in every row; give two columns, an image's name and number.")


def _read(table: Path) -> tuple[list[str], list[_Row]]:
    """The heading (or numbers of columns, where there is none) and the rows, all of one width."""
    try:
        lines = read_plain(table, MOST_TABLE).decode("utf-8-sig").splitlines()
        first = lines[0] if lines else ""
        delimiter = max(",;\t", key=first.count)
        read = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        rows = [_Row(f"Row {read.line_num} of {table}", [cell.strip() for cell in row]) for row in read if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise AssayError(f"{table} cannot be read as CSV ({error}); write it again as UTF-8.") from error
    width = max((len(row.cells) for row in rows), default=0)
    if width * len(rows) > MOST_CELLS:
        raise AssayError(f"{table} has {len(rows):,} rows, the longest of {width:,} cells; give two columns.")
    rows = [_Row(row.place, row.cells + [""] * (width - len(row.cells))) for row in rows]
    heading = [f"column {column + 1}" for column in range(width)]
    if rows and not any(Path(cell).suffix.lower() in SUFFIXES for cell in rows[0].cells):
        heading, rows = rows[0].cells, rows[1:]
    if not rows or width < 2:
        raise AssayError(f"{table} has no rows of an image's name and its number; give one for each image.")
    return heading, rows


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
