"""How pages are made: templates that escape whatever they are given, in the dress of the reports."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from assay.report import words
from assay.report.page import TEMPLATES as REPORTS
from assay.server.uploads import in_bytes

if TYPE_CHECKING:
    from fastapi import Request
    from jinja2 import Environment

    from assay.server.visit import Visit

HERE = Path(__file__).parent
STATIC = HERE / "static"
STATES = {
    "QUEUED": ("queued", "queued", "M8 4v4l2.5 2M8 2a6 6 0 1 1-.01 0"),
    "RUNNING": ("running", "running", "M5 3.5l7 4.5-7 4.5z"),
    "SUCCESS": ("success", "pass", "M3 8.5l3.2 3.2L13 4.8"),
    "FAILURE": ("failure", "fail", "M4 4l8 8M12 4l-8 8"),
    "CANCELLED": ("cancelled", "cancelled", "M3.5 8h9"),
}
"""Of each state: its word, its look, and what is drawn beside it."""


@cache
def environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def shown(value: Any) -> Any:
        return words.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    made = Environment(
        loader=FileSystemLoader([HERE / "templates", REPORTS]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
        auto_reload=False,
    )
    made.filters.update(when=when, duration=words.duration, bytes=in_bytes)
    made.filters.update(measured=words.measured, interval=words.interval, number=words.number, moment=words.moment)
    made.globals.update(asset=asset, states=STATES, now=time.time)
    return made


def render(request: Request, here: Visit, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    return HTMLResponse(fragment(template, here=here, path=request.url.path, **context), status)


def fragment(template: str, **context: Any) -> Markup:
    """A part of a page, which another template takes as it is."""
    return Markup(environment().get_template(template).render(**context))


def when(moment: float | None) -> Markup:
    """A time as people say it, with the exact one behind it; the page's script keeps it current."""
    if moment is None:
        return Markup("")
    then = datetime.fromtimestamp(moment, UTC)
    told = f"{then.day} {then:%b %Y, %H:%M} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{then:%Y-%m-%dT%H:%M:%SZ}", told, ago(time.time() - moment) or told
    )


def ago(seconds: float) -> str:
    """'3 min ago'; empty where it is longer than a day."""
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    return f"{int(seconds // 3600)} h ago" if seconds < 24 * 3600 else ""


@cache
def asset(name: str) -> str:
    """The address of a shipped file, with what is in it, so that browsers keep it for good."""
    return f"/static/{name}?v={hashlib.sha256(content(name)).hexdigest()[:12]}"


@cache
def content(name: str) -> bytes:
    """A shipped file; the reports' own style is theirs."""
    path = REPORTS / "style.css" if name == "report.css" else STATIC / name
    return path.read_bytes()


def told(says: object) -> Markup:
    """A line of what went wrong, for a part of a page."""
    return Markup('<p class="alarm" role="alert"><strong>{}</strong></p>').format(escape(str(says)))
