"""Ensemble temperature scaling and Dirichlet calibration against known laws and closed forms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.uncertainty.dirichlet import Dirichlet, fit_dirichlet, penalty
from assay.methods.uncertainty.ensemble_temperature import EnsembleTemperature, fit_ensemble_temperature
from assay.methods.uncertainty.scaling import fit_temperature


def known(n: int = 4000, c: int = 4, *, noise: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits three times too sharp, and labels; a share `noise` of the labels is drawn uniformly."""
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(n, c, generator=rng, dtype=torch.float64)
    y = torch.multinomial((1 - noise) * z.softmax(1) + noise / c, 1, generator=rng)[:, 0]
    return 3 * z, y


def nll(p: Tensor, y: Tensor) -> float:
    return float(-p.gather(1, y[:, None]).log().mean())


def test_a_mixture_finds_the_uniform_part_that_a_temperature_cannot():
    z, y = known(20_000, noise=0.3)
    found = fit_ensemble_temperature(z, y)
    p = found.apply(z)
    assert_close(p.sum(1), torch.ones(len(p), dtype=p.dtype))
    assert (p.argmax(1) == z.argmax(1)).all()
    assert sum(found.weights) == pytest.approx(1)
    assert found.weights[2] > 0.05
    assert nll(p, y) < nll(fit_temperature(z, y).apply(z), y) - 1e-4


def test_the_weights_are_the_best_of_the_simplex():
    z, y = known(2000, noise=0.2)
    found = fit_ensemble_temperature(z, y)
    least = nll(found.apply(z), y)
    for other in torch.distributions.Dirichlet(torch.ones(3)).sample((200,)).tolist():
        moved = tuple(0.9 * a + 0.1 * b for a, b in zip(found.weights, other, strict=True))
        assert nll(EnsembleTemperature(found.temperature, moved).apply(z), y) >= least - 1e-7
    own = torch.stack(((z / found.temperature).softmax(1), z.softmax(1), torch.full_like(z, 0.25)), 2)
    slope = (own.gather(1, y[:, None, None].expand(-1, 1, 3))[:, 0] / found.apply(z).gather(1, y[:, None])).mean(0)
    for w, s in zip(found.weights, slope.tolist(), strict=True):  # Karush, Kuhn, Tucker: 1 where w > 0, else at most 1
        assert s <= 1 + 1e-3
        assert w < 1e-2 or s == pytest.approx(1, abs=1e-3)


def test_a_mixture_with_all_weight_on_one_part_is_that_part():
    z, _ = known(20)
    assert_close(EnsembleTemperature(2.0, (1.0, 0.0, 0.0)).apply(z), (z / 2).softmax(1))
    assert_close(EnsembleTemperature(2.0, (0.0, 1.0, 0.0)).apply(z.float()), z.float().softmax(1))


def test_dirichlet_is_at_a_minimum_and_never_worse_than_a_temperature():
    z, y = known(1500)
    found = fit_dirichlet(z, y)
    weight, shift = (t.clone().requires_grad_(True) for t in found)
    loss = F.cross_entropy(z.log_softmax(1) @ weight.T + shift, y) + penalty(weight, shift, 0.01, 0.01)
    for slope in torch.autograd.grad(loss, (weight, shift)):
        assert float(slope.abs().max()) < 1e-5
    t = fit_temperature(z, y).temperature
    scaled = F.cross_entropy(z.log_softmax(1) / t, y)
    assert loss.item() <= scaled.item() + 1e-9
    assert_close(Dirichlet(torch.eye(4) / t, torch.zeros(4)).apply(z), (z / t).softmax(1), atol=1e-6, rtol=0)


def test_dirichlet_mends_classes_that_were_exchanged_and_a_strong_penalty_forbids_it():
    z, y = known(3000)
    turned = z[:, [1, 0, 2, 3]]
    loose, tight = (fit_dirichlet(turned, y, lam=lam).apply(turned) for lam in (1e-4, 1e4))
    assert (loose.argmax(1) == y).double().mean() == pytest.approx(float((z.argmax(1) == y).double().mean()), abs=0.03)
    assert nll(tight, y) > nll(loose, y) + 0.1
    off = fit_dirichlet(turned, y, lam=1e4).weight.fill_diagonal_(0)
    assert float(off.abs().max()) < 1e-2


def test_the_penalty_is_the_printed_one():
    weight, shift = torch.arange(9.0).view(3, 3), torch.tensor([1.0, 2.0, 3.0])
    off = sum(float(weight[i, j]) ** 2 for i in range(3) for j in range(3) if i != j)
    assert float(penalty(weight, shift, 0.6, 0.3)) == pytest.approx(0.6 * off / 6 + 0.3 * 14 / 3)
    with pytest.raises(AssayError, match="lam=0 .* above 0"):
        fit_dirichlet(torch.randn(10, 3), torch.arange(10) % 3, lam=0)
    with pytest.raises(AssayError, match="All 4 held-out labels are of class 1"):
        fit_ensemble_temperature(torch.randn(4, 3), torch.ones(4, dtype=torch.long))
