"""The page of `assay ship`: fit to ship or not and why, then speed and size, what it forgot, and every question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from assay.audit import Audit, Change
from assay.finding import Finding, Measure
from assay.report import words
from assay.report.diff import render_diff

if TYPE_CHECKING:
    from assay.methods.compress.parting import Layer

COLUMNS = ("limit", "measure", "worse by", "outcome", "why")


class Held(Protocol):
    """A limit held against what was found, as `jobs.limits` makes it."""

    @property
    def limit(self) -> object: ...
    @property
    def probe(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def harm(self) -> Measure | None: ...
    @property
    def outcome(self) -> str: ...
    @property
    def why(self) -> str: ...


def limits_text(held: Sequence[Held]) -> list[tuple[str, ...]]:
    """Rows for a terminal and a page, one string per column of COLUMNS."""
    return [
        (
            words.printable(str(each.limit)),
            words.printable(f"{each.measure} ({each.probe})" if each.measure else each.probe),
            "" if each.harm is None else harm(each.harm),
            each.outcome,
            words.printable(each.why),
        )
        for each in held
    ]


def harm(measure: Measure) -> str:
    return words.difference(measure.value, measure.unit, measure.low, measure.high)


def render_ship(
    before: Audit,
    after: Audit,
    changes: Sequence[Change],
    *,
    form: str,
    held: Sequence[Held],
    outcome: str,
    verdict: str,
    told: Sequence[str],
    forgot: Finding | None,
    layers: Sequence[Layer],
    file: str,
    price: str,
    notes: Sequence[str],
) -> str:
    """The comparison of both audits, with the verdict and what only a pair can tell before it."""
    from assay.report.page import Line, drawn_of, pictured

    first: dict[str, Any] = {
        "form": form,
        "file": file,
        "verdict": verdict,
        "badge": outcome,
        "limits": limits_text(held),
        "told": told,
        "forgot": forgot,
        "forgot_lines": [Line(m) for m in forgot.measures] if forgot else [],
        "forgot_drawings": drawn_of(forgot.views, "forgot") if forgot else (),
        "forgot_galleries": pictured(forgot.views) if forgot else (),
        "layers": layers,
    }
    return render_diff(before, after, changes, price=price, notes=notes, template="ship.html", first=first)
