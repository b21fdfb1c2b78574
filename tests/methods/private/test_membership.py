"""Scores of membership against their definitions, and rates at few false positives against scikit-learn and truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_curve

from assay.errors import AssayError
from assay.methods.private.membership import (
    best_threshold,
    clopper_pearson,
    label_confidence,
    roc,
    scores,
    tpr_at_fpr,
)


def as_printed(z: list[float], y: int) -> dict[str, float]:
    """One row at a time, by probabilities."""
    total = sum(math.exp(v) for v in z)
    p = [math.exp(v) / total for v in z]
    return {
        "loss": math.log(p[y]),
        "maximum": max(p),
        "entropy": sum(v * math.log(v) for v in p),
        "modified entropy": (1 - p[y]) * math.log(p[y]) + sum(v * math.log(1 - v) for i, v in enumerate(p) if i != y),
    }


@settings(max_examples=20, deadline=None)
@given(z=st.lists(st.floats(-5, 5), min_size=2, max_size=6), data=st.data())
def test_scores_are_what_their_authors_wrote(z, data):
    y = data.draw(st.integers(0, len(z) - 1))
    found = scores(torch.tensor([z], dtype=torch.float64), torch.tensor([y]))
    for name, value in as_printed(z, y).items():
        assert float(found[name]) == pytest.approx(value, abs=1e-9), name
    p = math.exp(as_printed(z, y)["loss"])
    confidence = label_confidence(torch.tensor([z], dtype=torch.float64), torch.tensor([y]))
    assert float(confidence) == pytest.approx(math.log(p / (1 - p)), abs=1e-9)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), shift=st.floats(-50, 50))
def test_a_constant_on_all_logits_and_another_order_of_the_classes_change_nothing(seed, shift):
    rng = np.random.default_rng(seed)
    z, y = torch.as_tensor(rng.normal(size=(5, 4)) * 3), torch.as_tensor(rng.integers(0, 4, 5))
    order = torch.as_tensor(rng.permutation(4))
    plain = {**scores(z, y), "confidence": label_confidence(z, y)}
    moved, place = (z + shift)[:, order], order.argsort()[y]
    for name, value in {**scores(moved, place), "confidence": label_confidence(moved, place)}.items():
        torch.testing.assert_close(value, plain[name], rtol=1e-7, atol=1e-9)


def test_surest_answers_keep_a_finite_score_and_their_order():
    z = torch.tensor([[0.0, 100.0], [0.0, 200.0], [0.0, 900.0]])
    y = torch.ones(3, dtype=torch.long)
    assert label_confidence(z, y).tolist() == [100.0, 200.0, 900.0]
    for name, value in scores(z, y).items():
        assert value.isfinite().all(), name
    wrong = scores(z, 1 - y)
    assert wrong["modified entropy"].tolist() == pytest.approx([-200.0, -400.0, -1800.0])  # twice: for y and against


def test_two_classes_leave_the_modified_entropy_the_order_of_the_loss():
    z = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = scores(z, torch.zeros(200, dtype=torch.long))
    assert found["modified entropy"].argsort().tolist() == found["loss"].argsort().tolist()


@settings(max_examples=30, deadline=None)
@given(
    ins=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    outs=st.lists(st.integers(0, 12), min_size=2, max_size=40),
    fpr=st.sampled_from([0.05, 0.1, 0.25, 0.5]),
)
def test_the_curve_and_the_rate_are_scikit_learns_ties_and_all(ins, outs, fpr):
    truth = np.r_[np.ones(len(ins)), np.zeros(len(outs))]
    false, true, _ = roc_curve(truth, np.r_[ins, outs], drop_intermediate=False)
    mine = roc(ins, outs)
    np.testing.assert_allclose(mine[0], false, atol=1e-12)
    np.testing.assert_allclose(mine[1], true, atol=1e-12)
    rate = tpr_at_fpr(ins, outs, fpr)
    if len(outs) * fpr < 1 - 1e-9:
        assert rate is None
        return
    assert rate.value == pytest.approx(true[false <= fpr + 1e-9].max())
    assert 0 <= rate.low <= rate.value <= rate.high <= 1
    assert (np.array(outs) > rate.threshold).mean() <= fpr + 1e-9


def test_a_model_that_knows_its_members_by_heart_gives_all_of_them_away():
    rng = np.random.default_rng(0)
    members, others = rng.random(3000) + 1, rng.random(5000)  # as a nearest neighbour is sure of what it holds
    rate = tpr_at_fpr(members, others, 0.001)
    assert rate.value == 1
    assert rate.low > 0.998
    assert tpr_at_fpr(others, members, 0.001).value == 0


def test_scores_that_know_nothing_tell_as_many_members_as_others():
    rng = np.random.default_rng(1)
    for fpr in (0.001, 0.01, 0.1):
        rate = tpr_at_fpr(rng.random(6000), rng.random(6000), fpr)
        assert rate.low <= fpr <= rate.high


@pytest.mark.parametrize(("n", "m", "fpr", "gap"), [(300, 300, 0.05, 1.0), (500, 5000, 0.001, 2.5)])
def test_the_interval_holds_the_truth_at_least_as_often_as_it_says(n, m, fpr, gap):
    """Members a gap above the others: the rate is Phi(gap - z), by the formula of two normals."""
    rng = np.random.default_rng(2)
    truth = norm.cdf(gap - norm.ppf(1 - fpr))
    rates = [tpr_at_fpr(rng.normal(gap, 1, n), rng.normal(0.0, 1, m), fpr) for _ in range(100)]
    assert sum(r.low <= truth <= r.high for r in rates) >= 91  # of 95 or more, within what 100 draws vary by
    assert np.mean([r.low for r in rates]) > 0.1 * truth  # and it says something
    assert np.mean([r.high for r in rates]) < 3 * truth


def test_few_others_are_not_sure_of_few_false_positives():
    members, others = np.ones(500), np.zeros(1000)
    assert tpr_at_fpr(members, others[:999], 0.001) is None
    rate = tpr_at_fpr(members, others, 0.001)
    assert (rate.value, rate.low) == (1.0, 0.0)
    assert tpr_at_fpr(members, np.zeros(4380), 0.001).low > 0.98
    tied = tpr_at_fpr(np.ones(50), np.ones(200), 0.05)
    assert (tied.value, tied.low, tied.high) == (0.0, 0.0, 1.0)  # ties could lie on either side


def test_clopper_and_pearson_have_no_end_where_there_is_none():
    assert clopper_pearson(0, 100) == (0.0, pytest.approx(1 - 0.025 ** (1 / 100)))
    assert clopper_pearson(100, 100) == (pytest.approx(0.025 ** (1 / 100)), 1.0)


@settings(max_examples=20, deadline=None)
@given(
    ins=st.lists(st.integers(0, 9), min_size=1, max_size=20), outs=st.lists(st.integers(0, 9), min_size=1, max_size=20)
)
def test_no_threshold_is_better_than_the_best(ins, outs):
    a, b = np.array(ins), np.array(outs)

    def worth(t: float) -> float:
        return (a > t).mean() + (b <= t).mean()

    assert worth(best_threshold(ins, outs)) == pytest.approx(max(worth(t) for t in np.arange(-0.5, 10)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: scores(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long)), "two or more classes"),
        (lambda: label_confidence(torch.zeros(3, 2), torch.zeros(2, dtype=torch.long)), "one label for each row"),
        (lambda: tpr_at_fpr([1.0], [math.nan], 0.1), "one finite number"),
        (lambda: tpr_at_fpr([1.0], [1.0], 0.0), "fpr=0.0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call, says):
    with pytest.raises(AssayError, match=says):
        call()
