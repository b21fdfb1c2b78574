"""Targeted APGD to several wrong classes at once: an input stands in the batch as often as it is led."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from assay.methods.attack.apgd import _ascend
from assay.methods.attack.attacked import Attacked, Model, Precision, Slope, check, stand
from assay.methods.attack.ball import Ball, Norm
from assay.methods.attack.loss import Goal, others


def side_by_side(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    norm: Norm = "linf",
    radius: float | Tensor,
    steps: int = 100,
    targets: int = 9,
    mask: Tensor | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    precision: Precision = "float32",
    rng: torch.Generator | None = None,
) -> Attacked:
    """What `apgd(loss="dlr", targets=k)` looks for, in as many passes one after the other as a single target takes.

    n *d, n -> Attacked. The k climbs of an input start apart and know nothing of each other: of those that break it the
    first counts, else the one that leaves the lowest margin. Where few inputs are left, a pass of k times as many takes
    as long as one of them; where many break, one target after the other is thriftier. In l2 and linf, of a model that
    is not random.
    """
    check(x, y, bounds=bounds)
    rng = rng or torch.Generator().manual_seed(0)
    slope = Slope(model, Goal(y, None, "dlr", any_other=True), precision=precision)
    scores = slope.scores(x.detach())
    k = min(targets, scores.shape[1] - 1)
    leaders = others(scores, y).topk(k, dim=1).indices  # n k
    rows = torch.arange(len(x), device=x.device).repeat_interleave(k)
    slope = slope.take(rows)
    slope = slope.towards(replace(slope.goal, target=leaders.flatten()))
    own = radius[rows] if isinstance(radius, Tensor) and radius.ndim else radius
    free = mask[rows] if mask is not None and mask.ndim == x.ndim else mask
    standing = stand(Ball(norm, own, *bounds, free).around(x.detach()[rows]), slope, steps)
    standing.again()
    start = standing.region.project(standing.region.sample(rng))
    standing.finish(_ascend(start, steps, standing=standing))
    found = standing.result()
    height, _ = Slope(model, Goal(y[rows], None, "margin"), head=slope.head).look(found.x)
    best = torch.where(found.success, torch.inf, height).reshape(-1, k).argmax(1)  # n
    best = best + k * torch.arange(len(x), device=x.device)
    return Attacked(found.x[best], found.success[best], found.distance[best], found.loss[:, best])
