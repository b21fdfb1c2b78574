"""A case of the campaign, and the audit that most of them disturb."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.room import Ended, Room

ASKED = ("accuracy", "everyday-change")
"""Two questions without gradients, which a fork of a process that took one may not take, with samples and witnesses."""
SETTINGS = {"everyday-change": {"corruptions": ("gaussian-noise", "contrast")}}
"""So that they are answered at once."""


@dataclass(frozen=True)
class Case:
    """One fault or one bad input; `kind/name` runs it alone."""

    kind: str
    name: str
    road: str
    act: Callable[[Room], None]

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}"


FORK = "one process"
"""The command's own guard and printing around Python's audit(), in a fork of a process that has loaded everything."""
COMMAND = "command line"
"""A new interpreter with the console script's function, with child and sandbox."""
WORKER = "reader alone"
"""The function that opens the file, many files in one forked process with a limit on memory and time."""


def guarded(act: Callable[[], int]) -> Callable[[], None]:
    """What the command line does around a command: one line for whatever goes wrong, and the status."""

    def whole() -> None:
        import typer

        from assay.cli.guard import Guarded

        app = typer.Typer(cls=Guarded, pretty_exceptions_enable=False)
        app.callback()(lambda: None)

        @app.command()
        def here() -> None:
            raise typer.Exit(act())

        sys.argv = ["assay", "here"]
        app()

    return whole


def audit_here(*probes: str, seed: int = 0, out: str = "runs") -> Callable[[], None]:
    """An audit of digits-mlp that asks in this very process, with the statuses and lines of the command."""

    def act() -> int:
        from assay.cli.audit import show
        from assay.cli.meter import metered
        from assay.jobs.audit import audit
        from assay.standard import Standards
        from assay.subjects import Source, open_subject

        asked, source, standards = probes or ASKED, Source("digits-mlp"), Standards(settings=SETTINGS)
        with metered(len(asked)) as meter:
            opened = open_subject(source)
            done = audit(
                opened, probes=asked, standards=standards, seed=seed, out=out, told=meter.told, source=source.words()
            )  # fmt: skip
        show(done)
        return done.status

    return guarded(act)


def verify_here(run: str) -> Callable[[], None]:
    """What `assay verify` says of a run without its subject."""

    def act() -> int:
        from assay.jobs.verify import verify

        done = verify(Path(run))
        print(*(f"broken: {link}" for link in done.broken), sep="\n")
        return done.status

    return guarded(act)


def command_here(*words: str) -> Callable[[], None]:
    """The command line in a fork: for commands that read and for words that are refused before anything runs."""

    def act() -> None:
        from assay import cli

        sys.argv = ["assay", *words]
        cli.main()

    return act


def command(*words: str) -> list[str]:
    """The command line as a user has it."""
    return [sys.executable, "-c", "from assay.cli import main; main()", *words]


def numbers(audit: Path) -> dict[str, Any]:
    """What an audit measured and said, without when and how fast."""
    stored = json.loads(audit.read_text(encoding="utf-8"))
    kept = ("status", "verdict", "key", "says", "measures")
    return {row["probe"]: [row[k] for k in kept] for row in stored["rows"]}


@dataclass(frozen=True)
class Undisturbed:
    """The audit as it is when nothing happens to it."""

    runs: Path
    other: Path
    """The same with another seed."""
    status: int
    writes: tuple[tuple[str, str], ...]
    """What each write is and of which file, in order."""

    @property
    def folder(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    @property
    def files(self) -> list[str]:
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file())

    @property
    def numbers(self) -> dict[str, Any]:
        return numbers(self.folder / "audit.json")


def found(runs: Path) -> int:
    """How many answers are stored whole, as far as JSON can tell."""
    whole = 0
    for path in runs.glob("*/findings/*.json"):
        with suppress(ValueError, KeyError):
            whole += json.loads(path.read_bytes())["status"] == "asked"
    return whole


def temporary(runs: Path) -> list[str]:
    """Half-written files."""
    return [p.name for p in runs.rglob(".*") if p.is_file()]


def stubs(runs: Path) -> list[str]:
    """Runs that were never begun."""
    return [p.name for p in runs.glob("*") if p.is_dir() and not any(p.iterdir())]


def goes_on(room: Room, base: Undisturbed, kept: int | None, lines: int = 0) -> Ended:
    """Asked again without a fault, the audit ends as the undisturbed one did and knows what was found before."""
    begun = {p.parent for p in room.runs.glob("*/run.json")}
    for path in {*room.runs.rglob(".*.part"), *room.runs.glob("*")} - begun:  # swept once they are an hour old
        os.utime(path, (path.stat().st_mtime - 7200,) * 2)
    again = room.run(audit_here())
    room.look(
        "status", again.status == base.status, f"then status {again.status}, not {base.status}: {again.err[-300:]}"
    )
    room.look("line", len(again.complaints) <= lines, f"then it complained: {' '.join(again.complaints)}")
    room.quiet(again)
    page = room.work / (again.out.strip().splitlines() or ["nothing"])[-1]
    if room.look("kept", page.name == "report.html" and page.is_file(), f"then it named {page.name!r}"):
        same = numbers(page.with_name("audit.json")) == base.numbers
        room.look("kept", same, "then its numbers differ from those of an undisturbed one")
    for other in room.runs.glob("*/audit.json"):
        room.look("kept", _reads(other), "then half an audit stands there")
    if kept is not None:
        room.look(
            "kept", again.known >= kept, f"{kept} answers were stored, then {again.known} known: {again.err[-200:]}"
        )
    about = temporary(room.runs) + stubs(room.runs)
    room.look("kept", not about, f"then these lie about: {about}")
    return again


def _reads(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return False
    return True


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many, evenly; the first and the last among them, or the middle one alone."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[len(items) // 2]]
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def copy_runs(source: Path, to: Path) -> None:
    import shutil

    shutil.copytree(source, to, symlinks=True)
