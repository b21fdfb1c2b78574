r"""Calibration errors of bins from which the bias of few inputs a bin is taken off: of the gaps, and of their squares.

With n_j inputs in bin j, share w_j = n_j / n, mean outcome a_j and mean score s_j, and var_j = a_j (1 - a_j)

    L1   sum_j w_j ( 2 |a_j - s_j| - E | N(a_j - s_j, var_j / n_j) | )
    L2   sqrt( max(0, sum_j w_j ( (a_j - s_j)^2 - var_j / (n_j - 1) )) )

Chance makes |a - s| too large on average, by about as much as drawing again around what was seen makes it larger once
more: that much is taken off in L1. The folded normal has E|N(m, v)| = sqrt(2v/pi) exp(-m^2/2v) + m erf(m/sqrt(2v)).
In L2 it is known exactly: E a_j (1 - a_j) / (n_j - 1) is the variance of a_j.

Source: Kumar, Liang & Ma, "Verified Uncertainty Calibration", NeurIPS 2019, arXiv:1909.10155, sec. 5 (L2) and the
    authors' public code, p-lambda/verified_calibration (L1, where E|N| is a mean of 1,000 draws).
Departs from print: E|N| in closed form. Bins with a single input have no variance, and add nothing to L2.
Mind that neither is what `above_floor` gives: near calibration L1 keeps about 0.6 of the floor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from assay.methods.uncertainty.calibration import BINS, equal_bins
from assay.methods.uncertainty.probabilities import Floats, pairs


def debiased_ece(scores: ArrayLike, outcomes: ArrayLike, *, bins: int = BINS) -> float:  # n in [0, 1], n of 0 or 1
    """L1: the expected calibration error less its estimated bias; below 0 where chance did better than expected."""
    count, gap, rate = _binned(scores, outcomes, bins)
    spread = rate * (1 - rate) / count
    return float(count @ (2 * np.abs(gap) - folded_mean(gap, spread)) / count.sum())


def debiased_rmsce(scores: ArrayLike, outcomes: ArrayLike, *, bins: int = BINS) -> float:  # n in [0, 1], n of 0 or 1
    """L2: the root of the mean squared gap, its square unbiased; 0 where that is negative."""
    count, gap, rate = _binned(scores, outcomes, bins)
    many = count > 1
    square = gap[many] ** 2 - rate[many] * (1 - rate[many]) / (count[many] - 1)
    return float(np.sqrt(max(0.0, float(count[many] @ square / count.sum()))))


def folded_mean(mean: Floats, variance: Floats) -> Floats:
    """E|N(mean, variance)|."""
    sd = np.sqrt(np.maximum(variance, 1e-300))
    z = mean / sd
    with np.errstate(over="ignore"):  # a gap far beyond its noise: exp(-inf) is 0
        return np.asarray(sd * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2) + mean * erf(z / np.sqrt(2)))


def _binned(scores: ArrayLike, outcomes: ArrayLike, bins: int) -> tuple[Floats, Floats, Floats]:  # -> b, b, b
    """Of each bin that is not empty: inputs, mean outcome less mean score, mean outcome."""
    score, hit = pairs(scores, outcomes)
    at = equal_bins(score, bins)
    count = np.bincount(at, minlength=bins).astype(np.float64)
    full = count > 0
    gap, rate = (np.bincount(at, v, bins)[full] / count[full] for v in (hit - score, hit))
    return count[full], gap, rate
