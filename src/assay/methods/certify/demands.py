"""What can be proved of answers that are no classes: what of a task's outputs must be kept for an answer to stay good.

A certificate bounds linear functions of the outputs, so that it holds for tasks whose good answers are an intersection
of half-spaces: numbers that are each within a tolerance, labels that each keep their sign. Smoothing is of a vote among
classes; numbers have none, and a bound on their median under noise would be about another model than the one at hand.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.certify.layers import layers
from assay.methods.certify.relax import Demand
from assay.tasks import Labels, Regression, Task


def demanded(task: Task, y: Tensor) -> Tensor | Demand:  # n *t
    """The labels of classes as they are, of other tasks what every good answer keeps."""
    if "classes" in task.gives:
        return y
    if isinstance(task, Labels):
        sign = 2 * y.double() - 1
        return Demand(torch.diag_embed(sign), torch.zeros_like(sign))
    assert isinstance(task, Regression)  # what `unproved` lets through
    target, width = y.double().reshape(len(y), -1), y.new_tensor(task.tolerance, dtype=torch.float64)
    unit = torch.eye(len(task.names), dtype=torch.float64, device=y.device)
    rows = torch.cat([unit, -unit]).expand(len(y), -1, -1)  # above y - t, and below y + t
    return Demand(rows, torch.cat([width - target, width + target], 1))


def unproved(task: Task, model: nn.Module, shape: tuple[int, ...], *, draws: int = 1) -> str | None:
    """Why nothing can be proved of answers that are no classes, or None; of classes it is None.

    `shape` is that of one input, `draws` above 1 says that the model is random.
    """
    if {"classes", "comparison"} & set(task.gives):
        return None
    # a subclass may have a margin of its own, and what is proved would be of another
    if type(task) not in (Labels, Regression) or (isinstance(task, Regression) and task.wide is not None):
        also = " with a spread or quantiles" if isinstance(task, Regression) and task.wide is not None else ""
        return (
            f"certificates bound classes, labels that each keep their sign, and plain numbers within a tolerance; the "
            f"task is {task.name()}{also}"
        )
    if draws > 1:
        return "its answers are random, so that they have no fixed bounds, and smoothing is of a vote among classes"
    try:
        readable(model, shape)
    except AssayError as e:
        return f"it reads the network layer by layer, and smoothing, which does not, is of a vote among classes: {e}"
    return None


def readable(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise where the network cannot be read as a chain of layers, in eval mode as it will be when asked."""
    modes = [(m, m.training) for m in model.modules()]
    try:
        for m, _ in modes:
            m.training = False
        layers(model, shape)
    finally:
        for m, mode in modes:
            m.training = mode
