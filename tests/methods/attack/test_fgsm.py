from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.attack import fgsm, pgd
from assay.methods.attack.ball import Norm, distance

from .conftest import Halves, Task, accuracy


def test_linear_model_moves_every_feature_by_the_radius(halves: Halves) -> None:
    got = fgsm(halves.model, halves.x, halves.y, radius=0.03, loss="margin")
    assert_close(got.x, halves.x - 0.03 * halves.w.sign(), rtol=0, atol=1e-6)
    assert_close(got.distance, torch.full((6,), 0.03, dtype=torch.float64), rtol=1e-5, atol=0)


def test_as_published_is_the_printed_equation(digits: Task) -> None:
    x = digits.x.clone().requires_grad_()
    (g,) = torch.autograd.grad(nn.functional.cross_entropy(digits.model(x), digits.y, reduction="sum"), x)
    want = (digits.x + 0.1 * g.sign()).clamp(0, 1)
    got = fgsm(digits.model, digits.x, digits.y, radius=0.1, as_published=True)
    assert_close(got.x, want, rtol=0, atol=1e-6)
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != digits.y)


def test_random_start_spends_half_of_the_radius_on_each_part(halves: Halves, rng: torch.Generator) -> None:
    moved = fgsm(halves.model, halves.x, halves.y, radius=0.04, random_start=True, rng=rng).x - halves.x
    size = moved.abs()
    assert ((size < 1e-6) | ((size - 0.04).abs() < 1e-6)).all()  # the two halves cancel or add up
    assert (size < 1e-6).any()
    assert ((moved * -halves.w.sign()) > -1e-6).all()  # and where they add up, downhill

    def blind(x: Tensor) -> Tensor:
        return halves.model(torch.cat([torch.full_like(x[:, :1], 0.5), x[:, 1:]], 1))

    moved = fgsm(blind, halves.x, halves.y, radius=0.04, random_start=True, rng=rng).x - halves.x
    assert_close(moved[:, 0].abs(), torch.full((6,), 0.02), rtol=0, atol=1e-6)  # no slope: the random half alone


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.1), ("l2", 0.6), ("l1", 3.0)])
@pytest.mark.parametrize("random_start", [False, True])
def test_inside_honest_and_not_stronger_than_pgd(digits: Task, norm: Norm, radius: float, random_start: bool) -> None:
    got = fgsm(digits.model, digits.x, digits.y, norm=norm, radius=radius, random_start=random_start)
    assert (distance(got.x, digits.x, norm) <= radius).all()
    assert ((got.x >= 0) & (got.x <= 1)).all()
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != digits.y)
    assert accuracy(got.success) < accuracy(digits.model(digits.x).argmax(1) != digits.y)
    assert accuracy(pgd(digits.model, digits.x, digits.y, norm=norm, radius=radius).success) <= accuracy(got.success)


def test_radius_zero_targets_two_classes_and_masks(digits: Task, two_digits: Task) -> None:
    assert torch.equal(fgsm(digits.model, digits.x, digits.y, radius=0.0).x, digits.x)
    aim = 1 - two_digits.y
    got = fgsm(two_digits.model, two_digits.x, two_digits.y, radius=0.5, target=aim)
    assert torch.equal(got.success, two_digits.model(got.x).argmax(1) == aim)
    mask = torch.arange(64) < 20
    assert torch.equal(fgsm(digits.model, digits.x, digits.y, radius=0.3, mask=mask).x[:, ~mask], digits.x[:, ~mask])
    with pytest.raises(AssayError, match="for l0 use minimal_norm"):
        fgsm(digits.model, digits.x, digits.y, norm="l0", radius=3)
