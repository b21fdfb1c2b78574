"""assay probes, remedies and subjects: what stands on the shelves, and one of it in full."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.meter import metered
from assay.cli.options import DEFAULT_SUBJECT
from assay.cli.printing import console, say
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.probe import Probe
    from assay.remedy import Remedy
    from assay.shelf import Shelf


def probes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Tell of this one, with its settings.", show_default=False)
    ] = None,
) -> None:
    """List the questions that there are to ask, or tell all about one.

    Example: assay probes

    Example: assay probes worst-case-accuracy
    """
    if name is None:
        _list("probes", lambda found: (found.question(), found.source))
        return
    from assay import shelf
    from assay.report.words import limit

    kind: type[Probe] = shelf.load("probes", name)
    facts = {
        "theme": theme(kind),
        "needs": in_words(kind.needs),
        "passes": "; ".join(f"{s.measure or 'its first measure'}, {limit(s, '')}" for s in kind.standards),
        "asked": "" if kind.in_quick else "from --budget standard on, or by its name: it takes long",
        "source": kind.source,
    }
    _describe(name, kind, kind.question(), facts, "ask")


def remedies(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Tell of this one, with its settings.", show_default=False)
    ] = None,
) -> None:
    """List what can be done about a model that fails, or tell all about one thing.

    Example: assay remedies

    Example: assay remedies temperature
    """
    if name is None:
        _list("remedies", lambda found: (found.promise(), found.source))
        return
    from assay import shelf

    kind: type[Remedy] = shelf.load("remedies", name)
    facts = {
        "needs": in_words((*kind.needs, *(["train"] if kind.needs_train else []))),
        "source": kind.source,
    }
    _describe(name, kind, kind.promise(), facts, "cure")


def subjects() -> None:
    """List the models that come with Assay.

    Example: assay subjects
    """
    _list("subjects", lambda found: (found.says, found.source))


def _list(name: Shelf, about: Callable[[Any], tuple[str, str]]) -> None:
    from assay import shelf
    from assay.report.terminal import table

    told = table("name", "what it is", "source")
    with metered() as meter:
        for each in shelf.names(name):
            meter.doing(f"loading {each}")
            try:
                told.add_row(each, *about(shelf.load(name, each)))
            except AssayError as e:  # a third party's that does not load must not hide the others
                told.add_row(each, str(e), "")
    console().print(told)


def _describe(name: str, kind: type[Probe | Remedy], says: str, facts: Mapping[str, str], verb: str) -> None:
    """A question or a remedy in full; what it has nothing to say about is left out."""
    from assay.cli.settings import paragraphs, settings_of, shown
    from assay.report.terminal import table

    to, settings = console(), settings_of(kind)
    for line in (says, *paragraphs(kind)):
        say(to, f"{line}\n")
    for fact, text in facts.items():
        if text:
            say(to, f"{fact}: {text}")
    if settings:
        told = table("setting", "takes", "default", "about")
        for setting in settings:
            told.add_row(*setting)
        to.print(told)
    with metered() as meter:
        meter.doing("looking for a subject that it fits")
        words = ["assay", verb, name, fitting(kind)]
    given = shown(kind)
    for more in ((), ("--set", given) if given else ("--budget", "standard")):
        say(to, f"example: {shlex.join([*words, *more])}")


def in_words(needs: Sequence[str]) -> str:
    """What is needed of a subject; some names say it themselves."""
    from assay.tasks.task import GIVES

    words = {**GIVES, "train": "the training data"}
    return ", ".join(words.get(need, need) for need in needs)


def theme(kind: type[Probe]) -> str:
    """The folder of `probes` that it lies in."""
    parts = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["assay", "probes"] and len(parts) > 3 else ""


def fitting(kind: type[Probe | Remedy]) -> str:
    """The first of our subjects that it applies to, so that the example can be run; else the word for one."""
    from assay import shelf

    for name in (DEFAULT_SUBJECT, *shelf.ours("subjects")):
        if kind().why_not(shelf.load("subjects", name).build()) is None:
            return name
    return "SUBJECT"
