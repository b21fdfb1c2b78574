"""assay cure: a remedy between two audits."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.diff import show_changes
from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import (
    DEFAULT_SUBJECT,
    Asking,
    Debug,
    Guard,
    Opening,
    Settings,
    SubjectName,
    Tuned,
    Work,
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
    asking: Asking,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Train plainly too, to compare with, where it trains anew.")
    ] = True,
    trainings: Annotated[
        int,
        typer.Option("--trainings", metavar="N", help="Train both so often, with the seeds that follow: 1, or 3 up."),
    ] = 1,
    work: Work,
    tuned: Tuned = None,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Audit, apply a remedy, audit again, and compare. The cured weights are kept beside the page.

    A remedy that trains anew is compared with a plain training of the same schedule, data and seed, shown beside. One
    training each cannot tell it from luck: --trainings 3 gives intervals over trainings and inputs.
    --tuned is about the remedy's settings, and stands in what was asked after.

    Example: assay cure weight-gradient-centralization fashion-cnn --set epochs=5
    """
    from assay.jobs.cure import cure as apply
    from assay.tuning import Tuning

    effort = None if tuned is None else Tuning.read(tuned)
    source = opening.source(subject)
    with metered() as meter:
        how = asking.how(source, work, meter, debug)
        done = apply(
            remedy, opened(source, meter), settings=pairs(settings), control=control, trainings=trainings,
            tuned=effort, **how,
        )  # fmt: skip
    show_changes(done.before, done.after, done.changes, done.since_before if done.control else ())
    for note in done.notes:
        say(console(), note)
    typer.echo(done.price)
    typer.echo(done.weights)
    typer.echo(done.page)
    raise typer.Exit(done.status)
