"""What people read: HTML, JUnit, model card, comparison, bill of materials. Reads records, never runs anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from assay.audit import Audit, Judged
from assay.errors import AssayError
from assay.store import chain, slug, strict_json, turn, write_atomically
from assay.store.answers import finding_of
from assay.store.files import digest
from assay.trace import Asked

if TYPE_CHECKING:
    from assay.report.page import Drawing


class Drawn(NamedTuple):
    """The drawings of an answer, and the digests of their files; `which` tells it from a later one."""

    which: tuple[object, ...]
    drawings: tuple[Drawing, ...]
    links: dict[str, str]


Kept = dict[str, Drawn]
"""By probe."""
TRIES = 3  # of a writer who was disturbed by another that does not see its lock


def write(audit: Audit, folder: Path, kept: Kept | None = None) -> None:
    """Write all that is read of an audit into its run folder; `audit.json` comes last and vouches for the others.

    Of a finding of which the audit has a link already, that one is kept, whatever lies there by now: who changed it
    does not have it vouched for. What was drawn is `kept` for whoever writes again: of an answer that is still the same
    nothing is drawn anew.
    """
    kept = {} if kept is None else kept
    for _ in range(TRIES):
        with turn(folder):
            links = _write(audit.as_stored(folder), folder, kept)
            known = {finding_of(row.answer.probe) for row in audit.rows} & set(audit.links)
            if all(name in known or chain.holds(folder, name, wanted) for name, wanted in links.items()):
                return
        kept.clear()
    raise AssayError(f"Another audit keeps writing to {str(folder)!r}; let it end, and run this again.")


def vouch(audit: Audit, folder: Path) -> None:
    """Write `audit.json` for what is known by now; figures and pages stay as they are, and it vouches for them so."""
    with turn(folder):
        links = chain.stored(folder, [row.answer.probe for row in audit.rows], audit.links)
        there = (*sorted(chain.DRAWN), *(f"figures/{path.name}" for path in (folder / "figures").glob("*.svg")))
        links |= {name: digest(folder, name) for name in there if (folder / name).exists()}
        write_atomically(folder / chain.HEAD, strict_json(dataclasses.replace(audit, links=links).to_json()))


def draw_ahead(rows: Iterable[Judged], folder: Path, kept: Kept) -> None:
    """Draw what these answers show for a later `write`, while another process finds out the next.

    What cannot be drawn is an error of that `write`, when every answer is there.
    """
    with suppress(Exception), turn(folder):
        _keep(rows, folder, kept)


def write_profile(audit: Audit, asked: Sequence[Asked], pace: float) -> Path:
    """Write where the time of an audit went beside its report; `pace` is the seconds of a pass by itself.

    Where nothing was asked, a page that tells of what was asked before stays.
    """
    from assay.report.profile import render_profile

    assert audit.folder is not None
    page = audit.folder / "profile.html"
    if asked or not page.exists():
        write_atomically(page, render_profile(audit, asked, pace))
    return page


def framed(audit: Audit) -> str:
    """The report in a frame, so that neither its styles nor those of the page around it reach the other."""
    import html

    from assay.report.page import render

    return (
        f'<iframe title="Assay report" srcdoc="{html.escape(render(audit), quote=True)}" '
        f'style="width:100%;height:760px;border:1px solid #8884;border-radius:8px"></iframe>'
    )


def printed(audit: Audit) -> str:
    """The table that the command line prints, and the alarms."""
    from assay.report.terminal import text

    return text(audit)


def _write(audit: Audit, folder: Path, kept: Kept) -> dict[str, str]:
    from assay.report.card import card
    from assay.report.junit import junit
    from assay.report.page import render

    _keep(audit.rows, folder, kept)
    drawn = {row.answer.probe: kept[row.answer.probe].drawings for row in audit.rows}
    links = chain.stored(folder, [row.answer.probe for row in audit.rows], audit.links)
    for row in audit.rows:
        if row.answer.finding is not None and finding_of(row.answer.probe) not in links:
            raise AssayError(
                f"The finding of {row.answer.probe!r} is gone from {str(folder)!r}: somebody moved or removed it "
                f"meanwhile; run this again."
            )
    for probe in drawn:
        links |= kept[probe].links
    for path in (folder / "figures").glob("*.svg"):
        if f"figures/{path.name}" not in links:  # of a view that is no more
            path.unlink()
    links["report.html"] = write_atomically(folder / "report.html", render(audit, drawn))
    links["junit.xml"] = write_atomically(folder / "junit.xml", junit(audit))
    links["card.md"] = write_atomically(folder / "card.md", card(audit))
    write_atomically(folder / chain.HEAD, strict_json(dataclasses.replace(audit, links=links).to_json()))
    return links


def _keep(rows: Iterable[Judged], folder: Path, kept: Kept) -> None:
    """Draw what is not kept yet."""
    for row in rows:
        answer = row.answer
        which = (answer.probe, answer.key, answer.when, answer.seconds, len(answer.looks))
        if answer.probe not in kept or kept[answer.probe].which != which:
            kept[answer.probe] = Drawn(which, *_drawn(row, folder))


def _drawn(row: Judged, folder: Path) -> tuple[tuple[Drawing, ...], dict[str, str]]:
    """Draw what an answer shows, and write it."""
    from assay.report.figures import standalone
    from assay.report.page import drawings

    drawn, links = drawings(row), {}
    for drawing in drawn:
        name = f"figures/{slug(row.answer.probe)}-{slug(drawing.name)}.svg"
        links[name] = write_atomically(folder / name, standalone(str(drawing.svg)))
    return drawn, links
