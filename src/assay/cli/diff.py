"""assay diff: two runs, compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.options import Debug
from assay.cli.printing import console, say

if TYPE_CHECKING:
    from assay.audit import Audit, Change


def diff(
    before: Annotated[Path, typer.Argument(metavar="RUN", help="The run to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="RUN", help="The run to compare; the page is written here.")],
    debug: Debug = False,
) -> None:
    """Compare two runs, paired where the inputs are the same.

    Example: assay diff runs/20260301-120000-fashion-cnn runs/20260302-120000-fashion-cnn
    """
    from assay.audit import open_audit
    from assay.jobs.compare import compare
    from assay.jobs.compare import page as render_diff
    from assay.store import write_atomically
    from assay.store.chain import refuse_changed

    for run in (before, after):
        refuse_changed(run)
    old, new = open_audit(before, whole=True), open_audit(after, whole=True)
    write_atomically(after / "diff.html", render_diff(old, new))
    show_changes(old, new, compare(old, new))
    typer.echo(after / "diff.html")


def show_changes(before: Audit, after: Audit, changes: Sequence[Change], since: Sequence[Change] = ()) -> None:
    """The measures of both audits beside each other; `since` are a cure's changes from before its control."""
    from assay.report.diff import CONTROL_COLUMNS, DIFF_COLUMNS, cautions, diff_text
    from assay.report.terminal import table

    to, measures = console(), table(*(CONTROL_COLUMNS if since else DIFF_COLUMNS))
    for row in diff_text(changes, since):
        measures.add_row(*row)
    to.print(measures)
    for caution in cautions(before, after):
        say(to, f"caution: {caution}")
