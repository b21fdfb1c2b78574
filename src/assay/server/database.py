"""The database: SQLite under the home folder, or PostgreSQL. The book, the queue and the accounts lie in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from assay.errors import AssayError
from assay.server.errors import Gone


def connect(url: str) -> sa.Engine:
    """SQLite's file is made where there is none; PostgreSQL is first reached when it is first asked."""
    try:
        where = sa.make_url(url)
    except sa.exc.ArgumentError as e:
        raise AssayError(f"{url!r} is no address of a database; write postgresql://USER@HOST/NAME.") from e
    if where.get_backend_name() == "postgresql":
        if not where.database:
            raise AssayError(f"{where.render_as_string()!r} names no database; write postgresql://USER@HOST/NAME.")
        return sa.create_engine(
            where.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,  # a database that was started anew is found again
            pool_size=10,
            connect_args={
                "connect_timeout": 5,
                "application_name": "assay",
                "options": "-c idle_in_transaction_session_timeout=60000",  # a process that sleeps holds nobody up
            },
        )
    if where.get_backend_name() != "sqlite" or not where.database:
        raise AssayError(f"{url!r} is neither PostgreSQL nor a file of SQLite; write postgresql://USER@HOST/NAME.")
    engine = sa.create_engine(where)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, record: object) -> None:
        connection.isolation_level = "IMMEDIATE"  # who will write waits at once, and reads nothing that grows old
        connection.execute("PRAGMA busy_timeout=30000")
        connection.execute("PRAGMA foreign_keys=ON")

    with reached(), engine.connect() as c:
        c.exec_driver_sql("PRAGMA journal_mode=WAL")  # pages read while a worker writes
    return engine


@contextmanager
def reached() -> Iterator[None]:
    """What is asked of the database in here is answered, or `Gone`."""
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as e:
        says = " ".join(str(getattr(e, "orig", None) or e).split())[:200]
        raise Gone(f"The workbench's database cannot be used: {says}; see that it runs, then try again.") from e


@contextmanager
def alone(engine: sa.Engine, home: Path, about: str) -> Iterator[None]:
    """One process at a time; on PostgreSQL, where processes may be on many machines, the database sees to it."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
            key = sa.func.hashtext(f"assay {about}")
            c.execute(sa.select(sa.func.pg_advisory_lock(key)))
            try:
                yield
            finally:
                c.execute(sa.select(sa.func.pg_advisory_unlock(key)))
        return
    with open(home / f"{about}.lock", "w") as lock:
        with suppress(ImportError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def clock(engine: sa.Engine) -> sa.ColumnElement[float]:
    """Seconds by the database's own clock, which is one for the workers of all machines."""
    if engine.dialect.name == "postgresql":
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)
    return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Double)
