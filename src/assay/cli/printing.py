"""What the commands print. No text of the user's is read as markup: consoles are made with markup off."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end with status 1, which is a verdict

    made = Plain(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 160  # a log has no width; 80 would fold most cells of a table
    return made


def say(to: Console, text: str) -> None:
    """One line of a log, however long; on a terminal wrapped between words."""
    from assay.report.terminal import plain

    to.print(plain(text), soft_wrap=not to.is_terminal)


def complain(what: str, ctx: typer.Context | None = None) -> None:
    from assay.report.terminal import plain

    if ctx is not None and ctx.meta.get("debug"):
        traceback.print_exc()
    typer.echo(f"assay: {' '.join(plain(what).split())}", err=True)


def write(text: str) -> None:
    """What a child prints, as it comes."""
    sys.stdout.write(text)
    sys.stdout.flush()
