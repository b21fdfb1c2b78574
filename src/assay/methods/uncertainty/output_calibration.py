r"""The calibration error of all outputs of a classifier at once, not of the largest alone.

With the n K pairs of an input i and a class k, scores p_ik and outcomes [y_i = k], in M equal bins of the scores

    mean   sum_m |B_m| / (n K)  | lik(B_m) - conf(B_m) |                             as printed, eq. 4
    sum    sum_m |B_m| / n      | lik(B_m) - conf(B_m) |                             K times that

The gaps of an input sum to at most 2 (1 from the classes that got too much, 1 from those that got too little), so that
the mean is at most 2/K and the sum at most 2. The tables of the source have up to 58 % for K = 200, where the mean
cannot exceed 1 %: they must be sums. For a net that is sure and often wrong the sum is about twice the error of the
largest score, as in those tables.

Source: Liu & JaJa, "Class-Similarity Based Label Smoothing for Confidence Calibration", ICANN 2021, eq. 3-6.
Departs from print: "kde" is one-dimensional over the n K pairs. Print has a product of K kernels, whose bandwidth of
    n^(-1/5) leaves nearly every input alone for K = 100. Its bandwidth h = 1.06 sd N^(-1/5) is the kernel's reach,
    three times its standard deviation. Densities are mirrored at 0 and 1, where print loses what lies beyond.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from assay.methods.uncertainty.calibration import ece
from assay.methods.uncertainty.probabilities import labels_of, probabilities_of, taken

Estimator = Literal["legacy", "kde"]


def output_ece_mean(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int | None = None,
    estimator: Estimator = "legacy",
    logits: bool = False,
) -> float:  # n k, n -> in [0, 2/k]
    """Eq. 4 as printed: the mean over inputs and classes."""
    table = taken(probabilities)
    y = labels_of(labels, table)
    p = probabilities_of(table, logits).clip(0, 1)  # half precision can lie above 1
    came = np.zeros_like(p)
    came[np.arange(len(y)), y] = 1
    if estimator == "kde":
        return kde_ece(p.ravel(), came.ravel())
    return ece(p.ravel(), came.ravel(), estimator=estimator, bins=bins)


def output_ece_sum(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int | None = None,
    estimator: Estimator = "legacy",
    logits: bool = False,
) -> float:  # n k, n -> in [0, 2]
    """The same, summed over the classes: what the printed tables must hold."""
    mean = output_ece_mean(probabilities, labels, bins=bins, estimator=estimator, logits=logits)
    return mean * float(np.shape(probabilities)[1])


def kde_ece(scores: ArrayLike, outcomes: ArrayLike) -> float:  # n in [0, 1], n of 0 or 1
    """Eq. 6 in one dimension with the triweight kernel and its printed bandwidth."""
    s = np.asarray(scores, dtype=np.float64)
    reach = 1.06 * float(s.std()) * len(s) ** -0.2
    return ece(s, outcomes, estimator="kde", bandwidth=max(reach / 3, 1e-9))  # all scores equal: no width
