"""Measures of mistakes under label trees: the identity of three levels, its failure on four, and the printed tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.label_tree import LabelTree, grouped, read_tree
from assay.errors import AssayError, ShapeError
from assay.methods.right.tree_measures import random_mistakes, tree_measures

DEEP = read_tree('{"a": {"b": ["0", "1"], "c": ["2", "3"]}, "d": {"e": ["4", "5"]}}', "012345")
UNEVEN = read_tree('{"a": {"b": ["0", "1"], "c": ["2"]}, "d": ["3", "4", "5"]}', "012345")
classes = st.lists(st.integers(0, 5), min_size=1, max_size=30)
answers = classes.flatmap(
    lambda true: st.tuples(st.just(true), st.lists(st.integers(0, 5), min_size=len(true), max_size=len(true)))
)
three_levels = st.lists(st.integers(0, 2), min_size=6, max_size=6).filter(lambda g: len(set(g)) > 1)


def slowly(tree: LabelTree, said: int, true: int) -> tuple[float, float, int, int]:
    """Eq. 3-6, one pair at a time, on sets of nodes."""
    a, b = ({tree.paths[c][:d] for d in range(len(tree.paths[c]) + 1)} for c in (said, true))
    lowest = max(a & b, key=len)
    height = max(len(path) - len(lowest) for path in tree.paths if path[: len(lowest)] == lowest)
    return len(a & b) / len(a), len(a & b) / len(b), len(a ^ b), height


@settings(max_examples=30, deadline=None)
@given(answers, three_levels)
def test_they_are_the_equations_averaged_over_trees(pair: tuple[list[int], list[int]], groups: list[int]) -> None:
    true, said = map(np.array, pair)
    trees = [DEEP, UNEVEN, grouped("012345", groups)]
    ours = tree_measures(trees, said, true)
    theirs = np.mean([[slowly(tree, s, t) for s, t in zip(said, true, strict=True)] for tree in trees], axis=0)
    np.testing.assert_allclose(np.stack(ours[:4], 1), theirs)


@settings(max_examples=30, deadline=None)
@given(answers, st.lists(three_levels, min_size=1, max_size=3))
def test_on_three_levels_they_are_one_number(pair: tuple[list[int], list[int]], groups: list[list[int]]) -> None:
    true, said = map(np.array, pair)
    trees = [grouped("012345", each) for each in groups]
    m = tree_measures(trees, said, true)
    lca, right = m.lca.mean(), (said == true).mean()
    right_group = np.mean([(tree.group_of()[said] == tree.group_of()[true]).mean() for tree in trees])
    np.testing.assert_allclose(m.tie, 2 * m.lca)
    np.testing.assert_allclose([m.precision.mean(), m.recall.mean()], m.f)
    assert m.f == pytest.approx(1 - lca / 3)
    assert m.f == pytest.approx((1 + right + right_group) / 3)
    assert lca == pytest.approx(2 - right - right_group)
    assert m.group.mean() == pytest.approx(1 - right_group)


def test_on_deeper_and_uneven_trees_they_are_not() -> None:
    true, said = np.array([0, 0, 3]), np.array([2, 4, 3])
    m = tree_measures([DEEP], said, true)
    assert m.lca.tolist() == [2, 3, 0]
    assert m.tie.tolist() == [4, 6, 0]  # 2 LCA still, all leaves being as deep
    assert m.f == pytest.approx((2 / 4 + 1 / 4 + 1) / 3)
    assert m.f != pytest.approx(1 - m.lca.mean() / 3)
    odd = tree_measures([UNEVEN], np.array([3]), np.array([0]))
    assert (odd.tie[0], odd.lca[0]) == (5, 3)
    assert (odd.precision[0], odd.recall[0]) == (pytest.approx(1 / 3), 1 / 4)


def test_perfect_answers_and_mistakes_inside_groups() -> None:
    tree = grouped("012345", [0, 0, 1, 1, 2, 2])
    true = np.arange(6).repeat(4)
    perfect = tree_measures([tree, DEEP], true, true)
    assert (perfect.f, perfect.tie.sum(), perfect.lca.sum()) == (1, 0, 0)
    rng = np.random.default_rng(0)
    said = np.where(rng.random(24) < 0.5, true, true ^ 1)  # the other of its group
    inside = tree_measures([tree], said, true)
    assert inside.group.sum() == 0
    assert inside.lca.mean() == pytest.approx(1 - (said == true).mean())


# accuracy, F, TIE and LCA of printed tables 2 and 3
PRINTED = [
    (0.7220, 0.8335, 0.9991, 0.4995),
    (0.7327, 0.8497, 0.9015, 0.4507),
    (0.7337, 0.8479, 0.9127, 0.4563),
    (0.8267, 0.9170, 0.4979, 0.2490),
    (0.8367, 0.9288, 0.4274, 0.2137),
    (0.7850, 0.8722, 0.7668, 0.3834),
    (0.7952, 0.8828, 0.7029, 0.3514),
]


@pytest.mark.parametrize(("accuracy", "f", "tie", "lca"), PRINTED)
def test_printed_rows_keep_the_identity_and_need_the_root(accuracy: float, f: float, tie: float, lca: float) -> None:
    """A hundred classes, ten to a group; as many right, right groups and wrong ones as LCA and accuracy tell."""
    n = 10_000
    tree = grouped([str(c) for c in range(100)], [c // 10 for c in range(100)])
    right, group = round(n * accuracy), round(n * (2 - lca - accuracy))
    said = np.concatenate([np.zeros(right), np.ones(group - right), np.full(n - group, 50)]).astype(np.int64)
    m = tree_measures([tree], said, np.zeros(n, dtype=np.int64))
    assert m.lca.mean() == pytest.approx(lca, abs=1e-4)
    assert m.tie.mean() == pytest.approx(tie, abs=2e-4)
    assert m.f == pytest.approx(f, abs=1e-4)
    assert abs(1 - m.lca.mean() / 2 - f) > 0.02  # what it would be without the root


def test_a_mistake_at_random_costs_the_mean_over_the_wrong_classes() -> None:
    true = np.array([0, 3, 5])
    ours = random_mistakes([DEEP, UNEVEN], true)
    for i, t in enumerate(true):
        wrong = np.array([c for c in range(6) if c != t])
        each = tree_measures([DEEP, UNEVEN], wrong, np.full(5, t))
        np.testing.assert_allclose([m[i] for m in ours], [m.mean() for m in each])


def test_one_of_its_own_answers_at_random_is_what_a_constant_model_costs() -> None:
    tree, true = grouped("0123456789", [0] * 8 + [1] * 2), np.arange(10).repeat(3)
    said = np.zeros(30, dtype=np.int64)
    cost, wrong = tree_measures([tree], said, true).lca, true != 0
    assert (cost[wrong] / random_mistakes([tree], true).lca[wrong]).mean() < 0.95  # milder than drawn evenly
    np.testing.assert_allclose(cost[wrong], random_mistakes([tree], true, said).lca[wrong])
    mixed = np.array([0, 0, 1, 9])  # for a true 1: twice 0 at height 1, once 9 at height 2
    assert random_mistakes([tree], np.array([1, 9]), mixed).lca == pytest.approx([4 / 3, 2.0])


def test_what_does_not_fit_is_refused() -> None:
    tree = grouped("012345", [0, 0, 1, 1, 2, 2])
    with pytest.raises(AssayError, match="no tree; give at least one"):
        tree_measures([], np.array([0]), np.array([0]))
    with pytest.raises(ShapeError, match=r"shapes \(2,\) and \(1,\)"):
        tree_measures([tree], np.array([0, 1]), np.array([0]))
    with pytest.raises(AssayError, match=r"trees of \[6\] classes"):
        tree_measures([tree], np.array([6]), np.array([0]))
    with pytest.raises(AssayError, match=r"trees of \[6, 4\] classes"):
        tree_measures([tree, grouped("0123", [0, 0, 1, 1])], np.array([0]), np.array([0]))
