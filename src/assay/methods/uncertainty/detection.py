r"""How well a score tells outliers from ordinary inputs.

Everywhere a high score means familiar, and an input is flagged as an outlier at threshold t iff its score <= t.

    AUROC                P( s(inside) > s(outside) ) + 1/2 P( s(inside) = s(outside) )
    FPR at TPR r         share of outliers with score >= a,   a the largest that a share r of inside has at least
    detection at t       share of a set with score <= t

Source: Hendrycks & Gimpel, ICLR 2017, arXiv:1610.02136, sec. 2 (AUROC; inside is the positive class); Liang et al.,
    ICLR 2018, arXiv:1706.02690, sec. 4 (FPR at 95 % TPR).
The interval of the AUROC inverts a test (Newcombe, Statistics in Medicine 2006, 25:559, method 5): with m and n scores

    |A - a| <= z sqrt( a (1-a) / (m n) * (1 + (N - 1) ((1-a)/(2-a) + a/(1+a))) ),   N = (m + n) / 2

holds for the a inside. The bootstrap and DeLong's variance both give [1, 1] where the two sets do not overlap, however
few they are; this does not.
"""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from assay.errors import AssayError, ShapeError

Scores = Tensor | ArrayLike


def auroc(inside: Scores, outside: Scores) -> float:  # m, n -> in [0, 1]
    """The chance that an ordinary input scores above an outlier, ties counted half."""
    ins, out = check_scores(inside, "inside").sort().values, check_scores(outside, "outside")
    below = torch.searchsorted(ins, out) + torch.searchsorted(ins, out, right=True)  # n, twice the rank of each outlier
    return 1 - float(below.double().mean()) / (2 * len(ins))


def auroc_interval(inside: Scores, outside: Scores, *, level: float = 0.95) -> tuple[float, float]:
    """Low and high of the AUROC at `level`, for scores that are independent between inputs."""
    sizes = len(check_scores(inside, "inside")), len(check_scores(outside, "outside"))
    return area_interval(auroc(inside, outside), *sizes, level=level)


def area_interval(value: float, m: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Low and high of an area that m and n independent scores have, or that is worth as much as one."""
    from scipy.optimize import brentq

    if not 0 < level < 1:
        raise AssayError(f"auroc_interval got level={level}; it wants one between 0 and 1, such as 0.95.")
    z = NormalDist().inv_cdf((1 + level) / 2)

    def excess(a: float) -> float:
        spread = a * (1 - a) / (m * n) * (1 + ((m + n) / 2 - 1) * ((1 - a) / (2 - a) + a / (1 + a)))
        return (value - a) ** 2 - z * z * spread

    aside = 1e-12  # at 0 and 1 the spread is 0, which is no end of the interval
    low = float(brentq(excess, 0, value - aside)) if value > 0 else 0.0
    high = float(brentq(excess, value + aside, 1)) if value < 1 else 1.0
    return low, high


def fpr_at_tpr(inside: Scores, outside: Scores, *, tpr: float = 0.95) -> float:  # m, n -> in [0, 1]
    """The share of outliers that pass where at least `tpr` of the ordinary inputs do."""
    return 1 - float(detection_rate(outside, [threshold_at(inside, accept=tpr)])[0])


def threshold_at(inside: Scores, *, accept: float = 0.95) -> float:
    """The highest threshold that still lets `accept` of these scores pass (score > threshold)."""
    if not 0 < accept <= 1:
        raise AssayError(f"threshold_at got accept={accept}; it wants a share in (0, 1], such as 0.95.")
    scores = check_scores(inside, "inside").sort(descending=True).values
    kept = math.ceil(Fraction(accept).limit_denominator(10**6) * len(scores))  # 0.95 * 20 is 19, not 19.000000000000004
    return math.nextafter(float(scores[kept - 1]), -math.inf)


def detection_rate(scores: Scores, thresholds: Scores) -> Tensor:  # n, t -> t
    """The share of scores at or below each threshold, from one sort; it rises with the threshold."""
    at = check_scores(thresholds, "thresholds")
    ordered = check_scores(scores, "scores").sort().values
    return torch.searchsorted(ordered, at, right=True).double() / len(ordered)


def check_scores(scores: Scores, name: str) -> Tensor:  # n -> n, float64 on the CPU
    """Finite numbers in one row, or a line that says what is wrong."""
    given = scores if isinstance(scores, Tensor) else torch.as_tensor(np.asarray(scores, dtype=np.float64))
    row = given.detach().cpu().double()
    if row.ndim != 1 or len(row) == 0:
        raise ShapeError(f"Got {name} of shape {tuple(row.shape)}; give one number per input, at least one.")
    broken = torch.nonzero(~row.isfinite())
    if len(broken):
        raise AssayError(
            f"Score {int(broken[0])} of {name} is {float(row[broken[0]])}; find out why, or leave that input out."
        )
    return row
