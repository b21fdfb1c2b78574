"""Measures of masks: the identities between them, and outlines by hand and by brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.right.masks import boundary_f1, counts, edges, f1_between


def masks(seed: int, n: int = 5, side: int = 6) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    share = rng.random((2, n, 1, 1))
    said, true = rng.random((2, n, side, side)) < share
    return torch.from_numpy(said), torch.from_numpy(true)


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_one_table_of_counts_binds_its_measures(seed: int):
    each = counts(*masks(seed))
    for of in (each, each.pooled()):
        iou, f1 = of.iou, of.f1
        assert_close(f1, 2 * iou / (1 + iou))
        assert (f1 >= iou).all()
        low, high = (f(of.sensitivity, of.specificity) for f in (torch.minimum, torch.maximum))
        assert (of.accuracy >= low - 1e-6).all()
        assert (of.accuracy <= high + 1e-6).all()
    low, high = f1_between(float(each.iou.mean()))
    assert low - 1e-6 <= float(each.f1.mean()) <= high + 1e-6
    assert f1_between(float(each.pooled().iou), pooled=True)[0] == pytest.approx(float(each.pooled().f1), abs=1e-6)


def test_counts_by_hand():
    said, true = torch.tensor([[1, 1, 0, 0, 0]]), torch.tensor([[1, 0, 1, 1, 0]])
    c = counts(said, true)
    assert [int(v) for v in c] == [1, 1, 2, 1]
    assert float(c.iou) == 0.25
    assert float(c.f1) == pytest.approx(0.4)
    assert float(c.sensitivity) == pytest.approx(1 / 3)
    assert float(c.specificity) == 0.5
    assert float(c.accuracy) == pytest.approx(0.4)
    nothing = counts(torch.zeros(1, 4), torch.zeros(1, 4))
    assert float(nothing.iou) == float(nothing.f1) == 1


def slow_f1(said: Tensor, true: Tensor, tolerance: int) -> float:
    """Pixel by pixel, over lists of places."""

    def outline(mask: Tensor) -> list[tuple[int, int]]:
        grid = mask.tolist()
        side = range(len(grid))
        return [
            (i, j) for i in side for j in side if grid[i][j] and any(
                not grid[a][b] for a in side for b in side if max(abs(a - i), abs(b - j)) == 1
            )
        ]  # fmt: skip

    ours, theirs = outline(said), outline(true)
    if not ours and not theirs:
        return 1.0
    near = [
        [any(max(abs(a - i), abs(b - j)) <= tolerance for a, b in other) for i, j in line]
        for line, other in ((ours, theirs), (theirs, ours))
    ]
    p, r = (sum(hits) / len(hits) if hits else 0.0 for hits in near)
    return 2 * p * r / (p + r) if p + r else 0.0


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(0, 2))
def test_boundary_f1_is_that_of_lists_of_places(seed: int, tolerance: int):
    said, true = masks(seed)
    slow = [slow_f1(a, t, tolerance) for a, t in zip(said, true, strict=True)]
    assert_close(boundary_f1(said, true, tolerance=tolerance), torch.tensor(slow))


def test_a_moved_square_keeps_its_outline_within_the_tolerance_and_not_beyond():
    true = torch.zeros(1, 20, 20, dtype=torch.bool)
    true[:, 5:15, 5:15] = True
    assert [float(boundary_f1(true.roll(s, 2), true)) for s in (0, 1, 2)] == [1, 1, 1]
    assert 0 < float(boundary_f1(true.roll(4, 2), true)) < 1
    filled = torch.ones_like(true)
    assert float(boundary_f1(filled, true)) == 0  # no outline within the image
    assert float(boundary_f1(filled, filled)) == 1


def test_edges_are_on_both_sides_of_an_outline():
    classes = torch.zeros(1, 4, 6, dtype=torch.long)
    classes[:, :, 3:] = 2
    assert edges(classes)[0, 0].tolist() == [False, False, True, True, False, False]
    assert edges(classes, width=2)[0, 0].tolist() == [False, True, True, True, True, False]
    assert not edges(torch.ones_like(classes)).any()


def test_bad_input_is_told_in_a_line():
    a = torch.zeros(2, 4, 4)
    for call, words in (
        (lambda: counts(a, a[:1]), r"\(1, 4, 4\)"),
        (lambda: boundary_f1(a[0], a[0]), r"\(n, h, w\)"),
        (lambda: edges(a, width=0), "width=0"),
        (lambda: f1_between(1.2), "1.2"),
    ):
        with pytest.raises((AssayError, ShapeError), match=words):
            call()
