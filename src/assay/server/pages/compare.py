"""Two jobs side by side: what was asked of each, and of two audits what changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException, Query, Request, Response
from starlette.responses import FileResponse, HTMLResponse

from assay.server.pages.history import result
from assay.server.pages.job import kind_of, told_settings
from assay.server.results import audit_of
from assay.server.safety import report_policy
from assay.server.views import fragment, render
from assay.server.visit import Using, Visit, job_seen

if TYPE_CHECKING:
    from assay.server.book import Job

router = APIRouter(prefix="/compare")


@router.get("")
def compare(request: Request, here: Using, job: list[str] = Query([])) -> Response:  # noqa: B008
    before, after = _pair(here, job)
    left, right = dict(told_settings(before)), dict(told_settings(after))
    names = list(dict.fromkeys([*left, *right]))
    rows = [(name, left.get(name, ""), right.get(name, "")) for name in names]
    return render(
        request,
        here,
        "compare.html",
        pair=(before, after),
        kinds=(kind_of(before), kind_of(after)),
        results=(result(before), result(after)),
        rows=rows,
        both=audit_of(before) is not None and audit_of(after) is not None,
        address=f"job={before.id}&job={after.id}",
    )


@router.get("/page")
def made(here: Using, job: list[str] = Query([])) -> Response:  # noqa: B008
    """The frame with the comparison, once it is made."""
    before, after = _pair(here, job)
    _compared(here, before, after)
    source = f"/compare/difference?job={before.id}&job={after.id}"
    return HTMLResponse(fragment("frame.html", source=source, title="Comparison of the two audits"))


@router.get("/difference")
def difference(here: Using, job: list[str] = Query([])) -> Response:  # noqa: B008
    page = _compared(here, *_pair(here, job))
    return FileResponse(
        page, media_type="text/html; charset=utf-8", headers={"content-security-policy": report_policy()}
    )


def _pair(here: Visit, ids: list[str]) -> tuple[Job, Job]:
    """The two, the older first."""
    if len(ids) != 2 or ids[0] == ids[1]:
        raise HTTPException(400, f"Two jobs are compared, and {len(set(ids))} were chosen; tick two in the list.")
    first, second = sorted((job_seen(id, here) for id in ids), key=lambda job: job.made)
    return first, second


def _compared(here: Visit, before: Job, after: Job) -> Path:
    runs = audit_of(before), audit_of(after)
    if runs[0] is None or runs[1] is None:
        raise HTTPException(404, "Only audits that have ended are compared question by question.")
    return here.desk.children.compared(runs[0], runs[1], (before.id, after.id))
