"""Rows of unlike columns as points: units do not count, codes are equally far apart."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from assay.errors import ShapeError
from assay.methods.shift.points import coded, on_one_scale
from assay.methods.train.typicality import comparable


def test_the_unit_of_a_column_does_not_count() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(20, 3, generator=rng), torch.randn(15, 3, generator=rng)
    other = torch.tensor([1000.0, 0.01, 1.0]), torch.tensor([5.0, -3.0, 0.0])
    for plain, moved in zip(on_one_scale(a, b), on_one_scale(*(x * other[0] + other[1] for x in (a, b))), strict=True):
        assert_close(plain, moved, rtol=1e-4, atol=1e-4)
    pool = torch.cat(on_one_scale(a, b))
    assert_close(pool.std(0, correction=0), torch.ones(3))
    assert_close(pool.mean(0), torch.zeros(3), rtol=0, atol=1e-6)


def test_categories_are_equally_far_apart_whatever_their_codes() -> None:
    choices = torch.tensor([0, 3])
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    assert coded(choices).tolist() == [False, True, True, True]
    a, b = on_one_scale(comparable(x[:2], choices), comparable(x[2:], choices), coded(choices))
    apart = torch.cdist(torch.cat([a, b]), torch.cat([a, b]))
    assert_close(apart[[0, 0, 1], [1, 2, 2]], torch.full((3,), 2.0).sqrt())
    assert float(apart[2, 3]) == 0


def test_a_column_that_never_changes_counts_nothing() -> None:
    a, b = on_one_scale(torch.full((4, 1), 0.1), torch.full((3, 1), 0.1))
    assert not a.any()
    assert not b.any()


def test_other_columns_are_refused() -> None:
    with pytest.raises(ShapeError, match="the same columns for both"):
        on_one_scale(torch.zeros(3, 2), torch.zeros(3, 3))
