"""Typicality against the equations written one input at a time, and as a finder of flipped labels."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.train.typicality import (
    Typicality,
    mean_similarity,
    neighbours,
    typicality,
    unit_rows,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def as_printed(u: Tensor, y: list[int], *, as_published: bool) -> list[tuple[float, float, float, float]]:
    """Sec. 3, one pair at a time, in plain Python."""
    n = len(y)
    rows = u.double().tolist()
    sim = [[sum(a * b for a, b in zip(rows[i], rows[j], strict=True)) for j in range(n)] for i in range(n)]
    total = sum(sim[i][j] for i in range(n) for j in range(i + 1, n))
    mean = 2 * total / (n * (n + 1 if as_published else n - 1))
    found = []
    for i in range(n):
        near = [j for j in range(n) if j != i and sim[i][j] >= mean - 1e-5]
        count = Counter(y[j] for j in near)
        entropy = -sum(c / len(near) * math.log(c / len(near)) for c in count.values())
        side = 0 if not near else 1 if count[y[i]] == max(count.values()) else -1
        adjusted = (side if as_published else -side) / (entropy + 1)
        found.append((float(len(near)), entropy, adjusted, count[y[i]] - adjusted * len(near)))
    return found


@pytest.mark.parametrize("as_published", [False, True])
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 14), classes=st.integers(1, 4))
def test_it_is_the_equations(as_published: bool, seed: int, n: int, classes: int) -> None:
    draw = rng(seed)
    u = unit_rows(torch.randn(n, 3, generator=draw))
    y = torch.randint(classes, (n,), generator=draw)
    counts = neighbours(u, y, classes, as_published=as_published)
    ours = torch.stack(typicality(counts, y, as_published=as_published), 1)
    by_hand = torch.tensor(as_printed(u, y.tolist(), as_published=as_published))
    assert_close(ours.double(), by_hand.double(), atol=1e-4, rtol=1e-4)


def test_the_mean_needs_no_pairs_and_print_divides_by_too_many() -> None:
    u = unit_rows(torch.rand(9, 4, generator=rng()))
    pairs = [float(u[i] @ u[j]) for i in range(9) for j in range(i)]
    assert mean_similarity(u) == pytest.approx(sum(pairs) / 36, abs=1e-6)
    assert mean_similarity(u, as_published=True) == pytest.approx(sum(pairs) / 45, abs=1e-6)


def graph(u: Tensor) -> Tensor:  # n d -> n n
    """Who is whose neighbour: every input is a class of its own."""
    return neighbours(u, torch.arange(len(u)), len(u))


def test_the_graph_is_symmetric_and_nobody_is_its_own_neighbour_and_duplicates_share_theirs() -> None:
    x = torch.randn(40, 5, generator=rng())
    x[7] = x[3]
    edges = graph(unit_rows(x))
    assert torch.equal(edges, edges.T)
    assert float(edges.diagonal().sum()) == 0
    assert 0 < float(edges.mean()) < 1
    others = [i for i in range(40) if i not in (3, 7)]
    assert torch.equal(edges[3, others], edges[7, others])
    assert float(edges[3, 7]) == 1


def test_an_isolated_input_has_no_neighbours_and_stands_in_the_middle() -> None:
    """Two tight groups at a right angle, and one input opposite to both."""
    far = torch.tensor([[-1.0, -1.0]])
    u = torch.nn.functional.normalize(
        torch.cat([torch.tensor([[1.0, 0.05], [1.0, 0.0]] * 3), torch.tensor([[0.05, 1.0], [0.0, 1.0]] * 3), far])
    )
    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0])  # the 5th and the 11th are in the other group
    seen = typicality(neighbours(u, y, 2), y)
    assert [float(each[-1]) for each in seen] == [0, 0, 0, 0]
    order = seen.ranked("entropy", rng()).tolist()
    assert set(order[-2:]) == {5, 11}
    assert order[-3] == 12
    assert seen.ranked("degree", rng()).tolist()[-1] == 12


def test_duplicates_of_one_input_are_all_neighbours() -> None:
    u = torch.nn.functional.normalize(torch.full((6, 3), 0.3))
    assert neighbours(u, torch.zeros(6, dtype=torch.long), 1)[:, 0].tolist() == [5] * 6
    assert unit_rows(torch.full((6, 3), 0.3)).abs().sum() == 0


@pytest.mark.parametrize("nearest", [None, 10])
def test_flipped_labels_of_two_clean_blobs_stand_last_where_labels_count_and_not_by_degree(nearest: int | None) -> None:
    draw = rng(1)
    y = torch.arange(200) % 2
    x = torch.randn(200, 6, generator=draw) + 6 * y[:, None]
    flipped = torch.randperm(200, generator=draw)[:10]
    y[flipped] = 1 - y[flipped]
    u = unit_rows(x)
    seen = typicality(neighbours(u, y, 2, nearest=nearest), y)
    for by in ("entropy", "degree-adjusted"):
        assert set(seen.ranked(by, draw)[-10:].tolist()) == set(flipped.tolist())
    clean = typicality(neighbours(u, torch.arange(200) % 2, 2, nearest=nearest), torch.arange(200) % 2)
    assert torch.equal(seen.degree, clean.degree)  # the degree knows no labels
    # as printed, those whose labels are wrong come first
    printed = typicality(neighbours(u, y, 2, nearest=nearest), y, as_published=True)
    for by in ("entropy", "degree-adjusted"):
        assert set(printed.ranked(by, draw)[:10].tolist()) == set(flipped.tolist())


def test_pure_neighbourhoods_by_hand() -> None:
    """Own: C_A -1 and C_DE 2|N|; of another class: +1 and -|N|; as printed 0 and |N|."""
    counts, y = torch.tensor([[5.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0])
    ours, theirs = typicality(counts, y), typicality(counts, y, as_published=True)
    assert ours.class_adjusted.tolist() == [-1, 1]
    assert ours.degree_adjusted.tolist() == [10, -5]
    assert theirs.degree_adjusted.tolist() == [0, 5]


def test_several_labellings_at_once_are_those_one_by_one() -> None:
    u = unit_rows(torch.randn(30, 4, generator=rng()))
    labels = torch.randint(3, (4, 30), generator=rng(1))
    for nearest in (None, 5):
        together = neighbours(u, labels, 3, nearest=nearest)
        for one, counts in zip(labels, together, strict=True):
            assert torch.equal(counts, neighbours(u, one, 3, nearest=nearest))
            assert torch.equal(typicality(together, labels).entropy[0], typicality(together[0], labels[0]).entropy)


def test_blocks_do_not_change_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.methods.train import typicality as method

    u, y = unit_rows(torch.randn(30, 4, generator=rng())), torch.arange(30) % 3
    whole = [neighbours(u, y, 3, nearest=nearest) for nearest in (None, 5)]
    monkeypatch.setattr(method, "BLOCK", 100)
    for nearest, once in zip((None, 5), whole, strict=True):
        assert torch.equal(neighbours(u, y, 3, nearest=nearest), once)
    assert whole[1].sum(1).tolist() == [5] * 30


def test_features_without_spread_and_missing_ones_count_for_nothing() -> None:
    x = torch.randn(20, 3, generator=rng())
    wide = torch.cat([x, torch.full((20, 1), 7.0), torch.full((20, 1), torch.nan)], 1)
    assert_close(unit_rows(wide)[:, :3], unit_rows(x))
    assert float(unit_rows(wide)[:, 3:].abs().sum()) == 0
    assert_close(unit_rows(100 * x - 3), unit_rows(x), atol=1e-4, rtol=1e-4)  # whatever their units


def test_ties_stand_in_a_random_order() -> None:
    same = Typicality(*(torch.zeros(50) for _ in range(4)))
    first, again, other = (same.ranked("degree", rng(seed)).tolist() for seed in (0, 0, 1))
    assert first == again != other
    assert sorted(first) == list(range(50)) != first


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ShapeError, match="got 1; give at least two"):
        unit_rows(torch.zeros(1, 3))
    u = unit_rows(torch.randn(5, 3, generator=rng()))
    for bad in (0, 5):
        with pytest.raises(AssayError, match=f"nearest={bad} of 5 inputs are none; give a number from 1 to 4"):
            neighbours(u, torch.zeros(5, dtype=torch.long), 1, nearest=bad)
    with pytest.raises(ShapeError, match=r"labels of shape \(4,\) for 5 inputs"):
        neighbours(u, torch.zeros(4, dtype=torch.long), 1)
