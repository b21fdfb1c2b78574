"""A visit: who asks for a page, what they may do, and whether a form is really theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast
from urllib.parse import quote, urlsplit

from fastapi import Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from assay.server.accounts import User
from assay.server.desk import Desk

if TYPE_CHECKING:
    from assay.server.book import Job

ALONE = User("", "operator", "", 0.0)
"""Who works on a machine without accounts: all is theirs."""
NOBODY = User("", "visitor", "", 0.0)


@dataclass(frozen=True)
class Visit:
    desk: Desk
    user: User
    cookie: str
    signed_in: bool
    address: str
    """Under which this server was asked, without a slash at its end."""

    @property
    def token(self) -> str:
        """What every form of this visit carries; nobody else's page can know it."""
        return self.desk.seal.of("form", self.cookie)

    @property
    def owner(self) -> str:
        return self.user.name

    @property
    def whose(self) -> str | None:
        """Whose jobs are listed: an operator's list has everybody's."""
        return None if self.user.may("operator") else self.user.name

    def sees(self, job: Job) -> bool:
        if self.user.may("operator"):
            return True
        return self.signed_in and job.owner == self.user.name


def visit(request: Request) -> Visit:
    desk = desk_of(request)
    cookie, address = str(request.scope["state"]["cookie"]), str(request.base_url).rstrip("/")
    if desk.accounts is None:
        return Visit(desk, ALONE, cookie, signed_in=False, address=address)
    user = desk.accounts.who(cookie)
    return Visit(desk, user or NOBODY, cookie, signed_in=user is not None, address=address)


def desk_of(request: Request) -> Desk:
    return cast(Desk, request.app.state.desk)


async def _visiting(request: Request) -> Visit:
    """Where nobody signs in there is nothing to look up, and no thread to wait for."""
    return visit(request) if desk_of(request).accounts is None else await run_in_threadpool(visit, request)


Visiting = Annotated[Visit, Depends(_visiting)]


def _needs(role: str, request: Request, here: Visit) -> Visit:
    if here.user.may(role):
        return here
    if here.signed_in:
        raise HTTPException(403, f"This is for accounts with the role {role}; yours is {here.user.role}.")
    if request.method == "GET" and "hx-request" not in request.headers:
        back = quote(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
        raise HTTPException(303, "Sign in first.", headers={"location": f"/sign-in?next={back}"})
    raise HTTPException(401, "Sign in first.")


async def as_user(request: Request, here: Visiting) -> Visit:
    return _needs("user", request, here)


async def as_operator(request: Request, here: Visiting) -> Visit:
    return _needs("operator", request, here)


Using = Annotated[Visit, Depends(as_user)]
Operating = Annotated[Visit, Depends(as_operator)]


def job_seen(id: str, here: Visiting) -> Job:
    """The job of an address. Another's is as if it were not there."""
    job = here.desk.book.job(id) if len(id) <= 64 else None
    if job is None or not here.sees(job):
        raise HTTPException(404, "There is no such job.")
    return job


async def form(request: Request, here: Visiting) -> AsyncIterator[FormData]:
    """The form that was posted, if one of our own pages did it."""
    refuse_elsewhere(request)
    given = request.headers.get("x-csrf", "")
    if given and not here.desk.seal.holds(given, "form", here.cookie):
        raise forged()
    try:
        posted = await request.form(max_files=2000, max_fields=1000, max_part_size=256 * 1024)
    except OSError as e:
        raise HTTPException(507, f"What was sent could not be kept: {e.strerror or e}; free some room.") from e
    try:
        said = posted.get("csrf", "")
        if not given and not (isinstance(said, str) and here.desk.seal.holds(said, "form", here.cookie)):
            raise forged()
        yield posted
    finally:
        await posted.close()


Form = Annotated[FormData, Depends(form)]


def forged() -> HTTPException:
    return HTTPException(403, "This form is not from a page of this visit, or is too old; load the page again.")


def refuse_elsewhere(request: Request) -> None:
    """A browser says where a form comes from; what says nothing still needs the token."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise forged()
    origin = request.headers.get("origin")
    if origin not in (None, "null") and urlsplit(origin or "").netloc != request.headers.get("host"):
        raise forged()


def text(posted: FormData, name: str, default: str = "") -> str:
    value = posted.get(name, default)
    return value if isinstance(value, str) else default


def texts(posted: FormData, name: str) -> list[str]:
    return [value for value in posted.getlist(name) if isinstance(value, str)]


def local(address: str) -> str:
    """Where to go on after signing in: a path of this server, or its first page."""
    parts = urlsplit(address)
    inside = address.startswith("/") and not address.startswith(("//", "/\\")) and not parts.netloc
    return address if inside and address.isprintable() else "/"
