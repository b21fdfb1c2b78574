"""Label propagation: its matrix is what the energy wants, whole or sparse, and nodes that hang on no label are told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.optimize import minimize

from assay.errors import AssayError, ShapeError
from assay.methods.poison.propagation import affinity, on_graph, propagate, reduced, signs, undecided

Array = NDArray[np.float64]


def rows(seed: int, n: int, d: int = 2) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d))


def by_the_print(labelled: Array, unlabelled: Array, gamma: float) -> Array:
    """K with every tie, that of a node to itself too, entry by entry and by an inverse."""
    x = np.concatenate([labelled, unlabelled])
    s = np.array([[np.exp(-gamma * ((a - b) ** 2).sum()) for b in x] for a in x])
    l = len(labelled)
    d = np.diag(s.sum(1))
    return np.linalg.inv(d[l:, l:] - s[l:, l:]) @ s[l:, :l]


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 20), st.floats(0.05, 0.5))
@settings(max_examples=25, deadline=None)
def test_rows_of_k_are_weights(seed: int, labelled: int, unlabelled: int, gamma: float) -> None:
    x = np.random.default_rng(seed).uniform(-1.5, 1.5, (labelled + unlabelled, 2))
    found = propagate(x[:labelled], x[labelled:], gamma)
    assert (found.K >= 0).all()
    assert_allclose(found.K.sum(1), 1, rtol=0, atol=1e-11)
    assert_allclose(found.K, by_the_print(x[:labelled], x[labelled:], gamma), rtol=1e-6, atol=1e-9)
    y = np.random.default_rng(seed).normal(size=labelled)
    told = found.predict(y)
    assert y.min() - 1e-10 <= told.min()
    assert told.max() <= y.max() + 1e-10
    assert_allclose(found.predict(y + 3), told + 3, atol=1e-10)


def test_answers_have_the_least_energy() -> None:
    x, y = rows(1, 9), np.array([1.0, -1, 0.5])
    s = affinity(x, 0.7)

    def energy(answers: Array) -> float:
        f = np.concatenate([y, answers])
        return float((s * (f[:, None] - f) ** 2).sum() / 2)

    best = minimize(energy, np.zeros(6), tol=1e-14).x
    assert_allclose(propagate(x[:3], x[3:], 0.7).predict(y), best, atol=1e-5)


@pytest.mark.parametrize("neighbours", [None, 6])
@pytest.mark.parametrize("width", [2, 20])  # neighbours by a tree, and by products
def test_products_need_no_matrix(neighbours: int | None, width: int) -> None:
    x, rng = rows(2, 60, width), np.random.default_rng(3)
    found = propagate(x[:20], x[20:], 0.1, neighbours=neighbours)
    for right, left in (
        (rng.normal(size=20), rng.normal(size=40)),
        (rng.normal(size=(20, 3)), rng.normal(size=(40, 2))),
    ):
        assert_allclose(found.matmul(right), found.K @ right, atol=1e-12)
        assert_allclose(found.rmatmul(left), found.K.T @ left, atol=1e-12)
        assert_allclose(found.operator @ right, found.K @ right, atol=1e-12)
        assert_allclose(found.operator.T @ left, found.K.T @ left, atol=1e-12)


@pytest.mark.parametrize("width", [2, 20])
def test_a_sparse_graph_with_all_neighbours_is_the_whole_one(width: int) -> None:
    x = rows(4, 30, width)
    whole, tied = (propagate(x[:9], x[9:], 0.2, neighbours=n) for n in (None, 29))
    assert_allclose(tied.K, whole.K, atol=1e-12)
    few = affinity(x, 0.2, neighbours=3)
    assert_allclose((few - few.T).toarray(), 0, atol=0)
    kept = few.toarray() > 0
    assert (kept.sum(1) >= 3).all()
    assert not kept.diagonal().any()
    assert_allclose(few.toarray()[kept], affinity(x, 0.2)[kept], rtol=1e-12)


def test_equal_rows_are_neighbours_of_each_other() -> None:
    x = np.zeros((6, 2))
    few = affinity(x, 1.0, neighbours=2).toarray()
    assert not few.diagonal().any()
    assert (few.sum(1) >= 2).all()


def test_weak_ties_are_exact() -> None:
    """A node that is far from all, but nearest to one label, goes with it."""
    labelled, far = np.array([[0.0, 0], [0, 3]]), np.array([[20.0, 3]])
    found = propagate(labelled, far, 0.5)
    by_hand = np.array([np.exp(-4.5), 1]) / (1 + np.exp(-4.5))
    assert_allclose(found.K[0], by_hand, rtol=1e-9)


def test_a_score_of_zero_is_plus_one_and_counted() -> None:
    scores = np.array([-1.0, 0.0, 2.0, -0.0])
    assert signs(scores).tolist() == [-1, 1, 1, 1]
    assert undecided(scores) == 2


@pytest.mark.parametrize("neighbours", [None, 3])
@pytest.mark.parametrize("island", [1, 2, 7])
def test_an_island_is_told_in_one_line(neighbours: int | None, island: int) -> None:
    x = np.concatenate([rows(5, 30), 1e3 + 0.1 * rows(6, island)])
    with pytest.raises(
        AssayError, match=rf"^{island} unlabelled nodes? (has|have) no way .*gamma=0.5.*20.*smaller gamma"
    ) as told:
        propagate(x[:10], x[10:], 0.5, neighbours=neighbours)
    assert "\n" not in str(told.value)
    assert ("..." in str(told.value)) == (island > 5)
    if neighbours is None:
        propagate(x[:10], x[10:], 1e-5)  # what the line advises


def test_ties_too_weak_for_rounding_are_an_island() -> None:
    """The pair hangs on labels by 1e-30 of its own tie: no solve in double precision can tell."""
    x = np.array([[0.0], [1.0], [0.5], [12.0], [12.1]])
    with pytest.raises(AssayError, match="smaller gamma"):
        propagate(x[:2], x[2:], 0.6)


def test_what_else_is_wrong_is_told() -> None:
    x = rows(7, 12)
    with pytest.raises(AssayError, match="gamma=0; .*> 0"):
        propagate(x[:4], x[4:], 0)
    with pytest.raises(ShapeError, match="2 features and unlabelled ones of 1"):
        propagate(x[:4], x[4:, :1], 1)
    with pytest.raises(AssayError, match="0 labelled"):
        propagate(x[:0], x, 1)
    with pytest.raises(AssayError, match="neighbours=12 for 12 rows"):
        propagate(x[:4], x[4:], 1, neighbours=12)
    x[3, 1] = np.nan
    with pytest.raises(AssayError, match="Row 3 holds NaN"):
        propagate(x[:4], x[4:], 1)


def test_any_graph_will_do() -> None:
    """A path a - b - c - d with the ends labelled: voltages between them."""
    path = np.diag(np.ones(3), 1)
    order = [0, 3, 1, 2]
    ties = (path + path.T)[np.ix_(order, order)]
    assert_allclose(on_graph(ties, 2).predict(np.array([0.0, 3.0])), [1, 2], atol=1e-12)


def test_nodes_that_are_never_labelled_are_eliminated_once() -> None:
    x = rows(8, 40)
    small = reduced(affinity(x, 0.5), 12)
    for labelled in (np.array([3, 0, 7]), np.arange(12)):
        K, nodes = small.propagated(labelled)
        assert sorted([*labelled, *nodes]) == list(range(40))
        assert_allclose(K, propagate(x[labelled], x[nodes], 0.5).K, atol=1e-10)
