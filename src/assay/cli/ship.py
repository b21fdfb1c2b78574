"""assay ship: a smaller model, and whether what that cost is within limits."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.diff import show_changes
from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import DEFAULT_SUBJECT, Asking, Debug, Guard, Opening, Settings, SubjectName, Work, opened, pairs
from assay.cli.printing import console, say


@flat
def ship(
    *,
    subject: SubjectName = DEFAULT_SUBJECT,
    form: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="FORM",
            help="What it becomes: onnx, onnx-int8 or another form, or a remedy that shrinks, such as gator.",
        ),
    ],
    price: Annotated[
        str | None,
        typer.Option("--price", metavar="WHAT=SHARE", help="How small, of a remedy that has a price: flops=0.5."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=AMOUNT[,...]",
            help="The most that a question or one of its measures may become worse, pt for points: accuracy=0.5pt, "
            "worst-case=2pt, churn=3pt. [default: accuracy=1pt]",
        ),
    ] = None,
    settings: Settings = None,
    opening: Opening,
    asking: Asking,
    work: Work,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Make a model smaller, ask both the same questions, and say whether it is fit to ship.

    A limit is held against the difference, paired input by input: within it if the whole interval is, exceeded if none
    of it is, else it cannot be told, and the page says how many more inputs would settle it. Ends with 0, 1 or 3, and
    with 2 for bad input and where a question broke. The file, its card and the page lie in one folder below --out.

    Example: assay ship fashion-cnn --as onnx-int8 --limit accuracy=0.5pt,worst-case=2pt
    """
    from assay.jobs.ship import planned
    from assay.jobs.ship import ship as apply
    from assay.report.ship import COLUMNS, limits_text
    from assay.report.terminal import table

    chosen = {**pairs(settings), **({} if price is None else {"price": price})}
    planned(
        form, limits=limit, settings=chosen, probes=asking.probe or None
    )  # a slip of the pen is told before it is opened
    source = opening.source(subject)
    with metered() as meter:
        how = asking.how(source, work, meter, debug)
        done = apply(opened(source, meter), form, limits=limit, settings=chosen, **how)
    show_changes(done.cure.before, done.cure.after, done.cure.since_before)
    to, limits = console(), table(*COLUMNS)
    for row in limits_text(done.held):
        limits.add_row(*row)
    to.print(limits)
    for line in done.told():
        say(to, line)
    forgot = next((row for row in done.cure.after.rows if row.answer.probe == "what-did-it-forget"), None)
    if forgot is not None and forgot.answer.finding is not None:
        say(to, forgot.answer.finding.says)
    say(to, done.verdict())
    typer.echo(done.file)
    typer.echo(done.page)
    raise typer.Exit(done.status)
