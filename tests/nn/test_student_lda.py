from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.nn.student_lda import StudentLDA, fit_student_lda


def uniforms(seed: int = 0, width: float = 1.0, n: int = 500) -> tuple[Tensor, Tensor]:
    """The printed example: class 0 uniform on [-2, -1], class 1 on [1, 2]."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-2, -1, n), rng.uniform(1, 1 + width, n)])
    return torch.as_tensor(x)[:, None], torch.arange(2).repeat_interleave(n)


def blobs(n: int = 60, d: int = 3, k: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = np.arange(n * k) % k
    mix = rng.normal(size=(d, d))
    x = rng.standard_t(4, size=(n * k, d)) @ mix + 2 * rng.normal(size=(k, d))[y]
    return torch.as_tensor(x), torch.as_tensor(y)


def first(lda: StudentLDA, *at: float) -> list[float]:
    """p(y_0 | x)."""
    return [float(p) for p in lda(torch.tensor(at, dtype=torch.float64)[:, None]).exp()[:, 0]]


def test_the_printed_example_in_numbers() -> None:
    x, y = uniforms()
    bell = fit_student_lda(x, y, classes=2, nu=math.inf)
    assert first(bell, -10)[0] > 1 - 1e-9
    assert first(bell, 10)[0] < 1e-9
    tail = fit_student_lda(x, y, classes=2, nu=1)
    bulk, *far = first(tail, -1.5, -5, -10, -100, -1000)
    assert bulk > 0.99
    assert far == pytest.approx([0.77, 0.64, 0.51, 0.50], abs=0.01)
    assert first(tail, 1e6, -1e12) == pytest.approx([0.5, 0.5], abs=1e-5)


def test_a_larger_nu_returns_more_slowly_and_an_infinite_one_never() -> None:
    x, y = uniforms()
    said = [first(fit_student_lda(x, y, classes=2, nu=nu), -10)[0] for nu in (1, 3, 10)]
    assert said == pytest.approx([0.64, 0.77, 0.97], abs=0.01)
    at = torch.linspace(-4, 4, 81, dtype=torch.float64)[:, None]
    near = fit_student_lda(x, y, classes=2, nu=1e9)(at)
    assert_close(near.exp(), fit_student_lda(x, y, classes=2, nu=math.inf)(at).exp(), rtol=0, atol=1e-5)


def test_gaussian_posteriors_are_the_printed_formula_and_those_of_scikit_learn() -> None:
    x, y = uniforms()
    bell = fit_student_lda(x, y, classes=2, nu=math.inf, ridge=0)
    mu = [float(x[y == k].mean()) for k in (0, 1)]
    var = float(torch.cat([x[y == k] - mu[k] for k in (0, 1)]).square().mean())
    for at in (-1.5, -0.1, 0.2, 0.7):  # eq. 5.7
        want = 1 / (1 + math.exp(-(2 * at * (mu[0] - mu[1]) - mu[0] ** 2 + mu[1] ** 2) / (2 * var)))
        assert first(bell, at)[0] == pytest.approx(want, rel=1e-9)
    lda = pytest.importorskip("sklearn.discriminant_analysis").LinearDiscriminantAnalysis(solver="lsqr")
    rows, labels = blobs(d=5, k=4)
    want_all = lda.fit(rows.numpy(), labels.numpy()).predict_proba(rows.numpy())  # equal classes: equal priors
    ours = fit_student_lda(rows, labels, classes=4, nu=math.inf, ridge=0)(rows).exp()
    assert_close(ours, torch.as_tensor(want_all), rtol=0, atol=1e-8)


@pytest.mark.parametrize("pooled", [True, False])
def test_the_posterior_is_bayes_on_scipys_densities(pooled: bool) -> None:
    x, y = blobs()
    lda = fit_student_lda(x, y, classes=3, nu=2.5, pooled=pooled)
    precision = (lda.whiten.mT @ lda.whiten).expand(3, 3, 3)
    want = np.stack(
        [stats.multivariate_t.logpdf(x, lda.mean[k], np.linalg.inv(precision[k]), df=2.5) for k in range(3)], 1
    )
    assert_close(lda.log_density(x), torch.as_tensor(want), rtol=1e-9, atol=1e-9)
    assert_close(lda(x).exp(), torch.as_tensor(want).softmax(1))
    assert_close(lda(x).exp().sum(1), torch.ones(len(x), dtype=torch.float64))


def test_the_fit_has_the_greatest_likelihood() -> None:
    x, y = uniforms(n=80)
    rows, labels = x[:, 0].numpy(), y.numpy()
    for nu in (1.0, 4.0):

        def cost(at: np.ndarray, nu: float = nu) -> float:
            return -float(stats.t.logpdf(rows, nu, at[:2][labels], np.exp(at[2])).sum())

        best = minimize(cost, [-1.5, 1.5, -1.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-11})
        lda = fit_student_lda(x, y, classes=2, nu=nu, ridge=0)
        assert lda.mean[:, 0].tolist() == pytest.approx(best.x[:2], abs=1e-5)
        assert 1 / float(lda.whiten) == pytest.approx(math.exp(best.x[2]), rel=1e-5)


def test_with_a_scale_each_the_fit_is_scipys_of_each_class() -> None:
    x, y = blobs(d=1, k=2, n=150)
    lda = fit_student_lda(x, y, classes=2, nu=3, pooled=False, ridge=0)
    for k in range(2):
        _, loc, scale = stats.t.fit(x[y == k, 0].numpy(), fdf=3)
        assert (float(lda.mean[k]), 1 / float(lda.whiten[k])) == pytest.approx((loc, scale), rel=1e-3)


def test_in_many_dimensions_no_nearby_parameter_is_likelier() -> None:
    x, y = blobs(d=4, k=3)
    lda = fit_student_lda(x, y, classes=3, nu=1.5, ridge=0)

    def likelihood(of: StudentLDA) -> float:
        return float(of.log_density(x).gather(1, y[:, None]).sum())

    best = likelihood(lda)
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        other = copy.deepcopy(lda)
        other.mean = lda.mean + 1e-2 * torch.randn(lda.mean.shape, generator=rng, dtype=torch.float64)
        stretch = torch.eye(4).double() + 1e-2 * torch.randn(4, 4, generator=rng, dtype=torch.float64).tril()
        other.whiten = lda.whiten @ stretch
        assert likelihood(other) < best


def test_unequal_powers_give_the_tail_to_the_heavier_class() -> None:
    x, y = uniforms()
    lda = fit_student_lda(x, y, classes=2, nu=1)
    lda.nu = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert min(first(lda, -1e6, 1e6)) > 0.999  # also on the side of class 1
    lda.nu = torch.tensor([2.0, math.inf], dtype=torch.float64)
    assert min(first(lda, -1e4, 1e4)) > 0.999


@pytest.mark.parametrize("nu", [1.0, 2.0])
def test_scales_of_their_own_leave_the_ratio_of_the_scales_and_pooling_one_kth(nu: float) -> None:
    x, y = uniforms(width=3.0)
    own = fit_student_lda(x, y, classes=2, nu=nu, pooled=False)
    s = 1 / own.whiten.flatten()
    limit = float(s[0] ** nu / (s**nu).sum())
    assert abs(limit - 0.5) > 0.2
    assert first(own, -1e7, 1e7) == pytest.approx([limit, limit], abs=1e-5)
    assert first(fit_student_lda(x, y, classes=2, nu=nu), -1e7, 1e7) == pytest.approx([0.5, 0.5], abs=1e-5)


def test_the_boundary_in_the_bulk_is_that_of_the_gaussian() -> None:
    x, y = uniforms()
    at = torch.linspace(-0.5, 0.5, 1001, dtype=torch.float64)[:, None]
    edges = []
    for nu in (1, 3, math.inf):
        p = fit_student_lda(x, y, classes=2, nu=nu)(at).exp()[:, 0]
        edges.append(float(at[(p - 0.5).abs().argmin()]))
    assert edges == pytest.approx([0, 0, 0], abs=0.05)
    rows, labels = blobs(d=3, k=3)
    bell, tail = (fit_student_lda(rows, labels, classes=3, nu=nu)(rows).argmax(1) for nu in (math.inf, 5))
    assert (bell == tail).float().mean() > 0.95


def test_the_limit_holds_in_many_dimensions_and_single_precision() -> None:
    x, y = blobs(d=20, k=4, n=100)
    lda = fit_student_lda(x.float(), y, classes=4, nu=1)
    u = torch.nn.functional.normalize(torch.randn(5, 20, generator=torch.Generator().manual_seed(0)), dim=1)
    for r in (1e6, 1e15, 1e25, 1e37):
        away = (r * u).requires_grad_()
        p = lda(away).exp()
        assert_close(p, torch.full((5, 4), 0.25), rtol=0, atol=2e-3)
        assert torch.autograd.grad(p[:, 0].sum(), away)[0].isfinite().all()
    assert_close(lda(x.float()).exp().double(), fit_student_lda(x, y, classes=4, nu=1)(x).exp(), rtol=0, atol=1e-4)


def test_units_and_origin_do_not_matter() -> None:
    x, y = blobs()
    there = (1e3 * x + 7e4) @ torch.diag(torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64))
    one, other = (fit_student_lda(rows, y, classes=3, nu=2, ridge=0)(rows) for rows in (x, there))
    assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_features_that_never_vary_are_borne_with_a_ridge_alone() -> None:
    x, y = blobs()
    x = torch.cat([x, torch.zeros(len(x), 1, dtype=torch.float64)], 1)
    lda = fit_student_lda(x, y, classes=3, nu=1)
    assert (lda(x).argmax(1) == y).float().mean() > 0.7
    with pytest.raises(AssayError, match="singular"):
        fit_student_lda(x, y, classes=3, nu=1, ridge=0)


def test_it_is_a_module_whose_state_reloads() -> None:
    x, y = blobs()
    for pooled in (True, False):
        lda = fit_student_lda(x.float(), y, classes=3, nu=1.5, pooled=pooled)
        other = StudentLDA(3, 3, pooled=pooled)
        other.load_state_dict(lda.state_dict())
        assert torch.equal(other(x.float()), lda(x.float()))
        assert str(other) == f"StudentLDA(classes=3, features=3, pooled={pooled})"
        assert not list(lda.parameters())


def test_what_it_refuses() -> None:
    x, y = blobs()
    with pytest.raises(AssayError, match="nu=0"):
        fit_student_lda(x, y, classes=3, nu=0)
    with pytest.raises(AssayError, match="each of the 4 classes"):
        fit_student_lda(x, y, classes=4)
    with pytest.raises(AssayError, match="NaN or inf"):
        fit_student_lda(x * math.nan, y, classes=3)
    with pytest.raises(AssayError, match="same features"):
        fit_student_lda(x * 0, y, classes=3)
    with pytest.raises(ShapeError, match=r"float features \(n, d\)"):
        fit_student_lda(x, y[:5], classes=3)
    with pytest.raises(ShapeError, match=r"wants \(n, 3\)"):
        fit_student_lda(x, y, classes=3)(x[:, :2])
