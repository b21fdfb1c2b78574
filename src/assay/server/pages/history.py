"""Queue and history: all jobs, the newest first, each with its state; what runs is followed live."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from assay.server.live import End, News, Part, stream
from assay.server.results import answers
from assay.server.views import STATES, fragment, render
from assay.server.visit import Using, visit

if TYPE_CHECKING:
    from assay.server.book import Job

router = APIRouter()
PAGE = 25
LIVE = ("QUEUED", "RUNNING")
_RESULTS: dict[str, tuple[str, str]] = {}


@router.get("/jobs")
def history(request: Request, here: Using, before: str = "", state: str = "") -> Response:
    state = state if state in STATES else ""
    jobs = here.desk.book.jobs(here.whose, limit=PAGE + 1, before=_place(before), state=state or None)
    more = f"{jobs[PAGE - 1].made!r}~{jobs[PAGE - 1].id}" if len(jobs) > PAGE else ""
    jobs = jobs[:PAGE]
    following = [job.id for job in jobs if job.state in LIVE]
    return render(
        request,
        here,
        "history.html",
        jobs=jobs,
        counts=here.desk.book.counts(here.whose),
        chosen=state,
        more=more,
        older=bool(before),
        following=",".join(following),
        result=result,
        everybody=here.whose is None and here.desk.accounts is not None,
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
                yield Part(f"row-{id}", fragment("row.html", job=job, result=result, everybody=everybody))
        if not left:
            yield End()

    return stream(request, look)


def _place(before: str) -> tuple[float, str] | None:
    """Where the page before ended; what is not of our making is the beginning."""
    made, _, id = before.partition("~")
    return (float(made), id) if re.fullmatch(r"\d{1,12}(\.\d{1,12})?", made) and len(id) <= 64 else None


def result(job: Job) -> tuple[str, str]:
    """What came of an audit, in a few words, and how that looks; what has ended does not change any more."""
    if job.state != "SUCCESS":
        return "", ""
    if job.id not in _RESULTS:
        if len(_RESULTS) > 5000:
            _RESULTS.clear()
        found = answers(job)
        _RESULTS[job.id] = found.tally, found.worst
    return _RESULTS[job.id]
