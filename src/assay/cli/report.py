"""assay report: the page of a stored run, written anew."""

from __future__ import annotations

import typer

from assay.cli.options import Debug, RunFolder


def report(run: RunFolder, debug: Debug = False) -> None:
    """Write the report of a stored run anew.

    Example: assay report runs/20260301-120000-fashion-cnn
    """
    from assay.audit import open_audit
    from assay.report import write
    from assay.store.chain import refuse_changed

    refuse_changed(run)
    write(open_audit(run), run)
    typer.echo(run / "report.html")
