"""What a page wants to know at once, and only torch can say: asked of the command line, in a child process.

The server itself imports no torch and opens no model. `assay check` runs guarded and confined as ever; what hangs on
Assay alone (the shelves, the ledger of claims) is asked once and kept in the server's folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, NamedTuple

import assay
from assay.errors import AssayError
from assay.server.leash import without_secrets

ROOT = Path(assay.__file__).parent
AT_ONCE = 2  # more would only wait for each other
CHECK_SECONDS, SHELF_SECONDS = 120.0, 600.0


class Understood(NamedTuple):
    """What `assay check` said: lines about the subject, what to mind, or the one line why not."""

    lines: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    wrong: str = ""


class Children:
    """Short-lived commands of the pages, a few at a time."""

    def __init__(self, home: Path, run: Callable[..., tuple[int, str, str]] | None = None) -> None:
        self.kept = home / "cache"
        self.kept.mkdir(parents=True, exist_ok=True)
        self._turns, self._lock = BoundedSemaphore(AT_ONCE), Lock()
        self._locks: dict[str, Lock] = {}
        self._run = run or command

    def understood(self, words: Sequence[str], folder: Path) -> Understood:
        """What `assay check` understands of this model and its data."""
        with self._turns:
            given = ["check", *words, "--json", "--timeout", str(CHECK_SECONDS - 20)]
            status, out, err = self._run(given, folder, CHECK_SECONDS)
        if status == 0:
            with suppress(ValueError, LookupError, TypeError):
                told = json.loads(out)
                return Understood(tuple((a, b) for a, b in told["lines"]), tuple(told["doubts"]))
        return Understood((), (), last_line(err) or f"It could not be looked at (status {status}).")

    def shelves(self) -> dict[str, list[dict[str, Any]]]:
        """What stands on the shelves, by `catalogue.py`."""
        return _read(self._made("shelves", ".json", lambda to: ["-m", "assay.server.catalogue", str(to)]))

    def ledger(self) -> Path:
        """The page of the ledger of claims."""
        return self._made("ledger", ".html", lambda to: ["-m", "assay", "claims", "page", "--out", str(to)])

    def ready(self, name: str, suffix: str) -> bool:
        return self._place(name, suffix).exists()

    def compared(self, before: Path, after: Path, ids: Sequence[str]) -> Path:
        """The page of two audits side by side, of these jobs."""
        key = hashlib.sha256(f"{before}\0{after}".encode()).hexdigest()[:24]
        to = self.kept / f"diff.{'.'.join(ids)}.{key}.html"
        if not to.exists():
            with self._turns:
                status, _, err = self._run(
                    ["diff", str(before), str(after), "--page", str(to)], self.kept, SHELF_SECONDS
                )
            if not to.exists():
                raise AssayError(last_line(err) or f"They could not be compared (status {status}).")
        return to

    def forget(self, id: str) -> None:
        """The comparisons of a job that is removed."""
        for page in self.kept.glob(f"diff.*{id}.*"):
            page.unlink(missing_ok=True)

    def _place(self, name: str, suffix: str) -> Path:
        return self.kept / f"{name}-{_state()}{suffix}"

    def _made(self, name: str, suffix: str, words: Callable[[Path], list[str]]) -> Path:
        """A page about Assay itself, made once for each state of its files."""
        to = self._place(name, suffix)
        with self._lock:
            lock = self._locks.setdefault(name, Lock())
        with lock:
            if to.exists():
                return to
            half = self.kept / f"half-{secrets.token_hex(8)}{suffix}"
            with self._turns:
                status, _, err = python(words(half), self.kept, SHELF_SECONDS)
            if status or not half.exists():
                raise AssayError(last_line(err) or f"This page could not be made (status {status}).")
            for old in self.kept.glob(f"{name}-*{suffix}"):
                old.unlink(missing_ok=True)
            os.replace(half, to)
        return to


def command(words: Sequence[str], folder: Path, seconds: float) -> tuple[int, str, str]:
    """One command of Assay's, in this folder: its status, and what it wrote to stdout and stderr."""
    return python(["-m", "assay", *words], folder, seconds)


def python(words: Sequence[str], folder: Path, seconds: float) -> tuple[int, str, str]:
    path = os.pathsep.join([str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**without_secrets(os.environ), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGTERM)  # which ends what it guards, too
            with suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=5)
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            return 124, "", f"it took longer than {seconds:.0f} s"
    return child.returncode, out, err


def last_line(err: str) -> str:
    """The line with which a command says what was wrong."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    ours = [line.removeprefix("assay: ") for line in lines if line.startswith("assay: ")]
    return (ours or lines or [""])[-1][:500]


@cache
def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    told: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return told


@cache
def _state() -> str:
    """Another where a file of Assay's changed since a server ran."""
    seen = hashlib.sha256(assay.__version__.encode())
    for room in ("claims", "probes", "remedies", "subjects", "report", "server"):
        for path in sorted((ROOT / room).rglob("*.*")):
            if path.suffix in (".py", ".json", ".html"):
                at = path.stat()
                seen.update(f"{path.relative_to(ROOT)} {at.st_size} {at.st_mtime_ns}".encode())
    return seen.hexdigest()[:16]
