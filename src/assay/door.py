"""The door: what is found out about a subject before any question is put to it.

A model may answer in another form than the questions expect, or not be one fixed function at all. What can be mended
is mended and said (probabilities, an input changed in place, answers that the next ones overwrite, few inputs at a
time, torch changed for the whole process, randomness that nobody declared); what cannot is an alarm that doubts every
number (answers that depend on what else is in the batch).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from assay.errors import AssayError
from assay.finding import EVERYTHING, Alarm
from assay.nn.contained import Contained
from assay.nn.copied import Copied
from assay.nn.detached import Detached
from assay.nn.in_pieces import InPieces
from assay.nn.read_as import LogProbabilities, OnACopy
from assay.subject import SURE, Subject, answer_once, first_answers, looks, settled
from assay.tasks import Classification

TOGETHER = 16  # inputs that are shown alone, in one batch, and among all that are looked at
ROUNDING = 1e-3  # of what answers range over: what a batch may change by the order of its sums in float32
OFFSET = 1e-5  # and of the largest answer, whose last digits are lost where all answers lie far from 0
HALVES = (torch.float16, torch.bfloat16)
HALF = 3e-2  # of the largest answer, for a model with half precision inside
PASSES = 16  # of a random model, whose means are compared
ERRORS = 6  # standard errors that such means may differ by


class Admitted(NamedTuple):
    """A subject as it is to be asked, and what its reader has to know."""

    subject: Subject
    alarms: tuple[Alarm, ...]


def admit(subject: Subject) -> Admitted:
    """Look at the model's answers to a few inputs, mend what can be mended, and say what was found.

    What was mended stands in the subject's notes, so that one that was admitted before comes with the same alarms.
    """
    x, out = first_answers(subject.model, subject.data["test"])
    if most := _most(subject.model, x, len(subject.data["test"])):
        says = f"The model takes no large batches, and was shown at most {most} inputs at a time."
        subject = _around(subject, InPieces(subject.model, most), says)
        x, out = first_answers(subject.model, subject.data["test"])
    first, out, few = subject.model, out.clone(), x[:TOGETHER]
    shown = few.clone()
    stays = _stays(subject.model, shown, few.flip(0))
    if not torch.allclose(shown, few, rtol=0, atol=0, equal_nan=True):  # NaN is an empty cell
        subject = _around(
            subject, OnACopy(subject.model), "The model changes its input in place; it was given a copy each time."
        )
    if not stays:
        subject = _around(
            subject, Copied(subject.model), "The model's next answer overwrites its last one; a copy was taken of each."
        )
    if changed := _changes(subject.model, few[:1]):
        subject = _around(
            subject,
            Contained(subject.model, torch.get_default_dtype()),
            f"The model changes torch for the whole process ({changed}); it was put back after each answer.",
        )
    if subject.gradient() == "refused":
        subject = _around(
            subject,
            Detached(subject.model),
            "The model fails where a gradient is asked for; it was asked without.",
        )
    random = settled(subject, x[:8])
    if random is not subject:
        subject = _noted(
            random,
            "The model answers differently each time it is asked the same, and no draws are declared: answers here are "
            f"means of {random.draws} passes. Give draws=n or --draws n, or find the layer that ignores eval mode.",
        )
    if isinstance(subject.task, Classification) and are_probabilities(out):
        subject = _around(
            subject,
            LogProbabilities(subject.model),
            "The model returns probabilities where logits are expected; their logarithm was taken everywhere.",
        )
    alarms = [Alarm(note) for note in subject.notes]
    steady = is_steady(subject.model, few)
    if subject.draws == 1 and not steady:
        alarms.append(Alarm("The model answers a little differently each time it is asked the same."))
    if subject.differentiable and not subject.leads():
        alarms.append(
            Alarm(
                "No gradient leads from the model's answers to its inputs (no_grad, a plain copy, a step without a "
                "derivative): questions that follow gradients are not asked, others do without them, and attacks go "
                "around it."
            )
        )
    apart = _depends(subject.model, x, steady, out if steady and subject.model is first else None)
    if apart:
        alarms.append(
            Alarm(
                f"The model's answer to an input depends on what else is in the batch ({apart} of {len(few)} "
                f"change when they are shown alone): no number here is that of a single input. A normalisation over "
                f"the batch is the usual cause; keep running statistics.",
                doubts=EVERYTHING,
            )
        )
    return Admitted(subject, tuple(alarms))


def are_probabilities(out: Tensor) -> bool:  # n k
    """Whether every row is a distribution. A uniform row alone is none: a dead network gives equal logits, too."""
    return bool((out >= 0).all() and ((out.sum(1) - 1).abs() < 1e-4).all())


def _noted(subject: Subject, says: str) -> Subject:
    return dataclasses.replace(subject, notes=(*subject.notes, says))


def _around(subject: Subject, model: nn.Module, says: str) -> Subject:
    """The subject with its model inside another one that calls it `model`, and why."""
    layers = {part: f"model.{name}" for part, name in subject.layers.items()}
    return _noted(dataclasses.replace(subject, model=model, layers=layers), says)


def _most(model: nn.Module, x: Tensor, there: int) -> int | None:  # n *d
    """How many inputs the model takes at a time; None where it took as many as it was shown, of so many that there are.

    It is shown the first ones again and again, which it did answer to: what ails another input is no question of size.
    """
    shown, n = x[:SURE], looks(x)
    if len(x) >= min(n, there):
        return None
    while n > len(shown):
        try:
            answer_once(model, shown.repeat(math.ceil(n / len(shown)), *(1,) * (x.ndim - 1))[:n])
        except AssayError:
            n //= 2
        else:
            break
    return None if n == looks(x) else max(n, len(shown))


def _stays(model: nn.Module, x: Tensor, other: Tensor) -> bool:  # n *d, m *d
    """Whether the answer to the one is still the same when the model was asked the other."""
    held: list[Tensor] = []

    def hold(given: Tensor) -> Tensor:
        held.append(model(given))
        return held[-1]

    answer_once(model, x, hold)
    before = held[0].clone()
    answer_once(model, other, hold)
    try:
        return torch.equal(held[0].nan_to_num(), before.nan_to_num())
    except RuntimeError:  # graphs that torch recorded itself refuse to show what they have overwritten
        return False


def _changes(model: nn.Module, x: Tensor) -> str:  # n *d
    """What of torch is another after an answer, or for its sake, in words; nothing where all is as it comes."""
    if any(isinstance(m, Contained) for m in model.modules()):
        return ""
    on: list[bool] = []

    def watched(given: Tensor) -> Tensor:
        with torch.enable_grad():
            out: Tensor = model(given)
            on.append(torch.is_grad_enabled())
        return out

    answer_once(model, x.clone(), watched)
    default = torch.get_default_dtype()
    told = () if on == [True] else ("gradients off",)
    return ", ".join((*told, *(() if default == torch.float32 else (f"{str(default)[6:]} by default",))))


class _Halves(TorchFunctionMode):
    """Sees whether anything inside is computed in half precision: by its weights, under autocast, or cast there."""

    seen: bool = False

    def __torch_function__(  # type: ignore[override]
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen = self.seen or (isinstance(out, Tensor) and out.dtype in HALVES)
        return out


def in_halves(model: nn.Module, x: Tensor) -> bool:  # n *d
    """Whether it computes in half precision, whose rounding may hang on the batch."""
    inside = _Halves()
    with inside:
        answer_once(model, x[:1].clone())
    return inside.seen or any(p.dtype in HALVES for p in model.parameters())  # a script shows nothing of its inside


def is_steady(model: nn.Module, x: Tensor) -> bool:
    """Whether two passes over the same batch give the same answers."""
    return torch.equal(answer_once(model, x), answer_once(model, x))


class _Told(NamedTuple):
    """What is answered to inputs in their batches: the mean of the passes and its standard error."""

    mean: Tensor  # m *o
    error: Tensor  # m *o

    @classmethod
    def of(
        cls, model: nn.Module, x: Tensor, batches: Sequence[Tensor], *, steady: bool, first: int | None = None
    ) -> _Told:  # n *d
        """Of the `first` of the inputs, which are all unless it is said."""
        passes, back = 1 if steady else PASSES, torch.cat(list(batches)).argsort()[:first]
        seen = torch.stack([torch.cat([answer_once(model, x[rows]) for rows in batches])[back] for _ in range(passes)])
        spread = seen.double().std(0) if passes > 1 else torch.zeros_like(seen[0], dtype=torch.float64)
        return cls(seen.double().mean(0), spread / passes**0.5)


def moved(model: nn.Module, x: Tensor, one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:  # n *d -> n
    """Which inputs are answered otherwise in the batches `one` than in those of `other`, beyond rounding and chance.

    A batch is the places of its inputs in `x`; each of the two has every input once.
    """
    steady = is_steady(model, x)
    first, second = (_Told.of(model, x, batches, steady=steady) for batches in (one, other))
    return _apart(model, x, first, second)


def _apart(model: nn.Module, x: Tensor, one: _Told, other: _Told) -> Tensor:  # n *d -> n
    # over inputs: an offset that all answers share hides nothing
    span, most = (one.mean.amax(0) - one.mean.amin(0)).amax(), one.mean.abs().amax()

    def beyond(rounding: Tensor) -> Tensor:
        by = (one.mean - other.mean).abs() > rounding + ERRORS * (one.error.square() + other.error.square()).sqrt()
        return by.reshape(len(x), -1).any(1)

    apart = beyond(ROUNDING * span + OFFSET * most)
    return beyond(HALF * most) if bool(apart.any()) and in_halves(model, x) else apart


def _depends(model: nn.Module, x: Tensor, steady: bool, out: Tensor | None) -> int:  # n *d, n *o
    """How many of the first inputs are answered otherwise alone than together, or than among all of `x`.

    `out` is what a steady model answered to all in one batch, where that is known; a random one is shown fewer.
    """
    few, x = x[:TOGETHER], x if steady else x[: 4 * TOGETHER]
    each = _Told.of(model, few, alone(len(few)), steady=steady)
    together = _Told.of(model, few, (torch.arange(len(few)),), steady=steady)
    apart = _apart(model, few, together, each)
    if out is not None:
        among = _Told(out[: len(few)].double(), torch.zeros_like(each.error))
    else:
        among = _Told.of(model, x, (torch.arange(len(x)),), steady=steady, first=len(few))
    return int((apart | _apart(model, few, among, each)).sum())


def alone(count: int) -> tuple[Tensor, ...]:
    """Each of so many inputs as a batch of its own."""
    return tuple(torch.arange(count)[:, None])
