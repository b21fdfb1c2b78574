from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.methods.attack.ball import Ball, distance
from assay.methods.attack.pgd import pgd
from assay.methods.attack.square import _eta, _grid, _share, _sides, _window_l2, _window_linf, square

from .conftest import Halves, Task, accuracy, apart, assert_same_path

Norm = Literal["linf", "l2"]
NORMS: tuple[tuple[Norm, float], ...] = (("linf", 0.08), ("l2", 0.5))
DUAL = {"linf": 1, "l2": 2}


def few(task: Task, n: int = 60) -> tuple[Tensor, Tensor]:
    return task.x[:n], task.y[:n]


# The printed method -------------------------------------------------------------------------------------------------


def pyramid_as_built(tall: int, broad: int) -> list[list[float]]:
    """Sec. 4.2 in plain loops: rectangles that grow by one pixel on each side, each adding 1/(k+1)^2."""
    out = [[0.0] * broad for _ in range(tall)]
    top, left = tall // 2, broad // 2
    for k in range(max(tall, broad) // 2 + 1):
        for r in range(max(top - k, 0), min(top + k + 1, tall)):
            for s in range(max(left - k, 0), min(left + k + 1, broad)):
                out[r][s] += 1 / (k + 1) ** 2
    size = math.sqrt(sum(v * v for row in out for v in row))
    return [[v / size for v in row] for row in out]


@pytest.mark.parametrize("side", [2, 3, 5, 7])
def test_eta_is_a_pyramid_up_above_a_pyramid_down(side: int) -> None:
    up, down = pyramid_as_built(side // 2, side), pyramid_as_built(side - side // 2, side)
    want = torch.tensor(up + [[-v for v in row] for row in down], dtype=torch.float64) / math.sqrt(2)
    assert_close(_eta(side, side)[0], want)
    assert_close(_eta(side, side)[1], want.T)


def test_eta_in_a_strip_lies_along_it() -> None:
    both = _eta(1, 6)
    assert torch.equal(both[0], both[1])
    assert (both[0, 0, :3] > 0).all()
    assert (both[0, 0, 3:] < 0).all()
    assert_close(torch.linalg.vector_norm(both[0]).item(), 1.0)
    assert _eta(1, 1).abs().eq(1).all()


@pytest.mark.parametrize("queries", [10_000, 500])
def test_share_falls_as_printed(queries: int) -> None:
    steps = [(0, 1), (10, 1), (11, 2), (51, 4), (201, 8), (501, 16), (1001, 32), (2001, 64), (4001, 128), (6001, 256)]
    for at, fall in [*steps, (8001, 512), (9999, 512)]:
        t = math.ceil(at * queries / 10_000)
        if t * 10_000 // queries == at:
            assert _share(t, queries, 0.8) == 0.8 / fall


def test_windows_keep_their_area_where_a_square_does_not_fit() -> None:
    assert _sides(0.25, 8, 8) == (4, 4)
    assert _sides(0.5, 1, 64) == (1, 32)
    assert _sides(0.8, 4, 100) == (4, 80)
    assert _sides(0.8, 100, 4) == (80, 4)
    assert _sides(1e-6, 8, 8) == (1, 1)


def test_linf_moves_one_square_of_its_own_in_each_input(rng: torch.Generator) -> None:
    x = torch.full((40, 3, 9, 9), 0.5)
    moved = _window_linf(x, Ball("linf", 0.1).around(x), 9 / 81, rng) - x
    assert_close(moved.abs().amax((1, 2, 3)), torch.full((40,), 0.1))
    changed = moved != 0
    assert (changed.sum((2, 3)) == 9).all()
    assert (changed.any(3).sum(2) == 3).all()
    assert (changed.any(2).sum(2) == 3).all()
    assert_close(moved.sum((2, 3)).abs(), torch.full((40, 3), 0.9), rtol=1e-5, atol=0)  # one sign per channel
    assert len({tuple(c) for c in moved.sum((2, 3)).sign().tolist()}) == 8  # and signs of its own in each input
    places = {tuple(c.nonzero()[0].tolist()) for c in changed[:, 0]}
    assert len(places) > 10


def test_l2_keeps_the_whole_budget_and_the_rest_of_the_image_in_proportion(rng: torch.Generator) -> None:
    x = torch.full((40, 3, 9, 9), 0.5)
    region = Ball("l2", 0.2).around(x)
    at = region.project(x + torch.randn(x.shape, generator=rng))
    moved = _window_l2(at, region, 9 / 81, rng)
    assert_close(distance(moved, x, "l2"), torch.full((40,), 0.2, dtype=torch.float64), rtol=1e-3, atol=0)
    masked = Ball("l2", 0.2, mask=torch.arange(9) < 5).around(x)  # of the columns; no budget is spent on the others
    inside = _window_l2(masked.project(at), masked, 0.5, rng)
    assert_close(distance(inside, x, "l2"), torch.full((40,), 0.2, dtype=torch.float64), rtol=1e-3, atol=0)
    before, after = _grid(at - x), _grid(moved - x)
    zero = (after == 0).all(1)  # 40 9 9: the second window, less what the first covers of it
    assert (zero.flatten(1).sum(1) <= 9).all()
    assert zero.flatten(1).any(1).float().mean() > 0.8
    scale = (after / before).flatten(1).median(1).values.reshape(-1, 1, 1, 1)
    same = (after - scale * before).abs() < 1e-6
    assert (same.flatten(1).sum(1) >= 3 * (81 - 18)).all()


# Closed forms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "enough"), [("linf", 1.02), ("l2", 1.25)])
def test_linear_model_breaks_where_the_boundary_is_in_reach_and_nowhere_else(
    halves: Halves, norm: Norm, enough: float
) -> None:
    far = halves.margin / torch.linalg.vector_norm(halves.w, DUAL[norm])
    short = square(halves.model, halves.x, halves.y, norm=norm, radius=far * 0.99, queries=200)
    long = square(halves.model, halves.x, halves.y, norm=norm, radius=far * enough, queries=600)
    assert not short.success.any()
    assert long.success.float().mean() > 0.8
    assert (long.distance <= (far * enough).double()).all()


def test_linf_reaches_the_optimum_of_a_linear_model(halves: Halves) -> None:
    got = square(halves.model, halves.x, halves.y, radius=0.05, queries=400, leave=False)
    assert_close(got.x, halves.x - 0.05 * halves.w.sign(), rtol=0, atol=1e-6)


# Ball, box, mask, honesty -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(
    shape=st.sampled_from([(7,), (1,), (5, 4), (2, 6, 5), (3, 1, 1), (1, 2, 3, 4)]),
    norm=st.sampled_from(["linf", "l2"]),
    radius=st.floats(0, 3, width=32),
    low=st.sampled_from([0.0, -2.0]),
    p_init=st.sampled_from([1.0, 0.3, 0.01]),
    seed=st.integers(0, 99),
)
def test_inside_ball_and_box(
    shape: tuple[int, ...], norm: Norm, radius: float, low: float, p_init: float, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(4, *shape, generator=rng) * (1 - low) + low
    x = torch.where(torch.rand(x.shape, generator=rng) < 0.2, low, x)
    w = torch.randn(x[0].numel(), 3, generator=rng)

    def model(z: Tensor) -> Tensor:
        if len(z) == len(x):  # every point that it looks at, not only the last
            assert (distance(z, x, norm) <= radius + 1e-6).all()
        assert ((z >= low) & (z <= 1)).all()
        return z.flatten(1) @ w

    y = model(x).argmax(1)
    bounds = (low, 1.0)
    got = square(model, x, y, norm=norm, radius=radius, queries=25, p_init=p_init, bounds=bounds, leave=False, rng=rng)
    assert got.x.shape == x.shape
    assert (got.distance <= radius + 1e-6).all()
    assert torch.equal(got.success, model(got.x).argmax(1) != y)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_radius_zero_returns_the_input_and_the_clean_accuracy(digits: Task, norm: Norm) -> None:
    got = square(digits.model, digits.x, digits.y, norm=norm, radius=0.0, queries=5)
    assert torch.equal(got.x, digits.x)
    assert torch.equal(got.success, digits.model(digits.x).argmax(1) != digits.y)


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_success_is_what_a_fresh_pass_says_and_wrong_inputs_stay_as_they_are(
    digits: Task, norm: Norm, radius: float
) -> None:
    x, y = few(digits)
    y = torch.where(torch.arange(60) < 5, (y + 1) % 10, y)
    got = square(digits.model, x, y, norm=norm, radius=radius, queries=60)
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != y)
    assert torch.equal(got.x[:5], x[:5])
    assert (got.distance <= radius).all()
    assert 0.1 < accuracy(got.success) < 0.9


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_mask_leaves_the_rest_bit_equal(digits: Task, norm: Norm, radius: float) -> None:
    x, y = few(digits)
    mask = torch.arange(64) >= 24
    got = square(digits.model, x, y, norm=norm, radius=4 * radius, mask=mask, queries=60)
    assert torch.equal(got.x[:, ~mask], x[:, ~mask])
    assert got.success.float().mean() > 0.5


# Strength -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "radius", "share", "image"),
    [("linf", 0.08, 0.85, False), ("linf", 0.08, 0.85, True), ("l2", 0.5, 0.7, True)],
)
def test_breaks_most_of_what_pgd_breaks(digits: Task, norm: Norm, radius: float, share: float, image: bool) -> None:
    x, y = few(digits, 80)
    model = nn.Sequential(nn.Flatten(), digits.model)
    white = pgd(model, x, y, norm=norm, radius=radius, steps=40)
    given = x.reshape(-1, 1, 8, 8) if image else x
    black = square(model, given, y, norm=norm, radius=radius, queries=400)
    assert white.success.sum() > 30
    assert (black.success & white.success).sum() >= share * white.success.sum()


def test_more_queries_and_restarts_break_more(digits: Task) -> None:
    x, y = few(digits)

    def held(queries: int, restarts: int = 1) -> float:
        return accuracy(square(digits.model, x, y, radius=0.08, queries=queries, restarts=restarts).success)

    assert held(2) > held(40) > held(300) - 1e-9
    assert held(40, restarts=3) <= held(40)


@pytest.mark.parametrize("loss", ["margin", "ce"])
def test_two_classes_and_targets(two_digits: Task, digits: Task, loss: str) -> None:
    x, y = few(two_digits)
    free = square(two_digits.model, x, y, radius=0.4, queries=100, loss=loss)  # type: ignore[arg-type]
    aimed = square(two_digits.model, x, y, radius=0.4, queries=100, loss=loss, target=1 - y)  # type: ignore[arg-type]
    assert apart(free.success, aimed.success) <= 0.02
    assert accuracy(free.success) < 0.2
    x, y = few(digits, 30)
    target = (y + 3) % 10
    got = square(digits.model, x, y, radius=0.4, queries=200, loss=loss, target=target)  # type: ignore[arg-type]
    assert torch.equal(got.success, digits.model(got.x).argmax(1) == target)
    assert got.success.float().mean() > 0.6


@pytest.mark.parametrize(
    "head", [lambda z: 100 * z, lambda z: (100 * z).softmax(1), lambda z: (z / 9).sigmoid(), lambda z: 1e-3 * z]
)
def test_scale_and_softmax_heads_do_not_matter(digits: Task, head: object) -> None:
    x, y = few(digits)
    plain = square(digits.model, x, y, radius=0.06, queries=80)
    other = square(lambda z: head(digits.model(z)), x, y, radius=0.06, queries=80)  # type: ignore[operator]
    assert abs(accuracy(plain.success) - accuracy(other.success)) <= 0.02


# State and edges ----------------------------------------------------------------------------------------------------


class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grad: Tensor) -> Tensor:
        raise AssertionError("asked for a gradient")


def test_no_gradient_is_asked_for_and_no_graph_is_kept(digits: Task) -> None:
    def model(x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not x.requires_grad
        out: Tensor = NoWayBack.apply(digits.model(x))  # type: ignore[no-untyped-call]
        assert out.grad_fn is None
        return out

    x, y = few(digits)
    got = square(model, x.requires_grad_(), y, radius=0.08, queries=30)
    assert got.success.any()
    assert not got.x.requires_grad
    x.requires_grad_(False)


def test_inputs_that_leave_cost_no_more_queries(digits: Task) -> None:
    seen = []

    def model(x: Tensor) -> Tensor:
        seen.append(len(x))
        out: Tensor = digits.model(x)
        return out

    x, y = few(digits)
    square(model, x, y, radius=0.6, queries=300)
    assert sum(seen) < 30 * len(x)
    seen.clear()
    square(model, x, y, radius=0.001, queries=50)
    assert sum(seen) <= (50 + 4) * len(x)


def test_same_seed_same_numbers_and_no_global_seed(digits: Task) -> None:
    state = torch.random.get_rng_state()
    x, y = few(digits)
    for norm, radius in NORMS:
        one, two, other = (
            square(digits.model, x, y, norm=norm, radius=radius, queries=20, rng=torch.Generator().manual_seed(seed))
            for seed in (5, 5, 6)
        )
        assert torch.equal(one.x, two.x)
        assert torch.equal(one.loss, two.loss)
        assert not torch.equal(one.x, other.x)
    assert torch.equal(state, torch.random.get_rng_state())


def test_eot_on_a_deterministic_model_changes_nothing(digits: Task) -> None:
    x, y = few(digits)
    one, three = (square(digits.model, x, y, radius=0.08, queries=20, eot=k, leave=False) for k in (1, 3))
    assert_same_path(one, three)


def test_one_radius_per_input(digits: Task) -> None:
    x, y = digits.x[:30].repeat(2, 1), digits.y[:30].repeat(2)
    radius = torch.tensor([0.02, 0.2]).repeat_interleave(30)
    got = square(digits.model, x, y, radius=radius, queries=60)
    assert (got.distance <= radius.double()).all()
    assert got.success[:30].sum() < got.success[30:].sum()


def test_bad_input_is_refused_in_words(digits: Task) -> None:
    x, y = digits.x[:4], digits.y[:4]
    with pytest.raises(AssayError, match="square searches in linf or l2, got norm 'l1'"):
        square(digits.model, x, y, norm="l1", radius=1.0)  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="queries=1,"):
        square(digits.model, x, y, radius=0.1, queries=1)
    with pytest.raises(AssayError, match="p_init=0"):
        square(digits.model, x, y, radius=0.1, p_init=0)
    with pytest.raises(AssayError, match="Found label 99"):
        square(digits.model, x, y.index_fill(0, torch.tensor([0]), 99), radius=0.1)
    with pytest.raises(AssayError, match="equal to its label"):
        square(digits.model, x, y, radius=0.1, target=y)


def test_nan_at_the_input_names_it_and_nan_under_attack_is_no_right_answer(digits: Task) -> None:
    x = torch.full((20, 64), 0.5).index_fill(0, torch.tensor([7]), 0.0)
    y = digits.model(x).argmax(1)

    def model(z: Tensor) -> Tensor:
        out: Tensor = digits.model(z) + 0 * z.amin(1, keepdim=True).log()
        return out

    with pytest.raises(SubjectError, match="output is NaN for input 7"):
        square(model, x, y, radius=0.1, queries=9, leave=False)
    x[7] = 0.05
    y = digits.model(x).argmax(1)
    got = square(model, x, y, radius=0.1, queries=9, leave=False)
    assert got.success[7]
    assert model(got.x[7:8]).isnan().all()
