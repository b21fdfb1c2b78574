"""The average-sample attack: a step from the mean of one class towards the mean of another, without any gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.attack.aim import Aim, Truth
from assay.methods.attack.attacked import Attacked, Model, Slope, check, refuse_nan
from assay.methods.attack.ball import Ball, wide
from assay.methods.attack.loss import Goal
from assay.methods.attack.rows import Rows

Batches = Iterable[tuple[Tensor, Tensor]]  # (n *d, n), and again


def class_means(data: Rows | Batches, *, classes: int, batch: int = 1024) -> Tensor:
    r"""The mean input of each class, in one pass: (n *d, n) per batch -> c *d.

        Avg_c = (1 / n_c) sum_{i: y_i = c} x_i

    Summed in float64 and rounded to float32: two means that are equal in exact arithmetic differ by the rounding of
    their sums, and the attack would take the sign of that rounding for a direction.
    """
    total: Tensor | None = None
    count = torch.zeros(classes, dtype=torch.float64)
    for x, y in _batches(data, batch):
        if int(y.min()) < 0 or int(y.max()) >= classes:
            raise AssayError(f"Found labels {int(y.min())} to {int(y.max())}; {classes} classes go to {classes - 1}.")
        if total is None:
            total = torch.zeros(classes, *x.shape[1:], dtype=torch.float64, device=x.device)
        total.index_add_(0, y.to(x.device), x.double())
        count += torch.bincount(y.cpu(), minlength=classes)
    if total is None or bool((count == 0).any()):
        missing = [c for c in range(classes) if count[c] == 0]
        raise AssayError(f"Classes {missing} have no input and so no mean; give at least one input of every class.")
    return (total / wide(count.to(total.device), total)).float()


def average_sample(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    means: Tensor,
    radius: float | Tensor,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    eot: int = 1,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Attacked:
    r"""One step of full length between class means, in l_inf: n *d, n, c *d -> Attacked.

        x' = P_box( x + radius * sign(Avg_t - Avg_y) ),   sign(0) = 0

    Without a `target` every t != y is tried and the worst kept; row k of `loss` belongs to t = (y + k + 1) mod c. The
    heights are minus the margin of y. The target only leads: success is any answer but y, as the source counts it.

    Source: Wang & Loog, CVPR 2022, arXiv:2203.12693; Wang, TU Delft 2024 (dissertation), eq. 5.16.
    Departs from print: the step is cut to the box. The source leaves open how Table 5.2 chooses t;
        `share_of_targets` gives its other reading, the mean over all targets.
    """
    if isinstance(y, Aim):
        raise AssayError("average_sample steps between class means and needs class labels, not an Aim; use pgd.")
    check(x, y, bounds=bounds, target=target)
    x = x.detach()
    if means.shape[1:] != x.shape[1:]:
        raise ShapeError(
            f"The means are of inputs of shape {tuple(means.shape[1:])}, the inputs have {tuple(x.shape[1:])}; "
            "take class_means of the same kind of input."
        )
    most = int(y.max() if target is None else torch.maximum(y, target).max())
    if most >= len(means) or len(means) < 2:
        raise AssayError(f"Found class {most} but {len(means)} class means; give one for every class.")
    means = means.to(x)
    region = Ball("linf", radius, *bounds, mask).around(x)
    slope = Slope(model, Goal(y, loss="margin"), eot=eot)
    targets = [target] if target is not None else [(y + k) % len(means) for k in range(1, len(means))]
    worst, peak, trace = x, torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device), []
    for t in targets:
        at = region.project(x + wide(region.radius, x) * (means[t] - means[y]).sign())
        height = slope.goal.height(slope.scores(at))  # n
        refuse_nan(height, "output")
        worst = torch.where(wide(height > peak, x), at, worst)
        peak = torch.maximum(peak, height)
        trace.append(height)
    _, success = slope.look(worst)
    return Attacked(worst, success, region.distance(worst), torch.stack(trace).to(x.dtype))


def share_of_targets(attacked: Attacked) -> Tensor:
    """The share of targets under which each input stays right; its mean is the accuracy averaged over targets: n."""
    return (attacked.loss < 0).double().mean(0)


def _batches(data: Rows | Batches, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(data, Rows):
        for start in range(0, len(data), batch):
            yield data.take(np.arange(start, min(start + batch, len(data))))
    else:
        yield from data
