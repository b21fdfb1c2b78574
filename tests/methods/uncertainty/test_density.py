from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.methods.uncertainty import density, ece, reliability_curve


def drawn(n, seed=0, bend=0.4):
    """Scores with P(o = 1 | s) = s - bend s (1 - s)."""
    rng = np.random.default_rng(seed)
    score = rng.beta(3, 1.5, n)
    truth = score - bend * score * (1 - score)
    return score, (rng.random(n) < truth).astype(float), truth


def densities_by_hand(score, hit, width, low=0.0, high=1.0, points=4097):
    """Both densities by direct sums over the scores and their mirror images."""
    grid = np.linspace(low, high, points)

    def density(s):
        images = np.concatenate([s, 2 * low - s, 2 * high - s])
        u = (grid[:, None] - images) / (3 * width)
        return (35 / 32 * np.clip(1 - u**2, 0, None) ** 3).sum(1) / (3 * width) / len(s)

    return grid, density(score), density(score[hit == 1])


@pytest.mark.parametrize(("width", "low"), [(0.1, 0.0), (0.033, 0.0), (0.05, 0.25)])
def test_the_density_estimate_is_the_mirrored_sum(width, low):
    score, hit, _ = drawn(200)
    score = low + (1 - low) * score
    ours = ece(score, hit, estimator="kde", bandwidth=width, support=(low, 1.0))
    grid, every, right = densities_by_hand(score, hit, width, low)
    share = hit.mean()
    by_product = np.trapezoid(np.abs(share * right - grid * every), grid)
    with np.errstate(invalid="ignore"):
        local = np.where(every > 0, share * right / every, grid) - grid
    assert np.trapezoid(every, grid) == pytest.approx(1, abs=1e-5)
    assert np.trapezoid(every * np.abs(local), grid) == pytest.approx(by_product, abs=1e-12)
    assert ours == pytest.approx(by_product, abs=2e-6)


@given(width=st.floats(1e-5, 3.0), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_a_mirrored_density_keeps_all_its_mass_at_any_width(width, seed):
    mass = np.random.default_rng(seed).random((2, density.GRID)) * (np.arange(density.GRID) % 97 == 0)
    mass[:, [0, -1]] = 1.0
    smooth = density.smooth(mass, density.spectrum(np.full(2, width), (0.0, 1.0)))
    held = smooth.sum(1) - smooth[:, [0, -1]].sum(1) / 2
    np.testing.assert_allclose(held, mass.sum(1))
    assert smooth.min() > -1e-9


def test_silverman_is_the_rule_and_the_width_of_the_default():
    score, hit, _ = drawn(300)
    low, high = np.percentile(score, [25, 75])
    width = min(score.std(ddof=1), (high - low) / 1.3489795) * (3 * 300 / 4) ** -0.2
    assert density.width_of(score[None], "silverman")[0] == pytest.approx(width)
    assert ece(score, hit, estimator="kde") == pytest.approx(ece(score, hit, estimator="kde", bandwidth=width))


def test_equal_scores_have_no_width_and_still_an_error():
    assert ece(np.full(50, 0.75), np.arange(50) < 25, estimator="kde") == pytest.approx(0.25, abs=1e-9)
    assert ece(np.ones(50), np.arange(50) < 40, estimator="kde") == pytest.approx(0.2, abs=1e-9)


def test_the_band_of_the_reliability_curve_covers_the_truth_where_there_are_data():
    asked = np.linspace(0.35, 0.95, 13)
    covered = []
    for seed in range(30):
        score, hit, _ = drawn(1500, seed)
        curve = reliability_curve(score, hit, draws=80, bandwidth=0.04)
        assert ((curve.low <= curve.median) & (curve.median <= curve.high)).all()
        assert curve.low.min() >= 0
        assert curve.high.max() <= 1
        _, low, high = curve.at(asked)
        truth = asked - 0.4 * asked * (1 - asked)
        covered.append(((low <= truth) & (truth <= high)).mean())
    assert 0.88 <= np.mean(covered) <= 0.99


def test_the_reliability_curve_is_the_ratio_of_densities_and_ends_where_the_scores_do():
    score, hit, _ = drawn(400)
    score = 0.4 + 0.4 * score
    curve = reliability_curve(score, hit, draws=200, bandwidth=0.03)
    grid, every, right = densities_by_hand(score, hit, 0.03)
    ratio = hit.mean() * right / np.maximum(every, 1e-12)
    middle = (curve.score > 0.6) & (curve.score < 0.75)
    np.testing.assert_allclose(curve.median[middle], np.interp(curve.score[middle], grid, ratio), atol=0.03)
    assert score.min() - 0.09 <= curve.score.min()
    assert curve.score.max() <= score.max() + 0.09


def test_resampling_the_grid_is_resampling_the_inputs():
    """The band against a loop that draws inputs and adds up kernels directly."""
    score, hit, _ = drawn(150)
    rng, curves, asked = np.random.default_rng(5), [], np.linspace(0.5, 0.9, 9)
    for _ in range(300):
        rows = rng.integers(0, 150, 150)
        grid, every, right = densities_by_hand(score[rows], hit[rows], 0.05, points=65)
        curves.append(np.interp(asked, grid, hit[rows].mean() * right / np.maximum(every, 1e-12)))
    low, high = np.quantile(curves, [0.025, 0.975], axis=0)
    _, ours_low, ours_high = reliability_curve(score, hit, bandwidth=0.05, draws=600).at(asked)
    np.testing.assert_allclose(ours_high - ours_low, high - low, rtol=0.25)
    np.testing.assert_allclose(ours_high + ours_low, high + low, atol=0.06)


def test_the_curve_comes_from_the_seed_and_serves_two_scores():
    score, hit, _ = drawn(100)
    first, again, other = (reliability_curve(score, hit, draws=20, seed=s).at(0.7) for s in (2, 2, 3))
    assert first == again != other
    assert reliability_curve([0.3, 0.8], [0, 1], draws=5).score.size > 0


def test_bad_input_is_named():
    with pytest.raises(AssayError, match="draws=1; a band wants at least 2"):
        reliability_curve([0.5, 0.6], [0, 1], draws=1)
    with pytest.raises(AssayError, match=r"support=\(0.6, 1\) for scores from 0.5"):
        reliability_curve([0.5, 0.7], [0, 1], support=(0.6, 1.0))
    with pytest.raises(AssayError, match="score 1.5; scores are probabilities"):
        reliability_curve([0.5, 1.5], [0, 1])
