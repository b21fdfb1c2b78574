r"""The least of a quadratic in a ball, by its eigenvectors: the reference that other solvers are held to.

    min_{|z| <= r} 1/2 z'Hz + g'z   is at   (H + mu I) z = -g   with   H + mu I >= 0,  mu >= 0,  mu (|z| - r) = 0

|z(mu)| falls as mu grows, so that halving an interval finds mu. Where g has no part along the lowest eigenvector (the
hard case), z(mu) may stay within the ball at mu = -lambda_min, and that eigenvector fills what is left of the radius.

Source: Moré & Sorensen, SIAM J. Sci. Stat. Comput. 4, 1983, sec. 2 and 3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from assay.errors import AssayError
from assay.methods.poison.propagation import Array

HALVINGS = 200
FLAT = 1e-13  # of the largest entry: what counts as no part at all


class Lowest(NamedTuple):
    """The least, and the multiplier of the ball: 0 where the least lies within."""

    z: Array
    multiplier: float


def lowest_in_ball(H: Array, g: Array, radius: float) -> Lowest:  # n n, n
    """The global least for any symmetric H."""
    if not radius > 0:
        raise AssayError(f"Got radius={radius:g}; a ball wants a radius above 0.")
    value, vector = linalg.eigh(H)
    part = vector.T @ g
    scale = max(float(np.abs(value).max()), float(np.abs(part).max()), np.finfo(float).tiny)
    bottom = value <= value[0] + FLAT * scale  # the lowest eigenvalue, as often as it comes
    floor = max(0.0, -float(value[0]))

    def at(mu: float, which: NDArray[np.bool_]) -> Array:
        """z(mu) in eigenvectors, along these alone."""
        return np.where(which, -part / np.where(which, value + mu, 1), 0.0)

    every = np.ones(len(value), bool)
    if value[0] > 0 and np.linalg.norm(at(0.0, every)) <= radius:
        return Lowest(vector @ at(0.0, every), 0.0)
    if value[0] <= 0 and np.abs(part[bottom]).max() <= FLAT * scale:
        within = at(floor, ~bottom)
        left = radius**2 - float(within @ within)
        if left >= 0:  # the hard case; where H is flat along the lowest vector, nothing is gained by filling up
            within[0] = np.sqrt(left) if floor > FLAT * scale else 0.0
            return Lowest(vector @ within, floor)
    low, high = floor, floor + float(np.linalg.norm(part)) / radius
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if np.linalg.norm(at(middle, every)) > radius else (low, middle)
    return Lowest(vector @ at(high, every), high)
