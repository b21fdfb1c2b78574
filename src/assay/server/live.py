"""Pages that follow what they show: server-sent events, read by `static/live.js`.

Each event carries the id of a part of the page and its new content, or lines of a log. A stream ends itself when there
is nothing more to come, and after some minutes: the browser then asks again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from assay.errors import AssayError

if TYPE_CHECKING:
    from fastapi import Request

EVERY = 0.7  # seconds between two looks
QUIET = 15.0  # seconds after which a line says that we are still there
LONGEST = 600.0
MOST = 300  # streams at once
_open = 0


class Part(NamedTuple):
    """New content of the part of the page with this id."""

    id: str
    html: str


class Lines(NamedTuple):
    """What a log has got since."""

    id: str
    lines: list[str]
    at: int


class End(NamedTuple):
    """Nothing more will come."""


News = Part | Lines | End


def stream(request: Request, look: Callable[[], Iterator[News]]) -> StreamingResponse:
    """Events of what `look` finds each time; a part that has not changed is not sent again."""
    if _open >= MOST:
        raise HTTPException(503, "Too many pages are being followed; load this one again in a while.")
    return StreamingResponse(
        _events(request, look), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


async def _events(request: Request, look: Callable[[], Iterator[News]]) -> AsyncIterator[str]:
    global _open
    _open += 1
    began = heard = time.monotonic()
    sent: dict[str, str] = {}
    try:
        while time.monotonic() - began < LONGEST and not await request.is_disconnected():
            try:
                found = await run_in_threadpool(lambda: list(look()))
            except AssayError:  # the database is away for a moment
                found = []
            for news in found:
                match news:
                    case Part(id, html) if sent.get(id) != html:
                        sent[id] = html
                        yield _event("part", {"id": id, "html": html})
                    case Lines(id, lines, at) if lines:
                        yield _event("lines", {"id": id, "lines": lines}, at)
                    case End():
                        yield _event("end", {})
                        return
                    case _:
                        continue
                heard = time.monotonic()
            if time.monotonic() - heard > QUIET:
                heard = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(EVERY)
    finally:
        _open -= 1


def _event(name: str, told: dict[str, Any], at: int | None = None) -> str:
    id = "" if at is None else f"id: {at}\n"
    return f"{id}event: {name}\ndata: {json.dumps(told)}\n\n"


def after(request: Request) -> int:
    """From where a browser that asks again goes on with a log."""
    told = request.headers.get("last-event-id") or request.query_params.get("after", "0")
    return int(told) if told.isdigit() and len(told) < 16 else 0
