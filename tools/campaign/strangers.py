"""Hostile subjects: models whose code hangs, exits, crashes, writes, connects, forks, forges. All on the command line.

Each is a good model that turns bad at one moment: when it is opened, or at the second question, once the first has its
answer. What it does is tried; where the sandbox forbids it the model may go on, and the audit with it.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass

from campaign.case import COMMAND, Case, Undisturbed, command
from campaign.room import Room

GOOD = '''
import ctypes, mmap, os, random, shutil, signal, socket, subprocess, sys, threading, time
from pathlib import Path
import torch
from torch import nn
from assay import Subject

SECRET, HOME, PORT, RUNS = {secret!r}, {home!r}, {port}, {runs!r}


def bad():
{does}


def second():
    """Whether the question that is being put is not the first."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("everyday_change.py"):
            return True
        frame = frame.f_back
    return False


class Stranger(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    def forward(self, x):
        if {late} and second():
            bad()
        return self.inner(x)


def build():
    if not {late}:
        bad()
    torch.manual_seed(0)
    x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
    return Subject.classifier(Stranger(), (x, y), name="stranger")
'''

LENIENT = "[standards.accuracy]\nat_least = 0\n[standards.everyday-change]\nat_least = 0\n"
"""So that nothing fails, and the status is that of what broke."""


@dataclass(frozen=True)
class Deed:
    """What a stranger does, and how it may end: 2 with this line, or as a good model where it came to nothing."""

    code: str
    says: str = ""
    harmless: bool = False
    """The audit may go on: the deed was forbidden, or hurts nobody."""
    words: tuple[str, ...] = ()
    moments: tuple[str, ...] = ("late",)


ENDED = r"the model's process ended by itself with status"
DEEDS: dict[str, Deed] = {
    "exits-with-0": Deed("os._exit(0)", ENDED, moments=("late", "early")),
    "exits-with-1": Deed("os._exit(1)", ENDED),
    "exits-with-3": Deed("os._exit(3)", ENDED, moments=("early",)),
    "calls-sys-exit": Deed("sys.exit(0)", r"(?i)exit", moments=("late", "early")),
    "hangs": Deed("time.sleep(1000)", r"took more than 8 s", words=("--timeout", "8"), moments=("late", "early")),
    "hangs-in-native-code": Deed(
        "ctypes.CDLL(None).pause()", r"took more than 8 s", words=("--timeout", "8"),
    ),
    "hangs-and-ignores-signals": Deed(
        "[signal.signal(s, signal.SIG_IGN) for s in (2, 15, 1)]; time.sleep(1000)", r"took more than 8 s",
        words=("--timeout", "8"),
    ),
    "crashes": Deed("ctypes.string_at(0)", r"was ended by signal 11", moments=("late", "early")),
    "aborts": Deed("os.abort()", r"was ended by signal 6"),
    "maps-a-file-that-is-cut": Deed(
        "p = os.path.join(os.environ['TMPDIR'], 'm'); f = open(p, 'wb+'); f.truncate(8192); "
        "m = mmap.mmap(f.fileno(), 8192); f.truncate(0); m[5000]", r"was ended by signal 7",
    ),
    "is-killed": Deed("os.kill(os.getpid(), 9)", r"was ended by signal 9"),
    "raises-cancelled": Deed("import asyncio; raise asyncio.CancelledError", r"CancelledError"),
    "raises-keyboard-interrupt": Deed("raise KeyboardInterrupt", r"", moments=("late", "early")),
    "raises-generator-exit": Deed("raise GeneratorExit", r"GeneratorExit"),
    "recurses": Deed("bad()", r"RecursionError"),
    "fills-memory": Deed(
        "held = [torch.ones(2**24) for _ in range(400)]", r"took more than 1.5 GB of memory|MemoryError|allocate",
        words=("--memory", "1.5"),
    ),
    "leaves-a-thread": Deed("threading.Thread(target=time.sleep, args=(1000,)).start()", r"left threads running"),
    "leaves-a-thread-while-it-is-opened": Deed(
        "threading.Thread(target=time.sleep, args=(1000,)).start()", harmless=True, moments=("early",),
    ),
    "leaves-a-daemon-thread": Deed(
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", harmless=True,
    ),
    "leaves-a-process": Deed("subprocess.Popen(['sleep', '1000'])", harmless=True, moments=("late", "early")),
    "leaves-a-daemon": Deed(
        "if os.fork() == 0:\n        os.setsid()\n        os.fork()\n        os.closerange(0, 100)\n        "
        "time.sleep(1000)\n        os._exit(0)", harmless=True,
    ),
    "forks-many": Deed(
        "for _ in range(30):\n        if os.fork() == 0:\n            time.sleep(1000)", harmless=True,
    ),
    "writes-home": Deed("open(os.path.join(HOME, 'owned'), 'w').write('x')", harmless=True, moments=("late", "early")),
    "writes-the-working-folder": Deed("open('owned', 'w').write('x')", harmless=True),
    "writes-the-secret": Deed("open(SECRET, 'a').write('x')", harmless=True),
    "removes-the-runs": Deed("shutil.rmtree(RUNS, ignore_errors=True)", harmless=True),
    "forges-findings": Deed(
        "[p.write_text('{}') for p in Path(RUNS).rglob('*.json')]", harmless=True,
    ),
    "moves-the-secret": Deed("os.rename(SECRET, SECRET + '.moved')", harmless=True),
    "reads-the-secret": Deed("open(SECRET).read(); raise RuntimeError('it read ' + SECRET)", r"sandbox refused|denied"),
    "connects": Deed(
        "socket.create_connection(('127.0.0.1', PORT), timeout=2).send(b'secrets')", harmless=True,
        moments=("late", "early"),
    ),
    "asks-a-name-server": Deed("socket.getaddrinfo('example.invalid', 80)", harmless=True),
    "sends-a-datagram": Deed(
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))", harmless=True,
    ),
    "starts-a-program": Deed("subprocess.run(['touch', 'owned'])", harmless=True),
    "writes-on-every-line": Deed(
        "for fd in range(1, 30):\n        try:\n            os.write(fd, b'\\n{\"done\": true}\\n' * 50)\n        "
        "except OSError:\n            pass", harmless=True,
    ),
    "closes-every-file": Deed("os.closerange(0, 100)", r"closed every file|ended|line", harmless=True),
    "prints-a-verdict": Deed("print('\\x1b[2J\\x1b]0;owned\\x07assay: all is well', flush=True)", harmless=True),
    "changes-folder": Deed("os.chdir('/')", harmless=True),
    "patches-assay": Deed(
        "a, s = sys.modules['assay.audit'], sys.modules['assay.standard']\n    "
        "a.Audit.status = property(lambda self: 0)\n    s.judge = a.judgements = lambda *k: ()", harmless=True,
    ),
    "kills-its-parent": Deed("os.kill(os.getppid(), 9)", r"PermissionError|not permitted|ended", harmless=True),
}  # fmt: skip


def cases(base: Undisturbed, seed: int) -> list[Case]:
    made = [
        Case("hostile subject", f"{name}-{moment}", COMMAND, done(deed, moment == "late"))
        for name, deed in DEEDS.items()
        for moment in deed.moments
    ]
    made.append(Case("hostile subject", "onnx-that-never-ends", COMMAND, never_ends))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        made.append(Case("signal to a real audit", number.name, COMMAND, stopped(number)))
    made.append(Case("signal to a real audit", "reader-goes-away", COMMAND, reader_gone))
    return made


def write(room: Room, deed: Deed, late: bool) -> None:
    (room.work / "stranger.py").write_text(
        GOOD.format(
            secret=str(room.path / "outside" / "secret.txt"), home=str(room.path / "home"), port=room.trap,
            runs=str(room.runs), does="    " + deed.code, late=late,
        )
    )  # fmt: skip
    (room.work / "lenient.toml").write_text(LENIENT)


AUDIT = (
    "audit", "stranger.py:build", "--probe", "accuracy", "--probe", "everyday-change", "--standards", "lenient.toml",
)  # fmt: skip


def done(deed: Deed, late: bool) -> Callable[[Room], None]:
    def act(room: Room) -> None:
        write(room, deed, late)
        ended = room.run(command(*AUDIT, *deed.words), limit=180)
        if deed.harmless and ended.status in (0, 3):
            found = [p.stem for p in room.runs.glob("*/findings/*.json")]
            room.look("kept", len(found) == 2, f"a verdict with only {found}")
            room.look("line", not ended.complaints, f"a verdict and {ended.complaints}")
            audits = list(room.runs.glob("*/audit.json"))
            room.look("status", len(audits) == 1, "a verdict without an audit")
        else:
            room.one_line(ended, 2, deed.says)
        if late:
            kept = list(room.runs.glob("*/findings/accuracy.json"))
            whole = len(kept) == 1 and json.loads(kept[0].read_text())["status"] == "asked"
            room.look("kept", whole, "what was found before is gone")

    return act


def never_ends(room: Room) -> None:
    import hostile

    model, data = hostile.onnx_that_never_ends(room.work), hostile.good_data(room.work)
    words = ("audit", model.name, "--data", data.name, "--probe", "accuracy", "--timeout", "8")
    room.one_line(room.run(command(*words), limit=180), 2, r"took more than 8 s")


def stopped(number: signal.Signals) -> Callable[[Room], None]:
    """A real audit, with its child at work on a question, gets a signal; all of it ends."""

    def act(room: Room) -> None:
        write(room, Deed("time.sleep(1000)"), late=True)
        sent = False

        def decide(event: object, before: int, main: int) -> int:
            return 0

        import os
        import threading
        import time

        def send() -> None:
            nonlocal sent
            until = time.monotonic() + 90
            while time.monotonic() < until and not list(room.runs.glob("*/findings/accuracy.json")):
                time.sleep(0.2)
            time.sleep(1)
            from campaign.watch import orphans

            for pid in orphans(None):
                os.kill(pid, number)
            sent = True

        sender = threading.Thread(target=send)
        sender.start()
        ended = room.run(command(*AUDIT, "--timeout", "60"), limit=120, lawful=("tmp",), decide=decide)
        sender.join()
        right = {signal.SIGKILL: (-9,), signal.SIGINT: (130,)}.get(number, (130, 128 + number, -number, 2))
        room.look(
            "status", sent and ended.status in right, f"status {ended.status} after {number.name}: {ended.err[-200:]}"
        )
        if number != signal.SIGKILL:
            room.one_line(ended, right)
            left = [p.name for p in (room.path / "tmp").iterdir()]
            room.look("outside", not left, f"left in TMPDIR: {left}")
        kept = list(room.runs.glob("*/findings/accuracy.json"))
        room.look("kept", len(kept) == 1, "what was found before is gone")

    return act


def reader_gone(room: Room) -> None:
    """Whoever reads the command's output goes away: `assay audit | head -0`."""
    write(room, Deed("pass"), late=False)

    def away() -> None:
        import os

        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)

    ended = room.run(command(*AUDIT), limit=120, prepare=away)
    room.look("status", ended.status not in (0, 1, 3), f"status {ended.status} although nobody read the verdict")
    room.quiet(ended)
    room.look("kept", len(list(room.runs.glob("*/findings/*.json"))) == 2, "what was found is gone")
