"""Workers that tests hire and kill, and patience."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.server.book import Book


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


def eventually(holds: Callable[[], object], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.03)
