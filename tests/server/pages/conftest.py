"""A workbench without workers: jobs are moved by hand, and what children would say is said by the test."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from visitor import Browser, Said

if TYPE_CHECKING:
    from assay.server.book import Book, Job

pytest.importorskip("fastapi", reason="assay[server] is not installed")


@pytest.fixture
def book(tmp_path: Path, prepared: Path) -> Iterator[Book]:
    from assay.server.book import Book, Quota

    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(prepared, home)
    made = Book(home, quota=Quota(free=0))
    yield made
    made.close()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    from assay.server.pages import history, submit

    monkeypatch.setattr(submit, "_UNDERSTOOD", {})
    monkeypatch.setattr(history, "_ROWS", {})
    monkeypatch.setattr(history, "_lists", (None, {}))
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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium, without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name)))
    if (chromium := next(found, None)) is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as play:
        made = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.fixture
def serve(bench: Callable[..., Any]) -> Iterator[Callable[..., str]]:
    """Starts an application on a free port of this machine, and gives its address."""
    uvicorn = pytest.importorskip("uvicorn", reason="assay[server] is not installed")
    leave = ExitStack()

    def start(**how: Any) -> str:
        server = uvicorn.Server(
            uvicorn.Config(bench(hosts=None, **how), port=0, log_level="error", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()

        def stop() -> None:
            server.should_exit = True
            thread.join(10)

        leave.callback(stop)
        until = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.02)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    with leave:
        yield start


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Any]]:
    """Pages that insist, at the end, on having been quiet and having asked nobody but their own server."""
    heard: list[str] = []
    asked: list[str] = []
    own: list[str] = []
    leave = ExitStack()

    def opened(address: str, **context: Any) -> Any:
        own.append(address)
        page = leave.enter_context(browser.new_context(**context)).new_page()
        page.set_default_timeout(90_000)
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: (heard.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        return page

    with leave:
        yield opened
    assert heard == []
    assert [url for url in asked if not url.startswith((*own, "data:"))] == []
