r"""Is a comparison consistent: with itself, among three, and with the truth as a number?

A tail that takes the two embeddings one after the other promises none of these, so each is measured:

    comparisons   c(A,B) + c(B,A) = 1,   c(A,A) = 1/2,   A over B and B over C  =>  A over C
    distances     d(A,B) = d(B,A),       d(A,A) = 0,     d(A,C) <= d(A,B) + d(B,C)
    the number    E[ t | c ] = c,   t the right comparison (a - b) / (2 (high - low)) + 1/2

A stands over B where c(A,B) >= 1/2: one rule for ties, everywhere.

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 3.1 (the comparison
    and its target). The thesis reports 1 - mean |c - t| as an accuracy; a model that always answers 1/2 reaches 0.82 on
    digits that are equally frequent, so no such number should stand alone.
Departs from print: it puts a tie in the class of the first (sec. 3.1) and in that of the second (the mid-point); here
    it is the first. Consistency and calibration are not measured there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Compare = Callable[[Tensor, Tensor], Tensor]  # n s, n s -> n
TIE = 0.5
ROUNDING = 1e-5  # of the largest distance: what float32 may add to one side of a triangle
BINS = 15
EACH = 10  # pairs that a bin should hold at least
NORMAL = 1.959964  # standard deviations to either side that hold 95 %
CONFIDENCE = 0.95
BLOCK = 4_000_000  # numbers that are held at once


def over(c: ArrayLike) -> Bools:  # n -> n
    """Whether the first stands over the second."""
    return np.asarray(c, dtype=np.float64) >= TIE


def right_order(c: ArrayLike, gaps: ArrayLike) -> Bools:  # n, n: first value less second, none 0 -> n
    """Whether the one that the comparison puts over the other has the higher value."""
    score, gap = np.asarray(c, dtype=np.float64), np.asarray(gaps, dtype=np.float64)
    if score.shape != gap.shape:
        raise ShapeError(f"right_order got {score.shape} comparisons and {gap.shape} gaps; give one gap for each.")
    if (gap == 0).any():
        raise AssayError(f"right_order got {int((gap == 0).sum())} pairs of equal values; leave ties out.")
    return np.asarray(over(score) == (gap > 0))


def swap_gap(forth: ArrayLike, back: ArrayLike, *, total: float | None = 1.0) -> Floats:  # n, n -> n
    """|c(A,B) + c(B,A) - total|; with `total` None, as for distances, |d(A,B) - d(B,A)|."""
    a, b = np.asarray(forth, dtype=np.float64), np.asarray(back, dtype=np.float64)
    return np.abs(a - b) if total is None else np.abs(a + b - total)


def survives_swap(forth: ArrayLike, back: ArrayLike) -> Bools:  # n, n -> n
    """Whether the same one stands over the other when the two change places; two answers of 1/2 do not."""
    return np.asarray(over(forth) != over(back))


def compare_all(compare: Compare, e: Tensor, *, batch: int = 4096) -> Tensor:  # k s -> k k
    """Every embedding against every one, itself included."""
    k = len(e)
    both = torch.cartesian_prod(torch.arange(k), torch.arange(k)).to(e.device)  # k*k 2
    rows = [compare(e[part[:, 0]], e[part[:, 1]]) for part in torch.split(both, batch)]
    return torch.cat(rows).view(k, k)


class Triples(NamedTuple):
    """Ordered triples of different inputs: those that a rule speaks of, and those of them that break it."""

    asked: Bools  # k k k
    broken: Bools  # k k k

    def share(self, counts: ArrayLike | None = None) -> Floats:  # draws k -> draws
        """The share of broken ones, 0 where none was asked; `counts` says how often each input was drawn.

        Triples share inputs, so that what is to be resampled for an interval are the inputs.
        """
        k = len(self.asked)
        w = np.ones((1, k)) if counts is None else np.asarray(counts, dtype=np.float64)
        rows = max(1, BLOCK // (k * k))

        def weigh(which: Bools) -> Floats:
            flat = which.reshape(k, -1).astype(np.float64)
            parts = [
                np.einsum("njk,nj,nk->n", (some @ flat).reshape(-1, k, k), some, some)
                for some in np.array_split(w, -(-len(w) // rows))
            ]
            return np.concatenate(parts)

        broken, asked = weigh(self.broken), weigh(self.asked)
        found = broken / np.where(asked > 0, asked, 1.0)
        return np.asarray(found if counts is not None else found[0])

    def worst(self, shown: int) -> NDArray[np.int64]:  # -> at most shown, 3
        """Some broken triples, no two of them the same three inputs."""
        rows = np.argwhere(self.broken)
        _, first = np.unique(np.sort(rows, 1), axis=0, return_index=True)
        return rows[np.sort(first)[:shown]]


def _square(table: ArrayLike, what: str) -> Floats:
    square = np.asarray(table, dtype=np.float64)
    if square.ndim != 2 or square.shape[0] != square.shape[1] or len(square) < 3:
        raise ShapeError(f"{what} takes every one of k >= 3 inputs against every one, got shape {square.shape}.")
    return square


def _distinct(k: int) -> Bools:  # -> k k k
    other = ~np.eye(k, dtype=bool)
    return np.asarray(other[:, :, None] & other[None] & other[:, None])


def chains(c: ArrayLike) -> Triples:  # k k, c[i, j] the comparison of i with j
    """Transitivity: of the triples with A over B and B over C, those where A does not stand over C.

    A coin for each pair breaks half of them; a comparison of one score with another breaks none.
    """
    above = over(_square(c, "chains"))
    asked = above[:, :, None] & above[None] & _distinct(len(above))
    return Triples(asked, asked & ~above[:, None])


def triangles(d: ArrayLike) -> Triples:  # k k, d[i, j] the distance from i to j
    """The triangle inequality: triples with d(A,C) above d(A,B) + d(B,C), by more than rounding."""
    far = _square(d, "triangles")
    asked = _distinct(len(far))
    longer = far[:, None] > far[:, :, None] + far[None] + ROUNDING * np.abs(far).max()
    return Triples(asked, asked & longer)


def worth(values: ArrayLike, pairs: ArrayLike) -> float:  # n, n 2: the numbers of both inputs
    r"""How many independent pairs a mean over pairs is worth, where those that share an input err alike; at most n.

        V = ( sum_i S_i^2 - sum_p e_p^2 ) / n^2,   e_p = v_p - mean v,   S_i the sum of e_p over the pairs with input i

    Source: Aronow, Samii and Assenova, Political Analysis 2015 (the variance of a mean over dyads).
    """
    v, who = np.asarray(values, dtype=np.float64), np.asarray(pairs, dtype=np.int64)
    if v.ndim != 1 or who.shape != (len(v), 2) or not len(v):
        raise ShapeError(f"worth takes n >= 1 values and n pairs of inputs, got {v.shape} and {who.shape}.")
    e, other = v - v.mean(), who[:, 0] != who[:, 1]
    inputs = int(who.max()) + 1
    held = np.bincount(who[:, 0], e, inputs) + np.bincount(who[other, 1], e[other], inputs)
    alone = float(e @ e)
    shared = float(held @ held) - float(e[other] @ e[other])
    return len(v) * alone / shared if shared > alone else float(len(v))


def mean_interval(values: ArrayLike, pairs: ArrayLike) -> tuple[float, float, float]:  # n, n 2
    """The mean over pairs and its 95 % interval, for as many independent pairs as they are worth."""
    v = np.asarray(values, dtype=np.float64)
    mean, reach = float(v.mean()), NORMAL * float(v.std()) / worth(v, pairs) ** 0.5
    return mean, max(mean - reach, min(mean, float(v.min()))), min(mean + reach, max(mean, float(v.max())))


class Calibration(NamedTuple):
    """The mean gap between the mean of the truth and that of the comparison, and the bins that it comes from."""

    gap: float
    low: float
    high: float
    floor: float
    """What a perfectly calibrated comparison with the same answers and the same noise shows on average."""
    c: Floats  # b: mean comparison of each bin
    t: Floats  # b: mean truth
    t_low: Floats  # b: Student's 95 % interval of it
    t_high: Floats  # b
    pairs: NDArray[np.int64]  # b: how many


def calibration(
    c: ArrayLike, t: ArrayLike, pairs: ArrayLike | None = None, *, bins: int = BINS, draws: int = 1000, seed: int = 0
) -> Calibration:
    r"""How far E[t | c] lies from c: n, n -> Calibration. Bins hold as many pairs each; equal answers share one.

        gap = sum_b n_b / n | mean_b(t) - mean_b(c) |

    The mean of t - c in a bin is taken to scatter normally with s_b / sqrt(n_b), and the n_b as a multinomial. Drawn
    around 0 that gives the floor; drawn around what was found, the bias b and the standard deviation sd of the gap, and
    the interval [gap - b - 1.96 sd, gap + 1.96 sd] as in `methods/uncertainty/calibration.py`; the lower end is 0 where
    a calibrated comparison reaches the gap. It held the truth in 95 to 97 % of 300 repeats at each of n = 200, 600 and
    2000, of one calibrated and two miscalibrated laws. With `pairs`, n 2, sd grows by what shared inputs cost, `worth`.
    """

    from scipy.stats import t as student

    score, truth = np.asarray(c, dtype=np.float64), np.asarray(t, dtype=np.float64)
    if score.ndim != 1 or score.shape != truth.shape or len(score) < 2:
        raise ShapeError(
            f"calibration takes n >= 2 comparisons with a truth each, got {score.shape} and {truth.shape}."
        )
    if not (np.isfinite(score).all() and np.isfinite(truth).all()):
        raise AssayError("calibration got a comparison or a truth that is not finite; leave such pairs out.")
    if bins < 1 or draws < 2:
        raise AssayError(f"calibration got bins={bins}, draws={draws}; it wants at least 1 and at least 2.")
    n = len(score)
    parts = max(1, min(bins, n // EACH))
    edges = np.unique(np.sort(score)[(np.arange(1, parts) * n) // parts])
    _, at, size = np.unique(np.searchsorted(edges, score, side="right"), return_inverse=True, return_counts=True)

    def spread(values: Floats, mean: Floats) -> Floats:  # n, b -> b: of the mean; a bin of one borrows from all
        inside = np.bincount(at, (values - mean[at]) ** 2) / np.maximum(size - 1, 1)
        return np.asarray(np.sqrt(np.where(size > 1, inside, values.var(ddof=1)) / size))

    mean_c, mean_t = np.bincount(at, score) / size, np.bincount(at, truth) / size
    off = mean_t - mean_c
    rng = np.random.default_rng(seed)
    noise = spread(truth - score, off) * rng.standard_normal((draws, len(size)))
    weight = rng.multinomial(n, size / n, draws) / n  # how many fall into a bin is chance too
    gap = float(size @ np.abs(off)) / n
    resampled, calibrated = (weight * np.abs(off + noise)).sum(1), (weight * np.abs(noise)).sum(1)
    signed = np.sign(off)[at] * (truth - score)  # the gap is its mean
    shared = 1.0 if pairs is None else n / worth(signed, pairs)
    reach = NORMAL * float(resampled.std(ddof=1)) * shared**0.5
    plausible = gap <= float(np.quantile(calibrated, (1 + CONFIDENCE) / 2))
    low = 0.0 if plausible else min(gap, max(0.0, gap - (float(resampled.mean()) - gap) - reach))
    band = spread(truth, mean_t) * student.ppf((1 + CONFIDENCE) / 2, np.maximum(size - 1, 1))
    return Calibration(
        gap, low, gap + reach, float(calibrated.mean()), mean_c, mean_t, mean_t - band, mean_t + band, size
    )
