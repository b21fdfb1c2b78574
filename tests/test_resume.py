"""Killed at any moment and started again, an audit goes on where it was and ends with the same numbers.

A process that has already loaded torch is forked for each attempt, so that a kill costs little and falls into the
audit and not into the import. Each attempt is a process of its own with the real command line, ended by SIGKILL. Its
figures are written as the numbers of their views: the same files, and no time spent on drawing what nobody looks at.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

SUBJECT = """
import torch
from assay import Subject

def build():
    draw = torch.Generator().manual_seed(0)
    shape = (torch.rand(3, 1, 8, 8, generator=draw) < 0.5).float()
    y = torch.arange(90) % 3
    x = (0.3 + 0.4 * shape[y] + 0.45 * torch.randn(90, 1, 8, 8, generator=draw)).clamp(0, 1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    with torch.no_grad():
        model[1].weight.copy_((shape - shape.mean(0)).flatten(1))
        model[1].bias.zero_()
    return Subject.classifier(model, (x, y), name="three shapes")
"""

FORKER = """
import dataclasses, gc, json, os, signal, sys, time
import torch
import torch.fx.experimental.symbolic_shapes  # the first gradient loads it, which takes a second
torch.set_num_threads(1)
from assay import cli, shelf
from assay.report import page

page.draw = lambda view, key: f"<svg>{key}: {json.dumps(dataclasses.asdict(view), default=str)}</svg>"
for probe in PROBES:
    shelf.load("probes", probe)
for remedy in shelf.names("remedies"):  # what an audit offers where something fails
    shelf.load("remedies", remedy)

back = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

def command(words, kill_at_rename=None):
    os.dup2(os.open("stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = ["assay", *words]
    renamed, replace = [], os.replace

    def counted(old, new):
        renamed.append(str(new))
        if len(renamed) == kill_at_rename:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(old, new)
        with open("renamed.json", "w") as file:
            json.dump(renamed, file)

    os.replace = counted
    cli.main(guarded=False)

try:
    # Loads what an audit needs, fonts and lazy parts of torch too. It takes no gradient: where torch sees a GPU, the
    # first one starts threads, and no gradient can be taken in a fork of a process that has them.
    command(json.loads(sys.stdin.readline()))
except SystemExit as e:
    print(e.code, file=back)
gc.collect()
gc.freeze()  # or each fork looks through all of torch again, and copies it
for line in sys.stdin:
    words, kill_after, kill_at_rename = json.loads(line)
    pid = os.fork()
    if pid == 0:
        command(words, kill_at_rename)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)  # not yet waited for, so the number is still its own
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=back)
"""


PROBES = ("accuracy", "everyday-change", "worst-case-accuracy")
AUDIT = (
    "audit",
    "subject.py:build",
    "--standards",
    "assay.toml",
    *(word for probe in PROBES for word in ("--probe", probe)),
)


class Forker:
    """Starts the command line in a fork, kills it after a while, says how it ended."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.to: IO[str] = process.stdin
        self.back: IO[str] = process.stdout
        self.folder = folder
        self._send(("audit", "subject.py:build", "--probe", "accuracy", "--out", "warm"))

    def _send(self, what: object) -> int:
        self.to.write(json.dumps(what) + "\n")
        self.to.flush()
        return int(self.back.readline())

    def run(self, *words: str, kill_after: float | None = None, kill_at_rename: int | None = None) -> int:
        """Its status; `kill_after` is in seconds, `kill_at_rename` counts the files that it had written."""
        return self._send((words, kill_after, kill_at_rename))

    @property
    def said(self) -> str:
        return (self.folder / "stderr.txt").read_text()


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    folder = tmp_path_factory.mktemp("resume")
    (folder / "subject.py").write_text(SUBJECT)
    (folder / "assay.toml").write_text(
        "[probes.worst-case-accuracy]\nsteps = 4\n"
        "[probes.everyday-change]\ncorruptions = ['gaussian-noise', 'contrast']\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"PROBES = {PROBES}\n{FORKER}"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Forker(process, folder)
        assert process.stdin is not None
        process.stdin.close()


def measures(runs: Path) -> dict[str, Any]:
    """What was measured, of the one run that stands in the folder."""
    found = list(runs.glob("*/audit.json"))
    assert len(found) == 1, found
    stored = json.loads(found[0].read_text())
    kept = ("status", "verdict", "key", "says", "measures")
    return {row["probe"]: tuple(row[k] for k in kept) for row in stored["rows"]}


def files(runs: Path) -> dict[str, Any]:
    """Every file of the run, with the content of those that do not say when they were written."""
    (folder,) = runs.iterdir()
    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("[!.]*") if path.is_file()}


def content(path: Path) -> Any:
    if path.suffix == ".safetensors":  # the order of its header is any
        return {name: array.tobytes() for name, array in load_file(path).items()}
    return path.read_bytes() if path.suffix in (".parquet", ".svg") else None


@pytest.fixture(scope="module")
def undisturbed(forker: Forker) -> tuple[float, list[Path]]:
    """How long an undisturbed run takes, which stands in its folder, and the files that it put in their place."""
    start = time.perf_counter()
    assert forker.run(*AUDIT, "--out", "undisturbed") in (0, 1, 3), forker.said
    assert "known from before" not in forker.said
    took = time.perf_counter() - start
    return took, [Path(path) for path in json.loads((forker.folder / "renamed.json").read_text())]


def test_kills_change_nothing(forker: Forker, undisturbed: tuple[float, list[Path]]) -> None:
    seconds, renamed = undisturbed
    wanted, whole = measures(forker.folder / "undisturbed"), files(forker.folder / "undisturbed")
    assert set(wanted) == set(PROBES)
    assert {row[0] for row in wanted.values()} == {"asked"}

    # Four kills fall where a file is put in its place: before the first answer and before the last, at the first file
    # of the report and at its last. After each the command is killed once more, by the clock.
    first, _, third = (k for k, path in enumerate(renamed, 1) if path.parent.name == "findings")
    kept, kills = [], 0
    for trial, at in enumerate((first, third, third + 1, len(renamed))):
        out = forker.folder / f"killed-{trial}"
        assert forker.run(*AUDIT, "--out", out.name, kill_at_rename=at) == -signal.SIGKILL
        kept.append(len(list(out.glob("*/findings/*.json"))))
        assert not list(out.glob("*/audit.json"))
        kills += forker.run(*AUDIT, "--out", out.name, kill_after=seconds * (3 - trial) / 10) == -signal.SIGKILL
        assert forker.run(*AUDIT, "--out", out.name) in (0, 1, 3), forker.said
        assert measures(out) == wanted
        assert files(out) == whole
    assert kept == [0, 2, 3, 3]
    assert kills, "the clock never fell into a run"


@pytest.mark.usefixtures("undisturbed")
def test_a_finished_audit_asks_nothing_again(forker: Forker) -> None:
    out = forker.folder / "undisturbed"
    findings = sorted(out.glob("*/findings/*.json"))
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in findings}
    assert len(before) == len(PROBES)
    wanted = measures(out)
    forker.run(*AUDIT, "--out", out.name)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in findings} == before
    assert forker.said.count("known from before") == len(PROBES)
    assert measures(out) == wanted


def test_an_answer_is_carried_into_an_audit_that_asks_more(forker: Forker) -> None:
    forker.run("ask", "accuracy", "subject.py:build", "--out", "more")
    assert "known from before" not in forker.said
    forker.run("audit", "subject.py:build", "--probe", "accuracy", "--probe", PROBES[1], "--out", "more")
    assert "accuracy: pass (known from before)" in forker.said
    assert forker.said.count("known from before") == 1
    assert len(list((forker.folder / "more").glob("*/findings/accuracy.json"))) == 2
