"""Bounded ReLUs: what they let through, and where they are put."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn.bounded_relu import BoundedReLU, relus, with_bounded_relus
from assay.nn.resnet import ResNet18


def test_it_is_zero_below_the_input_between_and_the_bound_above() -> None:
    x = torch.tensor([-2.0, 0.0, 0.4, 1.0, 7.0])
    assert_close(BoundedReLU()(x), torch.tensor([0.0, 0.0, 0.4, 1.0, 1.0]))
    assert_close(BoundedReLU(5)(x), torch.tensor([0.0, 0.0, 0.4, 1.0, 5.0]))
    assert_close(BoundedReLU(float("inf"))(x), x.relu())


def test_every_relu_of_a_copy_is_bounded_with_the_weights_as_they_are() -> None:
    shared = nn.ReLU()
    net = nn.Sequential(nn.Linear(3, 4), shared, nn.Sequential(nn.Linear(4, 4), nn.ReLU()), shared, nn.ReLU6())
    x, before = 9 * torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), copy.deepcopy(net)
    bounded = with_bounded_relus(net, 1.0)
    assert (relus(net), relus(bounded)) == (2, 0)
    assert bounded[1] is bounded[3]  # type: ignore[index]
    assert float(bounded(x).detach().max()) <= 1
    assert_close(with_bounded_relus(net, float("inf"))(x), net(x))
    assert_close(bounded.state_dict(), before.state_dict())
    assert not torch.allclose(bounded(x), net(x))


def test_the_residual_network_has_all_of_its_relus_as_modules() -> None:
    """1 in the stem and 2 in each of 8 blocks; the last of a block was called in its forward pass before."""
    assert relus(ResNet18(width=1)) == 17


def test_a_bound_that_lets_nothing_through_and_a_net_without_relus_are_refused() -> None:
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(AssayError, match=f"bound={bad} lets nothing through"):
            BoundedReLU(bad)
    with pytest.raises(AssayError, match=r"Sequential has no nn\.ReLU, so there is nothing to replace"):
        with_bounded_relus(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), 1.0)
