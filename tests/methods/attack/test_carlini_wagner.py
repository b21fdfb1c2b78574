from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.attack import carlini_wagner
from assay.methods.attack.ball import distance

from .conftest import Halves, Task, accuracy, assert_same_path


def test_linear_model_has_the_closed_form(halves: Halves) -> None:
    """delta = -min(c/2, m/||w||^2) w: the input breaks from c = 2 m / ||w||^2 on, and below half of that cannot."""
    shares = torch.tensor([0.0, 0.2, 0.45, 1.3, 4.0]).repeat_interleave(len(halves.x))
    x, y, nearest = halves.x.repeat(5, 1), halves.y.repeat(5), halves.margin.repeat(5) / halves.w.square().sum()
    c = shares * 2 * nearest
    got = carlini_wagner(halves.model, x, y, c=c, steps=400)
    reach = torch.minimum(c / 2, nearest)
    assert_close(got.x - x, -reach[:, None] * halves.w, rtol=0, atol=5e-3)
    assert torch.equal(got.success, shares > 1)


def test_c_zero_returns_the_input_to_the_bit(digits: Task) -> None:
    got = carlini_wagner(digits.model, digits.x, digits.y, c=0.0, steps=5)
    assert torch.equal(got.x, digits.x)
    assert torch.equal(got.success, digits.model(digits.x).argmax(1) != digits.y)


def test_search_finds_the_distance_to_the_boundary(halves: Halves) -> None:
    got = carlini_wagner(halves.model, halves.x, halves.y, search=6, steps=100)
    assert got.success.all()
    assert_close(got.distance.float(), halves.margin / halves.w.norm(), rtol=1e-2, atol=0)


def test_accuracy_falls_and_change_grows_with_c(digits: Task) -> None:
    n = len(digits.x)
    c = torch.tensor([0.0, 0.02, 0.2, 2.0]).repeat_interleave(n)
    got = carlini_wagner(digits.model, digits.x.repeat(4, 1), digits.y.repeat(4), c=c, steps=150)
    held = [accuracy(success) for success in got.success.split(n)]
    assert held == sorted(held, reverse=True)
    assert held[-1] < 0.02
    size = [distance.mean().item() for distance in got.distance.split(n)]
    assert size[0] < size[1] < size[2]


def test_saturated_background_can_move(rng: torch.Generator) -> None:
    """All features but one sit at a bound, and only they matter: as published, tanh has no slope there."""
    x = torch.cat([torch.zeros(3, 5), torch.full((3, 1), 0.5)], 1)

    def model(x: Tensor) -> Tensor:
        score = 0.5 - x[:, :5].sum(1)
        return torch.stack([score, torch.zeros_like(score)], 1)

    y = torch.zeros(3, dtype=torch.long)
    ours = carlini_wagner(model, x, y, c=5.0, steps=200)
    printed = carlini_wagner(model, x, y, c=5.0, steps=100, step=0.1, as_published=True)
    assert ours.success.all()
    assert_close(ours.distance, torch.full((3,), 0.5 / 5**0.5, dtype=torch.float64), rtol=0.02, atol=0)
    assert not printed.success.any()
    assert torch.equal(printed.x, x)


def test_inside_the_box_and_honest_with_both_switches(digits: Task) -> None:
    x, y = digits.x[:100], digits.y[:100]
    best = carlini_wagner(digits.model, x, y, c=1.0, steps=80)
    last = carlini_wagner(digits.model, x, y, c=1.0, steps=80, step=0.05, as_published=True)
    for got in (best, last):
        assert ((got.x >= 0) & (got.x <= 1)).all()
        assert torch.equal(got.success, digits.model(got.x).argmax(1) != y)
        assert_close(got.distance, distance(got.x, x, "l2"))
    assert best.success.sum() >= last.success.sum()


def test_search_does_not_mind_the_scale_of_the_logits(digits: Task) -> None:
    x, y = digits.x[:60], digits.y[:60]
    size = [
        carlini_wagner(lambda x: k * digits.model(x), x, y, search=4, steps=60).distance.mean().item()  # noqa: B023
        for k in (1.0, 100.0, 0.01)
    ]
    assert_close(size[1], size[0], rtol=0.01, atol=0)
    assert_close(size[2], size[0], rtol=0.01, atol=0)


def test_kappa_target_two_classes_and_mask(digits: Task, two_digits: Task) -> None:
    x, y = digits.x[:60], digits.y[:60]
    sure = carlini_wagner(digits.model, x, y, c=5.0, kappa=1.0, steps=100)
    scores = digits.model(sure.x)
    top = scores.topk(2, dim=1).values
    assert (top[:, 0] - top[:, 1] >= 1 - 1e-4).float().mean() > 0.9
    aim = (y + 1) % 10
    led = carlini_wagner(digits.model, x, y, c=5.0, steps=100, target=aim)
    assert torch.equal(led.success, digits.model(led.x).argmax(1) == aim)
    assert led.success.float().mean() > 0.9
    assert carlini_wagner(two_digits.model, two_digits.x, two_digits.y, c=5.0, steps=150).success.all()
    mask = torch.arange(64) < 40
    assert torch.equal(carlini_wagner(digits.model, x, y, c=5.0, steps=30, mask=mask).x[:, ~mask], x[:, ~mask])


def test_eot_on_a_deterministic_model_takes_the_same_path(digits: Task) -> None:
    one, four = (carlini_wagner(digits.model, digits.x[:40], digits.y[:40], steps=20, eot=k) for k in (1, 4))
    assert_same_path(one, four)


def test_words_of_the_errors(halves: Halves) -> None:
    with pytest.raises(AssayError, match=r"finite c >= 0.*got c=-1"):
        carlini_wagner(halves.model, halves.x, halves.y, c=-1.0)
    with pytest.raises(AssayError, match="fixed c"):
        carlini_wagner(halves.model, halves.x, halves.y, search=3, as_published=True)
