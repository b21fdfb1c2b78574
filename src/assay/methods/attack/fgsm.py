"""The fast gradient sign method: one step of full length."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Attacked, EotMode, Model, Slope, check, stand
from assay.methods.attack.ball import Ball, Norm, wide
from assay.methods.attack.loss import Goal, Loss, LossName


def fgsm(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    norm: Norm = "linf",
    radius: float | Tensor,
    random_start: bool = False,
    loss: LossName | Loss = "ce",
    target: Tensor | None = None,
    mask: Tensor | None = None,
    eot: int = 1,
    eot_mode: EotMode = "loss",
    bounds: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator | None = None,
    as_published: bool = False,
) -> Attacked:
    r"""One step of length `radius` up the loss: n *d, n -> Attacked.

        x' = P_box( x + radius * sign(grad_x loss(x)) )
        random start:  x_0 = P_box( x + radius/2 * sign(N(0, 1)) )
                       x'  = P_box( x_0 + radius/2 * sign(grad_x loss(x_0)) )

    In l2 and l1 the sign is replaced by that norm's steepest step and the random sign by a point of the half ball.

    Source: Goodfellow et al., ICLR 2015, arXiv:1412.6572, sec. 4; random start: Tramer et al., ICLR 2018,
    arXiv:1705.07204, sec. 4.1 (R+FGSM, here with half of the radius for each part).
    Departs from print: an input that the starting point already breaks keeps that point, and the cross-entropy is
        scale-free (loss.py). `as_published=True` always takes the step, on the plain cross-entropy.
    """
    check(x, y, bounds=bounds, target=target)
    if norm == "l0":
        raise AssayError("fgsm steps in linf, l2 or l1; for l0 use minimal_norm.")
    x = x.detach()
    rng = rng or torch.Generator().manual_seed(0)
    radii = torch.as_tensor(radius, dtype=x.dtype, device=x.device).expand(len(x))
    region = Ball(norm, radius, *bounds, mask).around(x)
    slope = Slope(model, Goal(y, target, loss, as_published), eot=eot, eot_mode=eot_mode)
    standing = stand(region, slope, 1, last=as_published)
    at, length = x, radii
    if random_start:
        length = radii / 2
        if norm == "linf":
            signs = torch.randn(x.shape, generator=rng, device=rng.device, dtype=x.dtype).sign().to(x.device)
            at = region.project(x + wide(length, x) * signs)
        else:
            at = Ball(norm, length, *bounds, mask).sample(x, rng)
    seen = slope.at(at)
    standing.offer(at, seen.height, seen.reached, 0)
    way = region.steepest(seen.gradient, at, region.few(float(length.max())))
    standing.finish(region.project(torch.addcmul(at, way, wide(length, at))))
    return standing.result()
