r"""A machine that says whether a vector is genuine: what all of them give, and what all of them refuse.

    D(x) = sum_i c_i K(x_i, x) + b - own K(x, x),     accept where D(x) > threshold

with own = 1 for a sphere, D(x) = R^2 - || phi(x) - a ||^2, and 0 for a plane.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError

Array = NDArray[np.float64]


class Machine(NamedTuple):
    """`dual` are the multipliers and `slack` by how far each training vector may miss its side (0 for impostors)."""

    weight: Array  # n, c_i
    bias: float
    own: bool
    dual: Array  # n, or one for each impostor where only they have one
    slack: Array  # n

    def decide(self, k: Array, own: Array) -> Array:  # m n of K(x, x_i), m of K(x, x) -> m
        """D of each new vector."""
        d: Array = k @ self.weight + self.bias
        return d - own if self.own else d


def sides(k: Array, y: Array, lam: float) -> Array:  # n n, n
    """y as numbers, +1 genuine and -1 impostor, once it is clear that there is something to learn."""
    sign = np.asarray(y, dtype=np.float64)
    if np.shape(k) != (len(sign), len(sign)):
        raise ShapeError(f"The kernel matrix has shape {np.shape(k)} for {len(sign)} vectors; give (n, n).")
    strange = sign[~np.isin(sign, (-1.0, 1.0))]
    if len(strange):
        raise AssayError(f"A side is {strange[0]:g}; give +1 for genuine vectors and -1 for impostors.")
    for side, name in ((1.0, "genuine"), (-1.0, "impostor")):
        if not (sign == side).any():
            raise AssayError(f"None of the {len(sign)} training vectors is {name}; give at least one of each side.")
    if not lam > 0 or math.isnan(lam):
        raise AssayError(
            f"lambda is {lam:g}; it is what a genuine miss costs, and must be above 0 (inf: none allowed)."
        )
    return sign


def refuse_equal(x: Array, y: Array) -> None:  # n d, n
    """Refuse a genuine vector that is an impostor's too: whoever accepts the one accepts the other."""
    genuine = {row.tobytes(): i for i, row in enumerate(np.ascontiguousarray(x) + 0.0) if y[i] > 0}
    for i, row in enumerate(np.ascontiguousarray(x) + 0.0):
        if y[i] < 0 and row.tobytes() in genuine:
            raise AssayError(
                f"Training vectors {genuine[row.tobytes()]} (genuine) and {i} (impostor) are equal, so that nothing "
                "accepts the one and not the other; drop the wrong one, or take features that tell them apart."
            )
