from __future__ import annotations

import numpy as np
import pytest

from assay.errors import AssayError
from assay.methods.uncertainty import ece
from assay.methods.uncertainty.debiased import debiased_ece, debiased_rmsce, folded_mean
from assay.methods.uncertainty.maximum import maximum_error


def test_the_folded_mean_is_that_of_draws():
    rng = np.random.default_rng(0)
    mean, variance = np.array([0.0, 0.1, -0.3, 2.0]), np.array([0.04, 0.09, 0.01, 1e-9])
    drawn = np.abs(mean + np.sqrt(variance) * rng.normal(size=(200_000, 4))).mean(0)
    np.testing.assert_allclose(folded_mean(mean, variance), drawn, atol=0.002)
    assert folded_mean(np.array([0.5]), np.array([0.0]))[0] == pytest.approx(0.5)


def test_it_is_the_formula_of_the_source_one_bin_at_a_time():
    rng = np.random.default_rng(1)
    score, n = rng.uniform(0, 1, 300), 300
    hit = (rng.random(n) < score**2).astype(float)
    one = two = 0.0
    for j in range(10):
        rows = [i for i in range(n) if j / 10 < score[i] <= (j + 1) / 10]
        a, s, m = hit[rows].mean(), score[rows].mean(), len(rows)
        draws = np.abs(rng.normal(a - s, np.sqrt(a * (1 - a) / m), 100_000)).mean()
        one += m / n * (2 * abs(a - s) - draws)
        two += m / n * ((a - s) ** 2 - a * (1 - a) / (m - 1))
    assert debiased_ece(score, hit, bins=10) == pytest.approx(one, abs=5e-4)
    assert debiased_rmsce(score, hit, bins=10) == pytest.approx(two**0.5)


def test_the_bias_is_less_and_that_of_the_squares_is_none():
    """Scores at the bins' middles, so that the true errors are known."""
    rng = np.random.default_rng(2)
    plain, less, squares = [], [], []
    for _ in range(400):
        score = (rng.integers(0, 10, 150) + 0.5) / 10
        hit = rng.random(150) < np.clip(score - 0.05, 0, 1)
        plain.append(ece(score, hit, bins=10))
        less.append(debiased_ece(score, hit, bins=10))
        squares.append(debiased_rmsce(score, hit, bins=10) ** 2)
    assert np.mean(plain) > 1.8 * 0.05
    assert abs(np.mean(less) - 0.05) < 0.6 * (np.mean(plain) - 0.05)
    # Clipped at 0, so a little above the true 0.0025; the plain mean square is 0.0025 + mean var/n_j, near 0.012.
    assert np.mean(squares) < 0.006


def test_a_single_input_a_bin_and_certain_bins_have_an_answer():
    assert debiased_rmsce([0.1, 0.9], [0, 1]) == 0
    assert debiased_ece([0.1, 0.9], [0, 1]) == pytest.approx(0.1)  # no variance is seen: nothing is taken off
    assert debiased_ece([1.0] * 50, [0] * 50) == pytest.approx(1)


def test_the_maximum_is_the_largest_gap_of_a_bin():
    score = np.array([0.15, 0.15, 0.55, 0.55, 0.95, 0.95])
    hit = np.array([0, 1, 1, 1, 1, 0])
    found = maximum_error(score, hit, bins=10)
    assert found.value == pytest.approx(0.45)
    assert (found.bin, found.inputs) in ((5, 2), (9, 2))
    assert found.low == 0
    assert found.value <= found.high <= 1
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    import torch

    rng = np.random.default_rng(0)
    score = rng.uniform(0.01, 0.99, 500)
    hit = rng.random(500) < score**2
    theirs = torchmetrics.binary_calibration_error(torch.tensor(score), torch.tensor(hit).long(), n_bins=10, norm="max")
    assert maximum_error(score, hit, bins=10).value >= ece(score, hit, bins=10)
    assert maximum_error(score, hit, bins=10).value == pytest.approx(float(theirs), abs=1e-6)


def test_a_calibrated_model_reaches_its_floor_and_the_interval_holds_the_truth():
    rng = np.random.default_rng(3)
    score = (rng.integers(0, 10, 600) + 0.5) / 10
    calm = [maximum_error(score, rng.random(600) < score, bins=10, draws=40, seed=s) for s in range(40)]
    assert np.mean([f.value for f in calm]) == pytest.approx(np.mean([f.floor for f in calm]), rel=0.1)
    assert sum(f.low == 0 for f in calm) >= 36
    true = np.where(score > 0.8, score - 0.4, score)
    loud = [maximum_error(score, rng.random(600) < true, bins=10, draws=2, seed=s) for s in range(40)]
    assert sum(f.low <= 0.4 <= f.high for f in loud) >= 36
    assert all(f.low > 0.1 for f in loud)
    with pytest.raises(AssayError, match="draws=0"):
        maximum_error(score, score > 0.5, draws=0)
