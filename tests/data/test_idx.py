from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from assay.data.idx import read_idx
from assay.errors import AssayError

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def as_idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, CODES[array.dtype.str[1:]], array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), code=st.sampled_from(sorted(CODES)), zipped=st.booleans())
def test_round_trip(tmp_path, data, code, zipped):
    array = data.draw(arrays(np.dtype(code), array_shapes(max_dims=3, max_side=4)))
    path = tmp_path / "a-idx"
    path.write_bytes(gzip.compress(as_idx(array), mtime=0) if zipped else as_idx(array))
    back = read_idx(path)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


GOOD = as_idx(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"PK\3\4rest", "not an idx file: it begins with '504b0304'"),
        (b"", "not an idx file"),
        (GOOD[:6], "ends inside its header"),
        (GOOD[:-1], r"17 bytes where its header \(2, 3\) asks for 18"),
        (GOOD + b"x", r"more bytes where its header \(2, 3\) asks for 18"),
        (gzip.compress(GOOD, mtime=0)[:-9], "damaged gzip"),
    ],
)
def test_damage_is_named(tmp_path, raw, words):
    path = tmp_path / "broken"
    path.write_bytes(raw)
    with pytest.raises(AssayError, match=words):
        read_idx(path)


def test_missing_file(tmp_path):
    with pytest.raises(AssayError, match=r"There is no idx file at .*nowhere"):
        read_idx(tmp_path / "nowhere")
