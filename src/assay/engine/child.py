"""The child's side: a process that runs a stranger's code, and a private line on which it tells its parent what came.

The parent (`guarded.py`) starts it as a new interpreter. Its first line on stdin is the job, its stdout is the line
back: both are moved to descriptors of their own before anything of the model is loaded, so that what the model prints
goes to stderr and what it reads is empty. Each message opens with a token that came with the job; whatever else gets
onto the line, by a model that writes to every descriptor, is dropped at the other end. A model that searches the
memory of its own process can find the token: it can forge its own numbers, as any code could that shares a process
with what measures it, and nothing else, because the parent writes the run.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from assay.errors import in_words

if TYPE_CHECKING:
    from assay.run import Tick

TOLD_EVERY = 0.2  # seconds between two messages about the same progress
GRACE = 1.0  # seconds in which threads that a question started may still end
PR_SET_PDEATHSIG = 1


class Line:
    """The private line to the parent, and what the parent said first."""

    def __init__(self) -> None:
        self._from, self._to = os.fdopen(os.dup(0), "rb"), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._lock, self._due = threading.Lock(), 0.0
        first = json.loads(self._from.readline())
        self._token = first["token"].encode()
        self.job: Mapping[str, Any] = first["job"]
        self.folder = Path(first["folder"])
        self.sandbox: bool = first["sandbox"]
        _die_with(first["parent"])

    def send(self, **message: Any) -> None:
        text = json.dumps(message, default=str).encode()
        left = memoryview(b"\n" + self._token + text + b"\n")  # a line of its own, whatever stands before it
        with self._lock:
            while left:
                left = left[os.write(self._to, left) :]

    def receive(self) -> dict[str, Any]:
        said = self._from.readline()
        if not said:
            os._exit(2)  # the parent is gone
        answer: dict[str, Any] = json.loads(said)
        return answer

    @contextmanager
    def progress(self, about: str, total: int) -> Iterator[Tick]:
        """Progress as a probe tells it, told on at most a few times a second."""
        self.send(doing=about, total=total)
        waiting, due = 0, time.monotonic() + TOLD_EVERY

        def tick(n: int) -> None:
            nonlocal waiting, due
            waiting += n
            if time.monotonic() > due:
                self.send(tick=waiting)
                waiting, due = 0, time.monotonic() + TOLD_EVERY

        yield tick
        if waiting:
            self.send(tick=waiting)

    def beat(self) -> None:
        """There is progress, however it is told."""
        if time.monotonic() > self._due:
            self.send(alive=True)
            self._due = time.monotonic() + TOLD_EVERY

    def confine(self, read: list[Path], write: list[Path]) -> None:
        """Shut out the network and the files that are not named, as far as this system can; tell what held."""
        from assay.engine.sandbox import confine

        held = confine(read=read, write=[*write, self.folder])
        self.send(held=held.held, missing=held.missing)

    def in_words(self, e: BaseException) -> str:
        """What was raised, as one line; where the sandbox is why, that."""
        from assay.engine.sandbox import refused

        return (refused(e) if self.sandbox else None) or in_words(e)

    def leave(self, status: int) -> NoReturn:
        """End at once: no thread that the model left behind and nothing that it registered can keep the process."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        os._exit(status)


class Spoken(io.TextIOBase):
    """A stdout of which the parent prints what is written."""

    def __init__(self, line: Line, terminal: bool) -> None:
        self._line, self._terminal = line, terminal

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError("this takes text")  # by which click tells it from a file of bytes
        for start in range(0, len(text), 2**15):
            self._line.send(out=text[start : start + 2**15])
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def _die_with(parent: int) -> None:
    """Let the kernel end this process with its parent, and choose it first where memory runs out; leave no core."""
    if sys.platform == "linux":
        import ctypes
        import resource

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:  # it went before it was asked for
            os._exit(2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            Path("/proc/self/oom_score_adj").write_text("1000")
        except OSError:
            return


def left_behind(before: Container[threading.Thread]) -> str:
    """What to say of threads that were not there before and would keep Python from ending; empty if there are none.

    Daemons would not, nor would workers of pools that have nothing to do, which Python ends itself. Those that are at
    their end get a moment to come to it.
    """
    until = time.monotonic() + GRACE
    while left := [t for t in threading.enumerate() if t not in before and not t.daemon and not _ends_itself(t)]:
        if time.monotonic() > until:
            names = ", ".join(repr(t.name[:40]) for t in left[:3]) + (" and more" if len(left) > 3 else "")
            return f"the model left threads running ({names}); join them before it answers, or make them daemons"
        time.sleep(0.01)
    return ""


def _ends_itself(thread: threading.Thread) -> bool:
    """Whether it belongs to a pool of concurrent.futures or of joblib, and does not work for anyone just now."""
    from concurrent.futures import thread as pools

    if thread in getattr(sys.modules.get(type(thread).__module__), "_threads_wakeups", ()):  # it minds processes
        return True
    frame = sys._current_frames().get(thread.ident or 0)
    return thread in pools._threads_queues and frame is not None and frame.f_code is pools._worker.__code__
