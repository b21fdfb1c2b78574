from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import trapezoid

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty import ece
from assay.methods.uncertainty.output_calibration import kde_ece, output_ece_mean, output_ece_sum

Floats = NDArray[np.float64]


def drawn(n: int, k: int, seed: int, sharp: float = 1.0) -> tuple[Floats, NDArray[np.int64]]:
    """Probabilities, `sharp` times too sharp, and labels drawn from the right ones."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(n, k))
    y = (z + rng.gumbel(size=(n, k))).argmax(1)
    p = np.exp(sharp * (z - z.max(1, keepdims=True)))
    return p / p.sum(1, keepdims=True), y


def as_printed(p: Floats, y: NDArray[np.int64], bins: int = 15) -> float:
    """Eq. 3 and 4, a bin at a time."""
    n, k = p.shape
    total = 0.0
    for m in range(1, bins + 1):
        inside = [(i, j) for i in range(n) for j in range(k) if (m - 1) / bins < p[i, j] <= m / bins]
        if inside:
            likely = sum(float(y[i] == j) for i, j in inside) / len(inside)
            sure = sum(p[i, j] for i, j in inside) / len(inside)
            total += len(inside) / (n * k) * abs(likely - sure)
    return total


def test_it_is_eq_4_and_the_sum_is_k_times_that() -> None:
    p, y = drawn(60, 4, 0, 2.0)
    assert output_ece_mean(p, y) == pytest.approx(as_printed(p, y), rel=1e-12)
    assert output_ece_mean(p, y, bins=7) == pytest.approx(as_printed(p, y, 7), rel=1e-12)
    assert output_ece_sum(p, y) == pytest.approx(4 * as_printed(p, y), rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 30), k=st.integers(2, 12), sharp=st.floats(0.1, 30), seed=st.integers(0, 999))
def test_eq_4_never_exceeds_two_over_k(n: int, k: int, sharp: float, seed: int) -> None:
    p, y = drawn(n, k, seed, sharp)
    y = (y + seed) % k  # wrong as often as not
    assert 0 <= output_ece_mean(p, y) <= 2 / k + 1e-12
    assert output_ece_sum(p, y) <= 2 + 1e-12


def test_the_bound_is_reached_where_every_answer_is_certain_and_wrong() -> None:
    y = np.arange(200) % 100
    p = np.eye(100)[(y + 1) % 100]
    assert output_ece_mean(p, y) == pytest.approx(2 / 100)
    assert output_ece_sum(p, y) == pytest.approx(2)
    assert output_ece_sum(np.eye(100)[y], y) == 0


def test_over_confident_outputs_have_twice_the_error_of_their_largest_score() -> None:
    p, y = drawn(5000, 50, 0, 5.0)
    assert output_ece_sum(p, y) / ece(p, y) == pytest.approx(2, abs=0.3)


def test_the_density_is_that_of_the_printed_kernel() -> None:
    """Eq. 5 and 6 in one dimension by quadrature, on scores so far inside that no mirror is in reach."""
    rng = np.random.default_rng(0)
    s = rng.uniform(0.4, 0.6, 400)
    o = (rng.random(400) < s**2).astype(float)
    h = 1.06 * s.std() * 400**-0.2
    grid = np.linspace(0.2, 0.8, 4001)
    u = (grid[:, None] - s) / h
    kernel = np.where(np.abs(u) <= 1, 35 / 32 * (1 - u**2) ** 3, 0.0)
    f = kernel.mean(1) / h
    c = np.divide(kernel @ o, kernel.sum(1), out=grid.copy(), where=kernel.sum(1) > 0)
    want = trapezoid(np.abs(grid - c) * f, grid)
    assert kde_ece(s, o) == pytest.approx(want, rel=1e-3)
    p, y = drawn(300, 5, 1, 3.0)
    assert output_ece_sum(p, y, estimator="kde") == pytest.approx(5 * kde_ece(p.ravel(), np.eye(5)[y].ravel()))


def test_what_it_refuses() -> None:
    p, y = drawn(5, 3, 0)
    assert output_ece_mean(np.log(p), y, logits=True) == pytest.approx(output_ece_mean(p, y))
    with pytest.raises(AssayError, match="pass logits=True"):
        output_ece_mean(np.log(p), y)
    with pytest.raises(AssayError, match="sum to 0.5"):
        output_ece_sum(p / 2, y)
    with pytest.raises(AssayError, match="nan"):
        output_ece_sum(p * np.nan, y)
    with pytest.raises(AssayError, match="labels are 0 to 2"):
        output_ece_mean(p, y + 3)
    with pytest.raises(ShapeError, match="n x k probabilities"):
        output_ece_mean(p[:, 0], y)
