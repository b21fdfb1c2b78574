"""The door: what is found out about a subject before any question is put to it.

A model may answer in another form than the questions expect, or not be one fixed function at all. What can be mended
is mended and said (probabilities, an input changed in place, randomness that nobody declared); what cannot is an alarm
that doubts every number (answers that depend on what else is in the batch).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor, nn

from assay.finding import EVERYTHING, Alarm
from assay.nn.read_as import LogProbabilities, OnACopy
from assay.subject import Classification, Subject, answer_once, first_inputs

TOGETHER = 16  # inputs that are shown alone and in one batch
ROUNDING = 1e-3  # of the largest answer: what a batch may change by the order of its sums in float32
HALF = 3e-2  # the same for a model with half precision inside
PASSES = 16  # of a random model, whose means are compared
ERRORS = 6  # standard errors that such means may differ by


class Admitted(NamedTuple):
    """A subject as it is to be asked, and what its reader has to know."""

    subject: Subject
    alarms: tuple[Alarm, ...]


def admit(subject: Subject) -> Admitted:
    """Look at the model's answers to a few inputs, mend what can be mended, and say what was found."""
    x = first_inputs(subject.data["test"], subject.model)
    alarms = [Alarm(note) for note in subject.notes]
    shown = x[:TOGETHER].clone()
    first = answer_once(subject.model, shown)
    if not torch.equal(shown, x[:TOGETHER]):
        subject = _around(subject, OnACopy(subject.model))
        first = answer_once(subject.model, x[:TOGETHER])
        alarms.append(Alarm("The model changes its input in place; it was given a copy each time."))
    second = answer_once(subject.model, x[:TOGETHER])
    if subject.draws == 1 and not torch.equal(first, second):
        alarms.append(
            Alarm(
                "The model answers differently each time it is asked the same; give draws=n, so that answers are "
                "averages and attacks see the average."
            )
        )
    if isinstance(subject.task, Classification) and are_probabilities(answer_once(subject.model, x)):
        subject = _around(subject, LogProbabilities(subject.model))
        alarms.append(
            Alarm("The model returns probabilities where logits are expected; their logarithm was taken everywhere.")
        )
    gap = _gap_alone(subject.model, x[:TOGETHER])
    if gap is not None:
        alarms.append(
            Alarm(
                f"The model's answer to an input depends on what else is in the batch ({gap} of {len(x[:TOGETHER])} "
                f"change when they are shown alone): no number here is that of a single input. A normalisation over "
                f"the batch is the usual cause; keep running statistics.",
                doubts=EVERYTHING,
            )
        )
    return Admitted(subject, tuple(alarms))


def are_probabilities(out: Tensor) -> bool:  # n k
    """Whether every row is a distribution. A uniform row alone is none: a dead network gives equal logits, too."""
    return bool((out >= 0).all() and ((out.sum(1) - 1).abs() < 1e-4).all())


def _around(subject: Subject, model: nn.Module) -> Subject:
    """The subject with its model inside another one that calls it `model`."""
    return dataclasses.replace(subject, model=model, layers={k: f"model.{v}" for k, v in subject.layers.items()})


def _gap_alone(model: nn.Module, x: Tensor) -> int | None:  # n *d
    """How many inputs are answered otherwise alone than in one batch, beyond rounding and chance; None if none is."""

    def mean(parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Mean over the passes and its standard error."""
        seen = torch.stack([torch.cat([answer_once(model, part) for part in parts]) for _ in range(passes)]).double()
        spread = seen.std(0) if passes > 1 else torch.zeros_like(seen[0])
        return seen.mean(0), spread / passes**0.5

    passes = 1
    once = answer_once(model, x)
    if not torch.equal(once, answer_once(model, x)):
        passes = PASSES
    (together, wide), (alone, narrow) = mean((x,)), mean(tuple(x[i : i + 1] for i in range(len(x))))
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    allowed = (HALF if half else ROUNDING) * together.abs().amax() + ERRORS * (wide.square() + narrow.square()).sqrt()
    differ = ((together - alone).abs() > allowed).reshape(len(x), -1)
    return int(differ.any(1).sum()) or None
