"""LiRA against the exact formula of two normals, and its bookkeeping of who was in which shadow."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from assay.errors import AssayError
from assay.methods.private.lira import confidences, halves, lira
from assay.methods.private.membership import label_confidence, tpr_at_fpr
from assay.methods.private.shadows import Pool, Recipe, shadows


def test_normals_are_told_as_often_as_the_formula_says():
    """phi ~ N(mu_i + d in, 1): the ratio's true-positive rate at r is Phi(d - z_{1-r}), whatever the mu_i are."""
    rng, n, d = torch.Generator().manual_seed(0), 6000, 2.0
    own = 5 * torch.randn(n, generator=rng, dtype=torch.float64)
    inside = halves(n, 128, rng)
    shadows = own + d * inside + torch.randn(128, n, generator=rng, dtype=torch.float64)
    member = torch.arange(n) % 2 == 0
    observed = own + d * member + torch.randn(n, generator=rng, dtype=torch.float64)
    found = lira(observed, shadows, inside, own_spread=False)
    for r in (0.01, 0.1):
        truth = norm.cdf(d - norm.ppf(1 - r))
        for score in found:
            rate = tpr_at_fpr(score[member.numpy()], score[~member.numpy()], r)
            assert rate.low < truth < rate.high
            assert abs(rate.value - truth) < 0.06
    plain = tpr_at_fpr(observed[member].numpy(), observed[~member].numpy(), 0.01)
    assert plain.high < 0.1  # without shadows the own means hide it


def test_scores_are_the_log_ratio_and_the_distance_of_scipys_normals():
    rng = torch.Generator().manual_seed(1)
    inside, shadows = halves(7, 8, rng), torch.randn(8, 7, generator=rng, dtype=torch.float64)
    observed = torch.randn(7, generator=rng, dtype=torch.float64)
    found = lira(observed, shadows, inside, own_spread=True)
    for i in range(7):
        ins, outs = (shadows[mask[:, i], i].numpy() for mask in (inside, ~inside))
        ratio = norm.logpdf(observed[i], ins.mean(), ins.std(ddof=1)) - norm.logpdf(
            observed[i], outs.mean(), outs.std(ddof=1)
        )
        assert found.online[i] == pytest.approx(ratio)
        assert found.offline[i] == pytest.approx((float(observed[i]) - outs.mean()) / outs.std(ddof=1))


def test_one_spread_for_all_is_the_pooled_one():
    rng = torch.Generator().manual_seed(2)
    inside, shadows = halves(50, 4, rng), torch.randn(4, 50, generator=rng, dtype=torch.float64)
    outs = np.stack([shadows[~inside[:, i], i].numpy() for i in range(50)])
    found = lira(torch.zeros(50), shadows, inside)
    np.testing.assert_allclose(found.offline, -outs.mean(1) / np.sqrt(outs.var(1, ddof=1).mean()))


def test_from_64_shadows_on_each_input_has_a_spread_of_its_own():
    rng = torch.Generator().manual_seed(5)
    for count, own in ((62, False), (64, True)):
        inside, shadows = halves(9, count, rng), torch.randn(count, 9, generator=rng, dtype=torch.float64)
        left_out, told = lira(torch.ones(9), shadows, inside), lira(torch.ones(9), shadows, inside, own_spread=own)
        np.testing.assert_array_equal(left_out.online, told.online)


def test_shadows_that_all_say_the_same_leave_finite_scores():
    inside = halves(6, 4, torch.Generator().manual_seed(6))
    found = lira(torch.ones(6), torch.zeros(4, 6), inside)
    assert np.isfinite(found.online).all()
    assert (found.offline > 1e5).all()


@settings(max_examples=30, deadline=None)
@given(pool=st.integers(2, 41), pairs=st.integers(1, 6), seed=st.integers(0, 99))
def test_each_input_is_in_half_of_the_shadows_and_each_shadow_holds_half(pool, pairs, seed):
    inside = halves(pool, 2 * pairs, torch.Generator().manual_seed(seed))
    assert (inside.sum(0) == pairs).all()
    assert set(inside.sum(1).tolist()) <= {pool // 2, pool - pool // 2}
    assert (inside[::2] ^ inside[1::2]).all()


def test_halves_are_random_and_each_input_is_as_likely():
    inside = halves(10, 4000, torch.Generator().manual_seed(3))
    together = (inside[::2, 0] & inside[::2, 1]).double().mean()
    assert float(together) == pytest.approx((5 / 10) * (4 / 9), abs=0.035)
    assert float(inside[::2, 3].double().mean()) == pytest.approx(0.5, abs=0.04)


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.1, 10), shift=st.floats(-20, 20), seed=st.integers(0, 9))
def test_units_of_the_confidence_do_not_matter(scale, shift, seed):
    rng = torch.Generator().manual_seed(seed)
    inside, shadows = halves(20, 6, rng), torch.randn(6, 20, generator=rng, dtype=torch.float64)
    observed = torch.randn(20, generator=rng, dtype=torch.float64)
    plain, moved = lira(observed, shadows, inside), lira(observed * scale + shift, shadows * scale + shift, inside)
    for one, other in zip(plain, moved, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_confidences_ask_each_input_once_in_its_order():
    rng = torch.Generator().manual_seed(4)
    x, y, w = torch.randn(23, 3, generator=rng), torch.arange(23) % 4, torch.randn(3, 4, generator=rng)
    asked = []
    found = confidences(lambda part: (asked.append(len(part)), part @ w)[1], x, y, batch=10)
    torch.testing.assert_close(found, label_confidence(x @ w, y))
    assert asked == [10, 10, 3]


def test_each_shadow_begins_from_weights_of_its_own_and_none_from_the_models():
    model = torch.nn.Linear(2, 2)
    pool = Pool(torch.randn(8, 2, generator=torch.Generator().manual_seed(7)), torch.arange(8) % 2)
    told = shadows(model, pool, torch.ones(2, 8, dtype=torch.bool), Recipe(1, 1e-8, 8), seed=0)
    begun = label_confidence(model(pool.x).detach(), pool.y)
    for one, other in ((told.confidence[0], told.confidence[1]), (told.confidence[0], begun)):
        assert float((one - other).abs().max()) > 1e-2
    assert torch.equal(told.right, told.confidence > 0)  # of two classes
    torch.testing.assert_close(
        shadows(model, pool, torch.ones(1, 8, dtype=torch.bool), Recipe(1, 1e-8, 8), seed=0)[0][0], told[0][0]
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: halves(10, 3, torch.Generator()), "3 shadows over a pool of 10"),
        (lambda: halves(1, 2, torch.Generator()), "a pool of 1"),
        (lambda: lira(torch.zeros(3), torch.zeros(2, 3), torch.eye(2, 3).bool()), "only 0 of 2 shadows"),
        (lambda: lira(torch.zeros(3), torch.zeros(2, 4), torch.zeros(2, 4).bool()), "who was inside"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call, says):
    with pytest.raises(AssayError, match=says):
        call()
