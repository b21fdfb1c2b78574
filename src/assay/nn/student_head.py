"""A head of Student-t densities on the basis vectors: between softRmax (small nu) and softmax (large nu)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError

LEAST = 1e-3  # of nu: below it the digits near e_i are lost in 1 - a_i


def log_student(z: Tensor, *, nu: float = 1.0) -> Tensor:
    r"""The logarithm of the posterior of k equal t densities with unit scale, one on each e_i: *n k -> *n k.

        p_i = t_i / sum_j t_j,     t_i = (1 + d_i / nu)^{-(nu + k)/2},     d_i = ||z - e_i||^2

    nu is the same for all classes, so that the tails cancel: p_i = 1/k + (nu + k) (u_i - mean(u)) / (k r) + O(1/r^2)
    for z = r u with ||u|| = 1. For nu -> inf it is softmax, at any z; for nu -> 0 softRmax of power k/2. Unlike
    softRmax it is finite everywhere: at e_i the odds against another class are (1 + 2/nu)^((nu + k)/2).

    Source: Wang, TU Delft 2024 (dissertation), sec. 8.2, which suggests t densities and gives no formula for them.

    The common factor nu + 1 + ||z||^2 cancels, which leaves log(1 - a_i) with a_i = 2 z_i / (nu + 1 + ||z||^2).
    """
    if z.ndim < 1 or z.shape[-1] < 2 or not z.dtype.is_floating_point:
        raise ShapeError(
            f"The t head got {z.dtype} of shape {tuple(z.shape)}; it wants float logits (*n, k), k at least 2."
        )
    check_nu(nu)
    if math.isinf(nu):
        return z.log_softmax(-1)
    shrink = z.detach().abs().amax(-1, keepdim=True).clamp_min(1).reciprocal()  # *n 1: ||z||^2 would overflow
    u = z * shrink
    a = 2 * u * shrink / (u.square().sum(-1, keepdim=True) + (nu + 1) * shrink.square())  # |a| <= (1 + nu)^(-1/2)
    return torch.log_softmax(-(nu + z.shape[-1]) / 2 * torch.log1p(-a), -1)


class StudentHead(nn.Module):
    """The last module of a classifier, after the layer that gives z; it returns log p, which are logits, and has no
    parameters."""

    def __init__(self, nu: float = 1.0) -> None:
        super().__init__()
        self.nu = check_nu(nu)

    def forward(self, z: Tensor) -> Tensor:  # *n k -> *n k
        return log_student(z, nu=self.nu)

    def extra_repr(self) -> str:
        return f"nu={self.nu:g}"


def check_nu(nu: float) -> float:
    if not nu >= LEAST:
        raise AssayError(f"The t head needs nu of at least {LEAST:g}, got {nu}; 1 is Cauchy's, inf is softmax.")
    return nu
