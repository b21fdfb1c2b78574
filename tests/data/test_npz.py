from __future__ import annotations

import contextlib
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from assay.data.npz import NAMES, Npz, OnDisk
from assay.errors import AssayError, ShapeError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (5, 4, 6), dtype=np.uint8)
Y = np.array([2, 0, 1, 1, 0])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("names", NAMES)
def test_round_trip(tmp_path, save, names):
    path = tmp_path / "d.npz"
    save(path, other=np.ones(3), **dict(zip(names, (X, Y), strict=True)))
    data = Npz(path)
    x, y = data.take(np.array([4, 0, 0]))
    assert len(data) == 5
    assert data.classes is None
    assert x.dtype == torch.float32
    assert_close(x, torch.from_numpy(X[[4, 0, 0]])[:, None] / 255, rtol=0, atol=0)
    assert y.tolist() == [0, 2, 2]
    assert data.labels.tolist() == Y.tolist()
    assert data.labels.dtype == np.int64


def test_only_plain_members_are_left_on_disk(tmp_path):
    np.savez(tmp_path / "plain.npz", x=X, y=Y)
    np.savez_compressed(tmp_path / "small.npz", x=X, y=Y)
    assert isinstance(Npz(tmp_path / "plain.npz").x, OnDisk)
    assert not isinstance(Npz(tmp_path / "small.npz").x, OnDisk)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.integers(0, 4), max_size=9))
def test_rows_are_those_asked_for_in_any_order(tmp_path, rows):
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    x, y = Npz(tmp_path / "d.npz").take(np.array(rows, dtype=np.int64))
    assert_close(x, torch.from_numpy(X[rows])[:, None].float() / 255, rtol=0, atol=0)
    assert y.tolist() == Y[rows].tolist()


def test_a_file_that_is_cut_off_meanwhile_is_an_error(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros((500, 1000), np.uint8), y=np.zeros(500, np.int64))
    data = Npz(tmp_path / "d.npz")
    os.truncate(tmp_path / "d.npz", 100_000)
    assert data.take(np.arange(3))[0].shape == (3, 1000)
    with pytest.raises(AssayError, match=r"d\.npz ends inside array x\.npy; write it again"):
        data.take(np.array([499]))


def test_a_plain_file_is_not_held_in_memory(tmp_path):
    """numpy reports what it allocates to tracemalloc: 2 rows of 64, never the array of 32 MB."""
    x = np.zeros((64, 1 << 19), np.uint8)
    x[63] = 255
    np.savez(tmp_path / "d.npz", x=x, y=np.zeros(64, np.int64))
    del x
    tracemalloc.start()
    taken, _ = Npz(tmp_path / "d.npz").take(np.array([63, 0]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken.mean(1).tolist() == [1, 0]
    assert peak < 8_000_000  # 2 rows as uint8, as float32, and as a tensor


def test_fortran_order_and_big_endian(tmp_path):
    x = np.asfortranarray(RNG.normal(size=(5, 3, 4, 6))).astype(">f4")
    np.savez(tmp_path / "d.npz", x=x, y=Y)
    data = Npz(tmp_path / "d.npz")
    assert_close(data.take(np.arange(5))[0].numpy(), x.astype(np.float32), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shape", "turned"),
    [
        ((5, 7), (5, 7)),
        ((5, 4, 6), (5, 1, 4, 6)),
        ((5, 4, 6, 3), (5, 3, 4, 6)),
        ((5, 4, 6, 1), (5, 1, 4, 6)),
        ((5, 3, 4, 6), (5, 3, 4, 6)),
        ((5, 1, 4, 3), (5, 1, 4, 3)),
        ((5, 3, 4, 4), (5, 3, 4, 4)),
        ((5, 8, 4, 6), (5, 8, 4, 6)),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_layouts(tmp_path, shape, turned, save):
    x = RNG.normal(size=shape).astype(np.float32)
    save(tmp_path / "d.npz", x=x, y=Y)
    taken = Npz(tmp_path / "d.npz").take(np.arange(5))[0]
    assert taken.shape == turned
    moved = np.moveaxis(x, -1, 1) if turned != shape and len(shape) == 4 else x.reshape(turned)
    assert_close(taken.numpy(), moved, rtol=0, atol=0)


def test_four_channels_are_refused(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros((5, 8, 8, 4), np.uint8), y=Y)
    with pytest.raises(ShapeError, match=r"\(5, 8, 8, 4\) have 4 channels; drop the alpha"):
        Npz(tmp_path / "d.npz")


@pytest.mark.parametrize("which", ["x", "y"])
def test_pickles_are_refused_unopened(tmp_path, which):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    members = {"x": X, "y": Y, which: np.array([Trap()] * 5, dtype=object)}
    np.savez(tmp_path / "d.npz", **members)
    with pytest.raises(AssayError, match=f"Array {which}.npy in .* holds Python objects .* only a pickle"):
        Npz(tmp_path / "d.npz")
    assert not (tmp_path / "sprung").exists()


def test_wrong_names_rows_types_and_files(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, a=X, y=Y)
    with pytest.raises(AssayError, match="holds 'a', 'y'; it needs inputs and labels named x/y or images/labels"):
        Npz(path)
    np.savez(path, x=X, y=Y[:4])
    with pytest.raises(ShapeError, match=r"shape \(4,\) for 5 inputs"):
        Npz(path)
    np.savez(path, x=X.astype(np.complex64), y=Y)
    with pytest.raises(AssayError, match="dtype complex64; give pixels as uint8"):
        Npz(path)
    np.savez(path, x=X[:0], y=Y[:0])
    with pytest.raises(AssayError, match="holds no rows"):
        Npz(path)
    path.write_bytes(b"junk")
    with pytest.raises(AssayError, match=r"cannot be read as an \.npz file"):
        Npz(path)
    with pytest.raises(AssayError, match=r"There is no file .*nowhere\.npz"):
        Npz(tmp_path / "nowhere.npz")


def test_a_header_that_promises_more_than_the_file_has(tmp_path):
    np.savez(tmp_path / "good.npz", x=X, y=Y)
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "d.npz", "w") as forged:
        for name in good.namelist():
            forged.writestr(name, good.read(name).replace(b"(5, 4, 6)", b"(9, 4, 6)"))
    with pytest.raises(AssayError, match=r"Array x\.npy in .* has 120 bytes, not 216; write it again"):
        Npz(tmp_path / "d.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_gives_an_error_of_the_family_or_nothing(tmp_path, save, data):
    path = tmp_path / "d.npz"
    save(path, x=X, y=Y)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
    with contextlib.suppress(AssayError):  # anything else is raised, and fails
        Npz(path).take(np.arange(1))


def test_fingerprint(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    before = Npz(tmp_path / "d.npz").fingerprint()
    assert Npz(tmp_path / "d.npz").fingerprint() == before
    os.utime(tmp_path / "d.npz", (1, 1))
    assert Npz(tmp_path / "d.npz").fingerprint() == before
    np.savez(tmp_path / "d.npz", x=X, y=Y[::-1])
    assert Npz(tmp_path / "d.npz").fingerprint() != before


@pytest.mark.parametrize("y", [np.eye(3, dtype=np.int64), np.array([-2, 0, 5])])
def test_targets_of_another_task_stay_as_they_are(tmp_path, y):
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 2), dtype=np.float32), y=y)
    data = Npz(tmp_path / "d.npz", chosen=False)
    assert data.labels.tolist() == y.tolist()
    if y.ndim == 2:
        classes = Npz(tmp_path / "d.npz")
        assert classes.labels.tolist() == [0, 1, 2]
        assert classes.fingerprint() != data.fingerprint()
    else:
        with pytest.raises(AssayError, match="Label -2 at row 0 is negative"):
            Npz(tmp_path / "d.npz")
