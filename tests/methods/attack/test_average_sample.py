from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.attack import fgsm, pgd
from assay.methods.attack.average_sample import average_sample, class_means, share_of_targets
from assay.methods.attack.ball import distance

from .conftest import Task, apart


class Stored:
    """A data set of which a few inputs can be had at a time."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.largest = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        self.largest = max(self.largest, len(index))
        return self.x[index], self.y[index]


def means_of(task: Task) -> Tensor:
    return class_means([(task.train_x, task.train_y)], classes=10)


def test_class_means_are_the_means_of_each_class_however_they_are_taken(digits: Task) -> None:
    plain = torch.stack([digits.train_x[digits.train_y == c].mean(0) for c in range(10)])
    stored = Stored(digits.train_x, digits.train_y)
    assert_close(class_means(stored, classes=10, batch=77), plain, rtol=0, atol=1e-6)
    assert stored.largest == 77
    pieces = zip(digits.train_x.split(50), digits.train_y.split(50), strict=True)
    assert_close(class_means(pieces, classes=10), class_means(stored, classes=10), rtol=1e-6, atol=1e-7)


def test_a_class_without_inputs_and_a_label_without_class_are_errors(digits: Task) -> None:
    with pytest.raises(AssayError, match=r"Classes \[10\] have no input"):
        class_means([(digits.x, digits.y)], classes=11)
    with pytest.raises(AssayError, match="labels 0 to 9; 9 classes go to 8"):
        class_means([(digits.x, digits.y)], classes=9)


def test_equal_means_give_no_change_and_others_exactly_the_radius(digits: Task) -> None:
    """Inputs far from the box, so that nothing is cut: |x' - x| is eps where the means differ and 0 elsewhere."""
    means, eps = means_of(digits), 0.05
    x = torch.full_like(digits.x, 0.5)
    t = (digits.y + 3) % 10
    got = average_sample(digits.model, x, digits.y, means=means, radius=eps, target=t)
    change = (got.x.double() - 0.5).abs()
    same = means[t] == means[digits.y]
    assert same.any()  # the left column of a digit is never inked
    assert (change[same] == 0).all()
    assert_close(change[~same], torch.full_like(change[~same], eps), rtol=0, atol=1e-7)
    assert (got.distance <= eps).all()


def test_constant_features_have_means_equal_to_the_bit() -> None:
    """0.1 summed 7 times and 0.1 summed 3 times differ in the last place of the mean; that is no direction."""
    x = torch.full((10, 4), 0.1)
    means = class_means([(x[i : i + 1], torch.tensor([int(i >= 7)])) for i in range(10)], classes=2)
    assert torch.equal(means[0], means[1])


@settings(deadline=None, max_examples=15)
@given(y=st.integers(0, 9), t=st.integers(0, 9), seed=st.integers(0, 99))
def test_the_direction_depends_on_the_two_classes_only_and_turns_round_with_them(
    digits: Task, y: int, t: int, seed: int
) -> None:
    if y == t:
        return
    means = means_of(digits)
    x = torch.rand(2, 64, generator=torch.Generator().manual_seed(seed)) * 0.5 + 0.25

    def change(a: int, b: int) -> Tensor:
        labels = torch.tensor([a, a])
        got = average_sample(digits.model, x, labels, means=means, radius=0.125, target=torch.tensor([b, b]))
        return got.x - x

    there = change(y, t)
    assert_close(there[0].sign(), there[1].sign())
    assert_close(there, -change(t, y), rtol=0, atol=1e-7)


def test_on_gaussian_classes_and_the_linear_rule_it_is_fgsm() -> None:
    rng = torch.Generator().manual_seed(0)
    centres = torch.rand(2, 30, generator=rng) * 0.4 + 0.3
    y = torch.arange(200) % 2
    x = (centres[y] + 0.02 * torch.randn(200, 30, generator=rng)).clamp(0, 1)
    means = class_means([(x, y)], classes=2)
    w = means[1] - means[0]

    def model(x: Tensor) -> Tensor:
        score = (x - means.mean(0)) @ w
        return torch.stack([-score, score], 1)

    ours = average_sample(model, x, y, means=means, radius=0.1)
    theirs = fgsm(model, x, y, radius=0.1, as_published=True)
    assert_close(ours.x, theirs.x, rtol=0, atol=1e-6)
    assert apart(ours.success, theirs.success) <= 0.01


def test_without_a_target_the_worst_is_kept_and_the_mean_over_targets_is_at_hand(digits: Task) -> None:
    means, eps = means_of(digits), 0.2
    got = average_sample(digits.model, digits.x, digits.y, means=means, radius=eps)
    wrong = []
    for k in range(1, 10):
        one = average_sample(digits.model, digits.x, digits.y, means=means, radius=eps, target=(digits.y + k) % 10)
        at = (digits.x + eps * (means[(digits.y + k) % 10] - means[digits.y]).sign()).clamp(0, 1)
        assert_close(one.x, at, rtol=0, atol=1e-6)
        assert_close(one.loss[0], got.loss[k - 1])
        wrong.append(digits.model(at).argmax(1) != digits.y)
    assert apart(got.success, torch.stack(wrong).any(0)) <= 0.01
    assert apart(share_of_targets(got), 1 - torch.stack(wrong).double().mean(0)) <= 0.01
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != digits.y)
    assert (distance(got.x, digits.x, "linf") <= eps).all()
    assert ((got.x >= 0) & (got.x <= 1)).all()


def test_on_a_plain_network_it_is_weaker_than_the_white_box(digits: Task) -> None:
    """Digits, an MLP, eps 0.2: the card's order, white box far below the average sample."""
    means = means_of(digits)
    average = share_of_targets(average_sample(digits.model, digits.x, digits.y, means=means, radius=0.2)).mean()
    white = 1 - pgd(digits.model, digits.x, digits.y, radius=0.2).success.double().mean()
    assert white + 0.1 < average


def test_radius_zero_and_the_mask(digits: Task) -> None:
    means = means_of(digits)
    none = average_sample(digits.model, digits.x, digits.y, means=means, radius=0.0)
    assert torch.equal(none.x, digits.x)
    assert torch.equal(none.success, digits.model(digits.x).argmax(1) != digits.y)
    mask = torch.arange(64) < 32
    half = average_sample(digits.model, digits.x, digits.y, means=means, radius=0.2, mask=mask)
    assert torch.equal(half.x[:, 32:], digits.x[:, 32:])


def test_bad_means_are_told(digits: Task) -> None:
    means = means_of(digits)
    with pytest.raises(ShapeError, match=r"inputs of shape \(32,\), the inputs have \(64,\)"):
        average_sample(digits.model, digits.x, digits.y, means=means[:, :32], radius=0.1)
    with pytest.raises(AssayError, match="Found class 9 but 5 class means"):
        average_sample(digits.model, digits.x, digits.y, means=means[:5], radius=0.1)
    with pytest.raises(AssayError, match="equal to its label"):
        average_sample(digits.model, digits.x, digits.y, means=means, radius=0.1, target=digits.y)
