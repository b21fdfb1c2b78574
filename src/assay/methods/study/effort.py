r"""What tries buy: the best so far, how many it took, and what as many random tries would have given.

    best so far   b_i(t) = max over tries 1..t of participant i;    mean and sd / sqrt(m) over the m participants
    E[max of n]   sum_{i=n}^{N} x_(i) C(i-1, n-1) / C(N, n),   x_(1) <= ... <= x_(N): the mean over all C(N, n) choices
                  of n of the N random tries, without any drawing
    P(max <= b)   C(#{x <= b}, n) / C(N, n): how often n random tries end at b or below

Source: Anand, Wang, Loog and van Gemert, BMVC 2020, figs. 7.6 and 7.7; the expected maximum in the unbiased form of
    Tang et al., ACL 2020 (arXiv:2004.13897), sec. 3, for Dodge et al., EMNLP 2019, eq. 7.
Departs from print: one who stopped early keeps the best that was reached, so that the mean at t is over everybody and
    does not fall as the weak ones go on; `as_published=True` is over those who made t tries. A stopped try counts as a
    try, in which nothing was reached. Who never reaches a threshold is counted apart, not as some number of tries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError, ShapeError

Tries = Sequence[float | None]
"""Validation accuracies of one participant in order; None: stopped before its end."""


class Band(NamedTuple):
    """Means by number of tries, their standard errors (nan of one participant alone), and over how many."""

    mean: NDArray[np.float64]  # t
    error: NDArray[np.float64]  # t
    n: NDArray[np.int64]  # t


def best_so_far(tries: Tries) -> NDArray[np.float64]:  # t
    """The best accuracy after each try; nan before the first that came to an end."""
    heights = np.array([-np.inf if a is None else a for a in tries], dtype=np.float64)
    best = np.maximum.accumulate(heights) if len(heights) else heights
    return np.where(np.isfinite(best), best, np.nan)


def band(people: Sequence[Tries], *, as_published: bool = False) -> Band:
    """The mean of the best so far over participants, with its standard error."""
    most = max((len(tries) for tries in people), default=0)
    held = np.full((len(people), most), np.nan)
    for row, tries in zip(held, people, strict=True):
        best = best_so_far(tries)
        row[: len(best)] = best
        if len(best) and not as_published:
            row[len(best) :] = best[-1]
    n = np.isfinite(held).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(n > 0, np.nansum(held, axis=0) / n, np.nan)
        square = np.nansum((held - mean) ** 2, axis=0) / (n - 1)
        error = np.where(n > 1, np.sqrt(square / n), np.nan)
    return Band(mean, error, n)


def tries_to_reach(tries: Tries, threshold: float) -> int | None:
    """The number of the first try at or above the threshold; None where none is."""
    return next((i for i, a in enumerate(tries, 1) if a is not None and a >= threshold), None)


def expected_best(reference: ArrayLike, n: int) -> float:  # N
    """The mean of the best of n tries out of the N random ones, over all choices of n."""
    values = _sorted(reference, n)
    weights = [math.comb(i, n - 1) for i in range(len(values))]  # 0 where i < n - 1
    total = math.comb(len(values), n)
    return float(math.fsum(v * (w / total) for v, w in zip(values.tolist(), weights, strict=True)))


def chance_not_above(reference: ArrayLike, best: float, n: int) -> float:
    """How often the best of n random tries is at `best` or below."""
    values = _sorted(reference, n)
    return math.comb(int((values <= best).sum()), n) / math.comb(len(values), n)


def _sorted(reference: ArrayLike, n: int) -> NDArray[np.float64]:
    values = np.sort(np.asarray(reference, dtype=np.float64))
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ShapeError(f"The reference has the shape {values.shape} or holds what is no number; give one list.")
    if not 1 <= n <= len(values):
        raise AssayError(f"The best of {n} cannot be taken from {len(values)} random tries; draw at least {n}.")
    return values
