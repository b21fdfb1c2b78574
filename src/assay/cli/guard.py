"""The application: whatever goes wrong below a command ends in one line, and what opens a model runs in a child."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from assay.cli.options import Guard
from assay.cli.place import PLACE, Inside, Parent
from assay.cli.printing import complain, write
from assay.errors import AssayError, in_words

if TYPE_CHECKING:
    pass


class Guarded(TyperGroup):
    """Whatever goes wrong below a command ends in one line on stderr and a status that no gate takes for a verdict."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # click's own or typer's copy of it
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("stopped; run the same command again to go on where it was")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush complains again
            raise typer.Exit(141) from None
        except BaseException as e:  # a subject's code that calls sys.exit(0) must not look like a pass
            if type(e).__module__.startswith(("typer.", "click.")):  # its own usage errors and exits
                raise
            complain(_in_words(e), ctx)
            raise typer.Exit(2) from e


class InChild(TyperCommand):
    """A command that opens a model, or a stranger's files, as a whole: in a child, whose word for its status counts."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # as above
        place, given = PLACE.get(), ctx.params
        if isinstance(place, Inside) and place.line.sandbox:
            from assay.jobs.audit.job import named_paths

            words = [str(w) for v in given.values() for w in (v if isinstance(v, tuple | list) else (v,)) if w]
            out = [Path(given["out"])] if "out" in given else []
            for folder in out:
                _make(folder)
            place.line.confine(named_paths(words), out)
        if not isinstance(place, Parent):
            return super().invoke(ctx)
        from assay.engine.guarded import command_guarded
        from assay.engine.opening import refuse_confined

        guard = Guard(timeout=given["timeout"], memory=given["memory"], sandbox=given["sandbox"])
        refuse_confined(given.get("engine", "here"), guard.sandbox)
        limits = guard.limits(given.get("budget", "quick"))
        job = {"words": place.words, "terminal": sys.stdout.isatty()}
        to = Path(given.get("out", "."))
        new = [folder for folder in (to, *to.parents) if not folder.exists()]
        try:
            status = command_guarded("assay.cli:child", job, limits, write, complain)
        finally:
            for folder in new:  # the child had to make them before it knew whether it has anything to write
                with suppress(OSError):  # there is something in it
                    folder.rmdir()
            if sys.stderr.isatty():
                typer.echo("\033[?25h", err=True, nl=False)  # a bar that was cut off had hidden the cursor
        raise typer.Exit(status)


def _make(folder: Path) -> None:
    """A folder to write into must be there before all others are shut."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise AssayError(f"Cannot write {str(folder)!r}: {e.strerror or e}; choose another folder with --out.") from e


def _in_words(e: BaseException) -> str:
    place = PLACE.get()
    says = place.line.in_words(e) if isinstance(place, Inside) else in_words(e)
    ours = isinstance(e, Exception) and not isinstance(e, AssayError)
    return says.replace("; --debug", "; this should not happen, --debug") if ours else says


app = typer.Typer(
    cls=Guarded,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Start with: assay audit --budget quick",
    help="Find out whether a neural network can be trusted before anyone relies on it.",
)


def main(guarded: bool = True) -> None:
    """The console script. Models run in a child process; a test that knows its model may have them run here."""
    _forgive_streams()
    PLACE.set(Parent(tuple(sys.argv[1:])) if guarded else None)
    app()


def child() -> NoReturn:
    """A whole command in a child process: what it prints, and its status, go to the parent."""
    from assay.engine.child import Line, Spoken

    _forgive_streams()
    line = Line()
    sys.stdout = Spoken(line, line.job["terminal"])
    PLACE.set(Inside(line))
    try:
        app(args=list(line.job["words"]), prog_name="assay")
    except SystemExit as e:
        line.send(status=e.code if isinstance(e.code, int) else 2)
    line.leave(0)


def _forgive_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # where there is no minus sign, a question mark and no traceback
