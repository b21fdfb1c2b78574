"""Audits with a time limit as they run: they end in time, go on from what is known, and leave a report when stopped.

The child here loads no torch: it is a few lines that speak as Assay's own does, about a model of a known latency.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import assay as package
from assay import store
from assay.audit import Described, Question, open_audit
from assay.cli.meter import metered
from assay.engine.guarded import Died, Limits
from assay.errors import AssayError
from assay.finding import Finding, Measure
from assay.jobs.audit import Begun, Record, guarded, rounds
from assay.jobs.audit.guarded import audit_guarded
from assay.jobs.audit.job import Job, continued
from assay.jobs.verify import verify
from assay.methods.uncertainty import sequences
from assay.probe import Answer, configure
from assay.standard import Standard, Standards
from assay.subjects import Source

if TYPE_CHECKING:
    from conftest import Command

NONE = Standards()
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is watched here, Linux alone shows")

CHILD = """
import time
import numpy as np
from pathlib import Path
from assay.engine.child import Line
from assay.finding import Finding, Measure
from assay.probe import Answer
from assay.store import save_answer

NAMES, TRUTH = ["accuracy", "everyday-change"], {"accuracy": 0.95, "everyday-change": 0.56}
HITS = {name: np.random.default_rng(3).random(4000) < truth for name, truth in TRUTH.items()}

def speaks(hangs=None, breaks=None):
    line = Line()
    own = [dict(measure=None, at_least=0.5, at_most=None)]
    question = dict(question="?", source="", settings={}, own=own, left_out=None, named=True)
    line.send(plan=[{**question, "probe": n} for n in NAMES], device="cpu", environment={"torch": "2"})
    subject = dict(name="it", about="", task="Classification", classes=["a"], shape=[1], low=0, high=1, parameters=1)
    subject |= dict(splits={"test": 4000}, data={}, draws=1, differentiable=True, origin=[], fingerprint="f")
    keys = ["a" * 32, "b" * 32]
    line.send(begun=dict(subject=subject, alarms=[], keys=keys, applies=[True, True], pace=1e-6))
    while True:
        line.send(ready=True)
        told = line.receive()
        if told["ask"] is None:
            break
        place, n = told["ask"], told["budget"]["inputs"]
        with open("asked", "a") as file:
            file.write(f"{NAMES[place]} {n}\\n")
        began = time.monotonic()
        if NAMES[place] == hangs:
            time.sleep(1000)
        time.sleep(1e-3 * n)
        measure = Measure.proportion("share", HITS[NAMES[place]][:n], better="higher")
        answer = Answer(probe=NAMES[place], question="?", source="", settings={}, key=keys[place], status="asked",
                        finding=Finding(says="so", measures=(measure,)), seconds=time.monotonic() - began)
        folder = line.folder / str(place)
        save_answer(folder, answer)
        line.send(answered=place, answer=None, drawn="inputs" if n < 4000 else "")
    line.send(done=True)
    line.leave(0)

def hangs():
    speaks(hangs="everyday-change")


def second_is_lost():
    import assay.store
    global save_answer
    counts = {}
    def save(folder, answer):
        counts[answer.probe] = counts.get(answer.probe, 0) + 1
        if counts[answer.probe] < 2:
            assay.store.save_answer(folder, answer)
    save_answer = save
    speaks()
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None) -> None:
    """It can be imported, and what a report takes is known: drawings are left out."""
    (tmp_path / "timekeeper.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rounds, "WRITING", (0.2, 0.05))
    monkeypatch.setattr(rounds, "contention", lambda: 1.0)
    monkeypatch.setattr(guarded, "ASK", "timekeeper:speaks")


def audited(text: str, standards: Standards = NONE) -> Any:
    limits = Limits(seconds=60, memory=None, sandbox=False)
    with metered() as meter:
        job = Job(source=Source("digits-mlp"), budget=text, standards=standards)
        return audit_guarded(job, limits, Path("runs"), meter)


def test_it_asks_until_verdicts_are_settled_and_keeps_each_look(child: None) -> None:
    done = audited("60s")
    assert [row.verdict for row in done.rows] == ["pass", "pass"]
    asked = [line.split() for line in Path("asked").read_text().splitlines()]
    assert [name for name, _ in asked][:2] == ["accuracy", "everyday-change"]
    assert {name for name, _ in asked[2:]} == {"everyday-change"}  # which was not settled by the first look
    stored = open_audit(done.folder)
    looks = stored.row("everyday-change").answer.looks
    assert [look.inputs for look in looks] == [int(n) for name, n in asked if name == "everyday-change"]
    assert len(looks) >= 2
    widths = [look.high - look.low for look in looks if look.high is not None and look.low is not None]
    assert widths == sorted(widths, reverse=True)
    assert [look.at for look in looks] == sorted(look.at for look in looks)
    (curve,) = stored.row("everyday-change").answer.finding.views  # type: ignore[union-attr]
    assert curve.lines[0].x == tuple(look.at for look in looks)  # type: ignore[union-attr]
    assert curve.lines[0].high == tuple(look.high for look in looks)  # type: ignore[union-attr]
    told = json.loads((done.folder / "audit.json").read_text())
    assert told["budget"]["seconds"] == 60
    assert len(told["rows"][1]["looks"]) == len(looks)
    assert "60s: more inputs and steps, round by round" in (done.folder / "card.md").read_text()
    assert verify(done.folder).broken == ()
    again = audited("50s")  # another time is the same question: nothing is left to ask
    assert again.folder == done.folder
    assert Path("asked").read_text().count("\n") == len(asked)


@pytest.mark.parametrize(
    ("how", "says"),
    [("applies=[True]", "tells of 1 questions of 2"), ("pace=-1.0", "takes -1.0 s an input")],
)
def test_what_a_child_says_of_its_model_is_not_believed_blindly(child: None, how: str, says: str) -> None:
    given = "applies=[True, True]" if "applies" in how else "pace=1e-6"
    Path("timekeeper.py").write_text(CHILD.replace(given, how))
    with pytest.raises(AssayError, match=says):
        audited("60s")


def test_it_ends_in_time_though_a_question_hangs_and_keeps_what_was_known(
    child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "ASK", "timekeeper:hangs")
    monkeypatch.setattr(guarded, "LATE", 0.2)
    began = time.monotonic()
    done = audited("12s")
    assert time.monotonic() - began < 15
    assert [row.verdict for row in done.rows] == ["pass", "cannot tell"]  # it fits the subject and has a limit
    assert done.status == 3
    assert done.rows[1].answer.why.startswith("it does not fit into 12s: it took more time than there was; assay audit")
    monkeypatch.setattr(guarded, "ASK", "timekeeper:speaks")
    more = audited("40s")
    assert more.folder == done.folder
    assert [row.verdict for row in more.rows] == ["pass", "pass"]
    assert Path("asked").read_text().count("accuracy") == 1


STOPPED = """
from assay import cli
from assay.jobs.audit import guarded, rounds
from assay.report import page
page.draw = lambda view, key: f"<svg><!-- {view.name} --></svg>"
guarded.ASK = "timekeeper:hangs"
cli.main()
"""


@pytest.mark.parametrize(("sent", "status"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_stopped_or_killed_it_leaves_a_report_of_what_is_known(child: None, sent: str, status: int) -> None:
    words = [sys.executable, "-c", STOPPED, "audit", "digits-mlp", "--budget", "10m", "--no-sandbox"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as parent:
        until = time.monotonic() + 60
        while not list(Path("runs").glob("*/report.html")) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)  # the head is written after the report
        parent.send_signal(getattr(signal, sent))
        _, said = parent.communicate(timeout=60)
    assert parent.returncode == status
    (folder,) = Path("runs").iterdir()
    known = open_audit(folder)
    assert [row.verdict for row in known.rows] == ["pass", "cannot tell"]
    assert not verify(folder).broken
    why = {"SIGINT": "it was not asked: the audit was stopped before", "SIGKILL": "it was not asked yet"}[sent]
    assert known.rows[1].answer.why.startswith(why)
    if sent == "SIGINT":
        goes_on = f"{folder}/report.html tells what is known; assay audit {folder} --more 10m goes on from there"
        assert goes_on in said.splitlines()
        assert "stopped; run the same command again" in said


def test_a_run_goes_on_with_more_time_and_no_code_is_taken_from_it(
    assay: Command, undrawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "contention", lambda: 1.0)
    monkeypatch.setattr(rounds.Rounds, "_planned", lambda self, place: self.may[0])
    monkeypatch.setattr(sequences, "FIRST", 12)  # so few settle nothing, however many of them are right
    words = ("audit", "digits-mlp", "--budget", "40s", "--probe", "accuracy")
    with monkeypatch.context() as patch:
        patch.setattr(rounds.Rounds, "_again", lambda self, place, row: ())  # as if no further look fitted
        folder = Path(assay(*words).last).parent
    first = open_audit(folder).row("accuracy")
    assert (first.verdict, [look.inputs for look in first.answer.looks]) == ("cannot tell", [12])
    more = assay("audit", str(folder), "--more", "60s")
    assert Path(more.last).parent.resolve() == folder.resolve()
    after = open_audit(folder).row("accuracy")
    assert after.verdict == "pass"
    assert after.answer.looks[0] == first.answer.looks[0]
    assert len(after.answer.looks) >= 2
    head = json.loads((folder / "audit.json").read_text())
    (folder / "audit.json").write_text(json.dumps({**head, "source": ["mine.py:build"]}))
    refused = assay("audit", str(folder), "--more", "30m")
    assert refused.status == 2
    assert "No code is taken from a run: type what was audited, and it goes on, with the same --stand" in refused.err
    assert "assay audit mine.py:build --budget 30m --probe accuracy --seed 0" in refused.err
    budget = {**head["budget"], "inputs": 300}
    (folder / "audit.json").write_text(json.dumps({**head, "source": ["mine.py:build"], "budget": budget}))
    assert "--budget 30m --inputs 300 --probe accuracy" in assay("audit", str(folder), "--more", "30m").err
    (folder / "audit.json").write_text(json.dumps({**head, "source": []}))
    refused = assay("audit", str(folder), "--more", "30m")
    assert "made in Python and goes on there, with the same standards: assay.audit(subject, probes=" in refused.err
    (folder / "audit.json").write_text(json.dumps({**head, "budget": {"name": "quick"}}))
    refused = assay("audit", str(folder), "--more", "30m")
    assert "was made with --budget quick, which asks once; --more goes on with a run that had a time" in refused.err


@pytest.mark.parametrize(("seconds", "late"), [(5.0, True), (0.5, False)])
def test_a_question_that_took_too_long_is_not_said_to_have_ended_the_process(
    monkeypatch: pytest.MonkeyPatch, seconds: float, late: bool
) -> None:
    job, limits = Job(source=Source("digits-mlp"), budget="60s"), Limits(seconds=60, memory=None, sandbox=False)
    meter: Any = SimpleNamespace(doing=lambda what: None)
    asking: Any = guarded._Asking(job, limits, Path("runs"), meter, Path("."), time.monotonic())
    asking.turn, asking.record, asking.opened = SimpleNamespace(most=2.0), SimpleNamespace(rows={0: None}), 9.0
    asking.rounds = SimpleNamespace(left=3.0, seconds=60.0, reopening=0.0, late=None, leave=lambda place: None)

    def ends(child: object, bars: object) -> None:
        asking.place = 0
        raise Died("was ended")

    monkeypatch.setattr(guarded, "started", lambda *given: nullcontext(SimpleNamespace(seconds=seconds)))
    monkeypatch.setattr(asking, "_listen", ends)
    asking.go_on()
    assert (asking.rounds.late, asking.rounds.reopening, asking.over) == (late, 9.0, True)


def kept(
    settings: dict[str, dict[str, Any]], source: tuple[str, ...] = ("mine.py:build",), standards: Standards = NONE
) -> Path:
    """A run of these questions that had a time, as if it was just made."""
    asked = [Question(probe=name, question="?", source="", settings=each, own=()) for name, each in settings.items()]
    keys = tuple(f"{place:032x}" for place, _ in enumerate(asked))
    told = {"name": "it", "about": "", "task": "Classification", "classes": ["a"], "shape": [1], "low": 0, "high": 1}
    told |= {"parameters": 1, "splits": {"test": 9}, "data": {}, "draws": 1, "differentiable": True, "origin": []}
    subject = Described.from_json(told | {"fingerprint": "f"})
    begun = Begun(subject=subject, alarms=(), keys=keys)
    record = Record(
        asked, begun, standards=standards, budget=rounds.budget_of("60s"), seed=0, device="cpu", out=Path("runs"),
        source=source,
    )  # fmt: skip
    finding = Finding(says="so", measures=(Measure.proportion("share", [True] * 9, better="higher"),))
    for place, question in enumerate(asked):
        answer = question.unanswered(keys[place], "", 0.0)
        record.take(place, dataclasses.replace(answer, status="asked", finding=finding))
    folder = record.conclude({}).folder
    assert folder is not None
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_that_somebody_changed_does_not_go_on_and_keeps_the_evidence(here: None) -> None:
    folder = kept({"accuracy": {}}, source=("digits-mlp",))
    assert continued(folder, "30m")[0].source == Source("digits-mlp")
    path, before = folder / "findings" / "accuracy.json", (folder / "audit.json").read_bytes()
    told = json.loads(path.read_text())
    told["finding"]["measures"][0]["value"] = 0.95
    path.write_text(json.dumps(told))
    broken = verify(folder).broken
    with pytest.raises(AssayError, match="findings/accuracy.json was changed after audit.json was written; `assay ver"):
        continued(folder, "30m")
    assert (folder / "audit.json").read_bytes() == before
    assert verify(folder).broken == broken


def test_what_has_to_be_typed_again_is_typed_with_its_settings(here: None) -> None:
    def told(settings: dict[str, dict[str, Any]], **how: Any) -> str:
        shutil.rmtree("runs", ignore_errors=True)
        with pytest.raises(AssayError, match="No code is taken from a run") as refused:
            continued(kept(settings, **how), "30m")
        return str(refused.value)

    mine = {"confidence": {"estimator": "best", "bins": 5}}
    asked = "type what was asked, and it goes on. assay ask confidence mine.py:build --set bins=5 --budget 30m --seed 0"
    assert asked in told(mine)
    says = told(mine, standards=Standards(limits={"confidence": (Standard(at_least=0.5),)}))
    assert (
        "with the same --standards FILE, which sets confidence bins=5. assay audit mine.py:build --budget 30m" in says
    )
    both = mine | {"how-bad-are-its-mistakes": {"trees": ["inputs", "features"], "groups": 3}}
    sets = "confidence bins=5; how-bad-are-its-mistakes trees=inputs,features groups=3."
    assert f"--standards FILE, which sets {sets} assay audit mine.py:build --budget 30m --probe conf" in told(both)
    made = re.search(r"probes=(\[.*\]), budget='30m'", told(both, source=()))
    assert made is not None
    for probe, (name, settings) in zip(eval(made[1], {"assay": package}), both.items(), strict=True):
        assert (probe.name(), probe) == (name, configure(type(probe), settings))
    plain: dict[str, dict[str, Any]] = {"confidence": {"estimator": "best"}}
    assert "with the same --standards FILE where it had one. assay audit mine.py:build" in told(plain)
    assert "assay.audit(subject, probes=['confidence'], budget='30m', seed=0" in told(plain, source=())


def test_limits_go_on_with_a_run_also_those_of_what_had_no_answer(child: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "ASK", "timekeeper:hangs")
    monkeypatch.setattr(guarded, "LATE", 0.2)
    mine = {"accuracy": (), "everyday-change": (Standard(at_least=0.9),)}
    done = audited("12s", Standards(limits=mine))
    assert done.row("accuracy").verdict == "no standard"  # an empty section takes its own limit away
    monkeypatch.setattr(type(Source("digits-mlp")), "words", lambda self: ("digits-mlp",))
    job, out = continued(done.folder, "30m")
    assert job.standards.limits == mine
    runs = done.folder.resolve().parent
    assert out == runs
    monkeypatch.chdir(done.folder)
    assert continued(Path("."), "30m")[1] == runs


def test_after_each_look_a_run_is_one_that_can_be_verified_and_goes_on(
    child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    look = Record.look

    def looked(self: Record, *given: Any) -> bool:
        kept = look(self, *given)
        assert self.folder is not None
        found.extend(verify(self.folder).broken)
        known = open_audit(self.folder).row(next(iter(self.rows.values())).answer.probe)
        assert known.answer.looks == next(iter(self.rows.values())).answer.looks
        self.conclude({}, lambda place: "not yet")  # as it is written now and then
        found.extend(verify(self.folder).broken)
        return kept

    monkeypatch.setattr(Record, "look", looked)
    done = audited("60s")
    assert len(done.row("everyday-change").answer.looks) >= 2
    assert not found


@pytest.mark.parametrize("how", ["lost", "too large"])
def test_a_second_look_that_goes_wrong_leaves_the_first(child: None, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    real = store.save_answer

    def save(folder: Path, answer: Answer) -> str:
        if how == "too large" and len(answer.looks) > 1:
            raise store.TooLarge("Its samples take too many bytes.")
        return real(folder, answer)

    monkeypatch.setattr(store, "save_answer", save)
    monkeypatch.setattr(guarded, "ASK", "timekeeper:second_is_lost" if how == "lost" else "timekeeper:speaks")
    done = audited("30s")
    assert Path("asked").read_text().count("everyday-change") == 2  # and is then let be
    row = done.row("everyday-change")
    assert (row.answer.status, row.verdict, len(row.answer.looks)) == ("asked", "cannot tell", 1)
    assert done.status == 3
    assert verify(done.folder).broken == ()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["audit", "--budget", "0s"], "--budget '0s' is no time to ask in; give more than 0s, for example 10m."),
        (["audit", "--budget", "10"], "--budget '10' has no unit; write 10s, 10m or 10h."),
        (["check", "--budget", "5w"], "--budget '5w' has the unit 'w'; write 5s, 5m or 5h."),
        (["audit", "nowhere", "--more", "soon"], "--more 'soon' is no time; write it like --more 30m."),
        (["audit", "nowhere", "--more", "30"], "--more '30' has no unit; write 30s, 30m or 30h."),
        (["audit", "nowhere", "--more", "30m", "--seed", "0"], "--seed cannot be given with --more, which goes on"),
        (["audit", "nowhere", "--more", "30m", "--inputs", "9"], "--inputs cannot be given with --more, which goes on"),
        (["audit", "nowhere", "--more", "30m"], "'nowhere' holds no finished audit"),
        (["explain", "digits-mlp", "--budget", "10m"], "--budget '10m' is none here; choose one of"),
    ],
)
def test_what_is_no_time_is_told_in_one_line(words: list[str], says: str, assay: Command) -> None:
    ended = assay(*words)
    assert ended.status == 2
    assert ended.complaints[-1].startswith(f"assay: {says}")
    assert len(ended.complaints) == 1


def test_one_that_is_too_short_says_how_long_it_would_take(assay: Command) -> None:
    ended = assay("audit", "digits-mlp", "--budget", "0.1s", "--probe", "accuracy")
    assert ended.status == 2
    assert "A time of 0.1s is too short: opening the model took" in ended.err
    assert "and accuracy would take about 1 s; give at least" in ended.err
    assert not Path("runs").exists()
