from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError, ShapeError


@settings(deadline=None, max_examples=25)
@given(x=arrays(np.uint8, (5, 1, 2, 3)), picks=st.lists(st.integers(0, 4), max_size=8))
def test_uint8_is_kept_and_divided_when_taken(x, picks):
    data = Arrays(x, np.arange(5))
    inputs, labels = data.take(np.array(picks, dtype=np.int64))
    assert data.x.dtype == np.uint8
    assert inputs.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert labels.tolist() == picks
    for row, pick in zip(inputs, picks, strict=True):
        assert_close(row, torch.tensor(x[pick].tolist()) / 255, rtol=0, atol=0)


def test_every_byte_is_divided_by_255():
    x = np.arange(256, dtype=np.uint8).reshape(1, 256)
    assert Arrays(x, [0]).take(np.array([0]))[0][0].tolist() == [
        float(np.float32(k) / np.float32(255)) for k in range(256)
    ]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_stay_as_they_are(dtype):
    x = np.array([[-3.5, 0.25], [7.0, 300.0]], dtype=dtype)
    inputs, _ = Arrays(x, [0, 1]).take(np.array([1, 0]))
    assert inputs.dtype == torch.float32
    assert inputs.tolist() == [[7.0, 300.0], [-3.5, 0.25]]


def test_tensors_are_taken_as_arrays_are():
    x, y = torch.rand(4, 3), torch.tensor([3, 1, 0, 2])
    data = Arrays(x.requires_grad_(), y, ["a", "b", "c", "d"])
    inputs, labels = data.take(np.arange(4))
    assert_close(inputs, x.detach(), rtol=0, atol=0)
    assert not inputs.requires_grad
    assert labels.tolist() == [3, 1, 0, 2]
    assert data.classes == ("a", "b", "c", "d")
    assert data.labels.dtype == np.int64


def test_what_is_taken_is_a_copy():
    data = Arrays(np.zeros((2, 2), dtype=np.float32), [0, 1])
    data.take(np.array([0, 1]))[0].fill_(9)
    assert data.x.max() == 0


def test_fingerprint_is_of_the_content():
    x, y = np.arange(12, dtype=np.uint8).reshape(3, 4), np.array([0, 1, 2])
    same = Arrays(x.copy(), y.astype(np.int32)).fingerprint()
    assert Arrays(x, y).fingerprint() == same == Arrays(np.asfortranarray(x), y).fingerprint()
    others = [
        Arrays(x.reshape(3, 2, 2), y),
        Arrays(x.astype(np.float32), y),
        Arrays(x, y[::-1]),
        Arrays(x, y, ("a", "b", "c")),
        Arrays(x ^ (x == 11), y),
    ]
    assert len({same} | {other.fingerprint() for other in others}) == 6


@pytest.mark.parametrize(
    ("x", "y", "kind", "words"),
    [
        (np.zeros((2, 3), np.complex64), [0, 1], AssayError, "dtype complex64; give pixels as uint8"),
        (np.zeros(2, np.float32), [0, 1], ShapeError, r"shape \(2,\); give one row per input"),
        (np.zeros((2, 3)), [0, 1, 2], ShapeError, r"shape \(3,\) for 2 inputs"),
        (np.zeros((2, 3)), np.eye(2, dtype=int), ShapeError, "one-hot, pass y.argmax"),
        (np.zeros((2, 3)), [0.0, 1.0], AssayError, "dtype float64; give class indices"),
        (np.zeros((2, 3)), [0, -1], AssayError, "Label -1 at row 1 is negative"),
    ],
)
def test_errors_say_what_came_and_how_to_mend_it(x, y, kind, words):
    with pytest.raises(kind, match=words):
        Arrays(x, y)


def test_a_label_without_a_name_is_refused():
    with pytest.raises(AssayError, match="Label 2 at row 1 has no name among the 2 classes"):
        Arrays(np.zeros((2, 3)), [0, 2], ["cat", "dog"])


def test_labels_in_a_column_are_flattened():
    assert Arrays(np.zeros((2, 3)), [[1], [0]]).labels.tolist() == [1, 0]


def test_whole_numbers_are_inputs_up_to_what_single_precision_tells_apart():
    x = np.array([[3, 70000], [0, 2**24]])
    taken, _ = Arrays(x, np.array([0, 1])).take(np.arange(2))
    np.testing.assert_array_equal(taken.numpy(), x)
    with pytest.raises(AssayError, match=r"whole numbers up to 16,777,217, and above 16,777,216 they are rounded"):
        Arrays(np.array([[2**24 + 1]]), np.array([0])).take(np.arange(1))
