"""The walk: closed forms on a generalised linear model, identities of its settings, and a small ranker of digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.rank import Penalties, one_step, to_tie, walk
from assay.methods.rank.walk import Against, Score, degrees, sensitive
from assay.nn.siamese import Siamese

RIGHT, BASE = 0.5, 200  # the digit ranker's walk: lambda and steps


class Tail(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * size, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([e1, e2], 1))
        return out


class Digits(NamedTuple):
    """A small joint ranker of digits, one that learnt from shuffled values, and someone else who can read digits."""

    model: Siamese
    shuffled: Siamese
    first: Tensor  # n 1 8 8
    second: Tensor
    values: np.ndarray[Any, Any]  # n 2
    reader: KNeighborsClassifier

    def score(self, model: Siamese | None = None) -> Score:
        m = model or self.model
        e2 = m.encode(self.second).detach()
        return lambda a: m.compare(m.encode(a), e2)

    def read(self, images: Tensor) -> np.ndarray[Any, Any]:
        return np.asarray(self.reader.predict(images.detach().flatten(1).numpy()))


def trained(x: Tensor, values: Tensor, steps: int = 250) -> Siamese:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    decoder = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))
    model = Siamese(encoder, Tail(10), decoder)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        i, j = torch.randint(len(x), (2, 64))
        e1, e2 = model.encode(x[i]), model.encode(x[j])
        right = (values[i] - values[j]) / 18 + 0.5
        loss = (model.compare(e1, e2) - right).square().mean() + (model.decode(e1) - x[i]).square().mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    optimiser.zero_grad()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def digits() -> Digits:
    raw, y = load_digits(return_X_y=True)
    x = torch.tensor(raw / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(x))
    train, test = order[:1200], order[1200:]
    with torch.random.fork_rng():
        values = torch.tensor(y, dtype=torch.float32)
        model = trained(x[train], values[train])
        shuffled = trained(x[train], values[rng.permutation(train)])
    i, j = rng.choice(test, (2, 40))
    reader = KNeighborsClassifier(5).fit(x[train].flatten(1).numpy(), y[train])
    return Digits(model, shuffled, x[i], x[j], np.stack([y[i], y[j]], 1), reader)


def norm(x: Tensor) -> Tensor:
    return x.flatten(1).square().sum(1).sqrt()


def linear(w: Tensor, b: float = 0.0) -> Score:
    return lambda a: (a.flatten(1) @ w.flatten() + b).sigmoid()


@pytest.fixture
def plane() -> tuple[Score, Tensor, Tensor, Tensor]:
    """A generalised linear model c = sigmoid(w.x + b): score, w, inputs and their w.x + b."""
    g = torch.Generator().manual_seed(1)
    w = torch.randn(1, 8, 8, generator=g, dtype=torch.float64) / 6
    x = torch.rand(6, 1, 8, 8, generator=g, dtype=torch.float64)
    return linear(w, 0.4), w, x, x.flatten(1) @ w.flatten() + 0.4


# Algorithms 1 and 2


def walk_as_printed(score: Score, x: Tensor, target: float, steps: int, step: float) -> tuple[list[float], Tensor]:
    """Algorithm 2 with its signs mended, for one input."""
    a, seen = x[None].clone(), []
    for _ in range(steps):
        a = a.detach().requires_grad_()
        c = score(a)
        seen.append(c.item())
        ((c - target) ** 2).sum().backward()  # type: ignore[no-untyped-call]
        assert a.grad is not None
        a = a - step * a.grad
    return [*seen, score(a).item()], a[0].detach()


@pytest.mark.parametrize("target", [0.0, 0.5, 1.0])
def test_it_is_algorithm_2(plane: Any, target: float) -> None:
    score, _, x, _ = plane
    got = walk(score, x, target=target, steps=30)
    for k in range(len(x)):
        trace, end = walk_as_printed(score, x[k], target, 30, 0.5)
        assert_close(got.x[k], end)
        assert_close(got.trace[:, k], torch.tensor(trace, dtype=torch.float64))
    assert_close(got.c, score(got.x))
    assert_close(got.trace[-1], got.c)


def test_no_steps_change_nothing_and_nothing_else_is_ever_changed(digits: Digits) -> None:
    still = walk(digits.score(), digits.first, target=0, steps=0, frames=2)
    assert torch.equal(still.x, digits.first)
    assert still.trace.shape == (1, 40)
    assert torch.equal(still.frames[0], digits.first)
    assert still.length.eq(0).all()
    assert still.steps.eq(0).all()
    before = {k: v.clone() for k, v in digits.model.state_dict().items()}
    a, b = digits.first.clone(), digits.second.clone()
    walk(digits.score(), digits.first, target=0, steps=5)
    to_tie(digits.score(), digits.first)
    assert torch.equal(a, digits.first)
    assert torch.equal(b, digits.second)
    assert all(torch.equal(v, before[k]) for k, v in digits.model.state_dict().items())
    assert all(p.grad is None for p in digits.model.parameters())
    e = digits.model.encode(digits.first)
    end = walk(lambda e1: digits.model.compare(e1, digits.model.encode(digits.second)), e, target=0, steps=0)
    assert torch.equal(digits.model.decode(end.x), digits.model.decode(e))


@settings(deadline=None, max_examples=25)
@given(
    target=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    step=st.floats(0.05, 2),
    steps=st.integers(1, 12),
    unit=st.booleans(),
    damping=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_on_a_generalised_linear_model_every_walk_is_straight(
    target: float, step: float, steps: int, unit: bool, damping: float, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(12, generator=g, dtype=torch.float64) / 3
    x = torch.rand(4, 12, generator=g, dtype=torch.float64)
    got = walk(linear(w), x, target=target, steps=steps, step=step, unit=unit, damping=damping)
    change = got.x - x
    along = (change @ w / w.norm())[:, None] * w / w.norm()
    assert_close(change, along, atol=1e-9, rtol=1e-9)
    if not damping:
        assert got.turned.max() < 1e-5
    assert (got.length >= norm(change) - 1e-9).all()


@pytest.mark.parametrize(("rate", "kind"), [(0.6, "monotone"), (1.5, "to and fro"), (2.5, "apart")])
def test_on_a_linear_tail_the_error_shrinks_by_the_known_factor(rate: float, kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    u, v, e1, e2 = torch.randn(4, 3, 5, generator=g, dtype=torch.float64)
    u, v = u[:1], v[:1]
    step = rate / (2 * float(u.square().sum()))

    def score(e: Tensor) -> Tensor:
        c: Tensor = (e * u).sum(1) + (e2 * v).sum(1)
        return c

    got = walk(score, e1, target=0.5, steps=6, step=step)
    error = got.trace - 0.5
    assert_close(error[1:], (1 - rate) * error[:-1])
    assert ((error[1:].abs() <= error[:-1].abs()).all()) == (kind != "apart")
    assert ((error[1:] * error[:-1] < 0).all()) == (kind != "monotone")
    assert (
        degrees(got.x - e1, u.expand_as(e1)).remainder(180).min(180 - degrees(got.x - e1, u.expand_as(e1))).max() < 1e-5
    )
    assert got.turned.max() < 1e-5  # a step back lies on the same line


@pytest.mark.parametrize("target", [0.0, 0.5, 1.0])
def test_the_error_falls_with_every_small_step(digits: Digits, target: float) -> None:
    error = (walk(digits.score(), digits.first, target=target, steps=60, step=0.1).trace - target).abs()
    assert (error[1:] <= error[:-1] + 1e-6).all()


def test_it_reaches_the_tie_and_nearly_the_ends(digits: Digits) -> None:
    score = digits.score()
    ends = {t: walk(score, digits.first, target=t, steps=BASE, step=RIGHT) for t in (0.0, 0.5, 1.0)}
    assert (ends[0.5].c - 0.5).abs().max() < 1e-3
    assert ends[0.0].c.mean() < 0.1
    assert ends[1.0].c.mean() > 0.9
    # on the way down a pair above the tie passes it, so the end is farther; likewise up
    down, up = ends[0.5].trace[0] > 0.5, ends[0.5].trace[0] < 0.5
    to = {t: norm(end.x - digits.first) for t, end in ends.items()}
    assert (to[0.5] <= to[0.0] + 1e-4)[down].all()
    assert (to[0.5] <= to[1.0] + 1e-4)[up].all()
    assert down.sum() > 10
    assert up.sum() > 10


def test_what_the_model_ignores_never_moves() -> None:
    torch.manual_seed(0)
    first = nn.Linear(64, 16)
    blind = torch.zeros(64, dtype=torch.bool)
    blind[20:41] = True
    with torch.no_grad():
        first.weight[:, blind] = 0
    model = Siamese(nn.Sequential(nn.Flatten(), first, nn.Tanh()), Tail(16)).requires_grad_(False)
    a, b = torch.rand(2, 8, 1, 8, 8)

    def score(x: Tensor) -> Tensor:
        return model.compare(model.encode(x), model.encode(b))

    tied = to_tie(score, a, at=score(a) + 0.01)
    assert tied.found.all()
    for end in (walk(score, a, target=1.0, steps=20).x, tied.x, one_step(score, a, target=0, length=1).x):
        change = (end - a).flatten(1)
        assert torch.equal(change[:, blind], torch.zeros(8, 21))
        assert change[:, ~blind].abs().max() > 0
    assert not sensitive(score, tied.x).flatten(1)[:, blind].any()
    assert sensitive(score, tied.x).flatten(1)[:, ~blind].float().mean() > 0.99


def test_a_planted_patch_holds_the_change() -> None:
    """The value is the brightness of one patch, 9 of 64 pixels; after training the change is there."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(600, 1, 8, 8, generator=g)
    patch = torch.zeros(1, 8, 8, dtype=torch.bool)
    patch[:, 2:5, 3:6] = True
    values = x[:, patch].mean(1)
    with torch.random.fork_rng():
        model = trained(x, 9 * (values - values.min()) / (values.max() - values.min()), steps=120)
    e2 = model.encode(x[100:120])
    end = walk(lambda a: model.compare(model.encode(a), e2), x[:20], target=0.0, steps=60)
    change = (end.x - x[:20]).abs()
    share = change[:, patch].sum() / change.sum()
    assert share > 3 * 9 / 64


def test_someone_else_still_reads_the_same_digit(digits: Digits) -> None:
    score = digits.score()
    end = walk(score, digits.first, target=0.5, steps=BASE, step=RIGHT)
    beyond = walk(score, digits.first, target=torch.where(end.trace[0] > 0.5, 0.45, 0.55), steps=BASE, step=RIGHT)
    kept_answer = ((beyond.c > 0.5) == (end.trace[0] > 0.5)).float().mean().item()
    kept_reading = (digits.read(beyond.x) == digits.read(digits.first)).mean()
    assert kept_answer < 0.1
    assert kept_reading > 0.7


def test_a_walk_of_the_embedding_moves_what_is_decoded_the_right_way(digits: Digits) -> None:
    e1, e2 = digits.model.encode(digits.first), digits.model.encode(digits.second)

    def score(e: Tensor) -> Tensor:
        return digits.model.compare(e, e2)

    start = digits.read(digits.model.decode(e1))
    for target, sign in ((0.0, -1), (1.0, 1)):
        end = walk(score, e1, target=target, step=5, steps=80)
        moved = sign * (digits.read(digits.model.decode(end.x)) - start)
        assert (moved >= 0).mean() >= 0.9
        assert moved.mean() > 1.5
        between = degrees(end.x - e1, e2 - e1)
        assert between.median() > 30  # it is no walk towards the partner


def test_a_model_of_shuffled_values_moves_nowhere_in_particular(digits: Digits) -> None:
    def between(model: Siamese) -> float:
        """How much higher the digits are that are decoded after a walk up than after a walk down."""
        e1, e2 = model.encode(digits.first), model.encode(digits.second)
        down, up = (walk(lambda e: model.compare(e, e2), e1, target=t, step=5, steps=80).x for t in (0.0, 1.0))
        return float((digits.read(model.decode(up)) - digits.read(model.decode(down))).mean())

    assert between(digits.shuffled) < between(digits.model) / 2


def test_settings_that_are_numbers_or_one_number_each(plane: Any) -> None:
    score, _, x, _ = plane
    targets, paces = torch.linspace(0, 1, 6), torch.linspace(0.1, 1, 6)
    together = walk(score, x, target=targets, step=paces, steps=9)
    for k in range(6):
        alone = walk(score, x[k : k + 1], target=float(targets[k]), step=float(paces[k]), steps=9)
        assert_close(together.x[k : k + 1], alone.x, rtol=1e-6, atol=1e-7)


def test_who_is_near_enough_stops_and_keeps_its_place(plane: Any) -> None:
    score, _, x, _ = plane
    got = walk(score, x, target=0.5, steps=400, tolerance=0.02, step=0.3)
    free = walk(score, x, target=0.5, steps=400, step=0.3)
    assert got.reached.all()
    assert ((got.c - 0.5).abs() <= 0.02).all()
    assert len(set(got.steps.tolist())) > 1
    for k, taken in enumerate(got.steps.tolist()):
        assert_close(got.c[k], free.trace[taken, k])  # as far as the walk that does not stop had come by then
        assert taken == 0 or (free.trace[taken - 1, k] - 0.5).abs() > 0.02
        assert (got.trace[taken:, k] == got.c[k]).all()


def test_who_has_arrived_leaves_the_batch_where_partners_can_go_along(digits: Digits) -> None:
    asked: list[int] = []

    def compare(a: Tensor, e2: Tensor) -> Tensor:
        asked.append(len(a))
        return digits.model.compare(digits.model.encode(a), e2)

    e2 = digits.model.encode(digits.second)
    thinned = walk(Against(compare, e2), digits.first, target=0.5, tolerance=0.01, damping=0.2, momentum="classic")
    whole = walk(digits.score(), digits.first, target=0.5, tolerance=0.01, damping=0.2, momentum="classic")
    assert asked[0] == 40
    assert asked[-1] < 10
    assert asked == sorted(asked, reverse=True)
    for name in ("x", "c", "trace", "length", "steps", "reached"):
        assert_close(getattr(thinned, name), getattr(whole, name), atol=1e-4, rtol=1e-4)


def test_unit_steps_have_the_given_length_and_stay_on_the_line_of_the_gradient(digits: Digits) -> None:
    got = walk(digits.score(), digits.first, target=0.0, steps=7, step=0.05, unit=True)
    assert_close(got.length, torch.full((40,), 0.35))
    once = walk(digits.score(), digits.first, target=0.0, steps=1, step=0.4, unit=True)
    assert_close(once.x, one_step(digits.score(), digits.first, target=0.0, length=0.4).x)


def test_straightness_is_at_most_one_and_one_for_a_single_step(digits: Digits) -> None:
    many = walk(digits.score(), digits.first, target=0.0, steps=60)
    assert (norm(many.x - digits.first) <= many.length * (1 + 1e-5)).all()
    assert (many.turned > 1).all()
    assert (many.turned <= 180).all()
    once = walk(digits.score(), digits.first, target=0.0, steps=1)
    assert_close(norm(once.x - digits.first), once.length, rtol=1e-4, atol=1e-6)
    assert once.turned.max() == 0


def test_turning_is_the_largest_angle_with_the_first_step() -> None:
    """A score whose gradient turns: c = x0^2 / 2 + x1, from (1, 0) towards a target far below."""
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    got = walk(lambda a: a[:, 0] ** 2 / 2 + a[:, 1], x, target=-9.0, steps=3, step=0.02)
    at, steps = x.clone(), []
    for _ in range(3):
        c = at[:, 0] ** 2 / 2 + at[:, 1]
        move = -0.02 * 2 * (c + 9) * torch.stack([at[:, 0], torch.ones(1, dtype=at.dtype)], 1)
        steps.append(move[0].numpy())
        at = at + move
    angles = [np.degrees(np.arccos(s @ steps[0] / np.linalg.norm(s) / np.linalg.norm(steps[0]))) for s in steps[1:]]
    assert got.turned.item() == pytest.approx(max(angles))
    assert got.length.item() == pytest.approx(sum(np.linalg.norm(s) for s in steps))


def test_frames_are_the_walk_at_even_intervals(digits: Digits) -> None:
    got = walk(digits.score(), digits.first, target=0.0, steps=20, frames=5)
    assert got.frame_steps == (0, 5, 10, 15, 20)
    for frame, steps in zip(got.frames, got.frame_steps, strict=True):
        assert_close(frame, walk(digits.score(), digits.first, target=0.0, steps=steps).x)
    early = walk(digits.score(), digits.first, target=0.5, steps=500, tolerance=0.01, frames=3)
    assert early.steps.max() < 500
    assert torch.equal(early.frames[-1], early.x)
    assert walk(digits.score(), digits.first, target=0.0, steps=2, frames=9).frame_steps == (0, 1, 2)


def test_a_box_is_kept_and_it_bends_the_walk(digits: Digits) -> None:
    boxed = walk(digits.score(), digits.first, target=0.0, steps=80, box=(0.0, 1.0))
    assert boxed.x.min() >= 0
    assert boxed.x.max() <= 1
    free = walk(digits.score(), digits.first, target=0.0, steps=80)
    assert free.x.min() < 0
    again = one_step(digits.score(), digits.first, target=0.0, length=norm(free.x - digits.first))
    cut = one_step(digits.score(), digits.first, target=0.0, length=norm(boxed.x - digits.first), box=(0.0, 1.0))
    assert (
        degrees(boxed.x - digits.first, cut.x - digits.first).mean()
        > degrees(free.x - digits.first, again.x - digits.first).mean()
    )
    tied = to_tie(digits.score(), digits.first, box=(0.0, 1.0))
    assert tied.x.min() >= 0
    assert tied.x.max() <= 1


# One step


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), length=st.floats(0, 3), target=st.sampled_from([0.0, 0.5, 1.0]))
def test_one_step_is_as_long_as_it_should_be_along_the_gradient(seed: int, length: float, target: float) -> None:
    g = torch.Generator().manual_seed(seed)
    w1, w2 = torch.randn(2, 10, generator=g, dtype=torch.float64)
    x = torch.rand(5, 10, generator=g, dtype=torch.float64)

    def score(a: Tensor) -> Tensor:
        c: Tensor = ((a @ w1).tanh() + 0.3 * a @ w2).sigmoid()
        return c

    got = one_step(score, x, target=target, length=length)
    assert_close(norm(got.x - x), torch.full((5,), length, dtype=torch.float64))
    assert_close(got.length, norm(got.x - x))
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad((score(at) - target).square().sum(), at)
    assert_close(got.x - x, -length * slope / slope.norm(dim=1, keepdim=True), atol=1e-9, rtol=1e-9)


def test_the_map_of_one_step_is_the_gradient_for_every_target(digits: Digits) -> None:
    score, x = digits.score(), digits.first
    down, up = (one_step(score, x, target=t, length=2.0).x - x for t in (0.0, 1.0))
    assert_close(down, -up)
    at = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(score(at).sum(), at)
    plain = g.abs() / g.abs().amax((1, 2, 3), keepdim=True)
    for change in (down, up):
        assert_close(change.abs() / change.abs().amax((1, 2, 3), keepdim=True), plain, atol=1e-5, rtol=1e-5)
    above = score(x) > 0.5
    middle = one_step(score, x, target=0.5, length=2.0).x - x
    assert_close(middle[above], down[above])
    assert_close(middle[~above], up[~above])


def test_at_equal_length_many_steps_come_closer_and_one_step_of_a_walk_is_one_step(digits: Digits) -> None:
    score, x = digits.score(), digits.first
    many = walk(score, x, target=0.0, steps=60)
    once = one_step(score, x, target=0.0, length=norm(many.x - x))
    assert many.c.mean() < once.c.mean()
    first = walk(score, x, target=0.0, steps=1)
    assert_close(first.x, one_step(score, x, target=0.0, length=norm(first.x - x)).x)


def test_nothing_moves_where_the_answer_is_the_target(plane: Any) -> None:
    score, _, x, _ = plane
    at = score(x)
    once = one_step(score, x, target=at, length=2.0)
    assert torch.equal(once.x, x)
    assert once.reached.all()
    assert once.steps.eq(0).all()
    assert torch.equal(walk(score, x, target=at).x, x)
    tied = to_tie(score, x, at=at)
    assert torch.equal(tied.x, x)
    assert tied.found.all()
    assert tied.distance.eq(0).all()


def test_the_gradient_of_a_saturated_model_still_has_a_direction() -> None:
    w = torch.randn(20, generator=torch.Generator().manual_seed(0))
    x = w[None] * 55 / w.square().sum()  # sigmoid(-55): slopes near 1e-24, whose squares are 0 in float32
    got = one_step(linear(-w), x, target=1.0, length=1.0)
    assert_close(got.x - x, -w[None] / w.norm(), atol=1e-4, rtol=1e-4)


# Mid-point


def test_both_forms_reach_the_exact_tie_of_a_generalised_linear_model(plane: Any) -> None:
    score, w, x, z = plane
    exact = x - (z / w.square().sum()).view(-1, 1, 1, 1) * w
    tied = to_tie(score, x)
    assert tied.found.all()
    assert_close(tied.x, exact, atol=1e-6, rtol=1e-6)
    assert_close(tied.distance, z.abs() / w.norm(), atol=1e-6, rtol=1e-6)
    assert_close(walk(score, x, target=0.5, steps=150, step=2).x, exact, atol=1e-6, rtol=1e-6)
    at = x.clone().requires_grad_()
    assert_close(tied.slope, norm(torch.autograd.grad(score(at).sum(), at)[0]))


def test_the_search_finds_what_a_root_finder_finds(digits: Digits) -> None:
    score, x = digits.score(), digits.first
    tied = to_tie(score, x)
    at = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(score(at).sum(), at)
    c = score(x)
    way = -(c - 0.5).sign().view(-1, 1, 1, 1) * g / norm(g).view(-1, 1, 1, 1)
    assert tied.found.float().mean() > 0.8
    for k in tied.found.nonzero()[:10, 0].tolist():

        def along(q: float, k: int = k) -> float:
            return float(score(x + q * way)[k]) - 0.5

        assert tied.distance[k].item() == pytest.approx(brentq(along, 0, 1.01 * tied.distance[k].item()), rel=1e-3)


def test_the_answer_turns_at_the_tie_and_not_before(digits: Digits) -> None:
    score, x = digits.score(), digits.first
    tied = to_tie(score, x)
    side, found = score(x) > 0.5, tied.found
    change = tied.x - x
    assert ((tied.c - 0.5).abs() < 1e-4)[found].all()
    assert ((score(x + 1.001 * change) > 0.5) != side)[found].all()
    for part in (0.2, 0.5, 0.9, 0.999):
        assert ((score(x + part * change) > 0.5) == side)[found].all()


def test_of_several_crossings_the_nearest_is_found() -> None:
    """c = 1/2 + cos(x) / 10 crosses the tie at pi/2, 3 pi/2, ..."""
    x = torch.tensor([[0.5], [0.2], [-1.0], [4.0]], dtype=torch.float64)
    tied = to_tie(lambda a: 0.5 + a[:, 0].cos() / 10, x)
    assert_close(tied.x, torch.tensor([[1.0], [1.0], [-1.0], [3.0]], dtype=torch.float64) * torch.pi / 2)


def test_hardly_any_random_change_of_that_length_turns_the_answer(digits: Digits) -> None:
    score, x = digits.score(), digits.first
    tied = to_tie(score, x)
    far = tied.found & ((score(x) - 0.5).abs() > 0.05)
    assert far.sum() > 20
    g, turned = torch.Generator().manual_seed(0), []
    for _ in range(100):
        noise = torch.randn(x.shape, generator=g)
        noise = noise / norm(noise).view(-1, 1, 1, 1) * tied.distance.nan_to_num(posinf=0).view(-1, 1, 1, 1)
        turned.append(((score(x + noise) > 0.5) != (score(x) > 0.5))[far])
    assert torch.stack(turned).float().mean() < 0.02


def test_the_tie_is_not_much_farther_than_the_nearest_boundary_known(digits: Digits) -> None:
    score, x = digits.score(), digits.first
    e2 = digits.model.encode(digits.second)

    def two_classes(
        pair: Tensor,
    ) -> Tensor:  # the partner's embedding travels with the image: inputs may leave the batch
        image, partner = pair[:, :64].view(-1, 1, 8, 8), pair[:, 64:]
        odds = digits.model.compare(digits.model.encode(image), partner).logit() / 2
        return torch.stack([-odds, odds], 1)

    c = score(x)
    held = torch.cat([torch.ones(64), torch.zeros(10)])
    pair = torch.cat([x.flatten(1), e2], 1)
    best = minimal_norm(
        two_classes,
        pair,
        (c > 0.5).long(),
        norm="l2",
        steps=60,
        mask=held.expand_as(pair),
        bounds=(-100, 100),
        step=0.005,
    )
    tied = to_tie(score, x)
    both = tied.found & best.success
    assert both.float().mean() > 0.8
    ratio = tied.distance[both] / norm(best.x - pair)[both]
    assert ratio.median() < 1.3
    assert ratio.max() < 3
    assert ratio.min() > 0.9


def test_a_score_that_never_crosses_is_not_found() -> None:
    def flat(a: Tensor) -> Tensor:
        return 0.6 + 0.3 * a[:, 0].sigmoid()  # between 0.6 and 0.9

    x = torch.zeros(3, 4)
    x[2, 0] = -300  # no gradient at all
    tied = to_tie(flat, x)
    assert not tied.found.any()
    assert tied.distance.isinf().all()
    assert torch.equal(tied.x, x)
    assert_close(tied.c, flat(x))
    crossing = to_tie(flat, x, at=torch.tensor([0.5, 0.7, 0.7]))
    assert crossing.found.tolist() == [False, True, False]
    boxed = to_tie(lambda a: a.sum(1), torch.full((1, 4), 0.9), at=3.9 + 0.2, box=(0.0, 1.0))
    assert not boxed.found.any()  # four values of at most 1


def test_a_tie_may_lie_anywhere_and_a_mask_holds(plane: Any) -> None:
    score, w, x, z = plane
    mask = torch.zeros(1, 8, 8)
    mask[:, :4] = 1
    tied = to_tie(score, x, at=0.7, mask=mask)
    assert tied.found.all()
    assert_close(tied.c, torch.full((6,), 0.7, dtype=torch.float64))
    assert torch.equal(tied.x[:, :, 4:], x[:, :, 4:])
    wanted = (z - np.log(0.7 / 0.3)).abs() / (w * mask).norm()
    assert_close(tied.distance, wanted, atol=1e-6, rtol=1e-6)


# Algorithm 3


def advanced_as_printed(score: Score, x: Tensor, target: float, steps: int, damping: float, momentum: str) -> Tensor:
    a, before = x.clone(), torch.zeros_like(x)
    for _ in range(steps):
        a = a.detach().requires_grad_()
        (d,) = torch.autograd.grad((score(a) - target).square().sum(), a)
        new = a - 0.5 * d + before
        before = -damping * d if momentum == "printed" else damping * (new - a)
        a = new
    return a.detach()


@pytest.mark.parametrize("momentum", ["printed", "classic"])
def test_both_momenta_are_what_they_say(plane: Any, momentum: Any) -> None:
    score, _, x, _ = plane
    got = walk(score, x, target=0.0, steps=15, damping=0.4, momentum=momentum)
    assert_close(got.x, advanced_as_printed(score, x, 0.0, 15, 0.4, momentum))
    plain = walk(score, x, target=0.0, steps=15)
    assert (got.c < plain.c).all()  # it carries farther


def test_without_forces_damping_or_mask_it_is_algorithm_2(digits: Digits) -> None:
    plain = walk(digits.score(), digits.first, target=0.0, steps=30)
    advanced = walk(
        digits.score(),
        digits.first,
        target=0.0,
        steps=30,
        penalties=Penalties(tv=0, sparse=0, close=0),
        damping=0.0,
        momentum="classic",
        mask=torch.ones(1, 8, 8),
    )
    assert_close(plain.x, advanced.x)


def test_the_printed_count_does_nothing_and_its_substitutes_do(digits: Digits) -> None:
    score, x = digits.score(), digits.first
    plain = walk(score, x, target=0.0, steps=100)
    printed = walk(score, x, target=0.0, steps=100, penalties=Penalties(sparse=1e6, sparse_form="printed"))
    assert_close(plain.x, printed.x)

    def changed(end: Tensor) -> float:
        return ((end - x).abs() > 1e-3).float().mean().item()

    smooth = walk(score, x, target=0.0, steps=100, penalties=Penalties(sparse=0.3))
    proximal = walk(score, x, target=0.0, steps=100, penalties=Penalties(sparse=0.3, sparse_form="proximal"))
    assert changed(smooth.x) < 0.97 * changed(plain.x)
    assert changed(proximal.x) < 0.8 * changed(plain.x)
    assert (proximal.x == x).float().mean() > (plain.x == x).float().mean() + 0.2  # exact zeros


def test_each_force_trades_the_target_for_what_it_wants(digits: Digits) -> None:
    score, x = digits.score(), digits.first

    def tried(make: Callable[[float], Penalties], forces: tuple[float, ...]) -> list[Any]:
        return [walk(score, x, target=0.0, steps=100, penalties=make(force)) for force in forces]

    smoothed = tried(lambda f: Penalties(tv=64 * f), (0, 1e-3, 1e-2))
    shortened = tried(lambda f: Penalties(close=f), (0, 1, 10))
    rough = [
        float(((end.x - x)[..., 1:, :] - (end.x - x)[..., :-1, :]).abs().sum() / norm(end.x - x).sum())
        for end in smoothed
    ]
    assert rough[0] > 1.2 * rough[1] > 1.4 * rough[2]
    sizes = [norm(end.x - x).mean().item() for end in shortened]
    assert sizes[0] > 1.1 * sizes[1] > 1.2 * sizes[2]
    for ends in (smoothed, shortened):
        missed = [end.c.mean().item() for end in ends]
        assert missed == sorted(missed)
        assert missed[2] > missed[0] + 0.02


def test_the_first_step_is_the_same_under_every_force(digits: Digits) -> None:
    plain = walk(digits.score(), digits.first, target=0.0, steps=1)
    for penalties in (
        Penalties(tv=50),
        Penalties(sparse=50),
        Penalties(sparse=50, sparse_form="printed"),
        Penalties(close=50),
    ):
        assert_close(walk(digits.score(), digits.first, target=0.0, steps=1, penalties=penalties).x, plain.x)


def test_nothing_outside_the_mask_changes(digits: Digits) -> None:
    score, x = digits.score(), digits.first
    mask = torch.zeros(1, 8, 8)
    mask[:, 2:6, 2:6] = 1
    outside = ~mask.bool()
    hard = Penalties(tv=0.1, sparse=0.1, sparse_form="proximal", close=0.1)
    for end in (
        walk(
            score, x, target=0.0, steps=20, mask=mask, penalties=hard, damping=0.5, momentum="classic", box=(0.2, 0.8)
        ).x,
        walk(score, x, target=0.0, mask=mask, unit=True, step=0.1, steps=20).x,
        one_step(score, x, target=0.0, length=1.0, mask=mask).x,
    ):
        assert torch.equal(end[:, outside], x[:, outside])
        assert not torch.equal(end, x)
    assert_close(norm(one_step(score, x, target=0.0, length=1.0, mask=mask).x - x), torch.ones(40))
    assert torch.equal(walk(score, x, target=0.0, steps=20, mask=torch.zeros(1, 8, 8), damping=0.5).x, x)


# Bad input


def test_bad_settings_and_scores_are_refused_in_one_line(plane: Any) -> None:
    score, _, x, _ = plane
    with pytest.raises(AssayError, match=r"frames 0 or at least 2; got steps=3, tolerance=0.0, damping=0.0, frames=1"):
        walk(score, x, target=0, steps=3, frames=1)
    with pytest.raises(AssayError, match="step above 0, got -0.5"):
        walk(score, x, target=0, step=-0.5)
    with pytest.raises(ShapeError, match=r"target has shape \(4,\) for 6 inputs"):
        walk(score, x, target=torch.zeros(4))
    with pytest.raises(ShapeError, match=r"mask has shape \(1, 7, 8\) for inputs \(6, 1, 8, 8\)"):
        walk(score, x, target=0, mask=torch.ones(1, 7, 8))
    with pytest.raises(ShapeError, match=r"gave \(6, 1\) for 6 inputs; it wants one number each, \(6,\)"):
        walk(lambda a: score(a)[:, None], x, target=0)
    with pytest.raises(AssayError, match="no gradient"):
        to_tie(lambda a: score(a).detach(), x)
    with pytest.raises(AssayError, match="score of pair 0 became nan; check the model, or take a smaller step"):
        walk(lambda a: a.flatten(1).square().sum(1).square(), x, target=0, step=1e9)
