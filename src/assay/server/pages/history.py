"""Queue and history: all jobs, the newest first, each with its state; what runs is followed live."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from assay.server.live import End, News, Part, stream
from assay.server.results import answers
from assay.server.views import STATES, ago, fragment, render
from assay.server.visit import Using, visit

if TYPE_CHECKING:
    from assay.server.book import Book, Job

router = APIRouter()
PAGE = 25
LIVE = ("QUEUED", "RUNNING")
MOST = 2000  # rows that are kept as they were last written
_ROWS: dict[tuple[str, str, str, bool], Markup] = {}
_lists: tuple[object, dict[object, Markup]] = None, {}


@router.get("/jobs")
def history(request: Request, here: Using, before: str = "", state: str = "") -> Response:
    everybody = here.whose is None and here.desk.accounts is not None
    state = state if state in STATES else ""
    return render(request, here, "history.html", listed=_listed(here.desk.book, here.whose, before, state, everybody))


def _listed(book: Book, whose: str | None, before: str, state: str, everybody: bool) -> Markup:
    """The list, at most a second old: workers' news come to an open page by themselves, ours are seen at once."""
    global _lists
    now = (book, book.changes, int(time.monotonic()))
    if _lists[0] != now:
        _lists = now, {}
    kept, key = _lists[1], (whose, before, state, everybody)
    if key not in kept:
        kept[key] = _written(book, whose, before, state, everybody)
    return kept[key]


def _written(book: Book, whose: str | None, before: str, state: str, everybody: bool) -> Markup:
    jobs = book.jobs(whose, limit=PAGE + 1, before=_place(before), state=state or None)
    more = f"{jobs[PAGE - 1].made!r}~{jobs[PAGE - 1].id}" if len(jobs) > PAGE else ""
    jobs = jobs[:PAGE]
    return fragment(
        "listed.html",
        jobs=jobs,
        counts=book.counts(whose),
        chosen=state,
        more=more,
        older=bool(before),
        following=",".join(job.id for job in jobs if job.state in LIVE),
        row=row,
        everybody=everybody,
    )


@router.get("/jobs/events")
def events(request: Request, here: Using, ids: str = "") -> Response:
    wanted = [id for id in ids.split(",") if id][:PAGE]
    everybody = here.whose is None and here.desk.accounts is not None

    def look() -> Iterator[News]:
        left, now = 0, visit(request)
        for id in wanted:
            job = here.desk.book.job(id)
            if job is not None and now.sees(job):
                left += job.state in LIVE
                yield Part(f"row-{id}", row(job, everybody))
        if not left:
            yield End()

    return stream(request, look)


def _place(before: str) -> tuple[float, str] | None:
    """Where the page before ended; what is not of our making is the beginning."""
    made, _, id = before.partition("~")
    return (float(made), id) if re.fullmatch(r"\d{1,12}(\.\d{1,12})?", made) and len(id) <= 64 else None


def row(job: Job, everybody: bool) -> Markup:
    """Its line in the list. What has ended does not change any more, but for how long ago it was sent."""
    key = job.id, job.state, ago(time.time() - job.made), everybody
    if key in _ROWS:
        return _ROWS[key]
    tally, worst = result(job)
    made = fragment("row.html", job=job, tally=tally, worst=worst, everybody=everybody)
    if job.state not in LIVE:
        if len(_ROWS) >= MOST:
            _ROWS.clear()
        _ROWS[key] = made
    return made


def result(job: Job) -> tuple[str, str]:
    """What came of an audit, in a few words, and how that looks."""
    if job.state != "SUCCESS":
        return "", ""
    found = answers(job)
    return found.tally, found.worst
