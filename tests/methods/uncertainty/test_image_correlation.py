"""Correlation of two images: against scipy, its invariance, and where it is undefined."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.errors import ShapeError
from assay.methods.uncertainty.image_correlation import pearson, spearman


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 999), scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10))
def test_it_is_scipys_and_does_not_see_scale_or_shift(seed: int, scale: float, shift: float) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.random((3, 1, 5, 4)), rng.random((3, 1, 5, 4))
    ours, ranks = pearson(a, b), spearman(a, b)
    for row in range(3):
        assert ours[row] == pytest.approx(stats.pearsonr(a[row].ravel(), b[row].ravel()).statistic)
        assert ranks[row] == pytest.approx(stats.spearmanr(a[row].ravel(), b[row].ravel()).statistic)
    assert pearson(scale * a + shift, b) == pytest.approx(ours, abs=1e-9)
    assert spearman(np.exp(a), b**3) == pytest.approx(ranks)
    assert pearson(-a, b) == pytest.approx(-ours)


def test_an_even_image_has_no_correlation_and_not_a_correlation_of_0() -> None:
    rng = np.random.default_rng(0)
    a = rng.random((3, 1, 8, 8)).astype(np.float32)
    b = a.copy()
    b[1] = 0.3
    b[2] = np.float32(0.3) + np.spacing(np.float32(0.3)) * rng.integers(0, 2, (1, 8, 8)).astype(np.float32)
    for found in (pearson(a, b), spearman(a, b), pearson(b, a)):
        assert found[0] == pytest.approx(1)
        assert np.isnan(found[1:]).all()
    assert pearson(a * 1e-6, a)[0] == pytest.approx(1)  # small is not even
    with pytest.raises(ShapeError, match="cannot be laid beside"):
        pearson(a, a[:2])
