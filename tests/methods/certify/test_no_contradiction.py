"""No attack breaks an input inside a radius that some certificate promised."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.methods.attack import Attacked, apgd, minimal_norm, pgd
from assay.methods.attack.attacked import Model
from assay.methods.attack.hop_skip_jump import hop_skip_jump
from assay.methods.attack.square import square
from assay.methods.certify import nearest, relax
from assay.methods.certify.lipschitz import certified_radius as from_lipschitz
from assay.methods.certify.relax import Method, Norm
from assay.methods.certify.smoothing import smooth
from assay.nn.nearest_neighbour import NearestNeighbour

SHARE = 0.999  # of the certified radius: the rest is for rounding
BOX = (0.0, 1.0)
Build = Callable[[torch.Generator], tuple[nn.Module, Tensor]]
METHODS: tuple[Method, ...] = ("interval", "crown")
NORMS: dict[Norm, float] = {"linf": math.inf, "l2": 2, "l1": 1}
seeds = st.integers(0, 2**31 - 1)
few = settings(max_examples=2, deadline=None)


class Votes(nn.Module):
    """K-NN of two classes: the class that reaches (K + 1) / 2 votes first wins, so minus that distance is its score."""

    def __init__(self, x: Tensor, y: Tensor, k: int, factor: Tensor) -> None:
        super().__init__()
        self.points, self.factor, self.s = [x[y == c] for c in (0, 1)], factor, (k + 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        away = [((x[:, None] - points) @ self.factor.T).square().sum(2) for points in self.points]
        return -torch.stack([a.kthvalue(self.s, 1).values for a in away], 1)


def mlp(rng: torch.Generator) -> tuple[nn.Module, Tensor]:
    return spread(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)), (4,), rng)


def conv(rng: torch.Generator) -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    return spread(net, (1, 4, 4), rng)


def spread(net: nn.Module, shape: tuple[int, ...], rng: torch.Generator) -> tuple[nn.Module, Tensor]:
    """Random weights, and inputs that do not all get the same answer for the biases' sake."""
    x = torch.rand(12, *shape, dtype=torch.float64, generator=rng)
    with torch.no_grad():
        for weight in net.double().parameters():
            weight.copy_(torch.randn(weight.shape, generator=rng) * (0.6 if weight.ndim > 1 else 0.1))
        net[-1].bias -= net(x).mean(0)  # type: ignore[index]
    return net.eval().requires_grad_(False), x


def broken(model: Model, x: Tensor, y: Tensor, radius: Tensor, norm: Norm) -> list[str]:
    """The attacks that break some input within its radius."""
    r, rng = SHARE * radius, torch.Generator().manual_seed(0)
    found: dict[str, Attacked] = {
        "pgd": pgd(model, x, y, norm=norm, radius=r, steps=10, rng=rng),
        "apgd": apgd(model, x, y, norm=norm, radius=r, steps=10, loss="margin", rng=rng),
        "minimal_norm": minimal_norm(model, x, y, norm=norm, steps=25),
    }
    if norm != "l1":
        found["square"] = square(model, x, y, norm=norm, radius=r, queries=30, rng=rng)
        found["hop_skip_jump"] = hop_skip_jump(model, x, y, norm=norm, queries=150, draws=20, rng=rng)
    return [name for name, got in found.items() if bool((got.success & (got.distance <= r)).any())]


@pytest.mark.parametrize("build", [mlp, conv])
@pytest.mark.parametrize("norm", NORMS)
@few
@given(seed=seeds)
def test_linear_relaxations(build: Build, norm: Norm, seed: int) -> None:
    net, x = build(torch.Generator().manual_seed(seed))
    y = net(x).argmax(1)
    interval, crown = (
        relax.certified_radius(net, x, y, norm=norm, high=2.0, method=method, box=BOX) for method in METHODS
    )
    assert (interval > 0).any()
    assert broken(net, x, y, torch.maximum(interval, crown), norm) == []


@pytest.mark.parametrize("norm", NORMS)
@few
@given(seed=seeds, build=st.sampled_from([mlp, conv]))
def test_lipschitz_constants(norm: Norm, seed: int, build: Build) -> None:
    net, x = build(torch.Generator().manual_seed(seed))
    x = x[:3]
    found = [from_lipschitz(net, z, reach=0.3, p=NORMS[norm], bounds=BOX, nodes=30) for z in x]
    assert max(found) > 0
    assert broken(net, x, net(x).argmax(1), torch.tensor(found, dtype=torch.float64), norm) == []


def clouds(seed: int, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training points with their classes, inputs, and the factor of a metric."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(30) % classes
    x = torch.rand(30, 3, dtype=torch.float64, generator=rng) * 0.6 + 0.4 * torch.eye(3)[y]
    z = torch.rand(12, 3, dtype=torch.float64, generator=rng)
    return x, y, z, torch.eye(3).double() + 0.4 * torch.randn(3, 3, dtype=torch.float64, generator=rng)


@pytest.mark.parametrize("norm", NORMS)
@few
@given(seed=seeds, plain=st.booleans(), boxed=st.booleans())
def test_the_exact_radius_of_one_neighbour(norm: Norm, seed: int, plain: bool, boxed: bool) -> None:
    x, y, z, factor = clouds(seed, 3)
    model = NearestNeighbour(x, y, factor=None if plain else factor)
    c = model(z).argmax(1)
    exact = nearest.exact_radius(
        x.numpy(),
        y.numpy(),
        z.numpy(),
        c.numpy(),
        NORMS[norm],
        factor=None if plain else factor.numpy(),
        box=BOX if boxed else None,
    )
    radius = torch.from_numpy(np.minimum(exact.radius, 3.0))  # no point of the box is farther in l1
    assert (radius > 0).any()
    assert broken(model, z, c, radius, norm) == []


@pytest.mark.parametrize("k", [1, 3])
@few
@given(seed=seeds, plain=st.booleans())
def test_the_bound_for_k_neighbours(k: int, seed: int, plain: bool) -> None:
    x, y, z, factor = clouds(seed, 2)
    if plain:
        factor = torch.eye(3).double()
    model = Votes(x, y, k, factor)
    c = model(z).argmax(1)
    metric = (factor.T @ factor).numpy()
    radius = torch.from_numpy(nearest.certified_radius(x.numpy(), y.numpy(), z.numpy(), c.numpy(), k, metric=metric))
    assert (radius > 0).any()
    assert broken(model, z, c, radius, "l2") == []


@few
@given(seed=seeds)
def test_smoothing_where_the_smoothed_classifier_is_known(seed: int) -> None:
    """Noise is symmetric around a plane: smoothing a linear classifier of two classes leaves it as it is."""
    rng = torch.Generator().manual_seed(seed)
    model, x = spread(nn.Sequential(nn.Linear(5, 2)), (5,), rng)
    got = smooth(model, x, sigma=0.3, draws=(20, 2000), alpha=1e-6, rng=rng)
    sure = got.radius > 0
    assert sure.any()
    assert torch.equal(got.label[sure], model(x).argmax(1)[sure])
    assert broken(model, x[sure], got.label[sure], got.radius[sure], "l2") == []


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", math.inf)])
def test_the_attacks_have_teeth(norm: Norm, dual: float) -> None:
    """Each of them breaks a linear classifier not far outside its exact radius, and not inside."""
    model = nn.Linear(3, 2).double().requires_grad_(False)
    model.weight.copy_(torch.tensor([[1.0, 0.8, -0.9], [0.0, 0.0, 0.0]]))
    model.bias.copy_(torch.tensor([-0.3, 0.0]))
    x, y = torch.tensor([[0.5, 0.5, 0.4]], dtype=torch.float64), torch.tensor([0])
    exact = model(x)[:, 0] / torch.linalg.vector_norm(model.weight[0], dual)
    assert broken(model, x, y, exact, norm) == []
    assert len(broken(model, x, y, 1.5 * exact, norm)) == (3 if norm == "l1" else 5)
