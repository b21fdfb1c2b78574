"""Private training: what it promises against the exact Gaussian mechanism, and one step written by hand."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from assay.errors import AssayError
from assay.methods.private.dp_sgd import (
    dp_fit,
    epsilon_of,
    gaussian_delta,
    noise_for,
    refuse_mixing,
    without_batch_norm,
)
from assay.methods.private.shadows import Pool

pytestmark = pytest.mark.skipif(find_spec("opacus") is None, reason="opacus is not installed")


def rows(n: int = 40) -> Pool:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return Pool(x, (x[:, 0] > 0).long())


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_with_every_input_in_every_step_it_is_one_gaussian_mechanism():
    exact = epsilon_of(5.0, 1.0, 10, 1e-5, "prv")
    assert gaussian_delta(exact, 5.0 / math.sqrt(10)) <= 1e-5  # prv rounds up
    assert gaussian_delta(exact - 0.05, 5.0 / math.sqrt(10)) > 1e-5
    assert exact <= epsilon_of(5.0, 1.0, 10, 1e-5, "rdp") < 1.2 * exact


def test_the_two_accountants_agree_on_what_is_an_upper_bound():
    for noise, rate, steps in ((1.0, 0.01, 500), (2.0, 0.05, 200)):
        bound, near = (epsilon_of(noise, rate, steps, 1e-5, by) for by in ("rdp", "prv"))
        assert 0.75 * bound < near <= bound


def test_epsilon_grows_with_steps_and_chance_and_falls_with_noise():
    at = epsilon_of(1.0, 0.02, 100, 1e-4)
    assert epsilon_of(1.0, 0.02, 200, 1e-4) > at
    assert epsilon_of(1.0, 0.04, 100, 1e-4) > at
    assert epsilon_of(1.5, 0.02, 100, 1e-4) < at
    assert epsilon_of(0.0, 0.02, 100, 1e-4) == math.inf


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_noise_keeps_the_promise_and_is_no_larger_than_it_must_be(epsilon):
    noise = noise_for(epsilon, 0.05, 100, 1e-4)
    assert 0.95 * epsilon < epsilon_of(noise, 0.05, 100, 1e-4) <= epsilon


def test_a_step_of_all_inputs_is_the_mean_of_clipped_gradients():
    data, model, clip = rows(12), net(), 0.1
    by_hand = net()
    total = [torch.zeros_like(p) for p in by_hand.parameters()]
    for x, y in zip(data.x, data.y, strict=True):
        by_hand.zero_grad()
        F.cross_entropy(by_hand(x[None]), y[None]).backward()
        size = torch.cat([p.grad.flatten() for p in by_hand.parameters()]).norm()
        for sum_of, p in zip(total, by_hand.parameters(), strict=True):
            sum_of += p.grad * min(1.0, clip / float(size))
    told: list[float] = []
    dp_fit(
        model, data, steps=1, lr=0.5, batch=12, noise=1e-9, clip=clip, rng=torch.Generator().manual_seed(0), momentum=0,
        after_step=told.append,
    )  # fmt: skip
    assert told == [pytest.approx(F.cross_entropy(net()(data.x), data.y).item(), rel=1e-5)]
    for p, old, sum_of in zip(model.parameters(), net().parameters(), total, strict=True):
        torch.testing.assert_close(p.detach(), old.detach() - 0.5 * sum_of / 12, rtol=1e-4, atol=1e-6)


def test_noise_moves_each_weight_by_as_much_as_it_says():
    """With a rate so small that batches are mostly empty, and no clipping worth the name, the steps are noise alone."""
    model = nn.Linear(60, 50)
    begun = model.weight.detach().clone()
    data = Pool(torch.zeros(2000, 60), torch.zeros(2000, dtype=torch.long))
    dp_fit(
        model, data, steps=4, lr=1.0, batch=1, noise=3.0, clip=0.01, rng=torch.Generator().manual_seed(1), momentum=0
    )
    moved = float((model.weight.detach() - begun).std())
    assert moved == pytest.approx(2 * 3.0 * 0.01, rel=0.05)  # sqrt(4 steps) sigma C / batch
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())


def test_batches_in_parts_are_the_same_batch(monkeypatch):
    whole, parts = net(), net()
    settings = {"steps": 3, "lr": 0.1, "batch": 10, "noise": 0.5, "clip": 1.0}
    dp_fit(whole, rows(), rng=torch.Generator().manual_seed(2), **settings)
    monkeypatch.setattr("assay.methods.private.dp_sgd.AT_ONCE", 80)  # of 26 weights: three inputs
    dp_fit(parts, rows(), rng=torch.Generator().manual_seed(2), **settings)
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_batch_normalisations_become_group_normalisations_that_leave_something():
    model = nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.Linear(32, 3), nn.BatchNorm1d(3), nn.Linear(3, 8))
    model.append(nn.BatchNorm1d(8))  # of eight groups one channel each would leave nothing
    made, count = without_batch_norm(model)
    assert count == 3
    assert [m.num_groups for m in made if isinstance(m, nn.GroupNorm)] == [8, 1, 4]
    assert isinstance(model[1], nn.BatchNorm1d)
    assert float(made(torch.randn(5, 3)).detach().std()) > 0
    refuse_mixing(made)
    with pytest.raises(AssayError, match="It cannot be trained privately"):
        refuse_mixing(model)


def test_what_cannot_be_is_refused_in_one_line(monkeypatch):
    with pytest.raises(AssayError, match="A batch of 41 is more than the 40"):
        dp_fit(net(), rows(), steps=1, lr=0.1, batch=41, noise=1.0, clip=1.0, rng=torch.Generator())
    broken = Pool(torch.full((40, 3), math.nan), rows().y)
    with pytest.raises(AssayError, match=r"became nan in step 1 of 1; try lr=0.01"):
        dp_fit(net(), broken, steps=1, lr=0.1, batch=40, noise=1.0, clip=1.0, rng=torch.Generator())
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(AssayError, match=r"pip install 'assay\[private\]'"):
        epsilon_of(1.0, np.float64(0.1), 1, 1e-5)
