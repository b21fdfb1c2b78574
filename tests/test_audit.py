from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

import assay
from assay import shelf
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding, Measure
from assay.jobs import audit as jobs
from assay.jobs.audit import Record
from assay.probe import Need, Probe
from assay.standard import Standard, Standards
from assay.store import chain
from assay.subject import Subject

ASKED = []


@dataclass(frozen=True)
class Counted(Probe):
    """How many labels are even?"""

    source: ClassVar[str] = "none"
    standards: ClassVar = (Standard(at_least=0.1),)
    offset: int = 0

    @classmethod
    def name(cls):
        return "counted"

    def ask(self, subject, run):
        ASKED.append(self)
        index = run.pick(subject.data["test"])
        return Finding(
            says="some",
            measures=(Measure.proportion("even", subject.data["test"].labels[index] % 2 == 0, better="higher"),),
        )


def test_the_word_audit_is_the_function_whoever_imports_the_module():
    import assay.audit

    assert callable(assay.audit)


def test_the_public_names_are_these():
    assert sorted(assay.__all__) == sorted(
        [
            "Alarm",
            "AssayError",
            "Audit",
            "Claim",
            "Classification",
            "Evidence",
            "Finding",
            "InputSpace",
            "Labels",
            "Measure",
            "Probe",
            "Published",
            "Ranking",
            "Regression",
            "Remedy",
            "Run",
            "Similarity",
            "Standard",
            "Subject",
            "Table",
            "Task",
            "Witnesses",
            "audit",
            "open_audit",
        ]
    )
    for name in assay.__all__:
        assert getattr(assay, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = assay.nothing


def test_an_audit_is_written_resumed_and_read_back(digits, tmp_path):
    ASKED.clear()
    one = assay.audit(digits, probes=[Counted()], out=tmp_path)
    again = assay.audit(digits, probes=[Counted()], out=tmp_path)
    assert len(ASKED) == 1
    assert again.folder == one.folder
    assert again.row("counted").answer.finding.measures == one.row("counted").answer.finding.measures
    other = assay.audit(digits, probes=[Counted(offset=1)], out=tmp_path)
    assert (len(ASKED), other.folder == one.folder) == (2, False)
    read = assay.open_audit(one.folder)
    assert read.subject == one.subject
    assert read.row("counted").verdict == "pass"
    assert read.row("counted").judgements == one.row("counted").judgements
    assert {p.name for p in one.folder.iterdir()} >= {"run.json", "audit.json", "report.html", "junit.xml", "card.md"}


def test_a_changed_finding_is_asked_again_and_not_vouched_for_anew(digits, tmp_path, caplog):
    one = assay.audit(digits, probes=[Counted()], out=tmp_path)
    path = one.folder / "findings" / "counted.json"
    whole = json.loads(path.read_text())
    measured = whole["finding"]["measures"][0]
    path.write_text(json.dumps({**whole, "finding": {**whole["finding"], "measures": [{**measured, "value": 0.99}]}}))
    ASKED.clear()
    again = assay.audit(digits, probes=[Counted()], out=tmp_path)
    assert (len(ASKED), again.folder) == (1, one.folder)
    assert again.row("counted").answer.finding.measures == one.row("counted").answer.finding.measures
    (aside,) = (one.folder / "aside").iterdir()
    assert json.loads(aside.read_text())["finding"]["measures"][0]["value"] == 0.99
    assert "it was changed after audit.json was written" in caplog.text


@dataclass(frozen=True)
class Meddling(Probe):
    """A question during which somebody changes the answer to another one?"""

    source: ClassVar[str] = "none"
    folder: str = ""

    def ask(self, subject, run):
        path = max(Path(self.folder).glob("*/findings/counted.json"))
        path.write_text(re.sub(r'"value": [0-9.]+', '"value": 0.99', path.read_text(), count=1))
        return Finding(says="so", measures=(Measure.proportion("share", [True] * 9, better="higher"),))


@pytest.mark.parametrize("known", [False, True])
def test_a_finding_that_is_changed_while_its_audit_runs_is_not_vouched_for(digits, tmp_path, caplog, known):
    """The digest was of what lay there at the end: the report told of one value, and vouched for another."""
    found = assay.audit(digits, probes=[Counted()], out=tmp_path if known else None).row("counted")
    found, probes = found.answer.finding.measures, [Counted(), Meddling(str(tmp_path))]
    one = assay.audit(digits, probes=probes, out=tmp_path)
    assert one.row("test-audit").answer.finding is not None
    assert one.row("counted").answer.finding.measures == found
    stored = json.loads((one.folder / "audit.json").read_text())
    (row,) = [row for row in stored["rows"] if row["probe"] == "counted"]
    assert row["measures"][0]["value"] == found[0].value
    (told,) = [line for line in caplog.messages if "counted.json" in line]
    assert "was changed while this audit ran" in told
    assert chain.broken(one.folder) == ["findings/counted.json was changed after audit.json was written"]
    caplog.clear()
    again = assay.audit(digits, probes=probes, out=tmp_path)  # who meddled is known by now
    assert again.folder == one.folder
    assert again.row("counted").answer.finding.measures == found
    assert chain.broken(one.folder) == []
    assert "is set aside" in caplog.text


def test_an_answer_that_was_given_anew_is_not_taken_for_one_that_somebody_changed(digits, tmp_path, monkeypatch):
    """One who is killed between such an answer and the report leaves a run that is unfinished, and goes on from it."""

    def breaks(self, subject, run):
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Counted, "ask", breaks)
        broken = assay.audit(digits, probes=[Counted()], out=tmp_path)
    assert broken.status == 2
    with monkeypatch.context() as patch:
        patch.setattr(Record, "conclude", breaks)
        with pytest.raises(TypeError):
            assay.audit(digits, probes=[Counted()], out=tmp_path)
    assert not (broken.folder / "audit.json").exists()
    ASKED.clear()
    done = assay.audit(digits, probes=[Counted()], out=tmp_path)
    assert (done.status, len(ASKED)) == (0, 0)
    assert not (done.folder / "aside").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"budget": 30}, "budget=30 is no text; give quick, standard, full or a time, such as budget='10m'"),
        ({"budget": None}, "budget=None is no text"),
        ({"device": "tpu"}, "There is no device 'tpu'; choose cpu, cuda or auto"),
        ({"device": 0}, "There is no device 0; choose cpu, cuda or auto"),
        ({"device": "cuda"}, "torch sees no GPU here"),
        ({"device": "cuda:0"}, "torch sees no GPU here"),
        ({"engine": "slurm"}, "There is no engine 'slurm'; choose here, ray or"),
        ({"seed": -1}, "The seed -1 is none; give a whole number from 0 to 4294967295"),
        ({"seed": "a"}, "The seed 'a' is none"),
        ({"seed": 2**32}, "The seed 4294967296 is none"),
    ],
)
def test_what_is_no_budget_device_engine_or_seed_is_refused_in_one_line(digits, monkeypatch, given, says):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(AssayError, match=re.escape(says)):
        assay.audit(digits, probes=["accuracy"], **given)


def test_one_of_several_gpus_may_be_named(digits, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert jobs._placed("cuda:1") == "cuda:1"
    for wrong in ("cuda:2", "cuda:", "cuda:-1", "cuda:x"):
        with pytest.raises(AssayError, match=f"There is no device '{wrong}'; choose from cuda:0 to cuda:1"):
            jobs._placed(wrong)


def test_the_engine_may_be_named(digits):
    named = assay.audit(digits, probes=[Counted()], engine="here")
    assert named.row("counted").verdict == "pass"


def test_what_a_random_model_draws_for_a_question_does_not_hang_on_which_are_known(digits, tmp_path):
    class Noisy(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            out = self.model(x)
            return out + 3 * torch.randn_like(out)

    subject = replace(digits, model=Noisy(digits.model).eval())

    def measured(probes, folder):
        torch.manual_seed(3)
        done = assay.audit(subject, probes=probes, inputs=80, out=tmp_path / folder)
        return [row.answer.finding.measures for row in done.rows]

    first = measured(["accuracy"], "again")
    again = measured(["accuracy", "confidence"], "again")
    assert again[0] == first[0]  # from before
    assert again == measured(["accuracy", "confidence"], "at once")


def test_of_questions_that_are_put_side_by_side_the_longest_come_first(digits):
    sent = []

    class Elsewhere(ThisProcess):
        apart = True

        def each(self, work, items):
            sent.extend(items)
            return super().each(work, sent)

    names = ["accuracy", "worst-case-accuracy", "confidence"]
    done = assay.audit(digits, probes=names, inputs=12, engine=Elsewhere())
    assert [names[place] for place in sent] == ["worst-case-accuracy", "confidence", "accuracy"]
    assert [row.answer.probe for row in done.rows] == names


@pytest.mark.parametrize("trained", [True, False])
def test_no_question_asks_a_model_about_no_input(digits, trained):
    """Many a model cannot answer that: x.view(len(x), -1) has no size then."""

    class Strict(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            assert len(x), "it was asked about no input"
            return self.model(x)

    model = digits.model if trained else nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    subject = Subject.classifier(Strict(model).eval(), dict(digits.data), name="strict")
    done = assay.audit(subject, budget="quick", inputs=12)
    assert [row.answer.why for row in done.rows if "no input" in str(row.answer.why)] == []
    assert "worst-case-accuracy" in [row.answer.probe for row in done.rows if row.answer.finding is not None]


def test_a_bound_on_the_inputs_is_another_question_and_is_told(digits, tmp_path):
    ASKED.clear()
    bounded = assay.audit(digits, probes=[Counted()], inputs=40, out=tmp_path)
    assert bounded.row("counted").answer.finding.measures[0].n == 40
    told = "quick, --inputs 40: at most 40 inputs per question"
    assert all(told in (bounded.folder / name).read_text() for name in ("report.html", "card.md"))
    assert json.loads((bounded.folder / "run.json").read_text())["inputs"] == 40
    plain = assay.audit(digits, probes=[Counted()], out=tmp_path)
    assert plain.row("counted").answer.finding.measures[0].n > 40
    by_file = assay.audit(digits, probes=[Counted()], standards=Standards(inputs=40), out=tmp_path)
    assert by_file.folder == bounded.folder
    typed = assay.audit(digits, probes=[Counted()], standards=Standards(inputs=40), inputs=30, out=tmp_path)
    assert typed.row("counted").answer.finding.measures[0].n == 30  # what is typed goes before what is written
    assert len(ASKED) == 3
    with pytest.raises(AssayError, match="--inputs 0 is no number of inputs"):
        assay.audit(digits, probes=[Counted()], inputs=0)


def test_each_row_has_its_theme_asked_or_not(digits, tmp_path):
    done = assay.audit(digits, probes=["accuracy", "how-far-to-a-tie", Counted()], out=tmp_path)
    themes = [("accuracy", "right"), ("how-far-to-a-tie", "compared"), ("counted", "other")]
    assert [(row.answer.probe, row.answer.theme) for row in done.rows] == themes
    stored = json.loads((done.folder / "audit.json").read_text())
    assert [(row["probe"], row["theme"]) for row in stored["rows"]] == themes
    assert [row.answer.theme for row in assay.open_audit(done.folder).rows] == [theme for _, theme in themes]
    for row in stored["rows"]:
        del row["theme"]  # as it was before there were themes
    (done.folder / "audit.json").write_text(json.dumps(stored))
    assert [row.answer.theme for row in assay.open_audit(done.folder).rows] == [theme for _, theme in themes]


def test_a_stored_audit_opens_without_torch(digits, tmp_path):
    folder = assay.audit(digits, probes=[Counted()], out=tmp_path).folder
    code = (
        "import sys, assay; from pathlib import Path; "
        f"a = assay.open_audit(Path({str(folder)!r})); assert a.rows; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_in_memory_nothing_is_written(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = assay.audit(digits, probes=[Counted()])
    assert done.folder is None
    assert not list(tmp_path.iterdir())
    assert "<iframe" in done._repr_html_()
    assert "<script>" not in replace(done, subject=replace(done.subject, name="<script>x</script>"))._repr_html_()


@pytest.mark.parametrize(
    ("limits", "status", "verdict"),
    [
        ({}, 0, "pass"),
        ({"at_least": 0.9}, 1, "fail"),
        ({"at_least": 0.5}, 3, "cannot tell"),
        ({"measure": "odd", "at_least": 0.5}, 3, "cannot tell"),
    ],
)
def test_the_status_gates_a_pipeline(digits, monkeypatch, limits, status, verdict):
    monkeypatch.setattr(shelf, "load", lambda *_: Counted)
    standards = Standards(limits={"counted": (Standard(**limits),)}) if limits else None
    done = assay.audit(digits, probes=["counted"], standards=standards)
    assert (done.status, done.row("counted").verdict) == (status, verdict)


@pytest.mark.parametrize(
    ("measure", "limit"),
    [
        (Measure.proportion("m", [True], better="higher"), Standard(at_least=0.2)),  # 20.7 to 100 %
        (Measure.proportion("m", [False], better="higher"), Standard(at_least=0.8)),  # 0 to 79.3 %
        (Measure.mean("m", [0.3], better="higher", seed=0), Standard(at_least=0.03)),  # of no width
        (Measure.mean("m", [0.3], better="higher", seed=0, unit="%"), Standard(at_least=0.5)),
    ],
)
def test_one_input_settles_no_verdict(digits, monkeypatch, measure, limit):
    monkeypatch.setattr(shelf, "load", lambda *_: Counted)
    monkeypatch.setattr(Counted, "ask", lambda self, subject, run: Finding(says="So.", measures=(measure,)))
    done = assay.audit(digits, probes=["counted"], standards=Standards(limits={"counted": (limit,)}))
    (judgement,) = done.row("counted").judgements
    assert (judgement.verdict, judgement.why) == (
        "cannot tell",
        "one input was seen: nobody knows how far another may lie",
    )


def test_a_question_that_breaks_loses_nothing_of_the_others(digits, tmp_path):
    @dataclass(frozen=True)
    class Broken(Counted):
        """Does it break?"""

        @classmethod
        def name(cls):
            return "broken"

        def ask(self, subject, run):
            raise RuntimeError("no")

    class Strict(Counted):
        """Are most labels even?"""

        standards = (Standard(at_least=0.9),)

    done = assay.audit(digits, probes=[Counted(), Broken()], out=tmp_path)
    assert [r.verdict for r in done.rows] == ["pass", "not asked"]
    assert done.status == 2
    failing = assay.audit(digits, probes=[Strict(), Broken()])
    assert (failing.rows[0].verdict, failing.status) == ("fail", 2)  # no verdict on what is not complete
    assert json.loads((done.folder / "audit.json").read_text())["rows"][1]["why"].startswith("RuntimeError: no")
    assert assay.open_audit(done.folder).rows[1].answer.why == done.rows[1].answer.why


def test_unknown_names_in_standards_are_refused_before_anything_is_asked(digits):
    ASKED.clear()
    with pytest.raises(AssayError, match="no probe 'acuracy'; did you mean 'accuracy'"):
        assay.audit(digits, probes=[Counted()], standards=Standards(limits={"acuracy": ()}))
    with pytest.raises(AssayError, match="no setting 'radios'"):
        assay.audit(digits, standards=Standards(settings={"worst-case-accuracy": {"radios": 1}}))
    with pytest.raises(AssayError, match="answers nothing"):
        assay.audit(digits, probes=[])
    assert not ASKED


def test_a_model_that_is_secretly_random_raises_an_alarm(digits):
    class Noisy(nn.Module):
        def forward(self, x):
            return torch.randn(len(x), 10) + 0 * x.flatten(1).sum(1, keepdim=True)

    torch.manual_seed(0)  # else what the door sees of so few answers hangs on the tests before
    noisy = replace(digits, model=Noisy())
    assert "answers differently each time" in assay.audit(noisy, probes=[Counted()]).alarms[0].says
    assert not assay.audit(replace(noisy, draws=4), probes=[Counted()]).alarms
    assert not assay.audit(digits, probes=[Counted()]).alarms


def test_a_model_that_returns_probabilities_raises_an_alarm(digits):
    class Soft(nn.Module):
        def forward(self, x):
            return torch.full((len(x), 10), 0.1)

    assert "returns probabilities" in assay.audit(replace(digits, model=Soft()), probes=[Counted()]).alarms[0].says


def test_a_folder_without_an_audit_is_an_error_that_says_so(tmp_path):
    with pytest.raises(AssayError, match="holds no finished audit"):
        assay.open_audit(tmp_path)
    (tmp_path / "audit.json").write_text("{}")
    with pytest.raises(AssayError, match="Cannot read the audit"):
        assay.open_audit(tmp_path)


def test_what_takes_long_waits_for_the_standard_budget_unless_it_is_named(digits, tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Slow(Counted):
        """How slow?"""

        in_quick: ClassVar[bool] = False

        @classmethod
        def name(cls):
            return "slow"

    monkeypatch.setattr(shelf, "names", lambda kind: ["slow"])
    monkeypatch.setattr(shelf, "load", lambda kind, name: Slow)
    row = assay.audit(digits, out=tmp_path).row("slow")
    assert row.verdict == "not asked"
    assert "--budget standard" in row.answer.why
    assert "--probe slow" in row.answer.why
    assert assay.audit(digits, budget="standard", out=tmp_path).row("slow").answer.status == "asked"
    assert assay.audit(digits, probes=["slow"], out=tmp_path).row("slow").answer.status == "asked"


@pytest.mark.parametrize("how", ["left out by name", "left out by the budget"])
def test_a_limit_that_was_not_put_to_the_test_cannot_be_told(digits, tmp_path, monkeypatch, how):
    @dataclass(frozen=True)
    class Slow(Counted):
        """How slow?"""

        in_quick: ClassVar[bool] = False

        @classmethod
        def name(cls):
            return "slow"

    monkeypatch.setattr(shelf, "names", lambda kind: ["counted", "slow"])
    monkeypatch.setattr(shelf, "load", lambda kind, name: {"counted": Counted, "slow": Slow}[name])
    given = Standards(limits={"slow": (Standard(at_least=0.1), Standard(measure="even", at_most=0.9))})
    named = ["counted"] if how == "left out by name" else None
    assert assay.audit(digits, probes=named).status == 0  # a limit that nobody gave does not count
    done = assay.audit(digits, probes=named, standards=given, out=tmp_path)
    row = done.row("slow")
    assert (done.status, row.verdict, row.answer.finding) == (3, "cannot tell", None)
    assert "--probe slow" in row.answer.why
    assert [j.measure for j in row.judgements] == ["its headline measure", "even"]
    opened = assay.open_audit(done.folder)
    assert (opened.status, opened.row("slow")) == (3, row)
    assert json.loads((done.folder / "audit.json").read_text())["status"] == 3
    assert "not put to the test: even to be at\u00a0most\u00a00.9" in (done.folder / "junit.xml").read_text()
    assert "it was not asked" in (done.folder / "report.html").read_text()
    assert "it was not asked" in (done.folder / "card.md").read_text()
    assert assay.audit(digits, probes=["counted", "slow"], standards=given).status == 0
    assert assay.audit(digits, probes=["counted"], standards=Standards(limits={"slow": ()})).status == 0


@pytest.mark.parametrize("named", [None, ["counted"], ["never"]])
def test_a_limit_that_can_never_apply_is_refused_before_anything_is_asked(digits, monkeypatch, named):
    @dataclass(frozen=True)
    class Never(Counted):
        """Which is higher?"""

        needs: ClassVar[tuple[Need, ...]] = ("order",)

        @classmethod
        def name(cls):
            return "never"

    monkeypatch.setattr(shelf, "names", lambda kind: ["counted", "never"])
    monkeypatch.setattr(shelf, "load", lambda kind, name: {"counted": Counted, "never": Never}[name])
    assert assay.audit(digits, probes=named).status == 0
    ASKED.clear()
    with pytest.raises(AssayError, match="The limit on 'never' can never apply to 'digits': it needs which of two"):
        assay.audit(digits, probes=named, standards=Standards(limits={"never": (Standard(at_least=0.1),)}))
    assert not ASKED
