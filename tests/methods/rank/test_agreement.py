"""When one map may stand in for another: exact on a generalised linear model, trends on curved ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import nn
from torch.testing import assert_close

from assay.errors import ShapeError
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.rank.agreement import LOCAL, NEAR, PAIRS, agreement, angle, cosine, rank_correlation
from assay.methods.rank.maps import grey
from assay.methods.rank.walk import one_step, to_tie, walk

N, SIDE, D = 20, 4, 16


def draw(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def linear():
    """sigmoid(w . a + b), w of length 1, and inputs on both sides of the tie."""
    w = draw(D, seed=1) - 0.5
    w /= w.norm()
    x = draw(N, 1, SIDE, SIDE)
    b = 0.03 - (x.flatten(1) @ w).median()
    return lambda a: torch.sigmoid(4 * (a.flatten(1) @ w + b)), x, w, b


def curved(sharpness, seed=2, height=2.0):
    """sigmoid of a line with waves on it: the slope varies as much at any sharpness, over shorter and shorter ways."""
    rng = torch.Generator().manual_seed(seed)
    line, waves = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((D,), (32, D)))
    line, waves = line / line.norm(), waves / waves.norm(dim=1, keepdim=True)
    middle = draw(200, D, seed=99) @ line

    def score(a):
        flat = a.flatten(1)
        bumps = torch.sin(sharpness * (flat @ waves.T)).mean(1) / sharpness
        return torch.sigmoid(4 * (flat @ line - middle.median() + height * bumps))

    return score


def across(score, x):
    """The end of the range on the other side of the tie."""
    return (score(x) < 0.5).double()


def mean(values):
    return float(values[values.isfinite()].mean())


def test_on_a_generalised_linear_model_all_four_agree(linear):
    score, x, w, b = linear
    told = agreement(score, x, target=across(score, x), steps=300)
    for pair in PAIRS:
        assert_close(told.angle[pair], torch.zeros(N).double(), rtol=0, atol=1e-5)
        assert_close(told.spearman[pair], torch.ones(N).double())
    for way in ("b", "m"):
        assert_close(told.straightness[way], torch.ones(N).double())
        assert (told.turned[way] < 1e-5).all()
    assert told.local().all()
    assert told.found.all()
    margin = x.flatten(1) @ w + b
    assert_close(told.length["m'"], margin.abs(), rtol=1e-6, atol=1e-8)  # |w . a + b| / ||w||
    assert_close(told.length["m"], margin.abs(), rtol=0, atol=1.1 * NEAR)  # the slope at the tie is 1
    nearest = x.flatten(1) - margin[:, None] * w
    assert_close(told.ends["m"].flatten(1), nearest, rtol=0, atol=1.1 * NEAR)
    assert_close(told.ends["m'"].flatten(1), nearest, rtol=0, atol=1e-6)


def test_one_step_maps_are_the_same_for_every_target_and_are_the_gradient(linear):
    score = curved(3.0)
    x = draw(N, 1, SIDE, SIDE, seed=3).requires_grad_()
    gradient = torch.autograd.grad(score(x).sum(), x)[0]
    x = x.detach()
    low, high = (one_step(score, x, target=t, length=0.7).x for t in (0.0, 1.0))
    assert_close(low - x, x - high)
    assert_close((low - x).flatten(1).norm(dim=1), torch.full((N,), 0.7, dtype=torch.float64))
    wanted = grey(torch.zeros_like(x), gradient)
    told = agreement(score, x, target=across(score, x), steps=50)
    for end in (low, high, told.ends["s"]):
        assert_close(grey(x, end), wanted, rtol=0, atol=1e-9)
    here = told.found
    assert here.sum() >= N // 2
    assert_close(grey(x, told.ends["m'"])[here], wanted[here], rtol=0, atol=1e-6)
    assert_close(told.angle["s", "m'"][here], torch.zeros(int(here.sum())).double(), rtol=0, atol=1e-5)


def test_agreement_falls_with_sharpness_and_is_tighter_at_the_mid_point():
    x = draw(N, 1, SIDE, SIDE, seed=4)
    told = [agreement(curved(k), x, target=across(curved(k), x), steps=200) for k in (0.3, 2.0, 8.0)]
    far = [mean(t.angle["b", "s"]) for t in told]
    assert far[0] < far[1] < far[2]
    assert [mean(t.spearman["b", "s"]) for t in told] == sorted(
        (mean(t.spearman["b", "s"]) for t in told), reverse=True
    )
    for t in told:
        assert mean(t.angle["m", "m'"]) <= mean(t.angle["b", "s"])
        both = t.found
        assert (t.length["m"] <= t.length["b"] + 1e-9)[both].all()
        for way in ("b", "m"):
            straight = t.straightness[way][t.length[way] > 0]
            assert ((straight > 0) & (straight <= 1)).all()
    error = {way: (told[2].c[way] - across(curved(8.0), x)).abs().mean() for way in ("b", "s")}
    assert error["b"] <= error["s"]  # many steps come closer at the same length


def test_a_walk_of_one_step_is_the_one_step_attack():
    score, x = curved(4.0), draw(N, 1, SIDE, SIDE, seed=5)
    told = agreement(score, x, target=0.0, steps=1)
    assert_close(told.ends["b"], told.ends["s"])
    assert_close(told.straightness["b"], torch.ones(N).double())
    assert_close(told.angle["b", "s"], torch.zeros(N).double(), rtol=0, atol=1e-5)


def test_clipping_spoils_the_agreement_on_saturated_inputs():
    score = curved(6.0)
    hard = (draw(N, 1, SIDE, SIDE, seed=8) > 0.5).double()  # every value at a bound
    target = across(score, hard)
    free, cut = (agreement(score, hard, target=target, box=box) for box in (None, (0.0, 1.0)))
    assert mean(cut.angle["b", "s"]) > mean(free.angle["b", "s"]) + 1
    assert ((cut.ends["b"] >= 0) & (cut.ends["b"] <= 1)).all()


def test_the_gate_refuses_above_its_limit():
    x = draw(N, 1, SIDE, SIDE, seed=4)
    score = curved(8.0, height=9.0)
    told = agreement(score, x, target=across(score, x), steps=100)
    wide = told.angle["b", "s"]
    assert 0 < (wide > LOCAL).sum() < N
    assert (told.local() == (wide <= LOCAL)).all()
    assert told.local(180.0).all()
    assert not told.local(0.0).any()


def test_where_there_is_no_direction_nothing_is_called_local():
    """An input at the tie, one whose line never meets it, and one whose target is reached."""
    slope = torch.tensor([1.0, 0.0]).double()
    tied = lambda a: torch.sigmoid(a @ slope)  # noqa: E731
    told = agreement(tied, torch.zeros(1, 2).double(), target=0.5)
    assert all(told.angle[pair].isnan().all() for pair in PAIRS)
    assert all(told.spearman[pair].isnan().all() for pair in PAIRS)
    assert not told.local().any()
    assert (grey(torch.zeros(1, 2).double(), told.ends["m"]) == 0).all()
    flat = lambda a: 0.6 + 0.3 * torch.sigmoid(a @ slope)  # noqa: E731
    told = agreement(flat, torch.zeros(1, 2).double(), target=0.0)
    assert not told.found.any()
    assert told.angle["s", "m'"].isnan().all()
    assert told.local().all()


def test_what_is_drawn_is_compared_and_left_out_without_a_decoder(linear):
    score, x, _, _ = linear
    target = across(score, x)
    assert agreement(score, x, target=target, steps=20).drawn == {}
    told = agreement(score, x, target=target, steps=20, draw=lambda a: 2 * a)
    for p, q in PAIRS:
        assert_close(told.drawn[p, q], 4 * (told.ends[p] - told.ends[q]).square().mean((1, 2, 3)))


def test_a_mid_point_is_a_small_counterexample():
    """Past it the answer turns, hardly any other way as short turns it, and what is ignored is not in its map."""
    score = curved(2.0)
    dead = torch.ones(SIDE, SIDE).double()
    dead[0] = 0
    seen = lambda a: score(a * dead)  # noqa: E731 (the first row is ignored)
    x = draw(N, 1, SIDE, SIDE, seed=6)
    end = walk(seen, x, target=0.5, steps=400)
    assert ((end.c - 0.5).abs() < 1e-3).all()
    eps = end.x - x
    before, after = (seen(x) - 0.5).sign(), (seen(x + 1.05 * eps) - 0.5).sign()
    assert (before == -after).all()
    rng = torch.Generator().manual_seed(0)
    for _ in range(100):
        noise = torch.randn(x.shape, generator=rng, dtype=torch.float64)
        noise *= (eps.flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
        assert ((seen(x + noise) - 0.5).sign() == before).double().mean() > 0.9
    assert (grey(x, end.x)[:, 0] == 0).all()


def test_a_mid_point_is_about_as_near_as_the_nearest_point_that_an_attack_finds():
    score = curved(2.0)
    x = draw(N, 1, SIDE, SIDE, seed=7).float()
    low = lambda a: score(a.double()).clamp(1e-6, 1 - 1e-6).logit().float()  # noqa: E731

    class Two(nn.Module):
        def forward(self, a):
            return torch.stack([-low(a), low(a)], 1)

    y = (low(x) > 0).long()
    nearest = minimal_norm(Two(), x, y, norm="l2", steps=100, bounds=(-5.0, 5.0)).distance
    mid = to_tie(score, x.double())
    many = walk(score, x.double(), target=0.5, steps=400)
    assert mid.found.all()
    for length in (mid.distance, (many.x - x).flatten(1).norm(dim=1)):
        assert (length <= 1.5 * nearest + 1e-3).all()
        assert (length >= 0.9 * nearest - 1e-3).all()


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 500), scale=st.floats(0.1, 10))
def test_angles_and_correlations_are_the_textbooks(seed, scale):
    a, b = draw(3, 2, 5, seed=seed) - 0.5, draw(3, 2, 5, seed=seed + 1) - 0.5
    dot = (a * b).sum((1, 2)) / (a.flatten(1).norm(dim=1) * b.flatten(1).norm(dim=1))
    assert_close(angle(scale * a, b), torch.rad2deg(dot.arccos()))
    assert_close(cosine(scale * a, b), dot)
    assert_close(angle(a, -scale * a), torch.full((3,), 180.0, dtype=torch.float64))
    b[:, 0] = b[:, 0].round(decimals=1)  # ties
    got = rank_correlation(a, b)
    for i in range(3):
        assert got[i].item() == pytest.approx(spearmanr(a[i].flatten(), b[i].flatten()).statistic)


def test_maps_of_two_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 4\) cannot be compared"):
        rank_correlation(torch.zeros(2, 3), torch.zeros(2, 4))
