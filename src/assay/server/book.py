"""The book of jobs: what was asked for, by whom, and how far it is. One database, many processes.

    QUEUED -> RUNNING -> SUCCESS | FAILURE | CANCELLED        QUEUED -> CANCELLED
    RUNNING -> QUEUED     where its worker was lost or stopped, and at no other time

A state changes by one UPDATE that names the state it leaves and, for a job that runs, the attempt it belongs to. So
of any number of processes that want to move a job one does, and a worker that was taken for lost can no longer say how
its job ended. Each move is written into `events` in the same transaction.

The queue (`queue.py`) lies in the same database, so a job is written and queued in one transaction: none is lost, none
is doubled. So is the word of the form that it was sent by: a form is one job, however often it is sent.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from assay.errors import AssayError
from assay.server import folders
from assay.server.database import alone, connect, reached
from assay.server.errors import Full, Refused
from assay.server.folders import GB, folder_of, gb, size
from assay.server.queue import Queue
from assay.server.tables import EVENTS, ID, JOBS, JOINED, METADATA, SENT, SHARES

if TYPE_CHECKING:
    from assay.server.kinds import Kind

QUEUED, RUNNING, SUCCESS, FAILURE, CANCELLED = STATES = ("QUEUED", "RUNNING", "SUCCESS", "FAILURE", "CANCELLED")
ENDED = (SUCCESS, FAILURE, CANCELLED)
ARROWS = {QUEUED: (RUNNING, CANCELLED), RUNNING: (*ENDED, QUEUED)}
MOST_ATTEMPTS = 20
"""A job whose worker is lost that often is what ends its workers."""
ASKED_TO_END = "its worker was asked to end"
"""Why a job is handed back that nobody holds against it."""
LONGEST_TITLE, LONGEST_SETTINGS, LONGEST_REASON = 200, 2**16, 500


@dataclass(frozen=True, kw_only=True)
class Job:
    id: str
    owner: str
    """The user's name; "" where there are no accounts."""
    kind: str
    title: str
    settings: dict[str, Any]
    state: str
    reason: str
    """One line where it failed or was cancelled."""
    progress: float
    """From 0 to 1."""
    made: float
    began: float | None
    ended: float | None
    attempt: int
    """How often it was begun; more than 1 where a worker was lost or stopped."""
    bytes: int
    """What its folder holds."""
    folder: Path
    """files/ (what was uploaded), run/ (what the command leaves), log.txt, job.json"""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


_FIELDS = [each.name for each in fields(Job) if each.name != "folder"]
_ROW = [JOBS.c[name] for name in _FIELDS]


@dataclass(frozen=True)
class Event:
    at: float
    was: str
    became: str
    worker: str
    why: str


@dataclass(frozen=True)
class Disk:
    used: int
    """Bytes in all jobs' folders, as far as they are known."""
    free: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The most that the workbench takes."""

    queued: int = 1000
    """Jobs of one owner that wait or run."""
    disk: int = 50 * GB
    """Bytes in the folders of one owner's jobs."""
    free: int = 1 * GB
    """Bytes that stay free on the disk."""


@dataclass
class Book:
    """The jobs under `home`, and their states in the database at `url` (SQLite under `home` where none is given)."""

    home: Path
    url: str = ""
    quota: Quota = field(default_factory=Quota)

    def __post_init__(self) -> None:
        self.home = Path(self.home).absolute()
        folders.make(self.home)
        self.url = self.url or f"sqlite:///{self.home / 'book.sqlite'}"
        self.engine = connect(self.url)
        self.queue = Queue(self.engine, self.home)
        self.changes = 0  # that were made by this object, for whoever shows what it held before
        self.create(METADATA)

    def create(self, tables: sa.MetaData) -> None:
        """Make the tables that are not there; several processes may do so at once."""
        with self.alone("tables"):
            tables.create_all(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    def open_queue(self) -> None:
        """Load the queue, which the first job would do else."""
        with reached():
            self.queue.open()

    @contextmanager
    def alone(self, about: str) -> Iterator[None]:
        """One process of all that have this book at a time."""
        with reached(), alone(self.engine, self.home, about):
            yield

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        with reached(), self.engine.begin() as c:
            yield c
        self.changes += 1

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with reached(), self.engine.connect() as c:
            yield c

    # What pages ask

    def submit(
        self,
        owner: str,
        kind: str,
        title: str,
        settings: Mapping[str, Any],
        files: Mapping[str, Path] | None = None,
        *,
        once: str = "",
    ) -> Job:
        """Write the job's folder, then its row and its place in the queue together.

        `once` is the word of a form: what is sent with it again, and is the same, is the same job.
        """
        if (known := self.sent(owner, once, kind, settings)) is not None:
            return known
        files = dict(files or {})
        if wrong := _kind(kind).check(settings, files):
            raise Refused(" ".join(wrong))
        id = secrets.token_urlsafe(16)
        row: dict[str, Any] = {
            "id": id,
            "owner": owner,
            "kind": kind,
            "title": _line(title, LONGEST_TITLE) or kind,
            "settings": _as_json(settings),
            "state": QUEUED,
            "made": time.time(),
        }
        folder = folder_of(self.home, id)
        try:
            row["bytes"] = folders.fill(self.home, row, files, free=self.quota.free)
            self.open_queue()
            with self.writing() as c:
                self.alone_of(c, owner)
                if (known := self._sent(c, owner, once, kind, settings)) is not None:  # both came at once
                    raise _Doubled(known)
                self._refuse_over_quota(c, owner, row["bytes"])
                c.execute(sa.insert(JOBS).values(row))
                _note(c, id, "", QUEUED, "", "")
                if ID.fullmatch(once):
                    c.execute(sa.delete(SENT).where(SENT.c.owner == owner, SENT.c.once == once))
                    c.execute(sa.insert(SENT).values(owner=owner, once=once, job=id))
                self.queue.put(c, id)
        except BaseException as e:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(e, _Doubled):
                return e.job
            raise
        made = self.job(id)
        assert made is not None
        return made

    def sent(self, owner: str, once: str, kind: str, settings: Mapping[str, Any]) -> Job | None:
        """The job that this form was before, if it asked for the same."""
        if not ID.fullmatch(once):
            return None
        with self.reading() as c:
            return self._sent(c, owner, once, kind, settings)

    def _sent(self, c: sa.Connection, owner: str, once: str, kind: str, settings: Mapping[str, Any]) -> Job | None:
        """Somebody who goes back to a form and changes it wants another job, whatever word it has."""
        if not ID.fullmatch(once):
            return None
        query = sa.select(*_ROW).join(SENT, SENT.c.job == JOBS.c.id).where(SENT.c.owner == owner, SENT.c.once == once)
        row = c.execute(query).first()
        job = None if row is None else self._job(row)
        return job if job is not None and (job.kind, _as_json(job.settings)) == (kind, _as_json(settings)) else None

    def alone_of(self, c: sa.Connection, whose: str) -> None:
        """One transaction that writes a job of an owner, or a sign-up of a study, at a time, so that no race gets past
        what it looks at."""
        if c.dialect.name == "postgresql":
            c.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(f"assay {whose}"))))
        else:
            c.exec_driver_sql("UPDATE jobs SET id = id WHERE id = ''")  # takes the write lock before anything is read

    def _refuse_over_quota(self, c: sa.Connection, owner: str, more: int) -> None:
        waiting = c.scalar(sa.select(sa.func.count()).where(JOBS.c.owner == owner, JOBS.c.state.in_((QUEUED, RUNNING))))
        if (waiting or 0) >= self.quota.queued:
            raise Full(
                f"{waiting} of your jobs wait or run, which is as many as may; wait for one to end, or cancel one."
            )
        held = _held(c, JOBS.c.owner == owner)
        if held + more > self.quota.disk:
            raise Full(
                f"Your jobs hold {gb(held)} and this one brings {gb(more)}; {gb(self.quota.disk)} is the most. "
                "Remove some."
            )

    def job(self, id: str) -> Job | None:
        if not ID.fullmatch(id):
            return None
        with self.reading() as c:
            row = c.execute(sa.select(*_ROW).where(JOBS.c.id == id)).first()
        return None if row is None else self._job(row)

    def jobs(
        self,
        owner: str | None = None,
        *,
        limit: int = 50,
        before: tuple[float, str] | None = None,
        state: str | None = None,
    ) -> list[Job]:
        """Newest first, those older than `before` (a job's `made` and `id`); of everyone where owner is None."""
        if before is not None and not ID.fullmatch(before[1]):
            raise Refused(f"{before[1][:40]!r} is no place in the list of jobs; start from its top.")
        query = sa.select(*_ROW).order_by(JOBS.c.made.desc(), JOBS.c.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        if before is not None:
            query = query.where(sa.tuple_(JOBS.c.made, JOBS.c.id) < sa.tuple_(*map(sa.literal, before)))
        with self.reading() as c:
            return [self._job(row) for row in c.execute(query)]

    def counts(self, owner: str | None = None) -> dict[str, int]:
        """How many there are in each state."""
        query = sa.select(JOBS.c.state, sa.func.count()).group_by(JOBS.c.state)
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        with self.reading() as c:
            return {**dict.fromkeys(STATES, 0), **{row[0]: row[1] for row in c.execute(query)}}

    def place(self, id: str) -> int | None:
        """How many jobs wait before this one; None where it does not wait."""
        if not ID.fullmatch(id):
            return None
        mine = sa.select(JOBS.c.made).where(JOBS.c.id == id, JOBS.c.state == QUEUED).scalar_subquery()
        with self.reading() as c:
            if c.scalar(sa.select(mine)) is None:
                return None
            return c.scalar(sa.select(sa.func.count()).where(JOBS.c.state == QUEUED, JOBS.c.made < mine))

    def log(self, id: str, after: int = 0) -> tuple[list[str], int]:
        """Whole lines of log.txt from that offset on, as many as are read at once, and the offset to go on from."""
        if not ID.fullmatch(id):
            return [], after
        return folders.log(folder_of(self.home, id), after)

    def events(self, id: str) -> list[Event]:
        """Every move of the job, from the first."""
        if not ID.fullmatch(id):
            return []
        query = sa.select(EVENTS).where(EVENTS.c.job == id).order_by(EVENTS.c.number)
        with self.reading() as c:
            return [Event(e.at, e.was, e.became, e.worker, e.why) for e in c.execute(query)]

    def cancel(self, id: str, why: str = "cancelled") -> bool:
        """False where it has ended already, or never was. What runs is ended by its worker, within a second or two."""
        if not ID.fullmatch(id):
            return False
        with self.writing() as c:
            waited = self._move(c, id, QUEUED, CANCELLED, why)
            if not waited and not self._move(c, id, RUNNING, CANCELLED, why):
                return False
        if waited:
            self.queue.withdraw(id)
        return True

    def again(self, id: str, owner: str, once: str = "") -> Job:
        """The same settings and files once more."""
        job = self.job(id)
        if job is None:
            raise Refused(f"There is no job {id[:40]!r} to run again.")
        try:
            files = {path.name: path for path in sorted((job.folder / "files").iterdir())}
        except OSError as e:
            raise Refused("The folder of this job is gone, and its files with it; send it anew.") from e
        return self.submit(owner, job.kind, job.title, job.settings, files, once=once)

    def remove(self, id: str) -> bool:
        """Forget a job that has ended, with its folder and its links; False where it has not, or never was."""
        if not ID.fullmatch(id):
            return False
        with self.writing() as c:
            if not c.execute(sa.delete(JOBS).where(JOBS.c.id == id, JOBS.c.state.in_(ENDED))).rowcount:
                return False
            c.execute(sa.delete(EVENTS).where(EVENTS.c.job == id))
            c.execute(sa.delete(SHARES).where(SHARES.c.job == id))
            c.execute(sa.delete(SENT).where(SENT.c.job == id))
            c.execute(sa.delete(JOINED).where(JOINED.c.study == id))
        self.queue.forget(id)
        shutil.rmtree(folder_of(self.home, id), ignore_errors=True)
        return True

    def sweep(self) -> None:
        """Remove folders of jobs that were never written: whoever sent them was cut off in between."""
        with self.reading() as c:
            known = set(c.scalars(sa.select(JOBS.c.id)))
        folders.sweep(self.home, known)

    # What the operator asks

    def drain(self, on: bool) -> None:
        """While this is on, workers finish what they have and take nothing more."""
        with reached():
            self.queue.hold(on)

    def draining(self) -> bool:
        with reached():
            return self.queue.held()

    def disk(self) -> Disk:
        with self.reading() as c:
            used = _held(c)
        there = shutil.disk_usage(self.home)
        return Disk(used, there.free, there.total)

    def bytes_of(self, owner: str) -> int:
        with self.reading() as c:
            return _held(c, JOBS.c.owner == owner)

    # What workers say

    def begin(self, id: str, worker: str) -> Job | None:
        """The job is this worker's from now on; None where it is not to be run: cancelled, ended, or another's.

        A worker that lost the database in between asks again, and is given what it has begun.
        """
        with self.writing() as c:
            if not self._move(c, id, QUEUED, RUNNING, "", worker=worker):
                mine = (JOBS.c.id == id, JOBS.c.state == RUNNING, JOBS.c.worker == worker)
                if c.scalar(sa.select(JOBS.c.id).where(*mine)) is None:
                    return None
        return self.job(id)

    def finish(self, id: str, attempt: int, state: str, reason: str = "") -> bool:
        """False where the job is no longer that attempt's: it was cancelled, or handed to another worker."""
        with self.writing() as c:
            return self._move(c, id, RUNNING, state, reason, attempt=attempt)

    def hand_back(self, id: str, attempt: int, why: str) -> bool:
        """The recovery arrow: the job waits again, for the next worker; or fails where it has lost too many of them.

        Workers that were asked to end (`ASKED_TO_END`), as by every restart of the server, are not lost.
        """
        with self.writing() as c:
            back = (EVENTS.c.job == id, EVENTS.c.was == RUNNING, EVENTS.c.became == QUEUED)
            lost = sa.select(sa.func.count()).where(*back, EVENTS.c.why != ASKED_TO_END)
            if why != ASKED_TO_END and 1 + int(c.scalar(lost) or 0) >= MOST_ATTEMPTS:
                often = f"begun {attempt} times, and {MOST_ATTEMPTS} times its worker was gone before it; last: {why}"
                return self._move(c, id, RUNNING, FAILURE, often, attempt=attempt)
            return self._move(c, id, RUNNING, QUEUED, why, attempt=attempt)

    def tell(self, id: str, attempt: int, progress: float, bytes: int | None = None) -> bool:
        """How far it is; False where the job is no longer that attempt's, and its command must end."""
        values: dict[str, Any] = {"progress": min(1.0, max(0.0, progress))}
        if bytes is not None:
            values["bytes"] = bytes
        mine = sa.update(JOBS).where(JOBS.c.id == id, JOBS.c.state == RUNNING, JOBS.c.attempt == attempt)
        with self.writing() as c:
            return bool(c.execute(mine.values(values)).rowcount)

    def still_runs(self, job: Job) -> bool:
        """Whether it still runs as this attempt."""
        with self.reading() as c:
            mine = (JOBS.c.id == job.id, JOBS.c.state == RUNNING, JOBS.c.attempt == job.attempt)
            return c.scalar(sa.select(JOBS.c.id).where(*mine)) is not None

    def weigh(self, id: str) -> None:
        """Note what the folder of a job that has ended holds."""
        with self.writing() as c:
            c.execute(sa.update(JOBS).where(JOBS.c.id == id).values(bytes=size(folder_of(self.home, id))))

    def requeue(self, worker: str) -> None:
        """Put what this worker had taken into the queue again. First its jobs are handed back, or they end at once."""
        with reached():
            self.queue.requeue(worker)

    def running(self, worker: str) -> list[Job]:
        with self.reading() as c:
            query = sa.select(*_ROW).where(JOBS.c.worker == worker, JOBS.c.state == RUNNING)
            return [self._job(row) for row in c.execute(query)]

    def _move(
        self,
        c: sa.Connection,
        id: str,
        was: str,
        became: str,
        why: str,
        *,
        attempt: int | None = None,
        worker: str | None = None,
    ) -> bool:
        """The one place where a state changes; whether it did."""
        if became not in ARROWS.get(was, ()):
            raise ValueError(f"no arrow leads from {was} to {became}")
        why = _line(why, LONGEST_REASON)
        values: dict[str, Any] = {"state": became, "reason": why if became in ENDED else ""}
        if became == RUNNING:
            values |= {"worker": worker, "attempt": JOBS.c.attempt + 1, "began": time.time(), "progress": 0.0}
        elif became == QUEUED:
            values |= {"began": None, "progress": 0.0}
        else:
            values["ended"] = time.time()
            if became == SUCCESS:
                values["progress"] = 1.0
        change = sa.update(JOBS).where(JOBS.c.id == id, JOBS.c.state == was)
        if attempt is not None:
            change = change.where(JOBS.c.attempt == attempt)
        moved = c.execute(change.values(values).returning(JOBS.c.worker)).first()
        if moved is None:
            return False
        _note(c, id, was, became, moved[0], why)
        return True

    def _job(self, row: sa.Row[Any]) -> Job:
        told = dict(zip(_FIELDS, row, strict=True))
        told["settings"] = json.loads(told["settings"])
        return Job(**told, folder=folder_of(self.home, told["id"]))


class _Doubled(Exception):
    """A form that was sent twice at once, and the job that the other one is."""

    def __init__(self, job: Job) -> None:
        self.job = job


def _kind(name: str) -> Kind:
    from assay.server import kinds

    try:
        return kinds.load(name)
    except AssayError as e:
        raise Refused(str(e)) from e


def _held(c: sa.Connection, *where: sa.ColumnElement[bool]) -> int:
    """Bytes in the folders of these jobs, as far as they are known."""
    return int(c.scalar(sa.select(sa.func.sum(JOBS.c.bytes)).where(*where)) or 0)


def _note(c: sa.Connection, job: str, was: str, became: str, worker: str, why: str) -> None:
    c.execute(sa.insert(EVENTS).values(job=job, at=time.time(), was=was, became=became, worker=worker, why=why))


def _line(text: str, longest: int) -> str:
    """On one line, without characters that no database or terminal takes."""
    whole = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return whole if len(whole) <= longest else whole[: longest - 1] + "…"


def _as_json(settings: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(dict(settings), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise Refused(
            f"The settings cannot be kept: {e}; give texts, finite numbers, yes or no, and lists of them."
        ) from e
    if len(text) > LONGEST_SETTINGS:
        raise Refused(f"The settings are {len(text)} characters long; {LONGEST_SETTINGS} is the most.")
    return text
