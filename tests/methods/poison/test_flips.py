"""Flips: each is the best one there is, the incremental sums are the whole ones, and more than two classes agree."""

from __future__ import annotations

import tracemalloc
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError
from assay.methods.poison import flips
from assay.methods.poison.centrality import degree, most_central, pagerank
from assay.methods.poison.flips import exhaustive, greedy, greedy_classes, in_order
from assay.methods.poison.propagation import Array, affinity, propagate, signs

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
    counts, stopped = [found.clean, *found.errors], False
    for c, errors in enumerate(found.errors):
        before = found.order[:c].tolist()
        tried = [wrong(K, flipped(labels, [*before, i]), target) for i in range(8) if i not in before]
        assert errors == wrong(K, found.applied(labels, c + 1), target)
        if as_published or max(tried) > counts[c]:
            assert errors == max(tried)
        else:  # none adds an error
            stopped = True
    if as_published:
        assert len(found.order) == 4
    else:
        assert counts[-1] > max(counts[:-1], default=-1)
        assert stopped or (np.diff(counts) > 0).all()


def test_greed_goes_on_where_no_flip_alone_adds_an_error() -> None:
    K, labels = np.array([[0.4, 0.3, 0.3]]), np.ones(3, int)
    found = greedy(K, labels, np.array([1]), 3)
    assert found.errors.tolist() == [0, 1]  # 0.4 is left first, and the third flip adds none
    assert found.order.tolist() == [0, 1]
    assert not len(greedy(K, labels, np.array([1]), 1).order)
    # a node that is wrong by far has nothing to lose: its label 0 is let be, and label 1 and 2 bring down the other
    K = np.array([[1.0, 0.0, 0.0, 0.0], [0.1, 0.35, 0.35, 0.2]])
    found = greedy(K, np.array([-1, 1, 1, 1]), np.array([1, 1]), 2)
    assert found.order.tolist() == [1, 2]
    assert found.errors.tolist() == [1, 2]


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_all_sets_are_tried(seed: int) -> None:
    K, labels, target = toy(seed, labelled=7, n=30)
    counts = {
        which: wrong(K, flipped(labels, list(which)), target) for c in range(4) for which in combinations(range(7), c)
    }
    last = -1
    for c in range(4):
        found = exhaustive(K, labels, target, c)
        best = max(errors for which, errors in counts.items() if len(which) <= c)
        assert (
            wrong(K, found.applied(labels), target) == best == (found.errors[-1] if len(found.order) else found.clean)
        )
        smallest = min(len(which) for which, errors in counts.items() if len(which) <= c and errors == best)
        assert len(found.order) == smallest
        assert best >= wrong(K, greedy(K, labels, target, c).applied(labels), target)
        assert best >= last
        last = best
    one = greedy(K, labels, target, 1)
    assert wrong(K, one.applied(labels), target) == wrong(K, exhaustive(K, labels, target, 1).applied(labels), target)


def test_chance_and_centrality_hurt_less_than_greed() -> None:
    """And not knowing the truth changes little, where the clean error is low."""
    told = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        y = rng.permutation(np.where(np.arange(200) < 100, 1, -1))
        x = rng.normal(size=(200, 2)) + 2 * np.stack([y, 0 * y], 1)
        K, labels, target = propagate(x[:20], x[20:], 0.5).K, y[:20], y[20:]
        graph = affinity(x, 0.5)
        worst, blind = (greedy(K, labels, t, 3) for t in (target, signs(K @ labels)))
        chosen = [most_central(scores, 20, 3) for scores in (degree(graph), pagerank(graph))]
        chosen += [rng.choice(20, 3, replace=False) for _ in range(20)]
        others = [in_order(K, labels, target, which).errors[-1] for which in chosen]
        unknown = in_order(K, labels, target, blind.order).errors[-1]
        told.append((worst.clean, worst.errors[-1], unknown, others[0], others[1], np.mean(others[2:])))
    clean, greed, unknown, by_degree, by_rank, chance = np.mean(told, 0)
    assert clean < 8
    assert greed > 5 * clean
    assert unknown > 0.8 * greed
    assert max(by_degree, by_rank) < 0.7 * greed
    assert chance < greed / 3


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


def test_classes_that_tie_and_pairs_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each flip adds is the count of errors after it, with scores that are equal to the bit, and in any parts."""
    rng = np.random.default_rng(0)
    K, labels, target = rng.integers(0, 3, (12, 6)) / 4, rng.integers(0, 4, 6), rng.integers(0, 4, 12)
    hot = np.eye(4)
    clean = ((K @ hot[labels]).argmax(1) != target).sum()
    want = np.zeros((6, 4), int)
    for i, other in product(range(6), range(4)):
        changed = np.where(np.arange(6) == i, other, labels)
        want[i, other] = ((K @ hot[changed]).argmax(1) != target).sum() - clean
    for pairs in (200_000, 20):
        monkeypatch.setattr(flips, "PAIRS", pairs)
        assert (flips._added(K, labels, target, K @ hot[labels]) == want).all()


def test_many_classes_take_little_memory() -> None:
    rng = np.random.default_rng(0)
    K, labels, target = np.full((60, 300), 1 / 300), rng.integers(0, 200, 300), np.zeros(60, int)
    tracemalloc.start()
    greedy_classes(K, labels, target, 1, 200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6  # 18,000 pairs of 200 scores are 29 MB


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
    with pytest.raises(AssayError, match=r"79,375,495 sets of at most 5 of 100 labels .* fewer flips, or greedy"):
        exhaustive(np.full((3, 100), 0.01), np.ones(100, int), three, 5)
