"""Lovasz losses: 1 - IoU of hard answers, by the definition of the extension, and convex between them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.right.masks import counts
from assay.methods.train.lovasz import lovasz, lovasz_hinge, lovasz_softmax, region_and_edge

SEEDS = st.integers(0, 10_000)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(errors: list[float], true: list[bool]) -> float:
    """The integral over thresholds of 1 - IoU of what is wrong by more than the threshold: the extension's meaning."""
    total, last = 0.0, 0.0
    for level in sorted(set(errors)):
        wrong = [e >= level for e in errors]
        hits = sum(t and not w for t, w in zip(true, wrong, strict=True))
        either = sum(t or w for t, w in zip(true, wrong, strict=True))
        total += (level - last) * (1 - hits / either if either else 0.0)
        last = level
    return total


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 12))
def test_it_is_the_integral_of_one_less_iou_over_thresholds(seed: int, places: int):
    errors, true = (drawn(seed, places) * 4).round() / 4, drawn(seed + 1, places) < 0.4
    assert float(lovasz(errors, true)) == pytest.approx(slow(errors.tolist(), true.tolist()), abs=1e-12)


@settings(max_examples=30)
@given(SEEDS, st.integers(2, 4))
def test_hard_answers_cost_one_less_iou(seed: int, classes: int):
    said, true = ((drawn(seed + i, 3, 4, 5) * classes).long() for i in (0, 1))
    cost = lovasz_softmax(one_hot(said, classes).movedim(-1, 1).double(), true)
    over_all = lovasz_softmax(one_hot(said, classes).movedim(-1, 1).double(), true, as_published=True)
    iou = torch.stack([counts(said == c, true == c).iou for c in range(classes)], 1).double()
    there = torch.stack([(true == c).flatten(1).any(1) for c in range(classes)], 1)
    assert_close(cost, ((1 - iou) * there).sum(1) / there.sum(1))
    assert_close(over_all, (1 - iou).mean(1))
    assert not lovasz_softmax(one_hot(true, classes).movedim(-1, 1).double(), true).any()


def test_the_hinge_of_sure_scores_is_twice_one_less_iou_and_0_of_perfect_ones():
    said, true = drawn(0, 4, 9) < 0.5, drawn(1, 4, 9) < 0.5
    assert_close(lovasz_hinge(2.0 * said - 1, true), 2 * (1 - counts(said, true).iou))
    assert not lovasz_hinge(3.0 * true - 1.5, true).any()


@settings(max_examples=30)
@given(SEEDS)
def test_it_is_convex_never_falls_with_errors_and_has_no_order_of_pixels(seed: int):
    true, a, b = drawn(seed, 8) < 0.5, drawn(seed + 1, 8), drawn(seed + 2, 8)
    share = float(drawn(seed + 3, 1))
    mixed = lovasz(share * a + (1 - share) * b, true)
    assert float(mixed) <= share * float(lovasz(a, true)) + (1 - share) * float(lovasz(b, true)) + 1e-12
    assert float(lovasz(a + b * (drawn(seed + 4, 8) < 0.3), true)) >= float(lovasz(a, true)) - 1e-12
    order = torch.from_numpy(np.random.default_rng(seed).permutation(8))
    assert_close(lovasz(a[order], true[order]), lovasz(a, true))


@settings(max_examples=30)
@given(SEEDS)
def test_it_is_a_straight_line_between_any_two_errors_of_one_order(seed: int):
    true, order = drawn(seed, 8) < 0.5, drawn(seed + 1, 8).argsort()
    a, b = torch.empty(2, 8, dtype=torch.float64)
    a[order], b[order] = drawn(seed + 2, 8).sort()[0], drawn(seed + 3, 8).square().sort()[0]
    share = float(drawn(seed + 4, 1))
    assert_close(lovasz(share * a + (1 - share) * b, true), share * lovasz(a, true) + (1 - share) * lovasz(b, true))


def test_where_the_order_turns_the_line_bends():
    true = torch.tensor([True, False])
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])  # a miss costs 1, a false one 1/2
    assert [float(lovasz(e, true)) for e in (a, (a + b) / 2, b)] == [1.0, 0.5, 0.5]


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 4), st.sampled_from([0.0, 1.0, 1e5]))
def test_pixels_have_no_order_and_slopes_are_finite_however_sure_an_answer_is(seed: int, classes: int, sure: float):
    """Of logits that are equal (all errors tie), soft, and so sure that probabilities are 0 and 1; classes may lack."""
    logits = (sure * (drawn(seed, 2, classes, 9) - 0.5)).requires_grad_()
    true = (drawn(seed + 1, 2, 9) * (classes - 1) + (drawn(seed + 2, 1) < 0.5)).long()
    cost = lovasz_softmax(logits.softmax(1), true)
    (slope,) = torch.autograd.grad(cost.sum(), logits)
    assert slope.isfinite().all()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(9))
    assert_close(lovasz_softmax(logits[..., order].softmax(1), true[:, order]), cost)


def test_slopes_are_finite_and_what_does_not_count_does_nothing():
    logits, true = drawn(0, 2, 3, 6).requires_grad_(), (drawn(1, 2, 6) * 3).long()
    true[:, 4:] = -1
    cost = lovasz_softmax(logits.softmax(1), true)
    (slope,) = torch.autograd.grad(cost.sum(), logits)
    assert slope.isfinite().all()
    assert slope[..., :4].any()
    assert not slope[..., 4:].any()
    assert_close(cost, lovasz_softmax(logits[..., :4].softmax(1), true[..., :4]))


def test_regions_and_edges_are_weighed():
    logits, edge = drawn(0, 2, 3, 4, 4), drawn(1, 2, 1, 4, 4) - 0.5
    true, edges = (drawn(2, 2, 4, 4) * 3).long(), drawn(3, 2, 4, 4) < 0.4
    alone = [region_and_edge(logits, edge, true, edges, share=share) for share in (1.0, 0.0)]
    assert_close(alone[0], lovasz_softmax(logits.softmax(1), true))
    two = torch.cat([torch.zeros_like(edge), edge], 1).softmax(1)
    assert_close(alone[1], lovasz_softmax(two, edges))
    assert_close(region_and_edge(logits, edge, true, edges), 0.7 * alone[0] + 0.3 * alone[1])


def test_bad_input_is_told_in_a_line():
    p, y = torch.rand(2, 3, 4), torch.zeros(2, 4)
    for call, words in (
        (lambda: lovasz(torch.zeros(3), torch.zeros(4)), r"\(3,\)"),
        (lambda: lovasz_softmax(p, y[:, :3]), r"\(2, 3\)"),
        (lambda: lovasz_softmax(p, y + 3), "from 3 to 3 for 3"),
        (lambda: lovasz_hinge(y, y[:1]), r"\(1, 4\)"),
        (lambda: region_and_edge(p, p[:, :1], y, y, share=1.5), "share=1.5"),
    ):
        with pytest.raises((AssayError, ShapeError), match=words):
            call()
