"""Learned weights of losses: where L is lowest, its slope, and what counts how much."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.task_weights import TaskWeights, lowest

LOSSES = torch.tensor([0.25, 1.0, 4.0])


def test_it_is_the_printed_sum() -> None:
    weighed = TaskWeights(3)
    mu = torch.tensor([0.5, 1.0, 3.0])
    with torch.no_grad():
        weighed.log_square.copy_((mu**2).log())
    printed = (LOSSES / mu**2).sum() + mu.prod().log()
    assert_close(weighed(LOSSES.unbind()).detach(), printed)
    assert_close(weighed.weights, 1 / mu**2)


def test_the_slope_is_zero_at_mu_squared_twice_the_loss_and_points_there() -> None:
    weighed = TaskWeights(3)
    best = lowest(LOSSES)
    for off, sign in ((0.0, 0), (0.3, 1), (-0.3, -1)):
        with torch.no_grad():
            weighed.log_square.copy_(best.log() + off)
        slope = torch.autograd.grad(weighed(LOSSES.unbind()), weighed.log_square)[0]
        by_hand = 0.5 - (-weighed.log_square.detach()).exp() * LOSSES
        assert_close(slope, by_hand)
        assert (slope.sign().tolist() == [sign] * 3) if sign else slope.abs().max() < 1e-6


def test_descent_finds_it_and_a_larger_loss_counts_less() -> None:
    weighed = TaskWeights(3)
    descent = torch.optim.SGD(weighed.parameters(), lr=0.5)
    for _ in range(200):
        descent.zero_grad()
        torch.autograd.backward(weighed(LOSSES.unbind()))
        descent.step()
    assert_close(weighed.log_square.detach().exp(), 2 * LOSSES, rtol=1e-3, atol=1e-3)
    assert_close(weighed.weights * LOSSES, torch.full((3,), 0.5), rtol=1e-3, atol=1e-3)
    assert weighed.weights.tolist() == sorted(weighed.weights.tolist(), reverse=True)


def test_counts_that_do_not_fit_are_told() -> None:
    with pytest.raises(AssayError, match="2 losses and has 3"):
        TaskWeights(3)(LOSSES[:2].unbind())
    with pytest.raises(AssayError, match="0 losses"):
        TaskWeights(0)
