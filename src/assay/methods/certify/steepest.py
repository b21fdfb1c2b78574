r"""The steepest secant that ascent finds in a box: a lower end of the Lipschitz constant that owes nothing to proofs.

    max over a, b in the box of   || f(a) - f(b) ||_2 / || a - b ||_2

A box is convex, so that no secant is steeper than the constant, whatever kinks lie between a and b: where one is, the
constant was not one. Gradients are no such witness; at a kink autograd may give that of no piece.

Pairs start at random and climb the quotient along its gradient in both ends. At the start and at the best end found,
short secants follow the steepest direction, which within one piece show the norm of its Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.errors import ShapeError
from assay.methods.attack.jacobian import jacobian

SHORT = (1e-4, 1e-2, 0.3)  # of the box's width: the secants tried along the steepest direction


def steepest_secant(
    of: Callable[[Tensor], Tensor],
    low: Tensor,
    high: Tensor,
    *,
    rng: torch.Generator,
    starts: int = 4,
    steps: int = 10,
) -> Tensor:  # n *d, n *d -> n
    """The largest quotient found between `low` and `high` of each row; `of` takes n *d to n k, row by row.

    Give float64: a short secant is a difference of near numbers. 0 where the box is a point.
    """
    if low.shape != high.shape or low.ndim < 2:
        raise ShapeError(
            f"The box has low of shape {tuple(low.shape)} and high of {tuple(high.shape)}; give n *d each."
        )
    n, axes = len(low), tuple(range(1, low.ndim))
    low, high = (end.repeat(starts, *(1 for _ in axes)) for end in (low, high))  # m *d, m = starts n
    wide = high - low
    a, b = (low + wide * torch.rand(low.shape, generator=rng, dtype=low.dtype, device=low.device) for _ in range(2))
    best, at = low.new_zeros(len(low)), a  # m, m *d
    tall = (-1,) + (1,) * len(axes)

    def quotient(a: Tensor, b: Tensor) -> Tensor:  # m *d, m *d -> m
        run = torch.linalg.vector_norm(a - b, dim=axes)
        rise = torch.linalg.vector_norm(of(a) - of(b), dim=1)
        return torch.where(run > 0, rise / torch.where(run > 0, run, 1), 0)

    def keep(a: Tensor, q: Tensor) -> None:
        nonlocal best, at
        better = (q > best) & q.isfinite()
        best, at = torch.where(better, q, best), torch.where(better.view(tall), a, at)

    def follow(at: Tensor) -> None:
        """Short secants along the steepest direction; from wherever a point is there is room to one of two sides."""
        j = jacobian(of, at).flatten(2)  # m k d
        way = torch.linalg.svd(j, full_matrices=False).Vh[:, 0].reshape(at.shape)
        longest = way.abs().flatten(1).amax(1).clamp_min(torch.finfo(way.dtype).tiny).view(tall)
        with torch.no_grad():
            for size in (s * sign for s in SHORT for sign in (1, -1)):
                keep(at, quotient(at, (at + size * wide * way / longest).clamp(low, high)))

    follow(a)
    for step in range(steps):
        with torch.enable_grad():
            a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
            q = quotient(a, b)
            ways = torch.autograd.grad(q.sum(), (a, b))
        keep(a.detach(), q.detach())
        reach = 0.5 * (1 - step / steps) * wide
        # by sign, as an l_inf attack steps: the box has its own width in each direction
        a, b = ((end.detach() + reach * way.sign()).clamp(low, high) for end, way in zip((a, b), ways, strict=True))
    follow(at)
    return best.view(starts, n).amax(0)
