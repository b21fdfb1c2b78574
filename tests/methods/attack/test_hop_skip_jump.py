from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.attack.attacked import Attacked
from assay.methods.attack.ball import Ball, distance
from assay.methods.attack.hop_skip_jump import Oracle, _bisect, _direction, _jump, hop_skip_jump
from assay.methods.attack.loss import Goal
from assay.methods.attack.minimal_norm import minimal_norm

from .conftest import Halves, Task

Norm = Literal["l2", "linf"]
DUAL = {"linf": 1, "l2": 2}


def few(task: Task, n: int = 24) -> tuple[Tensor, Tensor]:
    right = (task.model(task.x).argmax(1) == task.y).nonzero()[:n, 0]
    return task.x[right], task.y[right]


# Closed forms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "slack"), [("l2", 0.03), ("linf", 0.06)])
def test_distance_on_a_linear_model_converges_to_the_exact_one_from_above(
    halves: Halves, norm: Norm, slack: float
) -> None:
    far = (halves.margin / torch.linalg.vector_norm(halves.w, DUAL[norm])).double()
    got = hop_skip_jump(halves.model, halves.x, halves.y, norm=norm, queries=5000)
    assert got.success.all()
    assert (got.distance >= far * (1 - 1e-5)).all()
    assert (got.distance <= far * (1 + slack)).all()
    assert_close(got.distance, distance(got.x, halves.x, norm))


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_trace_never_rises_and_ends_at_the_distance(halves: Halves, norm: Norm) -> None:
    got = hop_skip_jump(halves.model, halves.x, halves.y, norm=norm, queries=1500)
    assert len(got.loss) >= 5
    assert (got.loss.diff(dim=0) <= 0).all()
    assert_close(got.loss[-1].double(), got.distance, rtol=1e-5, atol=0)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_bisection_ends_on_the_wanted_side_of_the_boundary(halves: Halves, norm: Norm, rng: torch.Generator) -> None:
    oracle = Oracle(halves.model, Goal(halves.y), 4)
    rows = torch.arange(6)
    there = halves.x - 2 * halves.margin[:, None] * halves.w / halves.w.square().sum()
    edge = _bisect(oracle, halves.x, there, rows, norm, 20)
    margin = (edge - 0.5) @ halves.w + 0.4
    assert (margin < 0).all()
    assert (margin > -1e-4).all()
    if norm == "l2":
        assert_close(edge, (halves.x + there) / 2, rtol=0, atol=1e-5)
    assert (oracle.spent == 20).all()


@pytest.mark.parametrize("offset", [0.0, 0.3])  # on the boundary; where most draws agree and the baseline matters
def test_direction_is_the_gradient_of_a_linear_model(halves: Halves, offset: float, rng: torch.Generator) -> None:
    size = halves.w.norm()
    at = halves.x - (halves.margin / size)[:, None] * halves.w / size - offset * 0.05 * halves.w / size
    region = Ball("linf", 1.0).around(halves.x)
    oracle = Oracle(halves.model, Goal(halves.y), 256)
    count = torch.tensor([400, 400, 401, 399, 1000, 400])
    delta = torch.full((6,), 0.05)
    v = _direction(oracle, at, torch.arange(6), region, delta, count, "l2", rng)
    assert_close(v.norm(dim=1), torch.ones(6))
    assert (v @ (-halves.w / size) > 0.9).all()
    assert torch.equal(oracle.spent, count)


def test_step_is_halved_until_it_lands_on_the_wanted_side() -> None:
    """Wanted is 0.4 < x < 0.6; from 0.5, steps of 0.05, 0.4 and 0.4 need 0, 3 and (two queries left) more halvings."""

    def model(x: Tensor) -> Tensor:
        return torch.stack([(x[:, 0] - 0.5).abs(), torch.full((len(x),), 0.1)], 1)

    at, rows, xi = torch.full((3, 1), 0.5), torch.arange(3), torch.tensor([0.05, 0.4, 0.4])
    oracle = Oracle(model, Goal(torch.zeros(3, dtype=torch.long)), 64)
    oracle.spent += torch.tensor([0, 0, 98])
    got = _jump(oracle, at, rows, Ball("linf", 1.0).around(at), torch.ones(3, 1), xi, 100)
    assert_close(got[:, 0], torch.tensor([0.55, 0.55, 0.5]))
    assert oracle.spent.tolist() == [1, 4, 100]


def test_baseline_takes_the_mean_draw_out() -> None:
    """Against the printed sum, draw by draw, with the same generator."""
    w, x = torch.tensor([1.0, -2.0, 0.5]), torch.full((1, 3), 0.5)

    def model(x: Tensor) -> Tensor:
        return torch.stack([(x - 0.5) @ w + 0.02, torch.zeros(len(x))], 1)

    got = _direction(
        Oracle(model, Goal(torch.tensor([0])), 64), x, torch.tensor([0]), Ball("linf", 1.0).around(x),
        torch.tensor([0.05]), torch.tensor([30]), "l2", torch.Generator().manual_seed(3),
    )  # fmt: skip
    draws = torch.randn(30, 3, generator=torch.Generator().manual_seed(3))
    draws = draws / draws.norm(dim=1, keepdim=True)
    phi = [1.0 if model(x + 0.05 * u).argmax().item() == 1 else -1.0 for u in draws]
    mean = sum(phi) / 30
    assert -1 < mean < -0.1
    v = torch.stack([(p - mean) * u for p, u in zip(phi, draws, strict=True)]).sum(0) / 29
    assert_close(got[0], v / v.norm(), rtol=1e-3, atol=1e-4)


# Box, mask, honesty -------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(
    shape=st.sampled_from([(7,), (1,), (2, 3, 4)]),
    norm=st.sampled_from(["linf", "l2"]),
    low=st.sampled_from([0.0, -2.0]),
    radius=st.none() | st.floats(0, 2, width=32),
    queries=st.integers(80, 400),
    seed=st.integers(0, 99),
)
def test_inside_the_box_within_budget_and_honest(
    shape: tuple[int, ...], norm: Norm, low: float, radius: float | None, queries: int, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(4, *shape, generator=rng) * (1 - low) + low
    x = torch.where(torch.rand(x.shape, generator=rng) < 0.2, low, x)
    w = torch.randn(x[0].numel(), 3, generator=rng)
    asked = 0

    def model(z: Tensor) -> Tensor:
        nonlocal asked
        asked += len(z)
        assert ((z >= low) & (z <= 1)).all()
        return z.flatten(1) @ w

    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 3
    asked = 0
    got = hop_skip_jump(model, x, y, norm=norm, radius=radius, queries=queries, bounds=(low, 1.0), rng=rng)
    assert asked <= (queries + 3) * 4
    assert torch.equal(got.x[0], x[0])
    assert got.success[0]
    assert got.distance[0] == 0
    broken = model(got.x).argmax(1) != y
    assert torch.equal(got.success, broken if radius is None else broken & (distance(got.x, x, norm) <= radius))
    assert torch.equal(got.distance, distance(got.x, x, norm))


def test_radius_zero_returns_the_input_and_the_clean_accuracy(digits: Task) -> None:
    got = hop_skip_jump(digits.model, digits.x, digits.y, radius=0.0, queries=1000)
    assert torch.equal(got.x, digits.x)
    assert torch.equal(got.success, digits.model(digits.x).argmax(1) != digits.y)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_mask_leaves_the_rest_bit_equal(digits: Task, norm: Norm) -> None:
    x, y = few(digits)
    mask = torch.arange(64) >= 16
    got = hop_skip_jump(digits.model, x, y, norm=norm, mask=mask, queries=400)
    assert torch.equal(got.x[:, ~mask], x[:, ~mask])
    assert got.success.float().mean() > 0.8


def test_labels_are_all_it_sees(digits: Task) -> None:
    """A model that answers one-hot, as floats or as integers, is walked along the same path to the bit."""

    def hot(z: Tensor) -> Tensor:
        return nn.functional.one_hot(digits.model(z).argmax(1), 10)

    x, y = few(digits)
    norms: tuple[Norm, ...] = ("l2", "linf")
    for norm in norms:
        full, hard, whole = (
            hop_skip_jump(m, x, y, norm=norm, queries=300) for m in (digits.model, lambda z: hot(z).float(), hot)
        )
        for other in (hard, whole):
            assert torch.equal(full.x, other.x)
            assert torch.equal(full.loss, other.loss)
            assert torch.equal(full.success, other.success)


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
        return out

    x, y = few(digits)
    got = hop_skip_jump(model, x.clone().requires_grad_(), y, queries=200)
    assert got.success.all()
    assert not got.x.requires_grad


# Strength and budget ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "factor"), [("l2", 1.25), ("linf", 1.5)])
def test_comes_near_to_a_gradient_attack(digits: Task, norm: Norm, factor: float) -> None:
    x, y = few(digits)
    white = minimal_norm(digits.model, x, y, norm=norm).distance
    model = nn.Sequential(nn.Flatten(), digits.model)
    got = hop_skip_jump(model, x.reshape(-1, 1, 8, 8), y, norm=norm, queries=1000)
    assert got.success.all()
    assert torch.equal(got.success, model(got.x).argmax(1) != y)
    assert (got.distance / white).median() < factor


def test_radius_counts_and_lets_inputs_leave(digits: Task) -> None:
    x, y = few(digits)
    asked = 0

    def model(z: Tensor) -> Tensor:
        nonlocal asked
        asked += len(z)
        out: Tensor = digits.model(z)
        return out

    def run(radius: float | Tensor | None) -> tuple[Attacked, int]:
        nonlocal asked
        asked = 0
        return hop_skip_jump(model, x, y, radius=radius, queries=600), asked

    (free, all_of_it), (wide, little), (tight, _) = run(None), run(3.0), run(0.3)
    assert free.success.all()
    assert all_of_it <= 603 * len(x)
    assert all_of_it > 500 * len(x)
    assert little < all_of_it / 5
    assert wide.success.all()
    assert (wide.distance <= 3.0).all()
    assert torch.equal(tight.success, tight.distance <= 0.3)
    assert 0 < tight.success.sum() < len(x)
    each, _ = run(torch.tensor([0.1, 2.0]).repeat(len(x) // 2))
    assert each.success[1::2].float().mean() > each.success[::2].float().mean()


@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_batch_only_packs(halves: Halves, batch: int) -> None:
    seen = []

    def model(z: Tensor) -> Tensor:
        seen.append(len(z))
        return halves.model(z)

    got = hop_skip_jump(model, halves.x, halves.y, queries=300, batch=batch)
    far = halves.margin / halves.w.norm()
    assert max(seen[:-1]) <= max(batch, 6)
    assert (got.distance <= 1.3 * far.double()).all()
    if batch == 10_000:
        assert max(seen) >= 600  # the draws of six inputs in one pass


def test_starts(digits: Task, halves: Halves) -> None:
    x, y = few(digits)
    target = (y + 1) % 10
    samples = torch.stack([digits.train_x[digits.train_y == t][0] for t in target])
    aimed = hop_skip_jump(digits.model, x, y, start=samples, target=target, queries=300)
    assert torch.equal(aimed.success, digits.model(aimed.x).argmax(1) == target)
    assert aimed.success.float().mean() > 0.9
    assert (aimed.distance[aimed.success] < distance(samples, x, "l2")[aimed.success]).all()
    alone = hop_skip_jump(halves.model, halves.x[:1], halves.y[:1], queries=300)  # no sample in the batch: noise
    assert alone.success.all()
    never = hop_skip_jump(lambda z: torch.tensor([[1.0, 0.0]]).repeat(len(z), 1), halves.x, halves.y, queries=300)
    assert not never.success.any()
    assert torch.equal(never.x, halves.x)


def test_two_classes(two_digits: Task) -> None:
    x, y = few(two_digits)
    free = hop_skip_jump(two_digits.model, x, y, queries=300)
    aimed = hop_skip_jump(two_digits.model, x, y, queries=300, target=1 - y)
    assert free.success.all()
    assert torch.equal(free.x, aimed.x)


def test_same_seed_same_numbers_and_no_global_seed(digits: Task) -> None:
    state = torch.random.get_rng_state()
    x, y = few(digits)
    one, two, other = (
        hop_skip_jump(digits.model, x, y, queries=200, rng=torch.Generator().manual_seed(s)) for s in (5, 5, 6)
    )
    assert torch.equal(one.x, two.x)
    assert not torch.equal(one.x, other.x)
    assert torch.equal(state, torch.random.get_rng_state())


def test_bad_input_is_refused_in_words(digits: Task) -> None:
    x, y = few(digits, 4)
    with pytest.raises(AssayError, match="walks in l2 or linf, got norm 'l1'"):
        hop_skip_jump(digits.model, x, y, norm="l1")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="here queries >= 23; got draws=100, batch=256, queries=20"):
        hop_skip_jump(digits.model, x[:, :12], y, queries=20)
    with pytest.raises(ShapeError, match=r"Starts have shape \(2, 64\)"):
        hop_skip_jump(digits.model, x, y, start=x[:2])
    with pytest.raises(AssayError, match="finite and at least 0"):
        hop_skip_jump(digits.model, x, y, radius=-1.0)
    with pytest.raises(AssayError, match="Found label 99"):
        hop_skip_jump(digits.model, x, y.index_fill(0, torch.tensor([0]), 99))
    bad = x.index_fill(0, torch.tensor([2]), 0.0)
    with pytest.raises(SubjectError, match="output is NaN for input 2"):
        hop_skip_jump(lambda z: digits.model(z) + 0 * z.sum(1, keepdim=True).log(), bad, y)
