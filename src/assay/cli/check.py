"""assay check: what was understood of a model and its data, in a few seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.flat import flat
from assay.cli.options import DEFAULT_SUBJECT, Budget, Debug, Device, Guard, Inputs, Opening, SubjectName, bound
from assay.cli.printing import console, say


@flat
def check(
    *,
    subject: SubjectName = DEFAULT_SUBJECT,
    opening: Opening,
    budget: Budget = "quick",
    inputs: Inputs = None,
    device: Device = "cpu",
    guard: Guard,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for a program to read.")] = False,
    debug: Debug = False,
) -> None:
    """Open a model and its data, and say what was understood: a first mistake costs seconds, not an audit.

    Example: assay check fashion-cnn

    Example: assay check model.onnx --data images/
    """
    from assay.jobs.check import check as look
    from assay.report.terminal import table

    understood = look(opening.source(subject), budget, device, bound(inputs))
    if as_json:
        from assay.store import strict_json

        typer.echo(strict_json(understood._asdict()))
        raise typer.Exit(0)
    to, told = console(), table("about", "understood")
    for about, says in understood.lines:
        told.add_row(about, says)
    to.print(told)
    for says in understood.doubts:
        say(to, f"mind: {says}")
    raise typer.Exit(0)
