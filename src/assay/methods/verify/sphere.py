r"""SH-SVDD: a sphere around the genuine vectors that no training impostor is inside of.

    min R^2 + lambda/2 sum_{y_i = +1} xi_i^2     s.t.  genuine ||phi(x_i) - a||^2 <= R^2 - m + xi_i,
                                                       impostor ||phi(x_i) - a||^2 >= R^2 + m

with the margin m = 1 or 0. The centre is a = sum a_i y_i phi(x_i), and the dual

    max sum a_i (y_i K_ii + m) - sum_ij a_i a_j y_i y_j ( K_ij + (1 + y_i)/(4 lambda) delta_ij )
    s.t. a >= 0,  sum a_i y_i = 1
    xi_i = a_i / lambda (genuine);   R^2 = d_i^2 + m y_i - (1 + y_i)/(2 lambda) a_i of each support vector
    D(x) = R^2 - || phi(x) - a ||^2

R^2 is a number, which may come out below 0: then the sphere is empty and everything is rejected. So there is always a
solution. Where K(x, x) is constant (RBF), the sphere is a plane: with w = 2 a and b = R^2 - ||a||^2 - K(x, x) it
minimises b + ||w||^2 / 4 + lambda/2 sum xi^2 under the constraints of SH-SVM.

Source: Yoshida & Kitamura, ICANN 2021, sec. 2.3, eqs. 25 to 36.
Departs from print: its problem (25, 26) has the margin 1, its dual (33) and radius (32) are those of the margin 0.
    `margin=1` solves the problem, `margin=0` is the dual as published.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from assay.errors import AssayError
from assay.methods.verify.machine import Array, Machine, sides
from assay.methods.verify.nonnegative_qp import nonnegative_qp

Margin = Literal[0, 1]


def sphere(k: Array, y: Array, *, lam: float, margin: Margin = 1) -> Machine:  # n n, n of +-1
    """Fit to a kernel matrix and sides. The bias is R^2 - ||a||^2, so that R^2 = bias + ||a||^2."""
    sign = sides(k, y, lam)
    if margin not in (0, 1):
        raise AssayError(
            f"The margin of the sphere is {margin}; it is 1, as its problem has it, or 0, as its dual does."
        )
    k = np.asarray(k, dtype=np.float64)
    ridge = (1 + sign) / (4 * lam)
    own = np.diagonal(k)
    shifted = 2 * (k + np.diag(ridge))
    a, bias, _ = nonnegative_qp(
        sign[:, None] * shifted * sign, sign * own + margin, y=sign, total=1.0, start=(int(sign.argmax()),)
    )
    # the multiplier of sum a_i y_i = 1 is R^2 - ||a||^2: at a support vector d_i^2 - ||a||^2 = mu - m y_i + xi_i
    return Machine(2 * a * sign, bias, True, a, 2 * a * ridge)


def radii(k: Array, y: Array, machine: Machine, *, lam: float, margin: Margin = 1) -> Array:  # n n, n -> s
    """R^2 as each support vector has it; they agree."""
    centre = machine.weight / 2
    away = np.diagonal(k) - 2 * k @ centre + centre @ k @ centre  # n
    held = machine.dual > 0
    each: Array = (away + margin * y - (1 + y) / (2 * lam) * machine.dual)[held]
    return each
