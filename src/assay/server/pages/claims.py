"""The ledger of claims, as `assay claims page` draws it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse, HTMLResponse

from assay.server.safety import report_policy
from assay.server.views import fragment, render
from assay.server.visit import Visiting

router = APIRouter(prefix="/claims")


@router.get("")
def ledger(request: Request, here: Visiting) -> Response:
    return render(request, here, "claims.html", ready=here.desk.children.ready("ledger", ".html"))


@router.get("/page")
def made(here: Visiting) -> Response:
    """The frame, once there is something to show in it."""
    here.desk.children.ledger()
    return HTMLResponse(fragment("frame.html", source="/claims/ledger", title="Ledger of claims"))


@router.get("/ledger")
def page(here: Visiting) -> Response:
    path = here.desk.children.ledger()
    return FileResponse(
        path, media_type="text/html; charset=utf-8", headers={"content-security-policy": report_policy()}
    )
