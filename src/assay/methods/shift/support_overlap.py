r"""Whether an input lies where a sample has inputs too: within the ball of one of them, as wide as its k-th neighbour.

    x is held by S  if  |x - s| <= r_k(s) for some s in S,     r_k(s) the distance to the k-th nearest other input of S

An input of S itself is asked as if it were new: it is held if it is one of the k nearest of another. That share is what
a sample shares with itself, below 1 in many dimensions, and the number to read the others against.

Source: Kynkaanniemi et al., NeurIPS 2019, arXiv:1904.06991, sec. 3.1 (recall of a manifold); that a target must overlap
    the sources: Wang, dissertation, TU Delft 2024, sec. 8.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

NEIGHBOURS = 5
BLOCK = 1024  # rows of distances at a time


def held(x: Tensor, sample: Tensor, *, neighbours: int = NEIGHBOURS) -> Tensor:  # n *d, m *d -> n
    """Which of these inputs lie where the sample has inputs."""
    if x.shape[1:] != sample.shape[1:]:
        raise ShapeError(f"held got inputs of {tuple(x.shape[1:])} and a sample of {tuple(sample.shape[1:])} features.")
    rows, others = (part.detach().flatten(1).double() for part in (x, sample))
    rows, others = rows - others.mean(0), others - others.mean(0)  # distances stay, and their rounding shrinks
    radius = _radius(others, neighbours)
    return torch.cat([(torch.cdist(part, others) <= radius).any(1) for part in torch.split(rows, BLOCK)])


def held_by_itself(sample: Tensor, *, neighbours: int = NEIGHBOURS) -> Tensor:  # m *d -> m
    """Which of its own inputs a sample would hold if they were new."""
    rows = sample.detach().flatten(1).double()
    rows = rows - rows.mean(0)
    radius = _radius(rows, neighbours)
    apart = torch.cdist(rows, rows)
    apart.fill_diagonal_(torch.inf)
    return (apart <= radius).any(1)


def _radius(sample: Tensor, neighbours: int) -> Tensor:  # m d -> m
    if not 1 <= neighbours < len(sample):
        raise AssayError(f"A sample of {len(sample)} has no neighbour {neighbours} for each; give more inputs.")
    parts = [torch.cdist(part, sample).kthvalue(neighbours + 1, 1).values for part in torch.split(sample, BLOCK)]
    return torch.cat(parts)  # the nearest of all is the input itself
