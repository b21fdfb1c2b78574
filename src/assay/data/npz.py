"""Inputs and labels in one .npz file."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from assay.data.archive import open_archive
from assay.data.arrays import UNIT, as_answers, as_inputs, as_targets, check_inputs
from assay.data.digest import of_files
from assay.data.image import channels_first
from assay.data.plain_file import MOST_ROWS, MOST_UNPACKED, open_plain, some
from assay.data.rows_at import rows_at
from assay.errors import AssayError

NAMES = (("x", "y"), ("images", "labels"), ("x_test", "y_test"), ("inputs", "targets"))
CUE = "cue"  # what else can be read off each input, as `does-it-use-a-shortcut` asks
MOST_HEADER = 10_000  # characters, as numpy has it
MOST_AXES = 16


@dataclass(frozen=True)
class OnDisk:
    """An array in a file, of which rows are read when they are asked for.

    It is read, not mapped: a file that is cut off meanwhile gives an error here, where a map would end the process.
    """

    path: Path
    name: str
    start: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: NDArray[np.integer]) -> NDArray[np.generic]:  # k -> k *d
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        room = out.reshape(-1).view(np.uint8).data
        each = self.dtype.itemsize * math.prod(self.shape[1:])
        # Rows that follow one another in the file are read at once.
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        with open_plain(self.path) as file:
            for run in np.split(np.arange(len(rows)), breaks):
                if not len(run):
                    continue
                file.seek(self.start + int(rows[run[0]]) * each)
                part = room[run[0] * each : (run[-1] + 1) * each]
                if file.readinto(part) != len(part):
                    raise AssayError(f"{self.path} ends inside array {self.name}; write it again.")
        return out


class Npz:
    """An .npz file with arrays `x` and `y` (or images/labels, x_test/y_test, inputs/targets: the first pair found).

    Inputs that were stored without compression (`numpy.savez`) are read when they are taken, so the file may be larger
    than memory; compressed ones (`numpy.savez_compressed`) are read whole, up to MOST_UNPACKED. uint8 is brought to
    `pixels`, floats stay as they are. n h w and n h w c are turned to n c h w by the rule of
    `assay.data.image.channels_first`, unless they are no `images`: n t c are series then. `y` holds class indices, or
    targets of any other task; where no class is `chosen` they stay as they are, whole numbers and one-hot rows too.
    Where nobody `labelled` them the inputs alone are looked for, and labels are zeros. An array `cue` with one value
    for each input is kept beside them. No pickle is opened.
    """

    classes: tuple[str, ...] | None = None

    def __init__(
        self,
        path: str | Path,
        *,
        pixels: tuple[float, float] = UNIT,
        images: bool = True,
        chosen: bool = True,
        labelled: bool = True,
    ):
        self.path, self.pixels, self.images, self.chosen = Path(path), pixels, images, chosen
        if not self.path.is_file():
            raise AssayError(f"There is no file {self.path}; give an existing .npz file.")
        try:
            with open_archive(self.path) as archive:
                found = _arrays_in(archive)
                wanted = NAMES if labelled else tuple(pair[:1] for pair in NAMES)
                names = next((names for names in wanted if found.issuperset(names)), None)
                if names is None:
                    raise AssayError(
                        f"{self.path} holds {some(sorted(found)) or 'no arrays'}; it needs inputs"
                        f"{' and labels' if labelled else ''} named {' or '.join('/'.join(each) for each in wanted)}."
                    )
                self.x, *rest = (read_member(self.path, archive, f"{name}.npy") for name in names)
                y = rest[0] if rest else np.zeros(len(self.x), dtype=np.int64)
                cue = read_member(self.path, archive, f"{CUE}.npy") if CUE in found else None
        except AssayError:
            raise
        except Exception as error:  # damaged archives raise BadZipFile, zlib.error, LZMAError, RuntimeError and more
            raise AssayError(f"{self.path} cannot be read as an .npz file ({error}); write it again.") from error
        alike = np.broadcast_to(np.zeros((), self.x.dtype), self.x.shape)
        check_inputs(alike)
        if len(self) > MOST_ROWS:
            raise AssayError(f"{self.path} holds {len(self):,} rows, more than {MOST_ROWS:,}; give a part of them.")
        y = y if isinstance(y, np.ndarray) else y[np.arange(len(y))]
        self.cue = cue[np.arange(len(cue))] if isinstance(cue, OnDisk) else cue
        if self.cue is not None and self.cue.shape != (len(self.x),):
            raise AssayError(f"{CUE} in {self.path} has shape {self.cue.shape}; give one value for each input.")
        self.labels = as_answers(y, len(self.x)) if chosen else as_targets(y, len(self.x))
        if not alike.size:
            raise AssayError(f"{self.path} holds no rows, or rows of nothing; give at least one input.")
        self._laid(alike)  # an impossible layout is refused now, not at the first batch

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        """Inputs as float32 in natural units, and their int64 labels or whatever the targets are."""
        rows = rows_at(indices, len(self))
        # The layout is told from the whole array: k rows have the same trailing axes, so the answer is the same.
        return as_inputs(self._laid(self.x[rows]), self.pixels), torch.from_numpy(self.labels[rows])

    def _laid(self, x: NDArray[Any]) -> NDArray[Any]:  # n *d -> n *d
        return channels_first(x) if self.images else x

    def fingerprint(self) -> str:
        """A hash of the file's name and content."""
        read = ("" if self.images else " as it is") + ("" if self.chosen else " of another task")
        return of_files(self.path.parent, [self.path], f"Npz {self.pixels}{read}")


def _arrays_in(archive: zipfile.ZipFile) -> set[str]:
    return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}


def npz_has_labels(path: Path) -> bool:
    """Whether a file holds inputs with labels, under names that go together; what cannot be read is told by `Npz`."""
    try:
        with open_archive(path) as archive:
            return any(_arrays_in(archive).issuperset(pair) for pair in NAMES)
    except Exception:  # as above
        return True


def read_member(path: Path, archive: zipfile.ZipFile, name: str) -> OnDisk | NDArray[Any]:
    """One array of the archive: its rows where they lie, if it is stored plainly, else the whole of it."""
    entry = archive.getinfo(name)
    with archive.open(entry) as file:
        try:
            shape, fortran, dtype = read_header(file)
        except ValueError as error:
            raise AssayError(f"Array {name} in {path} has a damaged header ({error}); write it again.") from error
        header = file.tell()
    if dtype.hasobject:
        raise AssayError(
            f"Array {name} in {path} holds Python objects (dtype object), which only a pickle can carry; "
            "save plain numbers: numpy.savez(path, x=numpy.stack(rows).astype('float32'), ...)."
        )
    size = dtype.itemsize * math.prod(shape)
    if header + size != entry.file_size:
        raise AssayError(f"Array {name} in {path} has {entry.file_size - header} bytes, not {size}; write it again.")
    if entry.compress_type != zipfile.ZIP_STORED or fortran or not size or not shape:
        if size > MOST_UNPACKED:
            raise AssayError(
                f"Array {name} in {path} unpacks to {size:,} bytes, over the {MOST_UNPACKED:,} that are held at once; "
                "save it with numpy.savez(path, x=numpy.ascontiguousarray(x), ...), of which rows are read one by one."
            )
        with archive.open(entry) as file:
            array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        return array
    with open_plain(path) as raw:
        # The local header repeats the name and may have another extra field than the central one, so it is asked.
        raw.seek(entry.header_offset + 26)
        lengths = np.frombuffer(raw.read(4), "<u2")
    start = entry.header_offset + 30 + int(lengths.sum()) + header
    if start + size > path.stat().st_size:
        raise AssayError(f"{path} ends inside array {name}; write it again.")
    return OnDisk(path, name, start, dtype, shape)


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy file; no pickle is opened, and what is larger than it says, or than is held, is refused."""
    if not path.is_file():
        raise AssayError(f"There is no file {path}; give an existing .npy file.")
    with open_plain(path) as file:
        try:
            shape, _, dtype = read_header(file)
        except ValueError as error:
            raise AssayError(f"{path} cannot be read as an .npy file ({error}); write it again.") from error
        if dtype.hasobject:
            raise AssayError(f"{path} holds Python objects, which only a pickle can carry; save numbers or words.")
        size = dtype.itemsize * math.prod(shape)
        if size > MOST_UNPACKED or size != path.stat().st_size - file.tell():
            raise AssayError(f"{path} says that its array has {size:,} bytes, and it has not; write it again.")
        file.seek(0)
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether the first axis runs fastest, and dtype of an .npy stream; leaves it at the first element."""
    version = npy.read_magic(file)
    width = {(1, 0): 2, (2, 0): 4}.get(version)
    if width is None:
        raise ValueError(f".npy version {version[0]}.{version[1]}, which only named fields need")
    told = file.read(width)
    length = int.from_bytes(told, "little")
    if length > MOST_HEADER:  # numpy looks at this after it has read them
        raise ValueError(f"it is {length:,} characters long")
    read = npy.read_array_header_1_0 if width == 2 else npy.read_array_header_2_0
    shape, fortran, dtype = read(io.BytesIO(told + file.read(length)))
    if min(shape, default=0) < 0 or len(shape) > MOST_AXES:
        raise ValueError(f"its shape is {shape}"[:80])
    return shape, fortran, dtype
