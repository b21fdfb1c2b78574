"""Ranking pixels by uncertainty: the card's identities, the plain formula, and what ties must not do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, roc_auc_score, roc_curve

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.pixel_ranking import MOST, found_at, partial_auc, ranked, resampled_areas, roc

BOX = np.zeros((16, 16), dtype=bool)
BOX[3:7, 5:12] = True
BOX = BOX.ravel()


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def as_printed(u: list[float], positive: list[bool], most: float) -> float:
    """The ROC curve step by step in plain Python, for U without ties: the area under it up to `most`."""
    order = sorted(range(len(u)), key=lambda i: -u[i])
    hits, strangers = sum(positive), len(u) - sum(positive)
    area, found, alarms = 0.0, 0, 0
    for i in order:
        if positive[i]:
            found += 1
        else:
            left, right = alarms / strangers, (alarms + 1) / strangers
            area += max(0.0, min(right, most) - left) * found / hits
            alarms += 1
    return area


def test_the_box_itself_is_a_perfect_ranking_and_its_opposite_the_worst() -> None:
    best, worst = ranked(BOX.astype(float), BOX, rng=rng()), ranked(-BOX.astype(float), BOX, rng=rng())
    size = int(BOX.sum())
    at = found_at(best, size)
    assert (at.precision, at.recall, at.hits) == (1, 1, size)
    assert partial_auc(best) == pytest.approx(0.2)
    assert partial_auc(worst) == 0
    assert found_at(worst, size).hits == 0


def test_an_even_map_is_at_chance_however_the_pixels_lie() -> None:
    """Also where positives come first or last in the array: a stable sort would give 0.2 or 0."""
    first = np.zeros(2000, dtype=bool)
    first[:400] = True
    for inside in (first, first[::-1].copy()):
        drawn = [float(partial_auc(ranked(np.zeros(2000), inside, rng=rng(s)))) for s in range(20)]
        assert np.mean(drawn) == pytest.approx(0.02, abs=0.003)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), n=st.integers(2, 60), most=st.floats(0.05, 1))
def test_it_is_the_printed_area_and_at_one_the_usual_auroc(seed: int, n: int, most: float) -> None:
    draw = rng(seed)
    u, inside = draw.permutation(n).astype(float), draw.random(n) < 0.4
    inside[:2] = True, False
    order = ranked(u, inside, rng=draw)
    assert partial_auc(order, most) == pytest.approx(as_printed(u.tolist(), inside.tolist(), most), abs=1e-12)
    assert partial_auc(order, 1.0) == pytest.approx(roc_auc_score(inside, u))
    for change in (lambda v: 3 * v - 7, np.exp, np.cbrt):  # strictly increasing: nothing moves
        assert partial_auc(ranked(change(u / n), inside, rng=draw), most) == partial_auc(order, most)


def test_ties_cost_on_average_what_the_diagonal_does() -> None:
    draw = rng(3)
    u, inside = draw.integers(0, 4, 300).astype(float), draw.random(300) < 0.3
    far, near, _ = roc_curve(inside, u, drop_intermediate=False)
    cut = np.unique(np.append(far[far < MOST], MOST))
    expected = auc(cut, np.interp(cut, far, near))
    drawn = [float(partial_auc(ranked(u, inside, rng=rng(s)))) for s in range(200)]
    assert np.mean(drawn) == pytest.approx(expected, abs=4 * np.std(drawn) / np.sqrt(200))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 999), n=st.integers(3, 80))
def test_recall_grows_with_k_and_both_count_the_same_hits(seed: int, n: int) -> None:
    draw = rng(seed)
    u, inside = draw.integers(0, 5, n).astype(float), draw.random(n) < 0.5
    inside[0] = True
    order = ranked(u, inside, rng=draw)
    at = [found_at(order, k) for k in range(1, n + 1)]
    assert all(a.recall <= b.recall for a, b in itertools.pairwise(at))
    for k, each in enumerate(at, 1):
        assert each.precision * k == pytest.approx(each.recall * inside.sum())
    assert at[-1].recall == 1


def test_rows_are_ranked_by_themselves_and_what_does_not_count_is_left_out() -> None:
    draw = rng(1)
    u, inside, counted = draw.random((5, 50)), draw.random((5, 50)) < 0.3, draw.random((5, 50)) < 0.7
    together = ranked(u, inside, rng=draw, counted=counted)
    for row in range(5):
        alone = ranked(u[row, counted[row]], inside[row, counted[row]], rng=draw)
        assert partial_auc(together)[row] == pytest.approx(partial_auc(alone))
        assert found_at(together, 7).hits[row] == found_at(alone, 7).hits
    assert found_at(together, np.arange(1, 6)).hits.shape == (5,)


def test_what_is_undefined_is_no_number_and_what_has_no_rank_is_refused() -> None:
    u = np.stack([np.arange(4.0)] * 3)
    area = partial_auc(ranked(u, np.array([[False] * 4, [True] * 4, [True, False] * 2]), rng=rng()))
    assert np.isnan(area[:2]).all()
    assert np.isfinite(area[2])
    with pytest.raises(AssayError, match="NaN or infinity, which has no rank"):
        ranked(np.array([1.0, np.nan]), np.array([True, False]), rng=rng())
    with pytest.raises(ShapeError, match="one for each"):
        ranked(np.ones(3), np.ones(4, dtype=bool), rng=rng())
    with pytest.raises(AssayError, match="most=0"):
        partial_auc(ranked(u, u > 1, rng=rng()), 0)
    with pytest.raises(AssayError, match="no number of pixels"):
        found_at(ranked(u, u > 1, rng=rng()), 5)


def test_the_curve_for_the_eye_has_the_area() -> None:
    draw = rng(5)
    u, inside = draw.random(5000), draw.random(5000) < 0.2
    order = ranked(u + 0.3 * inside, inside, rng=draw)
    far, near = roc(order, 401, MOST)
    assert np.trapezoid(near, far) == pytest.approx(float(partial_auc(order)), abs=1e-3)
    assert (far[0], far[-1]) == (0, MOST)
    assert roc(order)[1][-1] == 1


def test_resampled_areas_are_those_of_copies_and_of_what_is_left() -> None:
    draw = rng(7)
    u, inside = draw.random((4, 30)), draw.random((4, 30)) < 0.4
    order = ranked(u.ravel(), inside.ravel(), rng=draw)
    image = np.repeat(np.arange(4), 30)[order.order]
    counts = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [2, 2, 2, 2], [0, 0, 0, 0]], dtype=float)
    found = resampled_areas(order, image, counts)
    some = partial_auc(ranked(u[::2].ravel(), inside[::2].ravel(), rng=draw))
    assert found[:3] == pytest.approx([float(partial_auc(order)), float(some), float(partial_auc(order))])
    assert np.isnan(found[3])
