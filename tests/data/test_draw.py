"""A draw of some rows: beside the definition written naively, nested, fair to every row and class, small in memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data import draw
from assay.data.draw import counted, stratified, uniform


def naive(labels, wanted, seed):
    """Each row's number, its place in its class, its key; the smallest keys."""
    numbers = uniform(np.arange(len(labels)), seed)
    classes = sorted(set(labels.tolist()))
    starts = np.random.default_rng((seed, len(classes))).random(len(classes))
    keys = []
    for c, start in zip(classes, starts, strict=True):
        mine = sorted(np.flatnonzero(labels == c), key=lambda i: numbers[i])
        keys += [((k + start) / len(mine), row) for k, row in enumerate(mine)]
    return sorted(row for _, row in sorted(keys)[:wanted])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 400), st.integers(1, 12), st.integers(0, 10**9), st.integers(1, 400), st.integers(-5, 5))
def test_it_is_the_definition_in_parts_of_any_size(n, classes, seed, wanted, low):
    labels = np.random.default_rng(seed).integers(0, classes, n) ** 2 + low
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "PART", 37)
        found = stratified(labels, wanted, seed)
    assert found.tolist() == naive(labels, min(wanted, n), seed)
    assert np.array_equal(found, np.unique(found))


def test_a_larger_draw_holds_a_smaller_one_and_each_class_has_its_share():
    labels = np.random.default_rng(0).choice(7, 20_000, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.04, 0.01])
    small, large = (stratified(labels, n, 3) for n in (100, 1600))
    assert set(small) <= set(large)
    share = np.bincount(labels) * 1600 / 20_000
    assert np.abs(np.bincount(labels[large]) - share).max() < 3
    assert not np.array_equal(small, stratified(labels, 100, 4))


def test_every_row_is_as_likely_as_any_other():
    labels = np.repeat([0, 1], [30, 10])
    often = np.zeros(40)
    for seed in range(600):
        often[stratified(labels, 10, seed)] += 1
    assert np.abs(often / 600 - 0.25).max() < 0.09  # five standard deviations


def test_a_thousand_rare_classes_do_not_crowd_out_a_common_one():
    labels = np.concatenate([np.zeros(50_000, dtype=np.int64), np.arange(1, 1001)])
    drawn = labels[stratified(labels, 5_000, 0)]
    assert abs((drawn == 0).sum() - 5_000 * 50 / 51) < 60
    assert sorted(stratified(labels, 300, 0)) == naive(labels, 300, 0)


@pytest.mark.parametrize("labels", [np.array([True, False, True]), np.array([3, 10**12, 3]), np.array([5], dtype="u1")])
def test_classes_are_counted_whatever_their_numbers(labels):
    classes, counts = counted(labels)
    expected = np.unique(labels, return_counts=True)
    assert classes.tolist() == expected[0].tolist()
    assert counts.tolist() == expected[1].tolist()


def test_numbers_are_even_and_the_same_by_the_same_seed():
    numbers = uniform(np.arange(100_000), 7)
    assert 0 <= numbers.min() < numbers.max() < 1
    assert np.abs(np.histogram(numbers, 20, (0, 1))[0] - 5_000).max() < 350
    assert np.array_equal(numbers[500:600], uniform(np.arange(500, 600), 7))


def test_memory_follows_the_draw_and_not_the_data():
    labels = np.broadcast_to(np.int64(0), 4_000_000)
    tracemalloc.start()
    stratified(labels, 1000, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80e6  # of one part, not of 4 million numbers of 8 bytes in several arrays
