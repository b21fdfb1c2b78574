r"""How unequally a classifier treats people, and how much of that lies within groups and between them.

A person with label y in {0, 1} and score s gets the benefit b = s - y + 1. With mu the mean benefit of n people, and
n_g, mu_g those of group g, the generalised entropy and its two parts are

    GE(b)   = 1 / (n alpha (alpha - 1))  sum_i ( (b_i / mu)^alpha - 1 )
    within  = sum_g (n_g / n) (mu_g / mu)^alpha GE(b^g)                       (called individual unfairness, f_I)
    between = 1 / (n alpha (alpha - 1))  sum_g n_g ( (mu_g / mu)^alpha - 1 )  (called group unfairness, f_G)

and within + between = GE(b), exactly, for every alpha but 0 and 1. At alpha = 2 these are variances:

    within = E[ Var(b | g) ] / (2 mu^2),     between = Var( E[b | g] ) / (2 mu^2)

Two warnings follow from that. With the mean error m = mean(s - y), so that mu = 1 + m,

    GE_2 = ( MSE - m^2 ) / ( 2 (1 + m)^2 )                                    (`from_error`)

which is MSE / 2 where m = 0: it is no axis of its own, and falls with the error or with predicting too much. And a
constant t added to every score, which changes nobody's place, multiplies both parts by ( mu / (mu + t) )^2 < 1
(`gaming`); saying 1 of everybody gives pi (1 - pi) / ( 2 (2 - pi)^2 ) at a base rate of pi (`everyone_positive`), below
what most trained models reach. So m has to stand beside every value of these.

Merging groups never raises `between`, splitting them never raises `within`.

Source: Speicher et al., "A unified approach to quantifying algorithmic unfairness", KDD 2018; as objectives: Zhang,
    Liu, Zhang, Wen, Mao and Yao, "Fairer Machine Learning Through Multi-objective Evolutionary Learning", ICANN 2021,
    sec. 3.2, eq. 1 and 2.
Departs from print: GE(b^g) has the group's own mean. Zhang et al. print mu in it, which they define as the mean of all;
    the parts then do not add up. `as_published=True` takes that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError


def benefit(scores: Tensor, labels: Tensor) -> Tensor:  # *p n, n -> *p n
    """What each person gets: s - y + 1, from 0 (denied wrongly) over 1 (as it should be) to 2 (granted wrongly)."""
    return scores.double() - labels.double() + 1


def generalised_entropy(b: Tensor, alpha: float = 2.0) -> Tensor:  # *p n -> *p
    """How unequal the benefits are, of each leading entry; 0 where all are equal."""
    b = _checked(b, alpha)
    return (b**alpha).mean(-1).div(b.mean(-1) ** alpha).sub(1) / (alpha * (alpha - 1))


def decomposed(
    b: Tensor, groups: Tensor, alpha: float = 2.0, *, as_published: bool = False
) -> tuple[Tensor, Tensor]:  # *p n, n or *p n -> *p, *p
    """The parts within and between groups, of each leading entry; `groups` are codes from 0."""
    b = _checked(b, alpha)
    if groups.shape not in (b.shape, b.shape[-1:]):
        raise ShapeError(
            f"decomposed got groups of shape {tuple(groups.shape)} for {tuple(b.shape)} benefits; give one code each."
        )
    if groups.is_floating_point() or int(groups.min()) < 0:
        raise AssayError(
            f"decomposed got a group {groups.min().item()}; give whole codes from 0, and leave out who is in none."
        )
    codes = groups.long().expand_as(b)
    zero = b.new_zeros(*b.shape[:-1], int(groups.max()) + 1)
    size = zero.scatter_add(-1, codes, torch.ones_like(b))  # *p g
    some = size.clamp_min(1)  # a group that nobody is in has no part: its size is 0 below
    mean = zero.scatter_add(-1, codes, b) / some
    power = zero.scatter_add(-1, codes, b**alpha) / some
    of_mean = torch.where(size > 0, mean, 1.0) ** alpha  # any finite number does where the share is 0
    share, mu = size / b.shape[-1], b.mean(-1, keepdim=True)
    scale = alpha * (alpha - 1) * mu.squeeze(-1) ** alpha
    between = (share * (of_mean - mu**alpha)).sum(-1) / scale
    inner = of_mean * (power / mu**alpha - 1) if as_published else power - of_mean
    return (share * inner).sum(-1) / scale, between


def from_error(mse: float, mean_error: float) -> float:
    """The generalised entropy at alpha = 2 of any scores with this squared error and this mean error."""
    return (mse - mean_error**2) / (2 * (1 + mean_error) ** 2)


def mean_error_behind(mse: float, entropy: float) -> float:
    """The mean error m that a squared error and an entropy at alpha = 2 imply: the larger root of `from_error`."""
    twice = 2 * entropy
    inside = twice**2 - (twice + 1) * (twice - mse)
    if inside < 0:
        raise AssayError(
            f"No scores have a squared error of {mse} and an entropy of {entropy}; the one bounds the other."
        )
    return (math.sqrt(inside) - twice) / (twice + 1)


def gaming(mean_benefit: float, added: float) -> float:
    """What both parts are multiplied by, at alpha = 2, when a constant is added to every score."""
    return (mean_benefit / (mean_benefit + added)) ** 2


def everyone_positive(base_rate: float) -> float:
    """The generalised entropy at alpha = 2 of saying 1 of everybody."""
    return base_rate * (1 - base_rate) / (2 * (2 - base_rate) ** 2)


def _checked(b: Tensor, alpha: float) -> Tensor:
    if alpha in (0, 1):
        raise AssayError(
            f"Generalised entropy got alpha {alpha:g}, where the formula divides by 0; give another, like 2."
        )
    if not b.ndim or not b.shape[-1]:
        raise ShapeError(f"Generalised entropy got benefits of shape {tuple(b.shape)}; give at least one person's.")
    if not bool((b >= 0).all()):
        raise AssayError(
            f"Generalised entropy got a benefit of {b.min().item():g}; give s - y + 1 of scores in [0, 1]."
        )
    if alpha < 0 and not bool((b > 0).all()):
        raise AssayError(f"Generalised entropy got a benefit of 0, which alpha {alpha:g} cannot take; give alpha > 0.")
    b = b.double()
    if not bool((b.sum(-1) > 0).all()):
        raise AssayError("Generalised entropy got benefits that are all 0, which have no shares; look at the labels.")
    return b
