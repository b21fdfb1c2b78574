"""What Assay understood of a model and its data, before anything is asked of it: ten lines in a few seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from assay.audit import Question
from assay.door import admit
from assay.engine.opening import device_named
from assay.jobs.audit import plan
from assay.run import BUDGETS, budget
from assay.standard import Standards
from assay.subjects import open_subject

if TYPE_CHECKING:
    from assay.probe import Probe
    from assay.subject import InputSpace, Subject
    from assay.subjects import Source

TRIED = 100  # inputs that the score is taken on
REPEATS = 3  # of which the fastest tells the speed: the first may warm up, and a busy machine is no slower model
CLASSES = 8  # names that are listed
PASSES = {
    "accuracy": 1, "can-the-map-be-chosen": 60, "certified-radius": 45, "confidence": 1, "confidence-under-shift": 28,
    "distance-to-failure": 12, "does-it-know": 17, "does-it-transfer": 15, "does-the-map-survive": 40,
    "everyday-change": 33, "how-often-is-the-set-right": 3, "is-it-sure-far-away": 12, "is-the-map-faithful": 60,
    "is-the-number-real": 47, "one-change-for-all": 25, "was-it-tampered-with": 1, "worst-case-accuracy": 77,
}  # fmt: skip
"""Passes to each input of a quick audit, counted on the bundled subjects; a search of another length takes others."""
OTHERWISE = 20
BACK = 3  # a pass with its gradient takes about as long as three without
OWN = 1.0  # seconds that a question takes beside the model


class Understood(NamedTuple):
    """What was understood, a line each: what it is about, and the sentence."""

    lines: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    """What to look at before an audit is believed."""


def check(source: Source, budget_name: str = "quick", device: str = "cpu", inputs: int | None = None) -> Understood:
    """Open model and data as an audit would, look at a hundred answers, and say what an audit would ask."""
    place = device_named(device)
    budget(budget_name)  # an unknown one is an error that says which there are
    subject, alarms = admit(open_subject(source))
    score, seconds = _tried(subject, place)
    asked, left = _planned(subject, budget_name)
    files = ", ".join(f"{name} {len(data):,}" for name, data in subject.data.items())
    size = sum(p.numel() for p in subject.model.parameters())
    lines = (
        ("model", f"{subject.name}, {size:,} parameters. {subject.about}".rstrip()),
        ("task", _task(subject)),
        ("inputs", _inputs(subject.inputs)),
        ("data", f"{files} {subject.task.noun}s"),
        ("score", score),
        ("gradients", "yes" if subject.differentiable else "none: questions that need them are not asked"),
        ("answers", "the same each time" if subject.draws == 1 else f"random: means of {subject.draws} passes"),
        ("speed", f"{_duration(seconds)} an input on {place}"),
        ("asked", f"{len(asked)} questions in about {_minutes(_cost(asked, seconds, subject, budget_name))}"),
        *(("not asked", f"{', '.join(names)}: {why}") for why, names in left),
        ("next", " ".join(("assay audit", *source.words(), *_budget_words(budget_name)))),
    )
    return Understood(lines, tuple(a.says for a in alarms))


def _task(subject: Subject) -> str:
    names = subject.task.classes
    if not names:
        return f"{subject.task.name()}: {subject.task.output}"
    few = ", ".join(names[:CLASSES]) + (f" and {len(names) - CLASSES} more" if len(names) > CLASSES else "")
    return f"{subject.task.name()} of {len(names)}: {few}"


def _inputs(space: InputSpace) -> str:
    shape = " x ".join(map(str, space.shape))
    what = "images" if space.is_image else "pairs of images" if space.is_picture else "numbers"
    between = f"between {space.low:g} and {space.high:g}" + ("" if space.ranges is None else ", each column its own")
    return f"{shape} {what} {between}"


def _tried(subject: Subject, device: str) -> tuple[str, float]:
    """How many of the first hundred are right beside what a blind model reaches, and the seconds that one takes."""
    two = subject.two_classes()
    data = two.data["test"]
    rng = np.random.default_rng(0)
    x, y = data.take(np.sort(rng.permutation(len(data))[:TRIED]))
    place = next((t.device for t in two.model.state_dict().values()), torch.device("cpu"))
    modes = [(m, m.training) for m in two.model.modules()]
    try:
        two.model.eval().to(device)
        x, y = x.to(device), y.to(device)
        out, taken = two.predict(x), float("inf")
        for _ in range(REPEATS):
            begun = time.perf_counter()
            out = two.predict(x)
            taken = min(taken, (time.perf_counter() - begun) / len(x))
    finally:
        two.model.to(place)
        for m, mode in modes:
            m.training = mode
    right = int(two.task.right(out, y).sum())
    trivial = two.task.trivial(y.cpu().numpy())
    blind = int(two.task.right(trivial.out.to(device).expand(len(x), *trivial.out.shape), y).sum())
    mean = float(two.task.score(out, y).mean())
    told = "" if "classes" in two.task.gives else f", mean {two.task.headline} {mean:.2f}"
    return f"{right} of {len(x)} good enough{told}; one that {trivial.says}: {blind}", taken


def _planned(subject: Subject, budget_name: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """What will be asked, and what will not, by its reason."""
    asked: list[str] = []
    left: dict[str, list[str]] = {}
    for probe, question in plan(None, Standards(), budget_name):
        why = _why_not(probe, question, subject)
        if why is None:
            asked.append(probe.name())
        else:
            left.setdefault(why, []).append(probe.name())
    return asked, list(left.items())


def _why_not(probe: Probe, question: Question, subject: Subject) -> str | None:
    why = probe.why_not(subject)
    return why or (None if question.left_out is None else "long: --budget standard asks them")


def _cost(asked: Sequence[str], seconds: float, subject: Subject, budget_name: str) -> float:
    """Seconds, roughly: what was counted at the quick budget, by its inputs and steps."""
    chosen, quick = BUDGETS[budget_name], BUDGETS["quick"]
    n = min(len(subject.data["test"]), chosen.samples or len(subject.data["test"]))
    longer = chosen.steps / quick.steps
    passes = sum(PASSES.get(name, OTHERWISE) for name in asked)
    return OWN * len(asked) + passes * n * longer * seconds * (BACK if subject.differentiable else 1) * subject.draws


def _budget_words(name: str) -> tuple[str, ...]:
    return () if name == "quick" else ("--budget", name)


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds < 1 else f"{seconds:.2g} s"


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
