"""The gate keeps the shape, only takes away, looks at its own channel, and is nothing where n is 0."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn.feature_excitation import FeatureExcitation


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 5, 11, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n", [1, 2, 8])
def test_it_keeps_the_shape_and_adds_nothing(x: torch.Tensor, n: int) -> None:
    out = FeatureExcitation(5, n).train()(x)
    assert out.shape == x.shape
    assert bool((out.abs() <= x.abs()).all())
    assert not torch.allclose(out, x)
    more = FeatureExcitation(5, n, additive=True)(x)
    assert bool((more.abs() >= x.abs()).all())
    assert bool((more.abs() <= 2 * x.abs()).all())


def test_no_convolution_is_the_identity(x: torch.Tensor) -> None:
    for additive in (False, True):
        module = FeatureExcitation(5, 0, additive=additive)
        assert module(x) is x
        assert not list(module.parameters())


def test_each_channel_is_weighed_by_its_own(x: torch.Tensor) -> None:
    module = FeatureExcitation(5, 2).eval()
    other = x.clone()
    other[:, 2] += 1
    changed = (module(other) - module(x)).abs().amax((0, 2, 3))
    assert changed[2] > 0.1
    assert_close(changed[[0, 1, 3, 4]], torch.zeros(4))


def test_it_is_the_printed_form_with_the_gate_of_the_gathered_map(x: torch.Tensor) -> None:
    module = FeatureExcitation(5, 1).eval()
    kernel = module.gather[0].weight
    d = torch.nn.functional.conv2d(x, kernel, stride=2, padding=1, groups=5) / (1 + 1e-5) ** 0.5
    assert d.shape[2:] == (6, 3)
    gate = torch.nn.functional.interpolate(d, (11, 6), mode="bilinear").sigmoid()
    assert_close(module(x), x * gate)
    module.additive = True
    assert_close(module(x), x + x * gate)


def test_bad_numbers_are_told() -> None:
    with pytest.raises(AssayError, match="n=-1"):
        FeatureExcitation(4, -1)
