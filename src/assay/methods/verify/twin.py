r"""SH-TWSVM: a plane through the genuine vectors that keeps every training impostor at least 1 below it.

With A the genuine and B the impostor vectors, C both, e ones,

    min 1/2 || K(A, C) w + e b ||^2 + eps/2 ||(w, b)||^2    s.t.  K(B, C) w + e b <= -e
    L = [K(A, C), e],  R = [K(B, C), e],   (w, b) = -(L' L + eps I)^-1 R' a
    max e' a - 1/2 a' R (L' L + eps I)^-1 R' a,   a >= 0;      D(x) = K(x, C) w + b

Genuine vectors are fitted *to* 0, and impostors lie at -1 or below: a threshold of 0, as printed, rejects about half of
the genuine ones whatever the data, and more of new ones. Half way, -0.5, is where one would put it.

Source: Yoshida & Kitamura, ICANN 2021, sec. 2.2, eqs. 14 to 24; Khemchandani & Suresh 2007 (twin SVMs).
Departs from print: L has as many rows as there are genuine vectors and far more columns, so that L' L has no inverse;
    the ridge eps gives it one (print has none, and cannot be computed as printed).
"""

from __future__ import annotations

import numpy as np

from assay.errors import AssayError
from assay.methods.verify.machine import Array, Machine, sides
from assay.methods.verify.nonnegative_qp import nonnegative_qp

RIDGE = 1e-3


def twin(k: Array, y: Array, *, ridge: float = RIDGE) -> Machine:  # n n, n of +-1
    """Fit to a kernel matrix and sides; `ridge` is eps."""
    sign = sides(k, y, 1.0)
    if not (np.isfinite(ridge) and ridge > 0):
        raise AssayError(f"The ridge is {ridge:g}; without one above 0 the matrix of a twin SVM has no inverse.")
    near, far = (
        np.column_stack([np.asarray(k, dtype=np.float64)[sign == s], np.ones((sign == s).sum())]) for s in (1, -1)
    )
    # (L' L + eps I)^-1 = (I - V diag(s^2 / (s^2 + eps)) V') / eps, with L = U diag(s) V'
    _, size, v = np.linalg.svd(near, full_matrices=False)
    part = size**2 / (size**2 + ridge)  # m

    def undone(rows: Array) -> Array:  # r n+1 -> r n+1
        within = rows @ v.T
        solved: Array = (rows - (within * part) @ v) / ridge
        return solved

    solved = undone(far)
    h = solved @ far.T
    a, _, _ = nonnegative_qp((h + h.T) / 2, np.ones(len(far)))
    z = -(a @ solved)
    slack = np.zeros(len(sign))
    return Machine(z[:-1], float(z[-1]), False, a, slack)
