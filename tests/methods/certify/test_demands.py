"""Certificates of answers that are no classes: the dual norm of a linear model, brute force, and one-logit networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import ShapeError, SubjectError
from assay.methods.certify import relax
from assay.methods.certify.demands import demanded, unproved
from assay.methods.certify.layers import layers
from assay.methods.certify.lipschitz import certified_radius as by_slope
from assay.methods.certify.relax import Demand
from assay.nn.read_as import OneScore
from assay.tasks import Labels, Regression

DUAL = {"linf": 1.0, "l2": 2.0}


def linear(numbers: int = 1, features: int = 5) -> nn.Sequential:
    rng = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(features, numbers))
    net[0].weight.data = torch.randn(numbers, features, generator=rng)
    net[0].bias.data = torch.randn(numbers, generator=rng)
    return net.double().eval()


def small() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_of_a_linear_model_the_radius_is_the_room_over_the_dual_norm(norm: relax.Norm) -> None:
    net, x = linear(), torch.randn(6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    error = torch.tensor([0.0, 0.1, -0.2, 0.3, -0.39, 0.5], dtype=torch.float64)  # the last is wrong already
    with torch.no_grad():
        y = net(x)[:, 0] - error
    keep = demanded(Regression(("y",), (0.4,)), y)
    exact = (0.4 - error.abs()).double() / net[0].weight.detach().double().norm(DUAL[norm])
    for share, held in ((1 - 1e-5, True), (1 + 1e-5, False)):
        found = relax.certified(net, x[:5], keep[torch.arange(5)], norm=norm, radius=share * exact[:5])
        assert found.tolist() == [held] * 5
    radius = relax.certified_radius(net, x, keep, norm=norm, high=1.0)
    assert float(radius[5]) == 0
    assert bool((radius[:5] <= exact[:5] + 1e-6).all())
    assert_close(radius[:5], exact[:5], rtol=0.011, atol=0)  # the bisection stops at 1 %
    p = 2 if norm == "l2" else math.inf
    one = by_slope(net, x[1], reach=2.0, p=p, demand=(keep.rows[1].numpy(), keep.offset[1].numpy()))
    assert one == pytest.approx(float(exact[1]), rel=1e-5)


def test_several_numbers_have_the_nearest_of_their_tolerances() -> None:
    net, x = linear(3), torch.zeros(1, 5, dtype=torch.float64)
    y, width = net[0].bias.detach()[None] + torch.tensor([[0.1, -0.2, 0.0]], dtype=torch.float64), (0.5, 0.3, 9.0)
    keep = demanded(Regression(("a", "b", "c"), width), y)
    size = net[0].weight.detach().double().norm(dim=1)
    exact = min((w - e) / float(s) for w, e, s in zip(width, (0.1, 0.2, 0.0), size, strict=True))
    assert bool(relax.certified(net, x, keep, norm="l2", radius=exact * (1 - 1e-5)))
    assert not bool(relax.certified(net, x, keep, norm="l2", radius=exact * (1 + 1e-5)))


@pytest.mark.parametrize("method", ["crown", "interval"])
@pytest.mark.parametrize("what", ["labels", "numbers"])
def test_no_point_of_a_certified_ball_breaks_a_relu_network(method: relax.Method, what: str) -> None:
    net, rng = small(), torch.Generator().manual_seed(3)
    x = torch.rand(8, 2, generator=rng, dtype=torch.float64)
    with torch.no_grad():
        z = net(x)
    if what == "labels":
        task: Labels | Regression = Labels(("a", "b"))
        y: Tensor = (z > 0).long()
    else:
        task, y = Regression(("a", "b"), (0.05, 0.1)), z + 0.02
    radius = relax.certified_radius(net, x, demanded(task, y), norm="linf", high=2.0, method=method)
    assert bool((radius > 0).all())
    grid = torch.cartesian_prod(*2 * (torch.linspace(-1, 1, 81, dtype=torch.float64),))  # corners and edges too
    for i in range(len(x)):
        with torch.no_grad():
            out = net(x[i] + float(radius[i]) * grid)
        assert bool(task.right(out, y[i].expand(len(out), -1)).all()), i


def test_a_demand_that_does_not_fit_is_refused() -> None:
    net, x = linear(3), torch.zeros(2, 5)
    with pytest.raises(ShapeError, match="does not fit 2 inputs and 3 outputs"):
        relax.certified(net, x, Demand(torch.zeros(2, 1, 4), torch.zeros(2, 1)), radius=0.1)


@pytest.mark.parametrize("probability", [False, True])
def test_one_score_is_read_as_two_classes(probability: bool) -> None:
    inner = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1), *([nn.Sigmoid()] if probability else []))
    model = OneScore(inner, probability).eval()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    chain = layers(model, (4,))
    at = x.double()
    for i, affine in enumerate(chain):
        at = affine(at if i == 0 else at.relu())
    with torch.no_grad():
        assert_close(at.float(), model(x), rtol=1e-4, atol=1e-5)
    # a linear logit keeps its sign up to |z| / |w|
    flat = OneScore(linear(), False).eval()
    with torch.no_grad():
        z = flat(torch.zeros(1, 5, dtype=torch.float64))[0, 1]
    exact = float(z.abs() / flat.model[0].weight.detach().norm())
    y = (z > 0).long()[None]
    assert bool(relax.certified(flat, torch.zeros(1, 5), y, norm="l2", radius=exact * (1 - 1e-5)))
    assert not bool(relax.certified(flat, torch.zeros(1, 5), y, norm="l2", radius=exact * (1 + 1e-5)))


def test_a_probability_without_a_sigmoid_to_look_behind_is_refused() -> None:
    with pytest.raises(SubjectError, match="no sigmoid gives"):
        layers(OneScore(nn.Sequential(nn.Linear(4, 1)), True).eval(), (4,))


def test_labels_are_slopes_of_one_logit_each() -> None:
    keep = demanded(Labels(("a", "b")), torch.tensor([[1, 0]]))
    np.testing.assert_allclose(keep.rows[0], [[1, 0], [0, -1]])
    assert float(keep.offset.abs().max()) == 0


def test_a_task_with_a_margin_of_its_own_is_not_proved_by_that_of_its_parent() -> None:
    class Stricter(Regression):
        def margin(self, out: Tensor, target: Tensor) -> Tensor:
            return super().margin(out, target) - 0.5

    assert unproved(Regression(("y",), (0.4,)), linear(), (5,)) is None
    told = unproved(Stricter(("y",), (0.4,)), linear(), (5,))
    assert told is not None
    assert told.endswith("the task is Stricter")
