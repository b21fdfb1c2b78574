"""The command line. Nothing heavy is imported until a command needs it, so that `assay --help` answers at once.

What people wait for goes to stderr (progress, errors), what they keep to stdout. Status: 0 all pass, 1 something
fails, 3 nothing fails but something cannot be told, 2 bad input or something that broke, 130 stopped.
"""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli import (
    ask,
    audit,
    check,
    claims,
    cure,
    diff,
    explain,
    rank,
    report,
    seal,
    serve,
    shelves,
    ship,
    study,
    translate,
    verify,
    worker,
)
from assay.cli.guard import InChild, app, child, main

__all__ = ["app", "child", "main"]


def _version(value: bool) -> None:
    if value:
        from assay import __version__

        typer.echo(f"assay {__version__}")
        raise typer.Exit


@app.callback()
def assay(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    pass


# In the order in which --help lists them. InChild: what opens a model, or a stranger's files, as a whole; audit and ask
# have a child of their own for the asking alone.
app.command()(audit.audit)
app.command(cls=InChild)(check.check)
app.command()(ask.ask)
app.command()(shelves.probes)
app.command()(shelves.remedies)
app.command()(shelves.subjects)
app.command()(report.report)
app.command(cls=diff.Models)(diff.diff)
app.command(cls=InChild)(verify.verify)
app.command()(seal.seal)
app.command(cls=InChild)(cure.cure)
app.command(cls=InChild)(ship.ship)
app.command(cls=InChild)(explain.explain)
app.command(cls=InChild)(rank.rank)
app.command(cls=InChild)(translate.translate)
app.add_typer(study.study_app, name="study")
app.add_typer(claims.claims_app, name="claims")
app.command()(serve.serve)
app.command()(worker.worker)
