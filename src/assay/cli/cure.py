"""assay cure: a remedy between two audits."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.diff import show_changes
from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import (
    DEFAULT_SUBJECT,
    RUNS,
    Debug,
    Guard,
    Inputs,
    Opening,
    Out,
    ProbeNames,
    Settings,
    StandardsFile,
    SubjectName,
    Work,
    bound,
    opened,
    pairs,
)
from assay.cli.printing import console, say


@flat
def cure(
    *,
    remedy: Annotated[str, typer.Argument(metavar="REMEDY", help="A name of `assay remedies`.")],
    subject: SubjectName = DEFAULT_SUBJECT,
    settings: Settings = None,
    opening: Opening,
    standards: StandardsFile = None,
    probe: ProbeNames = None,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Train plainly too, to compare with, where it trains anew.")
    ] = True,
    work: Work,
    inputs: Inputs = None,
    out: Out = RUNS,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Audit, apply a remedy, audit again, and compare. The cured weights are kept beside the page.

    A remedy that trains anew is compared with a plain training of the same schedule, data and seed, shown beside.

    Example: assay cure weight-gradient-centralization fashion-cnn --set epochs=5
    """
    from assay.engine.opening import device_named
    from assay.jobs.cure import cure as apply

    source, most = opening.source(subject), bound(inputs)
    with metered() as meter:
        device, found = device_named(work.device), opened(source, meter)
        done = apply(
            remedy,
            found,
            settings=pairs(settings),
            probes=probe or None,
            budget=work.budget,
            inputs=most,
            standards=standards,
            control=control,
            seed=work.seed,
            device=device,
            out=out,
            progress=meter.progress,
            told=meter.told,
            source=source.words(),
            debug=debug,
        )
    show_changes(done.before, done.after, done.changes, done.since_before if done.control else ())
    for note in done.notes:
        say(console(), note)
    typer.echo(done.price)
    typer.echo(done.weights)
    typer.echo(done.page)
    raise typer.Exit(done.status)
