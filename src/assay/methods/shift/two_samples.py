r"""Two samples told apart by a classifier, and their classes by counts.

A ridge classifier on the kernel of mk_mmd.py, of at most LANDMARKS points of the pool (drawn whatever sample they are
of), is fitted to one half of both samples and scores the other, and the other way round:

    z(x) = K_LL^{-1/2} k(L, x),    w = argmin sum_i (t_i - w z(x_i))^2 + lambda |w|^2,    t_i = 1 of b, 0 of a

with the lambda of the smallest leave-one-out error in the half that it is fitted to, in closed form. The area is the
chance that an input of b scores above one of a, the mean of both halves: 1/2 where nothing tells them apart, 1 where
every input shows where it comes from. It is a floor of what the best classifier would reach. Its interval is that of
one half's scores: both halves share their inputs and agree where chance makes them, so that an interval that takes all
scores for independent leaves out 1/2 in 19 of 100 samples that are alike instead of 5 (measured, five folds of 40 and
50 rows); a mean varies no more than one of the two.

The prior gap is Pearson's chi-square of class counts, with the p-value of counts that are dealt anew, valid however few
a class has, and as a size the total variation between the class shares,

    TV = 1/2 sum_c |p_c - q_c|,    |TV found - TV| <= 1/2 sum_c |(p_c - q_c) found - (p_c - q_c)|

whose interval is as wide as the right side is in 95 of 100 bootstraps: TV is never below 0, and what chance adds to it
is no prior gap.

Source: Lopez-Paz & Oquab, ICLR 2017, arXiv:1610.06545 (classifier two-sample tests); Williams & Seeger, NeurIPS 2000
    (landmarks); Pearson 1900; Wang, dissertation, TU Delft 2024, sec. 3.3 (the gaps). The interval of the area is that
    of detection.py.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.methods.shift.mk_mmd import POWER, check_samples, kernel, median_distance, some
from assay.methods.uncertainty.detection import area_interval, auroc

LANDMARKS = 300
RIDGES = 12  # from the largest eigenvalue, ever ten times smaller, to what rounding leaves of it
RANK = 1e-6  # eigenvalues of the landmarks' kernel below this share of the largest are rounding


class Telling(NamedTuple):
    """How well a classifier tells two samples apart, and each row's rank in its half: high where it is like b."""

    value: float
    low: float
    high: float
    ranks: tuple[Tensor, Tensor]  # m, n


class PriorGap(NamedTuple):
    """How far the shares of classes are apart, and whether chance could do that."""

    value: float  # total variation
    low: float
    high: float
    by_chance: float  # its mean where counts are dealt anew
    chi_square: float
    p_value: float


def classifier_auc(a: Tensor, b: Tensor, *, rng: torch.Generator, level: float = 0.95) -> Telling:  # m d, n d
    """The area under the curve of a cross-fitted classifier, with its interval."""
    check_samples(a, b, least=4)
    m, n = len(a), len(b)
    z = _features(torch.cat([a, b]).detach().flatten(1))
    half = torch.cat([torch.randperm(k, generator=rng, device=rng.device) % 2 for k in (m, n)]).to(z.device)
    theirs = torch.arange(m + n, device=z.device) >= m
    ranks, areas = torch.zeros(m + n, dtype=torch.float64, device=z.device), []
    for side in (0, 1):
        out = half == side
        score = _ridge(z[~out], theirs[~out].to(z), z[out])
        areas.append(auroc(score[theirs[out]], score[~theirs[out]]))
        ordered = score.sort().values
        below = torch.searchsorted(ordered, score) + torch.searchsorted(ordered, score, right=True)
        ranks[out] = below.double() / (2 * len(score))
    value = sum(areas) / 2
    low, high = area_interval(value, m // 2, n // 2, level=level)
    return Telling(value, low, high, (ranks[:m].cpu(), ranks[m:].cpu()))


def least_auc(m: int, n: int, level: float = 0.95) -> float:
    """The smallest area that `classifier_auc` would have told from 1/2 8 times in 10, of samples of these sizes.

    Ranks of samples that are alike have the variance (m + n + 1) / (12 m n), here of their halves: Mann & Whitney 1947.
    """
    normal, m, n = NormalDist(), m // 2, n // 2
    reach = normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(POWER)
    return min(1.0, 0.5 + reach * math.sqrt((m + n + 1) / (12 * m * n)))


def prior_gap(
    first: ArrayLike, second: ArrayLike, *, rng: np.random.Generator, deals: int = 2000, level: float = 0.95
) -> PriorGap:  # k, k: how many of each class
    """Whether the classes are as common in one sample as in the other."""
    counts = np.stack([np.asarray(first), np.asarray(second)])
    if counts.ndim != 2 or (counts < 0).any() or not (counts.sum(1) > 0).all() or (counts % 1 != 0).any():
        raise AssayError(f"prior_gap wants two rows of class counts, got {counts.tolist()}; count each class in both.")
    counts = counts.astype(np.int64)
    (m, n), total = counts.sum(1), counts.sum(0)
    dealt = rng.multivariate_hypergeometric(total, m, size=deals)  # r k
    found, chance = _chi_square(counts[0], total), _chi_square(dealt, total)
    value, by_chance = _apart(counts[0] / m - counts[1] / n), _apart(dealt / m - (total - dealt) / n)
    p, q = counts[0] / m, counts[1] / n
    again = rng.multinomial(m, p, size=deals) / m - rng.multinomial(n, q, size=deals) / n
    half = float(np.quantile(_apart(again - (p - q)), level))
    return PriorGap(
        value=float(value),
        low=max(0.0, float(value) - half),
        high=min(1.0, float(value) + half),
        by_chance=float(by_chance.mean()),
        chi_square=float(found),
        p_value=(1 + int((chance >= found * (1 - 1e-9)).sum())) / (1 + deals),
    )


def _apart(gap: NDArray[np.float64]) -> NDArray[np.float64]:  # *r k -> *r
    apart: NDArray[np.float64] = np.abs(gap).sum(-1) / 2
    return apart


def _chi_square(first: NDArray[np.int64], total: NDArray[np.int64]) -> NDArray[np.float64]:  # *r k, k -> *r
    """Of the table with these counts in its first row, and the rest of `total` in its second."""
    there, n = total > 0, total.sum()
    m = first.sum(-1, keepdims=True)
    gap = (first - m * total / n)[..., there] ** 2  # the second row is as far off as the first
    expected = (m * total / n)[..., there], ((n - m) * total / n)[..., there]
    found: NDArray[np.float64] = (gap / expected[0] + gap / expected[1]).sum(-1)
    return found


def _features(pool: Tensor) -> Tensor:  # N d -> N r, float64
    marks = pool[some(len(pool), LANDMARKS).to(pool.device)]
    scale = median_distance(pool)
    sizes, axes = torch.linalg.eigh(kernel(marks, marks, scale).double())
    keep = sizes > RANK * sizes[-1]
    z: Tensor = kernel(pool, marks, scale).double() @ (axes[:, keep] / sizes[keep].sqrt())
    return z


def _ridge(z: Tensor, t: Tensor, at: Tensor) -> Tensor:  # N r, N, k r -> k
    """Scores at other rows, of the ridge with the smallest leave-one-out error."""
    middle, level = z.mean(0), t.mean()
    z, t = z - middle, t - level
    sizes, axes = torch.linalg.eigh(z.T @ z)
    if not float(sizes[-1]) > 0:  # every row is the same: nothing to tell them by
        return torch.zeros_like(at[:, 0])
    along, pull = z @ axes, axes.T @ (z.T @ t)
    ridges = float(sizes[-1]) * torch.logspace(0, 1 - RIDGES, RIDGES, dtype=z.dtype, device=z.device)
    shrink = 1 / (sizes.clamp_min(0)[:, None] + ridges)  # r l
    own = 1 / len(z) + along.square() @ shrink  # N l: the weight of each row in its own fit
    error = ((t[:, None] - along @ (pull[:, None] * shrink)) / (1 - own).clamp_min(1e-9)).square().mean(0)
    best = shrink[:, int(error.argmin())]
    score: Tensor = (at - middle) @ (axes @ (pull * best))
    return score
