from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.train.fit import fit
from assay.methods.train.variational import negative_elbo
from assay.nn.variational import MeanField, as_variational


def test_it_is_the_data_loss_and_the_price_of_leaving_the_prior() -> None:
    model = as_variational(nn.Linear(4, 3), draws=1, sigma=0.1, prior=1.0)
    out, y = torch.randn(8, 3), torch.arange(8) % 3
    got = negative_elbo(model.kl, 50, beta=0.4)(out, y)
    assert_close(got, F.cross_entropy(out, y) + 0.4 / 50 * model.kl())
    assert_close(negative_elbo(model.kl, 50, beta=0.0)(out, y), F.cross_entropy(out, y))


@pytest.mark.parametrize("beta", [1.0, 0.25])
def test_a_gaussian_posterior_is_found_exactly(beta: float) -> None:
    """One unknown mean with a Gaussian prior: the best mean-field Gaussian is the posterior, tempered by beta."""
    n, prior = 30, 0.5
    copies = 200  # as many weights, each with the same posterior: their mean tames the noise of the draws
    with torch.random.fork_rng():
        torch.manual_seed(0)
        y = 0.8 + torch.randn(n)
        net = nn.Linear(1, copies, bias=False)
    data = Arrays(torch.ones(n, 1).numpy(), torch.arange(n).numpy() % 2)
    model = as_variational(net, draws=1, sigma=0.1, prior=prior)
    likelihood = lambda out, _: (out - y.mean()).square().sum(1).mean() / 2  # noqa: E731  (up to a constant)
    loss = negative_elbo(model.kl, n, beta=beta, loss=likelihood)
    fit(model, data, epochs=250, lr=0.05, optimiser="adam", batch=n, loss=loss, rng=torch.Generator().manual_seed(0))
    precision = n / beta + 1 / prior**2
    layer = model.net
    assert isinstance(layer, MeanField)
    mean, sigma = float(layer.layer.weight.detach().mean()), float(layer.sigma("weight").detach().mean())
    assert mean == pytest.approx(n / beta * float(y.mean()) / precision, abs=0.01)
    assert sigma == pytest.approx(1 / math.sqrt(precision), rel=0.05)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="n=0"):
        negative_elbo(lambda: torch.zeros(()), 0)
    with pytest.raises(AssayError, match="beta=-1"):
        negative_elbo(lambda: torch.zeros(()), 5, beta=-1.0)
