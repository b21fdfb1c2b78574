"""softRmax: a head whose posterior is unsure far away, where that of softmax is certain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError

NEAR = 0.75  # of a_i below: above 1/sqrt(2) there is at most one such class
FLOOR = 1e-8  # of d_i / (1 + ||z||^2): touches only z within 1.5e-4 of e_i


def log_softrmax(z: Tensor, *, power: float = 1.0) -> Tensor:
    r"""The logarithm of the softRmax posterior: *n k -> *n k.

        p_i = d_i^{-q} / sum_j d_j^{-q},     d_i = ||z - e_i||^2 = ||z||^2 - 2 z_i + 1,     q = power

    e_i is the i-th standard basis vector. Gaussians in place of the d^{-q} give softmax. The largest p_i is that of the
    largest z_i, as in softmax; but p_i is 1 only at e_i, and 1/k in the limit of long z:
    p_i = 1/k + 2 q (u_i - mean(u)) / (k r) + O(1/r^2) for z = r u with ||u|| = 1.

    Source: Wang & Loog, CVPR 2022, arXiv:2203.12693; Wang, TU Delft 2024 (dissertation), eq. 5.12, with q = 1; other
        powers: its sec. 8.2.
    Departs from print: d_i / (1 + ||z||^2) is not let below 1e-8, so that value and gradient are finite at e_i, for
        which print has 0 / 0. Sec. 8.2 says that a larger power drops faster to 1/k. The expansion above says the
        contrary: q times more slowly, around a peak that is sharper.

    The factor 1 + ||z||^2 is common to all d_i and cancels, which leaves log(1 - a_i) with a_i = 2 z_i / (1 + ||z||^2).
    It keeps its digits, and those of its gradient, at any length of z; where a_i is near 1, d_i is summed directly.
    """
    if z.ndim < 1 or z.shape[-1] < 2 or not z.dtype.is_floating_point:
        raise ShapeError(
            f"softRmax got {z.dtype} of shape {tuple(z.shape)}; it wants float logits of at least two classes, (*n, k)."
        )
    if not power > 0:
        raise AssayError(f"softRmax needs power > 0, got {power}; 1 is the published one.")
    shrink = z.detach().abs().amax(-1, keepdim=True).clamp_min(1).reciprocal()  # *n 1: ||z||^2 would overflow
    u = z * shrink  # *n k
    norm = u.square().sum(-1, keepdim=True) + shrink.square()  # *n 1: shrink^2 (1 + ||z||^2)
    a = 2 * u * shrink / norm  # *n k, ||a|| <= 1
    near = a.detach() > NEAR
    direct = (u - near.to(u.dtype) * shrink).square().sum(-1, keepdim=True) / norm  # *n 1
    away = torch.where(near, direct.clamp_min(FLOOR).log(), torch.log1p(-a.masked_fill(near, 0)))
    return torch.log_softmax(-power * away, -1)


def softrmax(z: Tensor, *, power: float = 1.0) -> Tensor:
    """The softRmax posterior itself, see `log_softrmax`: *n k -> *n k."""
    return log_softrmax(z, power=power).exp()


def nearest_distance(z: Tensor) -> Tensor:
    """||z - e_i||^2 to the nearest e_i: *n k -> *n.

    Of two inputs with a flat posterior the one between two classes has it small, the one far from all has it large.
    """
    nearest = nn.functional.one_hot(z.argmax(-1), z.shape[-1]).to(z.dtype)
    return (z - nearest).square().sum(-1)


class SoftRmax(nn.Module):
    """The last module of a classifier, after the layer that gives z; it returns log p and has no parameters.

    log p are logits: their softmax is p, their largest is that of z, and cross-entropy on them is the published loss,
    -log p_y = log(1 + d_y sum_{j != y} 1 / d_j) for power 1. So whatever takes a classifier with logits takes this one.

    An attack that climbs this loss is led away from the boundary, to where the posterior is flat and the answer still
    right. Attack z too (the network without this module): both give the same answers. The gradient vanishes as
    1 / ||z||^2, so that a network must start with small z.
    """

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        if not power > 0:
            raise AssayError(f"softRmax needs power > 0, got {power}; 1 is the published one.")
        self.power = power

    def forward(self, z: Tensor) -> Tensor:  # *n k -> *n k
        return log_softrmax(z, power=self.power)

    def extra_repr(self) -> str:
        return f"power={self.power:g}"
