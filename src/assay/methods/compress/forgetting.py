r"""What a model that was made smaller forgot: inputs, classes and groups that pay for the rest.

With a_i(x) the answer of the i-th of m large models to x and b_j(x) that of the j-th of k small ones, x is an exemplar
that compression picks out where the two populations differ in the answer that most of them give:

    mode_i a_i(x) != mode_j b_j(x)

With one model on each side that is where the two disagree, and its share is the churn. Of n inputs b were right before
and are wrong now, c the other way round. Were the two as good as each other, b of the b + c would be a fair coin:

    p = min(1, 2 P[ Binomial(b + c, 1/2) <= min(b, c) ])

The worst of several groups is looked at after the fact, so that all their intervals hold at once (Bonferroni): the
largest true rate then lies between the largest lower and the largest upper end.

Source: Hooker, Courville, Clark, Dauphin & Frome, "What Do Compressed Deep Neural Networks Forget?", 2019,
    arXiv:1911.05248, sec. 2.3 (the exemplars); McNemar, Psychometrika 1947, in its exact form.
Adds to print: intervals. Print has 30 models on each side; of ties print says nothing, here the first class has them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.calibration import BINS, equal_bins
from assay.methods.uncertainty.exact import ALPHA, exact

LEAST = 30
"""Inputs of a class or group, below which no number about it is told."""


def modal(answers: NDArray[np.int64]) -> NDArray[np.int64]:  # m n -> n
    """The answer that most of m models give to each of n inputs; of several as frequent the first."""
    if answers.ndim != 2 or not len(answers):
        raise ShapeError(f"modal got answers of shape {answers.shape}; give one row for each model, (m, n).")
    if len(answers) == 1:
        return np.asarray(answers[0])
    k, n = int(answers.max(initial=0)) + 1, answers.shape[1]
    votes = np.zeros((n, k), dtype=np.int64)
    for each in answers:
        votes[np.arange(n), each] += 1
    return np.asarray(votes.argmax(1))


def exemplars(large: NDArray[np.int64], small: NDArray[np.int64]) -> NDArray[np.bool_]:  # m n, k n -> n
    """Which inputs compression picks out: those that most of the small models answer otherwise than most large ones."""
    return np.asarray(modal(large) != modal(small))


def mcnemar(forgotten: int, learnt: int) -> float:
    """The chance that as many or more go one way, were both ways as likely; 1 where nothing moved."""
    from scipy.special import bdtr  # scipy.stats, which has the binomial law too, is slow to import

    if forgotten < 0 or learnt < 0:
        raise AssayError(f"mcnemar got {forgotten} and {learnt}; give two counts.")
    moved = forgotten + learnt
    return 1.0 if moved == 0 else float(min(1.0, 2 * bdtr(min(forgotten, learnt), moved, 0.5)))


class Shares(NamedTuple):
    """How often it happens in each group, with intervals that hold by themselves; `enough` says which can be told."""

    rate: NDArray[np.float64]  # g
    low: NDArray[np.float64]  # g
    high: NDArray[np.float64]  # g
    n: NDArray[np.int64]  # g
    enough: NDArray[np.bool_]  # g


class Worst(NamedTuple):
    group: int
    value: float
    low: float
    high: float
    n: int


def shares(held: NDArray[np.bool_], groups: NDArray[np.int64], count: int) -> Shares:  # n, n -> g
    """The share of each of `count` groups in which it `held`; -1 among the groups is unknown, and in none."""
    known = groups >= 0
    n = np.bincount(groups[known], minlength=count)
    hits = np.bincount(groups[known], weights=held[known], minlength=count)
    low, high = exact(hits, np.maximum(n, 1))
    return Shares(hits / np.maximum(n, 1), low, high, n, n >= LEAST)


def worst_share(held: NDArray[np.bool_], groups: NDArray[np.int64], count: int) -> Worst | None:  # n, n
    """The group in which it held most often, of those with enough inputs; None where none has."""
    each = shares(held, groups, count)
    told = np.flatnonzero(each.enough)
    if not len(told):
        return None
    n = each.n[told]
    low, high = exact(np.round(each.rate[told] * n), n, ALPHA / len(told))
    at = int(each.rate[told].argmax())
    return Worst(int(told[at]), float(each.rate[told][at]), float(low.max()), float(high.max()), int(n[at]))


def miscalibration(
    sure: ArrayLike, right: ArrayLike, *, bins: int = BINS
) -> NDArray[np.float64]:  # n in [0, 1], n of 0 or 1 -> n b
    """What each input adds to its bin, outcome less confidence: the sum of |column sums| over n is the ECE.

    Linear in the inputs but for the absolute value, so that a product with resampling counts gives that of each.
    """
    s, hit = np.asarray(sure, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if s.shape != hit.shape or s.ndim != 1:
        raise ShapeError(f"miscalibration got shapes {s.shape} and {hit.shape}; give one number and one outcome each.")
    out = np.zeros((len(s), bins))
    out[np.arange(len(s)), equal_bins(s, bins)] = hit - s
    return out
