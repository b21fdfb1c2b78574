r"""Whether domains lie in an order: their distances against a known parameter, or against the best order there is.

    with a parameter t     the correlation of d_ij with |t_i - t_j| over pairs of domains
    without one            over triples i < j < k in the best order, the share of d_ik < d_ij and of d_ik < d_jk: ends
                           that are nearer to each other than to what lies between (anti-Robinson events)

Each comes with the share of all orders of the domains, or of random distances, that look as well ordered. An order
and its reverse are one: four domains leave 12, so that p is 1/12 at best, and three leave 3, which tells nothing.

The best order is that of the Fiedler vector of max d - d_ij, which is the exact one where distances do follow an order.

Source: that domains have an order, and that invariance discards it: Wang, dissertation, TU Delft 2024, sec. 1.2.2 and
    8.1. Correlation of distances: Mantel 1967. Order by the Fiedler vector: Atkins, Boman & Hendrickson, SIAM J.
    Comput. 1998.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError

LEAST = 4  # domains; any three can be put into an order
ALL = 5040  # orders that are all looked at: seven domains; of more, as many are drawn
DEALS = 199
Floats = NDArray[np.float64]


class Along(NamedTuple):
    """How distances go with a parameter."""

    correlation: float
    p_value: float


class Seriated(NamedTuple):
    """The best order of domains, as places in the list given, and how badly distances follow it."""

    order: tuple[int, ...]
    residual: float
    p_value: float


def along_parameter(distances: Floats, parameter: Floats, *, seed: int) -> Along:  # d d, d
    """Pearson's correlation of pairwise distances with differences of the parameter, and its permutation p-value."""
    d = _checked(distances)
    t = np.asarray(parameter, dtype=np.float64)
    if t.shape != (len(d),) or np.ptp(t) == 0:
        raise AssayError(
            f"along_parameter got the parameter {t.tolist()} for {len(d)} domains; give one each, not all equal."
        )
    if len(d) < LEAST:
        raise AssayError(f"along_parameter got {len(d)} domains; fewer than {LEAST} tell nothing of an order.")
    gap = np.abs(t[:, None] - t)
    upper = np.triu_indices(len(d), 1)
    if math.factorial(len(d)) <= ALL:
        orders = np.array(list(itertools.permutations(range(len(d)))))  # the first is as given
    else:
        rng = np.random.default_rng(seed)
        orders = np.stack([np.arange(len(d)), *(rng.permutation(len(d)) for _ in range(ALL - 1))])
    seen = gap[upper] - gap[upper].mean()
    dealt = d[orders[:, upper[0]], orders[:, upper[1]]]  # o pairs
    dealt = dealt - dealt.mean(1, keepdims=True)
    r = dealt @ seen / (np.linalg.norm(dealt, axis=1) * np.linalg.norm(seen))
    return Along(float(r[0]), float((r >= r[0] - 1e-12).mean()))


def seriate(distances: Floats, *, seed: int) -> Seriated:  # d d
    """The best order, its residual, and the share of random arrangements of the same distances that do as well."""
    d = _checked(distances)
    if len(d) < LEAST:
        raise AssayError(f"seriate got {len(d)} domains; any three can be put into an order, so give {LEAST} or more.")
    order, residual = _best(d)
    rng, upper = np.random.default_rng(seed), np.triu_indices(len(d), 1)
    as_well = 1
    for _ in range(DEALS):
        dealt = np.zeros_like(d)
        dealt[upper] = rng.permutation(d[upper])
        as_well += _best(dealt + dealt.T)[1] <= residual
    return Seriated(tuple(order.tolist()), residual, as_well / (1 + DEALS))


def _best(d: Floats) -> tuple[NDArray[np.int64], float]:
    near = d.max() - d
    np.fill_diagonal(near, 0)
    _, vectors = np.linalg.eigh(np.diag(near.sum(1)) - near)
    order = np.argsort(vectors[:, 1])
    return order, events(d[np.ix_(order, order)])


def events(d: Floats) -> float:  # d d
    """How often ends are nearer to each other than one of them is to what lies between: of two chances a triple."""
    i, j, k = np.array(list(itertools.combinations(range(len(d)), 3))).T
    ends = d[i, k]
    return float(((ends < d[i, j]).mean() + (ends < d[j, k]).mean()) / 2)


def _checked(distances: Floats) -> Floats:
    d = np.asarray(distances, dtype=np.float64)
    if d.ndim != 2 or d.shape[0] != d.shape[1] or not np.allclose(d, d.T) or not np.isfinite(d).all():
        raise ShapeError(f"Distances of domains have shape {d.shape}; give a symmetric square of finite numbers.")
    if np.ptp(d[np.triu_indices(len(d), 1)]) == 0:
        raise AssayError(
            "All domains are equally far apart, so that no order shows; a constant representation does that."
        )
    return d
