"""The command line: what it prints, where, and with which status it ends."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import typer
from rich.console import Console
from rich.progress import Progress

from assay import cli, shelf
from assay.claim import Claim, Evidence, Published
from assay.cli.meter import Meter
from assay.finding import Finding, Measure
from assay.run import Run

if TYPE_CHECKING:
    from conftest import Command

SUBJECT = """
import torch
from assay import Subject

class Shapes(torch.nn.Module):
    def __init__(self, sign):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.register_buffer("shape", (torch.rand(3, 1, 8, 8, generator=draw) < 0.5).float())
        self.register_buffer("sign", torch.tensor(sign))

    def forward(self, x):
        return self.sign * x.flatten(1) @ (self.shape - self.shape.mean(0)).flatten(1).T

def build(sign=1):
    model = Shapes(sign)
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(150) % 3
    x = (0.3 + 0.4 * model.shape[y] + 0.5 * torch.randn(150, 1, 8, 8, generator=draw)).clamp(0, 1)
    classes = ["[red]a[/red]", "[red]b[/red]", "[/] c"]
    return Subject.classifier(model, (x, y), name="three [bold]shapes[/bold]", classes=classes)

def turned():
    return build(sign=-1)
"""


@pytest.fixture
def assay(assay: Command, undrawn: None) -> Command:
    """In a folder that holds a subject."""
    Path("subject.py").write_text(SUBJECT)
    return assay


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom assay.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = ('torch', 'numpy', 'scipy', 'matplotlib', 'pyarrow', 'jinja2', 'sklearn', 'PIL', 'safetensors')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version(assay: Command) -> None:
    from assay import __version__

    assert assay("--version") == (0, f"assay {__version__}\n", "")


COMMANDS = (
    ["audit"],
    ["ask"],
    ["probes"],
    ["remedies"],
    ["subjects"],
    ["report"],
    ["diff"],
    ["verify"],
    ["seal"],
    ["cure"],
    ["ship"],
    ["explain"],
    ["rank"],
    ["claims"],
    ["check"],
    ["translate"],
    ["study"],
    ["serve"],
    ["worker"],
    ["claims", "test"],
    ["claims", "page"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_of_each_command_teaches_by_an_example(words: list[str], assay: Command) -> None:
    ended = assay(*words, "--help")
    assert ended.status == 0
    assert f"Example: assay {' '.join(words)}" in " ".join(ended.out.split())


def test_every_command_is_in_the_list_above() -> None:
    known = {" ".join(c) for c in COMMANDS}
    app = typer.main.get_command(cli.app)
    assert set(app.commands) == {c.split()[0] for c in known}  # type: ignore[attr-defined]
    assert {f"claims {c}" for c in app.commands["claims"].commands} == {  # type: ignore[attr-defined]
        c for c in known if c.startswith("claims ")
    }


@pytest.mark.parametrize("words", ["--nonsense", "audit --seed x", "audit a b", "report", "nothing"])
def test_usage_errors_end_with_2(words: str, assay: Command) -> None:
    ended = assay(*words.split())
    assert ended.status == 2
    assert "Traceback" not in ended.err


ACCURACY = ("audit", "subject.py:build", "--probe", "accuracy")


def standards(text: str) -> str:
    Path("assay.toml").write_text(text)
    return "assay.toml"


@pytest.mark.parametrize(
    ("limit", "status", "verdict"),
    [("at_least = 0.5", 0, "pass"), ("at_most = 0.5", 1, "fail"), ("at_least = {value}", 3, "cannot tell")],
)
def test_the_status_is_the_verdict(limit: str, status: int, verdict: str, assay: Command) -> None:
    assay(*ACCURACY)
    found = next(Path("runs").glob("*/audit.json"))
    measured = json.loads(found.read_text())["rows"][0]["measures"][0]["value"]
    assert 0.7 < measured < 1
    ended = assay(*ACCURACY, "--standards", standards(f"[standards.accuracy]\n{limit.format(value=measured)}"))
    assert ended.status == status
    found_line = rf"^ *{verdict} +accuracy +accuracy {100 * measured:.1f} % \(.*\) +at (least|most) "
    assert re.search(found_line, ended.out, re.MULTILINE)
    assert Path(ended.last).name == "report.html"
    assert Path(ended.last).stat().st_size > 1000


def test_a_limit_that_was_not_put_to_the_test_ends_with_3_and_one_that_cannot_be_with_2(assay: Command) -> None:
    ended = assay(*ACCURACY, "--standards", standards("[standards.confidence]\nat_most = 0.5"))
    assert ended.status == 3
    assert re.search(r"^ *cannot tell +confidence +it has a limit, .* +at most 0.5", ended.out, re.MULTILINE)
    (complaint,) = ended.complaints
    assert complaint.startswith("assay: the limit on confidence was not put to the test: it has a limit")
    ended = assay(*ACCURACY, "--standards", standards("[standards.how-far-to-a-tie]\nat_least = 0.5"))
    assert (ended.status, ended.out) == (2, "")
    assert ended.complaints == [
        "assay: The limit on 'how-far-to-a-tie' can never apply to 'three [bold]shapes[/bold]': it needs a "
        "comparison of two inputs, and the subject's task is Classification; take it out of the standards."
    ]


def test_an_audit_asks_all_that_is_on_the_shelf_and_takes_settings_from_the_standards(
    assay: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "names", lambda which: ["accuracy", "worst-case-accuracy"] if which == "probes" else [])
    ended = assay(
        "audit",
        "subject.py:build",
        "--standards",
        standards(
            "[probes.worst-case-accuracy]\nradius = 0.001\nsteps = 2\n[standards.worst-case-accuracy]\nat_least = 1.01"
        ),
    )
    stored = json.loads((Path(ended.last).parent / "audit.json").read_text())
    assert [row["probe"] for row in stored["rows"]] == shelf.names("probes")
    attacked = next(row for row in stored["rows"] if row["probe"] == "worst-case-accuracy")
    assert (attacked["settings"]["radius"], attacked["verdict"]) == (0.001, "fail")
    assert ended.status == stored["status"]
    for name in shelf.names("probes"):
        assert name in ended.out
        assert f"{name}: " in ended.err


def test_a_second_audit_asks_nothing_again_and_says_so(assay: Command) -> None:
    first, second = assay(*ACCURACY), assay(*ACCURACY)
    assert "known from before" not in first.err
    assert re.search(r"^accuracy: .* \(known from before\)$", second.err, re.MULTILINE)
    assert (first.last, first.status) == (second.last, second.status)


def test_alarms_are_printed(assay: Command) -> None:
    Path("few.py").write_text(SUBJECT.replace("150", "15"))
    ended = assay("audit", "few.py:build", "--probe", "accuracy")
    assert "alarm: accuracy: Only 15 inputs were asked about" in ended.out


def test_ask_prints_measures_and_sentence_and_is_an_audit(assay: Command) -> None:
    ended = assay("ask", "worst-case-accuracy", "subject.py:build", "--set", "radius=8/255", "--set", "steps=2")
    stored = json.loads((Path(ended.last).parent / "audit.json").read_text())
    assert len(stored["rows"]) == 1
    assert stored["rows"][0]["settings"]["radius"] == 8 / 255
    assert stored["rows"][0]["question"] in ended.out
    assert stored["rows"][0]["says"] in ended.out.splitlines()
    for measure in stored["rows"][0]["measures"]:
        assert measure["name"] in ended.out


def test_further_models_are_opened_where_they_are_typed_and_not_where_a_file_names_them(assay: Command) -> None:
    ask = ["ask", "does-it-transfer", "subject.py:build", "--set", "radius=0.2", "--set", "steps=2"]
    ended = assay(*ask, "--set", "others=subject.py:turned")
    assert "error, made on" in ended.out
    assert ended.status in (0, 1, 3)
    ended = assay(*ask, "--set", "others=elsewhere.py:build")
    assert ended.status == 2
    assert "There is no file 'elsewhere.py'" in ended.err
    Path("assay.toml").write_text('[probes.does-it-transfer]\nothers = ["subject.py:turned"]\n')
    ended = assay("audit", "subject.py:build", "--probe", "does-it-transfer", "--standards", "assay.toml")
    assert ended.status == 2
    assert "is named in a file; its code runs only if you type it" in " ".join(ended.err.split())


def test_a_users_text_is_not_markup(assay: Command) -> None:
    ended = assay("ask", "accuracy", "subject.py:build")
    says = json.loads((Path(ended.last).parent / "audit.json").read_text())["rows"][0]["says"]
    assert "[/" in says
    assert says in ended.out.splitlines()


@pytest.mark.parametrize("name", ["probes", "remedies", "subjects"])
def test_lists_have_a_line_and_a_source_each(name: str, assay: Command) -> None:
    ended = assay(name)
    assert ended.status == 0
    assert shelf.names(name)  # type: ignore[arg-type]
    for each in shelf.names(name):  # type: ignore[arg-type]
        assert each in ended.out
    assert "arXiv" in ended.out or "doi" in ended.out or "MNIST" in ended.out


def test_a_third_partys_probe_that_does_not_load_hides_no_other(
    assay: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import EntryPoint

    theirs = EntryPoint("theirs", "no.such.module:Probe", "assay.probes")
    monkeypatch.setattr(shelf, "_entry_points", lambda which: {"theirs": theirs} if which == "probes" else {})
    ended = assay("probes")
    assert ended.status == 0
    assert "does not load: No module named 'no'" in " ".join(ended.out.split())
    assert "accuracy" in ended.out


def test_report_draws_a_stored_run_again_without_torch(assay: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.report.figures import draw

    monkeypatch.setattr("assay.report.page.draw", draw)
    page = Path(assay(*ACCURACY).last)
    before = page.read_text()
    page.unlink()
    code = (
        f"import sys\nsys.modules['torch'] = None\nsys.argv = ['assay', 'report', {str(page.parent)!r}]\n"
        "from assay.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{page}\n", "")
    assert page.read_text() == before


def test_diff_compares_in_pairs_and_writes_a_page(assay: Command) -> None:
    one = Path(assay(*ACCURACY).last).parent
    two = Path(assay("audit", "subject.py:turned", "--probe", "accuracy").last).parent
    ended = assay("diff", str(one), str(two))
    assert ended.status == 0
    assert re.search(r"accuracy +accuracy .* worse +paired on 150 inputs", ended.out)
    assert ended.last == str(two / "diff.html")
    assert "three [bold]shapes[/bold]" in (two / "diff.html").read_text()


def test_verify_judges_witnesses_again_without_attacking(assay: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path(assay("audit", "subject.py:build", "--probe", "accuracy", "--probe", "worst-case-accuracy").last).parent
    for name in ("accuracy", "worst-case-accuracy"):
        monkeypatch.setattr(shelf.load("probes", name), "ask", _never)
    ended = assay("verify", str(run), "--subject", "subject.py:build")
    assert ended.status == 0, ended
    assert ended.last == "every link and witness holds"
    held = dict(re.findall(r"^ *(\S+) +\d+ +\d+ +(\d+) +\2 *$", ended.out, re.MULTILINE))
    assert set(held) == {"accuracy", "worst-case-accuracy"}
    assert all(int(n) > 0 for n in held.values())


def _never(*anything: object) -> NoReturn:
    raise AssertionError("verify must not ask a probe")


def test_verify_says_which_no_longer_hold_and_why(assay: Command) -> None:
    run = Path(assay(*ACCURACY).last).parent
    ended = assay("verify", str(run), "--subject", "subject.py:turned")
    assert ended.status == 1
    told = r"^lost: accuracy, input \d+, as it is: the model answers .* which is right$"
    lost = re.findall(told, ended.out, re.MULTILINE)
    assert ended.last.endswith(f" broken, {len(lost)} witnesses no longer hold")
    assert "broken: the subject here has the fingerprint" in ended.out


def test_verify_of_a_run_made_in_python_says_what_a_subject_would_show(assay: Command) -> None:
    import assay as package
    from assay.subjects import Source, open_subject

    made = package.audit(open_subject(Source("subject.py:build")), probes=["accuracy"], out="made")
    ended = assay("verify", str(made.folder))
    assert ended.status == 3
    assert "not checked: the model and the data: no --subject was given" in ended.out
    assert assay("verify", str(made.folder), "--subject", "subject.py:build").status == 0


def test_cure_prints_the_differences_and_where_the_page_and_weights_are(
    assay: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from assay.remedy import Remedy
    from assay.subject import Subject

    @dataclasses.dataclass(frozen=True)
    class Turn(Remedy):
        """Turns answers round."""

        by: int = 1
        source = "nowhere"

        def apply(self, subject: Subject, run: Run) -> Subject:
            import copy

            model = copy.deepcopy(subject.model)
            model.sign.mul_(-self.by)  # type: ignore[operator, union-attr]
            return subject.cured(model, "turn")

    real = shelf.load
    monkeypatch.setattr(shelf, "load", lambda which, name: Turn if which == "remedies" else real(which, name))
    ended = assay("cure", "turn", "subject.py:turned", "--set", "by=2", "--probe", "accuracy")
    assert ended.status == 0, ended.err
    assert re.search(r"accuracy +accuracy .* better +paired on 150 inputs", ended.out)
    *_, weights, page = ended.out.split()
    assert Path(weights).suffix == ".safetensors"
    assert Path(weights).exists()
    assert Path(page).parent == Path(weights).parent
    assert Path(page).exists()


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> None:
    def test(run: Run) -> Evidence:
        return Evidence(
            verdict="cannot tell" if run.seed else "holds",
            says=f"With seed {run.seed}.",
            measures=(Measure(name="gain", value=0.5, low=0.4, high=0.6, better="higher"),),
        )

    def claim(name: str) -> Claim:
        return Claim(
            name=name,
            source="Someone, 2021",
            says=f"The {name} one.",
            here="h",
            minutes=1,
            test=test,
            published=(Published("gain", 0.7, "table 1"),),
        )

    monkeypatch.setattr(shelf, "names", lambda which: ["someone2021"])
    monkeypatch.setattr(shelf, "load", lambda which, name: (claim("first"), claim("second")))


@pytest.mark.usefixtures("claims")
def test_claims_are_listed_tested_recorded_and_shown(assay: Command) -> None:
    assert re.search(r"someone2021/first +not run +The first one\. +Someone, 2021", assay("claims").out)
    ended = assay("claims", "test", "someone2021/first")
    assert ended.status == 0
    assert "holds: someone2021/first. With seed 0." in ended.out
    assert "gain: 0.50 (0.40 to 0.60)" in ended.out
    assert Path("claims/ledger/someone2021--first.json").exists()
    listed = assay("claims").out
    assert re.search(r"someone2021/first +holds", listed)
    assert re.search(r"someone2021/second +not run", listed)
    page = assay("claims", "page", "--out", "page.html")
    assert page.last == "page.html"
    assert "someone2021/second" in Path("page.html").read_text()
    assay("claims", "page", "--out", "page.md")
    assert Path("page.md").read_text().startswith("# Claims")


@pytest.mark.usefixtures("claims")
def test_a_claim_that_cannot_be_told_ends_with_3_and_an_unknown_one_with_2(assay: Command) -> None:
    assert assay("claims", "test", "someone2021/first", "--seed", "1").status == 3
    ended = assay("claims", "test", "someone2021/second", "someone2021/third")
    assert ended.status == 2
    assert ended.err.startswith("assay: There is no claim 'someone2021/third'")
    assert not Path("claims/ledger/someone2021--second.json").exists()


@pytest.mark.usefixtures("claims")
def test_all_claims_are_tested_as_far_as_the_time_goes(assay: Command) -> None:
    """Each says that it takes a minute, and takes none: so it is known to fit only once it was tested."""
    short = assay("claims", "test", "--all", "--budget", "30s")
    assert short.status == 3
    assert "2 of 2 did not fit into 30s; the shortest takes 60 s." in short.out
    assert not Path("claims/ledger").exists()
    assert assay("claims", "test", "--all", "--budget", "62s").status == 0
    assert len(list(Path("claims/ledger").glob("*.json"))) == 2
    assert assay("claims", "test", "--all", "--budget", "30s").status == 0
    for words, why in (
        (["someone2021/first", "--all"], "or give --all, not both"),
        ([], "Name the claims to test"),
        (["someone2021/first", "--budget", "5m"], "is a time, which only --all has"),
        (["--all", "--budget", "0s"], "is no time"),
        (["--all", "--budget", "5"], "5"),
    ):
        ended = assay("claims", "test", *words)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert why in ended.err


@pytest.mark.usefixtures("claims")
def test_a_gpu_that_is_not_there_and_a_record_that_was_edited_are_a_line_each(
    assay: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ended = assay("claims", "test", "someone2021/first", "--device", "cuda")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "cuda" in ended.err
    assert not Path("claims/ledger").exists()
    assay("claims", "test", "someone2021/first")
    record = Path("claims/ledger/someone2021--first.json")
    record.write_text(record.read_text().replace('"holds"', '"fails"'))
    for words in ([], ["page", "--out", "page.html"]):
        ended = assay("claims", *words)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert "was edited after it was written" in ended.err
    assert assay("claims", "test", "someone2021/first").status == 0  # what the line says mends it


def raising(e: BaseException) -> Callable[..., NoReturn]:
    def raises(*anything: object) -> NoReturn:
        raise e

    return raises


def test_a_stop_by_hand_ends_with_130(assay: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.cli.audit.opened", raising(KeyboardInterrupt()))
    ended = assay(*ACCURACY)
    assert (ended.status, ended.err) == (130, "assay: stopped; run the same command again to go on where it was\n")


class SafetensorsOwn(Exception):
    """What safetensors raises is no OSError."""


@pytest.mark.parametrize(
    "raised",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        SafetensorsOwn("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_no_fault_of_ours(assay: Command, monkeypatch: pytest.MonkeyPatch, raised: Exception) -> None:
    monkeypatch.setattr("assay.cli.audit.opened", raising(raised))
    ended = assay(*ACCURACY)
    assert (ended.status, str(raised) in ended.err) == (2, True)
    assert ended.err.endswith("; free some space and run the same command again, or write elsewhere with --out\n")


def test_what_should_not_happen_is_one_line_too_and_debug_shows_where(
    assay: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.cli.audit.opened", raising(RuntimeError("a thing\nof two lines")))
    ended = assay(*ACCURACY)
    assert ended.status == 2
    assert ended.err == "assay: RuntimeError: a thing of two lines; this should not happen, --debug shows where\n"
    shown = assay(*ACCURACY, "--debug")
    assert shown.status == 2
    assert "Traceback" in shown.err


def test_code_that_calls_exit_is_no_pass(assay: Command) -> None:
    Path("leaves.py").write_text("import sys\ndef build():\n    sys.exit(0)\n")
    ended = assay("audit", "leaves.py:build")
    assert ended.status == 2
    assert len(ended.err.splitlines()) == 1


def test_a_closed_pipe_is_quiet(assay: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        ended = assay("subjects")
    assert (ended.status, ended.out, ended.err) == (141, "", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["audit", "--device", "tpu"], "There is no device 'tpu'; choose cpu, cuda or auto."),
        (["audit", "--budget", "quik"], "There is no budget 'quik'; choose one of quick, standard, full."),
        (["audit", "--mean", "a,b"], "--mean 'a,b' is not a list of numbers; write it like --mean 0.5,0.5,0.5."),
        (
            ["ask", "accuracy", "--set", "radius"],
            "--set 'radius' is not NAME=VALUE; write for example --set radius=8/255.",
        ),
        (["report", "nowhere"], "'nowhere' holds no finished audit"),
        *(
            ([command, "--inputs", n], f"--inputs {n!r} is no number of inputs; give a whole number of at least 1.")
            for command, n in (("audit", "0"), ("check", "-3"), ("audit", "many"), ("audit", "1e3"))
        ),
    ],
)
def test_wrong_options_name_the_value_and_the_mend(words: list[str], says: str, assay: Command) -> None:
    ended = assay(*words, *(("--probe", "accuracy") if words[0] == "audit" else ()))
    assert ended.status == 2
    assert ended.err.splitlines()[-1].startswith(f"assay: {says}")


@pytest.fixture
def terminal() -> Iterator[tuple[Meter, Progress]]:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, _environ={})
    with Progress(console=console, transient=True) as bars:
        yield Meter(console, bars, 2), bars


def judged(name: str) -> object:
    from assay.audit import Judged
    from assay.probe import Answer

    finding = Finding(says="s", measures=(Measure(name="m", value=1.0, better="higher"),))
    answer = Answer(
        probe=name, question="?", source="", settings={}, key="", status="asked", finding=finding, seconds=3.0
    )
    return Judged(answer=answer, judgements=())


def test_on_a_terminal_each_question_has_one_bar(terminal: tuple[Meter, Progress]) -> None:
    meter, bars = terminal
    meter.doing("opening it")
    with meter.progress("first part", 10) as tick:
        tick(4)
        assert (bars.tasks[0].description, bars.tasks[0].completed, bars.tasks[0].total) == ("first part", 4, 10)
    with meter.progress("second part", 20) as tick:
        tick(20)
    meter.told(judged("accuracy"), True)  # type: ignore[arg-type]
    assert [t.description for t in bars.tasks] == ["accuracy: no standard (3.0 s)", "the next question"]
    assert bars.tasks[0].finished
    with meter.progress("another", 5) as tick:
        tick(5)
    meter.told(judged("confidence"), False)  # type: ignore[arg-type]
    assert [t.description for t in bars.tasks][1:] == [
        "confidence: no standard (known from before)",
        "writing the report",
    ]


def test_in_a_log_the_first_line_comes_after_two_seconds_and_then_one_in_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    file = io.StringIO()
    meter = Meter(Console(file=file), None, None)
    with meter.progress("attacking", 100) as tick:
        for _ in range(30):
            tick(1)
            now += 1
    assert file.getvalue().splitlines() == ["attacking: 4 of 100", "attacking: 15 of 100", "attacking: 26 of 100"]


def test_a_quick_audit_leaves_out_what_takes_long_and_says_how_to_ask_it(
    assay: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay import shelf

    whole = shelf.names
    monkeypatch.setattr(
        shelf, "names", lambda kind: ["accuracy", "which-estimator"] if kind == "probes" else whole(kind)
    )
    told = assay("audit", "digits-mlp", "--out", str(tmp_path))
    assert told.status in (0, 1, 3)
    stored = next(tmp_path.glob("*/audit.json")).read_text()
    rows = {row["probe"]: row for row in json.loads(stored)["rows"]}
    assert rows["accuracy"]["status"] == "asked"
    assert "--probe which-estimator" in rows["which-estimator"]["why"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--units", "cells"],
            "There are no units 'cells'; choose from patches, superpixels, pixels, columns, words, stretches.",
        ),
        (["--criterion", "best"], "There is no criterion 'best'; choose held or moved."),
        (["--pair", "1", "2", "--units", "pixels"], "--method, --why-not, --of and --units are for one input"),
        (["--to", "0.5"], "--to, --decoder and --set are for a pair"),
    ],
)
def test_explain_tells_a_bad_option_in_one_line(assay: Command, words: list[str], told: str) -> None:
    ended = assay("explain", "fashion-cnn", *words)
    assert ended.status == 2
    (line,) = ended.complaints
    assert told in line
