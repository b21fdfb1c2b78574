from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.methods.attack import carlini_wagner, minimal_norm
from assay.methods.attack.ball import Norm, distance

from .conftest import Halves, Task, accuracy

ALL: tuple[Norm, ...] = ("linf", "l2", "l1", "l0")


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", math.inf)])
def test_linear_model_gives_the_exact_distance(halves: Halves, norm: Norm, dual: float) -> None:
    got = minimal_norm(halves.model, halves.x, halves.y, norm=norm)
    assert got.success.all()
    exact = halves.margin / torch.linalg.vector_norm(halves.w, dual)
    assert_close(got.distance.float(), exact, rtol=1e-3, atol=0)
    assert (got.distance.float() >= exact * (1 - 1e-5)).all()  # nothing is nearer than the boundary


def test_l0_counts_the_fewest_features(rng: torch.Generator) -> None:
    """Brute force: the largest gains |w_i| * room_i first, until the margin is spent."""
    w = torch.rand(20, generator=rng) + 0.2
    x = torch.rand(8, 20, generator=rng)
    need = torch.linspace(0.3, 3.0, 8)

    offset = x @ w - need  # margin `need` at x; lowering a feature to 0 gains w_i x_i
    gains = (w * x).sort(1, descending=True).values.cumsum(1)
    fewest = (gains < need[:, None]).sum(1) + 1
    found = []
    for i in range(8):

        def model(z: Tensor, i: int = i) -> Tensor:
            score = z @ w - offset[i]
            return torch.stack([score, torch.zeros_like(score)], 1)

        found.append(minimal_norm(model, x[i : i + 1], torch.zeros(1, dtype=torch.long), norm="l0", steps=40))
    assert all(got.success.all() for got in found)
    size = torch.cat([got.distance for got in found])
    assert (size >= fewest).all()
    assert (size <= fewest + 1).all()
    assert (size == fewest).float().mean() >= 0.5


@pytest.mark.parametrize("norm", ALL)
def test_found_points_are_inside_honest_and_measured(digits: Task, norm: Norm) -> None:
    got = minimal_norm(digits.model, digits.x, digits.y, norm=norm, steps=40)
    assert got.success.all()
    assert ((got.x >= 0) & (got.x <= 1)).all()
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != digits.y)
    assert_close(got.distance, distance(got.x, digits.x, norm))
    wrong = digits.model(digits.x).argmax(1) != digits.y
    assert torch.equal(got.distance == 0, wrong)


def test_l2_is_not_far_from_a_search_for_c(digits: Task) -> None:
    x, y = digits.x[:80], digits.y[:80]
    walk = minimal_norm(digits.model, x, y, norm="l2")
    search = carlini_wagner(digits.model, x, y, search=5, steps=150)
    assert walk.distance.mean() <= 1.05 * search.distance.mean()  # five rounds of 150 steps against 100 steps


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.08), ("l2", 0.45), ("l1", 1.2), ("l0", 2.0)])
def test_with_a_radius_inputs_leave_once_broken_within_it(digits: Task, norm: Norm, radius: float) -> None:
    seen: list[int] = []

    def model(x: Tensor) -> Tensor:
        seen.append(len(x))
        out: Tensor = digits.model(x)
        return out

    full = minimal_norm(model, digits.x, digits.y, norm=norm, steps=40)
    cost = sum(seen)
    seen.clear()
    short = minimal_norm(model, digits.x, digits.y, norm=norm, steps=40, radius=radius)
    assert sum(seen) < 0.8 * cost
    held = [accuracy(run.success & (run.distance <= radius)) for run in (full, short)]
    assert 0 < held[0] < 0.9
    assert abs(held[0] - held[1]) <= 0.01


@pytest.mark.parametrize("norm", ALL)
def test_scale_of_the_logits_does_not_matter(digits: Task, norm: Norm) -> None:
    x, y = digits.x[:80], digits.y[:80]
    size = [minimal_norm(lambda x: k * digits.model(x), x, y, norm=norm, steps=25).distance for k in (1, 100, 0.01)]  # noqa: B023
    for other in size[1:]:
        assert_close(other.mean(), size[0].mean(), rtol=0.01, atol=0)


@pytest.mark.parametrize("norm", ALL)
def test_target_two_classes_and_mask(digits: Task, two_digits: Task, norm: Norm) -> None:
    x, y = digits.x[:60], digits.y[:60]
    aim = (y + 1) % 10
    led = minimal_norm(digits.model, x, y, norm=norm, steps=40, target=aim)
    assert torch.equal(led.success, digits.model(led.x).argmax(1) == aim)
    assert led.success.float().mean() > 0.9
    assert minimal_norm(two_digits.model, two_digits.x, two_digits.y, norm=norm, steps=40).success.all()
    mask = torch.arange(64) % 2 == 0
    assert torch.equal(minimal_norm(digits.model, x, y, norm=norm, steps=20, mask=mask).x[:, ~mask], x[:, ~mask])


def test_words_of_the_errors(digits: Task) -> None:
    x, y = digits.x[:6], digits.y[:6]
    with pytest.raises(AssayError, match="got steps=0"):
        minimal_norm(digits.model, x, y, steps=0)
    with pytest.raises(SubjectError, match="NaN for input 0"):
        minimal_norm(lambda x: digits.model(x) * torch.nan, x, y)


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_what_may_not_move_does_not_shorten_the_step(norm: Norm, dual: int) -> None:
    """The steepest features lie off the mask; the distance is that of the features on it alone."""
    rng = torch.Generator().manual_seed(0)
    slope = torch.randn(30, generator=rng)
    slope[10:] *= 100
    x = torch.randn(8, 30, generator=rng)

    def model(x: Tensor) -> Tensor:
        return torch.stack([x @ slope, torch.zeros(len(x))], 1)

    z = model(x)[:, 0]
    exact = z.abs() / torch.linalg.vector_norm(slope[:10], ord=dual)
    found = minimal_norm(
        model, x, (z < 0).long(), norm=norm, mask=torch.arange(30) < 10, steps=60, bounds=(-1e3, 1e3), step=0.1
    )
    assert found.success.all()
    assert_close(found.distance.float(), exact, rtol=0.02, atol=0)
