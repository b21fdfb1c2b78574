"""Small models that the attack tests share; trained once per session, in well under a second each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from assay.methods.attack import Attacked


class Task(NamedTuple):
    model: nn.Module
    x: Tensor
    y: Tensor
    train_x: Tensor
    train_y: Tensor


def trained_mlp(classes: int, seed: int = 0) -> Task:
    x, y = load_digits(n_class=classes, return_X_y=True)
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=rng)
    x, y = torch.tensor(x / 16, dtype=torch.float32)[order], torch.tensor(y)[order]
    cut = len(x) * 2 // 3
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, classes))
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(25):
        for rows in torch.randperm(cut, generator=rng).split(100):
            adam.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            adam.step()
    adam.zero_grad()
    return Task(model.eval(), x[cut : cut + 300], y[cut : cut + 300], x[:cut], y[:cut])


@pytest.fixture(scope="session")
def digits() -> Task:
    return trained_mlp(10)


@pytest.fixture(scope="session")
def two_digits() -> Task:
    return trained_mlp(2)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Halves(NamedTuple):
    """Two classes, margin w'x + b for class 0: everything about it is known by hand."""

    model: Callable[[Tensor], Tensor]
    w: Tensor
    x: Tensor
    y: Tensor
    margin: Tensor


@pytest.fixture
def halves() -> Halves:
    rng = torch.Generator().manual_seed(1)
    w = torch.randn(12, generator=rng)
    x = torch.rand(6, 12, generator=rng) * 0.2 + 0.4  # far from the box

    def model(x: Tensor) -> Tensor:
        score = (x.flatten(1) - 0.5) @ w + 0.4
        return torch.stack([score, torch.zeros_like(score)], 1)

    return Halves(model, w, x, torch.zeros(6, dtype=torch.long), (x - 0.5) @ w + 0.4)


def accuracy(success: Tensor) -> float:
    return 1 - success.double().mean().item()


def apart(one: Tensor, other: Tensor, far: float = 1e-4) -> float:
    """The share of values that differ by more than rounding does; a sign may turn where a slope is rounding alone."""
    return (~torch.isclose(one.double(), other.double(), rtol=far, atol=far, equal_nan=True)).double().mean().item()


def assert_same_path(one: Attacked, other: Attacked) -> None:
    """Two computations of one attack: the same heights at every step, ends and verdicts, but for one in a hundred."""
    assert one.loss.shape == other.loss.shape
    for a, b in ((one.loss, other.loss), (one.x, other.x), (one.success, other.success)):
        assert apart(a, b) <= 0.01
