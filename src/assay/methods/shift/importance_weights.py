r"""Weights that make a source sample stand in for a target one, from two densities of one family.

    w(x) = (p_t(x) / p_s(x))^lambda,     p_s, p_t Gaussian or Student t with one fixed nu, by maximum likelihood
    effective sample size = (sum w)^2 / sum w^2

lambda = 0 weighs nothing, 1 in full, between them flattened. All of it is done with logarithms.

A Gaussian ratio has the logarithm (1/(2 s_s^2) - 1/(2 s_t^2)) x^2 far away: where the target is the wider one, a source
point in the tail gets any weight at all, and an error of some percent in s_s changes it by orders of magnitude. The
ratio of two t densities goes to the constant (s_t / s_s)^nu; in d dimensions, along a direction v, to

    (|S_s| / |S_t|)^(1/2) (v'S_s^-1 v / v'S_t^-1 v)^((nu + d) / 2)

Source: Wang & Loog, CVPR 2022, arXiv:2203.12693; Wang, TU Delft 2024 (dissertation), sec. 5.4.1, eq. 5.15; after
    Shimodaira 2000 (the power) and Sugiyama, Krauledat & Mueller, JMLR 2007. Effective sample size: Kish 1965.
Departs from print: nu, which print leaves open, is given and not fitted, since on data with light tails its likelihood
    grows with nu, back to the Gaussian and its weights. Print has the weight 1 for an outlier, which is the limit of
    equal scales only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.nn.student_lda import StudentLDA, fit_student_lda

NU = 3.0
FEW, SHARE = 10, 0.1  # effective inputs, and their share of all, below which weights say little


class DensityRatio:
    """log p_t(x) - log p_s(x), of densities that `fit_ratio` found. Everything is float64."""

    def __init__(self, pair: StudentLDA, unit: Tensor) -> None:  # unit: d
        self.pair, self.unit = pair, unit

    def __call__(self, x: Tensor) -> Tensor:  # n d -> n
        """The logarithm of the ratio at each x; a ratio has no unit, so that it is the same in any."""
        p_s, p_t = self.pair.log_density(x.detach().double() / self.unit).unbind(1)
        return p_t - p_s


def fit_ratio(source: Tensor, target: Tensor, *, nu: float = NU) -> DensityRatio:  # n d, m d
    """Both densities by maximum likelihood; nu = inf is the Gaussian, 1 Cauchy's.

    Each feature is measured by its spread over both samples, so that the small ridge on the scale matrices weighs on
    all of them alike.
    """
    if source.ndim != 2 or target.ndim != 2 or source.shape[1] != target.shape[1]:
        raise ShapeError(
            f"fit_ratio got a source of shape {tuple(source.shape)} and a target of shape {tuple(target.shape)}; it "
            "wants (n, d) and (m, d): for one feature pass x[:, None]."
        )
    short = min(len(source), len(target))
    if short < source.shape[1] + 2:
        raise AssayError(
            f"fit_ratio got {len(source)} and {len(target)} inputs of {source.shape[1]} features; a density needs more "
            "inputs than that of each: take more of them, or fewer features (principal components)."
        )
    both = torch.cat([source, target]).detach().double()
    unit = both.std(0, correction=0)
    still = unit <= 1e-12 * both.abs().amax(0)  # it never varies, and rounding must not look like spread
    both, unit = both.masked_fill(still, 0.0), unit.masked_fill(still, math.inf)
    domain = torch.arange(len(both), device=both.device) >= len(source)
    return DensityRatio(fit_student_lda(both / unit, domain.long(), classes=2, nu=nu, pooled=False), unit)


def importance_weights(log_ratio: Tensor, *, power: float = 1.0) -> Tensor:  # n -> n
    """w^lambda, scaled to the mean 1: no ratio overflows, and a weighted mean is the same with any scale."""
    if not 0 <= power <= 1:
        raise AssayError(f"importance_weights got power={power}; it lies from 0, no weighting, to 1, in full.")
    return (power * log_ratio).softmax(0) * len(log_ratio)


def effective_size(weights: Tensor) -> float:  # n
    """How many equal weights would be worth as much."""
    total = weights.sum()
    if len(weights) == 0 or not bool((weights >= 0).all()) or not 0 < float(total) < math.inf:
        raise AssayError("effective_size wants weights that are finite, not negative and not all 0.")
    shares = weights / total
    return float(1 / shares.square().sum())


def too_few(weights: Tensor) -> str | None:  # n
    """The sentence of the alarm where a few inputs carry the weight, or None."""
    size, n = effective_size(weights), len(weights)
    if size >= max(FEW, SHARE * n):
        return None
    largest = float(weights.max() / weights.sum())
    return (
        f"The importance weights of {n} inputs are worth {size:.1f} equal ones, and the heaviest carries "
        f"{100 * largest:.0f} % of the weight: what they weigh hangs on a handful of inputs."
    )
