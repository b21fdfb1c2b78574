"""Two samples told apart: the area of known shifts, chance where there is none, and counts of classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, kstest
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.shift import two_samples as module
from assay.methods.shift.two_samples import classifier_auc, least_auc, prior_gap
from assay.methods.uncertainty.detection import auroc_interval


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


def test_the_area_of_two_gaussians_is_below_and_near_the_best_there_is() -> None:
    a, b = normal(400, 8, 0), normal(300, 8, 1)
    b[:, 0] += 1.5
    found, best = classifier_auc(a, b, rng=seeded(0)), 0.5 * (1 + math.erf(1.5 / 2))
    assert found.low <= best
    assert best - 0.05 < found.value < best + 0.03


def test_a_change_of_spread_alone_is_told() -> None:
    found = classifier_auc(normal(300, 8, 0), 1.5 * normal(300, 8, 1), rng=seeded(0))
    assert found.low > 0.7


def test_the_ranks_are_high_where_a_row_is_like_the_second_sample() -> None:
    a, b = normal(60, 2, 0), normal(60, 2, 1) + 6
    b[:10] -= 6
    found = classifier_auc(a, b, rng=seeded(0))
    assert len(found.ranks[0]) == len(found.ranks[1]) == 60
    assert float(found.ranks[1][:10].mean()) < 0.5 < float(found.ranks[1][10:].mean())


def test_where_nothing_moved_the_interval_holds_a_half_as_often_as_it_says() -> None:
    """No row is scored by a classifier that saw it: the area is as often below 1/2 as above."""
    values, held, repeats = [], 0, 100
    for seed in range(repeats):
        found = classifier_auc(normal(40, 3, 2 * seed), normal(50, 3, 2 * seed + 1), rng=seeded(seed))
        values.append(found.value)
        held += found.low <= 0.5 <= found.high
    assert held >= 90
    assert abs(np.mean(values) - 0.5) < 0.02


def test_the_least_area_is_told_from_a_half_eight_times_in_ten() -> None:
    """By scores whose area is known, so that no classifier stands between."""
    m, n = 60, 40
    by = math.sqrt(2) * torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(least_auc(2 * m, 2 * n))).item()
    told = 0
    for seed in range(150):
        low, _ = auroc_interval(normal(n, 1, 2 * seed)[:, 0] + by, normal(m, 1, 2 * seed + 1)[:, 0])
        told += low > 0.5
    assert 0.7 < told / 150 < 0.9
    assert least_auc(4, 4) == 1
    assert least_auc(1000, 1000) < least_auc(30, 1000) < least_auc(30, 30)


def test_the_ridge_is_the_normal_equations_with_the_best_left_out() -> None:
    z, t, at = normal(30, 4, 0), (torch.arange(30) < 12).double(), normal(5, 4, 1)
    found = module._ridge(z, t, at)
    top = float(torch.linalg.eigvalsh((z - z.mean(0)).T @ (z - z.mean(0)))[-1])
    errors, scores = [], []
    for power in range(module.RIDGES):

        def fitted(rows: Tensor, to: Tensor, where: Tensor, ridge: float = top * 10.0**-power) -> Tensor:
            apart = rows - rows.mean(0)
            w = torch.linalg.solve(apart.T @ apart + ridge * torch.eye(4, dtype=z.dtype), apart.T @ (to - to.mean()))
            return (where - rows.mean(0)) @ w

        others = [torch.arange(30) != i for i in range(30)]
        left = [float(t[i] - t[keep].mean() - fitted(z[keep], t[keep], z[i][None])) for i, keep in enumerate(others)]
        errors.append(np.mean(np.square(left)))
        scores.append(fitted(z, t, at))
    assert_close(found, scores[int(np.argmin(errors))])


def test_rows_that_are_all_equal_cannot_be_told() -> None:
    found = classifier_auc(torch.zeros(30, 3), torch.zeros(40, 3), rng=seeded(0))
    assert found.value == 0.5
    assert found.low < 0.5 < found.high


def test_the_chi_square_is_pearsons_and_its_p_value_that_of_large_counts() -> None:
    first, second = np.array([60, 30, 40, 0]), np.array([40, 45, 30, 0])
    found = prior_gap(first, second, rng=np.random.default_rng(0), deals=4000)
    theirs = chi2_contingency(np.stack([first, second])[:, :3], correction=False)
    assert_close(found.chi_square, float(theirs.statistic))
    assert abs(found.p_value - theirs.pvalue) < 0.02
    assert_close(found.value, float(np.abs(first / 130 - second / 115).sum() / 2))


def test_p_values_of_class_counts_are_uniform_or_above_where_priors_agree() -> None:
    rng, shares = np.random.default_rng(0), np.array([0.5, 0.3, 0.15, 0.05])
    p = np.array(
        [
            prior_gap(rng.multinomial(400, shares), rng.multinomial(300, shares), rng=rng, deals=199).p_value
            for _ in range(300)
        ]
    )
    assert kstest(p, "uniform").pvalue > 0.01
    few = np.array(
        [
            prior_gap(rng.multinomial(6, shares), rng.multinomial(9, shares), rng=rng, deals=199).p_value
            for _ in range(300)
        ]
    )
    assert np.mean(few <= 0.05) <= 0.08


def test_the_interval_of_the_total_variation_holds_it() -> None:
    p, q, rng = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4]), np.random.default_rng(0)
    for other, truth in ((q, 0.2), (p, 0.0)):
        held = 0
        for _ in range(100):
            found = prior_gap(rng.multinomial(150, p), rng.multinomial(100, other), rng=rng, deals=200)
            held += found.low <= truth <= found.high
        assert held >= 92
    assert found.by_chance > 0.02


def test_identical_conditionals_with_other_priors_have_a_gap_of_their_priors_alone() -> None:
    """Within a class nothing can be told; over all classes it can, and the counts say why."""
    means = torch.tensor([[-2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    y = [torch.arange(300) < 300 * share for share in (0.5, 0.9)]
    a, b = (means[of.long()] + normal(300, 2, seed) for seed, of in enumerate(y))
    assert classifier_auc(a, b, rng=seeded(0)).low > 0.6
    for c in (False, True):
        within = classifier_auc(a[y[0] == c], b[y[1] == c], rng=seeded(0))
        assert within.low <= 0.5 <= within.high
    gap = prior_gap([150, 150], [30, 270], rng=np.random.default_rng(0))
    assert gap.p_value < 0.001
    assert gap.low < 0.4 < gap.high


def test_three_domains_with_one_threshold_have_gaps_of_both_kinds() -> None:
    """Class means (-3, 1), (-2, 2), (-1, 3) with one boundary: neither all inputs nor those of a class are alike."""
    y = torch.arange(80) % 2
    domains = [
        (torch.tensor([low, low + 4.0])[y] + 0.4 * normal(80, 1, seed)[:, 0])[:, None]
        for seed, low in enumerate((-3.0, -2.0, -1.0))
    ]
    for other in domains[1:]:
        assert classifier_auc(domains[0], other, rng=seeded(0)).low > 0.5
        for c in (0, 1):
            assert classifier_auc(domains[0][y == c], other[y == c], rng=seeded(0)).low > 0.7


def test_what_cannot_be_told_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="samples of 3 and 50 rows; give at least 4"):
        classifier_auc(torch.zeros(3, 2), torch.zeros(50, 2), rng=seeded(0))
    with pytest.raises(ShapeError, match="rows of the same length"):
        classifier_auc(torch.zeros(40, 2), torch.zeros(50, 3), rng=seeded(0))
    with pytest.raises(AssayError, match="two rows of class counts"):
        prior_gap([0, 0], [1, 2], rng=np.random.default_rng(0))
