"""A room of its own for each case: where it runs, what it may touch, and whether it kept to that.

room/work   the working directory, with the subject's files; runs/ below it is the one place to write to
room/home   HOME        room/tmp   TMPDIR        room/outside   files that nobody has any business with
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import signal
import socket
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from campaign import watch
from campaign.watch import Event, Seen

COLUMNS = ("status", "line", "kept", "outside", "left", "request")
"""What is judged: the right status, one line, nothing found before lost, no byte outside, no process left behind, no
request made."""

PROGRESS = re.compile(
    r"(opening|loading|judging|checking|comparing|starting|hashing) |writing the report|the next question"
    r"|[a-z-]+: (pass|fail|error|cannot tell|no standard|not asked|does not apply) \([^()]*\)$"
    r"|.+: \d+ of \d+$|.+ \([^()]* so far\)$|'[^']*' is set aside as |sandbox: "
)
"""What stderr may show besides the one line."""

TOUCHED_BY_ALL = re.compile(
    r"/dev/(null|tty|shm/[^/]*|pts/.*)$|/proc/.*|pipe:.*|socket:.*|anon_inode:.*|/memfd:.*|.*__pycache__.*"
)
"""What a process may open for writing without a byte of it staying anywhere; Python's own cache is Python's."""


QUIET_TORCH = {"ONEDNN_JIT_PROFILE": "0", "DNNL_JIT_PROFILE": "0"}
"""Without it, torch's own oneDNN writes /tmp/perf-PID.map wherever it may. The child of the command line may not, so
the command line is run without it."""


TORCHS_OWN = re.compile(r"/tmp/perf-\d+\.map$")


@dataclass
class Ended:
    """How a command ended, what it printed, and what the kernel saw of it."""

    status: int
    out: str
    err: str
    seen: Seen
    writes: list[Event]
    """Those below the folder of runs."""

    @property
    def complaints(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("assay: ")]

    @property
    def known(self) -> int:
        return self.err.count("known from before")


Decide = Callable[[Event, int, int], int]
"""Of a write below the runs, how many came before it, and the main process: what becomes of it, as in `watch`."""


@dataclass
class Room:
    """Where one case happens, and what was found wrong with it."""

    path: Path
    trap: int
    """The port that every proxy is set to."""
    faults: list[tuple[str, str]] = field(default_factory=list)
    looked: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("work", "home", "tmp", "outside"):
            (self.path / name).mkdir(parents=True)
        (self.path / "outside" / "secret.txt").write_text("nobody reads or writes this\n")
        (self.path / "home" / ".profile").write_text("# home\n")

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def runs(self) -> Path:
        return self.work / "runs"

    @property
    def folder(self) -> Path:
        """The one run."""
        (found,) = (p.parent for p in self.runs.glob("*/run.json"))
        return found

    def look(self, column: str, right: bool, why: str) -> bool:
        """Note that this was judged, and what was wrong if it was."""
        self.looked.add(column)
        if not right:
            self.faults.append((column, " ".join(why.split())[:400]))
        return right

    def run(
        self,
        act: Callable[[], object] | Sequence[str],
        *,
        decide: Decide = lambda event, before, main: 0,
        limit: float = 60,
        prepare: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] = {},
        lawful: Sequence[str] = (),
    ) -> Ended:
        """Run a function in a fork, or words as a program of its own, under watch; judge what every case must keep.

        `prepare` is called in the new process before anything else: limits of memory, patched clocks. `lawful` are
        further folders of the room that may change.
        """
        before = self.state(lawful)
        here, there = socket.socketpair()
        main = os.fork()
        if main == 0:
            here.close()
            self._become(act, there, prepare, environment)
        there.close()
        _, (listener,), _, _ = socket.recv_fds(here, 16, 1)
        here.close()
        writes: list[Event] = []
        stray: list[str] = []
        inside = str(self.runs) + "/"

        def decided(event: Event) -> int:
            if event.what == watch.EXEC:
                return 0
            if any(p == str(self.runs) or p.startswith(inside) for p in event.paths):
                writes.append(event)
                return decide(event, len(writes) - 1, main)
            if event.what in (watch.WRITE, watch.SYNC):
                return 0  # through a descriptor whose opening was seen, or that was not opened for writing
            ours = (f"{self.path}/", str(self.path.parent / "fonts"))
            stray.extend(p for p in event.paths if not p.startswith(ours) and not TOUCHED_BY_ALL.match(p))
            return 0

        seen = watch.supervise(main, listener, limit, decided)
        stray = [p for p in stray if not TORCHS_OWN.match(p) or Path(p).exists()]  # the sandbox refused it
        ended = Ended(
            -signal.SIGALRM if seen.hung or seen.status is None else seen.status,
            (self.path / "stdout").read_text(errors="replace"),
            (self.path / "stderr").read_text(errors="replace"),
            seen,
            writes,
        )
        self.look("status", not seen.hung, f"it did not end within {limit:g} s")
        self.look("request", not seen.requests, f"it connected to {', '.join(seen.requests[:3])}")
        self.look("left", not seen.left, f"it left behind {', '.join(seen.left)}")
        self.look("outside", not stray, f"it opened or changed {', '.join(sorted(set(stray))[:3])}")
        after = self.state(lawful)
        changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        self.look("outside", not changed, f"outside of the run it changed {', '.join(changed[:4])}")
        return ended

    def _become(
        self, act: Callable[[], object] | Sequence[str], there: socket.socket, prepare: Callable[[], None],
        environment: Mapping[str, str],
    ) -> NoReturn:  # fmt: skip
        """The new process: everything of the runner's that a user would not have is taken from it."""
        status = 70
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: not without its supervisor
            tempfile.tempdir = None  # it was asked for before, of another environment
            os.chdir(self.work)
            proxy = f"http://127.0.0.1:{self.trap}"
            os.environ.update(
                {
                    "HOME": str(self.path / "home"),
                    "TMPDIR": str(self.path / "tmp"),
                    "COLUMNS": "160",
                    "MPLCONFIGDIR": str(self.path.parent / "fonts"),  # matplotlib's own list of them, made once
                    **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy),
                    **environment,
                }
            )
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for fd, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            watch.install(there)
            prepare()
            if callable(act):
                act()
                status = 0
            else:
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                for name in QUIET_TORCH:
                    os.environ.pop(name, None)
                os.execv(act[0], list(act))
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        except BaseException:
            traceback.print_exc()
            status = 71
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def state(self, lawful: Sequence[str] = ()) -> dict[str, str]:
        """Names, kinds, sizes and content of all in the room that must stay as it is."""
        found = {}
        skipped = {self.path / "stdout", self.path / "stderr", self.runs, *(self.path / name for name in lawful)}
        for folder, names, files in os.walk(self.path):
            names[:] = [n for n in names if Path(folder, n) not in skipped]
            for name in (*names, *files):
                path = Path(folder, name)
                if path not in skipped:
                    found[str(path.relative_to(self.path))] = fingerprint(path)
        return found

    def one_line(self, ended: Ended, status: int | tuple[int, ...] = 2, says: str = "") -> None:
        """It ended with this status and exactly one line of complaint that says this."""
        wanted = (status,) if isinstance(status, int) else status
        said = ended.complaints
        self.look("status", ended.status in wanted, f"status {ended.status}, not {status}: {ended.err[-300:]}")
        self.look("line", len(said) == 1, f"{len(said)} lines of complaint: {ended.err[-400:]}")
        self.quiet(ended)
        if says and said:
            self.look("line", re.search(says, said[0]) is not None, f"not {says!r} but {said[0]!r}")

    def quiet(self, ended: Ended) -> None:
        """Nothing on stderr but progress and complaints: no traceback, no library's own lines."""
        rest = [
            x for x in ended.err.splitlines() if not x.startswith("assay: ") and not PROGRESS.match(x) and x.strip()
        ]
        self.look("line", not rest, f"stderr has also {' | '.join(rest[-3:])}")
        self.look("line", _plain(ended.err + ended.out), "an escape or a direction mark reached the terminal")


def _plain(text: str) -> bool:
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)


def fingerprint(path: Path) -> str:
    kind = path.lstat()
    if stat.S_ISLNK(kind.st_mode):
        return f"link {os.readlink(path)}"
    if stat.S_ISREG(kind.st_mode):
        return f"file {kind.st_size} {hashlib.blake2b(path.read_bytes()).hexdigest()}"
    return stat.filemode(kind.st_mode)[0]


def clear(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
