"""The nearest rows of a gallery: blocks say what the whole matrix says, also where rows are as near as each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data import nearest as place
from assay.data.nearest import key, nearest, offsets, rows_of, similarity_of
from assay.errors import AssayError, ShapeError


def by_hand(queries, gallery, k, metric):
    """One query at a time, by distance or cosine in float64; of equal ones the first."""
    found = []
    for q in queries.double().numpy():
        g = gallery.double().numpy()
        near = g @ q if metric == "cosine" else -((g - q) ** 2).sum(1)
        found.append(np.argsort(-near, kind="stable")[:k])
    return np.stack(found)


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 9),
    g=st.integers(1, 70),
    k=st.integers(1, 70),
    metric=st.sampled_from(["cosine", "euclidean"]),
    rows=st.integers(1, 17),
)
@settings(deadline=None, max_examples=60)
def test_blocks_find_what_the_whole_matrix_finds_also_among_ties(seed, n, g, k, metric, rows):
    rng = torch.Generator().manual_seed(seed)
    # Small whole numbers: every product is exact, and most rows are as near as another one.
    gallery = torch.randint(-2, 3, (g, 3), generator=rng).float()
    queries = torch.randint(-2, 3, (n, 3), generator=rng).float()
    k = min(k, g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "ROWS", rows)
        patch.setattr(place, "QUERIES", 4)
        found = nearest(queries, gallery, k, offsets(gallery, metric))
    assert np.array_equal(found.rows.numpy(), by_hand(queries, gallery, k, metric))
    assert bool((found.similarity.diff(dim=1) <= 0).all())


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_many_blocks_of_real_numbers(metric):
    rng = torch.Generator().manual_seed(0)
    gallery, queries = torch.randn(5000, 16, generator=rng) + 1, torch.randn(37, 16, generator=rng)
    found = nearest(queries, gallery, 20, offsets(gallery, metric))
    assert np.array_equal(found.rows.numpy(), by_hand(queries, gallery, 20, metric))


def test_similarities_are_half_the_distance_that_is_left():
    gallery, queries = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[3.0, 3.0]])
    offset = offsets(gallery, "euclidean")
    found = nearest(queries, gallery, 2, offset)
    assert found.rows.tolist() == [[0, 1]]
    square = offset.centred(queries).square().sum(1, keepdim=True) - 2 * found.similarity
    assert square.tolist() == [[1.0, 13.0]]


@pytest.mark.parametrize("common", [10.0, 100.0, 1000.0])
def test_what_all_rows_have_in_common_moves_no_distance(common):
    rng = torch.Generator().manual_seed(0)
    gallery, queries = (common + torch.randn(n, 128, generator=rng) for n in (3000, 40))
    found = nearest(queries, gallery, 10, offsets(gallery, "euclidean"))
    assert np.array_equal(found.rows.numpy(), by_hand(queries, gallery, 10, "euclidean"))


def test_a_key_orders_by_similarity_then_by_place_and_gives_both_back():
    s = torch.tensor([-3.5, -0.0, 0.0, 1e-30, -1e-30, 7.25, 7.25, -torch.inf, torch.inf])
    row = torch.arange(len(s)) + 2**31
    whole = key(s, row)
    order = sorted(range(len(s)), key=lambda i: (-float(s[i]), i))
    assert whole.argsort(descending=True).tolist() == order
    assert rows_of(whole).tolist() == row.tolist()
    assert similarity_of(whole).tolist() == s.tolist()


def test_what_cannot_be_compared_is_told():
    gallery = torch.zeros(3, 4)
    with pytest.raises(ShapeError, match=r"\(2, 5\) and a gallery of shape \(3, 4\)"):
        nearest(torch.zeros(2, 5), gallery, 1, offsets(gallery, "cosine"))
    with pytest.raises(AssayError, match="first 4 of a gallery of 3; ask for 1 to 3"):
        nearest(torch.zeros(2, 4), gallery, 4, offsets(gallery, "cosine"))
