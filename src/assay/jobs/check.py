"""What Assay understood of a model and its data, before anything is asked of it: ten lines in a few seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from assay.audit import Question
from assay.door import admit
from assay.engine.opening import device_named
from assay.jobs.audit import plan
from assay.jobs.audit.effort import seconds_of
from assay.jobs.audit.pace import Tried, tried
from assay.jobs.audit.rounds import TYPICAL, in_words, timed
from assay.run import Budget, budget
from assay.standard import Standards
from assay.subjects import open_subject

if TYPE_CHECKING:
    from assay.domain import Domain
    from assay.probe import Probe
    from assay.subject import InputSpace, Subject
    from assay.subjects import Source

CLASSES = 8  # names that are listed


class Understood(NamedTuple):
    """What was understood, a line each: what it is about, and the sentence."""

    lines: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    """What to look at before an audit is believed."""


def check(source: Source, budget_name: str = "quick", device: str = "cpu", inputs: int | None = None) -> Understood:
    """Open model and data as an audit would, look at a hundred answers, and say what an audit would ask."""
    place = device_named(device)
    chosen = timed(budget_name, inputs) or budget(budget_name, inputs)  # an unknown one is an error that names them
    subject, alarms = admit(open_subject(source))
    chosen_from = subject.in_classes()
    trial = tried(chosen_from, place)
    asked, left = _planned(subject, budget_name)
    domains = subject.domains()
    files = ", ".join(f"{name} {len(data):,}" for name, data in subject.data.items() if name not in domains)
    size = sum(p.numel() for p in subject.model.parameters())
    lines = (
        ("model", f"{subject.name}{f', {size:,} parameters' if size else ''}. {subject.about}".rstrip()),
        ("task", _task(subject)),
        ("inputs", _inputs(subject.inputs)),
        ("data", f"{files} {subject.task.noun}s"),
        *([("domains", ", ".join(_domain(each) for each in domains.values()))] if domains else []),
        *(("attribute", each.told()) for each in subject.attributes.values()),
        ("score", _score(chosen_from, trial)),
        ("gradients", "yes" if subject.leads() else "none: questions that need them are not asked"),
        ("answers", "the same each time" if subject.draws == 1 else f"random: means of {subject.draws} passes"),
        ("speed", f"{_duration(trial.seconds)} an input on {place}"),
        ("asked", _asked(asked, chosen, trial.seconds, len(subject.data["test"]), subject.draws)),
        *(("not asked", f"{', '.join(names)}: {why}") for why, names in left),
        ("next", " ".join(("assay audit", *source.words(), *_budget_words(chosen)))),
    )
    return Understood(lines, tuple(a.says for a in alarms))


def _task(subject: Subject) -> str:
    names = subject.task.classes
    if not names:
        return f"{subject.task.name()}: {subject.task.output}"
    few = ", ".join(names[:CLASSES]) + (f" and {len(names) - CLASSES} more" if len(names) > CLASSES else "")
    return f"{subject.task.name()} of {len(names)}: {few}"


def _domain(domain: Domain) -> str:
    from assay.domain import number_in

    where = "" if domain.at is None or domain.at == number_in(domain.name) else f" at {domain.at:g}"
    return f"{domain.name}{where} {len(domain.data):,} {'with' if domain.labelled else 'without'} labels"


def _inputs(space: InputSpace) -> str:
    shape = " x ".join(map(str, space.shape))
    what = "images" if space.is_image else "pairs of images" if space.is_picture else "numbers"
    between = f"between {space.low:g} and {space.high:g}" + ("" if space.ranges is None else ", each column its own")
    return f"{shape} {what} {between}"


def _score(subject: Subject, trial: Tried) -> str:
    """How many of the first hundred are right, beside what a blind model reaches."""
    out, y = trial.out, trial.y
    right = int(subject.task.right(out, y).sum())
    trivial = subject.task.trivial(y.cpu().numpy())
    blind = int(subject.task.right(trivial.out.to(y.device).expand(len(y), *trivial.out.shape), y).sum())
    mean = float(subject.task.score(out, y).mean())
    told = "" if "classes" in subject.task.gives else f", mean {subject.task.headline.removeprefix('mean ')} {mean:.2f}"
    return f"{right} of {len(y)} good enough{told}; one that {trivial.says}: {blind}"


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


def _asked(names: Sequence[str], chosen: Budget, pace: float, there: int, draws: int = 1) -> str:
    """How many questions in about how long; of a time limit, how many first looks are in it, by the same estimates."""
    if chosen.seconds is None:
        about = sum(seconds_of(n, chosen, pace, there, draws) for n in names)
        return f"{len(names)} questions in about {in_words(about)}"
    first = dataclasses.replace(chosen, inputs=min(TYPICAL, chosen.inputs or TYPICAL))
    fits, spent = 0, 0.0
    for about in sorted(seconds_of(n, first, pace, there, draws) for n in names):
        spent += about
        fits += spent <= chosen.seconds
    whole = f"{len(names)} questions, a first look at each in about {in_words(spent)}"
    return whole if fits == len(names) else f"{whole}: {fits} of them fit into {chosen.name}"


def _budget_words(chosen: Budget) -> tuple[str, ...]:
    bound = () if chosen.inputs is None else ("--inputs", str(chosen.inputs))
    return (() if chosen.name == "quick" else ("--budget", chosen.name)) + bound


def _duration(seconds: float) -> str:
    return f"{float(f'{1e3 * seconds:.2g}'):g} ms" if seconds < 1 else f"{float(f'{seconds:.2g}'):g} s"
