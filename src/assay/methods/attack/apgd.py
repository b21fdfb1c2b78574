"""Auto-PGD: projected gradient ascent that halves its own step when it stops climbing."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Truth
from assay.methods.attack.attacked import Attacked, EotMode, Model, Precision, Slope, Standing, check, stand
from assay.methods.attack.ball import Ball, Norm, Region, wide
from assay.methods.attack.loss import Goal, Loss, LossName, others

MOMENTUM = 0.75  # alpha: the weight of the new step against the last move
ENOUGH_RISES = 0.75  # rho: the share of steps that must climb between two checkpoints
L1_WIDER = ((3.0, 0.3), (2.0, 0.3))  # radius factors and shares of the steps before the budget itself
L1_EVERY = 0.04  # of the steps, between two l1 checkpoints
L1_DENSE, L1_SHRINK, L1_SMALLEST = 0.2, 1.5, 0.1  # share of features at the start; step cut; smallest step / radius


def apgd(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    norm: Norm = "linf",
    radius: float | Tensor,
    steps: int = 100,
    restarts: int = 1,
    loss: LossName | Loss = "ce",
    target: Tensor | None = None,
    targets: int = 0,
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
    r"""Climb `loss` with momentum and a step that is halved where it does not pay: n *d, n -> Attacked.

        z_{k+1} = P( x_k + eta steepest(grad loss(x_k)) )
        x_{k+1} = P( x_k + 3/4 (z_{k+1} - x_k) + 1/4 (x_k - x_{k-1}) ),        eta_0 = 2 radius

    At checkpoints w_j = ceil(p_j steps), p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06), eta is
    halved and the search goes back to its best point where fewer than 3/4 of the steps climbed, or where neither eta
    nor the best loss has changed since the last checkpoint.

    In l1 there is no momentum, the step moves the signs of the steepest share of the features, that share follows the
    sparsity of the best point (over 1.5), and the radius is 3, 2 and 1 times the budget for 30, 30 and 40 % of steps.

    `target`: lead all inputs to these classes. `targets=k`: untargeted, but one run for each of the k likeliest wrong
    classes, which leads the loss there; any wrong answer is a success. Steps count forward and backward passes.

    Source: Croce & Hein, ICML 2020, arXiv:2003.01690, Algorithm 1 and sec. 4; l1: Croce & Hein, ICML 2021,
    arXiv:2103.01208, sec. 3 and Algorithm 1.
    Departs from print: scale-free cross-entropy and a DLR that knows two and three classes (loss.py); inputs that are
        broken leave; the random start is uniform in the ball. `as_published=True` gives the plain cross-entropy.
    """
    check(x, y, bounds=bounds, target=target)
    if norm == "l0":
        raise AssayError("apgd climbs in linf, l2 or l1; for l0 use minimal_norm.")
    if steps < 1 or restarts < 1 or targets < 0:
        raise AssayError(f"apgd needs steps >= 1, restarts >= 1, targets >= 0; got {steps=}, {restarts=}, {targets=}.")
    if target is not None and targets:
        raise AssayError("Pass either target (these classes) or targets (the k likeliest ones), not both.")
    x = x.detach()
    rng = rng or torch.Generator().manual_seed(0)
    goal = Goal(y, target, loss, as_published, any_other=targets > 0)
    slope = Slope(model, goal, eot=eot, climb=climb, eot_mode=eot_mode, precision=precision)
    standing = stand(Ball(norm, radius, *bounds, mask).around(x), slope, steps, leave=leave)
    likeliest: tuple[Tensor | None, ...] = (None,)
    if targets:
        scores = slope.scores(x)
        few = min(targets, scores.shape[1] - 1)
        likeliest = tuple(others(scores, goal.label).topk(few, dim=1).indices.unbind(1))
    for _ in range(restarts):
        for leader in likeliest:
            if leader is not None:
                standing.whole_slope = slope.towards(replace(slope.goal, target=leader))
            if not standing.again():
                return standing.result()
            at, first = standing.region.sample(rng), 0
            if norm == "l1":
                for factor, share in L1_WIDER:
                    wider = replace(standing.region, radius=standing.region.radius * factor)
                    at = _ascend(wider.project(at), round(share * steps), region=wider, slope=standing.slope)
                    first += round(share * steps)
            last = _ascend(standing.region.project(at), steps - first, standing=standing, first=first)
            standing.finish(last)
    return standing.result()


@dataclass(eq=False)
class Climb:
    """Where each climb is and what it needs to judge its step; one row per input."""

    at: Tensor  # n *d
    gradient: Tensor  # n *d
    height: Tensor  # n
    before: Tensor  # n *d
    best_x: Tensor  # n *d
    best_gradient: Tensor  # n *d
    best_height: Tensor  # n
    eta: Tensor  # n
    rises: Tensor  # n, since the last checkpoint
    halved: Tensor  # n bool, at the last checkpoint
    old_best: Tensor  # n, at the last checkpoint
    count: Tensor  # n, features that an l1 step moves
    old_count: Tensor  # n, changed features at the last checkpoint

    def take(self, rows: Tensor) -> Climb:
        return Climb(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def go_back(self, rows: Tensor) -> None:
        """Return to the best point where `rows` says so, at rest."""
        there = wide(rows, self.at)
        self.at = torch.where(there, self.best_x, self.at)
        self.before = torch.where(there, self.at, self.before)
        self.gradient = torch.where(there, self.best_gradient, self.gradient)
        self.height = torch.where(rows, self.best_height, self.height)


def _ascend(
    at: Tensor,
    steps: int,
    *,
    standing: Standing | None = None,
    first: int = 0,
    region: Region | None = None,
    slope: Slope | None = None,
) -> Tensor:
    """One climb of `steps` passes from `at`. With `standing`, offer every point to it, let the broken leave and return
    the last point, not yet looked at; without, climb in `region` and return the best point."""
    region, slope = (standing.region, standing.slope) if standing is not None else (region, slope)
    assert region is not None
    assert slope is not None
    l1 = region.norm == "l1"
    features = at[0].numel()
    climb: Climb | None = None
    checks = _checkpoints(steps, l1)
    gap_start = 0
    for k in range(steps):
        seen = slope.at(at)
        if standing is not None:
            standing.offer(at, seen.height, seen.reached, first + k)
        if climb is None:
            zeros = torch.zeros_like(seen.height)
            climb = Climb(
                at, seen.gradient, seen.height, at, at, seen.gradient, seen.height,
                eta=region.radius * (1 if l1 else 2), rises=zeros, halved=zeros > 0, old_best=seen.height,
                count=(L1_DENSE * features + zeros).ceil(), old_count=zeros + features,
            )  # fmt: skip
        else:
            climb.rises = climb.rises + (seen.height > climb.height)
            climb.at, climb.gradient, climb.height = at, seen.gradient, seen.height
            higher = seen.height > climb.best_height
            climb.best_height = torch.where(higher, seen.height, climb.best_height)
            climb.best_x = torch.where(wide(higher, at), at, climb.best_x)
            climb.best_gradient = torch.where(wide(higher, at), seen.gradient, climb.best_gradient)
        if k in checks:
            if l1:
                _judge_l1(climb, region, features)
            else:
                _judge(climb, k - gap_start)
            gap_start = k
        stay = standing.let_go(first + k) if standing is not None else None
        if standing is not None and stay is not None:
            region, slope, climb = standing.region, standing.slope, climb.take(stay)
            if len(climb.at) == 0:
                return climb.at
        at = _step(climb, region, k)
        climb.before = climb.at
    if standing is None and climb is not None:
        return climb.best_x
    return at


def _step(climb: Climb, region: Region, k: int) -> Tensor:
    if region.norm == "l1":
        way = _signs(climb.gradient, climb.at, region, climb.count)
        return region.project(torch.addcmul(climb.at, way, wide(climb.eta, way)))
    way = region.steepest(climb.gradient, climb.at)
    z = region.project(torch.addcmul(climb.at, way, wide(climb.eta, way)))
    if k == 0:
        return z
    # x + a (z - x) + (1 - a)(x - before)
    return region.project(torch.lerp(climb.at, z, MOMENTUM).add_(climb.at - climb.before, alpha=1 - MOMENTUM))


def _checkpoints(steps: int, l1: bool) -> frozenset[int]:
    if l1:
        every = max(1, int(L1_EVERY * steps))
        return frozenset(range(every, steps, every))
    p, marks = [0.0, 0.22], [math.ceil(0.22 * steps - 1e-9)]
    while marks[-1] < steps:
        p.append(p[-1] + max(p[-1] - p[-2] - 0.03, 0.06))
        marks.append(math.ceil(p[-1] * steps - 1e-9))  # 0.57 * 100 is 57
    return frozenset(marks)


def _judge(climb: Climb, gap: int) -> None:
    stuck = climb.rises <= ENOUGH_RISES * gap
    idle = ~climb.halved & (climb.best_height <= climb.old_best)
    halve = stuck | idle
    climb.eta = torch.where(halve, climb.eta / 2, climb.eta)
    climb.go_back(halve)
    climb.halved, climb.old_best, climb.rises = halve, climb.best_height, torch.zeros_like(climb.rises)


def _judge_l1(climb: Climb, region: Region, features: int) -> None:
    changed = (climb.best_x != region.centre).flatten(1).sum(1).to(climb.count.dtype)
    sparser = changed < 0.95 * climb.old_count
    climb.count = (changed / L1_SHRINK).floor().clamp(1, features)
    smaller = (climb.eta / L1_SHRINK).maximum(L1_SMALLEST * region.radius)
    climb.eta = torch.where(sparser, region.radius, smaller)
    climb.go_back(sparser)
    climb.old_count = changed


def _signs(gradient: Tensor, at: Tensor, region: Region, count: Tensor) -> Tensor:
    """The signs of the `count` steepest features that have room, at l1 length 1: n *d, n -> n *d."""
    room = torch.where(gradient > 0, at < region.high, at > region.low)
    slope = torch.where(room, gradient, 0).flatten(1)
    ranked = slope.abs().sort(1, descending=True).values
    least = ranked.gather(1, (count - 1).clamp_min(0).long()[:, None])
    signs = torch.where(slope.abs() >= least, slope.sign(), 0)
    return (signs / signs.abs().sum(1, keepdim=True).clamp_min(1)).reshape(gradient.shape)
