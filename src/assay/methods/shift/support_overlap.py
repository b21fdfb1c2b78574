r"""Whether an input lies where a sample has inputs too: no farther from its neighbours than those are from theirs.

    x is held by S  if  d_k(x, S) <= the 95 % quantile of d_k(s, S \ s) over s in S

with d_k the distance to the k-th nearest. A sample holds 95 % of itself, and nothing of one that lies elsewhere; one
stray input widens nothing, since k of them have to be near.

Source: the distance to the k-th neighbour as a score: Ramaswamy, Rastogi & Shim, SIGMOD 2000; that a target must
    overlap the sources: Wang, dissertation, TU Delft 2024, sec. 8.1, where how to see it is left open.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

NEIGHBOURS, LEVEL = 5, 0.95
BLOCK = 1024  # rows of distances at a time


def held(x: Tensor, sample: Tensor, *, neighbours: int = NEIGHBOURS) -> Tensor:  # n *d, m *d -> n
    """Which of these inputs lie where the sample has inputs."""
    if x.shape[1:] != sample.shape[1:]:
        raise ShapeError(f"held got inputs of {tuple(x.shape[1:])} and a sample of {tuple(sample.shape[1:])} features.")
    if not 1 <= neighbours < len(sample):
        raise AssayError(f"A sample of {len(sample)} has no neighbour {neighbours} for each; give more inputs.")
    rows, others = (part.detach().flatten(1).double() for part in (x, sample))
    rows, others = rows - others.mean(0), others - others.mean(0)  # distances stay, and their rounding shrinks
    own = _reach(others, others, neighbours + 1)  # the nearest of all is the input itself
    return _reach(rows, others, neighbours) <= own.quantile(LEVEL) * (1 + 1e-9)


def _reach(rows: Tensor, others: Tensor, k: int) -> Tensor:  # n d, m d -> n
    return torch.cat([torch.cdist(part, others).kthvalue(k, 1).values for part in torch.split(rows, BLOCK)])
