"""Ranks, recall and average precision: against one query at a time, scikit-learn, and what chance finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from assay.methods.retrieve.measures import average_precision, chance_of_precision, chance_of_recall, ranks


def flags(seed, n, g):
    """Relevance with at least one item for each query, as a matrix and as pairs."""
    rng = np.random.default_rng(seed)
    held = rng.random((n, g)) < rng.random((n, 1))
    held[np.arange(n), rng.integers(0, g, n)] = True
    query, item = np.nonzero(held)
    mixed = rng.permutation(len(query))
    return held, torch.from_numpy(query[mixed]), torch.from_numpy(item[mixed])


@given(seed=st.integers(0, 10_000), n=st.integers(1, 6), g=st.integers(1, 30), levels=st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_ranks_are_places_in_the_order_also_among_ties(seed, n, g, levels):
    held, query, item = flags(seed, n, g)
    s = np.random.default_rng(seed + 1).integers(-levels, levels, (n, g)) / 4
    found = ranks(torch.from_numpy(s).float(), query, item)
    for i in range(n):
        place = np.empty(g)
        place[np.argsort(-s[i], kind="stable")] = np.arange(1, g + 1)
        by_hand = np.sort(place[held[i]])
        assert found[i, : len(by_hand)].tolist() == by_hand.tolist()
        assert bool(found[i, len(by_hand) :].isinf().all())


def test_average_precision_is_scikit_learns():
    held, query, item = flags(3, 40, 57)
    s = torch.randn(40, 57, generator=torch.Generator().manual_seed(0))
    mine = average_precision(ranks(s, query, item))
    theirs = [average_precision_score(h, row) for h, row in zip(held, s.numpy(), strict=True)]
    assert mine.tolist() == pytest.approx(theirs, abs=1e-12)


def test_what_comes_first_is_perfect_and_what_comes_last_is_not():
    s = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    query, item = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    found = ranks(s, query, item)
    assert found.tolist() == [[1, 2], [3, 4]]
    assert average_precision(found).tolist() == pytest.approx([1.0, (1 / 3 + 2 / 4) / 2])


@pytest.mark.parametrize(("g", "m"), [(1, 1), (4, 1), (5, 2), (6, 4), (5, 5)])
def test_chance_is_the_mean_over_all_orders(g, m):
    precision, recall = [], np.zeros(g)
    for places in itertools.combinations(range(1, g + 1), m):
        precision.append(np.mean([(i + 1) / r for i, r in enumerate(places)]))
        recall += np.arange(1, g + 1) >= places[0]
    relevant = np.array([m])
    assert chance_of_precision(g, relevant)[0] == pytest.approx(np.mean(precision), abs=1e-12)
    for k in range(1, g + 1):
        assert chance_of_recall(g, relevant, k)[0] == pytest.approx(recall[k - 1] / len(precision), abs=1e-12)


def test_random_descriptors_find_what_chance_finds_about_k_times_matches_by_gallery():
    n, g, m = 2000, 400, 3
    rng = torch.Generator().manual_seed(0)
    s = torch.randn(n, 8, generator=rng) @ torch.randn(g, 8, generator=rng).T
    query = torch.arange(n).repeat_interleave(m)
    item = torch.stack([torch.randperm(g, generator=rng)[:m] for _ in range(n)]).flatten()
    found = ranks(s, query, item)
    for k in (1, 5, 10):
        chance = chance_of_recall(g, np.full(n, m), k)[0]
        assert chance == pytest.approx(k * m / g, rel=0.07)
        got = float((found[:, 0] <= k).double().mean())
        assert abs(got - chance) < 4 * np.sqrt(chance * (1 - chance) / n)
