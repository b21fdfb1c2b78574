"""Rounded kinks: each form becomes exact as beta grows, has curvature, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.methods.explain.softly import ROUNDED, Softly, kinks_left

Act = Callable[[Tensor], Tensor]


def prelu(z: Tensor) -> Tensor:
    return F.prelu(z, torch.tensor([0.1, 0.4, 0.7], dtype=z.dtype))


FORMS: dict[str, Act] = {
    "relu": nn.ReLU(),
    "relu in place": lambda z: nn.ReLU(inplace=True)(z.clone()),
    "relu6": nn.ReLU6(),
    "leaky": nn.LeakyReLU(0.2),
    "leaky method": lambda z: F.leaky_relu(z, negative_slope=0.3),
    "prelu": prelu,
    "rrelu": nn.RReLU().eval(),
    "hardtanh": nn.Hardtanh(-0.5, 1.5),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardswish": nn.Hardswish(),
    "elu": nn.ELU(0.7),
    "celu": nn.CELU(0.7),
    "selu": nn.SELU(),
    "softshrink": nn.Softshrink(0.3),
    "threshold": nn.Threshold(0.2, 0.2),
    "clamp": lambda z: z.clamp(-0.5, 0.9),
    "clamp below": lambda z: torch.clamp(z, min=0.1),
    "clamp_max": lambda z: z.clamp_max(0.4),
    "abs": abs,
    "torch.abs": torch.abs,
    "maximum": lambda z: torch.maximum(z, 0.5 * z + 0.2),
    "minimum": lambda z: torch.minimum(z, 0.5 * z + 0.2),
    "torch.max of two": lambda z: torch.max(z, -z),
    "max over a dimension": lambda z: z.max(2).values,
    "min over a dimension": lambda z: torch.min(z, dim=-1, keepdim=True)[0],
    "max of all": lambda z: z.max(),
    "amax": lambda z: z.amax((2, 3)),
    "amin of rows": lambda z: z.amin(0),
    "gelu": nn.GELU(),
    "gelu by tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "softplus": nn.Softplus(),
    "max-pool": nn.MaxPool2d(2),
    "max-pool, all settings": nn.MaxPool2d((3, 2), (2, 1), (1, 0), (1, 2), ceil_mode=True),
    "max-pool 1d": lambda z: F.max_pool1d(z.flatten(2), 3, padding=1),
    "max-pool 3d": lambda z: F.max_pool3d(z[:, None], (3, 2, 2)),
    "max-pool with places": lambda z: F.max_pool2d(z, 2, return_indices=True)[0],
    "adaptive": nn.AdaptiveMaxPool2d((2, 3)),
    "aten": torch.ops.aten.hardtanh.default,
    "aten relu": torch.ops.aten.relu.default,
}


def given() -> Tensor:
    return 1.5 * torch.randn(2, 3, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("relative", [False, True])
def test_every_form_is_exact_in_the_limit_and_bends_before_it(name: str, relative: bool) -> None:
    act, z = FORMS[name], given()
    want, gap = act(z), []
    for beta in (1e2, 1e4, 1e6):
        with Softly(beta, relative=relative):
            got = act(z)
        assert got.shape == want.shape
        gap.append(float((got - want).abs().max()))
    assert gap[2] < 2e-5
    assert gap[2] <= gap[1] + 1e-12 <= gap[0] + 2e-12 < 0.2  # where it is exact at once, rounding is all that is left
    at = given().requires_grad_()
    with Softly(2.0, relative=relative) as soft:
        (slope,) = torch.autograd.grad(act(at).sum(), at, create_graph=True)
    (bend,) = torch.autograd.grad(slope.square().sum(), at)
    assert float(bend.abs().max()) > 1e-3  # there is something to follow
    assert not soft.left
    assert_close(act(z), want)  # and outside of it nothing has changed


def test_what_is_written_in_place_is_in_place_when_nobody_takes_the_answer() -> None:
    class Careless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = 2 * x
            z.relu_()
            F.leaky_relu_(z, 0.1)
            return z

    x = given().requires_grad_()
    with Softly(3.0):
        got = Careless()(x)
        first = F.softplus(2 * x, 3.0)
    assert_close(got, 0.1 * first + 0.9 * F.softplus(first, 3.0))
    (slope,) = torch.autograd.grad(got.sum(), x)
    assert float(slope.abs().min()) > 0


def test_relative_rounding_does_not_see_the_units() -> None:
    for name in ("relu", "leaky", "prelu", "abs", "max-pool", "amax", "torch.max of two"):
        act = FORMS[name]
        z = given()
        with Softly(5.0, relative=True):
            assert_close(act(1e3 * z), 1e3 * act(z))
            assert_close(act(z)[:1], act(z[:1]))  # nor who else is in the batch
    with Softly(5.0):
        assert not torch.allclose(torch.relu(1e3 * given()), 1e3 * torch.relu(given()), rtol=1e-3)


@pytest.mark.parametrize(
    ("act", "left"),
    [
        (lambda z: torch.where(z > 0, z, 0.1 * z), (">",)),
        (lambda z: z * (z <= 0), ("<=",)),
        (lambda z: z * torch.sign(z), ("sign",)),
        (nn.Threshold(0.2, 0.0), ("_threshold",)),
        (nn.Hardshrink(), ("hardshrink",)),
        (lambda z: z.sort(-1).values, ("sort",)),
        (lambda z: F.adaptive_max_pool2d(z, 2, return_indices=True)[0], ("adaptive_max_pool2d_with_indices",)),
        (lambda z: z * (z != 0), ()),
        (lambda z: torch.tanh(z).round(decimals=0) + z, ("round",)),
    ],
)
def test_what_cannot_be_rounded_is_named(act: Act, left: tuple[str, ...]) -> None:
    assert kinks_left(act, given()) == left


def test_a_mask_of_whole_numbers_is_no_kink() -> None:
    places = torch.arange(6)
    assert kinks_left(lambda z: torch.where(places > 2, z, 0.0).clamp(0, int(places.max())), given()) == ()
    assert len(ROUNDED) > 30
