"""The idx format of MNIST and its kin, gzipped or not."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.data.plain_file import MOST_UNPACKED, open_plain
from assay.errors import AssayError

# The third byte of the header names the element type; multi-byte values are big-endian.
ELEMENTS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> NDArray[np.generic]:
    """Read one idx file: two zero bytes, element type, number of axes, the axes as big-endian int32, the elements."""
    path = Path(path)
    if not path.is_file():
        raise AssayError(f"There is no idx file at {path}; give the path of an existing file.")
    with open_plain(path) as file:
        try:
            return _read(path, gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file)
        except (EOFError, OSError, zlib.error) as error:
            raise AssayError(f"{path} is a damaged gzip file ({error}); fetch it again.") from error


def _read(path: Path, file: io.BufferedIOBase) -> NDArray[np.generic]:
    raw = file.read(4)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in ELEMENTS:
        raise AssayError(f"{path} is not an idx file: it begins with {raw.hex()!r}, not 0000, a type and a rank.")
    sides = file.read(4 * raw[3])
    if len(sides) < 4 * raw[3]:
        raise AssayError(f"{path} ends inside its header; fetch it again.")
    shape = tuple(int(side) for side in np.frombuffer(sides, ">u4"))
    element = np.dtype(ELEMENTS[raw[2]])
    start, size = 4 + len(sides), element.itemsize * math.prod(shape)
    if size > MOST_UNPACKED:
        raise AssayError(f"{path} unpacks to {size:,} bytes, over the {MOST_UNPACKED:,} that are held; give a part.")
    content = file.read(size + 1)
    if len(content) != size:
        more = "more" if len(content) > size else f"{start + len(content)}"
        raise AssayError(f"{path} has {more} bytes where its header {shape} asks for {start + size}; fetch it again.")
    return np.frombuffer(content, element).reshape(shape).astype(element.newbyteorder("="))
