"""A book on each kind of database, and workers that can be started and killed in no time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster, NotHere
from hired import Crew

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


@pytest.fixture
def crew(_zygote: subprocess.Popen[str]) -> Iterator[Crew]:
    made = Crew(_zygote)
    yield made
    for pid in made.pids:
        made.kill(pid)
