from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.detection import auroc, auroc_interval, detection_rate, fpr_at_tpr, threshold_at

row = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0, 3.0]), min_size=1, max_size=30)  # many ties


def area_by_pairs(inside: list[float], outside: list[float]) -> float:
    pairs = [(i > o) + (i == o) / 2 for i in inside for o in outside]
    return sum(pairs) / len(pairs)


@settings(deadline=None, max_examples=60)
@given(inside=row, outside=row, tpr=st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_area_and_false_positives_are_those_of_the_definition(
    inside: list[float], outside: list[float], tpr: float
) -> None:
    assert auroc(inside, outside) == pytest.approx(area_by_pairs(inside, outside), abs=1e-12)
    assert auroc(inside, outside) + auroc(outside, inside) == pytest.approx(1, abs=1e-12)
    allowed = [a for a in inside if sum(i >= a for i in inside) >= tpr * len(inside) - 1e-9]
    want = sum(o >= max(allowed) for o in outside) / len(outside)
    assert fpr_at_tpr(inside, outside, tpr=tpr) == pytest.approx(want, abs=1e-12)


def test_they_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 1000).round(1), rng.normal(0, 1, 700).round(1)  # rounded: ties
    truth, scores = np.r_[np.ones(1000), np.zeros(700)], np.r_[inside, outside]
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert fpr_at_tpr(torch.tensor(inside), torch.tensor(outside)) == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-12)


def test_two_normal_distributions_have_a_closed_form() -> None:
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(2, 1, 200_000), rng.normal(0, 1, 200_000)
    assert auroc(inside, outside) == pytest.approx(norm.cdf(2 / math.sqrt(2)), abs=2e-3)
    assert fpr_at_tpr(inside, outside) == pytest.approx(norm.sf(2 + norm.ppf(0.05)), abs=5e-3)


@settings(deadline=None, max_examples=40)
@given(scores=row, thresholds=row)
def test_detection_rises_with_the_threshold(scores: list[float], thresholds: list[float]) -> None:
    rates = detection_rate(scores, sorted(thresholds))
    assert (rates.diff() >= 0).all()
    want = [sum(s <= t for s in scores) / len(scores) for t in sorted(thresholds)]
    assert rates.tolist() == pytest.approx(want, abs=1e-12)
    assert detection_rate(scores, [3.0]).item() == 1


def test_the_threshold_is_the_highest_that_keeps_its_promise() -> None:
    scores = torch.arange(20.0)
    t = threshold_at(scores, accept=0.95)
    assert int((scores.double() > t).sum()) == 19
    assert t == math.nextafter(1.0, 0.0)
    assert threshold_at(scores, accept=1.0) < 0
    assert threshold_at([0.3, 0.3, 0.3], accept=0.5) < 0.3  # ties stay together


def test_the_interval_covers_and_does_not_shrink_to_nothing() -> None:
    rng = np.random.default_rng(2)
    truth, hits = norm.cdf(1.5 / math.sqrt(2)), 0
    for _ in range(200):
        low, high = auroc_interval(rng.normal(1.5, 1, 40), rng.normal(0, 1, 30))
        hits += low <= truth <= high
    assert hits / 200 > 0.90  # 0.95 less three standard errors
    low, high = auroc_interval([2.0, 3.0, 4.0], [0.0, 1.0])  # no overlap, five scores
    assert high == 1
    assert 0.2 < low < 0.8
    back_low, back_high = auroc_interval([0.0, 1.0], [2.0, 3.0, 4.0])
    assert back_low == 0
    assert back_high == pytest.approx(1 - low, abs=1e-9)


def test_bad_input_gets_one_line() -> None:
    with pytest.raises(AssayError, match="Score 1 of outside is nan"):
        auroc([1.0], [0.0, math.nan])
    with pytest.raises(AssayError, match="Score 0 of inside is -inf"):
        threshold_at([-math.inf, 1.0])
    with pytest.raises(ShapeError, match=r"inside of shape \(0,\)"):
        auroc([], [0.0])
    with pytest.raises(AssayError, match=r"accept=1.5"):
        threshold_at([1.0], accept=1.5)
    with pytest.raises(AssayError, match="level=95"):
        auroc_interval([1.0], [0.0], level=95)
