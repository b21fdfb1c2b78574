r"""SH-SVM: a support vector machine that allows no training impostor in, and forgives genuine ones at a price.

With y = +1 genuine and -1 impostor,

    min 1/2 ||w||^2 + lambda/2 sum_{y_i = +1} xi_i^2    s.t.  y_i (w' phi(x_i) + b) >= 1 - (1 + y_i)/2 xi_i

whose dual is that of a hard margin on the kernel K + diag((1 + y)/(2 lambda)):

    max sum a_i - 1/2 sum_ij a_i a_j y_i y_j ( K_ij + (1 + y_i)/(2 lambda) delta_ij ),   a >= 0,  sum a_i y_i = 0
    xi_i = a_i / lambda (genuine), 0 (impostor);   b = mean over support vectors of y_j - sum_i a_i y_i (K_ij + ...)
    D(x) = sum a_i y_i K(x_i, x) + b

Every impostor has D <= -1: none of those in training is accepted. Of others nothing is said. w = 0, b = -1 meets every
constraint, so that there is always a solution, also where a genuine vector equals an impostor's (which is then
rejected); only with lambda = inf, the ordinary hard margin, may there be none. The L2-SVM, its control, has slack on
both sides: the kernel K + I/lambda.

Source: Yoshida & Kitamura, ICANN 2021, sec. 2.1, eqs. 1 to 13.
Departs from print: the dual there (10) lacks the 1/2, so that its multipliers are half of what (5) to (9) need.
    `as_published=True` follows it: with S the support vectors, D becomes (D + mean_S y) / 2, which rejects more genuine
    vectors where most support vectors are impostors. Print calls the genuine class negative.
"""

from __future__ import annotations

import numpy as np

from assay.methods.verify.machine import Array, Machine, sides
from assay.methods.verify.nonnegative_qp import Unbounded, nonnegative_qp


def semi_hard_svm(k: Array, y: Array, *, lam: float, as_published: bool = False) -> Machine:  # n n, n of +-1
    """Fit to a kernel matrix and sides; `lam` = inf forgives nothing."""
    sign = sides(k, y, lam)
    return _hard_margin(k, sign, (1 + sign) / (2 * lam), as_published)


def l2_svm(k: Array, y: Array, *, lam: float) -> Machine:  # n n, n of +-1
    """The control: both sides are forgiven, min 1/2 ||w||^2 + lambda/2 sum xi_i^2 over all."""
    sign = sides(k, y, lam)
    return _hard_margin(k, sign, np.full(len(sign), 1 / lam), False)


def _hard_margin(k: Array, y: Array, ridge: Array, as_published: bool) -> Machine:  # n n, n, n
    shifted = np.asarray(k, dtype=np.float64) + np.diag(ridge)
    start = _closest(shifted, y)
    a, b, _ = nonnegative_qp(y[:, None] * shifted * y, np.ones(len(y)), y=y, start=start)
    if as_published:
        a = a / 2
        held = a > 0
        b = float(np.mean(y[held] - (shifted @ (a * y))[held]))
    return Machine(a * y, b, False, a, a * ridge)


def _closest(k: Array, y: Array) -> tuple[int, int]:
    """A genuine vector and the impostor that is nearest to it but for those that are equal to it."""
    g = int(np.flatnonzero(y > 0)[0])
    others = np.flatnonzero(y < 0)
    apart = k[g, g] + k[others, others] - 2 * k[g, others]
    there = apart > 1e-12 * max(float(k[g, g]), 1e-300)
    if not there.any():
        raise Unbounded(
            "A genuine vector equals every impostor's and nothing is forgiven; take a finite lambda, or other features."
        )
    return g, int(others[there][apart[there].argmin()])
