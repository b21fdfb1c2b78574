from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.methods.attack import fgsm, pgd
from assay.methods.attack.ball import Norm
from assay.methods.attack.magnitude_margin import magnitude_margin

from .conftest import Halves, Task

DUAL = {"linf": 1, "l2": 2, "l1": float("inf")}


def linear() -> tuple[nn.Linear, Tensor, Tensor]:
    """A linear model with slopes of many sizes, and inputs far from the box with its own answers as labels."""
    rng = torch.Generator().manual_seed(0)
    model = nn.Linear(12, 4, dtype=torch.float64)
    with torch.no_grad():
        sizes = torch.tensor([[0.3], [1.0], [2.0], [4.0]])
        model.weight.copy_(sizes * torch.randn(4, 12, generator=rng))
        model.bias.copy_(-0.5 * model.weight.sum(1))
    model.requires_grad_(False)
    x = 0.5 + 0.04 * torch.randn(40, 12, generator=rng, dtype=torch.float64)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_on_a_linear_model_the_radius_is_the_exact_distance_to_the_runner_up(norm: Norm) -> None:
    model, x, y = linear()
    got = magnitude_margin(model, x, y, norm=norm)
    for i in range(len(x)):
        z = model(x[i]).double()
        j = int(z.index_fill(0, y[i], -torch.inf).argmax())
        w = (model.weight[y[i]] - model.weight[j]).double()
        far = (z[y[i]] - z[j]) / torch.linalg.vector_norm(w, DUAL[norm])
        assert float(got.radius[i]) == pytest.approx(float(far), rel=1e-5)
        assert float(got.ratio[i]) == pytest.approx(float(w.abs().mean() / (z[y[i]] - z[j])), rel=1e-5)
    assert got.right.all()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_over_all_rivals_it_is_the_nearest_of_all_boundaries(norm: Norm) -> None:
    model, x, y = linear()
    got, plain = (magnitude_margin(model, x, y, norm=norm, all_rivals=strict) for strict in (True, False))
    z = model(x).double()
    for i in range(len(x)):
        rivals = [j for j in range(4) if j != y[i]]
        ways = [(model.weight[y[i]] - model.weight[j]).double() for j in rivals]
        gaps = [z[i, y[i]] - z[i, j] for j in rivals]
        far = min(float(g / torch.linalg.vector_norm(w, DUAL[norm])) for g, w in zip(gaps, ways, strict=True))
        ratio = max(float(w.abs().mean() / g) for g, w in zip(gaps, ways, strict=True))
        assert float(got.radius[i]) == pytest.approx(far, rel=1e-5)
        assert float(got.ratio[i]) == pytest.approx(ratio, rel=1e-5)
    assert (got.radius <= plain.radius * (1 + 1e-6)).all()
    assert (got.radius < plain.radius * 0.99).any()  # the runner-up is not always the nearest
    assert torch.equal(got.margin, plain.margin)


def test_fgsm_on_the_margin_flips_exactly_beyond_the_radius(halves: Halves) -> None:
    far = magnitude_margin(halves.model, halves.x, halves.y).radius
    assert_close(far, (halves.margin / halves.w.abs().sum()).double(), rtol=1e-5, atol=0)
    for share, flips in ((0.999, False), (1.001, True)):
        got = fgsm(halves.model, halves.x, halves.y, radius=far * share, loss="margin")
        assert (got.success == flips).all()


def test_in_linf_radius_and_ratio_are_one_number(digits: Task) -> None:
    for strict in (False, True):
        got = magnitude_margin(digits.model, digits.x, digits.y, all_rivals=strict)
        ok = got.right
        assert_close(got.radius[ok], 1 / (64 * got.ratio[ok]))


@settings(deadline=None, max_examples=15)
@given(c=st.floats(0.01, 100), shift=st.floats(-50, 50), strict=st.booleans())
def test_the_scale_and_a_shift_of_the_logits_do_not_matter(digits: Task, c: float, shift: float, strict: bool) -> None:
    plain = magnitude_margin(digits.model, digits.x[:40], digits.y[:40], all_rivals=strict)
    model = digits.model.double()
    try:
        x = digits.x[:40].double()
        one = magnitude_margin(model, x, digits.y[:40], all_rivals=strict)
        other = magnitude_margin(lambda x: c * model(x) + shift, x, digits.y[:40], all_rivals=strict)
    finally:
        digits.model.float()
    assert_close(other.ratio, one.ratio, rtol=1e-7, atol=0)
    assert_close(other.radius, one.radius, rtol=1e-7, atol=0)
    assert_close(plain.ratio, one.ratio, rtol=1e-3, atol=0)


@pytest.mark.parametrize("c", [0.5, 4.0])
def test_inputs_times_c_divide_the_ratio_by_c(digits: Task, c: float) -> None:
    plain = magnitude_margin(digits.model, digits.x, digits.y)
    scaled = magnitude_margin(lambda x: digits.model(x / c), c * digits.x, digits.y)
    assert_close(scaled.ratio, plain.ratio / c, rtol=1e-5, atol=0)
    assert_close(scaled.radius, plain.radius * c, rtol=1e-5, atol=0)


def test_a_softmax_inside_the_model_changes_nothing(digits: Task) -> None:
    plain = magnitude_margin(digits.model, digits.x, digits.y, all_rivals=True)
    inside = magnitude_margin(lambda x: digits.model(x).softmax(1), digits.x, digits.y, all_rivals=True)
    assert_close(inside.radius, plain.radius, rtol=1e-5, atol=0)


def test_wrong_inputs_are_marked_and_no_value_is_nan(digits: Task) -> None:
    y = digits.y.clone()
    y[:100] = (y[:100] + 1) % 10
    for strict in (False, True):
        got = magnitude_margin(digits.model, digits.x, y, all_rivals=strict)
        assert torch.equal(got.right, digits.model(digits.x).argmax(1) == y)
        assert not got.right[:90].all()
        assert (got.radius[~got.right] == 0).all()
        assert torch.isinf(got.ratio[~got.right]).all()
        assert (got.margin[~got.right] <= 0).all()
        assert not any(v.isnan().any() for v in got)


def test_a_margin_that_does_not_move_is_infinitely_far(digits: Task) -> None:
    got = magnitude_margin(lambda x: x[:, :3] * 0 + torch.tensor([1.0, 0, 0]), digits.x[:5], digits.y[:5] * 0)
    assert torch.isinf(got.radius).all()
    assert (got.ratio == 0).all()


def test_it_ranks_inputs_as_the_smallest_flipping_attack_does(digits: Task) -> None:
    """The card's own run on a digits MLP: rank correlation 0.985 with a 5-step attack on the margin."""
    got = magnitude_margin(digits.model, digits.x, digits.y)
    grid = torch.linspace(0.005, 0.3, 40)
    flips = torch.full((len(digits.x),), torch.inf)
    for eps in grid:
        hit = pgd(
            digits.model, digits.x, digits.y, radius=float(eps), steps=5, loss="margin", random_start=False
        ).success
        flips = torch.where(hit & torch.isinf(flips), eps, flips)
    ok = got.right & torch.isfinite(flips)
    assert ok.double().mean() > 0.9
    assert spearmanr(got.radius[ok], flips[ok]).statistic > 0.95


def test_images_and_single_rows_give_the_same_numbers(digits: Task) -> None:
    flat = magnitude_margin(digits.model, digits.x, digits.y, all_rivals=True)
    images = magnitude_margin(
        lambda x: digits.model(x.flatten(1)), digits.x.reshape(-1, 1, 8, 8), digits.y, all_rivals=True
    )
    assert_close(images.radius, flat.radius)
    one = magnitude_margin(digits.model, digits.x[3:4], digits.y[3:4], all_rivals=True)
    assert_close(one.radius, flat.radius[3:4], rtol=1e-4, atol=0)


def test_bad_input_is_told(digits: Task) -> None:
    with pytest.raises(AssayError, match="is for linf, l2, l1, not 'l0'"):
        magnitude_margin(digits.model, digits.x, digits.y, norm="l0")
    with pytest.raises(SubjectError, match="NaN for input 0"):
        magnitude_margin(lambda x: digits.model(x) * torch.nan, digits.x, digits.y)
    with pytest.raises(AssayError, match="carries no gradient"):
        magnitude_margin(lambda x: digits.model(x.detach()).detach(), digits.x, digits.y)
