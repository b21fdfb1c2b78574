"""A job behind a link that was shared: to look at, whoever has the link, until it is taken back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response

from assay.server import shares
from assay.server.book import Job
from assay.server.pages import job as pages
from assay.server.visit import Visiting

router = APIRouter(prefix="/shared/{token}")


def job_shared(token: str, here: Visiting) -> Job:
    found = shares.shared(here.desk.book, token) if len(token) <= 64 else None
    if found is None:
        raise HTTPException(404, "This link leads nowhere, or no longer.")
    return found


Shared = Annotated[Job, Depends(job_shared)]


@router.get("")
def one(request: Request, here: Visiting, job: Shared, token: str) -> Response:
    return pages.shown(request, here, job, f"/shared/{token}", mine=False)


@router.get("/events")
def events(request: Request, here: Visiting, job: Shared, token: str) -> Response:
    def still() -> bool:
        return shares.shared(here.desk.book, token) is not None

    return pages.followed(request, here, job, f"/shared/{token}", still, mine=False)


@router.get("/report/{name:path}")
def report(request: Request, here: Visiting, job: Shared, token: str, name: str) -> Response:
    return pages.framed(request, here, job, name, f"/shared/{token}")


@router.get("/files/{name:path}")
def file(job: Shared, name: str) -> Response:
    return pages.handed(job, name)


@router.get("/log.txt")
def log(job: Shared) -> Response:
    return pages.log_of(job)


@router.get("/bundle.zip")
def bundle(job: Shared) -> Response:
    return pages.bundled(job)
