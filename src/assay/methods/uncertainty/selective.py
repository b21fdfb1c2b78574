r"""Answer only when sure: how much can be answered, and how often that is wrong.

With the inputs that have at least the confidence t answered,

    coverage(t) = share answered,   risk(t) = share of them that is wrong
    area under the curve (AURC) = (1/n) sum_i risk(confidence_i),   of the best possible order with m of n wrong:
        (1/n) sum_{i = n-m+1..n} (i - (n - m)) / i

Inputs of equal confidence are answered together or not at all. In random order the area is the error rate. The largest
coverage whose risk is at most r on the sample flatters: it was chosen there. `guaranteed` gives the coverage at which
the risk on new inputs of the same kind is at most r with probability 1 - delta over the sample: a binary search for the
threshold whose every step, of at most ceil(log2 n), is an exact binomial (Clopper-Pearson) bound at delta over their
number.

Source: El-Yaniv & Wiener, JMLR 2010 (risk and coverage); Geifman, Uziel & El-Yaniv, ICLR 2019, arXiv:1805.08206 (the
    areas); Geifman & El-Yaniv, NeurIPS 2017, arXiv:1705.08500, algorithm 1 (the guarantee).
Departs from print: the excess of the area over the best one is left to the reader, and the best one is exact, where
    print approximates it by r + (1 - r) log(1 - r). Thresholds of the search are those that part the inputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.probabilities import Floats, pairs


class RiskCoverage(NamedTuple):
    """One entry per threshold, from the surest inputs on; with a leading axis for resamples where there are any."""

    threshold: Floats  # t, falling
    coverage: Floats  # ... t
    risk: Floats  # ... t

    def area(self) -> Floats:  # -> ...
        """Mean over the inputs of the risk at their confidence: the error rate for a confidence that knows nothing."""
        return np.asarray((np.diff(self.coverage, prepend=0.0) * self.risk).sum(-1))

    def answerable(self, risk: float) -> Floats:  # -> ...
        """The largest coverage at which no more than this share of the answers is wrong."""
        return np.asarray(np.where(self.risk <= risk, self.coverage, 0.0).max(-1))


class Guarantee(NamedTuple):
    """Answer from this confidence on; None: no threshold can be promised."""

    threshold: float | None
    coverage: float
    bound: float
    """On the risk, with the probability asked for."""


def risk_coverage(
    confidence: ArrayLike, correct: ArrayLike, *, counts: ArrayLike | None = None
) -> RiskCoverage:  # n in [0, 1], n of 0 or 1, r n
    """The curve; with `counts`, how often each input comes in each of r resamples, one curve for each."""
    score, hit = pairs(confidence, correct)
    weight = np.ones(len(score)) if counts is None else np.asarray(counts, dtype=np.float64)
    if weight.shape[-1:] != score.shape:
        raise ShapeError(f"risk_coverage got counts of shape {weight.shape} for {len(score)} inputs; give r x n.")
    order = np.argsort(-score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)  # of each run of equals
    came = weight[..., order]
    answered = came.cumsum(-1)[..., last]
    wrong = (came * (1 - hit[order])).cumsum(-1)[..., last]
    risk = np.divide(wrong, answered, out=np.zeros_like(wrong), where=answered > 0)
    return RiskCoverage(score[order][last], answered / answered[..., -1:], risk)


def best_area(correct: ArrayLike) -> float:  # n of 0 or 1
    """The area when every mistake is less sure than every right answer."""
    hit = np.asarray(correct, dtype=bool)
    n, right = len(hit), int(hit.sum())
    answered = np.arange(right + 1, n + 1)
    return float(((answered - right) / answered).sum() / n)


def guaranteed(confidence: ArrayLike, correct: ArrayLike, *, risk: float, delta: float = 0.05) -> Guarantee:
    """The coverage that a binary search finds at which the true risk is at most `risk`, with probability 1 - delta."""
    if not (0 < risk < 1 and 0 < delta < 1):
        raise AssayError(f"guaranteed got risk={risk} and delta={delta}; give both between 0 and 1.")
    curve = risk_coverage(confidence, correct)
    n = np.size(confidence)
    low, high = 0, len(curve.threshold) - 1
    steps = max(1, math.ceil(math.log2(len(curve.threshold) + 1)))
    best = Guarantee(None, 0.0, 1.0)
    while low <= high:
        middle = (low + high) // 2
        answered = round(curve.coverage[middle] * n)
        wrong = round(curve.risk[middle] * answered)
        bound = 1.0 if wrong == answered else float(betaincinv(wrong + 1, answered - wrong, 1 - delta / steps))
        if bound <= risk:
            best, low = Guarantee(float(curve.threshold[middle]), float(curve.coverage[middle]), bound), middle + 1
        else:
            high = middle - 1
    return best
