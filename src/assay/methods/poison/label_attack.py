r"""The small change of training targets that most corrupts label propagation.

    max_{|delta| <= d} |K (y_l + delta) - h|^2

h is the truth y_u of the unlabelled nodes (`known_truth`: a quadratic in a ball that bends the wrong way, solved to its
global best), or their own answers K y_l (`unknown_truth`: delta = +-d v_1, the top right singular vector of K), or with
min instead of max what an enemy wants them to be (`towards`).

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.3 and 1.2.4 (eq. 1.3a and 1.3b); Liu
    et al., NeurIPS 2019.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator

from assay.errors import AssayError, ShapeError
from assay.methods.poison.propagation import Array
from assay.methods.poison.secular import lowest_in_ball
from assay.methods.poison.trust_region import Descent, Extreme, descend, extremes


class Curve(NamedTuple):
    """What changes of growing norm do: the targets they leave, and the error on the unlabelled nodes."""

    radii: Array  # r
    targets: Array  # r l
    rmse: Array  # r
    clean: float  # the error before any change


def squared(K: Any) -> Any:  # u l -> l l
    """K'K: a matrix, or for an operator one that is never formed."""
    if isinstance(K, np.ndarray):
        return K.T @ K
    both = K.T @ K
    return LinearOperator((K.shape[1], K.shape[1]), both.matvec, dtype=np.dtype(np.float64), rmatvec=both.matvec)


def unknown_truth(K: Any, radius: float) -> Array:  # u l -> l
    """delta = d v_1 for an enemy who does not know the truth; its sign, which is free, is that which raises targets."""
    _positive(radius)
    return radius * _top(extremes(-1 * squared(K)))


def known_truth(K: Any, labels: Array, truth: Array, radius: float) -> Array:  # u l, l, u -> l
    """The global best delta for an enemy who knows the truth; its norm is the radius."""
    _positive(radius)
    labels, truth = _fits(K, labels, truth)
    bend = -1 * squared(K)
    return radius * _scaled(bend, K.T @ (truth - K @ labels), radius, extremes(bend)).z


def towards(K: Any, labels: Array, goal: Array, radius: float) -> Array:  # u l, l, u -> l
    """The delta that brings the answers nearest to a goal; it may need less than the radius."""
    _positive(radius)
    labels, goal = _fits(K, labels, goal)
    bend = squared(K)
    whole = bend if isinstance(bend, np.ndarray) else bend @ np.eye(len(labels))
    return lowest_in_ball(whole, K.T @ (K @ labels - goal), radius).z


def worst_targets(
    K: Any, labels: Array, truth: Array, radii: ArrayLike, *, known: bool = True, as_published: bool = False
) -> Curve:  # u l, l, u, r
    """The attacked targets at each radius and the error that they cause; `known` says if the enemy sees the truth.

    Without the truth the sign of delta is free. `as_published=True` takes the worse of the two by the truth, as the
    authors' code does; else it is that which raises targets.
    """
    labels, truth = _fits(K, labels, truth)
    radii = np.atleast_1d(np.asarray(radii, np.float64))
    if not (radii >= 0).all():
        raise AssayError(f"Got a radius of {radii.min():g}; radii want 0 or more.")
    bend, miss = -1 * squared(K), truth - K @ labels
    known_ends, pull = extremes(bend), K.T @ miss
    targets, errors = [], []
    for radius in radii:
        if not radius:
            changes = [np.zeros_like(labels)]
        elif known:
            changes = [radius * _scaled(bend, pull, radius, known_ends).z]
        else:
            changes = [sign * radius * _top(known_ends) for sign in ((1, -1) if as_published else (1,))]
        left = [rmse(K @ delta, miss) for delta in changes]
        worst = int(np.argmax(left))
        targets.append(labels + changes[worst])
        errors.append(left[worst])
    return Curve(radii, np.stack(targets), np.array(errors), rmse(0 * miss, miss))


def rmse(answers: Array, truth: Array) -> float:
    return float(np.sqrt(np.mean((answers - truth) ** 2)))


def _scaled(bend: Any, pull: Array, radius: float, ends: Extreme) -> Descent:
    """z = delta / d in the unit ball."""
    r2 = radius * radius
    return descend(r2 * bend, radius * pull, known=Extreme(r2 * ends.norm, r2 * ends.value, ends.vector))


def _top(ends: Extreme) -> Array:
    return ends.vector if ends.vector.sum() >= 0 else -ends.vector


def _positive(radius: float) -> None:
    if not radius > 0:
        raise AssayError(f"Got d_max={radius:g}; a change of targets wants a norm above 0.")


def _fits(K: Any, labels: Array, other: Array) -> tuple[Array, Array]:
    labels, other = np.asarray(labels, np.float64), np.asarray(other, np.float64)
    if (*other.shape, *labels.shape) != tuple(K.shape):
        raise ShapeError(
            f"Got targets of {labels.shape} and {other.shape} for K of {tuple(K.shape)}; it wants one a column, and "
            "one a row."
        )
    return labels, other
