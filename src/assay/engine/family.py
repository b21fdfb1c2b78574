"""Family: a process and all that it started, what memory they take together, and how to end every one of them.

On Linux those that left their group or session, or whose own parent is gone, are found too: this process asks the
kernel to hand such orphans to it (a subreaper), and whatever it did not start itself before is theirs. Elsewhere the
group is all that is known.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 5.0  # seconds until what was killed is given up; the kernel needs milliseconds
LINUX = sys.platform == "linux"


class Family:
    """Made before the process is started, so that it knows which children of this one are not of the family."""

    def __init__(self) -> None:
        self._others = _children(os.getpid())
        self._adopt(True)
        self._head: subprocess.Popen[bytes] | None = None

    def begin(self, head: subprocess.Popen[bytes]) -> None:
        self._head = head

    def _adopt(self, orphans: bool) -> None:
        if LINUX:
            import ctypes

            none = ctypes.c_ulong(0)
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(orphans), none, none, none)

    def members(self) -> set[int]:
        """All that live or are not yet waited for, on Linux; elsewhere the head alone."""
        found, new = set(), _children(os.getpid()) - self._others
        if self._head is not None and self._head.returncode is None:
            new.add(self._head.pid)
        while new:
            found |= new
            new = {child for pid in new for child in _children(pid)} - found
        return found

    def memory(self) -> int | None:
        """Bytes that they hold together, shared or swapped out too, without files that are only mapped."""
        return sum(map(_held, self.members())) if LINUX else None

    def end(self) -> None:
        """Kill every one of them, whatever they do meanwhile, and wait until they are gone."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self._head is not None and self._head.returncode is None:
                _kill_group(self._head.pid)
                self._head.kill()
            left = self.members()
            for pid in left:
                _kill(pid)
            if self._head is not None:
                self._head.poll()
            for pid in left:
                if self._head is None or pid != self._head.pid:
                    _bury(pid)
            if not self.members():
                break
            time.sleep(0.01)
        self._adopt(False)


def _children(pid: int) -> set[int]:
    """The children of every thread of this process; none where the kernel does not say."""
    found: set[int] = set()
    if LINUX:
        with suppress(OSError):  # it may have ended meanwhile
            for task in os.listdir(f"/proc/{pid}/task"):
                found.update(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    return found


def _held(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    rows = dict(row.split(":", 1) for row in status.splitlines() if ":" in row)
    return sum(1024 * int(rows.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssShmem", "VmSwap"))


def _kill_group(pid: int) -> None:
    if hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


def _bury(pid: int) -> None:
    """Wait for one that was handed to this process; those whose parent lives are its to wait for."""
    with suppress(OSError, AttributeError):
        os.waitpid(pid, os.WNOHANG)


def memory_there_is() -> int | None:
    """Bytes that this machine, or the container that this runs in, has for all; None where it does not say."""
    said = []
    if LINUX:
        said.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            try:
                said.append(int(Path(path).read_text()))
            except (OSError, ValueError):  # there is no such limit, or it is the word "max"
                continue
    return min(said, default=None)
