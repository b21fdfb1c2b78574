"""assay claims: what was published, and whether it holds here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import Debug, Work
from assay.cli.printing import console, say

if TYPE_CHECKING:
    from assay.claim import Entry

claims_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Published statements, and whether they hold here.\n\nExample: assay claims",
)
Ledger = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FOLDER",
        help="Where the records are kept. [default: those that Assay ships, and claims/ledger over them]",
    ),
]


@claims_app.callback()
def list_claims(ctx: typer.Context, ledger: Ledger = None) -> None:
    ctx.obj = ledger
    if ctx.invoked_subcommand is not None:
        return
    from assay.jobs.claims import told
    from assay.report.terminal import table

    rows = table("claim", "verdict", "statement", "source")
    for each in told(ledger):
        verdict = f"{each.verdict}{', stale' if each.stale else ''}{', a note' if each.claim.ours else ''}"
        rows.add_row(each.id, verdict, each.claim.says, each.claim.source)
    console().print(rows)


@claims_app.command("test")
@flat
def try_claims(
    *,
    ctx: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="As `assay claims` lists them.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All claims: those never run first, then stale ones, the shortest first.")
    ] = False,
    work: Work,
    debug: Debug = False,
) -> None:
    """Run the studies behind claims and record what came out.

    With --all, --budget may be a time: studies that fit into it are run, and what did not fit is told. It can be
    stopped at any moment; what was recorded stays. With --engine ray they are run side by side.

    Example: assay claims test --all --budget 25m --device cuda
    """
    from assay.errors import AssayError
    from assay.jobs import claims as job
    from assay.jobs.audit.rounds import seconds_named
    from assay.report.words import in_full

    ids = ids or []
    if bool(ids) == everything:
        raise AssayError("Name the claims to test, as `assay claims` lists them, or give --all, not both.")
    ledger, seconds = ctx.obj, seconds_named(work.budget)
    if seconds is not None and not everything:
        raise AssayError(f"--budget {work.budget} is a time, which only --all has; give quick, standard or full.")
    known = job.claims()
    for name in ids:
        job.claim(name)  # an unknown one is told before an hour of work on the others
    job.writable(ledger)
    left = list(ids) or job.waiting(ledger, known)
    entries: list[Entry] = []
    broken: dict[str, str] = {}
    with metered() as meter:
        ready = (work if seconds is None else replace(work, budget="quick")).run(meter, debug)
        records = job.read(ledger, broken=False)
        takes = {name: job.takes(name, known, records, ready.device) for name in left}
        end = None if seconds is None else time.monotonic() + seconds

        def next_ones() -> Iterator[str]:
            while left:
                fits = left[0] if end is None else job.fitting(left, end - time.monotonic(), takes)
                if fits is None:
                    return
                left.remove(fits)
                meter.doing(fits)
                yield fits
                source = fits.partition("/")[0]
                warm = (name for name in left if name.partition("/")[0] == source)
                takes.update({name: job.takes(name, known, records, ready.device, warm=True) for name in warm})

        for name, found in ready.engine.each(partial(job.measured, ready), next_ones()):
            try:
                entry = job.keep(found(), ledger)
            except Exception as e:  # of one of many: data that are not at hand, memory that is full
                if not everything:
                    raise
                broken[name] = f"{type(e).__name__}: {e}" if not isinstance(e, AssayError) else str(e)
                meter.line(f"{name}: not run: {broken[name]}")
                continue
            entries.append(entry)
            meter.line(f"{name}: {entry.evidence.verdict}")
    to = console()
    for entry in entries:
        say(to, f"{entry.evidence.verdict}: {entry.id}. {entry.evidence.says}")
        for m in entry.evidence.measures:
            say(to, f"  {m.name}: {in_full(m)}")
    if left:
        shortest = min(takes[name] for name in left)
        say(
            to,
            f"{len(left)} of {len(known)} did not fit into {work.budget}; the shortest takes {shortest:.0f} s.",
        )
    verdicts = {entry.evidence.verdict for entry in entries}
    raise typer.Exit(2 if broken else 1 if "fails" in verdicts else 3 if left or verdicts - {"holds"} else 0)


@claims_app.command("page")
def page_of_claims(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page; .md for Markdown.")] = Path(
        "claims/page.html"
    ),
) -> None:
    """Render the ledger to one page: published and measured numbers side by side.

    Example: assay claims page --out claims.html
    """
    from assay.jobs.claims import page, page_markdown
    from assay.store import write_atomically

    ledger = ctx.obj
    write_atomically(out, page_markdown(ledger) if out.suffix == ".md" else page(ledger))
    typer.echo(out)
