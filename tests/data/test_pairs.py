"""Pairs: which inputs they are, in which order, with which labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.arrays import Arrays
from assay.data.pairs import LIKENESS, Pairs
from assay.errors import AssayError, ShapeError


def singles(n: int = 6) -> Arrays:
    """Input i is filled with i / 10."""
    return Arrays(np.full((n, 1, 2, 2), 0.1, np.float32) * np.arange(n, dtype=np.float32)[:, None, None, None], [0] * n)


def test_a_pair_is_its_two_inputs_in_order():
    pairs = Pairs(singles(), [5, 3, 1, 1, 0, 2], [[0, 1], [4, 5], [2, 0]])
    x, y = pairs.take(np.array([2, 0]))
    assert x.shape == (2, 2, 1, 2, 2)
    np.testing.assert_allclose(x[:, :, 0, 0, 0], [[0.2, 0.0], [0.0, 0.1]])
    assert y.tolist() == [0, 1]
    assert pairs.gaps.tolist() == [2, -2, -4]


def test_pairs_with_equal_values_stand_last_and_count_as_higher():
    pairs = Pairs(singles(), [1, 1, 2, 2, 3, 3], [[0, 1], [0, 2], [2, 3], [5, 0]])
    assert pairs.pairs.tolist() == [[0, 2], [5, 0], [0, 1], [2, 3]]
    assert pairs.untied == 2
    assert pairs.labels.tolist() == [0, 1, 1, 1]


@given(st.integers(0, 1000), st.integers(2, 30))
@settings(max_examples=20, deadline=None)
def test_drawn_pairs_have_the_labels_of_their_values(seed, n):
    values = np.random.default_rng(seed).integers(0, 5, n)
    pairs = Pairs.ranked(singles(n), values, 50, seed=seed)
    a, b = values[pairs.pairs].T
    assert (pairs.labels == (a >= b)).all()
    assert (pairs.gaps[: pairs.untied] != 0).all()
    assert (pairs.gaps[pairs.untied :] == 0).all()


def test_uniform_draws_reach_every_ordered_pair_about_as_often():
    pairs = Pairs.ranked(singles(4), [0, 1, 2, 3], 16_000)
    counts = np.bincount(pairs.pairs @ [4, 1], minlength=16)
    assert (abs(counts - 1000) < 5 * np.sqrt(1000)).all()


def test_every_second_pair_of_a_similarity_is_of_one_class_and_none_is_an_input_with_itself():
    labels = np.array([0, 0, 0, 1, 1, 2])
    pairs = Pairs.alike(singles(), labels, 200)
    assert pairs.classes == LIKENESS
    assert pairs.labels.tolist() == [0, 1] * 100
    assert (pairs.pairs[:, 0] != pairs.pairs[:, 1]).all()
    assert pairs.untied == 200


def test_what_makes_two_sets_of_pairs_the_same():
    one = Pairs(singles(), range(6), [[0, 1], [1, 2]])
    assert one.fingerprint() == Pairs(singles(), range(6), [[0, 1], [1, 2]]).fingerprint()
    assert one.fingerprint() != Pairs(singles(), range(6), [[0, 1], [2, 1]]).fingerprint()
    assert one.fingerprint() != Pairs(singles(), [0, 1, 2, 3, 4, 6], [[0, 1], [1, 2]]).fingerprint()


@pytest.mark.parametrize(
    ("values", "pairs", "error", "words"),
    [
        ([1, 2], [[0, 1]], ShapeError, r"6 inputs and values of shape \(2,\)"),
        ([0, 1, float("nan"), 3, 4, 5], [[0, 1]], AssayError, "value of input 2 is nan"),
        (range(6), [[0, 1, 2]], ShapeError, r"shape \(1, 3\); give two places"),
        (range(6), [[0, 6]], AssayError, "names input 6; there are 6, from 0 to 5"),
        (range(6), [[-1, 2]], AssayError, "names input -1"),
    ],
)
def test_what_is_no_pair_is_refused_in_one_line(values, pairs, error, words):
    with pytest.raises(error, match=words) as e:
        Pairs(singles(), list(values), pairs)
    assert "\n" not in str(e.value)


def test_a_similarity_needs_two_classes_with_two_inputs():
    with pytest.raises(AssayError, match="two classes with at least two inputs"):
        Pairs.alike(singles(3), [0, 0, 1], 4)
