r"""Task: what a model is asked for. It reads an answer against its target, and knows nothing of how it was computed.

With out_i the model's output for input i and t_i its target, a task gives

    score   s(out_i, t_i) in [0, 1]     how good the answer is, 1 is perfect
    margin  m(out_i, t_i)               above 0 exactly where the answer is good enough to rely on (`right`),
                                        with a gradient that leads across: what attackers push down, trainers up
    loss    -m, unless the task has a better one to train on

so that a question which needs to know whether an answer is still good, how good it is, or which way is down, is
written once. An attacked answer of any task is a classifier of two classes with the logits (-m / 2, m / 2).

Third parties put theirs beside ours through the entry point `assay.tasks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import SubjectError

GIVES: Mapping[str, str] = {
    "classes": "a score for each class",
    "comparison": "a comparison of two inputs",
    "order": "which of two inputs has the higher value",
}
"""What some questions need of an answer, in words."""


class Trivial(NamedTuple):
    """What a model answers that saw no input."""

    says: str
    out: Tensor  # *o: the same output for every input


class Task(ABC):
    """Subclasses are frozen dataclasses: the fields are what the user may say of the task."""

    headline: ClassVar[str]
    """What the mean score is called."""
    good: ClassVar[str]
    """What an answer is that is good enough to rely on, after "share of inputs whose answer"."""
    output: ClassVar[str]
    """The shape of the output for n inputs and what it is, for errors."""
    gives: ClassVar[tuple[str, ...]] = ()
    """What of GIVES its outputs hold."""
    noun: ClassVar[str] = "input"
    """What one answer is about."""
    classes: tuple[str, ...] = ()
    """What an answer is chosen from, where it is chosen."""

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    def lacks(self, needs: Sequence[str]) -> str | None:
        """What of these needs its answers do not hold, in words, or None."""
        need = next((n for n in needs if n in GIVES and n not in self.gives), None)
        return None if need is None else f"it needs {GIVES[need]}, and the subject's task is {self.name()}"

    @abstractmethod
    def wrong_output(self, out: Any, n: int) -> str | None:
        """One line why this cannot be the output for n inputs, or None."""

    @abstractmethod
    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        """One line why these cannot be the targets, one row for each input, or None."""

    @abstractmethod
    def score(self, out: Tensor, target: Tensor) -> Tensor:  # n *o, n *t -> n in [0, 1]
        """How good each answer is."""

    @abstractmethod
    def margin(self, out: Tensor, target: Tensor) -> Tensor:  # n *o, n *t -> n
        """Above 0 exactly where the answer is good enough to rely on."""

    def right(self, out: Tensor, target: Tensor) -> Tensor:  # n *o, n *t -> n bool
        """Good enough to rely on; what is not a number is not."""
        return self.margin(out, target) > 0

    def loss(self, out: Tensor, target: Tensor) -> Tensor:  # n *o, n *t -> n
        """Smooth, and larger is worse."""
        return -self.margin(out, target)

    def confidence(self, out: Tensor) -> Tensor | None:  # n *o -> n in [0, 1]
        """How sure the answer says that it is, where it says so."""
        return None

    @abstractmethod
    def trivial(self, targets: NDArray[Any]) -> Trivial:  # n *t
        """The best answer for all of these targets at once."""

    @abstractmethod
    def words(self, out: Tensor) -> str:  # *o
        """One answer in words."""

    def told(self, target: Tensor) -> str:  # *t
        """One target in words."""
        return self.words(target)

    def picture(self, out: Tensor) -> NDArray[np.float32] | None:  # *o -> c h w in [0, 1]
        """One answer as an image, where it is one."""
        return None

    def average(self, outs: Tensor) -> Tensor:  # draws n *o -> n *o
        """One answer from several passes of a random model."""
        return outs.mean(0)

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:  # n *t -> n
        """Groups that a sample of the inputs should hold in proportion; all one where there are none."""
        return np.zeros(len(targets), dtype=np.int64)

    def checked(self, out: Any, n: int) -> Tensor:
        """The output, or an error that says in one line what was expected."""
        wrong = self.wrong_output(out, n)
        if wrong is not None:
            raise SubjectError(
                f"The model's task is taken to be {self.name()}, whose output is {self.output}, but {wrong}; mend the "
                "model, or name its task."
            )
        return torch.as_tensor(out)


def through(value: Tensor, slope: Tensor) -> Tensor:  # n, n -> n
    """`value`, with the gradient of `slope`: for scores that are counted, and have no gradient of their own."""
    return slope + (value - slope).detach()


def not_finite(out: Tensor) -> str | None:  # n *o
    """Which row is not a number, or None."""
    bad = torch.nonzero(~torch.isfinite(out).flatten(1).all(1))
    return f"it returned NaN or infinity for input {int(bad[0])} (check its weights and scaling)" if len(bad) else None
