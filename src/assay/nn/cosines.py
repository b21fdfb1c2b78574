r"""The slow part of a series as a vector: its first cosine coefficients, channel by channel.

    e_kc = sqrt(2 / T) sum_t x_tc cos( pi k (2 t + 1) / (2 T) ),   k = 1 .. kept

The rows are orthonormal: distances between embeddings are at most those between series. k = 0, the mean, is left out,
so that where a track lies does not count. Nothing trains.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError


class Cosines(nn.Module):
    """n t c -> n (kept c)."""

    basis: Tensor  # kept t

    def __init__(self, steps: int, kept: int) -> None:
        super().__init__()
        if not 1 <= kept < steps:
            raise AssayError(f"Cosines got kept={kept} of {steps} steps; give 1 to {steps - 1}.")
        k, t = torch.arange(1, kept + 1).double()[:, None], torch.arange(steps).double()
        basis = math.sqrt(2 / steps) * torch.cos(math.pi * k * (2 * t + 1) / (2 * steps))
        self.register_buffer("basis", basis.float())

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or x.shape[1] != self.basis.shape[1]:
            raise ShapeError(f"Cosines got {tuple(x.shape)}; it wants (n, {self.basis.shape[1]}, channels).")
        return torch.einsum("kt,ntc->nkc", self.basis, x).flatten(1)
