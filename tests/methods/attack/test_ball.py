from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.attack.ball import Ball, Norm, distance, wide

quick = settings(deadline=None, max_examples=40)
norms = st.sampled_from(["linf", "l2", "l1", "l0"])
seeds = st.integers(0, 10_000)


def scene(seed: int, n: int = 4, d: int = 9) -> tuple[Tensor, Tensor, torch.Generator]:
    rng = torch.Generator().manual_seed(seed)
    x0 = torch.rand(n, d, generator=rng)
    x0[torch.rand(n, d, generator=rng) < 0.3] = 0.0  # saturated features, where the box bites
    x0[torch.rand(n, d, generator=rng) < 0.2] = 1.0
    return x0, x0 + 2 * torch.randn(n, d, generator=rng), rng


def budget(norm: Norm, radius: float) -> float:
    return float(int(radius * 9)) if norm == "l0" else radius


@quick
@given(norm=norms, radius=st.floats(0, 3), seed=seeds)
def test_projection_lands_exactly_inside_and_then_stays_put(norm: Norm, radius: float, seed: int) -> None:
    x0, x, _ = scene(seed)
    ball = Ball(norm, budget(norm, radius))
    once = ball.project(x, x0)
    assert (distance(once, x0, norm) <= ball.radius).all()  # no tolerance: float64 distance of float32 points
    assert ((once >= 0) & (once <= 1)).all()
    assert torch.equal(ball.project(once, x0), once)


@quick
@given(norm=norms, radius=st.floats(0, 3), seed=seeds)
def test_samples_are_inside_and_radius_zero_is_the_input(norm: Norm, radius: float, seed: int) -> None:
    x0, _, rng = scene(seed)
    drawn = Ball(norm, budget(norm, radius)).sample(x0, rng)
    assert (distance(drawn, x0, norm) <= budget(norm, radius)).all()
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert torch.equal(Ball(norm, 0.0).sample(x0, rng), x0)


def nearest_by_bisection(x: Tensor, x0: Tensor, norm: Norm, radius: float) -> Tensor:
    """The KKT conditions, one multiplier found by 200 halvings in float64: no Newton, no rounds, no rounding tricks."""
    change, x0 = (x - x0).double(), x0.double()
    length, room = change.abs(), torch.where(change > 0, 1 - x0, x0)

    def shorter(v: Tensor) -> Tensor:
        return torch.minimum(length / (1 + v) if norm == "l2" else (length - v).clamp_min(0), room)

    low, high = torch.zeros(len(x), 1).double(), torch.full((len(x), 1), 1e6).double()
    for _ in range(200):
        v = (low + high) / 2
        outside = torch.linalg.vector_norm(shorter(v), 2 if norm == "l2" else 1, dim=1, keepdim=True) > radius
        low, high = torch.where(outside, v, low), torch.where(outside, high, v)
    return x0 + shorter(high).copysign(change)


@quick
@given(norm=st.sampled_from(["l2", "l1"]), radius=st.floats(0.05, 3), far=st.floats(0.05, 5), seed=seeds)
@example(norm="l2", radius=1.306640625, far=2.0, seed=13)  # one feature is free, and hardly
def test_projection_is_the_nearest_point(norm: Norm, radius: float, far: float, seed: int) -> None:
    x0, x, _ = scene(seed)
    x = x0 + far * (x - x0)
    near = Ball(norm, radius).project(x, x0)
    meant = radius * (1 - 2e-6) - 4e-7  # what is left of the radius when rounding has its share
    assert_close(near.double(), nearest_by_bisection(x, x0, norm, meant), rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.8])  # of the way to the corner of the box
@pytest.mark.parametrize("far", [1.2, 10.0])
def test_projection_is_the_nearest_point_of_large_images_too(norm: Norm, share: float, far: float) -> None:
    rng = torch.Generator().manual_seed(0)
    x0 = (torch.rand(8, 784, generator=rng) * 1.4 - 0.4).clamp_min(0)  # a third of it black
    change = torch.randn(x0.shape, generator=rng)
    corner = distance(torch.where(change > 0, 1.0, 0.0), x0, norm)
    radius = share * float(corner.min())
    x = x0 + change * (far * radius / distance(change, torch.zeros_like(change), norm)).float()[:, None]
    near = Ball(norm, radius).project(x, x0)
    assert_close(near.double(), nearest_by_bisection(x, x0, norm, radius), rtol=0, atol=3e-5)


@pytest.mark.parametrize(("norm", "radius"), [("l2", 2e-4), ("l2", 0.5), ("l1", 2e-3), ("l1", 12.0)])
def test_rounding_gives_nothing_away_with_many_features(norm: Norm, radius: float) -> None:
    """3,072 roundings of 3e-8 add up: more than a small radius can hide."""
    rng = torch.Generator().manual_seed(0)
    x0 = torch.rand(8, 3, 32, 32, generator=rng)
    x = Ball(norm, radius).project(x0 + torch.randn(x0.shape, generator=rng), x0)
    assert (distance(x, x0, norm) <= radius).all()
    assert (distance(x, x0, norm) >= 0.95 * radius).all()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_one_radius_per_input_is_each_input_alone(norm: Norm) -> None:
    x0, x, _ = scene(3)
    radii = torch.tensor([0.0, 1.0, 2.0, 5.0])
    together = Ball(norm, radii).project(x, x0)
    for i, r in enumerate(radii):
        assert_close(together[i : i + 1], Ball(norm, float(r)).project(x[i : i + 1], x0[i : i + 1]))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_masked_features_keep_their_bits(norm: Norm) -> None:
    x0, x, rng = scene(4)
    mask = torch.arange(9) % 2 == 0
    ball = Ball(norm, 1.0, mask=mask)
    for inside in (ball.project(x, x0), ball.sample(x0, rng)):
        assert torch.equal(inside[:, ~mask], x0[:, ~mask])
        assert (distance(inside, x0, norm) <= 1.0).all()


def test_images_and_other_bounds() -> None:
    rng = torch.Generator().manual_seed(0)
    x0 = torch.rand(2, 3, 4, 4, generator=rng) * 510 - 255
    for norm in ("linf", "l2", "l1"):
        x = Ball(norm, 40.0, -255.0, 255.0).project(x0 + 100 * torch.randn(x0.shape, generator=rng), x0)
        assert x.shape == x0.shape
        assert (distance(x, x0, norm) <= 40.0).all()
        assert (x.abs() <= 255).all()


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", float("inf"))])
def test_steepest_step_is_the_dual_norm(norm: Norm, dual: float) -> None:
    """max g'd over ||d|| <= 1 is the dual norm of g. With nine features l1's top 1 % is one feature: exact."""
    x0, _, rng = scene(5)
    x0 = x0.clamp(0.2, 0.8)
    gradient = torch.randn(x0.shape, generator=rng)
    step = Ball(norm, 1.0).around(x0).steepest(gradient, x0)
    assert_close((step * gradient).sum(1), torch.linalg.vector_norm(gradient, dual, dim=1))


def test_l1_step_skips_features_without_room() -> None:
    x0 = torch.tensor([[1.0, 0.5, 0.0]])
    step = Ball("l1", 1.0).around(x0).steepest(torch.tensor([[3.0, 1.0, -2.0]]), x0)
    assert torch.equal(step, torch.tensor([[0.0, 1.0, 0.0]]))


def test_sampling_fills_the_ball() -> None:
    """In the middle of a wide box, l2 samples are uniform: E ||x - x0||^2 = r^2 d / (d + 2)."""
    x0 = torch.zeros(4000, 5)
    size = distance(Ball("l2", 2.0, -9, 9).sample(x0, torch.Generator().manual_seed(0)), x0, "l2")
    assert_close(size.square().mean().item(), 4 * 5 / 7, rtol=0.03, atol=0)


def test_bad_budgets_say_so() -> None:
    with pytest.raises(AssayError, match="at least 0, got -1"):
        Ball("linf", -1.0)
    with pytest.raises(AssayError, match="Unknown norm 'l3'"):
        Ball("l3", 1.0)  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="low < high"):
        Ball("linf", 1.0, 1.0, 0.0)
    with pytest.raises(ShapeError, match="3 radii for 2 inputs"):
        Ball("linf", torch.ones(3)).around(torch.zeros(2, 4))
    with pytest.raises(ShapeError, match="does not fit inputs"):
        Ball("linf", 1.0, mask=torch.ones(5)).around(torch.zeros(2, 4))


def test_wide_broadcasts_over_features() -> None:
    assert wide(torch.ones(3), torch.zeros(3, 2, 5, 5)).shape == (3, 1, 1, 1)
