"""Simulated tuners: programs that choose as an expert, a beginner or nobody in particular would, one try after another.

A tuner is a generator: it yields what it chooses, and is sent the validation accuracy (None: the try was stopped). What
it would name in the end is its best try; it never sees a test accuracy. None of them is a person: they are for trying a
study out, and to compare people with at equal tries.

    expert   all defaults first; then one at a time the learning rate and the epochs, going on as long as that helps
    medium   all defaults first; then one at a time any of the fifteen, drawn at random; keeps what helped
    novice   all fifteen drawn at once in every try, evenly between their ends as a form shows them
    random   the same on the scale that each is thought of on (learning rates by powers of ten): the reference
    tpe      the tree-structured Parzen estimator of optuna over all fifteen: what a program does that learns

Source: Anand, Wang, Loog and van Gemert, BMVC 2020, sec. 7.2.1 (320 random settings) and 7.3.2 (experts and medium
    begin with defaults, novices "directly explore the optional values" and "follow random strategies"); Bergstra et
    al., NeurIPS 2011 (tpe), by optuna.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from assay.errors import AssayError, MissingExtra
from assay.methods.study.hyperparameters import DRAWN, KNOBS, Chosen, Configuration, Knob, Value

Tuner = Generator[Chosen, float | None, None]
CUSTOM = {"epochs": (5, 10, 20), "batch-size": (16, 32, 64, 128), "optimiser": ("sgd", "adam", "rmsprop")}
"""What one with experience takes for the three that have no default; the loss is cross-entropy."""
BY_GUESS, BY_DEFAULT, BY_EARLIER_WORK, BY_TRIES = 1, 2, 3, 4  # the reasons that a simulated tuner gives


def random(rng: np.random.Generator, most_epochs: int) -> Tuner:
    """Every try drawn anew, each knob on its own scale."""
    while True:
        yield Chosen({k.name: _drawn(k, rng, most_epochs) for k in KNOBS}, {k.name: BY_GUESS for k in KNOBS})


def novice(rng: np.random.Generator, most_epochs: int) -> Tuner:
    """Every try drawn anew, evenly between the ends."""
    while True:
        yield Chosen({k.name: _drawn(k, rng, most_epochs, even=True) for k in KNOBS}, {k.name: BY_GUESS for k in KNOBS})


def medium(rng: np.random.Generator, most_epochs: int) -> Tuner:
    """Defaults first, then any knob at a time at random."""
    best, why = _start(rng, most_epochs)
    height = yield Chosen(best, why)
    while True:
        knob = KNOBS[rng.integers(len(KNOBS))]
        tried = {**best, knob.name: _drawn(knob, rng, most_epochs)}
        why = {**dict.fromkeys(best, BY_TRIES), knob.name: BY_GUESS}
        found = yield Chosen(tried, why)
        if _better(found, height):
            best, height = tried, found


def expert(rng: np.random.Generator, most_epochs: int) -> Tuner:
    """Defaults first, then the learning rate as long as that helps, then the epochs, and again in smaller steps.

    The learning rate moves by a factor of ten, up and, where that does not help, down; the epochs by two. Where a step
    up changes nothing, as long as nothing is learnt at all, it goes on. Each time both were gone through, the factors
    become their square roots. Where nothing is left to move, the batch size is drawn.
    """
    best, why = _start(rng, most_epochs)
    height = yield Chosen(best, why)
    factor, seen = {"learning-rate": 10.0, "epochs": 2.0}, {_key(best)}
    by_tries = dict.fromkeys(best, BY_TRIES)
    while True:
        before = len(seen)
        for name in factor:
            helped = False
            for way in (factor[name], 1 / factor[name]):
                while True:
                    tried = {**best, name: _moved(name, best[name], way, most_epochs)}
                    if _key(tried) in seen:
                        break
                    seen.add(_key(tried))
                    found = yield Chosen(tried, by_tries)
                    if not _better(found, height) and not (way > 1 and found == height):
                        break
                    best, height, helped = tried, found, True
                if helped:
                    break
            factor[name] = math.sqrt(factor[name])
        if len(seen) == before:
            batch = int(rng.choice(CUSTOM["batch-size"]))  # type: ignore[arg-type]
            tried = {**best, "batch-size": batch, "learning-rate": _near(best["learning-rate"], rng)}
            seen.add(_key(tried))
            found = yield Chosen(tried, by_tries)
            if _better(found, height):
                best, height = tried, found


def tpe(rng: np.random.Generator, most_epochs: int) -> Tuner:
    """What optuna's tree-structured Parzen estimator asks for; a try that was stopped is told as one that failed."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra.of("The tuner tpe", "optuna", "study") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=int(rng.integers(2**31)))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    while True:
        trial = study.ask()
        chosen: Configuration = {}
        for knob in KNOBS:
            low, high, log = _span(knob, most_epochs)
            if knob.choices:
                chosen[knob.name] = trial.suggest_categorical(knob.name, knob.choices)
            elif knob.whole:
                chosen[knob.name] = trial.suggest_int(knob.name, int(low), int(high), log=log)
            else:
                chosen[knob.name] = trial.suggest_float(knob.name, low, high, log=log)
        found = yield Chosen(chosen, dict.fromkeys(chosen, BY_TRIES))
        if found is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, found)


class Kind(NamedTuple):
    """A way of tuning, and the months of experience that one who tunes so is said to have; None: it is no person."""

    tuner: Callable[[np.random.Generator, int], Tuner]
    months: tuple[int, int] | None


TUNERS = {
    "expert": Kind(expert, (10, 60)),
    "medium": Kind(medium, (1, 8)),
    "novice": Kind(novice, (0, 0)),
    "random": Kind(random, None),
    "tpe": Kind(tpe, None),
}


def kind(name: str) -> Kind:
    if name not in TUNERS:
        raise AssayError(f"There is no tuner {name!r}; choose among {', '.join(TUNERS)}.")
    return TUNERS[name]


def _start(rng: np.random.Generator, most_epochs: int) -> tuple[Configuration, dict[str, int]]:
    """Every default, and of the four without one what is customary."""
    chosen: Configuration = {}
    for knob in KNOBS:
        if knob.default is not None:
            chosen[knob.name] = knob.default
        elif knob.name == "loss":
            chosen[knob.name] = "cross-entropy"
        else:
            drawn = CUSTOM[knob.name][rng.integers(len(CUSTOM[knob.name]))]  # type: ignore[index]
            chosen[knob.name] = min(int(drawn), most_epochs) if knob.name == "epochs" else drawn
    return chosen, {k.name: BY_EARLIER_WORK if k.mandatory else BY_DEFAULT for k in KNOBS}


def _span(knob: Knob, most_epochs: int) -> tuple[float, float, bool]:
    """Where draws of a knob begin and end, and whether by powers of ten."""
    high = most_epochs if knob.name == "epochs" else DRAWN.get(knob.name, knob.high)
    return (knob.low, high, False) if knob.least is None else (knob.least, high, True)


def _drawn(knob: Knob, rng: np.random.Generator, most_epochs: int, even: bool = False) -> Value:
    if knob.choices:
        return knob.choices[rng.integers(len(knob.choices))]
    low, high, log = _span(knob, most_epochs)
    number = math.exp(rng.uniform(math.log(low), math.log(high))) if log and not even else rng.uniform(low, high)
    if not knob.whole:
        return float(number)
    return int(rng.integers(int(low), int(high) + 1)) if even or not log else round(number)


def _moved(name: str, value: Value, factor: float, most_epochs: int) -> Value:
    if name == "epochs":
        return min(max(1, round(float(value) * factor)), most_epochs)
    return float(np.clip(float(value) * factor, 1e-5, 1.0))


def _near(value: Value, rng: np.random.Generator) -> float:
    return float(np.clip(float(value) * 2 ** rng.uniform(-1, 1), 1e-5, 1.0))


def _better(found: float | None, height: float | None) -> bool:
    return found is not None and (height is None or found > height)


def _key(configuration: Configuration) -> tuple[Value, ...]:
    return tuple(configuration.values())
