"""The durable queue: DBOS, in the same database as the book.

A job is a workflow with the job's id and one step, which runs its command. What is queued stays so when every process
is killed; what a lost worker had is queued again, and the book's attempt decides whose word counts. Values are kept in
the database as JSON, where DBOS by itself would pickle them.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from assay.errors import MissingExtra
from assay.server.database import alone

if TYPE_CHECKING:
    from dbos import DBOSClient
    from dbos import Queue as Settings

QUEUE, WORKFLOW, APPLICATION, VERSION = "jobs", "job", "assay", "1"
"""VERSION is that of the workflow, not of Assay: a newer Assay goes on with what an older one queued."""
AT_ONCE = 1
"""Jobs that one worker runs at a time: commands compete for memory and for the GPU. More hands are more workers."""
LOOK_EVERY = 0.25


@dataclass
class Queue:
    """The queue as a process sees it that runs no jobs: it puts them in, takes them off, and holds them back."""

    engine: sa.Engine
    home: Path
    _client: DBOSClient | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> DBOSClient:
        """The first call loads DBOS and makes its tables, which takes a second; not inside a transaction."""
        with self._lock:
            if self._client is None:
                library = dbos()
                with alone(self.engine, self.home, "queue"):
                    library.DBOS.migrate(self.engine.url.render_as_string(hide_password=False))
                client = library.DBOSClient(
                    system_database_engine=self.engine,
                    serializer=library.DBOSPortableJSONSerializer(),
                    application_name=APPLICATION,
                    retry_connection_errors=False,
                )
                client.register_queue(
                    QUEUE, worker_concurrency=AT_ONCE, polling_interval_sec=LOOK_EVERY, on_conflict="never_update"
                )
                self._client = client
            return self._client

    def put(self, c: sa.Connection, id: str) -> None:
        """In the transaction that writes the job; the queue has to be open."""
        options: Any = {"queue_name": QUEUE, "workflow_name": WORKFLOW, "workflow_id": id}
        self.open().enqueue_in_transaction(c, options, id)

    def withdraw(self, id: str) -> None:
        """Take a cancelled job off. Where that fails a worker finds it cancelled, and goes on to the next."""
        with suppress(sa.exc.DBAPIError):
            self.open().cancel_workflow(id)

    def requeue(self, worker: str) -> None:
        """What this worker had taken waits again, in its old place; not while the worker lives, unless it asks."""
        client = self.open()
        had = client.list_workflows(status="PENDING", executor_id=worker, load_input=False, load_output=False)
        if had:
            client.resume_workflows([workflow.workflow_id for workflow in had], queue_name=QUEUE)

    def takers(self) -> set[str]:
        """Workers that have taken something off which has not ended."""
        had = self.open().list_workflows(status="PENDING", load_input=False, load_output=False)
        return {workflow.executor_id for workflow in had if workflow.executor_id}

    def forget(self, id: str) -> None:
        with suppress(sa.exc.DBAPIError):
            self.open().delete_workflow(id)

    def hold(self, on: bool) -> None:
        """Let no worker take anything more, or let them again."""
        self._settings().set_worker_concurrency(0 if on else AT_ONCE)

    def held(self) -> bool:
        return self._settings().worker_concurrency == 0

    def _settings(self) -> Settings:
        found = self.open().retrieve_queue(QUEUE)
        assert found is not None  # `open` registered it
        return found


def dbos() -> Any:
    """The library, quiet; it is loaded when first asked for."""
    try:
        import dbos as library
    except ImportError as e:
        raise MissingExtra.of("The workbench", "dbos", "server") from e
    logging.getLogger("dbos").setLevel(logging.ERROR)
    return library
