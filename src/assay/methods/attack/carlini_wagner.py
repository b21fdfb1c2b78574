"""Carlini and Wagner's l2 attack, at a fixed trade-off c or with a search for the smallest c that breaks."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Attacked, Model, Nearest, Seen, Slope, check, refuse_nan
from assay.methods.attack.ball import wide
from assay.methods.attack.loss import Goal

ADAM_MEAN, ADAM_SQUARE, ADAM_TINY = 0.9, 0.999, 1e-8
INSIDE = 1e-6  # of the range: how far from a bound a saturated feature starts


def carlini_wagner(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    c: float | Tensor = 1.0,
    search: int = 0,
    kappa: float = 0.0,
    steps: int = 300,
    step: float | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    eot: int = 1,
    bounds: tuple[float, float] = (0.0, 1.0),
    as_published: bool = False,
) -> Attacked:
    r"""The smallest l2 change against the margin, weighed by c: n *d, n -> Attacked.

        min_w ||x' - x||^2 + c g(x'),   x' = mid + half tanh(w)
        g = max(Z_y - max_{i != y} Z_i, -kappa),   towards a target q:   g = max(max_{i != q} Z_i - Z_q, -kappa)

    by Adam on w, with a rate that fades from `step` (0.1) to 0. A larger c is a stronger attack and a larger change;
    c = 0 returns x. `search=k` runs k rounds: c is halved between bounds where a round broke the input and multiplied
    by 10 until one does; the margin is then measured in units of the logits' spread at x, so that scaled logits need
    the same c. With `eot` draws of a random model, g and its gradient are sample means.

    Source: Carlini & Wagner, S&P 2017, arXiv:1608.04644, sec. 5 and 6A. For two linear classes with margin m > 0 along
    w, the solution at a fixed c is delta = -min(c/2, m/||w||^2) w, on the boundary from c = 2m/||w||^2 on.
    Departs from print: returns the nearest point met that breaks the input, of all rounds with a search, and at a fixed
        c if its objective is below that of x itself; else the point of lowest objective. So for two linear classes an
        input breaks at c > 2m/||w||^2, cannot below m/||w||^2, and may in passing between them. Features at a bound are
        moved 1e-6 of the range inside, where tanh has a slope (at the bound itself w is infinite and the feature
        frozen). The rate fades, so that it can be large enough to leave tanh's flat ends (digits, 300 steps: mean
        change 0.575 against 0.755 at a rate of 0.01). `as_published=True` is the public code with a fixed c: last
        iterate, no clamp, rate 0.001 throughout.
    """
    check(x, y, bounds=bounds, target=target)
    weights = torch.as_tensor(c, dtype=x.dtype, device=x.device).expand(len(x))
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()) or kappa < 0 or steps < 1 or search < 0:
        raise AssayError(
            "carlini_wagner needs finite c >= 0, kappa >= 0, steps >= 1 and search >= 0; "
            f"got {c=}, {kappa=}, {steps=}, {search=}."
        )
    if search and as_published:
        raise AssayError("as_published=True is the attack at a fixed c; drop search, or drop as_published.")
    x = x.detach()
    step = step if step is not None else 0.001 if as_published else 0.1
    free = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.to(x.device).bool().expand_as(x)
    slope = Slope(model, Goal(y, target, "margin"), eot=eot)
    best = Nearest(x, "l2", bounds)
    trace = torch.zeros(steps, len(x), dtype=x.dtype, device=x.device)
    below, above = torch.zeros_like(weights), torch.full_like(weights, torch.inf)
    at, bottom, lowest = x, x, torch.full_like(weights, torch.inf)
    for _ in range(max(1, search)):
        w = _inverse_tanh(x, bounds, clamp=not as_published)
        at, slant = x, _tanh(w, bounds)[1]
        mean, square = torch.zeros_like(x), torch.zeros_like(x)
        broke = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for t in range(steps):
            seen = slope.at(at)
            margin = -seen.height
            if search and slope.goal.scale is not None:
                margin, seen = margin / slope.goal.scale, _in_units(seen, slope.goal.scale)
            delta = at - x
            size = delta.flatten(1).square().sum(1)
            trace[t] = size + weights * margin.clamp_min(-kappa)
            hit = best.believed(slope, at, size, seen.reached & ~(margin > -kappa))
            best.offer(at, size, trace[t].double(), hit)
            lower = trace[t] < lowest
            lowest, bottom = torch.where(lower, trace[t], lowest), torch.where(wide(lower, at), at, bottom)
            broke |= hit
            pull = torch.where(margin > -kappa, weights, 0).to(x.dtype)
            gradient = torch.addcmul(2 * delta, seen.gradient, wide(-pull, x)).mul_(slant).mul_(free)
            mean.lerp_(gradient, 1 - ADAM_MEAN)
            square.mul_(ADAM_SQUARE).addcmul_(gradient, gradient, value=1 - ADAM_SQUARE)
            fade = 1.0 if as_published else 1 - t / steps
            rate = step * fade * (1 - ADAM_SQUARE ** (t + 1)) ** 0.5 / (1 - ADAM_MEAN ** (t + 1))
            w.addcdiv_(mean, square.sqrt().add_(ADAM_TINY), value=-rate)
            at, slant = _tanh(w, bounds)
            at = torch.where(free, at, x)
        refuse_nan(trace[-1])
        above = torch.where(broke, torch.minimum(above, weights), above)
        below = torch.where(broke, below, torch.maximum(below, weights))
        weights = torch.where(torch.isfinite(above), (below + above) / 2, 10 * weights)
    if as_published:
        best.x, best.reached = at, torch.zeros_like(best.reached)  # the last point, as it is
    elif not search:
        worth = best.reached & (best.cost <= trace[0])
        best.x, best.reached = torch.where(wide(worth, x), best.x, bottom), worth
    return best.result(slope, trace)


def _tanh(w: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """x' = mid + half tanh(w), inside the bounds to the last bit, and dx'/dw: n *d -> n *d, n *d."""
    middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
    th = w.tanh()
    return torch.clamp(middle + half * th, *bounds), half * (1 - th.square())


def _inverse_tanh(x: Tensor, bounds: tuple[float, float], *, clamp: bool) -> Tensor:
    unit = (x - (bounds[0] + bounds[1]) / 2) / ((bounds[1] - bounds[0]) / 2)  # in [-1, 1]
    return (unit.clamp(-1 + 2 * INSIDE, 1 - 2 * INSIDE) if clamp else unit.clamp(-1, 1)).atanh()


def _in_units(seen: Seen, scale: Tensor) -> Seen:
    return seen._replace(gradient=seen.gradient / wide(scale, seen.gradient).to(seen.gradient.dtype))
