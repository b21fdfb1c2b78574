"""What holds for every request and every answer, whoever asks: names of this host, size, headers, and a cookie.

A page may load nothing but files of this server, runs no script written into it, and is framed by nobody. Whoever makes
another site's page post a form here is refused by where the form came from and by its token (`visit.py`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Sequence
from functools import cache
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

from assay.server.uploads import in_bytes

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "assay"
SMALL = 10**6  # bytes of a form without files
SILENCE = 30.0  # seconds without a byte of what is being sent
FORM_SECONDS = 60.0  # for a form without files, whole
SLOWEST = 32 * 10**3  # bytes a second of an upload, beyond that
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), interest-cohort=()",
    "cache-control": "no-store",
}
LOCAL = ("localhost", "127.0.0.1", "::1")


@cache
def report_policy() -> str:
    """For pages that a job left behind: of an origin of their own, and with no script but those of Assay's reports.

    A run's folder is written by the process of a stranger's model too; whatever lies in it can do nothing here.
    """
    from assay.report.page import TEMPLATES

    hashes = " ".join(f"'sha256-{_hash(path.read_bytes())}'" for path in sorted(TEMPLATES.glob("*.js")))
    return (
        f"sandbox allow-scripts allow-popups allow-downloads; default-src 'none'; img-src data:; "
        f"style-src 'unsafe-inline'; script-src {hashes}; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
    )


def _hash(script: bytes) -> str:
    return base64.b64encode(hashlib.sha256(script).digest()).decode("ascii")


class TooLarge(Exception):
    """More came than is taken."""


class TooSlow(Exception):
    """It came so slowly that whoever sent it may mean to hold us up."""


class Safe:
    """Around the whole application."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str] | None, most: int = SMALL, large: Sequence[str] = ()):
        self.app, self.most, self.large = app, most, tuple(large)
        self.hosts = None if hosts is None else {host.lower().strip("[]") for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._ours(host):
            await _plain(
                send, 421, f"This server is not called {host[:80]!r}; ask for it by the address that it printed."
            )
            return
        most = self.most if scope["path"].startswith(self.large) else SMALL
        length = headers.get(b"content-length", b"0").decode("latin-1")
        if not length.isdigit() or int(length) > most:
            await _plain(send, 413, f"That is more than {in_bytes(most)}, the most that is taken here.")
            return
        cookie = _cookie(headers.get(b"cookie", b"").decode("latin-1"))
        fresh = "" if cookie else secrets.token_urlsafe(32)
        scope.setdefault("state", {})["cookie"] = cookie or fresh
        seen, begun = 0, False
        whole = int(length) == 0 and b"transfer-encoding" not in headers  # there is no body to wait for
        since = time.monotonic()

        async def bounded() -> Message:
            """Of a request's body so much, and no slower; what comes after it is only that somebody has left."""
            nonlocal seen, whole
            if whole:
                return await receive()
            left = since + FORM_SECONDS + seen / SLOWEST - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, min(SILENCE, left)))
            except TimeoutError:
                raise TooSlow from None
            seen += len(message.get("body", b""))
            if seen > most:
                raise TooLarge
            whole = not message.get("more_body", False)
            return message

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                there = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in there),
                ]
                if fresh and not scope["path"].startswith("/static/") and b"set-cookie" not in there:
                    message["headers"].append((b"set-cookie", cookie_header(fresh, scope["scheme"] == "https")))
            await send(message)

        try:
            await self.app(scope, bounded, with_headers)
        except TooLarge:
            if not begun:
                await _plain(send, 413, f"That is more than {in_bytes(most)}, the most that is taken here.")
        except TooSlow:
            if not begun:
                await _plain(send, 408, "That came too slowly and was left; send it again over a better connection.")

    def _ours(self, host: str) -> bool:
        """Else a page elsewhere could have its own name point here, and read what it likes."""
        if self.hosts is None:
            return True
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        else:
            name = name.rpartition(":")[0] or name if name.count(":") == 1 else name
        return name in self.hosts


def cookie_header(value: str, secure: bool, lasts: int = 7 * 24 * 3600) -> bytes:
    end = "; Secure" if secure else ""
    return f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={lasts}{end}".encode()


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None and 20 <= len(found.value) <= 100 else ""


async def _plain(send: Send, status: int, says: str) -> None:
    body = says.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close"), *((n.encode(), v.encode()) for n, v in HEADERS.items())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
