"""The fault campaign in short (`tools/faults.py` runs all of it), and that its watch sees what it must see."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


def python(*words: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it forks, and this one may have threads."""
    path = os.pathsep.join([str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=seconds, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    reason = python("-c", "from campaign import watch; print(watch.why_not() or '')").stdout.strip()
    if reason:
        pytest.skip(reason)


def test_a_fault_of_each_of_the_quicker_kinds() -> None:
    done = python(str(TOOLS / "faults.py"), "--quick", "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    held = re.search(r"^(\d+) of (\d+) held$", done.stdout, re.M)
    assert held is not None
    assert held[1] == held[2]
    assert int(held[1]) >= 18


ROOM = """
import ctypes, json, os, socket, subprocess, sys, time
from pathlib import Path
from campaign.room import Room

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
with socket.create_server(("127.0.0.1", 0)) as trap:
    port = trap.getsockname()[1]
    room = Room(Path(sys.argv[1]) / "room", port)
    def act():
        {deed}
    ended = room.run(act, limit={limit}, decide={decide})
    room.quiet(ended)
    print(json.dumps([ended.status, sorted({{column for column, _ in room.faults}}), len(ended.writes)]))
"""

DEEDS = {
    "nothing": ("pass", 0, []),
    "a verdict": ("sys.exit(3)", 3, []),
    "a write in the run": ("os.makedirs('runs/a'); open('runs/a/b', 'w').write('x')", 0, []),
    "a write at home": ("open(os.path.join(os.environ['HOME'], 'x'), 'w').write('x')", 0, ["outside"]),
    "a write that is undone": ("p = room.path.with_name('x'); p.write_text('x'); p.unlink()", 0, ["outside"]),
    "a secret changed": ("open('../outside/secret.txt', 'a').write('x')", 0, ["outside"]),
    "a child left behind": ("subprocess.Popen(['sleep', '60'])", 0, ["left"]),
    "an orphan in a session of its own": (
        "if os.fork() == 0:\n            os.setsid()\n            if os.fork(): os._exit(0)\n            time.sleep(9)",
        0, ["left"],
    ),
    "a connection": ("socket.create_connection(('127.0.0.1', port))", 0, ["request"]),
    "a hang": ("time.sleep(60)", -14, ["status"]),
    "a traceback": ("1 / 0", 71, ["line"]),
    "an escape": ("print('\\x1b[2J')", 0, ["line"]),
    "a stray line": ("print('libpng warning', file=sys.stderr)", 0, ["line"]),
}  # fmt: skip


def in_a_room(folder: Path, deed: str, decide: str = "lambda event, before, main: 0") -> tuple[int, list[str], int]:
    limit = 1 if deed == DEEDS["a hang"][0] else 5  # which is waited out
    done = python("-c", ROOM.format(deed=deed, decide=decide, limit=limit), str(folder), seconds=60)
    assert done.returncode == 0, done.stderr
    told: Any = json.loads(done.stdout)
    return told[0], told[1], told[2]


@pytest.mark.parametrize("deed", DEEDS)
def test_the_watch_sees(deed: str, tmp_path: Path) -> None:
    code, status, faults = DEEDS[deed]
    assert in_a_room(tmp_path, code)[:2] == (status, faults)


WRITES = (
    "os.mkdir('runs'); f = open('runs/x', 'wb', 0); f.write(b'x'); os.fsync(f.fileno()); os.rename('runs/x', 'runs/y')"
)


def test_the_watch_counts_every_write_and_can_refuse_or_kill_at_each(tmp_path: Path) -> None:
    assert in_a_room(tmp_path / "a", WRITES) == (0, [], 5)
    assert in_a_room(tmp_path / "b", WRITES, "lambda event, before, main: 28 if before == 2 else 0")[::2] == (71, 3)
    assert in_a_room(tmp_path / "c", WRITES, "lambda event, before, main: os.kill(main, 9) or -1") == (-9, [], 1)
