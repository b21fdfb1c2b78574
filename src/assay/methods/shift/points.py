"""Rows of unlike columns as points between which a distance means something.

A measured column gets the spread 1 over both samples. A code of a category has a column of its own, 0 or 1, so that two
categories are sqrt(2) apart, as far as two values that differ by 1.4 spreads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import ShapeError


def coded(choices: Tensor) -> Tensor:  # *d -> e bool
    """Which columns of `comparable` rows are codes: a value of k > 0 choices has k of them, any other has one."""
    return torch.cat([torch.full((max(1, k),), k > 0) for k in choices.flatten().tolist()])


def on_one_scale(a: Tensor, b: Tensor, codes: Tensor | None = None) -> tuple[Tensor, Tensor]:  # m e, n e -> m e, n e
    """Both samples with columns of one spread, which is that of the pool, whichever sample a row is of."""
    if a.ndim != 2 or a.shape[1:] != b.shape[1:]:
        raise ShapeError(f"Got rows of shapes {tuple(a.shape)} and {tuple(b.shape)}; give the same columns for both.")
    pool = torch.cat([a, b]).double()
    apart = pool - pool.mean(0)
    spread = apart.square().mean(0).sqrt()
    rounding = 1e-9 * pool.abs().amax(0)  # a column that never changes has none but this
    scaled = torch.where(spread > rounding, apart / spread, 0.0)
    rows = (scaled if codes is None else torch.where(codes.to(a.device), apart, scaled)).to(a.dtype)
    return rows[: len(a)], rows[len(a) :]
