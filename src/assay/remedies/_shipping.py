"""What the remedies share that ship a network in another form: no training, and size and speed as measured."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor, nn

from assay.data.held_out import HeldOut, held_out, left_to_ask
from assay.methods.compress.weighed import stored, told
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Data, Subject

SHOWN = 4  # inputs that a network is exported with: four lengths of batch are tried of them
AT_ONCE = 64  # inputs that calibration sees at a time
TIMED = 64  # inputs of a pass that is timed
CALIBRATED_ON = ("train", "calibration", "validation")
"""Splits whose inputs say how large the values inside a network become, the first that there is."""


@dataclass(frozen=True)
class Shipping(Remedy):
    """The same network in another form. It mends nothing: what it may have broken is what an audit is asked."""

    needs: ClassVar[tuple[str, ...]] = ()

    def cost(self) -> Cost:
        return Cost(training=0, inference=1)  # as many steps as before; what they take is measured in `beside`

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and not any(True for _ in subject.model.parameters()):
            return f"it stores weights in another form, and {type(subject.model).__name__} has none in torch"
        return reason

    def shipped(self, cured: Subject) -> int | None:
        """Bytes that it stores; None: those of its weights."""
        return None

    def beside(self, subject: Subject, cured: Subject, run: Run) -> tuple[str, ...]:
        return (measured(subject, cured, run, self.shipped(cured)),)


def measured(subject: Subject, cured: Subject, run: Run, shipped: int | None = None) -> str:
    """Size and speed, before and after, in a sentence."""
    x = first(cured.data["test"], TIMED).to(run.device)
    sizes = (stored(subject.model), stored(cured.model) if shipped is None else shipped)
    return told(subject.model, cured.model, sizes, x)


def first(data: Data, count: int) -> Tensor:  # -> n *d
    """A few inputs."""
    x, _ = data.take(np.arange(min(count, len(data))))
    return x


def example(subject: Subject) -> Tensor:  # -> 4 *d
    """What a network is exported with."""
    x = first(subject.data["test"], SHOWN)
    return x[np.resize(np.arange(len(x)), SHOWN)]


def floats(subject: Subject) -> nn.Module:
    """A copy of its network, in eval mode."""
    return copy.deepcopy(subject.model).eval()


def of_one_answer(subject: Subject) -> str | None:
    """Why a graph cannot be made of it that answers alike."""
    if subject.draws > 1:
        return f"its answers are means of {subject.draws} random ones, and a graph gives one"
    return None


def to_calibrate_on(subject: Subject, chosen: str) -> HeldOut | None:
    """Of the split that was chosen or is there for it, all; else one half of 'test'. None where there is neither."""
    for name in (chosen,) if chosen else CALIBRATED_ON:
        if name in subject.data:
            return HeldOut(name, np.arange(len(subject.data[name])), np.arange(len(subject.data["test"])))
    return None if chosen or len(subject.data["test"]) < 2 else held_out(subject.data)


def left_by_calibration(subject: Subject, cured: Subject, chosen: str) -> Subject:
    """`cured` without the half of 'test' that it is calibrated on, where nobody chose that split."""
    part = to_calibrate_on(subject, chosen)
    if chosen or part is None or part.split in CALIBRATED_ON:
        return cured
    data, left = left_to_ask(subject.data, part)
    return replace(cured, data=data, about=f"{cured.about} It is calibrated on inputs of {left}.".strip())


def calibration(subject: Subject, chosen: str, count: int, device: str) -> Iterator[Tensor]:  # each n *d
    """So many of the inputs that it is calibrated on, spread evenly over them, some at a time."""
    part = to_calibrate_on(subject, chosen)
    assert part is not None  # why_not
    rows = part.fit[np.unique(np.linspace(0, len(part.fit) - 1, min(count, len(part.fit))).round().astype(np.int64))]
    data = subject.data[part.split]
    return (data.take(rows[i : i + AT_ONCE])[0].to(device) for i in range(0, len(rows), AT_ONCE))


def no_calibration(subject: Subject, chosen: str) -> str | None:
    """Why it cannot be calibrated."""
    if to_calibrate_on(subject, chosen) is not None:
        return None
    wanted = repr(chosen) if chosen else f"{' or '.join(map(repr, CALIBRATED_ON))}, or on a half of 'test'"
    held = ", ".join(f"{name!r} ({len(split):,})" for name, split in sorted(subject.data.items()))
    return (
        f"it calibrates activations on inputs of {wanted}, and the subject has only {held}; give such a split, or "
        "activations=dynamic, which needs none"
    )
