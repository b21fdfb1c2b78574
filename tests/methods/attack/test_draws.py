"""Draws of one input as one batch: the same gradients, heights and answers as one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.methods.attack.attacked import Slope
from assay.methods.attack.chance import chance
from assay.methods.attack.loss import Goal
from assay.methods.attack.pgd import pgd
from assay.nn.members import AT_ONCE, Drawn, at_once, draws_apart, passes
from assay.nn.noisy import Noise
from assay.nn.read_as import Rescaled

N, DRAWS = 8, 6  # 8 inputs of 64 features: the generator gives a batch the numbers that it gives its parts in turn


def noisy(digits, apart: bool, std: float = 0.3) -> Drawn:
    return Drawn(nn.Sequential(Noise(std), digits.model), DRAWS, rows_apart=apart).eval()


def slopes(digits, mode="loss", loss="ce"):
    for apart in (False, True):
        slope = Slope(noisy(digits, apart), Goal(digits.y[:N], None, loss), eot=DRAWS, eot_mode=mode)
        torch.manual_seed(5)
        slope.goal = replace(slope.goal, scale=torch.ones(N, dtype=torch.float64))
        slope.head = "logits"
        yield slope


@pytest.mark.parametrize(("mode", "loss"), [("loss", "ce"), ("mean_prob", "ce"), ("loss", "margin")])
def test_one_batch_gives_what_a_loop_gives_with_the_same_noise(digits, mode, loss):
    x = digits.x[:N]
    seen = []
    for slope in slopes(digits, mode, loss):
        torch.manual_seed(7)
        seen.append(slope.at(x))
    loop, batch = seen
    size = loop.gradient.flatten(1).norm(dim=1)
    apart = [g.gradient / g.gradient.flatten(1).norm(dim=1)[:, None] for g in seen]  # one factor for each input is free
    assert_close(apart[0], apart[1], rtol=1e-3, atol=1e-4)
    assert (size > 0).all()
    assert_close(loop.height, batch.height, rtol=1e-4, atol=1e-4)
    assert torch.equal(loop.reached, batch.reached)


def test_looks_tallies_and_scores_are_those_of_a_loop(digits):
    x = digits.x[:N]
    for ask in (Slope.look, lambda s, x: s.tally(x, 3), lambda s, x: (s.scores(x),)):
        found = []
        for slope in slopes(digits):
            torch.manual_seed(7)
            found.append(ask(slope, x))
        for loop, batch in zip(*found, strict=True):
            assert_close(loop, batch, rtol=1e-4, atol=1e-4)


def test_chances_are_those_of_a_loop(digits):
    found = []
    for apart in (False, True):
        torch.manual_seed(7)
        found.append(chance(noisy(digits, apart, 1.0), digits.x[:N], digits.y[:N], draws=DRAWS))
    for loop, batch in zip(*found, strict=True):
        assert_close(loop, batch)
    assert int(found[0].wrong.sum()) > 0


def test_many_draws_are_cut_into_batches_that_fit(digits):
    x = torch.zeros(100, 64)
    assert at_once(50, x) == [5] * 10
    assert sum(at_once(7, x)) == 7
    assert at_once(3, torch.zeros(4 * AT_ONCE, 2)) == [1, 1, 1]
    model, sizes = noisy(digits, True), []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    assert passes(model, x, 50).shape == (50, 100, 10)
    assert sizes == [500] * 10
    slope = Slope(model, Goal(digits.y[:100], None, "margin"), eot=12)
    sizes.clear()
    slope.at(digits.x[:100])
    assert sizes == [100, 500, 500, 200]  # one pass that settles the scale, and twelve draws


def test_only_a_net_whose_rows_draw_apart_goes_in_one_batch(digits):
    assert draws_apart(noisy(digits, True))
    assert draws_apart(Rescaled(noisy(digits, True), torch.zeros(()), torch.ones(())))
    assert not draws_apart(noisy(digits, False))
    assert not draws_apart(noisy(digits, True).train())
    assert not draws_apart(digits.model)
    assert not Slope(noisy(digits, True), Goal(digits.y[:N])).in_one_batch  # one draw is one pass


def test_an_attack_in_one_batch_is_as_strong(digits):
    x, y = digits.x[:60], digits.y[:60]
    held = []
    for apart in (False, True):
        torch.manual_seed(0)
        model = noisy(digits, apart)
        found = pgd(model, x, y, radius=0.1, steps=8, loss="margin", eot=DRAWS)
        assert found.hits is not None
        assert torch.equal(found.success, 2 * found.hits > 8)
        held.append(float(1 - chance(model, found.x, y, draws=DRAWS).wrong.double().mean() / 42))
    assert held[0] == pytest.approx(held[1], abs=0.06)
