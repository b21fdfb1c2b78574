"""The roll of workers: who is there, by their signs of life, and who is to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from assay.server.book import RUNNING
from assay.server.database import clock, reached
from assay.server.tables import ID, JOBS, WORKERS

if TYPE_CHECKING:
    from assay.server.book import Book

LOST = 30.0  # seconds of silence after which a worker is taken for lost


@dataclass(frozen=True)
class Worker:
    id: str
    host: str
    pid: int
    since: float
    silent: float
    """Seconds since it was last heard of."""
    stopping: bool
    """It ends when its job has."""
    job: str | None


def workers(book: Book) -> list[Worker]:
    query = sa.select(
        WORKERS, (clock(book.engine) - WORKERS.c.seen).label("silent"), JOBS.c.id.label("job")
    ).select_from(WORKERS.outerjoin(JOBS, sa.and_(JOBS.c.worker == WORKERS.c.id, JOBS.c.state == RUNNING)))
    with book.reading() as c:
        return [
            Worker(w.id, w.host, w.pid, w.since, max(0.0, float(w.silent)), bool(w.stopping), w.job)
            for w in c.execute(query.order_by(WORKERS.c.since))
        ]


def stop(book: Book, id: str) -> bool:
    """Let a worker end when its job has."""
    if not ID.fullmatch(id):
        return False
    with book.writing() as c:
        return bool(c.execute(sa.update(WORKERS).where(WORKERS.c.id == id).values(stopping=True)).rowcount)


def greet(book: Book, worker: str, host: str, pid: int) -> None:
    with book.writing() as c:
        now = clock(book.engine)
        c.execute(sa.insert(WORKERS).values(id=worker, host=host, pid=pid, since=now, seen=now, stopping=False))


def beat(book: Book, worker: str) -> bool | None:
    """The worker lives. Whether it is to stop; None where it was taken for lost meanwhile."""
    with book.writing() as c:
        query = sa.update(WORKERS).where(WORKERS.c.id == worker).values(seen=clock(book.engine))
        said = c.execute(query.returning(WORKERS.c.stopping)).first()
        return None if said is None else bool(said[0])


def part(book: Book, worker: str) -> None:
    """The worker has left, or was lost and all that it had was handed back."""
    with book.writing() as c:
        c.execute(sa.delete(WORKERS).where(WORKERS.c.id == worker))


def strangers(book: Book) -> set[str]:
    """Workers that are known no more, and have taken something off the queue all the same: while they left."""
    with reached():
        took = book.queue.takers()  # before it is asked who is there: whoever takes has come in before
    return took - {worker.id for worker in workers(book)} if took else took
