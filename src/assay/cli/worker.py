"""assay worker: another pair of hands for the workbench."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.flat import flat
from assay.cli.options import Debug

if TYPE_CHECKING:
    from assay.server.book import Book

Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="Where jobs are kept: what was uploaded, what came out, logs. Workers on other machines need the same "
        "folder. [default: assay/workbench among your data, such as ~/.local/share]",
    ),
]
QueueUrl = Annotated[
    str,
    typer.Option(
        "--queue",
        metavar="URL",
        envvar="ASSAY_QUEUE",
        help="A database of PostgreSQL, postgresql://USER@HOST/NAME, from which several machines can take. [default: a "
        "file in the home folder]",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Room:
    """What jobs may take."""

    most_disk: Annotated[
        float, typer.Option("--most-disk", metavar="GB", min=0.001, help="What the jobs of one person may hold.")
    ] = 50
    keep_free: Annotated[
        float, typer.Option("--keep-free", metavar="GB", min=0, help="What stays free on the disk.")
    ] = 1


@flat
def worker(
    *,
    queue: QueueUrl = "",
    home: Home = None,
    room: Room,
    debug: Debug = False,
) -> None:
    """Take jobs off a workbench's queue, one at a time, and run them.

    `assay serve` starts workers of its own. Start more where there is room: each runs one job at a time. Ctrl-C hands
    the job that runs back to the queue, and another worker goes on with it.

    Example: assay worker --queue postgresql://assay@db/assay --home /shared/workbench
    """
    from assay.server.worker import Hands

    hands = Hands(open_book(home, queue, room), told=lambda text: typer.echo(text, err=True))
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), hands.end)
    typer.echo(f"Worker {os.getpid()} waits for jobs in {hands.book.home}.", err=True)
    os._exit(hands.work())  # a thread may still hold a job that was handed back


def open_book(home: Path | None, queue: str, room: Room, most_queued: int = 1000) -> Book:
    from assay.errors import MissingExtra

    try:
        from assay.server.book import Book, Quota
        from assay.server.folders import GB
    except ImportError as e:
        raise MissingExtra.of("The workbench", "sqlalchemy", "server") from e
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    quota = Quota(queued=most_queued, disk=int(room.most_disk * GB), free=int(room.keep_free * GB))
    return Book(home or Path(data) / "assay" / "workbench", queue, quota)
