"""Projected gradient descent: climb the loss inside the ball, in l_inf, l2 or l1."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Attacked, EotMode, Model, Precision, Slope, check, stand
from assay.methods.attack.ball import Ball, Norm, wide
from assay.methods.attack.loss import Goal, Loss, LossName


def pgd(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    norm: Norm = "linf",
    radius: float | Tensor,
    steps: int = 20,
    step: float | Tensor | None = None,
    random_start: bool = True,
    restarts: int = 1,
    loss: LossName | Loss = "ce",
    target: Tensor | None = None,
    mask: Tensor | None = None,
    eot: int = 1,
    climb: int | None = None,
    eot_mode: EotMode = "loss",
    bounds: tuple[float, float] = (0.0, 1.0),
    leave: bool = True,
    precision: Precision = "float32",
    rng: torch.Generator | None = None,
    as_published: bool = False,
) -> Attacked:
    r"""Climb `loss` inside the ball around `x`; per input, return the worst point met: n *d, n -> Attacked.

        x_0 ~ U(ball),   x_{t+1} = P_ball( x_t + step * steepest(grad_x loss(x_t)) )

    steepest is sign(g) in l_inf, g / ||g|| in l2, and in l1 the signs of the steepest 1 % of the
    features with room left (more where the radius can saturate more).
    `step` defaults to 2.5 radius / steps. With a `target`, climb towards it and count success when it is reached.
    `climb` draws go to a gradient of a random model, as many as to an answer (`eot`) unless told.
    `leave`: inputs that are broken leave the batch. `rng=None` is a generator seeded with 0. Later restarts start at
    random points also without `random_start`.

    Source: Madry et al., ICLR 2018, arXiv:1706.06083, sec. 2.1 and 3.1; l1: Tramer & Boneh, NeurIPS 2019, sec. 4.
    Departs from print: keeps the best point met, where the paper keeps the last, so that a step too far cannot flatter
        the model; the cross-entropy is scale-free (loss.py). `as_published=True` gives the last point of every run and
        the plain cross-entropy.
    """
    check(x, y, bounds=bounds, target=target)
    if norm == "l0":
        raise AssayError("pgd climbs in linf, l2 or l1; for l0 use minimal_norm.")
    if steps < 0 or restarts < 1:
        raise AssayError(f"pgd needs steps >= 0 and restarts >= 1, got steps={steps}, restarts={restarts}.")
    ball = Ball(norm, radius, *bounds, mask)
    rng = rng or torch.Generator().manual_seed(0)
    slope = Slope(
        model, Goal(y, target, loss, as_published), eot=eot, climb=climb, eot_mode=eot_mode, precision=precision
    )
    standing = stand(ball.around(x.detach()), slope, steps, leave=leave and not as_published, last=as_published)
    stride = step if step is not None else 2.5 * radius / max(steps, 1)
    if isinstance(stride, Tensor):
        stride = stride.to(x).expand(len(x))
    few = standing.region.few(float(standing.region.radius.max()))
    for run in range(restarts):
        if not standing.again():
            break
        region = standing.region
        at = region.sample(rng) if random_start or run > 0 else region.centre
        for t in range(steps):
            seen = standing.slope.at(at)
            standing.offer(at, seen.height, seen.reached, t)
            way = standing.region.steepest(seen.gradient, at, few)
            if isinstance(stride, Tensor):
                at = torch.addcmul(at, way, wide(stride[standing.rows], at))
            else:
                at = torch.add(at, way, alpha=stride)
            at = standing.region.project(at)
            stay = standing.let_go(t)
            if stay is not None:
                at = at[stay]
                if len(at) == 0:
                    break
        standing.finish(at)
    return standing.result()
