"""Guarded: a stranger's code runs in a child process; this side watches it, hears what it says, and ends it.

A model can end its process, hang, crash it, take all memory, leave threads and processes behind. None of that reaches
this side, which loads no torch and none of the model's code: it hands over what is to be done, hears the child, and
ends it with all that it started. Only what was heard on the private line counts (see `child.py`).

The child writes into a temporary folder alone. It is removed at the end, and by the next command if this one is killed.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from assay.engine.family import Family, memory_there_is
from assay.engine.sandbox import scrubbed
from assay.errors import AssayError

LONGEST = 64 * 2**20
"""Bytes of one message; what is longer is no message of ours."""
LOOK_EVERY = 0.1  # seconds between two looks at the clock and the memory
LOADING = 600.0  # seconds for what is not the model's: to load torch and the questions
SECONDS = {"quick": 1800.0, "standard": 14400.0, "full": 172800.0}
"""What one question may take unless the user says so: twenty times the longest of the bundled subject, by budget."""
SHARE = 0.9
"""Of the memory there is, what the child may take unless the user says so."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a child may take and touch."""

    seconds: float
    """For opening the subject, and for each question."""
    memory: int | None
    """Bytes, of the child and all that it starts together; None: as much as there is."""
    sandbox: bool

    @classmethod
    def of(cls, budget: str, timeout: float | None, memory: float | None, sandbox: bool) -> Limits:
        """What the user typed, or what is sensible."""
        for option, value in (("--timeout", timeout), ("--memory", memory)):
            if value is not None and not 0 < value < float("inf"):
                raise AssayError(f"{option} {value:g} is no limit; give a number above 0.")
        there = memory_there_is()
        default = None if there is None else int(SHARE * there)
        return cls(
            seconds=SECONDS[budget] if timeout is None else timeout,
            memory=default if memory is None else int(memory * 1e9),
            sandbox=sandbox,
        )


class Died(Exception):
    """The child ended, or was ended, before it was done; the text says how, and what to do."""


class Refused(Died):
    """The child itself said why it cannot go on."""


class Left(Died):
    """The child ended by itself, and nobody ended it."""


class Child:
    """One child process, from its start until it and all that it started are gone."""

    def __init__(self, entry: str, job: Mapping[str, Any], limits: Limits, folder: Path) -> None:
        module, function = entry.split(":")
        self._limits, self._family = limits, Family()
        self._token = secrets.token_hex(16).encode()
        self._heard: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._since = self._looked = time.monotonic()
        self._allowed = max(LOADING, limits.seconds)
        self._ended_at: float | None = None
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        surroundings = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))}
        if limits.sandbox:
            surroundings = scrubbed(os.environ, home=temporary)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=surroundings,
            start_new_session=True,  # a key pressed at the terminal is for this side to hear
        )
        self._family.begin(self._process)
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        self.say(
            token=self._token.decode(), job=job, folder=str(folder), sandbox=limits.sandbox, parent=os.getpid()
        )  # fmt: skip

    def say(self, **message: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return  # it is gone, which `hear` finds out and tells

    def _listen(self, line: IO[bytes]) -> None:
        """Take messages off the line as they come; what does not open with the token is none."""
        while text := line.readline(LONGEST):
            if text.startswith(self._token) and text.endswith(b"\n"):
                try:
                    message = json.loads(text[len(self._token) :])
                except ValueError:
                    continue
                if isinstance(message, dict):
                    self._heard.put(message)
        self._heard.put(None)

    @property
    def seconds(self) -> float:
        """Since the clock was last set back."""
        return time.monotonic() - self._since

    def set_clock_back(self, most: float | None = None) -> None:
        """From now on the time is the model's: as long as the limits allow, or less."""
        self._since, self._allowed = time.monotonic(), min(self._limits.seconds, most or self._limits.seconds)

    def hear(self) -> dict[str, Any] | None:
        """The next message, or None if there is none for a moment. Raises `Died` where the child is at its end."""
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._look()
        try:
            message = self._heard.get(timeout=LOOK_EVERY)
        except queue.Empty:
            if self._process.poll() is None:
                return None
            self._ended_at = self._ended_at or time.monotonic()
            if time.monotonic() - self._ended_at < 1:  # what it said last may still be on its way
                return None
            message = None
        if message is None:
            raise self._how_it_ended()
        return message

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self.seconds > self._allowed:
            raise Died(f"took more than {self._allowed:g} s and was ended; give it longer with --timeout")
        allowed, taken = self._limits.memory, self._family.memory()
        if allowed is not None and taken is not None and taken > allowed:
            raise Died(f"took more than {allowed / 1e9:.3g} GB of memory and was ended; give it more with --memory")

    def _how_it_ended(self) -> Died:
        try:
            status = self._process.wait(timeout=3)  # much memory takes a while to give back
        except subprocess.TimeoutExpired:
            return Died("closed every file that was open, the line to Assay too; take that out")
        if status >= 0:
            return Left(f"ended by itself with status {status}; take out what ends it, such as os._exit")
        try:
            name = signal.strsignal(-status) or signal.Signals(-status).name
        except ValueError:
            name = "unknown"
        mend = {
            "SIGSEGV": "some native code is at fault: show it these inputs by itself",
            "SIGBUS": "a file that it maps may be cut short: write it anew",
            "SIGKILL": "most often that is for want of memory: free some, or give it a limit with --memory",
        }
        kind = signal.Signals(-status).name if -status in list(signal.Signals) else ""
        return Died(f"was ended by signal {-status} ({name.lower()}); {mend.get(kind, 'find out who sends it')}")

    def end(self) -> None:
        """Kill it with all that it started. Its stdout stays to the thread that reads it, until there is no writer."""
        self._family.end()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


@contextmanager
def started(entry: str, job: Mapping[str, Any], limits: Limits, folder: Path) -> Iterator[Child]:
    """A child that is gone with all that it started when the work with it ends, however that ends."""
    child = Child(entry, job, limits, folder)
    try:
        yield child
    finally:
        child.end()


@contextmanager
def handed_over() -> Iterator[Path]:
    """A temporary folder into which a child writes; what one that was killed left behind goes too."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="assay-"))
    except OSError as e:
        raise AssayError(f"Cannot make a temporary folder: {e}; set TMPDIR to a folder that can be written.") from e
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            import fcntl
        except ImportError:
            yield folder
            return
        lock = stack.enter_context(open(folder / "lock", "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives, and before anyone can look for it
        os.rename(folder / "lock", folder / "in-use")
        for other in folder.parent.glob("assay-*/in-use"):
            try:
                with open(other) as theirs:
                    fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(other.parent, ignore_errors=True)
            except OSError:
                continue  # it is in use, or somebody else's
        yield folder


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """What asks this process to end stops it as a key does, so that no child outlives it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*anything: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), stop) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def command_guarded(
    entry: str, job: Mapping[str, Any], limits: Limits, spoken: Callable[[str], None], warn: Callable[[str], None]
) -> int:
    """Run a whole command in a child, with its own progress on stderr; its status, if the child itself said so."""
    with stopped_by_signals(), handed_over() as folder, started(entry, job, limits, folder) as child:
        try:
            while True:
                message = child.hear()
                if message is None:
                    continue
                if "held" not in message:
                    child.set_clock_back()
                if "status" in message:
                    return int(message["status"])
                if "out" in message:
                    spoken(str(message["out"]))
                elif message.get("missing"):
                    held, missing = ("; ".join(map(str, message[name])) for name in ("held", "missing"))
                    warn(f"sandbox: {held or 'nothing held'}; what did not hold: {missing}")
        except Died as e:
            raise AssayError(f"The model's process {e}.") from e
