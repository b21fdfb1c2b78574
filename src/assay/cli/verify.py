"""assay verify: whether a run is what was found."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import Debug, Device, Guard, Opening, RunFolder, Work
from assay.cli.printing import console, say
from assay.errors import AssayError


@flat
def verify(
    *,
    run: RunFolder,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="SUBJECT", help="What was audited, opened as `assay audit` does.")
    ] = None,
    opening: Opening,
    device: Device = "cpu",
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Check that a run is what was found: its files, its numbers, and the inputs that broke the model.

    Every file is compared with the digest that vouches for it, measures are computed again from their samples, and
    verdicts judged again. No code and no consent is taken from the run: with --subject, and the options that opened it,
    fingerprints, inputs, labels and answers are compared too, and each input that broke the model is shown to it once
    more and checked against its box and ball; nothing is attacked. A model that comes with Assay is opened by its name.

    Ends with 0 if all holds, 1 if a link is broken or a witness lost, 3 if nothing is, but something could not be
    checked, as without --subject; 2 for bad input. Whoever made the run can make all its digests anew: `assay seal`
    says who did.

    Example: assay verify runs/20260301-120000-model --subject model.pt2 --data images/
    """
    from assay.jobs.verify import reference
    from assay.jobs.verify import verify as check
    from assay.report.terminal import table

    name = subject
    if name is None:
        for option in ("data", "bounds", "mean", "std", "size"):
            if getattr(opening, option) is not None:
                raise AssayError(f"--{option} is about a subject; name that with --subject too.")
        name = reference(run)
    with metered() as meter:
        if name is None:
            done = check(run, doing=meter.doing)
        else:
            from assay.door import admit
            from assay.subjects import open_subject

            source = opening.source(name)
            ready = Work(device=device).run(meter, debug)
            done = check(run, lambda: admit(open_subject(source)), ready, doing=meter.doing)
    to, questions = console(), table("question", "measures", "follow from samples", "witnesses", "hold")
    for q in (q for q in done.questions if q.measures):
        own = f", {q.own_intervals} with an interval of its own" if q.own_intervals else ""
        held = "" if q.held is None else str(q.held)
        kept = f"{q.witnesses} of {q.witnesses + q.left_out}" if q.left_out else str(q.witnesses or "none")
        questions.add_row(q.probe, str(q.measures), f"{q.follow}{own}", kept, held)
    to.print(questions)
    for kind, sentences in (("broken", done.broken), ("lost", done.lost), ("not checked", done.unchecked)):
        for each in sentences:
            say(to, f"{kind}: {each}")
    typer.echo(_verified(len(done.broken), len(done.lost), len(done.unchecked)))
    raise typer.Exit(done.status)


def _verified(broken: int, lost: int, unchecked: int) -> str:
    if broken or lost:
        links = f"{broken} {'link is' if broken == 1 else 'links are'} broken"
        witnesses = f"{lost} {'witness no longer holds' if lost == 1 else 'witnesses no longer hold'}"
        return ", ".join([*([links] if broken else []), *([witnesses] if lost else [])])
    return "every link holds, and not everything could be checked" if unchecked else "every link and witness holds"
