"""assay claims: what was published, and whether it holds here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import Debug, Work
from assay.cli.printing import console, say

if TYPE_CHECKING:
    from assay.jobs.claims import Entry

claims_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Published statements, and whether they hold here.\n\nExample: assay claims",
)
Ledger = Annotated[Path, typer.Option("--ledger", metavar="FOLDER", help="Where the records are kept.")]


@claims_app.callback()
def list_claims(ctx: typer.Context, ledger: Ledger = Path("claims/ledger")) -> None:
    ctx.obj = ledger
    if ctx.invoked_subcommand is not None:
        return
    from assay.jobs.claims import claims, read
    from assay.report.terminal import table

    known, told = read(ledger), table("claim", "verdict", "statement", "source")
    for name, claim in claims().items():
        told.add_row(name, known[name].evidence.verdict if name in known else "not run", claim.says, claim.source)
    console().print(told)


@claims_app.command("test")
@flat
def try_claims(
    *,
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `assay claims` lists them.")],
    work: Work,
    debug: Debug = False,
) -> None:
    """Run the studies behind claims and record what came out.

    Example: assay claims test weight-gradient-centralization/same-weights
    """
    from assay.jobs.claims import claim, record
    from assay.report.words import in_full

    for name in ids:
        claim(name)  # an unknown one is told before an hour of work on the others
    entries: list[Entry] = []
    with metered() as meter:
        ready = work.run(meter, debug)
        for name in ids:
            meter.doing(name)
            entries.append(record(name, ready, ctx.obj))
            meter.line(f"{name}: {entries[-1].evidence.verdict}")
    to = console()
    for entry in entries:
        say(to, f"{entry.evidence.verdict}: {entry.id}. {entry.evidence.says}")
        for m in entry.evidence.measures:
            say(to, f"  {m.name}: {in_full(m)}")
    verdicts = {entry.evidence.verdict for entry in entries}
    raise typer.Exit(1 if "fails" in verdicts else 3 if verdicts - {"holds"} else 0)


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

    write_atomically(out, page_markdown(ctx.obj) if out.suffix == ".md" else page(ctx.obj))
    typer.echo(out)
