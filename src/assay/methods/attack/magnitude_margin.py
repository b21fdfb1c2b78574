"""The magnitude-margin ratio and the first-order flip radius: how far each input is from a flip, without an attack."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Model, Slope, check, refuse_nan
from assay.methods.attack.ball import Norm, norms
from assay.methods.attack.loss import Goal, own
from assay.methods.attack.minimal_norm import DUAL


class MagnitudeMargin(NamedTuple):
    """One row per input, in float64. Read the rest where `right`: the definition assumes a right answer.

    Elsewhere the ratio is infinity and the radius 0, so that whoever forgets cannot flatter the model. Where the margin
    does not move with the input at all, the ratio is 0 and the radius infinity.
    """

    right: Tensor  # n bool: the model answers y
    margin: Tensor  # n: M
    ratio: Tensor  # n: R = m / M
    radius: Tensor  # n: eps*


def magnitude_margin(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    norm: Norm = "linf",
    all_rivals: bool = False,
    mask: Tensor | None = None,
) -> MagnitudeMargin:
    r"""Divide the margin of the logits by how fast it moves with the input: n *d, n -> n each.

        M = z_y - z_j,  j = argmax_{i != y} z_i,     g = grad_x M,     m = mean_i |g_i|
        R = m / M,      eps* = M / ||g||_dual        dual: l1 for l_inf, l2 for l2, l_inf for l1

    In l_inf eps* = 1 / (d R) with d features, and an attack of size eps changes the margin by the share r = eps / eps*
    to first order. eps* is exact for a linear model and a box out of reach; on a curved one it is an estimate, not a
    bound. `all_rivals` looks at every boundary and not only at the runner-up's: eps* = min_j M_j / ||g_j||_dual and
    R = max_j m_j / M_j. It keeps the graph of one forward pass and goes back through it c - 1 times, one rival after
    the other, so that memory does not grow with the classes. `mask` (*d or n *d) is True for the d features that may
    change, and g is that of those.

    Source: Wang & Loog, CVPR 2022, arXiv:2203.12693; Wang, TU Delft 2024 (dissertation), eq. 5.4 and 5.17.
    Departs from print: "magnitude" is read as the mean absolute entry of the margin's gradient, with which eq. 5.17
        holds. Other norms and `all_rivals` are additions.
    """
    check(x, y, bounds=(-torch.inf, torch.inf))
    if norm not in DUAL:
        raise AssayError(f"A flip radius to first order is for {', '.join(DUAL)}, not {norm!r}.")
    slope = Slope(model, Goal(y, loss="margin"))
    seen = slope.at(x)  # the margin's slope in the logits is 1 and -1, so this gradient has no factor
    refuse_nan(seen.height)
    margin, right = -seen.height, ~seen.reached
    free = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.to(x.device).expand_as(x)
    m, size = _magnitudes(seen.gradient, norm, free)
    safe = right & (margin > 0)  # a tie may be answered right, and any push flips it
    ratio = torch.where(safe, m / margin, torch.inf)
    radius = torch.where(safe, margin / size, 0.0)
    rows = safe.nonzero()[:, 0]
    if all_rivals and len(rows):
        ratio[rows], radius[rows] = _over_rivals(slope.take(rows), x[rows], norm, free[rows])
    return MagnitudeMargin(right, margin, ratio, radius)


def _over_rivals(slope: Slope, x: Tensor, norm: Norm, free: Tensor) -> tuple[Tensor, Tensor]:
    """The largest ratio and the smallest radius over all rivals: n *d, n -> n, n."""
    ratio = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    radius, y = torch.full_like(ratio, torch.inf), slope.goal.label
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        z, _ = slope._logits(at, "float32")  # n c
        for k in range(1, z.shape[1]):
            j = (y + k) % z.shape[1]
            (g,) = torch.autograd.grad((own(z, y) - own(z, j)).sum(), at, retain_graph=k < z.shape[1] - 1)
            gap = own(z.detach().double(), y) - own(z.detach().double(), j)
            m, size = _magnitudes(g, norm, free)
            ratio, radius = torch.maximum(ratio, m / gap), torch.minimum(radius, gap / size)
    return ratio, radius


def _magnitudes(g: Tensor, norm: Norm, free: Tensor) -> tuple[Tensor, Tensor]:
    """The mean absolute entry and the dual norm of each gradient, of what is free: n *d, n *d -> n, n."""
    g = torch.where(free, g.double(), 0.0)
    return g.abs().flatten(1).sum(1) / free.flatten(1).sum(1).clamp_min(1), norms(g, DUAL[norm])
