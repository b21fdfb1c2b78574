r"""The least of a quadratic in the unit ball by its gradient alone: inside the ball, then around its sphere.

    min_{|z| <= 1} f(z) = 1/2 z'Hz + g'z
    z_0 = -alpha g/|g|,   0 < alpha < min(1, |g|^3 / |g'Hg|)
    inside, while |z| < 1:   z <- z - eta (Hz + g),   eta < 1 / |H|
    around:                  z <- (z - a r) / |z - a r|,   r = (I - zz')(Hz + g),   a by Armijo's rule

The start keeps every part of z on the side of -g along its eigenvector, which parts the global least from the others.

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.4, algorithm 1, theorems 1 and 2.
Departs from print: alpha is capped by the bound of theorem 1, where the listing has 0.5; the first point outside is put
    on the sphere; a part of the lowest eigenvector is added where g has none (the hard case, in which the listing ends
    on a saddle, or divides by 0); steps inside are capped, as a least within the ball is never left.
    `as_published=True` starts from 0.5 and adds nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import eigsh

from assay.methods.poison.propagation import Array

STEPS = 20_000
ARMIJO = 1e-4  # of the slope's promise that a step must keep
SMALL = 1e-12  # of |H| + |g|: a gradient that is nothing
PART = 1e-8  # of |g|: less along the lowest eigenvector is the hard case
NUDGE = 0.1
DENSE = 64  # rows up to which all eigenvalues are found


class Descent(NamedTuple):
    """Where it ended, and what says whether that is the least: `multiplier` >= -lambda_min and a `slope` of nothing."""

    z: Array
    inside: int  # steps of phase I
    around: int  # steps of phase II
    multiplier: float  # mu with (H + mu) z = -g; 0 within the ball
    slope: float  # |r| at the end, as a share of |H| + |g|


class Extreme(NamedTuple):
    """|H|, and the lowest eigenvalue with its vector."""

    norm: float
    value: float
    vector: Array


def extremes(H: Any) -> Extreme:
    """By Lanczos where H is large; H is a matrix, or an operator with `@`."""
    n = H.shape[0]
    if n <= DENSE:
        value, vector = linalg.eigh(H if isinstance(H, np.ndarray) else H @ np.eye(n))
        return Extreme(float(np.abs(value).max()), float(value[0]), vector[:, 0])
    start = np.ones(n) / np.sqrt(n)
    value, vector = eigsh(H, 1, which="LM", v0=start)
    norm = float(np.abs(value[0]))
    if value[0] > 0:
        value, vector = eigsh(H, 1, which="SA", v0=start)
    return Extreme(norm, float(value[0]), vector[:, 0])


def descend(
    H: Any, g: Array, *, steps: int = STEPS, known: Extreme | None = None, as_published: bool = False
) -> Descent:
    """The global least in the unit ball; H is symmetric, a matrix or an operator."""
    norm, lowest, vector = known or extremes(H)
    length = float(np.linalg.norm(g))
    scale = norm + length
    if length <= SMALL * norm or not scale:  # a sphere has no better point than its lowest eigenvector, the ball may
        z = vector if lowest < 0 else np.zeros_like(g)
        return Descent(z, 0, 0, max(0.0, -lowest), 0.0)
    unit = g / length
    z = -min(0.5, 0.5 if as_published else 0.99 * length / max(abs(float(unit @ (H @ unit))), 1e-300)) * unit
    if not as_published and lowest < 0 and abs(part := float(vector @ g)) <= PART * length:
        z = z - NUDGE * (1 if part >= 0 else -1) * vector
    inside, eta = 0, 0.99 / norm if norm else 1 / length
    while inside < steps:
        slope = H @ z + g
        if np.linalg.norm(slope) <= SMALL * scale:
            return Descent(z, inside, 0, 0.0, float(np.linalg.norm(slope)) / scale)
        z, inside = z - eta * slope, inside + 1
        if z @ z >= 1:
            return _around(H, g, z / np.linalg.norm(z), norm, scale, inside, steps)
    return Descent(z, inside, 0, 0.0, float(np.linalg.norm(H @ z + g)) / scale)


def _around(H: Any, g: Array, z: Array, norm: float, scale: float, inside: int, steps: int) -> Descent:
    """Phase II. One product with H a step: those of the line search follow from Hz and Hr."""
    Hz, first, taken = H @ z, 1 / norm if norm else 1 / scale, 0
    while True:
        mu = -float(z @ (Hz + g))
        r = Hz + g + mu * z
        square = float(r @ r)
        if square <= (SMALL * scale) ** 2 or taken == steps:
            return Descent(z, inside, taken, mu, float(np.sqrt(square)) / scale)
        Hr = H @ r
        bend, along, height, tilt = float(r @ Hr), float(r @ g), float(z @ Hz), float(z @ g)
        a = first
        while a > 1e-18 * first:
            more = a * a * square  # |z - a r|^2 - 1
            n = np.sqrt(1 + more)
            # f(new) - f(z), in terms that all shrink with |r|^2: as a difference of values it would be lost to rounding
            change = (-a * square + a * a * bend / 2 - a * along * more / (n + 1) - height * more / 2) / n**2
            change -= tilt * more / (n * (n + 1))
            if change <= -ARMIJO * a * square:
                break
            a /= 2
        z, Hz = z - a * r, Hz - a * Hr
        length = float(np.linalg.norm(z))
        z, Hz, taken = z / length, Hz / length, taken + 1
