"""Links to a job, for whoever has one, until it is taken back."""

from __future__ import annotations

import re
import secrets
import time
from typing import TYPE_CHECKING

import sqlalchemy as sa

from assay.server.errors import Refused
from assay.server.tables import ID, SHARES

if TYPE_CHECKING:
    from assay.server.book import Book, Job

TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def share(book: Book, id: str) -> str:
    """A word that opens this job to whoever has it, until it is taken back."""
    if book.job(id) is None:
        raise Refused(f"There is no job {id[:40]!r} to share.")
    token = secrets.token_urlsafe(32)
    with book.writing() as c:
        c.execute(sa.insert(SHARES).values(token=token, job=id, made=time.time()))
    return token


def unshare(book: Book, token: str) -> bool:
    if not TOKEN.fullmatch(token):
        return False
    with book.writing() as c:
        return bool(c.execute(sa.delete(SHARES).where(SHARES.c.token == token)).rowcount)


def shared(book: Book, token: str) -> Job | None:
    if not TOKEN.fullmatch(token):
        return None
    with book.reading() as c:
        id = c.scalar(sa.select(SHARES.c.job).where(SHARES.c.token == token))
    return None if id is None else book.job(id)


def tokens(book: Book, id: str) -> list[str]:
    if not ID.fullmatch(id):
        return []
    with book.reading() as c:
        return list(c.scalars(sa.select(SHARES.c.token).where(SHARES.c.job == id).order_by(SHARES.c.made)))
