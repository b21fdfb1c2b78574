r"""Thresholds for each group, under which groups have the same odds, or are told the same as often.

A group's answer is yes with the probability

    q(s)  =  (1 - p) ( w [s >= a] + (1 - w) [s >= b] )  +  p f

of two thresholds a and b of its own, mixed, and a coin f. The false and the true positives of (a, b, w) run over the
upper hull of the group's ROC curve. For *odds*, f is one false-positive rate for all groups, and the true-positive rate
t is what the lowest hull reaches there; a group whose hull is higher, at h, tosses the coin as often as takes it down:
p = (h - t) / (h - f). Of all f that of the highest accuracy is taken. For *parity*, each group's threshold b is the
quantile of its scores at which as many are told yes as of everyone; where many have that very score, it is mixed with
the next one above, a, so that the share is right on average.

Source: Hardt, Price & Srebro, NeurIPS 2016, arXiv:1610.02413, sec. 3.2 (derived predictors, odds).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError

Floats = NDArray[np.float64]
Goal = Literal["odds", "parity"]
GRID = 201  # false-positive rates that are tried


class Thresholds(NamedTuple):
    """The numbers of q, one of each for every group."""

    a: Floats
    b: Floats
    w: Floats
    p: Floats
    f: Floats

    def chance(self, scores: ArrayLike, groups: ArrayLike) -> Floats:  # n, n -> n
        """q: how likely each is to be told yes."""
        s, g = np.asarray(scores, dtype=np.float64), np.asarray(groups, dtype=np.int64)
        a, b, w, p, f = (each[g] for each in self)
        return np.asarray((1 - p) * (w * (s >= a) + (1 - w) * (s >= b)) + p * f)


def thresholds(
    scores: ArrayLike, labels: ArrayLike, groups: ArrayLike, *, goal: Goal = "odds", count: int
) -> Thresholds:  # n, n of 0 and 1, n from 0
    """The thresholds of `count` groups that these inputs call for."""
    s, g = np.asarray(scores, dtype=np.float64), np.asarray(groups, dtype=np.int64)
    y = np.asarray(labels, dtype=np.int64)
    for k in range(count):
        if len(np.unique(y[g == k])) < 2:
            raise AssayError(f"Group {k} has inputs of fewer than two labels, and so no odds; join it with another.")
    zero = np.zeros(count)
    if goal == "parity":
        share = float((s >= 0.5).mean())
        a, b, w = np.array([_at_share(s[g == k], share) for k in range(count)]).T
        return Thresholds(a, b, w, zero, zero)
    hulls = [_hull(s[g == k], y[g == k]) for k in range(count)]
    grid = np.linspace(0, 1, GRID)
    heights = np.stack([np.interp(grid, x, t) for x, t, _ in hulls])  # g f
    reached, base = heights.min(0), float(y.mean())
    best = int((base * reached + (1 - base) * (1 - grid)).argmax())
    rows = []
    for (x, _, at), height in zip(hulls, heights[:, best], strict=True):
        left = int(np.clip(np.searchsorted(x, grid[best], side="right") - 1, 0, len(x) - 2))
        wide = x[left + 1] - x[left]
        w = 1 - (grid[best] - x[left]) / wide if wide > 0 else 0.0
        over = height - grid[best]
        p = (height - reached[best]) / over if over > 1e-12 else 0.0
        rows.append((at[left], at[left + 1], w, p, grid[best]))
    return Thresholds(*np.array(rows).T)


def _at_share(s: Floats, share: float) -> tuple[float, float, float]:
    """Two thresholds and the weight of the first, with which this share of the scores is told yes."""
    told = round(share * len(s))
    if told == 0:
        return np.inf, np.inf, 1.0
    at = float(np.sort(s)[::-1][told - 1])
    above, ties = s[s > at], int((s == at).sum())
    return float(above.min()) if len(above) else np.inf, at, 1 - (told - len(above)) / ties


def _hull(s: Floats, y: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:  # n, n
    """False and true positives at the corners of the upper hull of a ROC curve, rising, and the thresholds there."""
    at, of = np.unique(-s, return_inverse=True)
    at = np.r_[np.inf, -at]
    x, t = (np.r_[0, np.bincount(of[y == c], minlength=len(at) - 1).cumsum()] / (y == c).sum() for c in (0, 1))
    kept: list[int] = []
    for i in range(len(at)):
        while len(kept) > 1 and _right_of(x, t, kept[-2], kept[-1], i):
            kept.pop()
        kept.append(i)
    return x[kept], t[kept], at[kept]


def _right_of(x: Floats, t: Floats, a: int, b: int, c: int) -> bool:
    """Whether b lies on or below the line from a to c."""
    return bool((x[b] - x[a]) * (t[c] - t[a]) - (t[b] - t[a]) * (x[c] - x[a]) >= 0)
