r"""Intervals of numbers: how often they hold the truth, how wide they are, and how wide they must be.

With an interval [l, u] that is said to hold y with the probability c, and alpha = 1 - c,

    covered         l <= y <= u, in a share c of the cases if it is true
    width           u - l: what coverage costs; everything is covered by an interval that is wide enough
    interval score  (u - l) + 2 / alpha (max(0, l - y) + max(0, y - u)): both in one, least for the true quantiles

Split-conformal intervals are those of a model, widened by what n held-out inputs ask for. With a unit s(x),

    C(x) = [l(x) - q s(x), u(x) + q s(x)],   q = the k-th smallest of max(l(x_i) - y_i, y_i - u(x_i)) / s(x_i),
    k = ceil((n + 1)(1 - alpha))

holds y with probability at least 1 - alpha, whatever the model, if held-out and new inputs are exchangeable, and at
most 1 - alpha + 1/(n + 1) where scores do not tie: k / (n + 1) on average. The promise is over the draw of both and
over all inputs together. Three scores are this one:

    absolute residuals     l = u = the answer, s = 1               the same width everywhere
    normalised residuals   l = u = the answer, s = its spread      wide where the model says that it does not know
    CQR                    l, u = two quantiles, s = 1             as wide as they are apart, and q may be negative

Of d numbers each has its own q and its own promise; nothing is promised of all of them at once.

Source: Winkler, JASA 1972 (interval score); Gneiting & Raftery, JASA 2007, sec. 6.2; Lei et al., JASA 2018,
    arXiv:1604.04173, sec. 2.2 (split) and 5.2 (normalised); Romano, Patterson & Candes, NeurIPS 2019, arXiv:1905.03222
    (CQR); Vovk, ACML 2012, arXiv:1209.2673 (what is kept, given the held-out inputs); Thompson, Ann. Math. Stat. 1936
    (limits of a quantile by ranks).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.conformal import conformal_quantile

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Central intervals that people ask for."""

Between = tuple[Tensor, Tensor]
"""The lower and the upper ends, n *d each."""


def covered(between: Between, y: Tensor) -> Tensor:  # n *d -> n *d of bool
    """Whether it is inside, ends included; what is not a number holds nothing."""
    low, high = between
    return (low <= y) & (y <= high)


def width(between: Between) -> Tensor:  # -> n *d
    """From end to end; one whose ends have changed places holds nothing and has no width."""
    low, high = between
    return (high - low).clamp_min(0)


def interval_score(between: Between, y: Tensor, level: float) -> Tensor:  # n *d -> n *d
    """The width, and what is missed by times 2 / (1 - level)."""
    _check(level)
    low, high = between
    missed = (low - y).clamp_min(0) + (y - high).clamp_min(0)
    return (high - low) + 2 / (1 - level) * missed


def knows_nothing(y: Tensor, level: float) -> Between:  # n *d -> *d, *d
    """The targets' own central interval: what can be said of them without any input."""
    _check(level)
    ends = np.quantile(y.cpu().numpy(), [(1 - level) / 2, (1 + level) / 2], axis=0)  # torch's takes 16 million at most
    low, high = torch.from_numpy(ends).to(y)
    return low, high


def by_chance(n: int, level: float) -> float:
    """How far the coverage of n inputs is from a level that is kept exactly, on average.

    E|X / n - c| for X binomial, in de Moivre's closed form: 2 v C(n, v) c^v (1 - c)^(n - v + 1) / n, v = [nc] + 1.
    """
    _check(level)
    v = math.floor(n * level) + 1
    choose = gammaln(n + 1) - gammaln(v + 1) - gammaln(n - v + 1)
    return 2 * v * math.exp(choose + v * math.log(level) + (n - v + 1) * math.log1p(-level)) / n


def fit_widening(between: Between, y: Tensor, *, alpha: float, unit: Tensor | None = None) -> Tensor:  # n d -> d
    """q of each number, on held-out inputs; infinite where the k-th score is that of a miss with no unit."""
    beyond = _beyond(between, y, unit)
    return torch.tensor([conformal_quantile(column, alpha) for column in beyond.T], dtype=torch.float64).to(y.device)


def widening_limits(between: Between, y: Tensor, *, alpha: float, unit: Tensor | None = None) -> Between:  # n d -> d, d
    """What q might be with endless held-out inputs, at 95 %: two scores whose ranks are binomial quantiles.

    The higher one is infinite where n is too small for any score to be it.
    """

    from scipy.stats import binom

    ranked = _beyond(between, y, unit).sort(0).values
    n = len(ranked)
    first, last = (int(binom.ppf(tail, n, 1 - alpha)) for tail in (0.025, 0.975))
    endless = torch.full_like(ranked[0], torch.inf)
    return ranked[max(first, 1) - 1], ranked[last] if last < n else endless


def _beyond(between: Between, y: Tensor, unit: Tensor | None) -> Tensor:  # n d -> n d
    """The scores: how far beyond the interval each target is, in units, and negative inside."""
    if y.ndim != 2 or any(part.shape != y.shape for part in between):
        shapes = [tuple(part.shape) for part in between]
        raise ShapeError(f"Intervals of shape {shapes} for targets of shape {tuple(y.shape)}; give (n, d) of each.")
    low, high = between
    beyond = torch.maximum(low - y, y - high)
    if unit is not None:
        beyond = torch.where((beyond == 0) & (unit == 0), 0, beyond / unit)
    sick = torch.nonzero(beyond.isnan())
    if len(sick):
        raise AssayError(f"The interval or target of held-out input {int(sick[0, 0])} is not a number; mend the model.")
    return beyond


def widen(between: Between, q: Tensor, unit: Tensor | None = None) -> Between:  # n d, d -> n d, n d
    """The intervals that keep the promise; where q is infinite they hold every number."""
    low, high = between
    by = q.expand(low.shape) if unit is None else torch.where(q.isinf(), q, q * unit)
    return low - by, high + by


def kept_by_luck(n: int, asked: int, alpha: float) -> tuple[float, float]:
    """What coverage of `asked` inputs 95 of 100 draws of both show, with q from n held-out ones: beta-binomial."""

    from scipy.stats import betabinom

    k = math.ceil(round((n + 1) * (1 - alpha), 6))
    if k > n:
        return 1.0, 1.0
    law = betabinom(asked, k, n + 1 - k)
    return float(law.ppf(0.025)) / asked, float(law.ppf(0.975)) / asked


def _check(level: float) -> None:
    if not 0 < level < 1:
        raise AssayError(f"An interval of level {level:g} is no interval; give a probability between 0 and 1.")
