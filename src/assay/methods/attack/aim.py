r"""What an attack must undo where the answer is no class: targets of any shape, and the margin that reads an answer.

With m(out_i, t_i) above 0 exactly where output i is good enough for its target t_i, any model is a classifier of two
classes, bad and good, whose label is good:

    z_i = (-m / 2, m / 2),   y_i = 1,   argmax z_i = y_i  <=>  m > 0

so that every loss, step, restart and success test written for classes holds as it stands. Attacks take an `Aim` where
they take labels. Only the margin looks at the output, which may have any shape. An output with a NaN in it is not good,
whatever the margin makes of it.

The gradient is the margin's own: one that counts must carry a gradient that leads across.

Of several passes of a random model `average` makes one output, which is then read: the mean of numbers may be good
where no single pass is. Without it the passes are averaged as those of a classifier are, by the mean of the softmax
of z. Gradients are means over the passes in both cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.errors import ShapeError

if TYPE_CHECKING:
    from assay.tasks import Task

Margin = Callable[[Tensor, Tensor], Tensor]  # (n *o, n *t) -> n, above 0 exactly where the output is good enough


@dataclass(frozen=True, eq=False)
class Aim:
    """Targets and their margin, in the place of n class labels."""

    margin: Margin
    target: Tensor  # n *t
    average: Callable[[Tensor], Tensor] | None = None  # draws n *o -> n *o

    def __post_init__(self) -> None:
        if self.target.ndim < 1:
            raise ShapeError("An Aim wants one row of targets per input, shape (n, ...); got a single number.")

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, rows: Any) -> Aim:
        """The targets of these rows: indices, a mask or a slice."""
        return replace(self, target=self.target[rows])

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.target),))

    @property
    def device(self) -> torch.device:
        return self.target.device

    def to(self, where: torch.device | str) -> Aim:
        return replace(self, target=self.target.to(where))

    @cached_property
    def label(self) -> Tensor:
        """The class that holds while the answer is good enough: n ones."""
        return torch.ones(len(self), dtype=torch.long, device=self.device)

    def read(self, out: Tensor) -> Tensor:
        """The logits of bad and good: n *o -> n 2."""
        n = len(self)
        if not isinstance(out, Tensor) or out.ndim < 1 or len(out) != n:
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ShapeError(f"The model returned {got} for {n} inputs; an Aim reads a tensor of one row per input.")
        out = out.float() if out.dtype in (torch.float16, torch.bfloat16) else out
        m = self.margin(out, self.target)
        if not isinstance(m, Tensor) or m.shape != (n,) or not m.is_floating_point():
            got = f"{m.dtype} of shape {tuple(m.shape)}" if isinstance(m, Tensor) else type(m).__name__
            raise ShapeError(
                f"The margin returned {got} for {n} inputs; it must give one float per input, shape ({n},), above 0 "
                "where the answer is good enough."
            )
        lost = out.isnan().flatten(1).any(1) if out.ndim > 1 else out.isnan()  # a margin that counts may not see it
        m = m.masked_fill(lost, torch.nan)
        return torch.stack([-m / 2, m / 2], 1)

    def together(self, outs: list[Tensor]) -> Tensor | None:
        """The same of the one output that several passes give, where they give one: draws of n *o -> n 2."""
        return None if self.average is None else self.read(self.average(torch.stack(outs)))


Truth = Tensor | Aim
"""What is right for each of n inputs: n class indices, or an Aim of n rows."""


def truth_of(task: Task, y: Tensor) -> Truth:  # n *t
    """The targets of a task as attacks take them: class labels as they are, anything else with the task's margin."""
    return y if "classes" in task.gives else Aim(task.margin, y, task.average)


def label_of(y: Truth) -> Tensor:
    """The class of each input that the attacker wants to leave: n."""
    return y.label if isinstance(y, Aim) else y
