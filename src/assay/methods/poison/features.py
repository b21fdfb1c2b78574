r"""Labelled inputs moved a little, so that the graph carries their labels elsewhere.

    max_Delta |g(K' y_l) - h|^2,   K' of the rows X_l + Delta,   |Delta|_F <= d, and at most c rows of Delta not 0

g is the identity for regression. For classes, where it is the sign, the climb goes by tanh(s .) and the answers are
read by their sign. The gradient goes through the linear solve; steps have one length, and the best point met is kept.
This is the other half of the unified objective, for which print gives no algorithm.

Source: Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 1.2.3, eq. 1.2 (R_2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.poison.propagation import Array

STEPS, STARTS, SLOPE = 40, 16, 10.0
SOUND = 1e-6
STRIDE = 0.2  # of the radius, a step; the last ones are a tenth of it


class Moved(NamedTuple):
    """The change of the labelled rows, and the answers that it leads to."""

    change: Array  # l d
    answers: Array  # u


def move(
    labelled: Array, unlabelled: Array, labels: Array, towards: Array, gamma: float, radius: float, *,
    rng: torch.Generator, rows: int | None = None, classes: bool = False, nearer: bool = False, steps: int = STEPS,
) -> Moved:  # l d, u d, l, u  # fmt: skip
    """Away from `towards` (the truth, or the answers before), or `nearer` to it (what the enemy wants said).

    With `rows`, at most so many labelled rows move: those that go farthest where twice as many may, and so on.
    """
    if not radius > 0:
        raise AssayError(f"Got d_max={radius:g}; a change of features wants a norm above 0.")
    if rows is not None and rows < 1:
        raise AssayError(f"Got rows={rows}; at least one row must be free to move.")
    x, others, y, goal = (
        torch.as_tensor(np.asarray(a), dtype=torch.float64) for a in (labelled, unlabelled, labels, towards)
    )
    between = _kernel(others, others, gamma)
    between.fill_diagonal_(0)
    sign = 1 if nearer else -1

    def answer(change: Tensor) -> Tensor:  # l d -> u
        across = _kernel(others, x + change, gamma)  # u l
        degree = between.sum(1) + across.sum(1)
        solved: Tensor = torch.linalg.solve_ex(degree.diag() - between, across @ y).result
        return solved

    def height(answers: Tensor, smooth: bool) -> Tensor:
        if classes:
            answers = torch.tanh(SLOPE * answers) if smooth else torch.where(answers >= 0, 1.0, -1.0).to(answers)
        return sign * ((answers - goal) ** 2).sum()

    def climb(free: Tensor, best: _Point) -> _Point:  # l 1
        """Only the free rows move; the best point met, or the one that was given."""
        # From the best of some draws: at rest nothing has a slope where the aim is the answers before.
        drawn = free * torch.randn(STARTS, *x.shape, generator=rng, dtype=x.dtype)
        drawn *= radius / drawn.norm(dim=(1, 2), keepdim=True)
        change = min(drawn, key=lambda tried: float(height(answer(tried), True)))
        for step in range(steps + 1):
            change.requires_grad_(True)
            told = answer(change)
            soft = height(told, True)
            found = _Point((float(height(told.detach(), False)), float(soft.detach())), change.detach(), told.detach())
            # Answers are means of labels, unless the change cut nodes off and the solve was lost to rounding.
            sound = bool(((told >= y.min() - SOUND) & (told <= y.max() + SOUND)).all())
            if sound and found.height < best.height:
                best = found
            slope = free * torch.autograd.grad(soft, change)[0]
            if not slope.isfinite().all():
                break
            stride = radius * STRIDE * (1 - 0.9 * step / steps)
            change = change.detach() - stride * slope / max(float(slope.norm()), 1e-300)
            change *= min(1.0, radius / max(float(change.norm()), 1e-300))
        return best

    rest = torch.zeros_like(x)
    told = answer(rest)
    start = _Point((float(height(told, False)), float(height(told, True))), rest, told)
    found, left = climb(torch.ones_like(x[:, :1]), start), len(x)
    while rows is not None and rows < left:
        # Cut at every step, rows that began still would never catch up: half of the rows are dropped after each climb.
        left = max(rows, left // 2)
        kept = found.change.norm(dim=1).topk(left).indices
        found = climb(torch.zeros_like(x[:, :1]).index_fill_(0, kept, 1.0), start)
    return Moved(found.change.numpy(), found.answers.numpy())


class _Point(NamedTuple):
    height: tuple[float, float]  # by the answers as they are read, then by their smooth form
    change: Tensor  # l d
    answers: Tensor  # u


def _kernel(a: Tensor, b: Tensor, gamma: float) -> Tensor:  # m d, n d -> m n
    apart = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
    return (-gamma * apart.clamp_min(0)).exp()
