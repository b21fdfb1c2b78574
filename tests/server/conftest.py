"""A book on each kind of database, and workers that can be started and killed in no time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster, NotHere

if TYPE_CHECKING:
    from assay.server.book import Book


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    try:
        made = Cluster()
    except NotHere as e:
        pytest.skip(str(e))
    yield made
    made.remove()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty book with all tables of the queue, which take long to make."""
    from assay.server.book import Book

    made = Book(tmp_path_factory.mktemp("prepared"))
    made.queue.open()
    made.close()
    return made.home / "book.sqlite"


@pytest.fixture(scope="session")
def prepared_there(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    from assay.server.book import Book

    made = Book(tmp_path_factory.mktemp("prepared"), cluster.database("prepared"))
    made.queue.open()
    made.close()
    return "prepared"


@pytest.fixture
def sqlite(tmp_path: Path, prepared: Path) -> Iterator[Book]:
    from assay.server.book import Book, Quota

    shutil.copy(prepared, tmp_path)
    made = Book(tmp_path, quota=Quota(free=0))
    yield made
    made.close()


@pytest.fixture
def postgres(tmp_path: Path, cluster: Cluster, prepared_there: str) -> Iterator[Book]:
    from assay.server.book import Book, Quota

    made = Book(tmp_path, cluster.database("assay", prepared_there), Quota(free=0))
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgres"])
def book(request: pytest.FixtureRequest) -> Book:
    found: Book = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def _zygote() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "crew.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()


class Crew:
    def __init__(self, zygote: subprocess.Popen[str]) -> None:
        self._zygote = zygote
        self.pids: list[int] = []

    def hire(self, book: Book) -> int:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(f"{book.home} {book.engine.url.render_as_string(hide_password=False)}\n")
        pid = int(self._zygote.stdout.readline())
        self.pids.append(pid)
        return pid

    def kill(self, pid: int, sign: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, sign)


@pytest.fixture
def crew(_zygote: subprocess.Popen[str]) -> Iterator[Crew]:
    made = Crew(_zygote)
    yield made
    for pid in made.pids:
        made.kill(pid)


def eventually(holds: Callable[[], object], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.03)
