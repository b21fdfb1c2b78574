from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.attack import apgd, pgd
from assay.methods.attack.apgd import _checkpoints
from assay.methods.attack.ball import Ball, Norm, distance

from .conftest import Halves, Task, accuracy, assert_same_path

NORMS: tuple[tuple[Norm, float], ...] = (("linf", 0.08), ("l2", 0.45), ("l1", 1.5))


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", math.inf)])
def test_linear_model_loses_exactly_the_dual_norm(halves: Halves, norm: Norm, dual: float) -> None:
    got = apgd(halves.model, halves.x, halves.y, norm=norm, radius=0.1, steps=100, leave=False)
    fall = halves.margin - ((got.x - 0.5) @ halves.w + 0.4)
    assert_close(fall, torch.full_like(fall, 0.1 * torch.linalg.vector_norm(halves.w, dual).item()), rtol=1e-3, atol=0)


def test_checkpoints_are_the_printed_ones() -> None:
    """p_0 = 0, p_1 = 0.22, p_2 = 0.22 + 0.19, ... the gap falls by 0.03 down to 0.06."""
    assert sorted(k for k in _checkpoints(100, False) if k < 100) == [22, 41, 57, 70, 80, 87, 93, 99]


def test_the_step_halves_where_it_does_not_climb() -> None:
    """A parabola with its top inside the ball: the first step of 2 r leaps over it; halving finds it."""
    top = torch.tensor([[0.53, 0.47, 0.5]])

    def model(x: Tensor) -> Tensor:
        height = -(x - top).square().sum(1)
        return torch.stack([1 - height, torch.zeros(len(x))], 1)

    x = torch.full((1, 3), 0.5)
    got = apgd(model, x, torch.tensor([0]), norm="linf", radius=0.2, steps=100, loss="margin")
    assert (got.x - top).abs().max() < 4e-3


def apgd_as_printed(
    loss: Callable[[Tensor], Tensor], x: Tensor, start: Tensor, norm: Norm, radius: float, steps: int
) -> list[float]:
    """Algorithm 1 of Croce & Hein for one input, with lists and ifs; returns f at x_0, ..., x_{steps-1}."""
    ball = Ball(norm, radius)

    def ask(at: Tensor) -> tuple[float, Tensor]:
        at = at.clone().requires_grad_()
        height = loss(at)
        return float(height), torch.autograd.grad(height, at)[0]

    def climb(at: Tensor, g: Tensor, eta: float) -> Tensor:
        return ball.project(at + eta * (g.sign() if norm == "linf" else g / g.norm()), x)

    eta, f, points, marks = 2 * radius, [], [start], [0]
    value, g = ask(start)
    f.append(value)
    f_max, x_max, g_max = value, start, g
    points.append(climb(start, g, eta))
    p = [0.0, 0.22]
    while p[-1] < 1:
        p.append(p[-1] + max(p[-1] - p[-2] - 0.03, 0.06))
    w = [math.ceil(round(v * steps, 6)) for v in p]
    halved, old_max, rises = False, f_max, 0
    here, before, f_here = points[1], start, value
    for k in range(1, steps):
        value, g = ask(here)
        f.append(value)
        rises += value > f_here
        f_here = value
        if value > f_max:
            f_max, x_max, g_max = value, here, g
        if k in w:
            halve = rises <= 0.75 * (k - marks[-1]) or (not halved and f_max == old_max)
            if halve:
                eta, here, before, g, f_here = eta / 2, x_max, x_max, g_max, f_max
            halved, old_max, rises = halve, f_max, 0
            marks.append(k)
        z = climb(here, g, eta)
        before, here = here, ball.project(here + 0.75 * (z - here) + 0.25 * (here - before), x)
    return f


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.1), ("l2", 0.6)])
def test_the_path_is_that_of_the_printed_algorithm(digits: Task, norm: Norm, radius: float) -> None:
    model = copy.deepcopy(digits.model).double()  # so that rounding does not part the two paths
    x, y = digits.x[:3].double(), digits.y[:3]
    got = apgd(model, x, y, norm=norm, radius=radius, steps=40, loss="margin", leave=False)
    starts = Ball(norm, radius).sample(x, torch.Generator().manual_seed(0))
    for i in range(3):

        def loss(at: Tensor, i: int = i) -> Tensor:
            z = model(at)[0]
            return torch.cat([z[: y[i]], z[y[i] + 1 :]]).max() - z[y[i]]

        path = apgd_as_printed(loss, x[i : i + 1], starts[i : i + 1], norm, radius, 40)
        assert_close(got.loss[:, i], torch.tensor(path, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_inside_honest_and_at_least_as_strong_as_pgd(digits: Task, norm: Norm, radius: float) -> None:
    got = apgd(digits.model, digits.x, digits.y, norm=norm, radius=radius, steps=30)
    assert (distance(got.x, digits.x, norm) <= radius).all()
    assert ((got.x >= 0) & (got.x <= 1)).all()
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != digits.y)
    plain = pgd(digits.model, digits.x, digits.y, norm=norm, radius=radius, steps=30)
    assert accuracy(got.success) <= accuracy(plain.success) + 0.005


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_leading_the_loss_to_each_class_is_at_least_as_strong(digits: Task, norm: Norm, radius: float) -> None:
    x, y = digits.x[:150], digits.y[:150]
    free = apgd(digits.model, x, y, norm=norm, radius=radius, steps=20, loss="dlr")
    led = apgd(digits.model, x, y, norm=norm, radius=radius, steps=20, loss="dlr", targets=9)
    assert torch.equal(led.success, digits.model(led.x).argmax(1) != y)
    assert accuracy(led.success) <= accuracy(free.success)


@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
def test_two_classes(two_digits: Task, loss: str) -> None:
    x, y = two_digits.x, two_digits.y
    held = [
        accuracy(apgd(two_digits.model, x, y, radius=0.4, steps=20, loss=loss, **more).success)  # type: ignore[arg-type]
        for more in ({}, {"target": 1 - y}, {"targets": 9})
    ]
    assert max(held) < 0.2
    assert max(held) - min(held) <= 0.01


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_radius_zero_target_and_mask(digits: Task, norm: Norm) -> None:
    x, y = digits.x[:60], digits.y[:60]
    assert torch.equal(apgd(digits.model, x, y, norm=norm, radius=0.0, steps=12).x, x)
    aim = (y + 1) % 10
    wide = {"linf": 0.5, "l2": 3.0, "l1": 12.0}[norm]
    got = apgd(digits.model, x, y, norm=norm, radius=wide, steps=40, target=aim)
    assert torch.equal(got.success, digits.model(got.x).argmax(1) == aim)
    assert got.success.float().mean() > 0.95
    mask = torch.arange(64) % 2 == 0
    assert torch.equal(apgd(digits.model, x, y, norm=norm, radius=wide, steps=12, mask=mask).x[:, ~mask], x[:, ~mask])


@pytest.mark.parametrize("scale", [100.0, 0.01])
@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_scale_does_not_matter(digits: Task, scale: float, loss: str) -> None:
    def held(scale: float) -> float:
        def model(x: Tensor) -> Tensor:
            out: Tensor = scale * digits.model(x)
            return out

        return accuracy(apgd(model, digits.x, digits.y, radius=0.08, steps=15, loss=loss).success)  # type: ignore[arg-type]

    assert abs(held(1.0) - held(scale)) <= 0.01


@pytest.mark.parametrize("mode", ["loss", "mean_prob"])
def test_eot_on_a_deterministic_model_takes_the_same_path(digits: Task, mode: str) -> None:
    one, five = (
        apgd(digits.model, digits.x[:80], digits.y[:80], radius=0.05, steps=10, eot=k, eot_mode=mode, leave=False)  # type: ignore[arg-type]
        for k in (1, 5)
    )
    assert_same_path(one, five)


def test_steps_count_the_gradient_passes(digits: Task) -> None:
    grads = 0

    def model(x: Tensor) -> Tensor:
        nonlocal grads
        grads += torch.is_grad_enabled() and x.requires_grad
        out: Tensor = digits.model(x)
        return out

    apgd(model, digits.x[:20], digits.y[:20], radius=0.05, steps=17, leave=False)
    assert grads == 17


def test_words_of_the_errors(digits: Task) -> None:
    x, y = digits.x[:4], digits.y[:4]
    with pytest.raises(AssayError, match="not both"):
        apgd(digits.model, x, y, radius=0.1, target=(y + 1) % 10, targets=3)
    with pytest.raises(AssayError, match="for l0 use minimal_norm"):
        apgd(digits.model, x, y, norm="l0", radius=0.1)
    with pytest.raises(AssayError, match="got steps=0"):
        apgd(digits.model, x, y, radius=0.1, steps=0)
