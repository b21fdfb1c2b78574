"""Confidence sequences: against their closed form and the equation as printed, and right however often one looks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binom

from assay.errors import AssayError
from assay.finding import wilson
from assay.methods.uncertainty.sequences import proportion_sequence, share_of_error

counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def wealth(hits, n, p, prior):
    """As printed, by scipy's laws: the chance of this stream under the mixture over that under p."""
    return math.exp(betabinom(n, *prior).logpmf(hits) - binom(n, p).logpmf(hits))


@settings(deadline=None, max_examples=30)
@given(counts, st.floats(0.001, 0.3), st.sampled_from([(0.5, 0.5), (1.0, 1.0), (2.0, 3.0)]))
def test_at_its_ends_the_wealth_is_one_over_alpha(count, alpha, prior):
    hits, n = count
    low, high = proportion_sequence(hits, n, alpha=alpha, prior=prior)
    assert 0 <= low <= hits / n <= high <= 1
    assert (low == 0) is (hits == 0)
    assert (high == 1) is (hits == n)
    for end in (low, high):
        if 1e-12 < end < 1 - 1e-12:
            assert wealth(hits, n, end, prior) == pytest.approx(1 / alpha, rel=1e-6)


@pytest.mark.parametrize("n", [1, 7, 100, 5000])
def test_where_nothing_was_missed_it_is_the_closed_form(n):
    low, high = proportion_sequence(n, n, alpha=0.05, prior=(1.0, 1.0))
    assert low == pytest.approx((0.05 / (n + 1)) ** (1 / n), rel=1e-9)
    assert high == 1
    assert proportion_sequence(0, n, alpha=0.05, prior=(1.0, 1.0)) == pytest.approx((0, 1 - low), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(counts, st.floats(0.005, 0.1))
def test_it_is_symmetric_wider_than_one_look_and_wider_the_surer(count, alpha):
    hits, n = count
    low, high = proportion_sequence(hits, n, alpha=alpha)
    assert proportion_sequence(n - hits, n, alpha=alpha) == pytest.approx((1 - high, 1 - low), abs=1e-9)
    wider = proportion_sequence(hits, n, alpha=alpha / 2)
    assert wider[0] <= low
    assert wider[1] >= high
    once = wilson(hits, n)
    if n >= 20:  # where Wilson's approximation is one
        at_95 = proportion_sequence(hits, n, alpha=0.05)
        assert at_95[0] <= once[0] + 1e-9
        assert at_95[1] >= once[1] - 1e-9


LOOKS = np.arange(20, 201, 20)


@pytest.fixture(scope="module")
def ends():
    """Of both ways, at each look and for every number of hits: looks, hits, two ends."""

    def table(interval):
        beyond = [(0.0, 1.0)]
        return np.array([[interval(h, n) for h in range(n + 1)] + beyond * (200 - n) for n in LOOKS.tolist()])

    return table(lambda h, n: proportion_sequence(h, n, alpha=0.05)), table(wilson)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
def test_who_looks_again_and_again_is_wrong_no_more_often_than_claimed(p, ends):
    """4,000 streams of 200: wrong at any look in at most 5 %, where Wilson's intervals are in far more."""
    sums = np.cumsum(np.random.default_rng(0).random((4000, 200)) < p, axis=1)[:, LOOKS - 1]
    missed = []
    for table in ends:
        seen = table[np.arange(len(LOOKS)), sums]  # streams, looks, two ends
        missed.append(((seen[..., 0] > p) | (seen[..., 1] < p)).any(1).mean())
    assert missed[0] <= 0.05
    assert missed[1] > 0.08


def test_hits_that_are_drawn_anew_at_each_look_do_no_harm():
    """A random attack judges the same inputs afresh: not one stream, and looks that double are still right."""
    rng = np.random.default_rng(1)
    at, wrong = 25 * 2 ** np.arange(6), 0
    for _ in range(300):
        chance = rng.beta(0.6, 0.4, size=at[-1])  # of each input
        looks = [proportion_sequence(int((rng.random(n) < chance[:n]).sum()), int(n), alpha=0.05) for n in at]
        wrong += any(not low <= 0.6 <= high for low, high in looks)
    assert wrong <= 15


def test_the_shares_of_the_error_sum_to_it():
    assert sum(share_of_error(k, 0.05) for k in range(1, 2000)) == pytest.approx(0.05, rel=1e-3)
    assert share_of_error(1, 0.05) == 0.025


def test_what_is_no_proportion_is_refused():
    with pytest.raises(AssayError, match="3 hits of 2 are no proportion"):
        proportion_sequence(3, 2, alpha=0.05)
    with pytest.raises(AssayError, match="An error of 0 is none"):
        proportion_sequence(1, 2, alpha=0)
    with pytest.raises(AssayError, match="Look 0 is none"):
        share_of_error(0, 0.05)
