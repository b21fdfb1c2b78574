r"""Kernels: inner products of what vectors are mapped to, without the map.

linear   K(a, b) = a' b
poly     K(a, b) = (a' b + 1)^degree
rbf      K(a, b) = exp( -gamma || a - b ||^2 )
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

KernelName = Literal["linear", "poly", "rbf"]
CELLS = 4_000_000  # of a matrix that is worked out at a time: 32 MB of doubles


@dataclass(frozen=True)
class Kernel:
    """`gamma` is of the RBF kernel, `degree` of the polynomial one."""

    name: KernelName = "rbf"
    gamma: float = 1.0
    degree: int = 3

    def __post_init__(self) -> None:
        if self.name not in ("linear", "poly", "rbf"):
            raise AssayError(f"There is no kernel {self.name!r}; it is linear, poly or rbf.")
        if not (math.isfinite(self.gamma) and self.gamma > 0) or self.degree < 1:
            raise AssayError(
                f"A kernel got gamma={self.gamma:g}, degree={self.degree}; gamma must be above 0 and the degree at "
                "least 1."
            )

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:  # n d, m d -> n m
        """In the type of `a`, with a gradient, some rows at a time where the matrix is large."""
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
            raise ShapeError(
                f"A kernel got vectors of shape {tuple(a.shape)} and {tuple(b.shape)}; it wants (n, d) and (m, d)."
            )
        rows = max(1, CELLS // max(len(b), 1))
        return torch.cat([self._of(part, b) for part in torch.split(a, rows)]) if len(a) else a.new_zeros(0, len(b))

    def _of(self, a: Tensor, b: Tensor) -> Tensor:
        inner = a @ b.T
        if self.name == "linear":
            return inner
        if self.name == "poly":
            return (inner + 1) ** self.degree
        apart = a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * inner
        return torch.exp(-self.gamma * apart.clamp_min(0))

    def own(self, a: Tensor) -> Tensor:  # n d -> n
        """K(a, a) of each vector."""
        if self.name == "rbf":
            return torch.ones_like(a[:, 0])
        inner = a.square().sum(1)
        return inner if self.name == "linear" else (inner + 1) ** self.degree


def usual_gamma(x: Tensor) -> float:  # n d
    """One over the median of the squared distances between vectors: a scale at which some are near and some far.

    Of vectors that are nearly all equal the mean is taken in the place of a median of 0.
    """
    if len(x) < 2:
        raise AssayError(f"gamma is set by distances between vectors, and there are {len(x)}; give gamma yourself.")
    few = x[:: -(-len(x) // 1000)].detach().double()
    far = torch.nn.functional.pdist(few).square()
    typical = float(far.median()) or float(far.mean())
    if not (math.isfinite(typical) and typical > 0):
        raise AssayError("All vectors are equal, or some are no numbers: no gamma tells them apart; give others.")
    return 1 / typical
