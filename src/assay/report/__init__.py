"""What people read of an audit: HTML, JUnit, model card, comparison. Reads audits, never runs them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from assay.audit import Audit
from assay.store import slug, strict_json, write_atomically


def write(audit: Audit, folder: Path) -> None:
    """Write all that is read of an audit into its run folder; `audit.json` comes last and vouches for the others."""
    from assay.report.card import card
    from assay.report.figures import standalone
    from assay.report.junit import junit
    from assay.report.page import drawings, render

    audit = dataclasses.replace(audit, folder=folder)
    drawn = {row.answer.probe: drawings(row) for row in audit.rows}
    for probe, some in drawn.items():
        for drawing in some:
            name = f"{slug(probe)}-{slug(drawing.name)}.svg"
            write_atomically(folder / "figures" / name, standalone(str(drawing.svg)))
    write_atomically(folder / "report.html", render(audit, drawn))
    write_atomically(folder / "junit.xml", junit(audit))
    write_atomically(folder / "card.md", card(audit))
    write_atomically(folder / "audit.json", strict_json(audit.to_json()))
