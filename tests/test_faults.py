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
    for place, (deed, decide, limit) in enumerate(json.loads(sys.argv[2])):
        folder = Path(sys.argv[1]) / str(place)
        folder.mkdir()
        room = Room(folder / "room", port)
        exec(f"def act():\\n        {deed}")
        ended = room.run(act, limit=limit, decide=eval(decide))
        room.quiet(ended)
        told = ended.status, sorted({column for column, _ in room.faults}), len(ended.writes)
        print(json.dumps(told), flush=True)
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


def in_rooms(folder: Path, *deeds: tuple[str, str, float]) -> list[tuple[int, list[str], int]]:
    """What the watch tells of each deed, with what it decides and its limit in seconds, in a room of its own."""
    done = python("-c", ROOM, str(folder), json.dumps(deeds), seconds=120)
    assert done.returncode == 0, done.stderr
    told: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    return [(status, faults, writes) for status, faults, writes in told]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[str]]]:
    """One process for all of them, as the campaign has: what one leaves behind must not be laid to the next."""
    leave = "lambda event, before, main: 0"
    deeds = [(code, leave, 1 if name == "a hang" else 5) for name, (code, *_) in DEEDS.items()]  # which is waited out
    told = in_rooms(tmp_path_factory.mktemp("rooms"), *deeds)
    return {name: (status, faults) for name, (status, faults, _) in zip(DEEDS, told, strict=True)}


@pytest.mark.parametrize("deed", DEEDS)
def test_the_watch_sees(deed: str, seen: dict[str, tuple[int, list[str]]]) -> None:
    _, status, faults = DEEDS[deed]
    assert seen[deed] == (status, faults)


WRITES = (
    "os.mkdir('runs'); f = open('runs/x', 'wb', 0); f.write(b'x'); os.fsync(f.fileno()); os.rename('runs/x', 'runs/y')"
)


def test_the_watch_counts_every_write_and_can_refuse_or_kill_at_each(tmp_path: Path) -> None:
    decisions = (
        "lambda event, before, main: 0",
        "lambda event, before, main: 28 if before == 2 else 0",
        "lambda event, before, main: os.kill(main, 9) or -1",
    )
    whole, refused, killed = in_rooms(tmp_path, *((WRITES, decide, 5) for decide in decisions))
    assert whole == (0, [], 5)
    assert refused[::2] == (71, 3)
    assert killed == (-9, [], 1)
