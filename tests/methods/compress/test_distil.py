"""A student learns what a teacher says: the loss as printed, and a narrower network of the same kind."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.compress.distil import Taught, narrower

DRAW = torch.Generator().manual_seed(0)
Z, T, Y = torch.randn(6, 4, generator=DRAW), torch.randn(6, 4, generator=DRAW), torch.tensor([0, 1, 2, 3, 0, 1])


def as_printed(z: torch.Tensor, t: torch.Tensor, y: torch.Tensor, temperature: float, mix: float) -> float:
    """Hinton et al. 2015, sec. 2: one input at a time, plain Python."""

    def softmax(row: list[float], hot: float) -> list[float]:
        e = [math.exp(v / hot) for v in row]
        return [v / sum(e) for v in e]

    total = 0.0
    for i in range(len(z)):
        soft, said = softmax(t[i].tolist(), temperature), softmax(z[i].tolist(), temperature)
        total += mix * temperature**2 * -sum(p * math.log(q) for p, q in zip(soft, said, strict=True))
        total += (1 - mix) * -math.log(softmax(z[i].tolist(), 1)[int(y[i])])
    return total / len(z)


@pytest.mark.parametrize(("temperature", "mix"), [(1.0, 0.5), (4.0, 0.9), (20.0, 1.0), (3.0, 0.0)])
def test_the_loss_is_the_printed_one(temperature: float, mix: float) -> None:
    taught = Taught(temperature, nn.Identity(), mix)  # what goes in is what the teacher says
    x, target = taught.augment(T, Y, DRAW)
    assert x is T
    assert target.shape == (6, 5)
    assert float(taught.loss(Z, target)) == pytest.approx(as_printed(Z, T, Y, temperature, mix), rel=1e-5)
    if mix == 0:
        assert_close(taught.loss(Z, target), F.cross_entropy(Z, Y))


def test_the_teachers_part_keeps_its_weight_at_any_temperature() -> None:
    """At high T its gradient is that of (z - t)^2 / 2c, whatever T: sec. 2.1."""
    slopes = []
    for hot in (50.0, 500.0):
        z = Z.clone().requires_grad_()
        taught = Taught(hot, nn.Identity(), 1.0)
        (slope,) = torch.autograd.grad(taught.loss(z, taught.augment(T, Y, DRAW)[1]), z)
        slopes.append(slope)
    apart = (Z - Z.mean(1, keepdim=True)) - (T - T.mean(1, keepdim=True))
    assert_close(slopes[1], apart / 4 / 6, atol=2e-3, rtol=0.02)
    assert_close(slopes[0], slopes[1], atol=2e-3, rtol=0.05)


def test_a_narrower_network_has_its_share_of_channels_and_the_same_answer() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 6), nn.ReLU())
    net.append(nn.Linear(6, 3))
    x = torch.rand(2, 1, 4, 4, generator=DRAW)
    small = narrower(net.eval(), 0.5, x)
    assert [tuple(small[i].weight.shape) for i in (0, 4, 6)] == [(4, 1, 3, 3), (3, 16), (3, 3)]  # type: ignore[index,union-attr]
    assert small(x).shape == (2, 3)
    assert net[0].weight.shape == (8, 1, 3, 3)
    least = narrower(net, 0.01, x)
    assert [least[i].weight.shape[0] for i in (0, 4, 6)] == [1, 1, 3]  # type: ignore[index,union-attr]


def test_what_cannot_be_is_refused_in_one_line() -> None:
    for call, words in (
        (lambda: Taught(4.0, nn.Identity(), 1.5), "mix=1.5 is no share"),
        (lambda: Taught(0.0, nn.Identity(), 0.5), "temperature=0.0 is none"),
        (lambda: narrower(nn.Linear(2, 2), 0.0, torch.zeros(2, 2)), "width=0 is no share"),
        (lambda: narrower(nn.Linear(2, 2), 0.5, torch.zeros(2, 2)), "No channel of the network can be cut"),
    ):
        with pytest.raises(AssayError, match=words) as e:
            call()
        assert "\n" not in str(e.value)
