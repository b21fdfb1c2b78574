"""assay audit: many questions, judged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import DEFAULT_SUBJECT, Asking, Debug, Guard, Opening, SubjectName, Tuned, Work, bound, opened
from assay.cli.place import PLACE, Parent
from assay.cli.printing import complain, console, say
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.audit import Audit
    from assay.engine.guarded import Limits
    from assay.jobs.audit.job import Job

MOST_UNTESTED = 3  # limits that were not put to the test and are named; in a short time they may be all


@flat
def audit(
    *,
    subject: SubjectName = DEFAULT_SUBJECT,
    opening: Opening,
    asking: Asking,
    work: Work,
    more: Annotated[
        str | None,
        typer.Option(
            "--more", metavar="TIME", help="Go on for 30m, or any time, with a run that had one: SUBJECT is its folder."
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also write profile.html: where the time went, batch by batch.")
    ] = False,
    tuned: Tuned = None,
    guard: Guard,
    debug: Debug = False,
    ctx: typer.Context,
) -> None:
    """Ask many questions, judge the answers, write a report.

    Ends with 0 if all pass, 1 if any fails, 3 if none fails but some cannot be told, 2 for bad input and where a
    question broke. A limit of yours on a question that was not asked cannot be told; one that can never apply to the
    subject is bad input. A run that was stopped goes on where it was.

    With a time for --budget it asks round by round, with more inputs and steps each time, until every verdict is
    settled or the time is over; what did not fit says how long it would take, and its limit cannot be told.

    Example: assay audit model.pt2 --data images/ --standards assay.toml
    """
    from assay.jobs.audit.job import Job, continued
    from assay.standard import Standards, read_standards
    from assay.tuning import Tuning

    if more is not None:
        _refuse_beside_more(ctx)
        job, out = continued(Path(subject), more, debug)
        job = dataclasses.replace(job, profile=profile, engine=work.engine)
        done = conduct(job, guard.limits(job.budget), out)
        show(done, profile)
        raise typer.Exit(done.status)
    limits = guard.limits(work.budget)
    held_to = read_standards(asking.standards) if asking.standards is not None else Standards()
    job = Job(
        source=opening.source(subject),
        probes=tuple(dict.fromkeys(asking.probe)) if asking.probe else None,
        standards=held_to,
        budget=work.budget,
        inputs=bound(asking.inputs, held_to),
        seed=work.seed,
        device=work.device,
        engine=work.engine,
        debug=debug,
        profile=profile,
        tuned=None if tuned is None else Tuning.read(tuned),
    )
    done = conduct(job, limits, asking.out)
    show(done, profile)
    raise typer.Exit(done.status)


def _refuse_beside_more(ctx: typer.Context) -> None:
    """A run goes on as it was begun: what was typed that would make it another is refused."""
    kept = {"subject", "more", "profile", "engine", "debug", *(field.name for field in dataclasses.fields(Guard))}
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name not in kept and source is not None and source.name == "COMMANDLINE":
            raise AssayError(
                f"{parameter.opts[0]} cannot be given with --more, which goes on with a run as it was begun; leave it "
                "out, or start another run with --budget."
            )


def conduct(job: Job, limits: Limits, out: Path) -> Audit:
    """Ask what the job wants: in a child where this process guards, else here."""
    from assay.engine.opening import device_named, engine_named, refuse_confined
    from assay.jobs.audit import audit

    if isinstance(place := PLACE.get(), Parent):
        from assay.jobs.audit.guarded import audit_guarded

        refuse_confined(job.engine, limits.sandbox, job.profile)
        with metered() as meter:
            return audit_guarded(job, limits, out, meter, place.since)
    count = len(job.plan())  # a name that nobody knows is told before the subject is opened
    with metered(count) as meter:
        device, subject = device_named(job.device), opened(job.source, meter)
        return audit(
            subject,
            probes=job.asked(),
            budget=job.budget,
            inputs=job.inputs,
            standards=job.standards,
            seed=job.seed,
            device=device,
            engine=engine_named(job.engine, device),
            out=out,
            progress=meter.progress,
            told=meter.told,
            source=job.source.words(),
            debug=job.debug,
            profile=job.profile,
            tuned=job.tuned,
            open=job.further(lambda source: opened(source, meter)),
        )


def show(audit: Audit, profile: bool = False) -> None:
    """The verdicts as a table, then the alarms, what broke, and last the report's path, after that of its profile."""
    from assay.report.terminal import alarms, verdicts

    to = console()
    to.print(verdicts(audit))
    for alarm in alarms(audit):
        say(to, alarm)
    untested = [row.answer for row in audit.rows if row.answer.status == "does not apply" and row.judgements]
    for answer in untested[:MOST_UNTESTED]:
        complain(f"the limit on {answer.probe} was not put to the test: {answer.why}")
    if len(untested) > MOST_UNTESTED:
        complain(f"so were those on {len(untested) - MOST_UNTESTED} others, as the report says")
    broken: dict[str, list[str]] = {}
    for row in audit.rows:
        if row.answer.status == "failed":
            broken.setdefault(row.answer.why, []).append(row.answer.probe)
    for why, names in broken.items():  # what breaks one question often breaks them all, and is told once
        complain(f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} not answered: {why}")
    assert audit.folder is not None  # every audit of the command line is kept
    if profile:
        typer.echo(audit.folder / "profile.html")
    typer.echo(audit.folder / "report.html")
