"""Flips: each is the best one there is, the incremental sums are the whole ones, and more than two classes agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError
from assay.methods.poison.flips import greedy, greedy_classes
from assay.methods.poison.propagation import Array, propagate, signs

Ints = NDArray[np.int64]


def toy(seed: int, labelled: int = 20, n: int = 200) -> tuple[Array, Ints, Ints]:
    """Two Gaussians at (-2, 0) and (2, 0): K at gamma = 0.5, the labels, and the truth of the rest."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.where(np.arange(n) < n // 2, 1, -1))
    x = rng.normal(size=(n, 2)) + 2 * np.stack([y, 0 * y], 1)
    return propagate(x[:labelled], x[labelled:], 0.5).K, y[:labelled], y[labelled:]


def wrong(K: Array, labels: Ints, target: Ints) -> int:
    return int((signs(K @ labels) != target).sum())


def flipped(labels: Ints, which: list[int]) -> Ints:
    changed = labels.copy()
    changed[which] *= -1
    return changed


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_each_flip_is_the_best_of_all(seed: int, as_published: bool) -> None:
    K, labels, target = toy(seed, labelled=8, n=40)
    found = greedy(K, labels, target, 4, as_published=as_published)
    assert found.clean == wrong(K, labels, target)
    counts = [found.clean, *found.errors]
    for c, best in enumerate(found.errors):
        before = found.order[:c].tolist()
        tried = [wrong(K, flipped(labels, [*before, i]), target) for i in range(8) if i not in before]
        assert best == max(tried) == wrong(K, found.applied(labels, c + 1), target)
    if as_published:
        assert len(found.order) == 4
    else:
        assert (np.diff(counts) > 0).all()
        if len(found.order) < 4:
            left = [i for i in range(8) if i not in found.order]
            assert max(wrong(K, flipped(labels, [*found.order, i]), target) for i in left) <= counts[-1]


def test_the_objective_counts_errors_twice() -> None:
    K, labels, target = toy(0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        delta = np.where(rng.random(20) < 0.3, -1, 1)
        scores = K @ (labels * delta)
        assert (scores != 0).all()
        objective = -0.5 * float(((signs(scores) - target) ** 2).sum())
        assert objective == -2 * wrong(K, labels * delta, target)


@given(st.integers(0, 10**6), st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_more_classes_flip_the_best_label_to_the_worst_class(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 2))
    K = propagate(x[:8], x[8:], 0.5).K
    labels, target = rng.integers(0, classes, 8), rng.integers(0, classes, 32)
    hot = np.eye(classes)

    def errors(of: Ints) -> int:
        return int(((K @ hot[of]).argmax(1) != target).sum())

    found = greedy_classes(K, labels, target, 3, classes)
    assert found.clean == errors(labels)
    for c, best in enumerate(found.errors):
        now = found.applied(labels, c)
        tried = []
        for i in set(range(8)) - set(found.order[:c].tolist()):
            for other in set(range(classes)) - {int(labels[i])}:
                changed = now.copy()
                changed[i] = other
                tried.append(errors(changed))
        assert best == max(tried) == errors(found.applied(labels, c + 1))


def test_two_classes_are_signs() -> None:
    K, labels, target = toy(0)
    two, many = greedy(K, labels, target, 5), greedy_classes(K, (labels < 0) * 1, (target < 0) * 1, 5, 2)
    assert two.order.tolist() == many.order.tolist()
    assert two.errors.tolist() == many.errors.tolist()
    assert ((two.to < 0) * 1).tolist() == many.to.tolist()


def test_a_score_of_zero_counts_as_plus_one() -> None:
    K = np.array([[0.5, 0.5], [1.0, 0.0]])
    found = greedy(K, np.array([1, -1]), np.array([-1, 1]), 0)
    assert found.clean == 1  # the first node's score is 0, its target -1
    assert not len(found.order)


def test_what_is_wrong_is_told() -> None:
    K = np.full((3, 2), 0.5)
    plus, three = np.ones(2, int), np.ones(3, int)
    with pytest.raises(AssayError, match=r"Got 0 among the labels; flips want -1 and \+1"):
        greedy(K, np.array([0, 1]), three, 1)
    with pytest.raises(AssayError, match="Got 2 among the target"):
        greedy(K, plus, 2 * three, 1)
    with pytest.raises(AssayError, match="whole numbers"):
        greedy(K, np.array([0.5, 1]), three, 1)
    with pytest.raises(ShapeError, match="one target a row"):
        greedy(K, three, three, 1)
    with pytest.raises(AssayError, match="-1 flips"):
        greedy(K, plus, three, -1)
    with pytest.raises(AssayError, match="Got 3 among the labels; 3 classes want labels from 0 to 2"):
        greedy_classes(K, np.array([3, 1]), three, 1, 3)
