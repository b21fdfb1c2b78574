"""assay serve: the workbench in a browser."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.flat import flat
from assay.cli.options import Debug
from assay.cli.worker import Home, QueueUrl, Room, open_book
from assay.errors import AssayError, MissingExtra

if TYPE_CHECKING:
    from assay.server.book import Book

REPLACE_EVERY = 2.0  # seconds; one that cannot start is not started more often than that
PATIENCE = 20.0  # seconds that workers get to hand back what they have


@flat
def serve(
    *,
    home: Home = None,
    queue: QueueUrl = "",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; others than this machine need --accounts.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8737,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Jobs that run at the same time.")] = 1,
    accounts: Annotated[bool, typer.Option("--accounts", help="People sign in, and see their own jobs alone.")] = False,
    sign_up: Annotated[
        bool, typer.Option("--sign-up/--no-sign-up", help="Whether anyone may open an account, or whom you invite.")
    ] = True,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="A name by which others call this machine; may be given again."),
    ] = None,
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy",
            help="A server on this machine passes requests on, and says in X-Forwarded-For and X-Forwarded-Proto whose "
            "they are and how they came. Without it these are not believed.",
        ),
    ] = False,
    most_upload: Annotated[float, typer.Option(metavar="GB", min=0.001, help="What one form may bring.")] = 2,
    most_queued: Annotated[int, typer.Option(metavar="N", min=1, help="Jobs of one person that wait or run.")] = 1000,
    room: Room,
    debug: Debug = False,
) -> None:
    """Audit models, train and study in a browser: pages, a queue that loses nothing, and a worker, on one port.

    By default it is for you alone, on this machine. Jobs and their state outlive it: what waited or ran when it was
    stopped, or killed, goes on when it is started again.

    Example: assay serve

    Example: assay serve --workers 2 --queue postgresql://assay@db/assay --accounts --host 0.0.0.0 --name lab.example
    """
    make_app, local = _pages()
    if not accounts and host not in local:
        raise AssayError(f"--host {host} can be reached by others; add --accounts, so that they have to sign in.")
    book = open_book(home, queue, room, most_queued)
    listening = _listen(host, port)
    app = make_app(
        book,
        accounts=accounts,
        hosts=(*local, host, socket.gethostname(), *(name or ())),
        sign_up=sign_up,
        most_upload=int(most_upload * 1e9),
    )
    address = f"http://{host if ':' not in host else f'[{host}]'}:{listening.getsockname()[1]}"
    hands = Crew(book, workers, room)

    def started() -> None:
        typer.echo(f"The workbench is at {address}")
        for path in app.state.says:
            typer.echo(f"Nobody has an account yet. The operator opens one at {address}{path}")
        hands.start()
        threading.Thread(target=_warm, args=(book,), daemon=True).start()

    try:
        _run(app, listening, started, behind_proxy)
    finally:
        hands.end()


def _pages() -> tuple[Callable[..., Any], tuple[str, ...]]:
    try:
        from assay.server.app import make_app
        from assay.server.safety import LOCAL
    except ImportError as e:
        raise MissingExtra.of("The workbench", "fastapi", "server") from e
    return make_app, tuple(LOCAL)


def _warm(book: Book) -> None:
    """So that the first job need not wait for the queue to load; what is wrong it will tell."""
    with suppress(Exception):
        book.open_queue()


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as e:
        raise AssayError(f"Cannot listen at {host}:{port}: {e.strerror or e}; choose another with --port.") from e
    return listening


def _config(app: Any, behind_proxy: bool) -> Any:
    """uvicorn by itself would take anyone on this machine at their word about where they come from."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
        proxy_headers=behind_proxy,
        forwarded_allow_ips=["127.0.0.1", "::1"],
    )


def _run(app: Any, listening: socket.socket, started: Callable[[], object], behind_proxy: bool) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                started()

    def stop(*anything: object) -> None:
        raise KeyboardInterrupt  # which uvicorn raises of itself for a key, so that workers hand back what they have

    signal.signal(signal.SIGTERM, stop)
    Server(_config(app, behind_proxy)).run([listening])


class Crew:
    """The workers of this server: each a process of its own on a leash, replaced when it ends unasked."""

    def __init__(self, book: Book, count: int, room: Room) -> None:
        self._book, self._count = book, count
        self._words = ["--home", str(book.home), "--most-disk", str(room.most_disk), "--keep-free", str(room.keep_free)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ending = threading.Event()
        self._watch: threading.Thread | None = None

    def start(self) -> None:
        self._watch = threading.Thread(target=self._tend, daemon=True)
        self._watch.start()

    def _tend(self) -> None:
        from assay.server.leash import leash

        with leash() as its:
            self._processes = [self._hire(its) for _ in range(self._count)]
            while not self._ending.wait(REPLACE_EVERY):
                for place, process in enumerate(self._processes):
                    if process.poll():  # 0: it was asked to end
                        self._processes[place] = self._hire(its)
            for process in self._processes:
                with suppress(OSError):
                    process.send_signal(signal.SIGTERM)
            until = time.monotonic() + PATIENCE
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))

    def _hire(self, its: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "assay.server.leash", str(its), "assay", "worker", *self._words],
            env={**os.environ, "ASSAY_QUEUE": self._book.url},  # not among the words, which everyone can read
            stdin=subprocess.DEVNULL,
            pass_fds=[its],
            start_new_session=True,
        )

    def end(self) -> None:
        self._ending.set()
        if self._watch is not None:
            self._watch.join(PATIENCE + 5)
