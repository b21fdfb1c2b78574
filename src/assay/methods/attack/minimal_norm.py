"""The fast minimum-norm attack: the smallest change that breaks each input, in l_inf, l2, l1 or l0."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Aim, Truth
from assay.methods.attack.attacked import Attacked, Model, Nearest, Precision, Seen, Slope, check, refuse_nan
from assay.methods.attack.ball import Ball, Norm, Region, norms, wide
from assay.methods.attack.loss import Goal

DUAL: dict[Norm, Norm] = {"linf": "l1", "l2": "l2", "l1": "linf"}
LAST_STEP, LAST_GAMMA = 0.01, 0.02  # of the first, at the end of the cosine
BEYOND = 1.001  # the linear guess lands on the boundary itself, where rounding decides


def minimal_norm(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    norm: Norm = "l2",
    radius: float | Tensor | None = None,
    steps: int = 100,
    step: float = 1.0,
    gamma: float = 0.05,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    eot: int = 1,
    climb: int | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    precision: Precision = "float32",
) -> Attacked:
    r"""Walk along the decision boundary in a ball that shrinks where the input breaks: n *d, n -> Attacked.

        d_{k+1} = P_{eps_k, box}( d_k + a_k g_k / ||g_k||_2 ),     g = -grad margin
        eps_k   = ||d_k|| + margin / ||g_k||_dual        until a point breaks the input,
                  eps_{k-1} (1 + gamma_k)                while the point at hand does not,
                  min(eps_{k-1} (1 - gamma_k), ||d*||)   while it does, d* the smallest change so far;

    a and gamma fall along a cosine from `step` (times the range of the bounds) and `gamma`. l0 counts features and
    changes eps by at least one; its first guess is how many features, moved to their bounds, use up the margin to first
    order, and at least half as many again as before. `success` says that a breaking point was found; how near,
    `distance` says. With a `radius`, an input leaves as soon as it is broken within it: the attack for a fixed budget.

    Source: Pintor et al., NeurIPS 2021, arXiv:2102.12827, Algorithm 1.
    Departs from print: the first guess of eps is 0.1 % longer, so that it crosses the boundary of a linear model;
        inputs that the model gets wrong leave with distance 0; in l0 the print starts from one feature and adds 5 % a
        step, which a few dozen steps do not survive. An Aim may be flat where the answer is exact, as |y^ - y| is: from
        there the first step moves all features alike.
    """
    check(x, y, bounds=bounds, target=target)
    if steps < 1 or not 0 < gamma < 1 or step <= 0:
        raise AssayError(f"minimal_norm needs steps >= 1, 0 < gamma < 1, step > 0; got {steps=}, {gamma=}, {step=}.")
    x = x.detach()
    span = bounds[1] - bounds[0]
    region = Ball(norm, span, *bounds, mask).around(x)  # in l_inf, the whole box
    slope = Slope(model, Goal(y, target, "margin"), eot=eot, climb=climb, precision=precision)
    whole = slope
    best = Nearest(x, norm, bounds)
    within = torch.as_tensor(0.0 if radius is None else radius, dtype=x.dtype, device=x.device).expand(len(x))
    trace = torch.zeros(steps, len(x), dtype=x.dtype, device=x.device)
    at, eps = x, torch.full((len(x),), 1.0 if norm == "l0" else torch.inf, dtype=x.dtype, device=x.device)
    for k in range(steps):
        seen = slope.at(at)
        seen = seen._replace(gradient=region.movable(seen.gradient))
        size = norms(at - region.centre, norm)
        if k == 0:
            refuse_nan(seen.height)
        lost = seen.height.isnan() & seen.reached  # an output that is NaN is no right answer
        trace[k, best.rows] = torch.where(lost, 0.0, seen.height).to(x.dtype)
        best.offer(at, size, -seen.height, best.believed(slope, at, size, seen.reached))
        stay = best.let_go(k, within)
        if stay is not None:
            at, eps, size, region, slope = at[stay], eps[stay], size[stay], region.take(stay), slope.take(stay)
            seen = Seen(*(part[stay] for part in seen))
            if len(at) == 0:
                break
        fade = (1 + math.cos(math.pi * k / steps)) / 2
        g = gamma * (LAST_GAMMA + (1 - LAST_GAMMA) * fade)
        if norm == "l0":
            smaller = torch.minimum((eps - 1).minimum((eps * (1 - g)).floor()), best.size).clamp_min(1)
            larger = (eps + 1).maximum((eps * (1 + g)).floor())
            guess = (1.5 * eps).ceil().maximum(size + _count(region, seen, at))
            eps = torch.where(seen.reached, smaller, torch.where(best.reached, larger, guess))
        else:
            slant = norms(seen.gradient, DUAL[norm]).clamp_min(1e-12)
            guess = (size - seen.height.to(size.dtype) / slant) * BEYOND
            smaller = torch.minimum(eps * (1 - g), best.size)
            eps = torch.where(seen.reached, smaller, torch.where(best.reached, eps * (1 + g), guess))
        stride = step * span * (LAST_STEP + (1 - LAST_STEP) * fade)
        way = seen.gradient / wide(norms(seen.gradient, "l2").clamp_min(1e-30), at)
        if isinstance(y, Aim):
            way = torch.where(wide(norms(seen.gradient, "linf") == 0, at), _even(region), way)
        at = _project(region, torch.add(at, way, alpha=stride), eps)
    refuse_nan(trace.sum(0))
    return best.result(whole, trace)


def _count(region: Region, seen: Seen, at: Tensor) -> Tensor:
    """How many features must go to their bounds before the margin is gone, to first order: n *d -> n."""
    room = torch.where(seen.gradient > 0, region.high - at, at - region.low)
    gain = (seen.gradient.abs() * room).flatten(1).sort(1, descending=True).values.cumsum(1)  # n f
    short = gain < -seen.height.to(gain.dtype)[:, None]
    return (short.sum(1) + 1).clamp_max(gain.shape[1])


def _even(region: Region) -> Tensor:
    """All that may move, by the same amount, at l2 length 1: n *d."""
    way = region.movable(torch.ones_like(region.centre))
    return way / wide(norms(way, "l2").clamp_min(1e-30), way)


def _project(region: Region, x: Tensor, eps: Tensor) -> Tensor:
    if region.norm == "linf":
        r = wide(eps, x)
        return torch.clamp(torch.clamp(x, region.centre - r, region.centre + r), region.low, region.high)
    return replace(region, radius=eps).project(x)
