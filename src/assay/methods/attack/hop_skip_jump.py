"""HopSkipJump: the nearest input with another label, found by asking for labels and nothing else."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.attack.aim import Aim, Truth
from assay.methods.attack.attacked import Attacked, Model, Nearest, Slope, check, checked, refuse_nan
from assay.methods.attack.ball import Ball, Region, norms, wide
from assay.methods.attack.loss import Goal

START_TRIES = 50  # noise images, where no sample serves as a start
COARSE, FINE = 10, 24  # bisection rounds: at least 0.1 % of the distance, at most what float32 can tell apart
STEP_HALVINGS = 25
FIRST_REACH = 0.1  # of the range: how far the first draws are from the boundary point
FINEST = 2.0**-16  # of the range, per feature: draws closer than this drown in float32's rounding
FEWEST = 10  # draws that are worth an estimate


@torch.no_grad()
def hop_skip_jump(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    norm: Literal["l2", "linf"] = "l2",
    radius: float | Tensor | None = None,
    queries: int = 5000,
    draws: int = 100,
    start: Tensor | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    random: bool = False,
    bounds: tuple[float, float] = (0.0, 1.0),
    batch: int = 256,
    rng: torch.Generator | None = None,
) -> Attacked:
    r"""Walk along the decision boundary towards the input, by labels alone: n *d, n -> Attacked.

    With phi(x) = 1 where the label of x is what the attacker wants and -1 elsewhere, in round t = 1, 2, ...:

        x_t    = the boundary point between x and x~_{t-1}, by bisection (l2: on the segment; l_inf: clip to x -+ a)
        v_t    = 1/(B-1) sum_b (phi(x_t + delta u_b) - mean phi) u_b,   B = draws sqrt(t),   |u_b| = 1 (l2)
        x~_t   = x_t + xi v_t/|v_t|   (l_inf: xi sign v_t),   xi = ||x_t - x||/sqrt(t), halved until phi = 1
        delta  = ||x_t - x||/d, in the first round 0.1 of the range;   d = features that may change

    Only the argmax of the model's output is used, of an Aim whether the output is good enough. The nearest point met is
    returned; `success` says that one was found, `distance` how near, and the trace holds the least distance after each
    round. With a `radius`, success is to be broken within it, and inputs leave once they are; what was found further
    away is still returned. `queries` is the most that any one input is asked for, all told but the confirmation of the
    answer (1 to 3 passes). The draws of all inputs go through the model together, `batch` rows at a time.

    `random`: the model's labels are. What is returned is then what most of several fresh ones call broken, pushed away
    from the input until they do.

    `start` (n *d): points that have the wanted label. Without it, an input starts from the nearest other input of the
    batch that has it, else from uniform noise in the box, 50 tries; where none serves, the input is returned.

    Source: Chen, Jordan & Wainwright, S&P 2020, arXiv:1904.02144, Algorithms 1 and 2, sec. III.
    Departs from print: starts from a sample where there is one (in print only for a target); bisects to 0.1 % or
        finer (print: d^(-3/2), l_inf d^(-2)) and not beyond float32; draws keep 2^-16 of the range per feature; inputs
        that the model gets wrong leave with distance 0. On a GPU the sums of draws run in no fixed order, so the last
        bits of a run may differ from the next.
    """
    check(x, y, bounds=bounds, target=target)
    if norm not in ("linf", "l2"):
        raise AssayError(f"hop_skip_jump walks in l2 or linf, got norm {norm!r}; for l1 and l0 use minimal_norm.")
    x = x.detach()
    span = bounds[1] - bounds[0]
    region = Ball("linf", span, *bounds, mask).around(x)  # the box and the mask
    features = (region.high > region.low).flatten(1).sum(1).clamp_min(1)  # n
    rounds = _rounds(int(features.max()), norm)
    if draws < FEWEST or batch < 1 or queries < 2 * rounds + 3:
        raise AssayError(
            f"hop_skip_jump needs draws >= {FEWEST}, batch >= 1 and here queries >= {2 * rounds + 3}; "
            f"got {draws=}, {batch=}, {queries=}."
        )
    if start is not None and start.shape != x.shape:
        raise ShapeError(f"Starts have shape {tuple(start.shape)} for inputs of shape {tuple(x.shape)}; give one each.")
    rng = rng or torch.Generator().manual_seed(0)
    limit = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
    leaves_at = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    if radius is not None:
        leaves_at = Ball(norm, radius, *bounds).around(x).radius * (1 - 1e-6)  # who leaves is inside, rounding or not
        limit = torch.as_tensor(radius, dtype=torch.float64, device=x.device).expand(len(x))
    oracle = Oracle(model, Goal(y, target, "margin"), batch)
    best = Nearest(x, norm, bounds)
    said = oracle.said(x, best.rows)
    clean = oracle.wanted(said, best.rows)
    best.offer(x, torch.zeros_like(leaves_at), torch.zeros_like(limit), clean)
    search = (~clean & (limit > 0)).nonzero()[:, 0]
    at, found = _start(oracle, x, region, search, said, start, queries - 2 * rounds, rng)
    rows = search[found]
    at = _bisect(oracle, x[rows], at[found], rows, "l2", rounds)  # blended with the input

    nearest = torch.where(clean, 0.0, torch.full_like(leaves_at, torch.inf))
    idle = torch.ones_like(clean).index_fill(0, rows, False)  # nothing to search for, or from
    leaves_at = torch.where(idle, torch.inf, leaves_at)
    best.let_go(0, leaves_at)
    region, trace, t = region.take(rows), [], 0
    while len(best.rows):
        t += 1
        rows = best.rows
        at = _bisect(oracle, region.centre, at, rows, norm, rounds)
        size = norms(at - region.centre, norm)
        best.offer(at, size, size.double(), torch.ones_like(rows, dtype=torch.bool))
        nearest[rows] = best.size
        trace.append(nearest.clone())
        left = queries - oracle.spent[rows] - rounds - 1  # the next bisection and one step are paid first
        leaves_at[rows[left < FEWEST]] = torch.inf
        stay = best.let_go(0, leaves_at)
        if stay is not None:
            rows, at, size, left, region = best.rows, at[stay], size[stay], left[stay], region.take(stay)
            if len(rows) == 0:
                break
        count = left.clamp_max(round(draws * math.sqrt(t)))
        finest = FINEST * span * features[rows].sqrt()
        delta = torch.maximum(size / features[rows], finest) if t > 1 else torch.full_like(size, FIRST_REACH * span)
        way = _direction(oracle, at, rows, region, delta, count, norm, rng)
        at = _jump(oracle, at, rows, region, way, size / math.sqrt(t), queries - rounds)
    slope = Slope(model, oracle.goal, head="logits", random=random)
    got = best.result(slope, torch.stack(trace) if trace else nearest.new_zeros(0, len(x)))
    return got._replace(success=got.success & (got.distance <= limit))


class Oracle:
    """The model as this attack sees it: a label for a point. Counts what each input has been asked.

    Where the goal is an Aim, what was said is the output itself, since it is good for one input and bad for another.
    """

    def __init__(self, model: Model, goal: Goal, batch: int) -> None:
        self.model, self.goal, self.batch = model, goal, batch
        self.spent = torch.zeros_like(goal.label)  # n

    def said(self, points: Tensor, rows: Tensor) -> Tensor:
        """The label of each point, charged to the input it was made from: m *d, m -> m; to an Aim m *o."""
        self.spent.index_add_(0, rows, torch.ones_like(rows))
        answers, y = [], self.goal.y
        for few, owner in zip(torch.split(points, self.batch), torch.split(rows, self.batch), strict=True):
            out = self.model(few)
            z = y[owner].read(out) if isinstance(y, Aim) else checked(out, few, self.goal)
            refuse_nan(self.spent.double().index_fill(0, owner[z.isnan().any(1)], torch.nan), "output")
            answers.append(out if isinstance(y, Aim) else z.argmax(1))
        return torch.cat(answers)

    def wanted(self, said: Tensor, rows: Tensor) -> Tensor:
        """Whether this is what the attacker wants of these inputs: m, m -> m; to an Aim m *o, m -> m."""
        y, target = self.goal.y, self.goal.target
        if isinstance(y, Aim):
            return y[rows].read(said).argmax(1) == 0
        return said != y[rows] if target is None else said == target[rows]

    def wanted_among(self, said: Tensor, rows: Tensor) -> Tensor:
        """Which of the inputs have an answer that the attacker wants of these: n, m -> m n; to an Aim n *o, m -> m n.

        It costs no question: what they said is known.
        """
        if not isinstance(self.goal.y, Aim):
            return self.wanted(said[None, :], rows[:, None])
        pairs = torch.split(torch.arange(len(rows) * len(said), device=rows.device), self.batch)
        hits = [self.wanted(said[pair % len(said)], rows[pair // len(said)]) for pair in pairs]
        return torch.cat(hits).reshape(len(rows), len(said)) if hits else rows.new_zeros(0, len(said)).bool()

    def reached(self, points: Tensor, rows: Tensor) -> Tensor:
        return self.wanted(self.said(points, rows), rows)  # m *d, m -> m


def _rounds(features: int, norm: str) -> int:
    """How often to halve: log2 of 1/theta, theta = d^(-3/2) or d^(-2), between COARSE and FINE."""
    return min(FINE, max(COARSE, math.ceil(math.log2(features) * (1.5 if norm == "l2" else 2))))


def _start(
    oracle: Oracle,
    x: Tensor,
    region: Region,
    rows: Tensor,
    said: Tensor,
    start: Tensor | None,
    most: int,
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """A point with the wanted label for each of these inputs, and whether one was found: m -> m *d, m."""
    region = region.take(rows)
    if start is None:
        others = oracle.wanted_among(said, rows)  # m n
        far = torch.cdist(x[rows].flatten(1), x.flatten(1)).masked_fill(~others, torch.inf)
        start, found = x[far.argmin(1)], others.any(1)
    else:
        start, found = start.detach().to(x)[rows], torch.ones_like(rows, dtype=torch.bool)
    at = torch.clamp(start, region.low, region.high)  # features off the mask stay
    asked = found.nonzero()[:, 0]
    if len(asked):
        found[asked] = oracle.reached(at[asked], rows[asked])
    for _ in range(START_TRIES):
        here = (~found & (oracle.spent[rows] < most)).nonzero()[:, 0]
        if len(here) == 0:
            break
        noise = region.take(here).sample(rng)
        found[here] = oracle.reached(noise, rows[here])
        at[here] = noise
    return at, found


def _bisect(oracle: Oracle, x: Tensor, at: Tensor, rows: Tensor, norm: str, rounds: int) -> Tensor:
    """The wanted side of the boundary between x and `at`, which is on it: n *d, n *d, n -> n *d."""
    below = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    above = norms(at - x, "linf") if norm == "linf" else torch.ones_like(below)
    low, high, edge = torch.minimum(x, at), torch.maximum(x, at), at
    for _ in range(rounds if len(rows) else 0):
        middle = (below + above) / 2
        a = wide(middle, x)
        point = torch.clamp(at, x - a, x + a) if norm == "linf" else torch.lerp(x, at, a)
        point = torch.clamp(point, low, high)  # rounding may not leave the segment, so not the box either
        hit = oracle.reached(point, rows)
        edge = torch.where(wide(hit, x), point, edge)
        below, above = torch.where(hit, below, middle), torch.where(hit, middle, above)
    return edge


def _direction(
    oracle: Oracle,
    at: Tensor,
    rows: Tensor,
    region: Region,
    delta: Tensor,
    count: Tensor,
    norm: str,
    rng: torch.Generator,
) -> Tensor:
    """v / |v|, or sign v in l_inf, from `count` draws at length delta around each point: n *d, n, n -> n *d."""
    low, high, free = region.low, region.high, region.high > region.low
    hits = torch.zeros_like(delta)
    total, signed = torch.zeros_like(at), torch.zeros_like(at)  # sums of u and of phi u
    owners = torch.arange(len(at), device=at.device).repeat_interleave(count)
    for i in torch.split(owners, oracle.batch):  # b, packed: a batch may hold draws of many inputs
        shape = (len(i), *at.shape[1:])
        if norm == "l2":
            u = torch.randn(shape, generator=rng, device=rng.device, dtype=at.dtype).to(at.device)
        else:
            u = 2 * torch.rand(shape, generator=rng, device=rng.device, dtype=at.dtype).to(at.device) - 1
        u = torch.where(free[i], u, 0)
        length = wide(delta[i], u)
        point = torch.clamp(at[i] + u * (length / wide(norms(u, "l2").clamp_min(1e-30), u)), low[i], high[i])
        u = (point - at[i]) / length  # what the box has left of it
        phi = oracle.reached(point, rows[i]).to(at.dtype) * 2 - 1
        hits.index_add_(0, i, phi)
        total.index_add_(0, i, u)
        signed.index_add_(0, i, u * wide(phi, u))
    mean = hits / count
    # where all draws agree there is no variance to reduce, and v is phi times their mean
    baseline = torch.where(mean.abs() < 1, mean, 0)
    v = signed - total * wide(baseline, at)
    return v.sign() if norm == "linf" else v / wide(norms(v, "l2").clamp_min(1e-30), v)


def _jump(oracle: Oracle, at: Tensor, rows: Tensor, region: Region, way: Tensor, xi: Tensor, most: int) -> Tensor:
    """at + xi way, xi halved until it has the wanted label; `at` itself where no such step was found: n *d -> n *d."""
    far, pending = at.clone(), torch.ones_like(rows, dtype=torch.bool)
    for _ in range(STEP_HALVINGS):
        here = (pending & (oracle.spent[rows] < most)).nonzero()[:, 0]
        if len(here) == 0:
            break
        some = region.take(here)
        trial = torch.clamp(at[here] + wide(xi[here], at) * way[here], some.low, some.high)
        hit = oracle.reached(trial, rows[here])
        far[here[hit]] = trial[hit]
        pending[here[hit]] = False
        xi = xi / 2
    return far
