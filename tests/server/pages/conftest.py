"""A workbench without workers: jobs are moved by hand, and what children would say is said by the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from visitor import Browser, Said

if TYPE_CHECKING:
    from assay.server.book import Book, Job

pytest.importorskip("fastapi", reason="assay[server] is not installed")


@pytest.fixture(scope="session")
def _queue_made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty book with all tables of the queue, which take long to make."""
    from assay.server.book import Book

    made = Book(tmp_path_factory.mktemp("made"))
    made.queue.open()
    made.close()
    return made.home / "book.sqlite"


@pytest.fixture
def book(tmp_path: Path, _queue_made: Path) -> Iterator[Book]:
    from assay.server.book import Book, Quota

    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(_queue_made, home)
    made = Book(home, quota=Quota(free=0))
    yield made
    made.close()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    from assay.server.pages import history, submit

    monkeypatch.setattr(submit, "_UNDERSTOOD", {})
    monkeypatch.setattr(history, "_ROWS", {})
    return Said()


@pytest.fixture
def bench(book: Book, said: Said) -> Callable[..., Any]:
    """Makes an application; the same one again where it is asked for without arguments."""
    from argon2 import PasswordHasher

    from assay.server.app import make_app
    from assay.server.children import Children

    def make(**how: Any) -> Any:
        app = make_app(book, **{"hosts": ["testserver"], "children": Children(book.home, said), **how})
        if app.state.desk.accounts is not None:
            app.state.desk.accounts.hasher = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
        return app

    return make


@pytest.fixture
def alone(bench: Callable[..., Any]) -> Browser:
    """Whoever sits at a machine without accounts."""
    return Browser(bench())


@pytest.fixture
def submitted(book: Book) -> Callable[..., Job]:
    """A job in the state that a test wants it in."""

    def submit(title: str = "a job", state: str = "QUEUED", owner: str = "", reason: str = "", **settings: Any) -> Job:
        job = book.submit(owner, "audit", title, {"subject": "fashion-cnn", "budget": "quick", **settings})
        if state == "CANCELLED":
            book.cancel(job.id)
        elif state != "QUEUED":
            book.begin(job.id, "hands")
            if state != "RUNNING":
                book.finish(job.id, 1, state, reason)
        return book.job(job.id)  # type: ignore[return-value]

    return submit
