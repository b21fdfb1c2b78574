"""Inputs and labels in one .npz file."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import UNIT, as_inputs, as_labels, check_inputs
from assay.data.digest import of_files
from assay.data.image import channels_first
from assay.errors import AssayError

NAMES = (("x", "y"), ("images", "labels"), ("x_test", "y_test"), ("inputs", "targets"))


class Npz:
    """An .npz file with arrays `x` and `y` (or images/labels, x_test/y_test, inputs/targets: the first pair found).

    Inputs that were stored without compression (`numpy.savez`) are mapped, not read, so the file may be larger than
    memory; compressed ones (`numpy.savez_compressed`) are read whole. uint8 is brought to `pixels`, floats stay as they
    are. n h w and n h w c are turned to n c h w by the rule of `assay.data.image.channels_first`. No pickle is opened.
    """

    classes: tuple[str, ...] | None = None

    def __init__(self, path: str | Path, *, pixels: tuple[float, float] = UNIT):
        self.path, self.pixels = Path(path), pixels
        if not self.path.is_file():
            raise AssayError(f"There is no file {self.path}; give an existing .npz file.")
        try:
            with zipfile.ZipFile(self.path) as archive:
                found = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
                pair = next((pair for pair in NAMES if found.issuperset(pair)), None)
                if pair is None:
                    raise AssayError(
                        f"{self.path} holds {', '.join(map(repr, sorted(found))) or 'no arrays'}; it needs inputs and "
                        f"labels named {' or '.join('/'.join(pair) for pair in NAMES)}."
                    )
                self.x, y = (read_member(self.path, archive, f"{name}.npy") for name in pair)
        except AssayError:
            raise
        except Exception as error:  # damaged archives raise BadZipFile, zlib.error, LZMAError, RuntimeError and more
            raise AssayError(f"{self.path} cannot be read as an .npz file ({error}); write it again.") from error
        check_inputs(self.x)
        self.labels = as_labels(y, len(self.x))
        if not len(self):
            raise AssayError(f"{self.path} holds no rows; give at least one input.")
        channels_first(self.x)  # an impossible layout is refused now, not at the first batch

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        """Inputs as float32 in natural units and their int64 labels."""
        rows = np.arange(len(self))[indices]
        # The layout is told from the whole array: k rows have the same trailing axes, so the answer is the same.
        return as_inputs(channels_first(np.asarray(self.x[rows])), self.pixels), torch.from_numpy(self.labels[rows])

    def fingerprint(self) -> str:
        """A hash of the file's name and content."""
        return of_files(self.path.parent, [self.path], f"Npz {self.pixels}")


def read_member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    """One array of the archive: mapped if it is stored plainly, else read."""
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
    if entry.compress_type != zipfile.ZIP_STORED or not size:
        with archive.open(entry) as file:
            array: NDArray[np.generic] = npy.read_array(file, allow_pickle=False)
        return array
    with path.open("rb") as raw:
        # The local header repeats the name and may have another extra field than the central one, so it is asked.
        raw.seek(entry.header_offset + 26)
        lengths = np.frombuffer(raw.read(4), "<u2")
    start = entry.header_offset + 30 + int(lengths.sum()) + header
    if start + size > path.stat().st_size:
        raise AssayError(f"{path} ends inside array {name}; write it again.")
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether the first axis runs fastest, and dtype of an .npy stream; leaves it at the first element."""
    version = npy.read_magic(file)
    if version == (1, 0):
        return npy.read_array_header_1_0(file)
    if version == (2, 0):
        return npy.read_array_header_2_0(file)
    raise ValueError(f".npy version {version[0]}.{version[1]}, which only named fields need")
