r"""The continuous ranked probability score: how far a predicted distribution is from the number that came.

    CRPS(F, y) = int (F(x) - 1[x >= y])^2 dx = E|X - y| - E|X - X'| / 2 = 2 int_0^1 rho_a(y - F^-1(a)) da

with X, X' drawn from F and the pinball loss rho_a(u) = max(a u, (a - 1) u). It is in the units of y, and honest
distributions minimise it on average.

    a point m       |y - m|
    a normal        sigma (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)),   z = (y - mu) / sigma
    quantiles q_k   2 sum_k w_k rho_{a_k}(y - q_k),   w_k the share of [0, 1] that lies nearer to a_k than to another

The last is a sum in place of the integral: each level stands for its neighbourhood. With levels (k - 1/2) / m it is
exactly the CRPS of the m numbers as a sample, with levels that are dense it is that of the distribution, and of few it
is a score of its own, to be compared with scores at the same levels only.

Beside a score stand two that tell what it is worth. The floor is what a calibrated model of the same spreads shows on
average, the score's mean under the distribution that the model itself states:

    a normal        sigma / sqrt(pi)
    quantiles       sum_k (a_{k+1} - a_k) (L(q_k) + L(q_{k+1})) / 2 + a_1 L(q_1) + (1 - a_m) L(q_m),   L(y) as above

where L is linear between quantiles, so that only the mean between two of them counts, which is taken to be in the
middle. Of the tails nothing is stated; with them at the outermost quantiles the floor is as low as it can be. The other
is what the targets' own distribution scores, the best without any input: half their mean absolute difference.

Source: Gneiting & Raftery, JASA 2007, doi:10.1198/016214506000001437, sec. 4.2; Laio & Tamea, HESS 2007,
    doi:10.5194/hess-11-1267-2007 (as an integral of pinball losses).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError


def crps_point(answer: Tensor, y: Tensor) -> Tensor:  # n *d, n *d -> n *d
    """The absolute error: the score of a distribution that is all in one point."""
    return (y - answer).abs()


def crps_normal(mean: Tensor, sd: Tensor, y: Tensor) -> Tensor:  # n *d, n *d, n *d -> n *d
    """In closed form; a spread of 0 is a point."""
    if bool((sd < 0).any()):
        raise AssayError(f"crps_normal got a standard deviation of {float(sd.min()):g}; give numbers from 0.")
    point = sd == 0
    z = (y - mean) / sd.masked_fill(point, 1)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    score = sd * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return torch.where(point, crps_point(mean, y), score)


def crps_quantiles(quantiles: Tensor, levels: tuple[float, ...], y: Tensor) -> Tensor:  # n q *d, n *d -> n *d
    """The weighted sum of pinball losses, see above."""
    level = _level(quantiles, levels)
    over = y[:, None] - quantiles
    weight = _weights(levels).to(quantiles).view(level.shape)
    return 2 * (weight * torch.maximum(level * over, (level - 1) * over)).sum(1)


def floor_normal(sd: Tensor) -> Tensor:  # n *d -> n *d
    """What a calibrated model of these spreads scores on average."""
    return sd / math.sqrt(math.pi)


def floor_quantiles(quantiles: Tensor, levels: tuple[float, ...]) -> Tensor:  # n q *d -> n *d
    """The same for quantiles, with nothing beyond the outermost; such as cross are put in order."""
    rising = quantiles.sort(1).values
    at = torch.stack([crps_quantiles(rising, levels, knot) for knot in rising.unbind(1)], 1)  # n q *d: L(q_k)
    level = _level(quantiles, levels)
    inner = ((level[:, 1:] - level[:, :-1]) * (at[:, 1:] + at[:, :-1]) / 2).sum(1)
    return inner + levels[0] * at[:, 0] + (1 - levels[-1]) * at[:, -1]


def crps_of_targets(y: Tensor) -> Tensor:  # n *d -> *d
    """What the targets' own distribution scores on them: half their mean absolute difference, each with each."""
    n = len(y)
    rank = torch.arange(1, n + 1).to(y).view(-1, *[1] * (y.ndim - 1))
    centred = y - y.mean(0)  # the ranks' weights sum to 0, and large numbers would leave only rounding
    return ((2 * rank - n - 1) * centred.sort(0).values).sum(0) / n**2


def _level(quantiles: Tensor, levels: tuple[float, ...]) -> Tensor:  # n q *d -> 1 q *1
    if quantiles.ndim < 2 or quantiles.shape[1] != len(levels):
        raise ShapeError(
            f"Quantiles have shape {tuple(quantiles.shape)} for {len(levels)} levels; give (n, {len(levels)}, ...)."
        )
    return quantiles.new_tensor(levels).view(1, -1, *[1] * (quantiles.ndim - 2))


def _weights(levels: tuple[float, ...]) -> Tensor:  # q
    level = torch.tensor(levels, dtype=torch.float64)
    edges = torch.cat([level.new_zeros(1), (level[1:] + level[:-1]) / 2, level.new_ones(1)])
    return edges.diff()
