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
from assay.methods.uncertainty.sequences import POINTS, TURNS, _lowest, ladder, mean_interval, rungs, share_of_error


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20_000_000), st.data())
def test_a_ladder_climbs_by_four_ends_at_the_top_and_its_shares_are_the_error(most, data):
    may = rungs(most)
    assert may[-1] == most
    assert all(b == 2 * a for a, b in pairwise(may[:-1]))
    assert all(1.5 * a <= most for a in may[:-1])
    first = data.draw(st.sampled_from(may))
    steps = ladder(first, most)
    assert (steps[0], steps[-1]) == (first, most)
    assert all(b == 4 * a for a, b in pairwise(steps[:-1]))
    assert set(steps) <= set(may)
    assert sum(share_of_error(first, most, n) for n in steps) == pytest.approx(1)


def test_ladders_by_hand():
    assert [rungs(n) for n in (1, 25, 30, 40, 60, 130)] == [(1,), (25,), (30,), (25, 40), (25, 60), (25, 50, 130)]
    assert ladder(50, 1000) == (50, 200, 1000)
    assert ladder(1000, 1000) == (1000,)
    assert [share_of_error(50, 1000, n) for n in (50, 200, 1000)] == pytest.approx([0.4, 0.3, 0.3])
    assert share_of_error(1000, 1000, 1000) == 1
    with pytest.raises(AssayError, match="no ladder to 0 inputs"):
        rungs(0)
    with pytest.raises(AssayError, match="no ladder from 60 to 50 inputs"):
        ladder(60, 50)
    with pytest.raises(AssayError, match="100 inputs are no rung of 50, 200, 1000"):
        share_of_error(50, 1000, 100)


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


@pytest.mark.parametrize(("first", "most"), [(25, 130), (50, 800), (200, 900), (130, 130)])
def test_who_looks_at_every_rung_is_wrong_no_more_often_than_claimed(first, most):
    """Not by simulation: the whole law of the hits, at the worst of many chances. Wilson's intervals are not right."""
    steps = ladder(first, most)
    ours = {n: exact(np.arange(n + 1), n, 0.05 * share_of_error(first, most, n)) for n in steps}
    once = {n: tuple(np.array([wilson(h, n) for h in range(n + 1)]).T) for n in steps}
    chances = np.linspace(0.01, 0.99, 99)
    assert max(missed_somewhere(p, ours) for p in chances) <= 0.05
    assert max(missed_somewhere(p, once) for p in chances) > (0.05 if len(steps) == 1 else 0.085)


def naive(x, m, alpha, sign):
    """K+ and K- as printed, one value at a time."""
    n, wealth, total, squares, count = len(x), 1.0, 0.5, 0.25, 1
    spread = 0.25
    for t, value in enumerate(x):
        bet = math.sqrt(2 * max(0.0, math.log(2 / alpha / wealth)) / ((n - t) * spread))
        bet = min(bet, 0.95 / (m if sign > 0 else 1 - m))
        wealth *= 1 + sign * bet * (value - m)
        total, count = total + value, count + 1
        squares += (value - total / count) ** 2
        spread = squares / count
    return wealth


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 60), st.floats(0.002, 0.2), st.integers(0, 10**6))
def test_at_its_ends_a_bet_has_won_two_over_alpha_and_just_inside_it_has_not(n, alpha, seed):
    x = np.random.default_rng(seed).beta(0.7, 1.4, n)
    low, high = mean_interval(x, alpha=alpha, seed=3)
    assert 0 <= low <= x.mean() <= high <= 1
    order, won = np.random.default_rng(3).permutation(x), 2 / alpha
    cell = x.mean() / POINTS**TURNS, (1 - x.mean()) / POINTS**TURNS  # of the last grid
    if low > 0:
        assert naive(order, low, alpha, 1) >= won * (1 - 1e-6)
    assert naive(order, low + cell[0], alpha, 1) < won * (1 + 1e-6)
    if high < 1:
        assert naive(order, high, alpha, -1) >= won * (1 - 1e-6)
    assert naive(order, high - cell[1], alpha, -1) < won * (1 + 1e-6)
    mirrored = mean_interval(1 - x, alpha=alpha, seed=3)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-5)


@pytest.mark.parametrize("n", [25, 100])
def test_no_mean_below_the_end_was_left_by_the_bets(n):
    """The search takes what is bet away to be all that lies below; among 200 in between none is not."""
    rng = np.random.default_rng(n)
    for x in (rng.random(n), (rng.random(n) < 0.3).astype(float), rng.beta(0.5, 1.5, n)):
        low = _lowest(x, 0.01)
        assert low > 0
        assert min(naive(x, m, 0.01, 1) for m in np.linspace(0, low, 202)[1:-1]) >= 200 * (1 - 1e-9)


def test_the_interval_of_a_mean_is_hardly_wider_than_the_normal_one():
    rng = np.random.default_rng(2)
    for n, most in ((100, 1.15), (1000, 1.08)):
        found = []
        for _ in range(8):
            x = rng.beta(1.2, 0.8, n)
            low, high = mean_interval(x, alpha=0.05)
            found.append((high - low) / (2 * 1.96 * x.std() / math.sqrt(n)))
        assert 0.95 < np.mean(found) < most


@pytest.mark.parametrize("law", ["rare", "skewed", "hits"])
def test_a_mean_of_any_law_is_held_at_every_rung(law):
    """At n = 25 and 100, 80 streams each: wrong at any rung in at most 5 %."""
    rng, steps, wrong = np.random.default_rng(5), ladder(25, 100), 0
    truth = {"rare": 0.02, "skewed": 0.1, "hits": 0.3}[law]
    for _ in range(80):
        x = {
            "rare": lambda: np.where(rng.random(100) < 0.04, rng.random(100), 0.0),
            "skewed": lambda: rng.beta(0.2, 1.8, 100),
            "hits": lambda: (rng.random(100) < 0.3).astype(float),
        }[law]()
        intervals = [mean_interval(x[:n], alpha=0.05 * share_of_error(25, 100, n)) for n in steps]
        wrong += any(not low <= truth <= high for low, high in intervals)
    assert wrong <= 4


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
        mean_interval([0.5], alpha=1)
