r"""Task: what a model is asked for. It reads an answer against its target, and knows nothing of how it was computed.

With out_i the model's output for input i and t_i its target, a task gives

    score   s(out_i, t_i) in [0, 1]     how good the answer is, 1 is perfect
    margin  m(out_i, t_i)               above 0 exactly where the answer is good enough to rely on (`right`),
                                        with a gradient that leads across: what attackers push down, trainers up
    loss    -m, unless the task has a better one to train on

so that a question which needs to know whether an answer is still good, how good it is, or which way is down, is
written once. An attacked answer of any task is a classifier of two classes with the logits (-m / 2, m / 2).

Third parties put theirs beside ours through the entry point `assay.tasks`. Whoever wrote it, a task's scores are looked
at wherever they are used: one that leaves [0, 1] is an error, and an answer that is not a number scores 0 and has no
margin.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError, SubjectError

GIVES: Mapping[str, str] = {
    "classes": "a score for each class",
    "comparison": "a comparison of two inputs",
    "order": "which of two inputs has the higher value",
    "numbers": "numbers",
    "spread": "what it says of the spread of its numbers (a standard deviation, or quantiles on both sides)",
    "focus": "a number of one input's answer that can be explained",
    "mean": "answers whose mean is an answer too",
}
"""What some questions need of an answer, in words."""


class Trivial(NamedTuple):
    """What a model answers that saw no input."""

    says: str
    out: Tensor  # *o: the same output for every input


class Choice(NamedTuple):
    """A model whose answers are choices, as the classifier that it is then: a logit for each class, a label for each
    input."""

    model: nn.Module  # n *d -> n k
    task: Task
    data: Mapping[str, Any]
    """The splits with those inputs alone for which one of the classes is right."""


class Focus(NamedTuple):
    """The one number of each answer that an explanation speaks of: the sum of weight times answer over its entries.

    Fixed by the answer as it is, and held while the input changes, as the class of a classifier is.
    """

    weight: Tensor  # n *o
    says: tuple[str, ...]  # n: what the number is, in words and with its unit


class Task(ABC):
    """Subclasses are frozen dataclasses: the fields are what the user may say of the task."""

    headline: ClassVar[str]
    """What the mean score is called."""
    good: ClassVar[str]
    """What an answer is that is good enough to rely on, after "share of inputs whose answer"."""
    output: ClassVar[str]
    """The shape of the output for n inputs and what it is, for errors."""
    noun: ClassVar[str] = "input"
    """What one answer is about."""
    classes: tuple[str, ...] = ()
    """What an answer is chosen from, where it is chosen."""

    @property
    def named(self) -> tuple[str, ...]:
        """What of an answer can be asked for by name: its classes, unless it has others."""
        return self.classes

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "score" in vars(cls):
            cls.score = audited(cls.score)  # type: ignore[method-assign, assignment]
        if "margin" in vars(cls):
            cls.margin = numbered(cls.margin)  # type: ignore[method-assign, assignment]

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @classmethod
    def told_by(
        cls, x: Tensor, target: NDArray[Any], out: Tensor, classes: tuple[str, ...] | None
    ) -> Task:  # m *d, n *t, m *o
        """The task as targets, a few inputs and their answers tell it, where nobody says more than its name."""
        raise AssayError(
            f"A task {cls.name()} has to be told more than its name; say it in Python: Subject.of(model, data, "
            f"{cls.name()}(...))."
        )

    @property
    def gives(self) -> tuple[str, ...]:
        """What of GIVES its outputs hold; a class variable where that is always the same."""
        return ()

    def lacks(self, needs: Sequence[str]) -> str | None:
        """What of these needs its answers do not hold, in words, or None."""
        gives = self.gives if type(self).focus is Task.focus else (*self.gives, "focus")
        need = next((n for n in needs if n in GIVES and n not in gives), None)
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

    @property
    def promise(self) -> str | None:
        """What that is the probability of, in words; None where of nothing that can be looked up."""
        return None

    @property
    def no_promise(self) -> str:
        """Why there is none."""
        return f"a confidence of {self.name()} is not said to be the probability of anything that can be looked up"

    def kept(self, out: Tensor, target: Tensor, rng: torch.Generator) -> dict[str, Tensor]:  # n *o, n *t
        """What is promised of each answer: how `sure` it is, and whether it came out `right`."""
        sure = self.confidence(out)
        assert sure is not None  # a promise is about a confidence
        return {"sure": sure, "right": self.right(out, target)}

    @property
    def chance(self) -> float | None:
        """The confidence of an answer that says nothing, where that is known; no answer has less."""
        return None

    @abstractmethod
    def trivial(self, targets: NDArray[Any]) -> Trivial:  # n *t
        """A plain answer to all of these targets at once."""

    @abstractmethod
    def words(self, out: Tensor) -> str:  # *o
        """One answer in words."""

    def told(self, target: Tensor) -> str:  # *t
        """One target in words."""
        return self.words(target)

    def focus(self, out: Tensor, which: int | None = None) -> Focus:  # n *o
        """The number of each answer that an explanation speaks of; `which` is one of `named`, else the task's choice.

        A task that has none is not asked for explanations.
        """
        raise AssayError(f"{self.name()} names no number of its answers to explain; write its `focus`.")

    def picture(self, out: Tensor) -> NDArray[np.float32] | None:  # *o -> c h w in [0, 1]
        """One answer as an image, where it is one."""
        return None

    def choice(self, model: nn.Module, data: Mapping[str, Any]) -> Choice | None:
        """The model and its splits as questions meet them that want to know which answer it chose, and nothing else of
        it; None where they are met as they are."""
        return None

    def average(self, outs: Tensor) -> Tensor:  # draws n *o -> n *o
        """One answer from several passes of a random model."""
        return outs.mean(0)

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:  # n *t -> n
        """Groups that a sample of the inputs should hold in proportion; all one where there are none."""
        return np.zeros(len(targets), dtype=np.int64)

    def checked(self, out: Any, n: int) -> Tensor:
        """The output, or an error that says in one line what was expected."""
        if isinstance(out, Tensor) and len(out) == n and (sick := not_finite(out)) is not None:
            if off := switched_off(out):
                raise SubjectError(
                    f"The model returned minus infinity for class {', '.join(map(str, off))}, whatever it was shown; "
                    "leave out classes that are switched off."
                )
            raise SubjectError(f"The model {sick.removeprefix('it ')}; check its weights and scaling.")
        wrong = self.wrong_output(out, n)
        if wrong is not None:
            raise SubjectError(
                f"The model's task is taken to be {self.name()}, whose output is {self.output}, but {wrong}; mend the "
                "model, or name its task."
            )
        return torch.as_tensor(out)


def numbered_names(count: int) -> tuple[str, ...]:
    """Names of classes that nobody named."""
    return tuple(map(str, range(count)))


Read = Callable[[Any, Tensor, Tensor], Tensor]  # task, n *o, n *t -> n


def audited(score: Read) -> Read:
    """A task's score, looked at: one number in [0, 1] for each answer, 0 where the answer is not a number."""

    @functools.wraps(score)
    def looked_at(task: Task, out: Tensor, target: Tensor) -> Tensor:
        s, n = score(task, out, target), len(out)
        if not isinstance(s, Tensor) or s.shape != (n,):
            got = f"shape {tuple(s.shape)}" if isinstance(s, Tensor) else type(s).__name__
            raise ShapeError(f"The score of {task.name()} gave {got} for {n} answers; return one number for each.")
        s = s.masked_fill(unsaid(out), 0.0)
        beyond = torch.nonzero(~((s >= 0) & (s <= 1)))
        if len(beyond):
            raise AssayError(
                f"The score of {task.name()} is {float(s[beyond[0, 0]]):g} for answer {int(beyond[0, 0])}; mend the "
                "task: scores lie between 0 and 1."
            )
        return s

    return looked_at


def numbered(margin: Read) -> Read:
    """A task's margin, NaN where the answer holds something that is not a number, also where it is not read."""

    @functools.wraps(margin)
    def looked_at(task: Task, out: Tensor, target: Tensor) -> Tensor:
        return margin(task, out, target).masked_fill(unsaid(out), torch.nan)

    return looked_at


def through(value: Tensor, slope: Tensor) -> Tensor:  # n, n -> n
    """`value` to the bit, with the gradient of `slope`: for scores that are counted, and have none of their own."""
    return value.detach() + (slope - slope.detach())


def above(score: Tensor, enough: float) -> Tensor:  # n -> n
    """score - enough, and above 0 where the two are equal: what is just enough is enough."""
    return torch.where(score >= enough, (score - enough).clamp_min(torch.finfo(score.dtype).tiny), score - enough)


def apart(a: Tensor, b: Tensor) -> Tensor:  # *s, *s -> *s
    """|a - b|, with slope 1 where it is 0: torch's own is 0 there, and no attack would leave an exact answer."""
    off = a - b
    return torch.where(off >= 0, off, -off)


def unsaid(out: Tensor) -> Tensor:  # n *o -> n bool
    """Which answers hold something that is not a number."""
    return out.isnan().flatten(1).any(1) if out.ndim > 1 else out.isnan()


def one_of(out: Tensor, place: Tensor) -> Tensor:  # n *o, n -> n *o
    """1 at one entry of each answer, counted through all of them, and 0 elsewhere."""
    return torch.zeros_like(out).flatten(1).scatter(1, place[:, None], 1.0).view_as(out)


def slope_of(read: Callable[[Tensor], Tensor], out: Tensor) -> Tensor:  # n *o -> n *o
    """The weights of a number that is read off each answer linearly: its gradient."""
    with torch.enable_grad():
        at = out.detach().clone().requires_grad_()
        return torch.autograd.grad(read(at).sum(), at)[0]


def check_enough(enough: float, task: str) -> None:
    """Refuse a score that is reached always or never."""
    if not 0 < enough <= 1:
        raise AssayError(
            f"{task} with enough={enough:g}; give a score above 0 and up to 1, from which an answer will do."
        )


def misshapen(out: Any, n: int, k: int, what: str, *, axes: int = 2, axis: int = 1) -> str | None:
    """Why this is no finite tensor of n rows with `axes` axes and one entry on `axis` for each of k, or None."""
    if not isinstance(out, Tensor):
        return f"it returned {type(out).__name__}, not a tensor"
    if out.ndim != axes or len(out) != n:
        return f"it returned shape {tuple(out.shape)} for {n} inputs"
    if out.shape[axis] != k:
        return f"it has {out.shape[axis]} outputs for {k} {what} (name them in the model's order)"
    return not_finite(out)


def not_finite(out: Tensor) -> str | None:  # n *o
    """Which row is not a number, or None."""
    finite = torch.isfinite(out)
    bad = torch.nonzero(~(finite.flatten(1).all(1) if out.ndim > 1 else finite))
    return f"it returned NaN or infinity for input {int(bad[0])}" if len(bad) else None


def switched_off(out: Tensor) -> list[int]:  # n k
    """The classes whose logit is minus infinity in every row, where nothing else is wrong."""
    if out.ndim != 2 or not out.is_floating_point():
        return []
    off = torch.isneginf(out).all(0)
    return torch.nonzero(off)[:, 0].tolist() if bool(torch.isfinite(out[:, ~off]).all()) and not bool(off.all()) else []
