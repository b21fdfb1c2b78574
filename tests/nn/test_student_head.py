from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_t
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.nn.softrmax import log_softrmax
from assay.nn.student_head import StudentHead, log_student


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("nu", [0.5, 1.0, 7.0])
def test_it_is_bayes_on_scipys_densities(nu: float) -> None:
    z = 3 * draw(40, 4)
    dense = np.stack([multivariate_t.logpdf(z.numpy(), np.eye(4)[i], np.eye(4), df=nu) for i in range(4)], 1)
    assert_close(log_student(z, nu=nu), torch.as_tensor(dense).log_softmax(1))


def test_it_lies_between_softrmax_and_softmax() -> None:
    z = draw(50, 5)
    assert_close(log_student(z, nu=1e9), z.log_softmax(1), rtol=0, atol=1e-6)
    assert_close(log_student(z, nu=math.inf), z.log_softmax(1))
    assert_close(log_student(z, nu=1e-3), log_softrmax(z, power=2.5), rtol=0, atol=0.02)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6), st.sampled_from([1e-3, 1.0, 50.0]))
def test_it_is_a_posterior_with_the_argmax_of_z(row: list[float], nu: float) -> None:
    z = torch.tensor([row], dtype=torch.float64)
    p = log_student(z, nu=nu).exp()
    assert float(p.sum()) == pytest.approx(1)
    assert float(p.amax()) == pytest.approx(float(p[0, z.argmax()]))


@pytest.mark.parametrize("nu", [1.0, 10.0])
def test_far_away_it_is_one_kth_at_the_rate_of_the_docstring(nu: float) -> None:
    u = nn.functional.normalize(draw(20, 4), dim=1)
    for r in (1e4, 1e6):
        rate = (nu + 4) * (u - u.mean(1, keepdim=True)) / 4
        assert_close((log_student(r * u, nu=nu).exp() - 0.25) * r, rate, rtol=0.01, atol=0.02 * nu)
    huge = torch.tensor([[1e30, -1e30, 0.0]])  # its square overflows
    assert_close(log_student(huge).exp(), torch.full((1, 3), 1 / 3))


def test_the_peak_is_finite_and_so_is_the_gradient() -> None:
    for dtype, nu in ((torch.float32, 1e-3), (torch.float32, 1.0), (torch.float64, 1e-3)):
        e = torch.eye(3, dtype=dtype)[:1].requires_grad_()
        log_p = log_student(e, nu=nu)
        odds = float((log_p[0, 0] - log_p[0, 1]).detach())
        assert odds == pytest.approx((nu + 3) / 2 * math.log1p(2 / nu), rel=1e-3)
        (slope,) = torch.autograd.grad(log_p[0, 0], e)
        assert slope.isfinite().all()
    z = draw(4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: log_student(z, nu=2.0), z)


def test_what_it_refuses() -> None:
    assert str(StudentHead(2.0)) == "StudentHead(nu=2)"
    for nu in (0.0, -1.0, math.nan):
        with pytest.raises(AssayError, match="nu of at least 0.001"):
            StudentHead(nu)
    with pytest.raises(ShapeError, match="torch.int64 of shape"):
        log_student(torch.ones(3, 2, dtype=torch.long))
