r"""Universal perturbations: one change that breaks a model on most inputs.

    g_t = sum_{i in batch t} grad loss( clip(x_i + delta_t), y_i )
    delta_0 = 0,   delta_{t+1} = P_ball( delta_t + step * steepest(g_t) )

steepest is the sign in l_inf and g / ||g|| in l2; clip keeps images within their bounds, and the gradient is that at
the clipped image, so that a value at its bound can come back. Untargeted, the loss is the cross-entropy to the label;
towards a class c it is minus the cross-entropy to c.

Source: Shafahi et al., AAAI 2020, arXiv:1811.11304 (stochastic gradient steps); 100 steps of mini-batches of 200, the
universal error rate and the targeted success rate as in Co, Martinez Rego and Lupu, "Jacobian Regularization for
Mitigating Universal Adversarial Perturbations", ICANN 2021, sec. 2.1 and 4.1. Neither the size of a step nor the
clipping is printed there; the authors' public code takes 0.8 of the radius, clips, differentiates through the clipping
and caps each loss at 12.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Aim, Truth, label_of
from assay.methods.attack.attacked import Model, Slope, check, refuse_nan
from assay.methods.attack.ball import Ball, Norm, norms, wide
from assay.methods.attack.loss import Goal
from assay.methods.attack.rows import Rows, taken


class Universal(NamedTuple):
    """One change for all inputs, and how it went on the inputs that it was made on."""

    delta: Tensor  # *d, inside the ball
    rate: float  # of the judged inputs, the share that it breaks (or sends to the target)
    loss: Tensor  # restarts * steps: the mean height of each mini-batch, before its step
    lost: Tensor  # n bool: output or gradient was NaN at some step


def universal(
    model: Model,
    x: Tensor | Rows,
    y: Truth,
    *,
    norm: Norm = "linf",
    radius: float,
    target: int | None = None,
    steps: int = 100,
    batch: int = 200,
    step: float | None = None,
    restarts: int = 1,
    mask: Tensor | None = None,
    eot: int = 1,
    bounds: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator | None = None,
    as_published: bool = False,
    lost: bool = False,
) -> Universal:
    """Make one change of at most `radius` that raises the loss of all of `x`: n *d, n -> Universal.

    Inputs that are no tensor are taken a mini-batch at a time, and of those only the first is checked; the change is
    made on the device of `y`. Every input is seen once before any is seen again. `step` defaults to half the
    radius: what all inputs share is a coarse pattern, and smaller steps broke fewer of them. Later restarts begin
    at random corners of the ball. `rng=None` is a generator seeded with 0. Inputs of the target class count towards
    `rate` too, as in the source. `mask` (*d) is True where a feature may change. Bounds wide enough to hold inputs and
    change together leave the images unclipped. An output or gradient that is NaN is refused; with `lost`, such an input
    says nothing of where to go at that step, and its answer is not right.

    Departs from print: of no change, the change whose mini-batch went best, and the last one, it returns the best on
        one common mini-batch, where the paper keeps the last; the cross-entropy is that of logits at one spread, so
        that no rescaling of the logits blunts it (loss.py). `as_published=True` gives the last change (the best last
        one of several restarts) and the plain cross-entropy.
    """
    one = taken(x, torch.arange(min(1, len(x)), device=y.device))  # 1 *d
    if isinstance(x, Tensor):
        check(x, y, bounds=bounds)
    else:
        check(one, y[:1], bounds=bounds)
    if target is not None and isinstance(y, Aim):
        raise AssayError("An Aim is good or bad and has no class to lead to; leave out target.")
    if steps < 0 or batch < 1 or restarts < 1:
        raise AssayError(
            f"universal needs steps >= 0, batch >= 1 and restarts >= 1, got steps={steps}, batch={batch}, "
            f"restarts={restarts}."
        )
    low, high = bounds
    rng = rng or torch.Generator().manual_seed(0)
    region = Ball(norm, radius, low - high, high - low, mask).around(torch.zeros_like(one))
    stride = radius / 2 if step is None else step
    size, few = min(batch, len(x)), region.few(radius)
    slope = Slope(model, Goal(y[:1]), eot=eot)
    queue, trace = _shuffle(y, rng), []
    gone = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    rivals = [] if as_published else [region.centre]  # 1 *d each
    for run in range(restarts):
        delta = region.centre if run == 0 else region.project(random_signs(one, norm=norm, radius=radius, rng=rng))
        best, peak = delta, -1.0
        for _ in range(steps):
            if len(queue) < size:
                queue = torch.cat([queue, _shuffle(y, rng)])
            rows, queue = queue[:size], queue[size:]
            slope = slope.towards(_goal(y[rows], target, as_published))
            seen = slope.at(under(taken(x, rows), delta, bounds=bounds))
            sick = seen.height.isnan()
            gone[rows] |= sick
            if not lost:
                refuse_nan(torch.zeros(len(y), dtype=torch.float64, device=y.device).index_copy(0, rows, seen.height))
            rate = float(seen.reached.double().mean())
            if rate > peak:
                peak, best = rate, delta
            trace.append(seen.height.nanmean())
            # `at` gives gradients of one size; this is the size that the cross-entropy's has, up to the input's scale
            weight = torch.ones_like(seen.height) if as_published else -torch.expm1(-seen.height.abs())
            pulls = seen.gradient * wide(weight, one).to(one.dtype)
            pull = torch.where(wide(sick, one), 0.0, pulls).sum(0, keepdim=True)
            delta = region.project(delta + stride * region.steepest(pull, delta, few))
        rivals += [delta] if as_published else [best, delta]
    judges = _shuffle(y, rng)[:size]
    judged = taken(x, judges)
    slope = slope.towards(_goal(y[judges], target, as_published))
    rates = []
    for rival in rivals:
        _, reached = slope.look(under(judged, rival, bounds=bounds))
        rates.append(float(reached.double().mean()))
    won = max(range(len(rivals)), key=lambda i: (rates[i], i))  # of equals the later: it has seen more
    return Universal(rivals[won][0], rates[won], torch.stack(trace) if trace else one.new_zeros(0), gone)


def under(x: Tensor, delta: Tensor, *, bounds: tuple[float, float] = (0.0, 1.0)) -> Tensor:
    """Inputs with a change added and cut to their bounds: n *d, *d or n *d -> n *d."""
    return torch.clamp(x + delta, *bounds)


def answers(
    model: Model, x: Tensor, delta: Tensor, *, bounds: tuple[float, float] = (0.0, 1.0), batch: int = 1000
) -> Tensor:
    """What the model says to inputs under one change: n *d, *d -> n."""
    with torch.no_grad():
        return torch.cat([model(under(part, delta, bounds=bounds)).argmax(1) for part in torch.split(x, batch)])


def error_rate(
    model: Model, x: Tensor, y: Truth, delta: Tensor, *, bounds: tuple[float, float] = (0.0, 1.0), batch: int = 1000
) -> float:
    """The universal error (or evasion) rate: the share of inputs that the model gets wrong under one change."""
    if isinstance(y, Aim):
        rows = torch.split(torch.arange(len(x), device=x.device), batch)
        with torch.no_grad():
            broken = [Goal(y[i]).reached(y[i].read(model(under(x[i], delta, bounds=bounds)))) for i in rows]
        return float(torch.cat(broken).double().mean())
    return float((answers(model, x, delta, bounds=bounds, batch=batch) != y).double().mean())


def success_rate(
    model: Model, x: Tensor, delta: Tensor, target: int, *, bounds: tuple[float, float] = (0.0, 1.0), batch: int = 1000
) -> float:
    """The targeted success rate: the share of inputs, those of that class among them, that are called `target`."""
    return float((answers(model, x, delta, bounds=bounds, batch=batch) == target).double().mean())


def random_signs(like: Tensor, *, norm: Norm = "linf", radius: float, rng: torch.Generator) -> Tensor:
    """What a change of that size does without any thought: random signs, one draw per row, scaled: n *d -> n *d."""
    signs = torch.randn(like.shape, generator=rng, device=rng.device, dtype=like.dtype).to(like.device).sign()
    return signs * (radius / norms(signs[:1], norm)).item()


def _goal(y: Truth, target: int | None, as_published: bool) -> Goal:
    return Goal(y, None if target is None else torch.full_like(label_of(y), target), "ce", as_published)


def _shuffle(y: Truth, rng: torch.Generator) -> Tensor:
    return torch.randperm(len(y), generator=rng, device=rng.device).to(y.device)
