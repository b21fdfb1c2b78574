"""assay ask: one question, with settings of one's own."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.audit import conduct, show
from assay.cli.flat import flat
from assay.cli.options import (
    DEFAULT_SUBJECT,
    RUNS,
    Debug,
    Guard,
    Inputs,
    Opening,
    Out,
    Settings,
    SubjectName,
    Work,
    bound,
    pairs,
)
from assay.cli.printing import console, say


@flat
def ask(
    *,
    probe: Annotated[str, typer.Argument(metavar="PROBE", help="The question: a name of `assay probes`.")],
    subject: SubjectName = DEFAULT_SUBJECT,
    settings: Settings = None,
    opening: Opening,
    work: Work,
    inputs: Inputs = None,
    out: Out = RUNS,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Ask one question, with settings of your own.

    Example: assay ask worst-case-accuracy fashion-cnn --set radius=0.03
    """
    from assay.jobs.audit.job import Job
    from assay.report.terminal import table
    from assay.report.words import in_full

    limits = guard.limits(work.budget)
    job = Job(
        source=opening.source(subject),
        probes=(probe,),
        settings=pairs(settings),
        budget=work.budget,
        inputs=bound(inputs),
        seed=work.seed,
        device=work.device,
        engine=work.engine,
        debug=debug,
    )
    done = conduct(job, limits, out)
    to, answer = console(), done.rows[0].answer
    if answer.finding is not None:
        say(to, answer.question)
        say(to, answer.finding.says)
        measures = table("measure", "value", "of", "about")
        for m in answer.finding.measures:
            measures.add_row(m.name, in_full(m), "" if m.n is None else str(m.n), m.about)
        to.print(measures)
    show(done)
    raise typer.Exit(done.status)
