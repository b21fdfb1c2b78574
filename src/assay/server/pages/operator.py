"""For whoever keeps the workbench: queue, workers, disk and accounts, and what can be done about them."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.responses import RedirectResponse

from assay.server import roll
from assay.server.accounts import ROLES
from assay.server.pages.sign import accounts_of
from assay.server.views import render
from assay.server.visit import Form, Operating, Visit, text

router = APIRouter(prefix="/operator")


@router.get("")
def room(request: Request, here: Operating) -> Response:
    return _room(request, here)


def _room(request: Request, here: Visit, invitation: str = "") -> Response:
    book = here.desk.book
    people = here.desk.accounts.users() if here.desk.accounts is not None else []
    return render(
        request,
        here,
        "operator.html",
        counts=book.counts(None),
        workers=roll.workers(book),
        lost=roll.LOST,
        draining=book.draining(),
        disk=book.disk(),
        people=[(user, book.bytes_of(user.name), sum(book.counts(user.name).values())) for user in people],
        roles=ROLES,
        invitation=invitation,
    )


@router.post("/drain")
def drain(here: Operating, posted: Form) -> Response:
    here.desk.book.drain(text(posted, "on") == "yes")
    return RedirectResponse("/operator", 303)


@router.post("/workers/{id}/stop")
def stop(here: Operating, id: str, posted: Form) -> Response:
    if not roll.stop(here.desk.book, id):
        raise HTTPException(404, "There is no such worker any more.")
    return RedirectResponse("/operator", 303)


@router.post("/invite")
def invite(request: Request, here: Operating, posted: Form) -> Response:
    accounts_of(here)
    word = here.desk.seal.invitation(text(posted, "name"), text(posted, "role", "user"))
    return _room(request, here, f"{request.base_url}join/{word}")


@router.post("/accounts/{name}")
def account(here: Operating, name: str, posted: Form) -> Response:
    known = accounts_of(here)
    if text(posted, "do") == "remove":
        known.remove(name)
    else:
        known.change(name, role=text(posted, "role"))
    return RedirectResponse("/operator#accounts", 303)
