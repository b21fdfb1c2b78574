"""The fifteen hyper-parameters that a tuner may choose, and nothing else: no seed, no data, no network.

Four must be chosen (epochs, batch size, loss, optimiser); eleven have the defaults of table 7.1. Most of the eleven are
read by some optimisers only, so that the form greys out the others and two configurations that differ in none that is
read train alike (`effective`).

Source: Anand, Wang, Loog and van Gemert, BMVC 2020, table 7.1 (names and defaults) and 7.3 (reasons).
Departs from print: its "lambda 0.75" is read as the power by which ASGD's step falls, PyTorch's `alpha`, whose default
    is 0.75; "alpha 0.99" is that of RMSprop. The third reason is worded so that nobody without experience gives it: in
    print novices gave it for 22 % of their values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from assay.errors import AssayError

Value = int | float | str
Configuration = dict[str, Value]
"""A value for each of the fifteen, by the name of its knob."""

OPTIMISERS = ("sgd", "asgd", "rmsprop", "adadelta", "adagrad", "adam", "adamax")
LOSSES = ("cross-entropy", "margin", "squared", "absolute")


@dataclass(frozen=True)
class Knob:
    """One hyper-parameter: what it may be, what it is by default (None: it must be chosen), who reads it.

    `least` is where draws on a log scale begin; None: draws are even between `low` and `high`.
    """

    name: str
    says: str
    default: float | None = None
    low: float = 0.0
    high: float = 1.0
    whole: bool = False
    least: float | None = None
    choices: tuple[str, ...] = ()
    read_by: tuple[str, ...] = OPTIMISERS

    @property
    def mandatory(self) -> bool:
        return self.default is None


KNOBS = (
    Knob("epochs", "How often all training inputs are seen.", low=1, high=1000, whole=True),
    Knob("batch-size", "Inputs per step.", low=1, high=512, whole=True, least=8),
    Knob("loss", "What the training makes small.", choices=LOSSES),
    Knob("optimiser", "How a step is made of a gradient.", choices=OPTIMISERS),
    Knob("learning-rate", "How long a step is.", 0.001, low=1e-8, high=10.0, least=1e-5),
    Knob("weight-decay", "How strongly weights are drawn to 0.", 0.0, high=1.0, least=1e-6),
    Knob("momentum", "How much of the last step is kept.", 0.0, high=0.999, read_by=("sgd", "rmsprop")),
    Knob("rho", "How slowly the mean of squared gradients moves.", 0.9, high=0.9999, read_by=("adadelta",)),
    Knob("lambda", "The power by which the step of ASGD falls.", 0.75, read_by=("asgd",)),
    Knob("alpha", "How slowly the mean of squared gradients moves.", 0.99, high=0.9999, read_by=("rmsprop",)),
    Knob("epsilon", "Added to what a step is divided by.", 1e-5, low=1e-12, high=1.0, least=1e-10,
         read_by=("rmsprop", "adadelta", "adagrad", "adam", "adamax")),
    Knob("learning-rate-decay", "How fast the step of Adagrad falls.", 0.0, high=1.0, least=1e-6,
         read_by=("adagrad",)),
    Knob("initial-accumulator", "What the sum of squared gradients begins with.", 0.0, high=1.0,
         read_by=("adagrad",)),
    Knob("beta1", "How slowly the mean of gradients moves.", 0.9, high=0.999, read_by=("adam", "adamax")),
    Knob("beta2", "How slowly the mean of squared gradients moves.", 0.999, high=0.9999, read_by=("adam", "adamax")),
)  # fmt: skip
BY_NAME = {knob.name: knob for knob in KNOBS}
DRAWN = {"learning-rate": 1.0, "weight-decay": 0.1, "epsilon": 0.1, "learning-rate-decay": 0.1}
"""Where draws end, of knobs that may be set higher than anybody would draw."""

REASONS = {
    1: "It is a guess.",
    2: "It is the default that was suggested.",
    3: "It worked for me before this study, on another task.",
    4: "I learnt it here, from my earlier tries.",
    5: "Another reason.",
}
GUESS = 1


class Chosen(NamedTuple):
    """A configuration, and for each value that somebody gave a reason for, which."""

    configuration: Configuration
    reasons: dict[str, int]


def checked(given: Mapping[str, object], *, most_epochs: int) -> Configuration:
    """All fifteen values out of what was typed, in the order of `KNOBS`; what is left out has its default."""
    unknown = [name for name in given if name not in BY_NAME]
    if unknown:
        raise AssayError(f"There is no hyper-parameter {unknown[0]!r}; choose among {', '.join(BY_NAME)}.")
    found: Configuration = {}
    for knob in KNOBS:
        raw = given.get(knob.name)
        if raw is None or raw == "":
            if knob.default is None:
                few = f"one of {', '.join(knob.choices)}" if knob.choices else _range(knob, most_epochs)
                raise AssayError(f"{knob.name} has no default and was not given; choose {few}.")
            found[knob.name] = knob.default
        else:
            found[knob.name] = _value(knob, raw, most_epochs)
    return found


def reasons(given: Mapping[str, object]) -> dict[str, int]:
    """Reasons out of what was typed: a number of `REASONS` for a knob; what is empty is left out."""
    found = {}
    for name, raw in given.items():
        if name not in BY_NAME:
            raise AssayError(f"There is no hyper-parameter {name!r}; choose among {', '.join(BY_NAME)}.")
        if raw is None or raw == "":
            continue
        try:
            code = int(str(raw))
        except ValueError:
            code = 0
        if code not in REASONS:
            raise AssayError(f"The reason {str(raw)[:40]!r} of {name} is none; give a number from 1 to {len(REASONS)}.")
        found[name] = code
    return found


def effective(configuration: Mapping[str, Value]) -> Configuration:
    """What a training reads of a configuration: two that are equal here train alike."""
    optimiser = configuration["optimiser"]
    return {knob.name: configuration[knob.name] for knob in KNOBS if optimiser in knob.read_by}


def from_defaults(configuration: Mapping[str, Value]) -> bool:
    """Whether every hyper-parameter that has a default is at it."""
    return all(knob.mandatory or configuration[knob.name] == knob.default for knob in KNOBS)


def _value(knob: Knob, raw: object, most_epochs: int) -> Value:
    text = str(raw).strip()
    if knob.choices:
        if text not in knob.choices:
            raise AssayError(f"{knob.name} {text[:40]!r} is none; choose one of {', '.join(knob.choices)}.")
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    low, high = knob.low, _high(knob, most_epochs)
    if not low <= number <= high or (knob.whole and number != int(number)):
        raise AssayError(f"{knob.name} {text[:40]!r} is out of its range; give {_range(knob, most_epochs)}.")
    return int(number) if knob.whole else number


def _high(knob: Knob, most_epochs: int) -> float:
    return min(knob.high, most_epochs) if knob.name == "epochs" else knob.high


def _range(knob: Knob, most_epochs: int) -> str:
    return f"a {'whole ' if knob.whole else ''}number from {knob.low:g} to {_high(knob, most_epochs):g}"
