"""Scores, probabilities and labels as they come in: taken as arrays, or refused in one line."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from assay.errors import AssayError, ShapeError

Floats = NDArray[np.float64]
Reals = NDArray[np.floating]
Ints = NDArray[np.intp]
Support = tuple[float, float]

TOLERANCE = 1e-3  # by which probabilities may miss the sum 1, as they do in half precision


def taken(scores: ArrayLike) -> Reals:
    """As they are in single and double precision, else in double."""
    given = np.asarray(scores)
    table = given if given.dtype in (np.float32, np.float64) else given.astype(np.float64)
    if table.ndim not in (1, 2):
        raise ShapeError(f"Scores came in the shape {table.shape}; give n scores or n x k of them.")
    return table


def in_unit(scores: ArrayLike) -> Floats:  # n
    score = np.asarray(scores, dtype=np.float64)
    if score.ndim != 1:
        raise ShapeError(f"Scores came in the shape {score.shape}; give one per input, shape (n,).")
    if len(score) and not (score.min() >= 0 and score.max() <= 1):  # both false for NaN
        finite(score)
        worst = score[(score < 0) | (score > 1)][0]
        raise AssayError(
            f"Got the score {worst:g}; scores are probabilities in [0, 1]. Of logits give all n x k with logits=True."
        )
    return score


def pairs(scores: ArrayLike, outcomes: ArrayLike) -> tuple[Floats, Floats]:  # n in [0, 1], n of 0 or 1
    score, hit = in_unit(scores), np.asarray(outcomes, dtype=np.float64)
    if score.shape != hit.shape or len(score) == 0:
        raise ShapeError(
            f"Scores came in the shape {score.shape} and outcomes in the shape {hit.shape}; give one of each per "
            f"input, at least one."
        )
    known = (hit == 0) | (hit == 1)
    if not known.all():
        raise AssayError(
            f"Got the outcome {hit[~known][0]:g}; outcomes are 0 or 1 (labels go with n x k probabilities)."
        )
    return score, hit


def labels_of(labels: ArrayLike, table: Reals) -> Ints:  # n, n k
    label = np.asarray(labels)
    if table.ndim != 2 or label.shape != table.shape[:1] or len(label) == 0:
        raise ShapeError(
            f"Scores came in the shape {table.shape} and labels in the shape {label.shape}; give n x k probabilities "
            f"and n labels, at least one."
        )
    k = table.shape[1]
    if k == 1:
        raise ShapeError("Got probabilities of one class only; give both classes, or n scores and n outcomes.")
    with np.errstate(invalid="ignore"):  # NaN is found below
        whole = label.astype(np.intp, copy=False)
    if whole.min() < 0 or whole.max() >= k or (label.dtype.kind not in "iub" and (whole != label).any()):
        worst = label[(whole < 0) | (whole >= k) | (whole != label)][0]
        raise AssayError(f"Got the label {worst}; with {k} classes labels are 0 to {k - 1}.")
    return whole


def probabilities_of(table: Reals, logits: bool) -> Floats:  # n k -> n k
    """In double precision; of logits their softmax."""
    double = table.astype(np.float64, copy=False)
    if logits:
        return np.asarray(softmax(finite(double), axis=1))
    check_simplex(double.T)
    return double


def check_simplex(columns: Reals) -> None:  # k n
    total = np.ones(len(columns), dtype=columns.dtype) @ columns
    if columns.min() >= 0 and total.min() >= 1 - TOLERANCE and total.max() <= 1 + TOLERANCE:  # all false for NaN
        return
    finite(columns)
    if columns.min() < 0 or columns.max() > 1 + TOLERANCE:
        worst = columns.min() if columns.min() < 0 else columns.max()
        raise AssayError(f"Got {worst:g} among the probabilities; if these are logits, pass logits=True.")
    worst = total[np.abs(total - 1).argmax()]
    raise AssayError(
        f"Got probabilities that sum to {worst:g} for an input; divide them by their sum, or pass logits=True if they "
        f"are logits."
    )


def check_support(support: Support, score: Floats) -> Support:
    low, high = support
    if not (low < high and score.min() >= low and score.max() <= high):
        raise AssayError(
            f"Got support=({low:g}, {high:g}) for scores from {score.min():g} to {score.max():g}; give an interval "
            f"that holds them."
        )
    return low, high


def finite(values: Reals) -> Reals:
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise AssayError(f"Got {bad} among the scores; leave such inputs out or mend the model.")
    return values
