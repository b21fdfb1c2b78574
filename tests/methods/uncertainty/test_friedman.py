"""Friedman's and Nemenyi's tests against scipy, by hand, and where nothing differs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from assay.errors import ShapeError
from assay.methods.uncertainty.friedman import friedman, nemenyi


def test_it_is_scipys_with_ties_and_without() -> None:
    rng = np.random.default_rng(0)
    for scores in (rng.normal(size=(20, 4)), rng.integers(0, 3, (25, 3)).astype(float)):
        assert friedman(scores) == pytest.approx(friedmanchisquare(*scores.T).pvalue, rel=1e-9)


def test_identical_columns_are_equal_for_certain() -> None:
    same = np.repeat(np.random.default_rng(0).normal(size=(30, 1)), 4, axis=1)
    assert friedman(same) == 1.0
    assert nemenyi(same) == pytest.approx(np.ones((4, 4)))


def test_one_that_always_wins_is_told_from_the_others_and_not_they_from_each_other() -> None:
    scores = np.random.default_rng(1).normal(size=(40, 4))
    scores[:, 0] += 10
    pairs = nemenyi(scores)
    assert friedman(scores) < 1e-6
    assert (pairs[0, 1:] < 0.01).all()
    assert (pairs[1:, 1:] > 0.05).all()
    assert pairs == pytest.approx(pairs.T)


def test_the_critical_difference_of_print() -> None:
    """Demsar 2006, table 5: of four treatments ranks are apart at 0.05 from 2.569 sqrt(k(k+1)/(6n)) on."""
    n, k = 30, 4
    critical = 2.569 * np.sqrt(k * (k + 1) / (6 * n))
    from scipy.stats import studentized_range

    assert studentized_range.sf(critical / np.sqrt(k * (k + 1) / (12 * n)), k, np.inf) == pytest.approx(0.05, abs=1e-4)
    # two treatments whose mean ranks are as far apart in a table made by hand: 15 of 30 cases swapped
    scores = np.tile([4.0, 3.0, 2.0, 1.0], (n, 1))
    scores[:15, [0, 1]] = scores[:15, [1, 0]]
    assert nemenyi(scores)[0, 1] == pytest.approx(1.0)
    assert nemenyi(scores)[0, 3] < 1e-6


def test_what_is_no_table_is_refused() -> None:
    for bad in (np.zeros(3), np.zeros((3, 1)), np.full((3, 3), np.nan)):
        with pytest.raises(ShapeError, match="give a finite number for each case"):
            friedman(bad)
