from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.methods.attack.ball import Norm, norms
from assay.methods.attack.universal import answers, error_rate, random_signs, success_rate, under, universal

from .conftest import Halves, Task

NORMS: tuple[tuple[Norm, float], ...] = (("linf", 0.2), ("l2", 1.2))


@pytest.mark.parametrize("as_published", [False, True])
def test_linear_model_gives_the_closed_form(halves: Halves, as_published: bool) -> None:
    """All inputs of one class, far from the box: the best change for one is the best for all."""
    y = torch.zeros(len(halves.x), dtype=torch.long)

    def made(norm: Norm) -> Tensor:
        return universal(halves.model, halves.x, y, norm=norm, radius=0.1, steps=40, as_published=as_published).delta

    assert_close(made("linf"), -0.1 * halves.w.sign())
    assert_close(made("l2"), -0.1 * halves.w / halves.w.norm(), rtol=0, atol=1e-5)


def test_as_published_is_the_printed_loop(digits: Task) -> None:
    """Written naively: sign steps on the sum of plain cross-entropies, the last change kept."""
    x, y, radius, step = digits.train_x[:60], digits.train_y[:60], 0.15, 0.02
    delta = torch.zeros(64)
    for _ in range(12):
        clipped = (x + delta).clamp(0, 1).requires_grad_()
        total = nn.functional.cross_entropy(digits.model(clipped), y, reduction="sum")
        (slope,) = torch.autograd.grad(total, clipped)
        delta = (delta + step * slope.sum(0).sign()).clamp(-radius, radius)
    got = universal(digits.model, x, y, radius=radius, steps=12, batch=60, step=step, as_published=True)
    assert_close(got.delta, delta, rtol=0, atol=1e-6)
    assert got.rate == pytest.approx(error_rate(digits.model, x, y, delta))
    assert len(got.loss) == 12
    assert got.loss[-1] > got.loss[0]


def test_inputs_count_as_in_the_cross_entropy_of_logits_at_one_spread(digits: Task) -> None:
    """One step in l2 is the direction of sum_i s_i grad CE(4 z_i / s_i): those near the edge and beyond count most."""
    x, y = digits.train_x[:80].double(), digits.train_y[:80]
    model = copy.deepcopy(digits.model).double()
    at = x.clone().requires_grad_()
    z = model(at)
    s = z.detach().std(1, correction=0)
    total = (s * nn.functional.cross_entropy(4 * z / s[:, None], y, reduction="none")).sum()
    slope = torch.autograd.grad(total, at)[0].sum(0)
    got = universal(model, x, y, norm="l2", radius=0.4, steps=1, step=0.3, batch=80)
    assert_close(got.delta, 0.3 * slope / slope.norm(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_inside_the_ball_and_the_box(digits: Task, norm: Norm, radius: float) -> None:
    delta = universal(digits.model, digits.train_x, digits.train_y, norm=norm, radius=radius, steps=20, batch=50).delta
    assert float(norms(delta[None].double(), norm)) <= radius
    changed = under(digits.x, delta)
    assert ((changed >= 0) & (changed <= 1)).all()
    assert (norms((changed - digits.x).double(), norm) <= radius + 1e-6).all()
    assert all(p.grad is None for p in digits.model.parameters())


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_made_on_some_inputs_it_breaks_others_and_noise_does_not(digits: Task, norm: Norm, radius: float) -> None:
    rng = torch.Generator().manual_seed(1)
    errors = []
    for size in (0.5 * radius, radius, 2 * radius):
        made = universal(digits.model, digits.train_x, digits.train_y, norm=norm, radius=size, steps=30, batch=100)
        errors.append(error_rate(digits.model, digits.x, digits.y, made.delta))
        noise = random_signs(digits.x, norm=norm, radius=size, rng=rng)
        assert errors[-1] > error_rate(digits.model, digits.x, digits.y, noise[0])
        assert errors[-1] > float((digits.model(under(digits.x, noise)).argmax(1) != digits.y).double().mean()) + 0.02
        assert abs(made.rate - errors[-1]) < 0.15
    assert errors == sorted(errors)
    assert errors[-1] > 0.6


def test_towards_every_class(digits: Task) -> None:
    nothing = torch.zeros(64)
    rates = []
    for c in range(10):
        made = universal(digits.model, digits.train_x, digits.train_y, radius=0.3, target=c, steps=30, batch=100)
        rates.append(success_rate(digits.model, digits.x, made.delta, c))
        assert rates[-1] > success_rate(digits.model, digits.x, nothing, c) + 0.1
    assert sum(rates) / 10 > 0.5


HEADS = {
    "times 100": lambda z: 100 * z,
    "times 0.01": lambda z: 0.01 * z,
    "softmax": lambda z: torch.softmax(z, 1),
    "softmax of times 100": lambda z: torch.softmax(100 * z, 1),
}


@pytest.mark.parametrize("head", HEADS)
def test_scale_and_head_do_not_matter(digits: Task, head: str) -> None:
    def model(x: Tensor) -> Tensor:
        return HEADS[head](digits.model(x))

    plain, other = (
        universal(m, digits.train_x, digits.train_y, radius=0.15, steps=20, batch=100).delta
        for m in (digits.model, model)
    )
    found = error_rate(digits.model, digits.x, digits.y, plain)
    assert 0.2 < found < 0.9
    assert abs(error_rate(digits.model, digits.x, digits.y, other) - found) <= 0.01


class Backwards(torch.autograd.Function):
    """The identity with a gradient that points the wrong way."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:  # type: ignore[override]
        return -g


def test_a_gradient_that_misleads_costs_nothing(digits: Task) -> None:
    def model(x: Tensor) -> Tensor:
        return digits.model(Backwards.apply(x))

    x, y = digits.train_x[:200], torch.full((200,), 3)  # strange labels, so that there is an error to lose
    clean = error_rate(digits.model, x, y, torch.zeros(64))
    last = universal(model, x, y, radius=0.2, steps=10, as_published=True)
    assert last.rate < clean - 0.1
    best = universal(model, x, y, radius=0.2, steps=10)
    assert best.rate >= clean
    assert error_rate(digits.model, x, y, best.delta) == best.rate  # the judges are all of x: batch is 200


def test_more_restarts_are_never_worse_on_the_judges(digits: Task) -> None:
    x, y = digits.train_x[:200], digits.train_y[:200]  # all of them are judges: batch is 200
    for as_published in (False, True):
        rates = [universal(digits.model, x, y, radius=0.1, steps=8, restarts=n, as_published=as_published).rate
                 for n in (1, 2, 4)]  # fmt: skip
        assert rates == sorted(rates)
    assert len(universal(digits.model, x, y, radius=0.1, steps=8, restarts=3).loss) == 24


def test_every_input_is_seen_before_any_is_seen_again(digits: Task) -> None:
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        seen.append(x.detach())
        return digits.model(x)

    x = digits.train_x[:35]
    universal(model, x, digits.train_y[:35], radius=0.0, steps=7, batch=10)
    for rows in (torch.cat(seen[:7])[:35], torch.cat(seen[:7])[35:70]):
        assert {tuple(r.tolist()) for r in rows} == {tuple(r.tolist()) for r in x}


def test_radius_zero_and_no_steps_change_nothing(digits: Task) -> None:
    for settings in ({"radius": 0.0, "steps": 5}, {"radius": 0.3, "steps": 0}):
        made = universal(digits.model, digits.x, digits.y, **settings)  # type: ignore[arg-type]
        assert torch.equal(made.delta, torch.zeros(64))
    wrong = float((digits.model(digits.x).argmax(1) != digits.y).double().mean())
    assert error_rate(digits.model, digits.x, digits.y, made.delta) == wrong


def test_the_same_seed_gives_the_same_change(digits: Task) -> None:
    one, two, other = (
        universal(
            digits.model, digits.x, digits.y, radius=0.1, steps=5, batch=20, rng=torch.Generator().manual_seed(seed)
        ).delta
        for seed in (3, 3, 4)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_rates_are_counts(digits: Task) -> None:
    delta = torch.full((64,), 0.3)
    said = torch.stack([digits.model((row + delta).clamp(0, 1)[None])[0].argmax() for row in digits.x])
    got = answers(digits.model, digits.x, delta, batch=7)
    with torch.no_grad():
        best = digits.model((digits.x + delta).clamp(0, 1)).topk(2).values
    clear = best[:, 0] - best[:, 1] > 1e-4  # no tie
    assert clear.float().mean() > 0.9
    assert torch.equal(got[clear], said[clear])
    loose = float((~clear).float().mean()) + 1e-6
    wrong, fives = float((said != digits.y).float().mean()), float((said == 5).float().mean())
    assert error_rate(digits.model, digits.x, digits.y, delta) == pytest.approx(wrong, abs=loose)
    assert success_rate(digits.model, digits.x, delta, 5) == pytest.approx(fives, abs=loose)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_noise_is_as_large_as_it_may_be(norm: Norm, rng: torch.Generator) -> None:
    noise = random_signs(torch.zeros(500, 3, 4), norm=norm, radius=0.7, rng=rng)
    assert_close(norms(noise, norm), torch.full((500,), 0.7))
    assert abs(float(noise.sign().mean())) < 0.05
    assert len(noise.abs().unique()) == 1


def test_what_cannot_be_done_is_refused_in_words(digits: Task) -> None:
    with pytest.raises(AssayError, match="got steps=-1, batch=200, restarts=1"):
        universal(digits.model, digits.x, digits.y, radius=0.1, steps=-1)
    with pytest.raises(AssayError, match="For 8-bit images pass x / 255"):
        universal(digits.model, (255 * digits.x).to(torch.uint8), digits.y, radius=0.1)
    with pytest.raises(AssayError, match="target 10 but the model has 10 classes"):
        universal(digits.model, digits.x, digits.y, radius=0.1, target=10)

    def sick(x: Tensor) -> Tensor:
        z = digits.model(x)
        bad = (x - digits.x[17]).abs().amax(1, keepdim=True) == 0
        return torch.where(bad, torch.nan, z)

    with pytest.raises(SubjectError, match="NaN for input 17"):
        universal(sick, digits.x, digits.y, radius=0.0, steps=40, batch=50)
