from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from assay.errors import ShapeError
from assay.methods.certify.lipschitz import lipschitz
from assay.methods.certify.steepest import steepest_secant


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def net(*widths: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1]).double().requires_grad_(False)


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_of_a_linear_map_it_is_the_norm_in_any_units(scale: float) -> None:
    linear = nn.Linear(6, 3).double().requires_grad_(False)
    low = scale * torch.rand(5, 6, generator=rng(), dtype=torch.float64)
    found = steepest_secant(linear, low, low + scale, rng=rng())
    torch.testing.assert_close(found, torch.linalg.matrix_norm(linear.weight, ord=2).expand(5), rtol=1e-6, atol=0)


def test_it_comes_near_the_constant_and_never_above() -> None:
    near = []
    for seed in range(4):
        model = net(3, 8, 6, 2, seed=seed)
        low, high = -torch.ones(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
        exact = lipschitz(model, (low[0].numpy(), high[0].numpy()))
        assert exact.exact
        found = float(steepest_secant(model, low, high, rng=rng(), starts=16))
        assert found <= exact.upper * (1 + 1e-9)
        near.append(found / exact.upper)
    assert min(near) > 0.75


def test_images_points_and_constant_answers() -> None:
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double().requires_grad_(False)
    low = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=rng())
    assert (steepest_secant(conv, low, low + 0.1, rng=rng()) > 0).all()
    assert (steepest_secant(conv, low, low, rng=rng()) == 0).all()
    assert (steepest_secant(lambda x: 0 * x[:, 0, 0], low, low + 0.1, rng=rng()) == 0).all()
    once, again = (steepest_secant(conv, low, low + 0.1, rng=rng()) for _ in range(2))
    assert torch.equal(once, again)
    with pytest.raises(ShapeError, match=r"low of shape \(4,\)"):
        steepest_secant(conv, torch.zeros(4), torch.ones(4), rng=rng())
