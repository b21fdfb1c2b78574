"""The application: `make_app` puts the pages together. It imports no torch, and starts nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse

from assay.errors import AssayError
from assay.server import accounts as people
from assay.server.children import Children
from assay.server.desk import Desk
from assay.server.errors import Full, Gone
from assay.server.pages import claims, compare, help, history, job, operator, shared, shelves, sign, study, submit
from assay.server.safety import HEADERS, LOCAL, SMALL, Safe
from assay.server.uploads import MOST, Uploads
from assay.server.views import STATIC, content, render, told
from assay.server.visit import visit

if TYPE_CHECKING:
    from assay.server.book import Book

LARGE = ("/jobs", "/drafts/")
"""Where files come in; everything else is a small form."""
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
WORDS = {
    400: "That cannot be done",
    401: "Sign in first",
    403: "Refused",
    404: "There is nothing here",
    405: "That cannot be done here",
    413: "That is too much",
    422: "Something is missing or wrong",
    429: "Too often",
    503: "Not now",
    507: "No room",
}


def make_app(
    book: Book,
    *,
    accounts: bool = False,
    home: Path | None = None,
    hosts: Sequence[str] | None = None,
    sign_up: bool = True,
    most_upload: int = MOST,
    children: Children | None = None,
) -> FastAPI:
    """The pages over this book. `hosts` are the names under which this server may be called: without accounts this
    machine's own, so that no page elsewhere can have its name point here; with accounts any.

    With `accounts` and nobody in them yet, `app.state.says` has the address at which the first operator signs up.
    """
    home = home or book.home
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, default_response_class=HTMLResponse)
    known = None
    if accounts:
        book.create(people.tables)
        known = people.Accounts(book.engine)
    desk = app.state.desk = Desk(
        book=book,
        home=home,
        accounts=known,
        uploads=Uploads(home, most_upload),
        children=children or Children(home),
        seal=people.Seal(home),
        sign_up=sign_up,
    )
    app.state.says = []
    if known is not None and not known.users():
        app.state.says.append(f"/join/{desk.seal.invitation('operator', 'operator')}")
    for page in (submit, history, compare, job, shared, shelves, claims, help, study, sign, operator):
        app.include_router(page.router)
    app.add_api_route("/static/{name}", _static, methods=["GET"])
    app.add_api_route("/healthz", lambda: PlainTextResponse("ok"), methods=["GET"])
    app.add_api_route("/favicon.ico", lambda: RedirectResponse("/static/mark.svg"), methods=["GET"])
    for kind, answer in ((HTTPException, _refused), (AssayError, _wrong), (DBAPIError, _lost), (Exception, _broke)):
        app.add_exception_handler(kind, answer)
    if hosts is None and not accounts:
        hosts = LOCAL
    app.add_middleware(Safe, hosts=hosts, most=most_upload + SMALL, large=LARGE)
    return app


def _static(name: str) -> Response:
    if name != "report.css" and name not in {path.name for path in STATIC.iterdir()}:
        raise HTTPException(404)
    kind = TYPES.get(Path(name).suffix, "text/plain; charset=utf-8")
    return Response(content(name), media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})


# What went wrong, as a page, or as a line where a part of a page was asked for.


def _refused(request: Request, e: Exception) -> Response:
    assert isinstance(e, HTTPException)
    if e.status_code == 303:
        return RedirectResponse((e.headers or {})["location"], 303)
    says = e.detail if e.detail and e.detail != "Not Found" else "There is no page at this address."
    return _told(request, e.status_code, says, e.headers or {})


def _wrong(request: Request, e: Exception) -> Response:
    if isinstance(e, people.Refused):
        return _told(request, 403, str(e))
    return _told(request, 503 if isinstance(e, Gone) else 507 if isinstance(e, Full) else 400, str(e))


def _lost(request: Request, e: Exception) -> Response:
    return _told(request, 503, "The workbench's database cannot be used; see that it runs, then try again.")


def _broke(request: Request, e: Exception) -> Response:
    """Made outside of `Safe`, whose headers it has to bring along."""
    return _told(request, 500, "Something broke on our side; the server's log says what.", HEADERS)


def _told(request: Request, status: int, says: str, headers: Mapping[str, str] | None = None) -> Response:
    if "hx-request" in request.headers:
        return HTMLResponse(told(says), status, headers)
    word = WORDS.get(status, "That did not work")
    try:
        here = visit(request)
    except Exception:  # the database is gone, or what asks is not even a visit
        return PlainTextResponse(f"{word}: {says}", status, headers)
    page = render(request, here, "wrong.html", status, word=word, says=says)
    page.headers.update(headers or {})
    return page
