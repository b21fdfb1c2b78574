r"""The probability integral transform: at which level of the predicted distribution the number came.

    u = F(y),   uniform on [0, 1] where the distributions are right on average

A heap at both ends says that spreads are too small, a heap in the middle that they are too large, a slope that the
answers lie to one side. Where F jumps at y, or says nothing more exact, u is between two levels,

    F(y-) <= u <= F(y)

and in a histogram counts evenly for all between them. So it is with quantiles, which tell only the two levels that y
came between, and with a spread of 0.

Source: Dawid, JRSS A 1984; Gneiting, Balabdaoui & Raftery, JRSS B 2007, doi:10.1111/j.1467-9868.2007.00587.x; Czado,
    Gneiting & Held, Biometrics 2009, doi:10.1111/j.1541-0420.2009.01191.x (between two levels).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Pit(NamedTuple):
    """The levels that each number came between; the same twice where it is exact."""

    low: Tensor  # n *d
    high: Tensor  # n *d


def pit_normal(mean: Tensor, sd: Tensor, y: Tensor) -> Pit:  # n *d, n *d, n *d
    """Phi((y - mu) / sigma); with a spread of 0 it is 0 below the mean, 1 above, and anything at it."""
    point = sd == 0
    u = torch.special.ndtr((y - mean) / sd.masked_fill(point, 1))
    return Pit(
        torch.where(point, (y > mean).to(u), u),
        torch.where(point, (y >= mean).to(u), u),
    )


def pit_quantiles(quantiles: Tensor, levels: tuple[float, ...], y: Tensor) -> Pit:  # n q *d, n *d
    """The levels of the nearest quantiles below and above, 0 and 1 beyond the outermost."""
    edges = torch.tensor([0.0, *levels, 1.0]).to(quantiles)
    below, up_to = ((quantiles < y[:, None]).sum(1), (quantiles <= y[:, None]).sum(1))
    return Pit(edges[below], edges[up_to + 1])


def pit_histogram(pit: Pit, bins: int) -> Tensor:  # -> bins, float64
    """How many numbers came in each of `bins` equal parts of [0, 1]; one between two levels counts in parts."""
    low, high = (u.double().flatten()[:, None] for u in pit)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).to(low.device)
    inside = (torch.minimum(high, edges[1:]) - torch.maximum(low, edges[:-1])).clamp_min(0)  # n bins
    exact = (low * bins).floor().clamp(0, bins - 1) == torch.arange(bins).to(low)
    return torch.where(high > low, inside / (high - low), exact.double()).sum(0)
