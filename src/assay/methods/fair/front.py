r"""How good a set of trade-offs is: hypervolume, pure diversity, spacing. Every objective is to be low.

    HV       the volume of the points that some member is at least as good as, below a reference point
    PD       = max_s [ PD(X - s) + d(s, X - s) ],   d(s, X) = min over x in X of ||s - x||_0.1,   0 for one point
    spacing  = sqrt( 1 / (n - 1) sum_i (mean d - d_i)^2 ),   d_i = min over j != i of ||x_i - x_j||_1

The maximum goes over all orders. What the field calls PD is a greedy stand-in, and so it is here, because printed
values are made with it: the point whose nearest neighbour is farthest is linked to it and done with, and neighbours to
which a chain of links leads already do not count any more. It stays below the maximum, of seven random points by a
third. Two that are each other's nearest are a tie, which the order of the points would decide; they are sorted first.

Sources: hypervolume: Zitzler and Thiele, IEEE Trans. Evol. Comput. 3(4), 1999. Pure diversity: Wang, Jin and Yao, IEEE
    Trans. Cybern. 47(6), 2017. Spacing: Schott, thesis, MIT 1995.
In "Fairer Machine Learning Through Multi-objective Evolutionary Learning" (Zhang et al., ICANN 2021, sec. 4.1) PD is
    ascribed to another source. Their normalisation is `normalised`: each objective divided by 1.1 times its largest
    value among all non-dominated points of a data set, with 1 as the reference (from later code by the authors; print
    has a nadir of 1.1 "after normalisation" and not the rest).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError

Array = NDArray[np.float64]
NADIR = 1.1
POWER = 0.1


def non_dominated(points: Array) -> NDArray[np.bool_]:  # n k -> n
    """Which of them nothing is better than: no other is as good in every objective and better in one."""
    at = _checked(points)
    as_good = (at[:, None] <= at).all(-1)
    dominates = as_good & (at[:, None] < at).any(-1)
    return np.asarray(~dominates.any(0))


def normalised(points: Array, pooled: Array) -> Array:  # n k, m k -> n k
    """In shares of 1.1 times the largest value of each objective among the non-dominated of `pooled`."""
    most = _checked(pooled)[non_dominated(pooled)].max(0)
    if not (most > 0).all():
        raise AssayError(f"The largest objectives are {most.tolist()}; they are divided by, so each must be above 0.")
    return np.asarray(_checked(points) / (NADIR * most))


def hypervolume(points: Array, reference: Array) -> float:  # n k, k
    """What these points dominate below the reference, exactly; of three objectives slice by slice."""
    at = _checked(points)
    if reference.shape != at.shape[1:]:
        raise ShapeError(f"The reference has shape {reference.shape} for points of {at.shape}; give one number each.")
    return _volume(at[(at < reference).all(1)], reference)


def _volume(at: Array, reference: Array) -> float:
    if not len(at):
        return 0.0
    if len(reference) == 1:
        return float(reference[0] - at.min())
    if len(reference) == 2:
        order = at[np.lexsort((at[:, 1], at[:, 0]))]
        height = reference[1] - np.minimum.accumulate(order[:, 1])
        return float((np.diff(order[:, 0], append=reference[0]) * height).sum())
    order = at[at[:, -1].argsort(kind="stable")]
    thick = np.diff(order[:, -1], append=reference[-1])
    slices = [t * _volume(order[: i + 1, :-1], reference[:-1]) for i, t in enumerate(thick) if t > 0]
    return float(sum(slices))


def pure_diversity(points: Array) -> float:  # n k
    """How dissimilar they are, summed; the greater, the more diverse. 0 for a single point."""
    at = _checked(points)
    at = at[np.lexsort(at.T)]
    far = (np.abs(at[:, None] - at) ** POWER).sum(-1) ** (1 / POWER)
    linked = np.arange(len(at))  # who share a number are linked
    waiting, total = np.ones(len(at), dtype=bool), 0.0
    for _ in range(len(at) - 1):
        open_ = np.where(linked[:, None] == linked, np.inf, far)
        nearest = open_.min(1)
        i = int(np.where(waiting, nearest, -np.inf).argmax())
        j = int(open_[i].argmin())
        total += float(nearest[i])
        linked[linked == linked[j]] = linked[i]
        waiting[i] = False
    return total


def spacing(points: Array) -> float:  # n k
    """How uneven the gaps to the nearest neighbours are; 0 where all are the same."""
    at = _checked(points)
    if len(at) < 2:
        raise AssayError("The spacing of one point is not defined; give at least two.")
    gaps = np.abs(at[:, None] - at).sum(-1)
    np.fill_diagonal(gaps, np.inf)
    return float(gaps.min(1).std(ddof=1))


def _checked(points: Array) -> Array:
    at = np.asarray(points, dtype=np.float64)
    if at.ndim != 2 or not at.size:
        raise ShapeError(f"A front has shape {at.shape}; give n points with k objectives each, n and k above 0.")
    if not np.isfinite(at).all():
        raise AssayError("A front holds a value that is not finite; leave that point out.")
    return at
