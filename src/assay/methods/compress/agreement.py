r"""How far criteria agree on which filters matter: rank correlations of a layer's scores, and clusters of criteria.

    rho(X, Y) = 1 - 6 sum_i d_i^2 / (n (n^2 - 1)),     d_i = rank(x_i) - rank(y_i)

holds where no two scores are equal; with ties at their mean rank, rho is Pearson's correlation of the ranks, which is
the same number where there are none. Row i of the matrix rho(S_i, S_j) is the correlation vector of criterion i, and
K-means (Euclidean) puts criteria with similar vectors into one cluster. Above `SAME` two rankings count as the same.

Sampling one criterion from each of K clusters of N criteria leaves prod |C_k| <= (N/K)^K <= binom(N, K) picks a layer.

Agreement is no merit of trained filters: of independent Gaussian ones L1 and L2 already rank .92 alike, FPGM and L2
above .98, for the length of a filter is in all of them.

Source: He, Huang, Liang, Liang & Yang, "Blending Pruning Criteria for Convolutional Neural Networks", ICANN 2021, eq. 1
    and 2, sec. 3.1; public name of the coefficient: Spearman 1904.
Departs from print: eq. 1 has d_i = |x_i - y_i| on the scores themselves, which depends on their units;
    `as_published=True` gives that number. Print says that 924^13 is about 3^38; it is 3.6e38.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError

SAME = 0.8  # rho from which on print takes two rankings for the same
STARTS = 10  # of K-means
Array = NDArray[np.float64]
Clusters = tuple[tuple[int, ...], ...]  # of one layer: the criteria, by number, of each


def by_ranks(x: NDArray[Any], y: NDArray[Any]) -> float:  # n, n
    """Spearman's coefficient by the formula above; of scores among which no two are equal."""
    x, y = _two(x, y)
    if len(np.unique(x)) < len(x) or len(np.unique(y)) < len(y):
        raise AssayError("The formula for Spearman's coefficient holds without ties; use spearman, which takes them.")
    n, (a, b) = len(x), _ranked(np.stack([x, y]))
    return float(1 - 6 * np.square(a - b).sum() / (n * (n**2 - 1)))


def spearman(x: NDArray[Any], y: NDArray[Any], *, as_published: bool = False) -> float:  # n, n
    """Spearman's coefficient, ties at their mean rank; constant scores agree with one another alone."""
    return float(matrix(np.stack(_two(x, y)), as_published=as_published)[0, 1])


def matrix(scores: NDArray[Any], *, as_published: bool = False) -> Array:  # i n -> i i
    """The coefficient of every two criteria, given the scores of one layer's filters by each."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ShapeError(f"Scores of shape {scores.shape} cannot be compared; give criteria x filters, at least two.")
    if as_published:
        n = scores.shape[1]
        apart = np.square(scores[:, None] - scores[None]).sum(-1)
        printed: Array = 1 - 6 * apart / (n * (n**2 - 1))
        return printed
    ranks = _ranked(scores)
    ranks -= ranks.mean(1, keepdims=True)
    length = np.linalg.norm(ranks, axis=1)
    flat = length == 0
    unit = ranks / np.where(flat, 1.0, length)[:, None]
    rho: Array = np.clip(unit @ unit.T, -1.0, 1.0)
    rho[np.ix_(flat, flat)] = 1.0
    np.fill_diagonal(rho, 1.0)
    return rho


def clusters(rho: Array, count: int, *, seed: int = 0) -> Clusters:  # i i
    """K-means of the rows into `count` clusters, none of them empty, in the order of their first criterion."""
    many = len(rho)
    if not 1 <= count <= many:
        raise AssayError(f"{many} criteria cannot be put into {count} clusters; give a number from 1 to {many}.")
    which = np.zeros(many, dtype=np.int64)
    rows = rho.round(9)  # rankings that are the same differ by rounding alone
    distinct = len(np.unique(rows, axis=0))
    if count > 1 and distinct > 1:
        from sklearn.cluster import KMeans

        which = KMeans(min(count, distinct), n_init=STARTS, random_state=seed).fit_predict(rows)
    found = [np.flatnonzero(which == k).tolist() for k in np.unique(which)]
    while len(found) < count:  # rows that are equal: any way to part them is as good
        largest = max(found, key=len)
        found.append([largest.pop()])
    return tuple(sorted(tuple(each) for each in found))


def picks(layers: Sequence[Clusters]) -> int:
    """How many ways there are to take one criterion from each cluster of each layer."""
    return math.prod(len(cluster) for layer in layers for cluster in layer)


def most_picks(criteria: int, count: int) -> float:
    """(N/K)^K: of one layer, however the criteria are clustered."""
    return float((criteria / count) ** count)


def _two(x: NDArray[Any], y: NDArray[Any]) -> tuple[Array, Array]:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise ShapeError(f"Scores of shape {x.shape} and {y.shape} cannot be compared; give as many of both, in rows.")
    return x, y


def _ranked(scores: Array) -> Array:  # i n -> i n
    """From 1, equal ones at the mean of their ranks."""
    from scipy.stats import rankdata  # takes a second to load

    ranks: Array = rankdata(scores, axis=1)
    return ranks
