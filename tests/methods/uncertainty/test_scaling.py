from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.scaling import fit_isotonic, fit_temperature, fit_vector


def drawn(n: int = 3000, c: int = 4, *, sharp: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn from softmax(logits / sharp): `sharp` is the right temperature."""
    rng = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, c, generator=rng, dtype=torch.float64)
    return sharp * z, torch.multinomial(z.softmax(1), 1, generator=rng)[:, 0]


@pytest.mark.parametrize("sharp", [1e-3, 0.5, 1.0, 3.0, 1e4])
def test_temperature_is_the_minimum_and_near_the_truth(sharp: float) -> None:
    z, y = drawn(sharp=sharp)
    found = fit_temperature(z, y).temperature
    assert found == pytest.approx(sharp, rel=0.1)
    best = minimize_scalar(lambda b: float(F.cross_entropy(z / sharp * b, y)), (0.5, 1), tol=1e-12).x
    assert found == pytest.approx(sharp / best, rel=1e-6)
    at = torch.tensor(1 / found, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(F.cross_entropy(z * at, y), at)
    assert abs(float(slope)) < 1e-12 * sharp * 10  # the slope is in units of the logits


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000), factor=st.sampled_from([1e-2, 7.0, 1e3]), shift=st.floats(-50, 50))
def test_temperature_keeps_the_argmax_and_follows_the_scale(seed: int, factor: float, shift: float) -> None:
    z, y = drawn(200, seed=seed)
    fitted = fit_temperature(z, y)
    assert (fitted.apply(z).argmax(1) == z.argmax(1)).all()
    assert_close(fitted.apply(z).sum(1), torch.ones(200, dtype=torch.float64))
    moved = fit_temperature(factor * z + shift, y)
    assert moved.temperature == pytest.approx(factor * fitted.temperature, rel=1e-8)
    assert F.nll_loss(fitted.apply(z).log(), y) <= F.cross_entropy(z, y) + 1e-12


def test_temperature_says_when_there_is_none() -> None:
    z = torch.eye(3).repeat(5, 1)
    y = torch.arange(3).repeat(5)
    with pytest.raises(AssayError, match="All 15 held-out answers are right"):
        fit_temperature(z, y)
    with pytest.raises(AssayError, match="no better than chance"):
        fit_temperature(-z, y)
    with pytest.raises(AssayError, match="no better than chance"):
        fit_temperature(torch.zeros(15, 3), y)
    y[0] = 1
    assert 0.1 < fit_temperature(z, y).temperature < 0.4  # one wrong answer is enough for a minimum


def test_one_answer_in_n_wrong_has_a_closed_form() -> None:
    # logits e_c, a share w of them wrong, all to one other class of k: p_top = 1 - w at the minimum needs two classes
    z, y = torch.eye(2, dtype=torch.float64).repeat(10, 1), torch.arange(2).repeat(10)
    y[0], y[1] = 1, 0  # 2 of 20
    assert fit_temperature(z, y).temperature == pytest.approx(1 / math.log(0.9 / 0.1), rel=1e-12)


def test_vector_scaling_is_the_minimum() -> None:
    z, y = drawn(800, 3, sharp=2.0)
    fitted = fit_vector(z, y)
    w, b = fitted.scale.clone().requires_grad_(), fitted.shift.clone().requires_grad_()
    loss = F.cross_entropy(z * w + b, y)
    slopes = torch.autograd.grad(loss, (w, b))
    assert max(float(s.abs().max()) for s in slopes) < 1e-10
    assert abs(float(fitted.shift.sum())) < 1e-12

    def height(at: np.ndarray) -> float:
        return float(F.cross_entropy(z * torch.tensor(at[:3]) + torch.tensor(at[3:]), y))

    other = minimize(height, np.r_[np.ones(3), np.zeros(3)], method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-9})
    loss = loss.detach()
    assert float(loss) == pytest.approx(other.fun, abs=1e-9)
    assert float(loss) <= height(np.r_[np.full(3, 1 / fit_temperature(z, y).temperature), np.zeros(3)])
    assert_close(fitted.apply(z.float()).double(), fitted.apply(z), rtol=1e-4, atol=1e-5)


def test_vector_scaling_finds_what_made_the_labels_and_not_only_near_it() -> None:
    rng = torch.Generator().manual_seed(3)
    z = 3 * torch.randn(40_000, 3, generator=rng, dtype=torch.float64)
    scale, shift = torch.tensor([0.5, 1.0, 2.0]).double(), torch.tensor([1.0, 0.0, -1.0]).double()
    y = torch.multinomial((z * scale + shift).softmax(1), 1, generator=rng)[:, 0]
    fitted = fit_vector(100 * z, y)  # starts from logits a hundred times too sharp
    assert_close(100 * fitted.scale, scale, rtol=0.1, atol=0.05)
    assert_close(fitted.shift, shift, rtol=0, atol=0.1)


def test_vector_scaling_says_when_there_is_no_minimum() -> None:
    z, y = drawn(300)
    with pytest.raises(AssayError, match="No held-out label is of class 2"):
        fit_vector(z, torch.where(y == 2, 1, y))
    with pytest.raises(AssayError, match="told apart without error"):
        fit_vector(z, z.argmax(1))
    cut = z.clone()
    cut[:, 0] = torch.where(y == 0, 9.0, -9.0)  # class 0 alone is told apart
    with pytest.raises(AssayError, match="told apart without error"):
        fit_vector(cut, y)
    constant = z.clone()
    constant[:, 1] = 0.5  # w_1 and b_1 do the same: no unique minimum, but a minimum
    assert fit_vector(constant, y).apply(constant).isfinite().all()


def pooled(outcomes: list[float]) -> list[float]:
    """Pool adjacent violators by its min-max formula, for outcomes in order of distinct scores."""
    n = len(outcomes)
    mean = [[sum(outcomes[i : j + 1]) / (j - i + 1) if j >= i else 0.0 for j in range(n)] for i in range(n)]
    return [max(min(mean[i][j] for j in range(k, n)) for i in range(k + 1)) for k in range(n)]


def test_isotonic_is_pooling_of_violators_and_scikit_learns() -> None:
    z, y = drawn(40, 3, seed=5)
    new = drawn(500, 3, seed=6)[0]
    fitted = fit_isotonic(z, y)
    p, q = z.softmax(1), new.softmax(1)
    raw = torch.zeros_like(q)
    for c in range(3):
        order = p[:, c].argsort()
        naive = np.array(pooled((y[order] == c).double().tolist()))
        at = np.interp(p[order, c], fitted.scores[c], fitted.values[c])
        np.testing.assert_allclose(at, naive, atol=1e-9)
        other = IsotonicRegression(out_of_bounds="clip").fit(p[:, c].numpy(), (y == c).numpy())
        raw[:, c] = torch.tensor(other.predict(q[:, c].numpy()))
        assert (np.diff(fitted.values[c]) >= 0).all()
    total = raw.sum(1, keepdim=True)
    want = torch.where(total > 0, raw / total, torch.full_like(raw, 1 / 3))
    assert_close(fitted.apply(new), want, rtol=0, atol=1e-6)
    assert_close(fitted.apply(new).sum(1), torch.ones(500, dtype=torch.float64))
    assert fitted.apply(new.float()).dtype == torch.float32


def test_a_row_that_is_sent_to_nothing_becomes_uniform() -> None:
    z = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]).repeat(4, 1)
    fitted = fit_isotonic(z, torch.arange(3).repeat(4))
    assert_close(fitted.apply(torch.full((1, 3), -5.0) + torch.tensor([[0.0, 1e-3, 0.0]])).sum(1), torch.ones(1))
    low = fitted._replace(values=tuple(0 * v for v in fitted.values))
    assert_close(low.apply(z), torch.full((12, 3), 1 / 3))


def test_all_three_mend_an_overconfident_model() -> None:
    z, y = drawn(4000, sharp=4.0)
    new, truth = drawn(4000, sharp=4.0, seed=1)
    before = float(F.cross_entropy(new, truth))
    brier = float((new.softmax(1) - F.one_hot(truth, 4)).square().sum(1).mean())
    for fitted in (fit_temperature(z, y), fit_vector(z, y)):
        assert float(F.nll_loss(fitted.apply(new).log(), truth)) < 0.7 * before
    after = float((fit_isotonic(z, y).apply(new) - F.one_hot(truth, 4)).square().sum(1).mean())
    assert after < brier - 0.03


@pytest.mark.parametrize("fit", [fit_temperature, fit_vector, fit_isotonic])
def test_bad_input_gets_one_line(fit: Callable[[Tensor, Tensor], object]) -> None:
    z, y = drawn(30)
    with pytest.raises(AssayError, match="All 30 held-out labels are of class 0"):
        fit(z, 0 * y)
    with pytest.raises(ShapeError, match="1 class"):
        fit(z[:, :1], 0 * y)
    with pytest.raises(AssayError, match="Row 4 of the outputs holds NaN"):
        fit(z.index_fill(0, torch.tensor(4), math.nan), y)
    with pytest.raises(AssayError, match="Label 9 at row 0 is not a class; there are 4"):
        fit(z, torch.where(torch.arange(30) == 0, 9, y))
    with pytest.raises(ShapeError, match=r"labels of shape \(29,\)"):
        fit(z, y[1:])
    with pytest.raises(AssayError, match="class indices"):
        fit(z, y.double())


def test_nothing_collects_gradients() -> None:
    z, y = drawn(100)
    z.requires_grad_()
    for fit in (fit_temperature, fit_vector, fit_isotonic):
        fit(z, y)
    assert z.grad is None
