"""Rows of unlike columns as points between which a distance means something.

A measured column gets the spread 1 over both samples. A code of a category has a column of its own, 0 or 1, so that two
categories are sqrt(2) apart, as far as two values that differ by 1.4 spreads. A missing cell is the mean, and a column
that has such gets another that says where: that cells are missing more often is a shift too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import ShapeError


def coded(choices: Tensor) -> Tensor:  # *d -> e bool
    """Which columns of `comparable` rows are codes: a value of k > 0 choices has k of them, any other has one."""
    return torch.cat([torch.full((max(1, k),), k > 0) for k in choices.flatten().tolist()])


def on_one_scale(a: Tensor, b: Tensor, codes: Tensor | None = None) -> tuple[Tensor, Tensor]:  # m e, n e -> m f, n f
    """Both samples with columns of one spread, which is that of the pool, whichever sample a row is of."""
    if a.ndim != 2 or a.shape[1:] != b.shape[1:]:
        raise ShapeError(f"Got rows of shapes {tuple(a.shape)} and {tuple(b.shape)}; give the same columns for both.")
    pool = torch.cat([a, b]).double()
    gone = pool.isnan()
    count = (~gone).sum(0).clamp_min(1)
    known = torch.where(gone, 0.0, pool)
    middle = known.sum(0) / count
    apart = torch.where(gone, 0.0, pool - middle)
    spread = (apart.square().sum(0) / count).sqrt()
    rounding = 1e-9 * known.abs().amax(0)  # a column that never changes has none but this
    keep = torch.zeros_like(spread, dtype=torch.bool) if codes is None else codes.to(spread.device)
    scaled = torch.where(keep, apart, torch.where(spread > rounding, apart / spread, 0.0))
    rows = torch.cat([scaled, gone[:, gone.any(0)].double()], 1).to(a.dtype)
    return rows[: len(a)], rows[len(a) :]
