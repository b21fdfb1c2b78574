r"""Confidence sequences: intervals that hold at every number of inputs at which one may look, at once.

An interval for one n is right as often as it says if n was fixed before. Who looks, goes on where the answer is not
clear, and stops where it is, is wrong more often than that. So one looks at the rungs of a ladder alone,

    n_j = 25, 50, 100, 200, ...,     the last one is all that there is,

and each rung has an equal share of the error, alpha / J for J rungs. The chance that any of J intervals is wrong is at
most the sum: at every rung at once, whether somebody looks there or passes it by, so that one may stop, go on and skip
as one likes, by whatever was seen before. Of a proportion the interval at a rung is the exact one (`exact.py`). J grows
with the logarithm of n, and the width in standard deviations with its root: 2.7 for 3,000 inputs, 3.1 for ten million,
where a mixture that holds at every n, rungs or not, pays the root of log n + 2 log 1/alpha: 3.8 and 4.8.

Of a mean of values in [0, 1], whatever their law, the interval is that of bets against each m, with the values in an
order that has nothing to do with them:

    K+(m) = prod_t ( 1 + min(l_t, c / m) (x_t - m) ),        K-(m) = prod_t ( 1 - min(l_t, c / (1 - m)) (x_t - m) ),
    l_t = sqrt( 2 log(2 / alpha) / (n s_{t-1}^2) ),          s_t^2 = ( 1/4 + sum_{i<=t} (x_i - m_i)^2 ) / (t + 1),
    m_t = ( 1/2 + sum_{i<=t} x_i ) / (t + 1),

each the wealth of one who starts with 1 in a game that is fair if m is the mean: it then reaches 2 / alpha with a
chance of at most alpha / 2 (Ville). What neither has bet away is the interval.

Source: Waudby-Smith & Ramdas, JRSS B 2024, arXiv:2010.09686, sec. 4 (betting, for one n: eq. 24 to 27); Ville, 1939;
    Darling & Robbins, PNAS 1967 (sequences by epochs).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError

FIRST = 25
CLOSE = 1.5  # a rung that so many times itself reaches the top is left out: the top serves as well
TRUNCATED = 0.5  # c: the most of the wealth that a bet may lose
HALVINGS = 40  # of an interval of length 1


def rungs(most: int) -> tuple[int, ...]:
    """The numbers of inputs at which one looks, where there are `most`: doubled from the first, the last is all."""
    if most < 1:
        raise AssayError(f"There is no ladder to {most} inputs; give at least one.")
    doubled: list[int] = []
    while (n := FIRST * 2 ** len(doubled)) <= most / CLOSE:
        doubled.append(n)
    return (*doubled, most)


def share_of_error(most: int, alpha: float) -> float:
    """What of `alpha` the interval at each rung to `most` may be wrong by: all of them together no more than alpha."""
    _check(alpha)
    return alpha / len(rungs(most))


def mean_interval(values: ArrayLike, *, alpha: float, seed: int = 0) -> tuple[float, float]:  # n
    """Where the mean of a quantity in [0, 1] lies, of which these n are independent draws, whatever its law."""
    _check(alpha)
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not ((x >= 0) & (x <= 1)).all():
        raise AssayError("mean_interval wants at least one value, each from 0 to 1; scale them before.")
    x = np.random.default_rng(seed).permutation(x)  # rows may come sorted by class, and bets would foresee the rest
    # one who bets that the mean is below m bets on 1 - x that it is above 1 - m
    return _lowest(x, alpha), 1 - _lowest(1 - x, alpha)


def _lowest(x: NDArray[np.float64], alpha: float) -> float:  # n
    """The least m against which those who bet that the mean is above it have not won 2 / alpha."""
    n, count = len(x), np.arange(1, len(x) + 1)
    means = (0.5 + np.cumsum(x)) / (count + 1)
    spread = (0.25 + np.cumsum((x - means) ** 2)) / (count + 1)
    before = np.concatenate([[0.25], spread[:-1]])
    bets = np.sqrt(2 * math.log(2 / alpha) / (n * before))
    most = math.log(2 / alpha)

    def beaten(m: float) -> bool:
        return float(np.log1p(np.minimum(bets, TRUNCATED / m) * (x - m)).sum()) >= most

    low, high = 0.0, float(x.mean())
    if high == 0 or beaten(high):  # no bet on more than the mean wins at the mean, but for rounding
        return 0.0
    for _ in range(HALVINGS):
        half = (low + high) / 2
        low, high = (half, high) if beaten(half) else (low, half)
    return low


def _check(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise AssayError(f"An error of {alpha:g} is none; give a probability between 0 and 1.")
