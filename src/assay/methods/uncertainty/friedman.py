r"""Friedman's test of several treatments on the same cases, and Nemenyi's of each pair of them.

    r_ij   the rank of treatment j in case i, ties shared;      R_j their mean over n cases, k treatments
    Q      = [12 n / (k (k+1)) sum_j (R_j - (k+1)/2)^2] / (1 - sum_ties (t^3 - t) / (n k (k^2 - 1)))   ~  chi^2, k - 1
    q_jl   = |R_j - R_l| / sqrt( k (k+1) / (12 n) )                                  ~  studentized range of k, inf

Where all treatments tie in every case nothing speaks against their being equal: both give 1.

Source: Friedman, JASA 1937; Nemenyi, Princeton 1963, as in Demsar, JMLR 2006, sec. 3.2.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import ShapeError


def friedman(scores: ArrayLike) -> float:  # n k -> in [0, 1]
    """The chance of ranks as uneven as these where no treatment is better than another."""

    from scipy.stats import chi2

    ranks = _ranks(scores)
    n, k = ranks.shape
    ties = sum(float((counts**3 - counts).sum()) for counts in (np.unique(row, return_counts=True)[1] for row in ranks))
    free = 1 - ties / (n * k * (k * k - 1))
    if free <= 0:
        return 1.0
    uneven = 12 * n / (k * (k + 1)) * float(((ranks.mean(0) - (k + 1) / 2) ** 2).sum())
    return float(chi2.sf(uneven / free, k - 1))


def nemenyi(scores: ArrayLike) -> NDArray[np.float64]:  # n k -> k k
    """The same of each pair of treatments, all pairs being looked at; 1 on the diagonal."""

    from scipy.stats import studentized_range

    ranks = _ranks(scores)
    n, k = ranks.shape
    mean = ranks.mean(0)
    apart = np.abs(mean[:, None] - mean) / np.sqrt(k * (k + 1) / (12 * n))
    found: NDArray[np.float64] = np.clip(studentized_range.sf(apart, k, np.inf), 0, 1)
    np.fill_diagonal(found, 1.0)
    return found


def _ranks(scores: ArrayLike) -> NDArray[np.float64]:
    from scipy.stats import rankdata

    given = np.asarray(scores, dtype=np.float64)
    if given.ndim != 2 or len(given) < 1 or given.shape[1] < 2 or not np.isfinite(given).all():
        raise ShapeError(
            f"Got scores of shape {given.shape}; give a finite number for each case and each of two or more treatments."
        )
    ranks: NDArray[np.float64] = rankdata(given, axis=1)
    return ranks
