r"""Confidence sequences: intervals that hold at every number of inputs at which one may look, at once.

An interval for one n is right as often as it says if n was fixed before. Who looks, goes on where the answer is not
clear, and stops where it is, is wrong more often than that. So one looks at the rungs of a ladder alone,

    n_0 = where one looks first,     n_j = 4 n_{j-1},     the last one is all that there is,

which is laid before anything is seen. The first rung has the share FIRST_SHARE of the error, the others the rest in
equal parts. The chance that any of the intervals is wrong is at most the sum: at every rung at once, whether somebody
looks there or passes it by, so that one may stop, go on and skip as one likes, by whatever was seen before. Of a
proportion the interval at a rung is the exact one (`exact.py`). The number of rungs grows with the logarithm of n, and
the width in standard deviations with its root: 2.3 at a first rung of 100 and 2.6 at the others to 3,000 inputs, 2.9
to ten million, where a mixture that holds at every n, rungs or not, pays the root of log n + 2 log 1/alpha: 3.8, 4.8.

Of a mean of values in [0, 1], whatever their law, the interval is that of bets against each m, with the values in an
order that has nothing to do with them:

    K_t+(m) = K_{t-1} ( 1 + min(l_t, c / m) (x_t - m) ),     K_t-(m) = K_{t-1} ( 1 - min(l_t, c / (1 - m)) (x_t - m) ),
    l_t = sqrt( 2 log(2 / (alpha K_{t-1})) / ((n - t + 1) s_{t-1}^2) ),
    s_t^2 = ( 1/4 + sum_{i<=t} (x_i - m_i)^2 ) / (t + 1),    m_t = ( 1/2 + sum_{i<=t} x_i ) / (t + 1),

each the wealth of one who starts with 1 in a game that is fair if m is the mean: it then reaches 2 / alpha with a
chance of at most alpha / 2 (Ville). What neither has bet away is the interval. The stake is what would bring the wealth
to 2 / alpha at the last value, from where it is: who is behind is bolder, who has won stops. With stakes that forget
the wealth, 2 log(2 / alpha) / n, the interval is wider than the normal one by sqrt(2 log(2 / alpha)) over its quantile,
which is 1.39 at 95 %; with these it is 1.05 to 1.1 times the normal one at a hundred values and more. Stakes are
reckoned anew BLOCKS times. The m that are bet away are all that lie below the end, but for what a grid would not show.

Source: Voracek & Orabona, 2025, arXiv:2505.22422 (stakes by the distance to the target); Waudby-Smith & Ramdas, JRSS B
    2024, arXiv:2010.09686, sec. 4 (betting, for one n: eq. 24 to 27); Ville, 1939; Darling & Robbins, PNAS 1967
    (sequences by epochs).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError

FIRST = 25
TIMES = 4
CLOSE = 1.5  # a rung that so many times itself reaches the top is left out: the top serves as well
FIRST_SHARE = 0.4
TRUNCATED = 0.95  # c: the most of the wealth that a bet may lose
BLOCKS = 100
POINTS, TURNS = 16, 5  # of a grid, and how often it is laid anew between two of its points


def rungs(most: int) -> tuple[int, ...]:
    """The numbers of inputs at which one may look first, of `most`: doubled from the least, the last is all."""
    if most < 1:
        raise AssayError(f"There is no ladder to {most} inputs; give at least one.")
    doubled: list[int] = []
    while (n := FIRST * 2 ** len(doubled)) <= most / CLOSE:
        doubled.append(n)
    return (*doubled, most)


def ladder(first: int, most: int) -> tuple[int, ...]:
    """The numbers of inputs at which one looks who begins with `first`: four times those before, the last is all."""
    if not 1 <= first <= most:
        raise AssayError(f"There is no ladder from {first} to {most} inputs; give a first of 1 to {most}.")
    climbed = [first]
    while (n := TIMES * climbed[-1]) <= most / CLOSE:
        climbed.append(n)
    return (*climbed, most) if climbed[-1] < most else tuple(climbed)


def share_of_error(first: int, most: int, at: int) -> float:
    """What of the error the interval at the rung `at` may have: those of all rungs together are no more than 1."""
    steps = ladder(first, most)
    if at not in steps:
        raise AssayError(f"{at} inputs are no rung of {', '.join(map(str, steps))}; look at one of these.")
    if len(steps) == 1:
        return 1.0
    return FIRST_SHARE if at == first else (1 - FIRST_SHARE) / (len(steps) - 1)


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
    most = math.log(2 / alpha)
    edges = np.unique(np.linspace(0, n, min(n, BLOCKS) + 1).round().astype(int)).tolist()

    def beaten(m: NDArray[np.float64]) -> NDArray[np.bool_]:  # k -> k
        wealth = np.zeros_like(m)  # its logarithm
        for begin, end in pairwise(edges):
            missing = np.maximum(most - wealth, 0.0)
            bets = np.minimum(np.sqrt(2 * missing / ((n - begin) * before[begin])), TRUNCATED / m)
            wealth += np.log1p(bets[:, None] * (x[begin:end] - m[:, None])).sum(1)
        return wealth >= most

    low, high = 0.0, float(x.mean())
    if high == 0:
        return 0.0
    for _ in range(TURNS):
        grid = np.linspace(low, high, POINTS + 1)
        lost = beaten(grid[1:])
        first = POINTS - 1 if lost.all() else int(lost.argmin())
        low, high = float(grid[first]), float(grid[first + 1])
    return low


def _check(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise AssayError(f"An error of {alpha:g} is none; give a probability between 0 and 1.")
