r"""Scores that honest probabilities minimise on average, Brier's and the logarithmic one, and how sharp forecasts are.

    Brier = mean (s - o)^2 = reliability - resolution + uncertainty + within,   over equal bins j with n_j inputs:
        reliability = sum_j n_j/n (mean s_j - mean o_j)^2,   resolution = sum_j n_j/n (mean o_j - mean o)^2
        uncertainty = mean o (1 - mean o),   within = mean (s_i - mean s_j)^2 - 2 mean (s_i - mean s_j)(o_i - mean o_j)
    NLL = mean -log p_y
    sharpness = mean || p_i - mean p ||^2

Source: Murphy, J. Appl. Meteor. 1973 (the parts of Brier's score); Stephenson et al., Weather and Forecasting 2008
    (what varies within bins); Gneiting & Raftery, JASA 2007 (proper scores); Gneiting et al., JRSS B 2007 (sharpness).
Departs from print: of k classes Brier's score and its parts are sums over the classes; sharpness is the variance of the
    forecasts, where print looks at the width of prediction intervals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax

from assay.methods.uncertainty.calibration import BINS, equal_bins
from assay.methods.uncertainty.probabilities import (
    check_simplex,
    finite,
    in_unit,
    labels_of,
    pairs,
    probabilities_of,
    taken,
)


class Brier(NamedTuple):
    """value = reliability - resolution + uncertainty + within, exactly."""

    value: float
    reliability: float
    """Squared gap between mean score and frequency, over bins: what recalibration can take off."""
    resolution: float
    """Variance of the frequencies of the bins: how well the scores sort the inputs."""
    uncertainty: float
    """Brier score of the base rate."""
    within: float
    """What varies inside the bins; none if all scores of a bin are equal."""


def brier(
    scores: ArrayLike, outcomes: ArrayLike, *, bins: int = BINS, logits: bool = False
) -> Brier:  # n in [0, 1], n of 0 or 1;  or n k, n labels
    """Brier's score and its parts, summed over the classes of n x k probabilities."""
    table = taken(scores)
    if table.ndim == 1:
        forecasts = [pairs(table, outcomes)]
    else:
        label, columns = labels_of(outcomes, table), probabilities_of(table, logits).T
        forecasts = [(column, (label == c).astype(np.float64)) for c, column in enumerate(columns)]
    parts = []
    for score, hit in forecasts:
        at = equal_bins(score, bins)
        count = np.maximum(np.bincount(at, minlength=bins), 1)
        mean, rate = (np.bincount(at, weights=v, minlength=bins) / count for v in (score, hit))
        spread, base = score - mean[at], hit.mean()
        parts.append(
            (
                ((score - hit) ** 2).mean(),
                ((mean - rate)[at] ** 2).mean(),
                ((rate[at] - base) ** 2).mean(),
                base * (1 - base),
                (spread**2 - 2 * spread * (hit - rate[at])).mean(),
            )
        )
    return Brier(*(float(v) for v in np.sum(parts, axis=0)))


def nll(probabilities: ArrayLike, labels: ArrayLike, *, logits: bool = False) -> float:  # n k, n
    """Mean negative log-probability of what came, in nats; infinite where that had probability 0."""
    table = np.asarray(probabilities, dtype=np.float64)
    label = labels_of(labels, table)
    if logits:
        surprise = -log_softmax(finite(table), axis=1)[np.arange(len(label)), label]
    else:
        check_simplex(table.T)
        with np.errstate(divide="ignore"):
            surprise = -np.log(table[np.arange(len(label)), label])
    return float(surprise.mean())


def sharpness(probabilities: ArrayLike) -> float:  # n in [0, 1], or n k
    """Mean squared distance of the forecasts from their mean: 0 for one that always says the same, right or wrong."""
    table = taken(probabilities)
    given = in_unit(table)[:, None] if table.ndim == 1 else probabilities_of(table, logits=False)
    return float(((given - given.mean(0)) ** 2).sum(1).mean())
