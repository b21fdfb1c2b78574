"""The idx format of MNIST and its kin, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

# The third byte of the header names the element type; multi-byte values are big-endian.
ELEMENTS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> NDArray[np.generic]:
    """Read one idx file: two zero bytes, element type, number of axes, the axes as big-endian int32, the elements."""
    path = Path(path)
    if not path.is_file():
        raise AssayError(f"There is no idx file at {path}; give the path of an existing file.")
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise AssayError(f"{path} is a damaged gzip file ({error}); fetch it again.") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in ELEMENTS:
        raise AssayError(f"{path} is not an idx file: it begins with {raw[:4].hex()!r}, not 0000, a type and a rank.")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise AssayError(f"{path} ends inside its header; fetch it again.")
    shape = tuple(int(side) for side in np.frombuffer(raw, ">u4", raw[3], 4))
    element = np.dtype(ELEMENTS[raw[2]])
    expected = start + element.itemsize * math.prod(shape)
    if len(raw) != expected:
        raise AssayError(f"{path} has {len(raw)} bytes where its header {shape} asks for {expected}; fetch it again.")
    return np.frombuffer(raw, element, offset=start).reshape(shape).astype(element.newbyteorder("="))
