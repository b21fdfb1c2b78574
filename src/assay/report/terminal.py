"""An audit as text for a terminal, a log or Python's prompt: the verdicts as a table, then the alarms."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.report.words import NBSP, in_full, limit, outcome, printable

if TYPE_CHECKING:
    from rich.table import Table

    from assay.audit import Audit

COLOURS = {"pass": "green", "fail": "red", "error": "red", "cannot tell": "yellow"}
WIDTH = 160  # of a log, which has none; 80 would fold most cells


class Row(NamedTuple):
    verdict: str
    question: str
    measured: str
    limit: str


def rows(audit: Audit) -> list[Row]:
    """A row for each limit, and one for a question without; what does not apply comes last."""
    told = []
    for row in audit.answered_first:
        finding, name = row.answer.finding, row.answer.probe
        if finding is None:
            told.append(
                Row(outcome(row), name, row.answer.why, ", ".join(limit(j.standard, "") for j in row.judgements))
            )
            continue
        if not row.judgements:
            told.append(Row(outcome(row), name, f"{finding.measures[0].name} {in_full(finding.measures[0])}", ""))
        for j in row.judgements:
            measure = next((m for m in finding.measures if m.name == j.measure), None)
            found = f"{measure.name} {in_full(measure)}" if measure else j.why
            told.append(Row(j.verdict, name, found, limit(j.standard, measure.unit if measure else "")))
    return told


def alarms(audit: Audit) -> list[str]:
    """Why numbers of the audit may flatter the subject: those about the subject, then each question's."""
    own = [
        f"{row.answer.probe}: {a.says}" for row in audit.rows if row.answer.finding for a in row.answer.finding.alarms
    ]
    return [f"alarm: {says}" for says in (*(a.says for a in audit.alarms), *own)]


def verdicts(audit: Audit) -> Table:
    from rich.text import Text

    made = table(*Row._fields)
    for row in rows(audit):
        made.add_row(Text(row.verdict, COLOURS.get(row.verdict, "")), *row[1:])
    return made


def text(audit: Audit) -> str:
    """What the command line prints of an audit, without colour, as wide as the terminal."""
    from rich.console import Console

    width = shutil.get_terminal_size((WIDTH, 24)).columns
    page = io.StringIO()
    console = Console(
        file=page, width=width, color_system=None, force_terminal=False, force_jupyter=False, markup=False, emoji=False,
        highlight=False,
    )  # fmt: skip
    console.print(verdicts(audit))
    told = "\n".join(line.rstrip() for line in page.getvalue().splitlines()).strip("\n")
    return "\n".join([told, *map(plain, alarms(audit))])


def plain(text: str) -> str:
    """Text for a terminal: nothing that steers it, and spaces that can be searched for."""
    return printable(text).replace(NBSP, " ")


def table(*columns: str) -> Table:
    """An empty table, for a console with markup off."""
    from rich import box
    from rich.table import Table

    class PlainTable(Table):
        def add_row(self, *cells: Any, **how: Any) -> None:
            super().add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in cells), **how)

    made = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made
