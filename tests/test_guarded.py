"""Whatever a model does to its process breaks one question: the others are answered, the status is the parent's, and
nothing is left running. Most children here load no torch: they are a few lines that speak as Assay's own child does."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from assay import cli
from assay.cli.meter import Meter, metered
from assay.cli.printing import complain, write
from assay.engine import child as theirs
from assay.engine.guarded import Child, Died, Limits, command_guarded, handed_over, started
from assay.errors import AssayError
from assay.jobs.audit import guarded
from assay.jobs.audit.guarded import audit_guarded, how_it_died
from assay.jobs.audit.job import Job
from assay.standard import Standard, Standards
from assay.subjects import Source

if TYPE_CHECKING:
    from conftest import Command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is watched here, Linux alone shows")

STRANGERS = """
import ctypes, mmap, os, signal, subprocess, sys, tempfile, threading, time
from pathlib import Path
from assay.engine.child import Line

def begins(what):
    def child():
        line = Line()
        line.send(hello=True)
        Path("hello").touch()
        what()
        line.send(done=True)
        line.leave(0)
    return child

def cut_map():
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        mapped[0]

def grow():
    kept = [b"x" * 2**22 for _ in range(250)]  # a GB, which no machine minds
    time.sleep(1000)

def forge():
    for token in (b"", b"0" * 32, b"half a line "):
        for fd in range(64):
            try:
                os.write(fd, b'\\n' + token + b'{"done": true}\\n{"done": true}')
            except OSError:
                pass

def leave_behind():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.waitpid(middle, 0)

exits = begins(lambda: os._exit(0))
exits_with_one = begins(lambda: os._exit(1))
crashes = begins(lambda: ctypes.string_at(0))
meets_a_cut_file = begins(cut_map)
hangs = begins(lambda: time.sleep(1000))
hangs_in_native_code = begins(lambda: ctypes.PyDLL(None).sleep(1000))
grows = begins(grow)
grows_in_a_grandchild = begins(lambda: subprocess.run([sys.executable, "-c", "import strangers; strangers.grow()"]))
closes_all = begins(lambda: (os.closerange(0, 100), time.sleep(1000)))
forges = begins(forge)
leaves_behind = begins(leave_behind)

def speaks():
    line = Line()
    line.send(out="told ")
    line.send(out="in parts\\n")
    line.send(status=3)
    line.leave(0)

KEYS = ["a" * 32, "b" * 32]

def opened(line, keys=KEYS):
    question = dict(question="?", source="", settings={}, own=[], left_out=None, named=True)
    plan = [{**question, "probe": "first"}, {**question, "probe": "second"}]
    line.send(plan=plan, device="cpu", environment={"torch": "2"})
    subject = dict(name="it", about="", task="Classification", classes=["a"], shape=[1], low=0, high=1, parameters=1)
    subject |= dict(splits={}, data={}, draws=1, differentiable=True, origin=[], fingerprint="f")
    line.send(begun=dict(subject=subject, alarms=[], keys=keys))

def asks(line, place):
    line.send(next=place)
    return line.receive()["ask"]

def answer(probe, key):
    return dict(probe=probe, question="?", source="", settings={}, key=key, status="does not apply", why="of a whim")

def another_each_time():
    line = Line()
    opened(line, [KEYS[0], f"{os.getpid():032d}"])
    asks(line, 0) and os._exit(0)

def opens_once():
    line = Line()
    if (line.folder / "again").exists():
        os._exit(5)
    (line.folder / "again").touch()
    opened(line)
    asks(line, 0) and os._exit(0)

def is_done_too_early():
    line = Line()
    opened(line)
    line.send(done=True)
    line.leave(0)

def answers_something_else():
    line = Line()
    opened(line)
    for place in range(2):
        if asks(line, place):
            line.send(answered=1 - place, answer=answer("second", KEYS[1]))  # not what it was asked
            line.send(answered=place, answer=answer(["first", "second"][place], "c" * 32))
    line.send(done=True)
    line.leave(0)

def hands_over_links():
    line = Line()
    opened(line)
    for place, name in enumerate(["first", "second"]):
        if asks(line, place):
            folder = line.folder / str(place) / "findings"
            folder.mkdir(parents=True)
            os.mkfifo(folder / f"{name}.json") if place else (folder / f"{name}.json").symlink_to("/etc/hostname")
            line.send(answered=place, answer=None)
    line.send(done=True)
    line.leave(0)
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The strangers can be imported by a child, and every process of this test carries a mark."""
    (tmp_path / "strangers.py").write_text(STRANGERS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    return marked(monkeypatch)


def marked(monkeypatch: pytest.MonkeyPatch) -> str:
    mark = uuid.uuid4().hex
    monkeypatch.setenv("ASSAY_MARK", mark)
    return mark


def left_behind(mark: str) -> list[str]:
    """The processes that carry the mark, but for this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"ASSAY_MARK={mark}".encode() in (process / "environ").read_bytes() and int(process.name) != os.getpid():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def limits(seconds: float = 60, memory: float = 4) -> Limits:
    return Limits(seconds=seconds, memory=int(memory * 1e9), sandbox=False)


def heard(child: Child) -> dict[str, Any]:
    while (message := child.hear()) is None:
        pass
    return message


ENDS = {
    "exits": "ended by itself with status 0; take out what ends it",
    "exits_with_one": "ended by itself with status 1; take out what ends it",
    "crashes": r"was ended by signal 11 \(segmentation fault\); some native code is at fault",
    "meets_a_cut_file": r"was ended by signal 7 \(bus error\); a file that it maps may be cut short",
    "hangs": r"took more than 0\.5 s and was ended; give it longer with --timeout",
    "hangs_in_native_code": r"took more than 0\.5 s and was ended; give it longer with --timeout",
    "grows": r"took more than 0\.3 GB of memory and was ended; give it more with --memory",
    "grows_in_a_grandchild": r"took more than 0\.3 GB of memory and was ended; give it more with --memory",
    "closes_all": "closed every file that was open, the line to Assay too; take that out",
}


@pytest.mark.parametrize("how", ENDS)
def test_how_a_child_ended_is_told_and_how_to_mend_it(how: str, mark: str) -> None:
    allowed = limits(seconds=0.5 if "hangs" in how else 60, memory=0.3)
    with handed_over() as folder, started(f"strangers:{how}", {}, allowed, folder) as child:
        assert heard(child) == {"hello": True}
        child.set_clock_back()
        with pytest.raises(Died, match=ENDS[how]) as died:
            heard(child)
    assert not left_behind(mark)
    assert not folder.exists()
    told = how_it_died(died.value, "here"), how_it_died(died.value, "ray")
    assert told[0] == f"the model's process {died.value}"
    if how.startswith("exits"):  # Ray ends whoever asks a cluster that is gone, and no model is to blame
        assert "the model" not in told[1]
        assert "when the cluster is gone" in told[1]
    else:
        assert told[1] == told[0]


def test_only_what_carries_the_token_is_heard(mark: str) -> None:
    with handed_over() as folder, started("strangers:forges", {}, limits(), folder) as child:
        assert [heard(child), heard(child)] == [{"hello": True}, {"done": True}]
        with pytest.raises(Died):
            heard(child)


def test_threads_orphans_and_those_that_left_the_session_end_with_the_child(mark: str) -> None:
    with handed_over() as folder, started("strangers:leaves_behind", {}, limits(), folder) as child:
        assert [heard(child), heard(child)] == [{"hello": True}, {"done": True}]
        assert len(left_behind(mark)) >= 2  # and the child, if it has not ended yet
    assert not left_behind(mark)


def test_threads_that_would_keep_python_from_ending_are_named_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theirs, "GRACE", 0.2)
    before, go_on = set(threading.enumerate()), threading.Event()
    try:
        with ThreadPoolExecutor(2) as pool:
            pool.submit(int).result()
            threading.Thread(target=go_on.wait, daemon=True).start()
            threading.Thread(target=time.sleep, args=(0.05,)).start()
            assert theirs.left_behind(before) == ""
            threading.Thread(target=go_on.wait, name="ticker").start()
            assert re.search(r"left threads running \('ticker'\); join them", theirs.left_behind(before))
            assert theirs.left_behind(set(threading.enumerate())) == ""
            pool.submit(go_on.wait)
            assert re.search(r"\('(ticker', 'ThreadPool.*|ThreadPool.*', 'ticker)'\)", theirs.left_behind(before))
            go_on.set()
            assert theirs.left_behind(before) == ""
    finally:
        go_on.set()


def test_a_whole_command_has_the_status_that_its_child_gives_and_none_without(
    mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_guarded("strangers:speaks", {}, limits(), write, complain) == 3
    assert capsys.readouterr().out == "told in parts\n"
    with pytest.raises(AssayError, match=r"^The model's process ended by itself with status 0; take out"):
        command_guarded("strangers:exits", {}, limits(), write, complain)


ASKED = {
    "another_each_time": ("ended by itself with status 0", "it is another model.*fix its seeds"),
    "opens_once": ("ended by itself with status 0", "ended by itself with status 5"),
    "is_done_too_early": ("said that it was done before it was", "said that it was done before it was"),
    "answers_something_else": ("is not to this question", "is not to this question"),
    "hands_over_links": ("not those of an answer", "not those of an answer"),
}


@pytest.mark.parametrize("how", ASKED)
def test_no_answer_is_taken_that_is_none(how: str, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "ASK", f"strangers:{how}")
    with metered() as meter:
        done = audit_guarded(Job(source=Source("digits-mlp")), limits(), Path("runs"), meter)
    assert done.status == 2
    assert [row.answer.status for row in done.rows] == ["failed", "failed"]
    for row, why in zip(done.rows, ASKED[how], strict=True):
        assert re.search(why, row.answer.why)
    assert json.loads((Path("runs") / done.folder.name / "audit.json").read_text())["status"] == 2  # type: ignore[union-attr]
    assert not left_behind(mark)


HANGS = """
from assay import cli
from assay.jobs.audit import guarded
guarded.ASK = "strangers:hangs"
cli.main()
"""


@pytest.mark.parametrize(("sent", "status"), [("SIGINT", 130), ("SIGTERM", 130), ("SIGKILL", -9)])
def test_a_parent_that_is_stopped_takes_its_child_along(sent: str, status: int, mark: str, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HANGS, "audit"], stderr=subprocess.PIPE, text=True) as parent:
        until = time.monotonic() + 60
        while not Path("hello").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert len(left_behind(mark)) == 2
        parent.send_signal(getattr(signal, sent))
        _, said = parent.communicate(timeout=60)
    assert parent.returncode == status
    if status == 130:
        assert said == "assay: stopped; run the same command again to go on where it was\n"
    until = time.monotonic() + 10
    while left_behind(mark) and time.monotonic() < until:  # the kernel ends what a killed parent leaves
        time.sleep(0.05)
    assert not left_behind(mark)


def test_what_a_killed_parent_left_in_the_temporary_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "assay-gone").mkdir()
    (tmp_path / "assay-gone" / "in-use").touch()
    with handed_over() as one, handed_over() as two:
        assert sorted(tmp_path.iterdir()) == sorted([one, two])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("budget", "seconds"), [("quick", 1800), ("standard", 14400), ("full", 172800)])
def test_limits_have_defaults_by_budget_and_are_numbers_above_nothing(budget: str, seconds: float) -> None:
    assert Limits.of(budget, None, None, True).seconds == seconds
    assert Limits.of(budget, 2.5, 1.5, False) == Limits(seconds=2.5, memory=1_500_000_000, sandbox=False)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(AssayError, match=r"--timeout .* is no limit; give a number above 0"):
            Limits.of(budget, wrong, None, True)


def test_a_silent_question_says_every_ten_seconds_how_long_it_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now, file = 100.0, io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    meter = Meter(Console(file=file), None, None)
    meter.doing("attacking")
    for second in range(25):
        now = 100.0 + second
        meter.alive(second)
    assert file.getvalue().splitlines() == ["attacking (3.0 s so far)", "attacking (14 s so far)"]


def test_a_job_reads_back_as_it_was() -> None:
    job = Job(
        source=Source("a.py:b", bounds=((0.0, 1.0), 2.0), mean=(0.5,), allow_pickle=True),
        probes=("accuracy",),
        settings={"radius": "8/255"},
        standards=Standards({"accuracy": (Standard(at_least=0.5),)}, {"accuracy": {"samples": 3}}),
    )
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    assert Job.from_json(json.loads(json.dumps(Job(source=Source("x")).to_json()))) == Job(source=Source("x"))


# With torch, a real model and real questions.

HOSTILE = """
import asyncio, os, signal, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
from assay import Subject

draw = torch.Generator().manual_seed(0)
x, y = torch.rand(60, 1, 8, 8, generator=draw), torch.arange(60) % 3

def throw(e):
    raise e

def sleeper(daemon):
    threading.Thread(target=time.sleep, args=(1000,), name="sleeper", daemon=daemon).start()

def pool():  # never shut down, and no part of what is fingerprinted
    return vars(os).setdefault("pool", ThreadPoolExecutor(2))

DOES = {
    "accuracy": lambda: (pool().submit(int).result(), sleeper(daemon=True)),  # which is nobody's fault
    "how_often_is_the_set_right": lambda: sleeper(daemon=False),
    "confidence": lambda: os._exit(0),
    "everyday_change": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "worst_case_accuracy": lambda: sys.exit(0),
    "is_it_sure_far_away": lambda: throw(asyncio.CancelledError()),
    "one_change_for_all": lambda: throw(KeyboardInterrupt()),
    "is_the_number_real": lambda: time.sleep(1000),
}

class Hostile(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        with torch.no_grad():
            self.inner[1].weight.copy_(torch.rand(3, 64, generator=draw))
            self.inner[1].bias.zero_()

    def forward(self, x):
        frame = sys._getframe()
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.startswith("assay.probes."):
                DOES.get(module.rpartition(".")[2], lambda: None)()
                break
            frame = frame.f_back
        return self.inner(x)

def build():
    return Subject.classifier(Hostile(), (x, y), name="hostile", classes=["a", "b", "c"])

def attack():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    subprocess.Popen(["sleep", "1000"])
    print("forged", flush=True)
    return build()

def leave():
    os._exit(0)

def read():
    return open("/etc/passwd").read()
"""
PROBES = (
    "confidence",
    "how-often-is-the-set-right",
    "accuracy",
    "everyday-change",
    "worst-case-accuracy",
    "is-it-sure-far-away",
    "one-change-for-all",
    "is-the-number-real",
)
WHY = {
    "confidence": "the model's process ended by itself with status 0",
    "how-often-is-the-set-right": "the model left threads running ('sleeper'",
    "everyday-change": "the model's process was ended by signal 11 (segmentation fault)",
    "worst-case-accuracy": "the subject's code called sys.exit(0)",
    "is-it-sure-far-away": "the subject's code raised CancelledError",
    "one-change-for-all": "the subject's code raised KeyboardInterrupt",
    "is-the-number-real": "the model's process took more than 10 s and was ended",
}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.CompletedProcess[str], str]]:
    """An audit that was attacked from all sides, in its folder, with its mark."""
    folder, patch = tmp_path_factory.mktemp("attacked"), pytest.MonkeyPatch()
    mark = marked(patch)
    (folder / "subject.py").write_text(HOSTILE)
    (folder / "assay.toml").write_text("[standards.accuracy]\nat_least = 0\n")
    asked = [word for probe in PROBES for word in ("--probe", probe)]
    code = (
        "import atexit, sys\natexit.register(lambda: print('torch' in sys.modules))\nfrom assay.cli import main\nmain()"
    )
    words = ["audit", "subject.py:attack", *asked, "--standards", "assay.toml", "--timeout", "10"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    yield folder, done, mark
    patch.undo()


Attacked = tuple[Path, "subprocess.CompletedProcess[str]", str]


def test_each_attack_breaks_one_question_and_the_others_are_answered(attacked: Attacked) -> None:
    folder, done, mark = attacked
    assert done.returncode == 2, done
    (stored,) = folder.glob("runs/*/audit.json")
    rows = {row["probe"]: row for row in json.loads(stored.read_text())["rows"]}
    assert tuple(rows) == PROBES
    for probe, why in WHY.items():
        assert rows[probe]["status"] == "failed"
        assert rows[probe]["why"].startswith(why)
        (line,) = (each for each in done.stderr.splitlines() if each.startswith(f"assay: {probe} was not answered: "))
        assert why in line
    assert rows["accuracy"]["status"] == "asked"
    assert rows["accuracy"]["verdict"] == "pass"
    assert len(list(folder.glob("runs/*/findings/accuracy.json"))) == 1
    assert not left_behind(mark)
    assert "Traceback" not in done.stderr


def test_the_parent_loads_no_torch_and_prints_nothing_of_the_models(attacked: Attacked) -> None:
    _, done, _ = attacked
    *_, report, torch_in_parent = done.stdout.splitlines()
    assert torch_in_parent == "False"
    assert Path(report).name == "report.html"
    assert "forged" in done.stderr
    assert "forged" not in done.stdout


def test_the_numbers_are_those_of_an_audit_in_this_process(attacked: Attacked) -> None:
    import assay as package

    folder, _, _ = attacked
    namespace: dict[str, Any] = {}
    exec(compile(HOSTILE, "hostile.py", "exec"), namespace)
    here = package.audit(namespace["build"](), probes=["accuracy"]).rows[0].answer.finding
    (stored,) = folder.glob("runs/*/audit.json")
    there = next(row for row in json.loads(stored.read_text())["rows"] if row["probe"] == "accuracy")["measures"]
    assert here is not None
    assert [m["value"] for m in there] == pytest.approx([m.value for m in here.measures])


def test_what_the_sandbox_held_stands_in_the_audit(attacked: Attacked) -> None:
    folder, done, _ = attacked
    (stored,) = folder.glob("runs/*/audit.json")
    kept = json.loads(stored.read_text())
    told = kept["environment"]["sandbox"]
    assert "network" in told
    assert {row["environment"]["sandbox"] for row in kept["rows"]} == {told}
    assert ("not held" in told) == ("what did not hold" in done.stderr)


@pytest.fixture
def guarded_assay(assay: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The console script as users have it: models in a child."""
    main = cli.main
    monkeypatch.setattr(cli, "main", lambda guarded: main())
    Path("subject.py").write_text(HOSTILE)
    return assay


def test_a_model_that_ends_its_process_at_the_door_is_bad_input(guarded_assay: Command) -> None:
    ended = guarded_assay("audit", "subject.py:leave", "--probe", "accuracy")
    assert (ended.status, ended.out) == (2, "")
    assert ended.complaints == [
        "assay: 'subject.py:leave' could not be opened: the model's process ended by itself with status 0; take out "
        "what ends it, such as os._exit"
    ]
    assert not Path("runs").exists()


def test_what_comes_to_nothing_leaves_no_folder_behind(guarded_assay: Command) -> None:
    Path("there").mkdir()
    ended = guarded_assay("rank", "nowhere", "--out", "there/a/b")
    assert (ended.status, ended.out) == (2, "")
    assert ended.complaints == ["assay: There is no folder nowhere; give a folder of images with a number each."]
    assert not any(Path("there").iterdir())


def test_a_model_that_reads_elsewhere_is_told_which_file_was_refused(guarded_assay: Command) -> None:
    ended = guarded_assay("explain", "subject.py:read")
    assert (ended.status, ended.out) == (2, "")
    if "what did not hold" in ended.err:
        pytest.skip(ended.err.splitlines()[0])
    assert "refused /etc/passwd" in ended.complaints[-1]
    assert "--no-sandbox" in ended.complaints[-1]
