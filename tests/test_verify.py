"""A forged run is refused at each of its links, and a stranger's run is only read."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import assay as package
from assay import shelf
from assay.audit import judgements
from assay.door import admit
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding, Measure, Table, wilson
from assay.jobs.verify import Verified, reference, verify
from assay.probe import Probe
from assay.report import write
from assay.run import Run
from assay.standard import Standard, Standards
from assay.store import answers, chain, strict_json
from assay.subject import Subject

if TYPE_CHECKING:
    from conftest import Command

ATTACK = "worst-case-accuracy"


def shapes(turn: int = 1) -> Subject:
    """Three noisy shapes and the model that knows them; `turn` -1 answers the other way round."""
    draw = torch.Generator().manual_seed(0)
    shape = (torch.rand(3, 1, 8, 8, generator=draw) < 0.5).float()
    y = torch.arange(90) % 3
    x = (0.3 + 0.4 * shape[y] + 0.45 * torch.randn(90, 1, 8, 8, generator=draw)).clamp(0, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with torch.no_grad():
        model[1].weight.copy_(turn * (shape - shape.mean(0)).flatten(1))
        model[1].bias.zero_()
    return Subject.classifier(model, (x, y), name="three shapes")


@pytest.fixture(scope="module", autouse=True)
def sketched() -> Iterator[None]:
    """Drawings take most of the time of a report, and are not what is asked here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay.report.page.draw", lambda view, key: f"<svg><title>{view.name}</title></svg>")
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three questions."""
    standards = Standards(settings={ATTACK: {"steps": 4}}, limits={"accuracy": (Standard(at_least=0.99),)})
    out = tmp_path_factory.mktemp("made")
    done = package.audit(shapes(), probes=["accuracy", "confidence", ATTACK], standards=standards, out=out)
    assert done.folder is not None
    assert done.row("accuracy").verdict == "fail"
    return done.folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it to forge."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def with_subject(folder: Path, subject: Callable[[], Subject] = shapes) -> Verified:
    return verify(folder, lambda: admit(subject()), Run(engine=ThisProcess()))


# How a forger goes about it.


def edit(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    """Change a JSON file, and write it as it was written."""
    stored = json.loads((folder / name).read_text())
    before = copy.deepcopy(stored)
    change(stored)
    assert stored != before
    (folder / name).write_text(json.dumps(stored, indent=1, ensure_ascii=False))


def edit_samples(folder: Path, probe: str, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    path = folder / "samples" / f"{probe}.parquet"
    table = pq.read_table(path)
    columns = {n: table[n].to_numpy().copy() for n in table.column_names}
    change(columns)
    pq.write_table(pa.table(columns).replace_schema_metadata(table.schema.metadata), path)


def edit_witnesses(folder: Path, probe: str, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    from safetensors import safe_open

    path = folder / "witnesses" / f"{probe}.safetensors"
    with safe_open(path, framework="numpy") as f:
        about = f.metadata()
    arrays = {k: a.copy() for k, a in load_file(path).items()}
    change(arrays)
    save_file(arrays, path, metadata=about)


def renew(folder: Path) -> None:
    """Make every digest anew, and let the audit say what its findings say, all the way up."""
    told = json.loads((folder / "audit.json").read_text())
    for row in told["rows"]:
        name = f"findings/{row['probe']}.json"
        stored = json.loads((folder / name).read_text())
        for other in stored["links"]:
            stored["links"][other] = sha256((folder / other).read_bytes()).hexdigest()
        (folder / name).write_text(json.dumps(stored, indent=1, ensure_ascii=False))
        row["measures"] = stored["finding"]["measures"]
    for name in told["links"]:
        told["links"][name] = sha256((folder / name).read_bytes()).hexdigest()
    (folder / "audit.json").write_text(json.dumps(told, indent=1, ensure_ascii=False))
    opened = package.open_audit(folder)
    rows = [replace(r, judgements=judgements(r.answer, r.standards, opened.alarms)) for r in opened.rows]
    (folder / "audit.json").write_text(strict_json(replace(opened, rows=tuple(rows)).to_json()))
    assert chain.broken(folder) == []


def headline(stored: Any) -> Any:
    return stored["finding"]["measures"][0]


# A run that nobody touched.


def test_a_run_that_nobody_touched_is_whole(made: Path) -> None:
    assert chain.broken(made) == []
    found = chain.links(made)
    assert {"audit.json", "run.json", "report.html", "junit.xml", "card.md", f"witnesses/{ATTACK}.safetensors"} <= set(
        found
    )
    assert any(name.startswith("figures/") for name in found)
    assert all(sha256((made / name).read_bytes()).hexdigest() == wanted for name, wanted in found.items())
    alone, together = verify(made), with_subject(made)
    assert (alone.broken, alone.lost, alone.status) == ((), (), 3)
    assert "no --subject was given" in alone.unchecked[0]
    assert (together.broken, together.lost, together.unchecked, together.status) == ((), (), (), 0)
    attacked = next(q for q in together.questions if q.probe == ATTACK)
    assert attacked.witnesses == attacked.held > 0
    assert attacked.follow == attacked.measures == 2


@dataclass(frozen=True)
class HowWell(Probe):
    """How well, in shares?"""

    source: ClassVar[str] = "nobody"

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"])
        well = np.random.default_rng(0).beta(2, 0.3, 90)[: len(index)]
        measure = Measure.mean("well", well, better="higher", seed=run.seed, unit="%", column="well")
        return Finding(says="So.", measures=(measure,), samples=Table("test", {"index": index, "well": well}))


def test_the_bets_of_an_audit_with_a_time_follow_from_their_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values on one side of the range: both ends of what bets leave lie below those of the bootstrap."""
    ours = shelf.ours
    # of those on our own shelf no interval is let by
    monkeypatch.setattr(shelf, "ours", lambda which: [*ours(which), HowWell.name()])
    done = package.audit(shapes(), probes=[HowWell(), "accuracy"], budget="60s", inputs=60, out=tmp_path)
    assert done.folder is not None
    (m,) = done.rows[0].answer.finding.measures  # type: ignore[union-attr]
    samples = done.rows[0].answer.finding.samples  # type: ignore[union-attr]
    once = Measure.mean("well", samples.columns["well"], better="higher", seed=0)  # type: ignore[union-attr]
    assert once.high is not None
    assert m.high is not None
    assert m.high < once.high  # so that it is not one of those that are wider
    verified = verify(done.folder)
    assert verified.broken == ()
    assert verified.questions[0].own_intervals == 0
    another = m.high + 0.002
    edit(done.folder, f"findings/{HowWell.name()}.json", lambda stored: headline(stored).update(high=another))
    renew(done.folder)
    assert any("its interval is said to be" in told for told in verify(done.folder).broken)


def test_it_needs_no_torch(made: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nsys.modules['torch'] = None\nfrom assay.jobs.verify import verify\n"
        f"sys.exit(verify(Path({str(made)!r})).status)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3


# Without the subject: what was changed, and which link says so.


def _value(folder: Path) -> None:
    edit(folder, "findings/accuracy.json", lambda s: headline(s).update(value=0.999))


def _verdict(folder: Path) -> None:
    def change(told: Any) -> None:
        told["rows"][0]["verdict"] = told["rows"][0]["judgements"][0]["verdict"] = "pass"

    edit(folder, "audit.json", change)


def _row(folder: Path) -> None:
    edit(folder, "audit.json", lambda told: told["rows"][0]["measures"][0].update(value=0.999))


def _status(folder: Path) -> None:
    edit(folder, "audit.json", lambda told: told.update(status=0))


def _noise(folder: Path) -> None:
    edit_witnesses(folder, ATTACK, lambda w: w.update(changed=np.zeros_like(w["changed"])))


def _no_samples(folder: Path) -> None:
    (folder / "samples" / "accuracy.parquet").unlink()


def _swapped(kind: str, ending: str) -> Callable[[Path], None]:
    def swap(folder: Path) -> None:
        one, two, free = (folder / kind / f"{name}.{ending}" for name in ("accuracy", "confidence", "free"))
        for source, target in ((one, free), (two, one), (free, two)):
            source.rename(target)

    return swap


def _page(folder: Path) -> None:
    page = folder / "report.html"
    page.write_text(page.read_text().replace("</html>", "<!-- --></html>"))


def _figure(folder: Path) -> None:
    next((folder / "figures").glob("*.svg")).write_text("<svg/>")


def _extra(folder: Path) -> None:
    shutil.copy(folder / "findings" / "accuracy.json", folder / "findings" / "certified-radius.json")


def _unvouched(folder: Path) -> None:
    edit(folder, "audit.json", lambda told: told["links"].pop("findings/accuracy.json"))


def _dropped(folder: Path) -> None:
    edit(folder, "audit.json", lambda told: told["rows"].pop(0))


FORGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a number": (_value, "findings/accuracy.json was changed after audit.json was written"),
    "a verdict": (_verdict, "the verdicts on accuracy in audit.json do not follow from its standards"),
    "a row": (_row, "audit.json says otherwise than findings/accuracy.json about its measures"),
    "the status": (_status, "the status 0 in audit.json is not that of its verdicts, which is 1"),
    "witnesses": (_noise, f"witnesses/{ATTACK}.safetensors was changed after findings/{ATTACK}.json was written"),
    "no samples": (_no_samples, "samples/accuracy.parquet is missing, and findings/accuracy.json vouches for it"),
    "findings swapped": (_swapped("findings", "json"), "findings/accuracy.json was changed after audit.json"),
    "samples swapped": (_swapped("samples", "parquet"), "samples/confidence.parquet was changed after findings/"),
    "the page": (_page, "report.html was changed after audit.json was written"),
    "a figure": (_figure, ".svg was changed after audit.json was written"),
    "a finding more": (_extra, "'findings/certified-radius.json' is vouched for by nothing in this run"),
    "a finding unvouched": (_unvouched, "audit.json tells of accuracy and vouches for no finding of it"),
    "a row less": (_dropped, "audit.json vouches for findings/accuracy.json and tells nothing of it"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_run_is_refused_at_the_link_that_broke(run: Path, what: str) -> None:
    forge, says = FORGED[what]
    forge(run)
    found = verify(run)
    assert found.status == 1
    assert any(says in sentence for sentence in found.broken), found.broken


def _number_anew(folder: Path) -> None:
    edit(folder, "findings/accuracy.json", lambda s: headline(s).update(value=0.999, high=1.0))


def _interval_anew(folder: Path) -> None:
    edit(folder, "findings/accuracy.json", lambda s: headline(s).update(low=headline(s)["value"]))


def _bootstrap_anew(folder: Path) -> None:
    def change(stored: Any) -> None:
        brier = next(m for m in stored["finding"]["measures"] if m["column"] == "brier")
        brier["high"] = brier["value"]

    edit(folder, "findings/confidence.json", change)


def _count_anew(folder: Path) -> None:
    edit(folder, "findings/accuracy.json", lambda s: headline(s).update(n=90_000))


def _without_samples(folder: Path) -> None:
    _no_samples(folder)
    edit(folder, "findings/accuracy.json", lambda s: s["links"].pop("samples/accuracy.parquet"))


def _called_right(folder: Path) -> None:
    edit_samples(folder, "accuracy", lambda c: c.update(right=np.ones_like(c["right"])))
    edit(folder, "findings/accuracy.json", lambda s: headline(s).update(value=1.0, low=wilson(90, 90)[0], high=1.0))


def _another_page(folder: Path) -> None:
    page = folder / "report.html"
    page.write_text(page.read_text().replace("90.0", "99.9"))


def _another_card(folder: Path) -> None:
    page = folder / "card.md"
    page.write_text(page.read_text().replace("90.0", "99.9"))


CONSISTENT: dict[str, tuple[Callable[[Path], None], str]] = {
    "a number": (_number_anew, "it is said to be 0.999, and the column 'right' has the mean 0.9"),
    "an interval": (_interval_anew, "its interval is said to be"),
    "a drawn interval": (_bootstrap_anew, "its interval is said to be"),
    "a count": (_count_anew, "it is said to be of 90000 inputs, and the column 'right' has 90"),
    "no samples": (_without_samples, "findings/accuracy.json tells of samples, and vouches for none"),
    "all right": (_called_right, "answers right or wrong against its labels"),
    "the page": (_another_page, "report.html does not say what the findings say"),
    "the card": (_another_card, "card.md does not say what the findings say"),
}


@pytest.mark.parametrize("what", CONSISTENT)
def test_digests_made_anew_do_not_make_a_number_follow_from_its_samples(run: Path, what: str) -> None:
    forge, says = CONSISTENT[what]
    forge(run)
    renew(run)
    found = verify(run)
    assert found.status == 1
    assert any(says in sentence for sentence in found.broken), found.broken


# With the subject: what is consistent all the way up and still not so.


def _better_answers(folder: Path) -> None:
    """Every answer right, by saying that the model said so."""
    _called_right(folder)
    edit_samples(folder, "accuracy", lambda c: c.update(said=c["label"].copy()))


def _better_labels(folder: Path) -> None:
    """Every answer right, by calling what the model said the label."""
    _called_right(folder)
    edit_samples(folder, "accuracy", lambda c: c.update(label=c["said"].copy()))


def _other_inputs(folder: Path) -> None:
    noise = np.random.default_rng(0)

    def change(w: dict[str, np.ndarray]) -> None:
        w["clean"] = w["changed"] = noise.random(w["clean"].shape, dtype=np.float32)

    edit_witnesses(folder, ATTACK, change)


def _other_changes(folder: Path) -> None:
    noise = np.random.default_rng(0)
    edit_witnesses(folder, ATTACK, lambda w: w.update(changed=noise.random(w["clean"].shape, dtype=np.float32)))


def _not_as_it_is(folder: Path) -> None:
    edit_witnesses(folder, "accuracy", lambda w: w.update(changed=np.zeros_like(w["changed"])))


def _other_truth(folder: Path) -> None:
    edit_witnesses(folder, ATTACK, lambda w: w.update(label=(w["label"] + 1) % 3))


def _any_size(folder: Path) -> None:
    edit_witnesses(folder, ATTACK, lambda w: w.update(radius=np.full_like(w["radius"], np.nan)))


def _nowhere(folder: Path) -> None:
    edit_samples(folder, "accuracy", lambda c: c.update(index=c["index"] + 1_000_000))


DEEP: dict[str, tuple[Callable[[Path], None], str]] = {
    "answers": (_better_answers, "answers that the subject does not give"),
    "labels": (_better_labels, "samples/accuracy.parquet has another label than 'test' for"),
    "clean inputs": (_other_inputs, f"witnesses/{ATTACK}.safetensors: input 0 is not the one of the data"),
    "inputs as they are": (_not_as_it_is, "is said to be as it is, and was changed"),
    "labels of witnesses": (_other_truth, f"witnesses/{ATTACK}.safetensors has another label than 'test' for"),
    "radii": (_any_size, f"witnesses/{ATTACK}.safetensors has a witness whose radius is no number"),
    "inputs that are not there": (_nowhere, "samples/accuracy.parquet is about inputs that 'test' does not have"),
}


@pytest.mark.parametrize("what", DEEP)
def test_what_is_consistent_all_the_way_up_is_refused_by_the_subject(run: Path, what: str) -> None:
    forge, says = DEEP[what]
    forge(run)
    renew(run)
    if forge in (_better_answers, _better_labels):
        write(package.open_audit(run), run)  # the pages, too
    assert verify(run).broken == ()  # nothing in the folder shows it
    found = with_subject(run)
    assert found.status == 1
    assert any(says in sentence for sentence in found.broken), found.broken


def test_changes_that_were_made_up_are_lost(run: Path) -> None:
    _other_changes(run)
    renew(run)
    found = with_subject(run)
    assert found.status == 1
    assert found.broken == ()
    assert len(found.lost) > 0
    assert all(ATTACK in each for each in found.lost)


def test_another_subject_is_told_from_the_one_that_was_audited(made: Path) -> None:
    found = with_subject(made, lambda: shapes(turn=-1))
    assert found.status == 1
    assert any(
        "the subject here has the fingerprint" in each and "weights or its code" in each for each in found.broken
    )
    assert found.lost


def test_something_else_altogether_is_told_in_one_line(made: Path) -> None:
    x = torch.rand(9, 4)
    rows = Subject.classifier(nn.Linear(4, 2), (x, torch.arange(9) % 2), name="rows")
    found = with_subject(made, lambda: rows)
    (says,) = found.broken
    assert "the run is of another subject: it was made on" in says
    assert "--subject opens rows (Classification, inputs of 4, 10 parameters); give what was audited" in says
    assert found.status == 1
    assert not found.lost
    assert all(q.held is None for q in found.questions)


def test_a_model_that_cannot_be_hashed_is_not_called_another(made: Path) -> None:
    def held() -> Subject:
        subject = shapes()
        subject.model.lock = threading.Lock()  # type: ignore[assignment]
        return subject

    found = with_subject(made, held)
    assert (found.broken, found.lost, found.status) == ((), (), 3)
    assert "it holds something that cannot be hashed" in found.unchecked[0]


# A stranger's run.


def test_no_code_and_no_consent_is_taken_from_a_run(
    run: Path, assay: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evil = "open('was-here', 'w').close()\ndef build(): ...\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(evil)
    (run / "evil.py").write_text(evil)
    (tmp_path / "evil.pt").write_bytes(b"cposix\nsystem\n(S'touch was-here'\ntR.")
    for source in (
        ["evil.py:build"],
        [str(run / "evil.py") + ":build"],
        ["evil.pt", "--allow-pickle"],
        ["digits-mlp", "--allow-pickle"],
        ["digits-mlp", "--data", "evil.py"],
    ):
        edit(run, "audit.json", lambda told, source=source: told.update(source=source))
        assert reference(run) is None
        ended = assay("verify", str(run))
        assert ended.status == 1  # for evil.py, which no link leads to
        assert "broken: 'evil.py' is vouched for by nothing in this run" in ended.out
        assert "not checked: the model and the data: no --subject was given" in ended.out
        assert not list(tmp_path.rglob("was-here"))


def test_only_a_subject_of_our_own_is_opened_by_the_name_in_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(run, "audit.json", lambda told: told.update(source=["digits-mlp"]))
    assert reference(run) == "digits-mlp"
    theirs = EntryPoint("theirs", "evil:SHELVED", "assay.subjects")
    monkeypatch.setattr(shelf, "_entry_points", lambda which: {"theirs": theirs})
    assert "theirs" in shelf.names("subjects")
    edit(run, "audit.json", lambda told: told.update(source=["theirs"]))
    assert reference(run) is None


def test_options_of_a_subject_want_a_subject(run: Path, assay: Command) -> None:
    ended = assay("verify", str(run), "--data", "images")
    assert (ended.status, len(ended.complaints)) == (2, 1)
    assert "--subject" in ended.err


def test_a_report_is_written_anew_only_of_findings_that_stand(run: Path, assay: Command) -> None:
    page = (run / "report.html").read_text()
    _page(run)
    assert assay("report", str(run)).status == 0
    assert (run / "report.html").read_text() == page
    assert chain.broken(run) == []
    _no_samples(run)
    ended = assay("report", str(run))
    assert ended.status == 2
    assert "samples/accuracy.parquet is missing" in ended.complaints[0]


def test_two_audits_of_one_folder_tell_of_the_answer_that_stands(run: Path) -> None:
    opened = package.open_audit(run)
    answer = opened.rows[0].answer
    assert answer.finding is not None
    mine = replace(
        answer.finding, measures=tuple(replace(m, value=1.0, low=1.0, high=1.0) for m in answer.finding.measures)
    )
    late = replace(opened.rows[0], answer=replace(answer, seconds=answer.seconds + 1, finding=mine))
    write(replace(opened, rows=(late, *opened.rows[1:])), run)  # another audit of this folder was first
    assert verify(run).broken == ()
    assert package.open_audit(run).row("accuracy").verdict == "fail"


# What a hostile folder holds.


def _leads_out(folder: Path) -> None:
    edit(folder, "audit.json", lambda told: told["links"].update({"../outside": "0" * 64}))


def _absolute(folder: Path) -> None:
    edit(folder, "audit.json", lambda told: told["links"].update({"/etc/hostname": "0" * 64}))


def _linked(folder: Path) -> None:
    (folder / "outside").mkdir()
    shutil.move(folder / "samples", folder / "outside" / "samples")
    (folder / "samples").symlink_to(folder / "outside" / "samples")


def _pipe(folder: Path) -> None:
    _no_samples(folder)
    os.mkfifo(folder / "samples" / "accuracy.parquet")


def _large(folder: Path) -> None:
    with open(folder / "report.html", "wb") as f:
        f.truncate(2**40)  # sparse: it takes no room


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a name that leads out": (_leads_out, "'../outside' is no name of a file in"),
    "an absolute name": (_absolute, "'/etc/hostname' is no name of a file in"),
    "a symbolic link": (_linked, "'samples/accuracy.parquet' in .* is no plain file"),
    "a pipe": (_pipe, "'samples/accuracy.parquet' in .* is no plain file"),
    "a terabyte": (_large, "'report.html' in .* has 1,099,511,627,776 bytes, where at most"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_folder_is_told_of_and_not_followed(run: Path, what: str) -> None:
    forge, says = HOSTILE[what]
    if what == "a pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("no pipes here")
    forge(run)
    found = verify(run)
    assert found.status == 1
    assert any(re.search(says, sentence) for sentence in found.broken), found.broken


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[" * 100_000, "Cannot read the audit .* nested too deeply; audit again"),
        ("[]", "Cannot read the audit .* it is a list and no object"),
        ('{"format": NaN}', "Cannot read the audit .* NaN is no number"),
        ('{"format": 2, "format": 2}', "Cannot read the audit .* a name stands twice"),
        ('{"format": 1}', "has format 1, and this version of Assay reads format 2; audit again, or open it with"),
    ],
)
def test_an_audit_that_is_none_is_one_line(run: Path, assay: Command, content: str, says: str) -> None:
    (run / "audit.json").write_text(content)
    for command in ("verify", "report"):
        ended = assay(command, str(run))
        assert (ended.status, len(ended.complaints), ended.err.count("\n")) == (2, 1, 1), ended
        assert re.search(says, ended.complaints[0]), ended.complaints


@pytest.mark.parametrize("subject", [5, {}, {"name": 5}, None])
def test_a_subject_that_is_none_is_told(run: Path, subject: object) -> None:
    edit(run, "audit.json", lambda told: told.update(subject=subject))
    with pytest.raises(AssayError, match="Cannot read the audit .*; audit again"):
        package.open_audit(run)
    with pytest.raises(AssayError, match="Cannot read the audit .*; audit again"):
        verify(run)


@pytest.mark.parametrize("probe", ["../../outside", "/etc/passwd", "a/b", "", "..", 5, None])
def test_a_question_is_no_path(run: Path, probe: object) -> None:
    edit(run, "audit.json", lambda told: told["rows"][0].update(probe=probe))
    with pytest.raises(AssayError, match="is no file name"):
        package.open_audit(run)


@pytest.mark.parametrize("field", ["value", "name", "n", "better", "beside", "column"])
def test_a_measure_of_another_type_is_told(run: Path, field: str) -> None:
    edit(run, "findings/accuracy.json", lambda s: headline(s).update({field: {"a": 1}}))
    with pytest.raises(AssayError, match="Cannot read the finding"):
        package.open_audit(run)


def test_samples_that_unpack_to_far_more_than_they_are_are_not_unpacked(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "SAMPLES_BYTES", 2**22)
    path = run / "samples" / "accuracy.parquet"
    for columns in (
        {"index": np.zeros(2**20, dtype=np.int8)},  # one number, a million times
        {"index": np.arange(1000), "said": ["x" * 2**14] * 1000},  # one long word, a thousand times
    ):
        pq.write_table(pa.table(columns).replace_schema_metadata({"split": "test"}), path)
        assert path.stat().st_size < 2**17
        renew(run)
        found = verify(run)
        assert any("samples/accuracy.parquet cannot be read" in each for each in found.broken), found.broken
    pq.write_table(pa.table({"index": np.arange(10)}), path, compression="zstd")
    renew(run)
    assert any("it is packed with ZSTD" in each for each in verify(run).broken)


def test_witnesses_that_are_none_are_told(run: Path) -> None:
    edit_witnesses(run, ATTACK, lambda w: w.update(radius=w["radius"][:1]))
    renew(run)
    assert any("arrays of one length" in each for each in verify(run).broken)
