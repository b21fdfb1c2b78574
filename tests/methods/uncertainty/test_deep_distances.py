"""Deep distances against the formula written slowly, and where they are 1, far and refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.uncertainty.deep_distances import HELD_BACK, DeepDistances


def two_layers() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).eval()


def slowly(model: nn.Module, train: Tensor, x: Tensor, rng: np.random.Generator, k: int) -> list[float]:
    """The docstring's formula, one input and one layer at a time."""
    order = rng.permutation(len(train))
    kept = len(train) - len(train) // HELD_BACK
    layers = [lambda v: model[0](v), model]
    total = [0.0] * len(x)
    for layer in layers:
        with torch.no_grad():
            f, back, at = (layer(part).double().numpy() for part in (train[order[:kept]], train[order[kept:]], x))
        mean = f.mean(0)

        def kth(v: np.ndarray, f: np.ndarray = f, mean: np.ndarray = mean) -> float:
            way = (v - mean) / np.linalg.norm(v - mean)
            return sorted(np.linalg.norm(way - (u - mean) / np.linalg.norm(u - mean)) for u in f)[k - 1]

        usual = sorted(kth(v) for v in back)[(len(back) - 1) // 2]
        total = [t - kth(v) / usual / len(layers) for t, v in zip(total, at, strict=True)]
    return total


def test_it_is_the_mean_over_layers_of_the_distance_in_units_of_the_usual_one() -> None:
    model, rng = two_layers(), torch.Generator().manual_seed(1)
    train, x = torch.randn(30, 3, generator=rng), torch.randn(6, 3, generator=rng)
    found = DeepDistances.fit(model, train, layers=("0", "2"), rng=np.random.default_rng(3), k=2).score(x)
    expected = torch.tensor(slowly(model, train, x, np.random.default_rng(3), 2), dtype=torch.float64)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_training_inputs_themselves_are_at_no_distance_and_another_direction_is_far() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.eye(2)
    angle = torch.linspace(-0.1, 0.1, 40)
    train = torch.stack([angle.cos(), angle.sin()], 1)
    fitted = DeepDistances.fit(model.eval(), train, layers=("0",), rng=np.random.default_rng(0), k=1)
    scores = fitted.score(torch.cat([train, torch.tensor([[2.0, 0.0], [-3.0, 0.01]])]))
    assert (scores[:40] == 0).sum() >= 32  # all that were not held back
    assert scores[-1] < scores[:40].min()


def test_what_cannot_be_fitted_is_refused() -> None:
    model = two_layers()
    with pytest.raises(AssayError, match="0 layers, 30 inputs and k=2"):
        DeepDistances.fit(model, torch.randn(30, 3), layers=(), rng=np.random.default_rng(0), k=2)
    with pytest.raises(AssayError, match="No layer tells training inputs apart"):
        DeepDistances.fit(model, torch.ones(30, 3), layers=("0",), rng=np.random.default_rng(0), k=2)
