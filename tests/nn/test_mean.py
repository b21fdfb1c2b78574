"""The mean network: noise at its mean, whoever draws it, and everything else as it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from assay.nn.mean import AtMean, MeanNet, is_steady
from assay.nn.noisy import Noise
from assay.nn.variational import as_variational


class Own(nn.Module):
    """Noise that a forward draws by itself."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x + self.draw(x)


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (torch.randn_like, 0.0),
        (lambda x: torch.randn(x.shape), 0.0),
        (lambda x: torch.normal(torch.full(x.shape, 0.25), 1.0), 0.25),
        (lambda x: torch.normal(0.25, 1.0, x.shape), 0.25),
        (lambda x: torch.empty_like(x).normal_(0.25, 2.0), 0.25),
        (lambda x: torch.empty_like(x).normal_(mean=0.25), 0.25),
        (torch.rand_like, 0.5),
        (lambda x: torch.empty_like(x).uniform_(-1, 2), 0.5),
        (lambda x: torch.bernoulli(torch.full(x.shape, 0.25)), 0.25),
        (lambda x: torch.empty_like(x).bernoulli_(0.25), 0.25),
        (lambda x: torch.distributions.Normal(torch.full(x.shape, 0.25), 1.0).rsample(), 0.25),
    ],
)
def test_every_noise_is_at_its_mean_inside_and_random_again_outside(draw, mean):
    x = torch.linspace(0, 1, 12).reshape(3, 4)
    net = MeanNet(Own(draw))
    assert_close(net(x), x + mean)
    assert is_steady(net, x)
    assert not is_steady(net.net, x)


def test_dropout_that_is_left_on_hands_on_what_it_gets():
    x = torch.rand(3, 4)
    with AtMean():
        assert_close(F.dropout(x, 0.5, training=True), x)


def test_the_mean_of_noisy_and_of_gaussian_nets_is_the_net_itself():
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.rand(5, 6)
    assert_close(MeanNet(nn.Sequential(Noise(0.3), plain))(x), plain(x))
    assert_close(MeanNet(as_variational(plain, draws=2, sigma=0.5, prior=1.0))(x), plain(x))


def test_gradients_lead_through_it():
    x = torch.rand(2, 6, requires_grad=True)
    plain = nn.Linear(6, 2)
    (slope,) = torch.autograd.grad(MeanNet(nn.Sequential(Noise(0.3), plain))(x)[:, 0].sum(), x)
    assert_close(slope, plain.weight[0].detach().expand(2, 6))


def test_noise_that_is_drawn_by_keyword_has_its_mean_too() -> None:
    x = torch.rand(4, 3, requires_grad=True)
    with AtMean():
        assert_close(nn.init.normal_(torch.empty(2, 3), mean=0.5), torch.full((2, 3), 0.5))
        assert_close(nn.init.uniform_(torch.empty(2, 3), a=1.0, b=3.0), torch.full((2, 3), 2.0))
        assert_close(torch.bernoulli(input=x), x)
        drawn = torch.normal(mean=x, std=torch.ones_like(x))
        assert torch.native_dropout(x, 0.5, True)[0].shape == x.shape
    assert_close(drawn, x)
    (slope,) = torch.autograd.grad(drawn.sum(), x)
    assert_close(slope, torch.ones_like(x))
