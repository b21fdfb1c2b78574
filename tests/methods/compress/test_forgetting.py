"""What a smaller model forgot: modes, McNemar's coin, exact intervals, the worst of several groups."""

from __future__ import annotations

from collections import Counter
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError, ShapeError
from assay.methods.compress.forgetting import exemplars, mcnemar, miscalibration, modal, shares, worst_share
from assay.methods.uncertainty.calibration import ece
from assay.methods.uncertainty.exact import exact


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_the_modal_answer_is_the_commonest_and_of_a_tie_the_first(m: int, n: int, k: int, seed: int) -> None:
    answers = np.random.default_rng(seed).integers(0, k, (m, n))
    for column, found in zip(answers.T.tolist(), modal(answers), strict=True):
        votes = Counter(column)
        assert found == min(c for c in votes if votes[c] == max(votes.values()))


def test_exemplars_are_where_most_small_models_say_otherwise_than_most_large_ones() -> None:
    large = np.array([[0, 1, 2, 2], [0, 1, 2, 0], [1, 1, 2, 0]])
    small = np.array([[0, 2, 2, 1], [0, 2, 1, 0], [0, 1, 2, 0]])
    assert exemplars(large, small).tolist() == [False, True, False, False]
    assert exemplars(large[:1], small[:1]).tolist() == (large[0] != small[0]).tolist()  # one each: they disagree
    with pytest.raises(ShapeError, match=r"one row for each model"):
        modal(np.array([1, 2]))


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 5), (16, 11), (9, 1), (0, 12)])
def test_mcnemar_counts_the_ways_of_a_fair_coin(b: int, c: int) -> None:
    n = b + c
    ways = sum(comb(n, i) for i in range(n + 1) if min(i, n - i) <= min(b, c))  # both tails, each way once
    assert mcnemar(b, c) == pytest.approx(min(1.0, ways / 2**n) if n else 1.0)
    assert mcnemar(b, c) == mcnemar(c, b)


def test_mcnemar_refuses_what_is_no_count() -> None:
    with pytest.raises(AssayError, match="two counts"):
        mcnemar(-1, 2)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_exact_interval_covers_whatever_the_chance(n: int) -> None:
    """By the law itself: of all counts, those whose interval holds the chance have at least 95 % together."""
    low, high = exact(np.arange(n + 1), n)
    for chance in np.linspace(0.001, 0.999, 61):
        law = [comb(n, h) * chance**h * (1 - chance) ** (n - h) for h in range(n + 1)]
        assert sum(p for p, a, b in zip(law, low, high, strict=True) if a <= chance <= b) >= 0.95 - 1e-9


def test_the_exact_interval_of_none_and_of_all_is_known_in_closed_form() -> None:
    low, high = exact([0, 20], 20)
    assert low.tolist() == pytest.approx([0.0, 0.025 ** (1 / 20)])
    assert high.tolist() == pytest.approx([1 - 0.025 ** (1 / 20), 1.0])
    with pytest.raises(AssayError, match="counts from 0 to n"):
        exact(3, 2)


def test_the_worst_group_has_enough_inputs_and_an_interval_of_the_largest() -> None:
    """Groups of 40, 50 and 10: the small one changed wholly and is not told; nobody knows the last row's."""
    groups = np.repeat([0, 1, 2, -1], [40, 50, 10, 1])
    held = np.concatenate([np.arange(40) < 4, np.arange(50) < 15, np.ones(10, bool), [True]])
    each = shares(held, groups, 4)
    assert each.rate[:3].tolist() == pytest.approx([0.1, 0.3, 1.0])
    assert each.n.tolist() == [40, 50, 10, 0]
    assert each.enough.tolist() == [True, True, False, False]
    worst = worst_share(held, groups, 4)
    assert worst is not None
    assert (worst.group, worst.n) == (1, 50)
    low, high = exact([4, 15], [40, 50], 0.025)  # both hold at once
    assert (worst.value, worst.low, worst.high) == pytest.approx((0.3, low.max(), high.max()))
    assert worst_share(held[:20], groups[:20], 1) is None


def test_the_columns_sum_to_the_calibration_error() -> None:
    rng = np.random.default_rng(0)
    sure, right = rng.uniform(0.3, 1, 200), rng.random(200) < 0.7
    assert np.abs(miscalibration(sure, right).sum(0)).sum() / 200 == pytest.approx(ece(sure, right))
    with pytest.raises(ShapeError, match="one number and one outcome"):
        miscalibration(sure, right[:3])
