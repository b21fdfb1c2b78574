"""Rank agreement of criteria, and their clusters."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import spearmanr

from assay.errors import AssayError, ShapeError
from assay.methods.compress import criteria
from assay.methods.compress.agreement import SAME, by_ranks, clusters, matrix, most_picks, picks, spearman

seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=12)
@given(seed=seeds, n=st.integers(2, 40))
def test_without_ties_formula_and_correlation_of_ranks_are_scipys(seed: int, n: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, n))
    theirs = float(spearmanr(x, y).statistic)
    assert_allclose([by_ranks(x, y), spearman(x, y)], theirs, atol=1e-12)


@settings(deadline=None, max_examples=12)
@given(seed=seeds, n=st.integers(6, 40))
def test_with_ties_it_is_scipys_too_and_the_formula_says_that_it_is_not_for_them(seed: int, n: int) -> None:
    x, y = np.random.default_rng(seed).integers(0, 4, size=(2, n)).astype(float)
    x[:2], y[:2] = (0, 1), (1, 0)
    assert_allclose(spearman(x, y), float(spearmanr(x, y).statistic), atol=1e-12)
    with pytest.raises(AssayError, match="holds without ties"):
        by_ranks(x, y)


@settings(deadline=None, max_examples=10)
@given(seed=seeds)
def test_the_matrix_has_a_diagonal_of_one_and_knows_no_units(seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(5, 12))
    rho = matrix(scores)
    assert_allclose(np.diag(rho), 1.0)
    assert_allclose(rho, rho.T)
    bent = np.stack([np.exp(scores[0]), 3 * scores[1] - 7, scores[2] ** 3, np.arctan(scores[3]), scores[4]])
    assert_allclose(matrix(bent), rho, atol=1e-12)
    assert_allclose(matrix(np.stack([scores[0], -scores[0]]))[0, 1], -1.0)


@settings(deadline=None, max_examples=15)
@given(seed=seeds, n=st.integers(2, 40), spread=st.floats(0, 4))
def test_a_score_agrees_with_itself_and_any_increasing_transform_is_the_same_score(
    seed: int, n: int, spread: float
) -> None:
    """Any: the k-th lowest score becomes the sum of k steps above 0, all alike or of many sizes."""
    rng = np.random.default_rng(seed)
    scores, steps = rng.normal(size=(3, n)), rng.lognormal(0, spread, size=n)
    assert_allclose([by_ranks(scores[0], scores[0]), spearman(scores[0], scores[0])], 1.0)
    assert_allclose([by_ranks(scores[0], -scores[0]), spearman(scores[0], -scores[0])], -1.0)
    climbed = np.cumsum(steps)
    moved = scores.copy()
    moved[1] = climbed[scores[1].argsort().argsort()] - 100.0
    assert_allclose(matrix(moved), matrix(scores), atol=1e-12)
    assert_allclose(by_ranks(moved[0], moved[1]), by_ranks(scores[0], scores[1]), atol=1e-12)


def test_as_published_the_differences_are_those_of_the_scores() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 5.0])
    assert_allclose(spearman(x, y), 1.0)
    assert_allclose(spearman(x, y, as_published=True), 1 - 6 * 4 / (3 * 8))
    assert_allclose(spearman(10 * x, 10 * y, as_published=True), 1 - 6 * 400 / (3 * 8))  # units decide
    ranks = np.random.default_rng(0).permutation(9) + 1.0
    order = np.arange(1.0, 10)
    assert_allclose(spearman(ranks, order, as_published=True), spearman(ranks, order))  # of ranks it is right


def test_a_constant_score_agrees_with_another_one_alone() -> None:
    rho = matrix(np.stack([np.ones(4), np.zeros(4), np.arange(4.0)]))
    assert_allclose(rho, [[1, 1, 0], [1, 1, 0], [0, 0, 1]])


def test_shapes_that_do_not_fit_are_told() -> None:
    with pytest.raises(ShapeError, match=r"\(3,\) and \(4,\)"):
        spearman(np.zeros(3), np.zeros(4))
    with pytest.raises(ShapeError, match="at least two"):
        matrix(np.zeros((3, 1)))
    for count in (0, 4):
        with pytest.raises(AssayError, match=f"3 criteria cannot be put into {count} clusters"):
            clusters(np.eye(3), count)


@pytest.mark.parametrize("seed", range(3))
def test_planted_groups_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base, group = rng.normal(size=(3, 60)), rng.permutation(np.arange(12) % 3)
    rho = matrix(base[group] + 0.2 * rng.normal(size=(12, 60)))
    planted = sorted(tuple(np.flatnonzero(group == k).tolist()) for k in range(3))
    assert clusters(rho, 3, seed=seed) == tuple(planted)
    for some in planted:
        assert rho[np.ix_(some, some)].min() > SAME


def test_every_cluster_has_a_criterion_however_alike_they_are() -> None:
    alike = matrix(np.tile(np.arange(6.0), (4, 1)))
    for count in range(1, 5):
        found = clusters(alike, count)
        assert len(found) == count
        assert sorted(i for some in found for i in some) == [0, 1, 2, 3]
    assert clusters(matrix(np.random.default_rng(0).normal(size=(4, 9))), 4) == ((0,), (1,), (2,), (3,))


def test_clusters_leave_fewer_picks_than_choosing_freely() -> None:
    """In whole numbers, for any K and N: N^K <= K^K binom(N, K)."""
    for n in range(1, 61):
        for k in range(1, n + 1):
            assert n**k <= k**k * math.comb(n, k)
            assert most_picks(n, k) == pytest.approx(n**k / k**k)
    assert math.comb(12, 6) ** 13 == pytest.approx(3.6e38, rel=0.01)  # print: about 3^38
    assert 3**38 < 1e19


@settings(deadline=None, max_examples=15)
@given(st.lists(st.lists(st.integers(1, 6), min_size=3, max_size=3), min_size=1, max_size=4))
def test_however_criteria_are_clustered_there_are_no_more_picks_than_that(sizes: list[list[int]]) -> None:
    layers, ways = [], 1
    for layer in sizes:
        ends = np.cumsum([0, *layer]).tolist()
        layers.append(tuple(tuple(range(a, b)) for a, b in itertools.pairwise(ends)))
        assert picks(layers[-1:]) == len(list(itertools.product(*layers[-1]))) <= most_picks(sum(layer), 3) + 1e-9
        ways *= picks(layers[-1:])
    assert picks(layers) == ways


def on_random_filters(many: int, times: int) -> np.ndarray:
    """Rank agreement of L1, L2, FPGM and the shift of a normalisation, all at random: times 4 4."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for _ in range(times):
        w = torch.randn(many, 16 * 9, generator=rng)
        beta = torch.randn(many, generator=rng).abs()
        found.append(matrix(torch.stack([criteria.l1(w), criteria.l2(w), criteria.fpgm(w), beta]).numpy()))
    return np.stack(found)


@pytest.mark.parametrize(("many", "times"), [(64, 24), (256, 6), (512, 3)])
def test_criteria_agree_on_random_filters_already(many: int, times: int) -> None:
    rho = on_random_filters(many, times).mean(0)
    assert 0.91 < rho[0, 1] < 0.94
    assert 0.975 < rho[1, 2] < 0.999
    assert abs(rho[0, 3]) < 4 / np.sqrt(times * many)


def test_of_few_random_filters_the_agreement_is_noisy() -> None:
    few, many = (on_random_filters(n, 40)[:, 0, 1] for n in (16, 128))
    assert few.min() < 0.85 < many.min()
    assert few.std() > 2 * many.std()
