"""Rows that are meant, as numpy reads them, without a list of all."""

from __future__ import annotations

import numpy as np
import pytest

from assay.data.rows_at import rows_at


@pytest.mark.parametrize(
    "indices",
    [
        np.array([0, 3, 3, 9]), np.array([-1, -10]), [2, 1], slice(2, 9, 3), slice(None, None, -1),
        np.arange(10) % 3 == 0, np.array([], dtype=np.int64), np.array([4], dtype=np.uint8), np.array([[1, 2], [3, 4]]),
    ],
)  # fmt: skip
def test_they_are_those_of_numpy(indices):
    expected = np.arange(10)[indices]
    found = rows_at(indices, 10)
    assert np.array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_one_that_is_not_there_is_an_error_as_ever():
    for wrong in ([10], [-11], np.array([3, 2**40])):
        with pytest.raises(IndexError):
            rows_at(wrong, 10)
    with pytest.raises(IndexError):
        rows_at(np.array([0.5]), 10)


def test_ten_million_rows_cost_no_more_than_ten():
    assert rows_at(np.array([0, -1]), 10**15).tolist() == [0, 10**15 - 1]
