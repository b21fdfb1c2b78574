"""Faults between an audit and its disk: kills, errors, signals, and a folder that goes away, at every write."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from campaign import watch
from campaign.case import (
    ASKED,
    FORK,
    Case,
    Undisturbed,
    audit_here,
    copy_runs,
    found,
    goes_on,
    numbers,
    spread,
    temporary,
)  # fmt: skip
from campaign.room import Decide, Room
from campaign.watch import Event

WRITING = (watch.OPEN, watch.WRITE, watch.SYNC, watch.RENAME, watch.MKDIR)


def at(place: int, act: Callable[[int], None], answer: int = 0) -> Decide:
    """Do something when so many writes are done, before the next."""

    def decide(event: Event, before: int, main: int) -> int:
        if before == place:
            act(main)
            return answer
        return 0

    return decide


def kill(main: int) -> None:
    for pid in (main, *watch.descendants(main)):
        os.kill(pid, signal.SIGKILL)


def failing(place: int, error: int, kinds: tuple[str, ...], onwards: bool) -> Decide:
    """From this write on, or only there, calls of these kinds end with the error."""

    def decide(event: Event, before: int, main: int) -> int:
        if before < place or (before > place and not onwards) or event.what not in kinds:
            return 0
        if event.what == watch.MKDIR and os.path.isdir(event.path):
            return 0  # the kernel would say first that it is there
        return error

    return decide


def cases(base: Undisturbed, seed: int) -> list[Case]:
    writes = list(enumerate(base.writes))
    made: list[Case] = []

    def add(kind: str, name: str, act: Callable[[Room], None]) -> None:
        made.append(Case(kind, name, FORK, act))

    # After a write is before the next one: the disk is the same. After the last one the audit is over.
    for place, (what, name) in writes:
        add("kill", f"{place}-before-{what}-{name}", killed(base, place))

    for place, (what, name) in [w for w in writes if w[1][0] in WRITING]:
        add("full disk", f"{place}-{what}-{name}", refused(base, place, errno.ENOSPC, WRITING, onwards=True))
    for place, (_, name) in [w for w in writes if w[1][0] == watch.SYNC]:
        add("fsync fails", f"{place}-{name}", refused(base, place, errno.EIO, (watch.SYNC,), onwards=False))
    for place, (_, name) in [w for w in writes if w[1][0] == watch.RENAME]:
        add("rename fails", f"{place}-{name}", refused(base, place, errno.EIO, (watch.RENAME,), onwards=False))
    changing = (watch.OPEN, watch.RENAME, watch.MKDIR)
    for place, (what, name) in [w for w in writes if w[1][0] in (watch.OPEN, watch.MKDIR)]:
        error = (errno.EROFS, errno.EACCES)[place % 2]
        add("read-only", f"{place}-{what}-{name}", refused(base, place, error, changing, onwards=True))

    draw = random.Random(seed)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        for place in sorted(draw.sample(range(len(writes)), 6)):
            add("signal", f"{number.name}-at-{place}", signalled(base, place, number))

    last = max(place for place, (what, name) in writes if what == watch.RENAME and name == "audit.json")
    for place, (what, name) in spread(writes[1 : last + 1], 8):  # after it the audit is over
        add("folder gone", f"removed-at-{place}-{what}-{name}", gone(base, place, moved=False))
        add("folder gone", f"moved-at-{place}-{what}-{name}", gone(base, place, moved=True))

    for left in range(9):
        add("no descriptors", f"{left}-left", no_descriptors(base, left))

    for turn, together in enumerate((4, 4, 3, 2, 2)):  # the one in the middle is what --quick takes
        for start in ("finished", "fresh"):
            add("two writers", f"{together}-at-once-{start}-{turn}", writers(base, together, start))
    add("two writers", "other-questions-at-once", writers(base, 2, "fresh", tuple((probe,) for probe in ASKED)))
    for place, _ in spread(writes, 4):
        add("two writers", f"one-killed-at-{place}", one_killed(base, place))

    for name, seconds in {"an-hour": 3600, "a-day": 86400, "to-1971": 55 * 365 * 86400}.items():
        add("clock set back", f"{name}-between-two-audits", clock(base, seconds, "between"))
        add("clock set back", f"{name}-within-an-audit", clock(base, seconds, "within"))
        add("clock set back", f"{name}-before-the-files-were-written", clock(base, seconds, "files"))
    return made


def killed(base: Undisturbed, place: int) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        ended = room.run(audit_here(), decide=at(place, kill, answer=-1))
        room.look("status", ended.status == -signal.SIGKILL, f"status {ended.status}: it was not there to be killed")
        for path in room.runs.glob("*/audit.json"):
            room.look("kept", numbers(path) == base.numbers, "an audit stands there that is not whole")
        goes_on(room, base, found(room.runs))

    return act


def refused(base: Undisturbed, place: int, error: int, kinds: tuple[str, ...], onwards: bool) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        ended = room.run(audit_here(), decide=failing(place, error, kinds, onwards))
        if ended.status == base.status and base.writes[place][0] == watch.MKDIR:
            room.notes.append("the folder was there already")
        else:
            room.one_line(ended, 2, rf"Cannot write '.*': {os.strerror(error)}; ")
        room.look("kept", not temporary(room.runs), f"half a file was left: {temporary(room.runs)}")
        goes_on(room, base, found(room.runs))

    return act


def signalled(base: Undisturbed, place: int, number: signal.Signals) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        ended = room.run(audit_here(), decide=at(place, lambda main: os.kill(main, number)))
        right = (130,) if number == signal.SIGINT else (-number, 128 + number, 2)
        if ended.status == base.status and number == signal.SIGPIPE:
            right = (base.status,)  # Python ignores it, and nothing was written to a closed pipe
        room.look("status", ended.status in right, f"status {ended.status} after {number.name}, not {right}")
        if number == signal.SIGINT:
            room.one_line(ended, 130, "stopped; run the same command again")
        room.quiet(ended)
        goes_on(room, base, found(room.runs))

    return act


def gone(base: Undisturbed, place: int, moved: bool) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        def away(main: int) -> None:
            for folder in [p for p in room.runs.glob("*") if p.is_dir()]:
                if moved:
                    folder.rename(room.path / "elsewhere")
                else:
                    shutil.rmtree(folder)

        ended = room.run(audit_here(), decide=at(place, away), lawful=("elsewhere",))
        if ended.status == base.status:  # then a whole audit must stand where it says
            page = room.work / ended.out.strip().splitlines()[-1]
            stands = page.with_name("audit.json")
            room.look("status", stands.exists() and numbers(stands) == base.numbers, "a verdict without its audit")
            room.look("status", page.exists(), "it names a report that is not there")
            findings = sorted(p.stem for p in page.parent.glob("findings/*.json"))
            room.look("status", findings == sorted(ASKED), f"a verdict on an audit whose folder holds only {findings}")
        else:
            room.one_line(ended, 2)
        goes_on(room, base, found(room.runs))

    return act


def no_descriptors(base: Undisturbed, left: int) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        def prepare() -> None:
            highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + left, highest + left))

        ended = room.run(audit_here(), prepare=prepare)
        if ended.status != base.status:
            room.one_line(ended, 2)
        goes_on(room, base, found(room.runs))

    return act


def writers(
    base: Undisturbed, together: int, start: str, asked: tuple[tuple[str, ...], ...] = (ASKED,)
) -> Callable[[Room], None]:
    """Several audits of one folder at the same time, each a process of its own."""

    def act(room: Room) -> None:
        if start == "finished":
            copy_runs(base.runs, room.runs)

        ended = room.run(at_once([asked[i % len(asked)] for i in range(together)]), limit=120)
        statuses = [
            int(word) for line in ended.out.splitlines() if line.startswith("ended ") for word in line.split()[1:]
        ]
        fine = {base.status, 0, 3} if len(asked) > 1 else {base.status}
        room.look(
            "status", len(statuses) == together and set(statuses) <= fine, f"statuses {statuses}: {ended.err[-300:]}"
        )
        room.quiet(ended)
        room.look("line", not ended.complaints, f"they complained: {' '.join(ended.complaints)}")
        room.look("kept", not temporary(room.runs), f"half files were left: {temporary(room.runs)}")
        if len(asked) == 1:
            goes_on(room, base, len(ASKED))

    return act


def at_once(asked: list[tuple[str, ...]]) -> Callable[[], None]:
    """Audits in forks that start together; it prints how each ended."""

    def act() -> None:
        ready, go = os.pipe()
        children = []
        for probes in asked:
            child = os.fork()
            if child == 0:
                os.close(go)
                os.read(ready, 1)
                try:
                    audit_here(*probes)()
                except SystemExit as e:
                    os._exit(int(e.code or 0))
                finally:
                    os._exit(71)
            children.append(child)
        os.close(ready)
        os.close(go)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print("ended", *statuses, flush=True)

    return act


def one_killed(base: Undisturbed, place: int) -> Callable[[Room], None]:
    """Two audits at the same time, of which the one that comes to this write first is killed there."""

    def act(room: Room) -> None:
        def decide(event: Event, before: int, main: int) -> int:
            if before == place:
                os.kill(_process(event.pid), signal.SIGKILL)
                return -1
            return 0

        ended = room.run(at_once([ASKED, ASKED]), decide=decide, limit=120)
        statuses = sorted(int(w) for x in ended.out.splitlines() if x.startswith("ended ") for w in x.split()[1:])
        room.look("status", statuses == sorted((-9, base.status)), f"statuses {statuses}: {ended.err[-300:]}")
        room.quiet(ended)
        goes_on(room, base, len(ASKED))

    return act


def _process(task: int) -> int:
    """The process of a thread."""
    for line in Path(f"/proc/{task}/status").read_text().splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    return task


def clock(base: Undisturbed, seconds: float, when: str) -> Callable[[Room], None]:
    """The clock goes back: between two audits, in the middle of one, or so that all files lie in the future."""

    def act(room: Room) -> None:
        copy_runs(base.runs, room.runs)
        kept = len(ASKED)
        if when == "files":
            for path in room.runs.rglob("*"):
                os.utime(path, (time.time() + seconds,) * 2)
        elif when == "within":
            shutil.rmtree(room.runs)
            kept = 0
        ended = room.run(audit_here(), prepare=lambda: set_back(seconds, after=20 if when == "within" else 0))
        room.look("status", ended.status == base.status, f"status {ended.status}: {ended.err[-300:]}")
        room.look("kept", ended.known == kept, f"{kept} answers were stored, {ended.known} known")
        room.quiet(ended)
        goes_on(room, base, len(ASKED))

    return act


def set_back(seconds: float, after: int) -> None:
    """Every clock that Python's code reads in this process, once it was read so many times; the kernel's stays."""
    import sys

    real, reads = time.time, iter(range(10**9))

    def told() -> float:
        return real() - (seconds if next(reads) >= after else 0)

    class Late(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(told(), tz)

    time.time = told
    for name, module in list(sys.modules.items()):
        if (
            name.startswith("assay")
            and isinstance(module, ModuleType)
            and getattr(module, "datetime", None) is datetime
        ):
            module.datetime = Late  # type: ignore[attr-defined]
