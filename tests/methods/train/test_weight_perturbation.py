"""Adversarial weight perturbation: the move by hand, the way back, and the plain training at size 0."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.train.fit import fit
from assay.methods.train.weight_perturbation import WeightPerturbation


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def net(seed: int = 1) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))


X = torch.rand(20, 5, generator=rng())
Y = torch.arange(20) % 3


def taught(model: nn.Module, size: float, **how: object) -> None:
    """Train with the four pieces in their order: move, gradient, optimiser, back."""
    nearby = WeightPerturbation(model, size)

    def moved(x: Tensor, y: Tensor, _: torch.Generator) -> tuple[Tensor, Tensor]:
        nearby.move(x, y)
        return x, y

    fit(model, Arrays(X, Y), augment=moved, after_step=nearby.back, **how)  # type: ignore[arg-type]


def test_every_matrix_moves_up_its_gradient_by_its_share_of_its_length_and_back_once() -> None:
    model = net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    names = [name for name, p in model.named_parameters() if p.ndim > 1]
    loss = F.cross_entropy(model(X), Y)
    slopes = torch.autograd.grad(loss, [model.get_parameter(name) for name in names])
    nearby = WeightPerturbation(model, 0.05)
    nearby.back()  # nothing was moved yet
    nearby.move(X, Y)
    for name, slope in zip(names, slopes, strict=True):
        w = before[name]
        assert_close(model.get_parameter(name).detach(), w + 0.05 * w.norm() * slope / slope.norm())
    assert F.cross_entropy(model(X), Y) > loss
    for _ in range(2):  # the second time there is nothing to take off
        nearby.back()
        for name, p in model.named_parameters():
            assert_close(p.detach(), before[name], rtol=1e-5, atol=1e-7)
    assert all(p.grad is None for p in model.parameters())


def test_one_step_of_training_goes_down_from_the_weights_by_the_gradient_nearby() -> None:
    model = net()
    twin = copy.deepcopy(model)
    taught(model, 0.1, epochs=1, lr=0.3, momentum=0, schedule="constant", batch=20, rng=rng())
    start = [p.detach().clone() for p in twin.parameters()]
    slopes = torch.autograd.grad(F.cross_entropy(twin(X), Y), list(twin.parameters()))
    with torch.no_grad():
        for p, slope in zip(twin.parameters(), slopes, strict=True):
            if p.ndim > 1:
                p.add_(0.1 * p.norm() * slope / slope.norm())
    there = torch.autograd.grad(F.cross_entropy(twin(X), Y), list(twin.parameters()))
    for new, old, slope in zip(model.parameters(), start, there, strict=True):
        assert_close(new.detach(), old - 0.3 * slope, rtol=1e-4, atol=1e-5)


def test_size_0_and_frozen_weights_leave_the_plain_training() -> None:
    model, plain = net(), net()
    taught(model, 0, epochs=2, lr=0.1, batch=8, rng=rng(3))
    fit(plain, Arrays(X, Y), epochs=2, lr=0.1, batch=8, rng=rng(3))
    assert_close(model.state_dict(), plain.state_dict())
    model = net()
    model[0].requires_grad_(False)
    old = model[0].weight.clone()
    WeightPerturbation(model, 0.1).move(X, Y)
    assert torch.equal(model[0].weight, old)


def test_a_matrix_that_no_gradient_reaches_stays_and_a_bad_size_is_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    with torch.no_grad():
        model[0].bias.fill_(-100)
    old = model[0].weight.clone()
    WeightPerturbation(model, 0.1).move(X, Y)
    assert torch.equal(model[0].weight, old)
    with pytest.raises(AssayError, match="size=-1 is no share"):
        WeightPerturbation(model, -1)
