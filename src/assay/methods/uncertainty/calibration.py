r"""Expected calibration error, with an interval and the value that a perfectly calibrated model would show.

    ECE = sum_b (n_b / n) | acc(b) - conf(b) |,   bin b holds the scores in ( (b-1)/B, b/B ]

Source: Guo et al., ICML 2017, arXiv:1706.04599, sec. 2 (the estimator); Naeini et al., AAAI 2015 (the binning).
Adds to print: (1) the floor, E[ECE] when each outcome is drawn with exactly its score as its probability; at n = 500 a
    perfect model shows about 0.03, so an ECE means nothing without it. (2) The basic bootstrap interval
    [2v - q_high, 2v - q_low]: resampling inflates |acc - conf| by about as much as sampling did, and reflecting the
    quantiles at the estimate takes that bias out, where the percentile interval would count it twice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError


class CalibrationError(NamedTuple):
    value: float
    low: float
    high: float
    floor: float
    """What a perfectly calibrated model with the same scores shows on average."""


class Reliability(NamedTuple):
    """One entry per bin that is not empty."""

    confidence: NDArray[np.float64]  # b: mean score
    accuracy: NDArray[np.float64]  # b
    inputs: NDArray[np.int64]  # b: how many


def calibration_error(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, draws: int = 1000, seed: int = 0
) -> CalibrationError:  # confidence: n in [0, 1];  correct: n, true or false
    """The expected calibration error of scores against outcomes."""
    score, hit = _scores(confidence, correct, bins)
    n = len(score)
    member = _bin(score, bins)[:, None] == np.arange(bins)  # n b
    value = float(np.abs((hit - score) @ member).sum() / n)
    rng = np.random.default_rng(seed)
    gaps = member * (hit - score)[:, None]  # n b
    resampled, calibrated = [], []
    rows = max(1, min(draws, 2_000_000 // n))  # at most 16 MB of draws at a time
    for start in range(0, draws, rows):
        k = min(rows, draws - start)
        picked = rng.integers(0, n, size=(k, n)) + n * np.arange(k)[:, None]
        counts = np.bincount(picked.ravel(), minlength=k * n).reshape(k, n)
        resampled.append(np.abs(counts @ gaps).sum(1) / n)
        outcomes = rng.random((k, n)) < score
        calibrated.append(np.abs((outcomes - score) @ member).sum(1) / n)
    low, high = np.quantile(np.concatenate(resampled), [0.025, 0.975])
    return CalibrationError(
        value,
        max(0.0, 2 * value - float(high)),
        max(0.0, 2 * value - float(low)),
        float(np.concatenate(calibrated).mean()),
    )


def reliability(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> Reliability:
    """Mean score and accuracy of each bin that holds anything."""
    score, hit = _scores(confidence, correct, bins)
    at = _bin(score, bins)
    count = np.bincount(at, minlength=bins)
    full = count > 0
    mean = np.bincount(at, weights=score, minlength=bins)[full] / count[full]
    accuracy = np.bincount(at, weights=hit, minlength=bins)[full] / count[full]
    return Reliability(mean, accuracy, count[full])


def _bin(score: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """The bin ((b-1)/B, b/B] of each score; a score of 0 goes to the first."""
    return np.clip(np.ceil(score * bins).astype(np.int64) - 1, 0, bins - 1)


def _scores(confidence: ArrayLike, correct: ArrayLike, bins: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    score, hit = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if bins < 1:
        raise AssayError(f"calibration_error got bins={bins}; it wants at least 1.")
    if score.ndim != 1 or score.shape != hit.shape or len(score) == 0:
        raise AssayError(
            f"calibration_error got scores of shape {score.shape} and outcomes of shape {hit.shape}; it wants one of "
            f"each per input, at least one."
        )
    if not (np.isfinite(score).all() and score.min() >= 0 and score.max() <= 1):
        worst = score[~((score >= 0) & (score <= 1))][0]
        raise AssayError(
            f"calibration_error got the score {worst:g}; scores are probabilities in [0, 1] (softmax first)."
        )
    return score, hit
