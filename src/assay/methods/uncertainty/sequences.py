r"""Confidence sequences: intervals of a proportion that hold at every number of inputs at once.

An interval for one n is right as often as it says if n was fixed before. Who looks, goes on where the answer is not
clear, and stops where it is, is wrong more often than that. With S hits among the first n of a stream of hits of
chance p, and a prior Beta(a, b) on chances,

    M_n(p) = B(a + S, b + n - S) / ( B(a, b) p^S (1 - p)^(n - S) )

is the wealth of one who starts with 1 and bets against p: a martingale with mean 1 under p, so that it ever reaches
1 / alpha with probability at most alpha (Ville). The chances against which it has not yet,

    C_n = { p : M_n(p) < 1 / alpha },

are an interval around S / n, and hold p at all n at once with probability 1 - alpha: looking is free, at any time, and
so is stopping where one likes. The price is a width of about sqrt((log n + 2 log 1/alpha) / n) in standard deviations.
With a = b = 1, where nothing was missed, C_n is [(alpha / (n + 1))^(1 / n), 1].

For other numbers, whose law is not known, k looks may share the error: look k = 1, 2, ... gets alpha / (k (k + 1)),
which sums to alpha however many there are.

Source: Ville, 1939; Robbins, Ann. Math. Stat. 1970 (the mixture); Howard et al., Ann. Stat. 2021, arXiv:1810.08240;
    Waudby-Smith & Ramdas, JRSS B 2024, arXiv:2010.09686 (betting).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from assay.errors import AssayError

HALVINGS = 60  # of an interval of length 1: beyond what a double tells apart
PRIOR = (0.5, 0.5)
"""Of chances: Jeffreys' own, which is as good at the ends as in the middle (Krichevsky & Trofimov, 1981)."""


def proportion_sequence(hits: int, n: int, *, alpha: float, prior: tuple[float, float] = PRIOR) -> tuple[float, float]:
    """C_n: the chances that `hits` of the first `n` do not yet speak against, at this n and every other at once."""
    if not 0 <= hits <= n or n == 0:
        raise AssayError(f"{hits} hits of {n} are no proportion; give at least one input and no more hits than that.")
    _check(alpha)
    a, b = prior
    middle, most = hits / n, math.log(1 / alpha)
    gained = _log_beta(a + hits, b + n - hits) - _log_beta(a, b)

    def speaks_against(p: float) -> bool:
        """Whether the wealth is 1 / alpha; at 0 or 1 it is without end where the other was ever seen."""
        if (p == 0 and hits) or (p == 1 and hits < n):
            return True
        likely = (hits * math.log(p) if hits else 0.0) + ((n - hits) * math.log1p(-p) if hits < n else 0.0)
        return gained - likely >= most

    low = 0.0 if hits == 0 else _edge(speaks_against, 0.0, middle)
    high = 1.0 if hits == n else _edge(speaks_against, 1.0, middle)
    return low, high


def _edge(against: Callable[[float], bool], outside: float, inside: float) -> float:
    """Where it begins to speak against, on the way from `inside` out; the outer of the last two, which is safe."""
    for _ in range(HALVINGS):
        half = (outside + inside) / 2
        outside, inside = (half, inside) if against(half) else (outside, half)
    return outside


def share_of_error(look: int, alpha: float) -> float:
    """What of `alpha` the look of this number, from 1, may be wrong by: all of them together no more than alpha."""
    _check(alpha)
    if look < 1:
        raise AssayError(f"Look {look} is none; the first is number 1.")
    return alpha / (look * (look + 1))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _check(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise AssayError(f"An error of {alpha:g} is none; give a probability between 0 and 1.")
