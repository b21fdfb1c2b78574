"""Signing in and out, new accounts, and one's own."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.responses import RedirectResponse

from assay.errors import AssayError
from assay.server.accounts import Accounts, Refused, network
from assay.server.safety import cookie_header
from assay.server.views import render
from assay.server.visit import Form, Visit, Visiting, local, text

router = APIRouter()


def accounts_of(here: Visit) -> Accounts:
    if here.desk.accounts is None:
        raise HTTPException(404, "This workbench has no accounts: whoever is at this machine is its user.")
    return here.desk.accounts


@router.get("/sign-in")
def asked(request: Request, here: Visiting, next: str = "/") -> Response:
    accounts_of(here)
    return render(request, here, "sign_in.html", next=local(next), name="", wrong="")


@router.post("/sign-in")
def sign_in(request: Request, here: Visiting, posted: Form) -> Response:
    known, name, next = accounts_of(here), text(posted, "name"), local(text(posted, "next", "/"))
    where, guesses = _where(request), here.desk.guesses
    guess = f"{where} {name.strip().lower()[:60]}"
    if wait := here.desk.rates["address"].wait(where) or guesses.wait(guess):
        says, status = f"Too many tries; the next one is in {wait + 0.5:.0f} s.", 429
    else:
        try:
            token = known.sign_in(name, text(posted, "password"))
            guesses.forget(guess)
            return _in(request, token, next)
        except Refused as e:
            says, status = str(e), 403
    return render(request, here, "sign_in.html", status, next=next, name=name, wrong=says)


def _where(request: Request) -> str:
    return network(request.client.host if request.client else "")


def _in(request: Request, token: str, next: str) -> Response:
    page = RedirectResponse(next, 303)
    page.headers["set-cookie"] = cookie_header(token, request.url.scheme == "https").decode()
    return page


@router.post("/sign-out")
def sign_out(request: Request, here: Visiting, posted: Form) -> Response:
    accounts_of(here).sign_out(here.cookie)
    page = RedirectResponse("/", 303)
    page.headers["set-cookie"] = cookie_header("", request.url.scheme == "https", 0).decode()
    return page


@router.get("/sign-up")
def wanted(request: Request, here: Visiting) -> Response:
    accounts_of(here)
    _open(here)
    return render(request, here, "sign_up.html", name="", mail="", invited="", role="visitor", wrong="")


@router.post("/sign-up")
def sign_up(request: Request, here: Visiting, posted: Form) -> Response:
    _open(here)
    wait = here.desk.rates["sign-up"].wait(_where(request))
    if wait:
        raise HTTPException(429, f"Too many new accounts; the next one is in {wait / 60:.0f} min.")
    return _new(request, here, posted, text(posted, "name"), "visitor")


@router.get("/join/{word}")
def invited(request: Request, here: Visiting, word: str) -> Response:
    accounts_of(here)
    name, role = here.desk.seal.invited(word)
    return render(request, here, "sign_up.html", name=name, mail="", invited=word, role=role, wrong="")


@router.post("/join/{word}")
def join(request: Request, here: Visiting, word: str, posted: Form) -> Response:
    name, role = here.desk.seal.invited(word)
    return _new(request, here, posted, name, role, word)


def _open(here: Visit) -> None:
    if not here.desk.sign_up:
        raise HTTPException(404, "Accounts are opened by invitation; ask the operator for one.")


def _new(request: Request, here: Visit, posted: Form, name: str, role: str, word: str = "") -> Response:
    known, password, mail = accounts_of(here), text(posted, "password"), text(posted, "mail")
    try:
        if password != text(posted, "again"):
            raise AssayError("The two passwords differ; type them again.")
        known.add(name, password, role, mail)
        return _in(request, known.sign_in(name, password), "/")
    except AssayError as e:
        return render(request, here, "sign_up.html", 422, name=name, mail=mail, invited=word, role=role, wrong=str(e))


@router.get("/account")
def own(request: Request, here: Visiting) -> Response:
    accounts_of(here)
    if not here.signed_in:
        return RedirectResponse("/sign-in?next=/account", 303)
    return _account(request, here)


def _account(request: Request, here: Visit, status: int = 200, wrong: str = "", done: str = "") -> Response:
    book = here.desk.book
    return render(
        request,
        here,
        "account.html",
        status,
        wrong=wrong,
        done=done,
        held=book.bytes_of(here.owner),
        quota=book.quota,
        counts=book.counts(here.owner),
    )


@router.post("/account")
def change(request: Request, here: Visiting, posted: Form) -> Response:
    known = accounts_of(here)
    if not here.signed_in:
        raise HTTPException(401, "Sign in first.")
    try:
        if "mail" in posted:
            known.change(here.owner, mail=text(posted, "mail"))
            return RedirectResponse("/account", 303)
        if text(posted, "password") != text(posted, "again"):
            raise AssayError("The two new passwords differ; type them again.")
        guess = f"{_where(request)} {here.owner}, signed in"
        if wait := here.desk.guesses.wait(guess):
            raise HTTPException(429, f"Too many tries; the next one is in {wait:.0f} s.")
        known.sign_in(here.owner, text(posted, "old"))  # Refused where the old one is wrong
        here.desk.guesses.forget(guess)
        known.change(here.owner, password=text(posted, "password"))
        return _in(request, known.sign_in(here.owner, text(posted, "password")), "/account")
    except AssayError as e:
        return _account(request, here, 422, wrong=str(e))
