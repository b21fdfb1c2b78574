"""One job: how far it is, the answers as they come, its report, its log, and all of it as one file."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from starlette.responses import FileResponse, RedirectResponse, StreamingResponse

from assay.errors import AssayError
from assay.server import kinds, results, shares
from assay.server.live import End, Lines, News, Part, after, stream
from assay.server.pages.history import LIVE, result
from assay.server.safety import report_policy
from assay.server.views import fragment, render
from assay.server.visit import Form, Using, Visit, job_seen, text, visit

if TYPE_CHECKING:
    from assay.server.book import Book
from assay.server.book import Job

router = APIRouter(prefix="/jobs/{id}")
Seen = Annotated[Job, Depends(job_seen)]
LOG_LINES = 400
PICTURES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}


@router.get("")
def one(request: Request, here: Using, job: Seen) -> Response:
    return shown(request, here, job, f"/jobs/{job.id}", mine=True)


def shown(request: Request, here: Visit, job: Job, base: str, *, mine: bool) -> Response:
    """The page of a job, at its own address or at that of a link that was shared."""
    log, at = whole_log(here.desk.book, job.id)
    found = results.answers(job, log)
    return render(
        request,
        here,
        "job.html",
        job=job,
        base=base,
        mine=mine,
        kind=kind_of(job),
        settings=list(told_settings(job)),
        command=command(job),
        log=log[-LOG_LINES:],
        cut=max(0, len(log) - LOG_LINES),
        after=at,
        links=shares.tokens(here.desk.book, job.id) if mine else [],
        events=here.desk.book.events(job.id),
        following=job.state in LIVE,
        **parts(here.desk.book, job, found, base),
    )


def parts(book: Book, job: Job, found: results.Answers, base: str) -> dict[str, Any]:
    """What of the page changes while the job runs."""
    pages = results.pages(job)
    return {
        "place": book.place(job.id) if job.state == "QUEUED" else None,
        "found": found,
        "tally": found.tally,
        "pages": [(name, f"{base}/report/{quote(name)}") for name in pages],
        "result": result(job),
        "once": secrets.token_urlsafe(16),
    }


@router.get("/events")
def events(request: Request, here: Using, job: Seen) -> Response:
    return followed(request, here, job, f"/jobs/{job.id}", lambda: visit(request).sees(job), mine=True)


def followed(request: Request, here: Visit, job: Job, base: str, still: Callable[[], bool], *, mine: bool) -> Response:
    """Until it has ended, or may `still` be seen no longer: the session has ended, or the link was taken back."""
    book, at = here.desk.book, after(request)
    lines, _ = whole_log(book, job.id)

    def look() -> Iterator[News]:
        nonlocal at
        now = book.job(job.id) if still() else None
        if now is None:
            yield End()
            return
        new, at = book.log(job.id, at)
        lines.extend(new)
        yield Lines("log", new, at)
        told = parts(book, now, results.answers(now, lines), base)
        yield Part("state", fragment("job_state.html", here=here, job=now, base=base, mine=mine, **told))
        yield Part("answers", fragment("job_answers.html", job=now, base=base, **told))
        if now.has_ended and not new:
            yield End()

    return stream(request, look)


def whole_log(book: Book, id: str, most: int = 20_000) -> tuple[list[str], int]:
    lines, at = book.log(id)
    found = list(lines)
    while lines and len(found) < most:
        lines, at = book.log(id, at)
        found += lines
    return found, at


# What it was asked, in words.


def kind_of(job: Job) -> str:
    return kinds.load(job.kind).title if job.kind in kinds.names() else job.kind


def told_settings(job: Job) -> Iterator[tuple[str, str]]:
    """Label and value of what was chosen; what was left alone has its default, which the command line knows."""
    fields = kinds.load(job.kind).fields if job.kind in kinds.names() else ()
    labels = {each.name: _alone(each.label) for each in fields}
    for name, value in job.settings.items():
        yield labels.get(name, name), words(value)


def _alone(label: str) -> str:
    """A label as it reads without the one before it: 'Or a model' is a model."""
    label = label.removeprefix("Or ")
    return label[:1].upper() + label[1:]


def words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def command(job: Job) -> str:
    """What to type for the same; files and the run's folder are named as they are in the archive."""
    try:
        return shlex.join(["assay", *kinds.load(job.kind).argv(job.settings, Path("."))])
    except (AssayError, LookupError, TypeError, ValueError):  # a job of an older version, with other settings
        return ""


# Its files.


@router.get("/report/{name:path}")
def report(request: Request, here: Using, job: Seen, name: str) -> Response:
    return framed(request, here, job, name, f"/jobs/{job.id}")


def framed(request: Request, here: Visit, job: Job, name: str, base: str) -> Response:
    """A page that the job left, below the head of the workbench."""
    found = results.pages(job)
    if name not in found:
        raise HTTPException(404, "This job has no such page, or not yet.")
    pages = [(each, f"{base}/report/{quote(each)}") for each in found]
    return render(
        request, here, "report.html", job=job, base=base, name=name, pages=pages, source=f"{base}/files/{quote(name)}"
    )


@router.get("/files/{name:path}")
def file(here: Using, job: Seen, name: str) -> Response:
    return handed(job, name)


def handed(job: Job, name: str) -> Response:
    """One file of the run. A page can do nothing here (`report_policy`); a picture is shown, all else is saved."""
    path = results.file_of(job.folder / "run", name)
    if path is None:
        raise HTTPException(404, "This job has no such file.")
    policy = {"content-security-policy": report_policy()}
    if path.suffix == ".html":
        return FileResponse(path, media_type="text/html; charset=utf-8", headers=policy)
    if path.suffix in PICTURES:
        return FileResponse(path, media_type=PICTURES[path.suffix], headers=policy)
    return FileResponse(path, media_type="application/octet-stream", filename=path.name, headers=policy)


@router.get("/log.txt")
def log(here: Using, job: Seen) -> Response:
    return log_of(job)


def log_of(job: Job) -> Response:
    path = results.file_of(job.folder, "log.txt")
    if path is None:
        raise HTTPException(404, "There is no log yet.")
    return FileResponse(path, media_type="text/plain; charset=utf-8")


@router.get("/bundle.zip")
def bundle(here: Using, job: Seen) -> Response:
    return bundled(job)


def bundled(job: Job) -> Response:
    """The whole run as one file, once the job has ended."""
    if not job.has_ended:
        raise HTTPException(404, "The job has not ended yet; its archive comes with the end.")
    name = f"assay-{job.kind}-{job.id[:8]}.zip"
    return StreamingResponse(
        results.bundle(job),
        media_type="application/zip",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


# What can be done with it.


@router.post("/cancel")
def cancel(here: Using, job: Seen, posted: Form) -> Response:
    here.desk.book.cancel(job.id)
    return RedirectResponse(f"/jobs/{job.id}", 303)


@router.post("/again")
def again(here: Using, job: Seen, posted: Form) -> Response:
    wait_for(here, "submit")
    new = here.desk.book.again(job.id, here.owner, text(posted, "once"))
    return RedirectResponse(f"/jobs/{new.id}", 303)


@router.post("/remove")
def remove(here: Using, job: Seen, posted: Form) -> Response:
    if not here.desk.book.remove(job.id):
        raise HTTPException(409, "A job that waits or runs is cancelled before it is removed.")
    here.desk.children.forget(job.id)
    return RedirectResponse("/jobs", 303)


@router.post("/share")
def share(here: Using, job: Seen, posted: Form) -> Response:
    shares.share(here.desk.book, job.id)
    return RedirectResponse(f"/jobs/{job.id}#share", 303)


@router.post("/unshare")
def unshare(here: Using, job: Seen, posted: Form) -> Response:
    token = text(posted, "link")
    if token not in shares.tokens(here.desk.book, job.id):
        raise HTTPException(404, "There is no such link to this job.")
    shares.unshare(here.desk.book, token)
    return RedirectResponse(f"/jobs/{job.id}#share", 303)


def wait_for(here: Visit, what: str, key: str | None = None) -> None:
    """429 where this was done too often; a machine of one's own sets no such limit."""
    if here.desk.accounts is None:
        return
    wait = here.desk.rates[what].wait(here.owner if key is None else key)
    if wait:
        raise HTTPException(429, f"Too often; try again in {wait:.0f} s.", headers={"retry-after": f"{wait:.0f}"})
