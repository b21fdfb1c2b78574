"""Consistency of a comparison: brute force over triples, closed forms of c, calibration where the truth is known."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.rank.order import (
    calibration,
    chains,
    compare_all,
    mean_interval,
    over,
    right_order,
    survives_swap,
    swap_gap,
    triangles,
    worth,
)


def logistic(e1: Tensor, e2: Tensor) -> Tensor:
    """A comparison of one score with another: antisymmetric and transitive by its form."""
    return torch.sigmoid((e1 - e2).sum(1))


def test_a_comparison_of_scores_is_consistent_to_the_bit() -> None:
    e = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    c = compare_all(logistic, e, batch=7)
    assert c.shape == (12, 12)
    np.testing.assert_allclose(swap_gap(c.numpy().ravel(), c.T.numpy().ravel()), 0, atol=1e-15)
    np.testing.assert_array_equal(c.diagonal(), 0.5)
    for i in range(12):
        np.testing.assert_allclose(c[i], logistic(e[i].expand(12, 3), e), rtol=1e-15)
    found = chains(c.numpy())
    assert found.asked.sum() == 12 * 11 * 10 / 6  # each three inputs have one order
    assert found.share() == 0


def test_ties_go_to_the_first() -> None:
    assert over([0.5, 0.49999, 0.7]).tolist() == [True, False, True]
    assert right_order([0.5, 0.5, 0.2], [1, -1, -3]).tolist() == [True, False, True]
    assert survives_swap([0.5, 0.9, 0.9, 0.2], [0.5, 0.1, 0.8, 0.6]).tolist() == [False, True, False, True]
    with pytest.raises(AssayError, match="1 pairs of equal values; leave ties out"):
        right_order([0.5, 0.6], [1, 0])
    with pytest.raises(ShapeError, match=r"\(2,\) comparisons and \(3,\) gaps"):
        right_order([0.5, 0.6], [1, 2, 3])


def test_the_gap_of_a_swap_by_hand() -> None:
    np.testing.assert_allclose(swap_gap([0.7, 0.2], [0.3, 0.9]), [0, 0.1])
    np.testing.assert_allclose(swap_gap([0.7, 0.2], [0.3, 0.9], total=None), [0.4, 0.7])


def broken_by_hand(c: np.ndarray) -> tuple[int, int]:
    asked = broken = 0
    for a, b, d in permutations(range(len(c)), 3):
        if c[a, b] >= 0.5 and c[b, d] >= 0.5:
            asked += 1
            broken += c[a, d] < 0.5
    return asked, broken


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(3, 7))
def test_chains_are_what_a_loop_over_triples_finds(seed: int, k: int) -> None:
    c = np.random.default_rng(seed).choice([0.1, 0.5, 0.8], (k, k))
    found = chains(c)
    asked, broken = broken_by_hand(c)
    assert (found.asked.sum(), found.broken.sum()) == (asked, broken)
    assert found.share() == pytest.approx(broken / max(asked, 1))


def test_a_cycle_of_three_breaks_every_chain() -> None:
    c = np.array([[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]])
    assert chains(c).share() == 1
    assert chains(c).worst(5).shape == (1, 3)  # one triple in three rotations
    assert chains(np.zeros((3, 3))).share() == 0  # nothing stands over anything, and nothing is asked


def test_a_coin_for_each_pair_breaks_half() -> None:
    coin = np.triu(np.random.default_rng(0).choice([0.2, 0.8], (60, 60)), 1)
    c = coin + np.tril(1 - coin.T, -1)
    assert float(chains(c).share()) == pytest.approx(0.5, abs=0.02)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_counts_weigh_triples_as_copies_of_the_inputs_would(seed: int) -> None:
    rng = np.random.default_rng(seed)
    c, counts = rng.random((5, 5)), rng.integers(0, 3, (4, 5))
    found = chains(c)
    for drawn, value in zip(counts, found.share(counts), strict=True):
        asked = np.einsum("ijk,i,j,k", found.asked, drawn, drawn, drawn)
        broken = np.einsum("ijk,i,j,k", found.broken, drawn, drawn, drawn)
        assert value == pytest.approx(broken / max(asked, 1))
    assert float(found.share(np.ones((1, 5)))[0]) == pytest.approx(float(found.share()))


def test_the_triangle_inequality_holds_for_lengths_and_not_for_their_squares() -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    d = compare_all(lambda a, b: (a - b).norm(dim=1), x).numpy()
    assert triangles(d).asked.sum() == 20 * 19 * 18
    assert triangles(d).share() == 0
    line = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    assert triangles(line).share() == 0  # equality is no violation, in float32 either
    by_hand = sum(line[a, c] ** 2 > line[a, b] ** 2 + line[b, c] ** 2 for a, b, c in permutations(range(4), 3))
    assert triangles(line**2).broken.sum() == by_hand == 8  # all but the two outer ways, for each of four triples
    assert swap_gap(d, d.T, total=None).max() < 1e-6


def test_what_is_no_square_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"every one of k >= 3 inputs against every one, got shape \(2, 2\)"):
        chains(np.zeros((2, 2)))
    with pytest.raises(ShapeError, match=r"triangles takes .* got shape \(3, 4\)"):
        triangles(np.zeros((3, 4)))


def by_bins(c: np.ndarray, t: np.ndarray, bins: int) -> float:
    """Sorted, cut into parts of as many each, one at a time."""
    order = np.argsort(c, kind="stable")
    total = 0.0
    for part in np.array_split(order, bins):
        total += len(part) / len(c) * abs(t[part].mean() - c[part].mean())
    return total


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), bins=st.sampled_from([1, 2, 5, 10]))
def test_the_gap_is_that_of_bins_with_as_many_pairs_each(seed: int, bins: int) -> None:
    rng = np.random.default_rng(seed)
    c, t = rng.random(200), rng.random(200)
    found = calibration(c, t, bins=bins)
    assert found.gap == pytest.approx(by_bins(c, t, bins))
    assert (found.pairs == 200 // bins).all()
    assert found.pairs @ found.t / 200 == pytest.approx(t.mean())
    assert found.low <= found.gap <= found.high
    assert (found.t_low < found.t).all()
    assert (found.t < found.t_high).all()


def test_equal_answers_share_a_bin_whatever_their_order() -> None:
    t = np.linspace(0, 1, 100)  # in this order, parts of a constant would look miscalibrated
    found = calibration(np.full(100, 0.5), t)
    assert len(found.c) == 1
    assert found.gap == pytest.approx(0, abs=1e-12)
    few = calibration([0.1] * 3 + [0.9], [0.1, 0.2, 0.3, 0.8])
    assert len(few.c) == 1  # too few for two bins
    alone = calibration([0.05] + [0.1] * 29, np.linspace(0, 1, 30), bins=3)
    assert alone.pairs.tolist() == [1, 29]
    assert np.isfinite(alone.t_low).all()


def test_a_known_gap_is_found_and_its_interval_holds_it() -> None:
    held, floors, clean = 0, [], 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        c = rng.random(600)
        t = 0.5 + 0.6 * (c - 0.5) + 0.1 * rng.standard_normal(600)  # E[t | c] is too flat: the gap is 0.4 E|c - 1/2|
        found = calibration(c, t, seed=seed, draws=300)
        held += found.low <= 0.1 <= found.high
        honest = calibration(c, c + 0.1 * rng.standard_normal(600), seed=seed, draws=300)
        clean += honest.low == 0
        floors.append((honest.gap, honest.floor))
    assert held >= 53
    assert clean >= 55
    gaps, expected = np.mean(floors, 0)
    assert gaps == pytest.approx(expected, rel=0.06)  # what a perfect one shows is what the floor says
    assert expected == pytest.approx(0.1 * np.sqrt(2 / np.pi) / np.sqrt(40), rel=0.05)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"got \(3,\) and \(2,\)"):
        calibration([0.1, 0.2, 0.3], [0.1, 0.2])
    with pytest.raises(AssayError, match="not finite"):
        calibration([0.1, np.nan], [0.1, 0.2])
    with pytest.raises(AssayError, match="bins=0, draws=1000"):
        calibration([0.1, 0.3], [0.1, 0.2], bins=0)


def worth_by_hand(v: np.ndarray, who: np.ndarray) -> float:
    e = v - v.mean()
    total = sum(e[p] * e[q] * len(set(who[p]) & set(who[q])) for p in range(len(v)) for q in range(len(v)) if p != q)
    variance = (total + e @ e) / len(v) ** 2
    return float(len(v) * min(1.0, (e @ e) / len(v) ** 2 / variance)) if variance > 0 else float(len(v))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_worth_is_the_sum_over_pairs_of_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    who, v = rng.integers(0, 9, (12, 2)), rng.random(12)
    assert worth(v, who) == pytest.approx(worth_by_hand(v, who))


def test_pairs_of_inputs_that_all_differ_are_worth_what_they_are() -> None:
    v = np.random.default_rng(0).random(30)
    assert worth(v, np.arange(60).reshape(30, 2)) == pytest.approx(30)
    # each value twice, with the same two inputs in both: half as many, and half of that, as both inputs are shared
    assert worth(np.tile(v, 2), np.tile(np.arange(60).reshape(30, 2), (2, 1))) == pytest.approx(60 / 3)
    with pytest.raises(ShapeError, match=r"got \(2,\) and \(2, 3\)"):
        worth([1, 2], np.zeros((2, 3)))


def test_the_interval_of_a_mean_knows_that_pairs_share_inputs() -> None:
    held = naive = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        effect, who = rng.standard_normal(150), rng.integers(0, 150, (600, 2))
        v = effect[who].sum(1) + rng.standard_normal(600)
        mean, low, high = mean_interval(v, who)
        held += low <= 0 <= high
        naive += abs(mean) <= 1.96 * v.std() / 600**0.5
    assert held >= 182
    assert naive <= 150  # as if the 600 were independent


def test_a_calibration_gap_has_a_wider_interval_where_pairs_share_inputs() -> None:
    rng = np.random.default_rng(0)
    who, effect, c = rng.integers(0, 60, (600, 2)), 0.2 * rng.standard_normal(60), rng.random(600)
    t = 0.5 * c + effect[who[:, 0]]
    alone, shared = calibration(c, t), calibration(c, t, who)
    assert alone.gap == shared.gap
    assert shared.high - shared.gap > 1.2 * (alone.high - alone.gap)
