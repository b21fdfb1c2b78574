r"""What a map speaks of: one number of each answer, whatever the task.

    classes        f(x) = z_c(x)              the logit of a class: the target of a map is c
    anything else  f(x) = <w, out(x)>         weights of the answer's entries: the target of a map is w, a tensor of
                                              floating point in the shape of the answers (`Task.focus`)

Of two classes, one logit of which is 0 whatever the input (a model with one score), the logit of that class has nothing
to say: there it is its difference from the other, f(x) = z_c(x) - z_d(x), also as weights.

Both are fixed by the answer to the input as it is, and held while the input changes. So a map, its slope and what it
adds up to are written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError, SubjectError
from assay.nn.members import averaged

if TYPE_CHECKING:
    from assay.tasks import Task


def is_class(target: Tensor) -> bool:
    """Whether a target is the number of a class, and no weights."""
    return not target.dtype.is_floating_point


def spoken_of(task: Task, out: Tensor) -> Tensor:  # n *o -> n, or n *o
    """The target of the maps of these answers: the class that is said, or the weights of the task's number."""
    return class_of(out) if "classes" in task.gives else weights(task, out)


def class_of(out: Tensor) -> Tensor:  # n c -> n, or n 2
    """The class that is said; of a model with one score the weights of what tells it from the other."""
    said = out.argmax(1)
    # by the column and not by the signs: what one input is explained for does not hang on the others beside it
    if out.shape[1] != 2 or not bool((out == 0).all(0).any()):
        return said
    silent = out.gather(1, said[:, None]) == 0  # n 1
    own = torch.zeros_like(out).scatter(1, said[:, None], 1.0)
    return own - silent * (1 - own)


def weights(task: Task, out: Tensor, which: int | None = None) -> Tensor:  # n *o -> n *o, with two axes at least
    """The weights of the task's number, which no map takes for the numbers of classes."""
    found = task.focus(out, which).weight
    return found[:, None] if found.ndim == 1 else found


def weighed(target: Tensor, out: Tensor) -> Tensor:  # n or n c, n c -> n c
    """A target as weights, also where it is the number of a class."""
    return torch.zeros_like(out).scatter(1, target[:, None], 1.0) if is_class(target) else target


def number(out: Tensor, target: Tensor) -> Tensor:  # n *o, n or n *o -> n
    """The number that is explained."""
    if is_class(target):
        return out.gather(1, target[:, None])[:, 0]
    if len(out) != len(target) or out.numel() != target.numel():
        raise SubjectError(
            f"The model answered {tuple(out.shape)} where its answers had the shape {tuple(target.shape)}; a map "
            "speaks of answers of one shape."
        )
    return (out.reshape(target.shape) * target).flatten(1).sum(1)


def targets(target: int | Tensor | None, x: Tensor) -> Tensor | None:  # -> n or n *o
    """What each of the inputs is explained for, or None where it is the likeliest class."""
    if target is None:
        return None
    wanted = torch.as_tensor(target, device=x.device)
    if wanted.dtype.is_floating_point and wanted.ndim > 1 and len(wanted) == len(x):
        return wanted.detach()
    if wanted.ndim > 1 or (wanted.ndim == 1 and len(wanted) != len(x)) or wanted.dtype.is_floating_point:
        raise ShapeError(
            f"explain got targets of shape {tuple(wanted.shape)} and type {wanted.dtype} for {len(x)} inputs; give one "
            "class number, or one for each."
        )
    return wanted.long().expand(len(x))


def refuse_beyond(low: int, high: int, classes: int) -> None:
    """Refuse numbers of classes that there are not."""
    if low < 0 or high >= classes:
        raise AssayError(f"There is no class {low if low < 0 else high}; the model has {classes}, numbered from 0.")


def passes(model: nn.Module, draws: int, task: Task) -> Callable[[Tensor], Tensor]:
    """The model, or of one whose pass is random the one answer of so many, with its gradient."""
    if draws == 1 or "classes" in task.gives:
        return averaged(model, draws)
    return lambda x: task.average(torch.stack([model(x) for _ in range(draws)]))


def emptied(
    task: Task, shape: tuple[int, ...], bounds: tuple[float, float], seen: Tensor, *, tokens: bool
) -> float | Tensor:
    """What takes the place of a part that is taken out: 0, or where values are no pixels, words or answers of a
    classifier, the mean of what was `seen` (m *d): a value of 0 may be one that nobody has met."""
    low, high = bounds
    if len(shape) == 3 or tokens or "classes" in task.gives:
        return min(max(0.0, low), high)
    return seen.mean(0)
