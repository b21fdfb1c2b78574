"""Confidence sequences: against the equation as printed and exact laws, and right however often one looks."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from assay.errors import AssayError
from assay.finding import wilson
from assay.methods.uncertainty.exact import exact
from assay.methods.uncertainty.sequences import mean_interval, rungs, share_of_error


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20_000_000))
def test_a_ladder_doubles_ends_at_the_top_and_its_shares_are_the_error(most):
    ladder = rungs(most)
    assert ladder[-1] == most
    assert all(b == 2 * a for a, b in pairwise(ladder[:-1]))
    assert ladder[:-1] == () or ladder[0] == 25
    assert all(1.5 * a <= most for a in ladder[:-1])
    assert len(ladder) * share_of_error(most, 0.05) == pytest.approx(0.05)


def test_ladders_by_hand():
    assert [rungs(n) for n in (1, 25, 30, 40, 60, 130)] == [(1,), (25,), (30,), (25, 40), (25, 60), (25, 50, 130)]
    with pytest.raises(AssayError, match="no ladder to 0 inputs"):
        rungs(0)


def missed_somewhere(p: float, ends: dict[int, tuple[np.ndarray, np.ndarray]]) -> float:
    """The exact chance that hits of chance p are at any rung outside its interval, by the law of the walk of hits."""
    alive, at = np.array([1.0]), 0  # of each number of hits, with no miss so far
    lost = 0.0
    for n, (low, high) in ends.items():
        step = binom.pmf(np.arange(n - at + 1), n - at, p)
        alive, at = np.convolve(alive, step), n
        out = (low > p) | (high < p)
        lost += float(alive[out].sum())
        alive = np.where(out, 0.0, alive)
    return lost


@pytest.mark.parametrize("most", [130, 800])
def test_who_looks_at_every_rung_is_wrong_no_more_often_than_claimed(most):
    """Not by simulation: the whole law of the hits, at the worst of many chances. Wilson's intervals are not right."""
    ladder = rungs(most)
    each = share_of_error(most, 0.05)
    ours = {n: exact(np.arange(n + 1), n, each) for n in ladder}
    once = {n: tuple(np.array([wilson(h, n) for h in range(n + 1)]).T) for n in ladder}
    chances = np.linspace(0.01, 0.99, 99)
    assert max(missed_somewhere(p, ours) for p in chances) <= 0.05
    assert max(missed_somewhere(p, once) for p in chances) > 0.1


def naive(x, m, alpha, sign):
    """K+ and K- as printed, one value at a time."""
    n, wealth, total, squares, count = len(x), 1.0, 0.5, 0.25, 1
    spread = 0.25
    for value in x:
        bet = math.sqrt(2 * math.log(2 / alpha) / (n * spread))
        bet = min(bet, 0.5 / (m if sign > 0 else 1 - m))
        wealth *= 1 + sign * bet * (value - m)
        total, count = total + value, count + 1
        squares += (value - total / count) ** 2
        spread = squares / count
    return wealth


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 60), st.floats(0.002, 0.2), st.integers(0, 10**6))
def test_at_its_ends_a_bet_has_won_two_over_alpha(n, alpha, seed):
    x = np.random.default_rng(seed).beta(0.7, 1.4, n)
    low, high = mean_interval(x, alpha=alpha, seed=3)
    assert 0 <= low <= x.mean() <= high <= 1
    order = np.random.default_rng(3).permutation(x)
    if low > 1e-6:
        assert naive(order, low, alpha, 1) == pytest.approx(2 / alpha, rel=1e-4)
    if high < 1 - 1e-6:
        assert naive(order, high, alpha, -1) == pytest.approx(2 / alpha, rel=1e-4)
    mirrored = mean_interval(1 - x, alpha=alpha, seed=3)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)
    wider = mean_interval(x, alpha=alpha / 3, seed=3)
    assert wider[0] <= low + 1e-9
    assert wider[1] >= high - 1e-9


@pytest.mark.parametrize("law", ["rare", "skewed", "hits"])
def test_a_mean_of_any_law_is_held_at_every_rung(law):
    """At n = 25 to 200, 120 streams each: wrong at any rung in at most 5 %."""
    rng, ladder, wrong = np.random.default_rng(5), rungs(200), 0
    truth = {"rare": 0.02, "skewed": 0.1, "hits": 0.3}[law]
    for _ in range(120):
        x = {
            "rare": lambda: np.where(rng.random(200) < 0.04, rng.random(200), 0.0),
            "skewed": lambda: rng.beta(0.2, 1.8, 200),
            "hits": lambda: (rng.random(200) < 0.3).astype(float),
        }[law]()
        intervals = [mean_interval(x[:n], alpha=share_of_error(200, 0.05)) for n in ladder]
        wrong += any(not low <= truth <= high for low, high in intervals)
    assert wrong <= 6


def test_rows_that_come_sorted_by_class_are_as_good_as_any():
    x = np.repeat([0.9, 0.1], 100)  # who sees the first half would foresee a mean of 0.9
    low, high = mean_interval(x, alpha=0.05)
    assert low < 0.5 < high
    assert high - low < 0.35


def test_equal_values_leave_room_for_others():
    low, high = mean_interval(np.ones(50), alpha=0.05)
    assert high == 1
    assert 0.8 < low < 0.95
    assert mean_interval(np.zeros(50), alpha=0.05) == pytest.approx((0, 1 - low), abs=1e-9)


def test_what_is_no_share_is_refused():
    for wrong in ([], [0.5, 1.1], [-0.1], [float("nan")], [[0.5]]):
        with pytest.raises(AssayError, match="each from 0 to 1"):
            mean_interval(wrong, alpha=0.05)
    with pytest.raises(AssayError, match="An error of 0 is none"):
        mean_interval([0.5], alpha=0)
    with pytest.raises(AssayError, match="An error of 1 is none"):
        share_of_error(10, 1)
