from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from assay.errors import AssayError
from assay.methods.uncertainty import risk_coverage
from assay.methods.uncertainty.selective import best_area, guaranteed

pairs_of = st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.7, 0.9, 1.0]), st.booleans()), min_size=1, max_size=30)


def drawn(n, seed=0):
    rng = np.random.default_rng(seed)
    score = rng.uniform(0.3, 1.0, n)
    return score, rng.random(n) < score


@given(pairs=pairs_of)
@settings(deadline=None, max_examples=80)
def test_it_is_the_definition_threshold_by_threshold(pairs):
    score, hit = np.array([s for s, _ in pairs]), np.array([h for _, h in pairs])
    curve = risk_coverage(score, hit)
    assert curve.threshold.tolist() == sorted(set(score.tolist()), reverse=True)
    for t, coverage, risk in zip(*curve, strict=True):
        assert coverage == pytest.approx((score >= t).mean())
        assert risk == pytest.approx(1 - hit[score >= t].mean())
    by_input = np.mean([1 - hit[score >= s].mean() for s in score])
    assert curve.area() == pytest.approx(by_input)
    assert best_area(hit) - 1e-12 <= curve.area() <= 1
    for r in (0.0, 0.3, 1.0):
        allowed = [(score >= t).mean() for t in set(score) if 1 - hit[score >= t].mean() <= r + 1e-12]
        assert curve.answerable(r + 1e-12) == pytest.approx(max(allowed, default=0.0))


def test_the_best_order_has_the_best_area_and_a_random_one_the_error_rate():
    hit = np.arange(200) < 160
    assert risk_coverage(np.linspace(1, 0, 200), hit).area() == pytest.approx(best_area(hit))
    r = 0.2  # of many inputs the exact sum is what print approximates
    assert best_area(np.arange(20_000) < 16_000) == pytest.approx(r + (1 - r) * np.log(1 - r), abs=1e-4)
    rng = np.random.default_rng(0)
    areas = [risk_coverage(rng.random(200), hit).area() for _ in range(300)]
    assert np.mean(areas) == pytest.approx(0.2, abs=0.01)
    assert risk_coverage(np.full(200, 0.5), hit).area() == pytest.approx(0.2)  # all equal: all or nothing


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_the_inputs_repeated(seed):
    score, hit = drawn(60, seed)
    score = np.round(score, 1)
    counts = np.random.default_rng(seed).multinomial(60, np.full(60, 1 / 60), size=4)
    together = risk_coverage(score, hit, counts=counts)
    for row, area, five in zip(counts, together.area(), together.answerable(0.2), strict=True):
        apart = risk_coverage(np.repeat(score, row), np.repeat(hit, row))
        assert area == pytest.approx(apart.area())
        assert five == pytest.approx(apart.answerable(0.2))


def test_the_promise_holds_and_is_below_what_the_sample_shows():
    """True risk above t of uniform scores that are right with the probability s: 1 - (t + 1) / 2."""
    broken, shares = 0, []
    for seed in range(200):
        score, hit = drawn(2000, seed)
        found = guaranteed(score, hit, risk=0.15, delta=0.1)
        assert found.coverage <= risk_coverage(score, hit).answerable(0.15) + 1e-12
        assert found.bound <= 0.15 or found.threshold is None
        broken += found.threshold is not None and 1 - (found.threshold + 1) / 2 > 0.15
        shares.append(found.coverage)
    assert broken <= 20  # a tenth at most is allowed; the union bound makes it far rarer
    assert np.mean(shares) > 0.2  # of the 0.43 for which it is true


def test_a_bound_is_the_binomial_one():
    found = guaranteed(np.full(100, 0.8), np.arange(100) < 97, risk=0.2)
    assert binom.cdf(3, 100, found.bound) == pytest.approx(0.05)  # one threshold, one step
    assert found.coverage == 1
    score, hit = np.repeat([0.9, 0.8, 0.7], [400, 100, 100]), np.arange(600) % 100 > 0
    found = guaranteed(score, hit, risk=0.05)
    assert found.coverage == 1
    assert binom.cdf(6, 600, found.bound) == pytest.approx(0.025)  # three thresholds, two steps
    nothing = guaranteed([0.9, 0.8], [1, 1], risk=0.01)
    assert nothing.threshold is None
    assert nothing.coverage == 0


def test_bad_input_is_named():
    with pytest.raises(AssayError, match="Got nan among the scores"):
        risk_coverage([float("nan")], [1])
    with pytest.raises(AssayError, match=r"counts of shape \(2, 3\) for 2 inputs"):
        risk_coverage([0.5, 0.6], [0, 1], counts=np.ones((2, 3)))
    with pytest.raises(AssayError, match="risk=0 and delta=0.05"):
        guaranteed([0.5], [1], risk=0)
