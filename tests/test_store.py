from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import threading
from datetime import datetime
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay import store
from assay.audit import open_audit
from assay.errors import AssayError
from assay.finding import Bars, Finding, Measure, Table, Witnesses
from assay.jobs.audit import audit
from assay.probe import Answer, Look, Probe
from assay.store import answers


def answer(key="ab12", n=5, status="asked"):
    rng = np.random.default_rng(0)
    x = rng.random((n, 1, 4, 4), dtype=np.float32)
    finding = Finding(
        says="so",
        measures=(Measure(name="m", value=0.5, better="higher", column="right"),),
        samples=Table(
            "test",
            {
                "index": np.arange(n),
                "right": rng.random(n) > 0.5,
                "said": np.array(["é<"] * n),
                "radius": np.array([1.0, np.nan] + [2.0] * (n - 2)),
            },
        ),
        witnesses=Witnesses(
            split="test",
            index=np.arange(n),
            clean=x,
            changed=x + 1e-8,
            label=np.arange(n),
            said=np.arange(n),
            norm=("linf",) * n,
            radius=np.full(n, 0.1),
            how=("pgd",) * n,
        ),
    )
    return Answer(
        probe="p",
        question="Why?",
        source="s",
        settings={"radius": 0.03},
        key=key,
        status=status,
        finding=finding if status == "asked" else None,
        why="",
        seconds=1.5,
        when="now",
    )


def test_an_answer_comes_back_whole(tmp_path):
    store.save_answer(tmp_path, answer())
    back = store.load_answer(tmp_path / "findings" / "p.json")
    assert (back.probe, back.settings, back.key, back.seconds) == ("p", {"radius": 0.03}, "ab12", 1.5)
    original = answer().finding
    assert back.finding.measures == original.measures
    w = back.finding.witnesses
    assert w.changed.dtype == np.float32
    assert (w.changed == original.witnesses.changed).all()  # full precision
    assert (w.norm, w.how) == (original.witnesses.norm, original.witnesses.how)
    table = back.finding.samples
    assert table.split == "test"
    assert table.columns["said"].tolist() == ["é<"] * 5
    assert np.isnan(table.columns["radius"][1])


@pytest.mark.parametrize(("stored", "read"), [("proved", "proved"), ("no theme", "other"), (None, "right")])
def test_an_answer_from_before_there_were_themes_stands_where_its_probe_does(tmp_path, stored, read):
    store.save_answer(tmp_path, dataclasses.replace(answer(), probe="accuracy", theme="proved"))
    path = tmp_path / "findings" / "accuracy.json"
    told = json.loads(path.read_text())
    assert told.pop("theme") == "proved"
    path.write_text(json.dumps(told | ({} if stored is None else {"theme": stored})))
    assert store.load_answer(path).theme == read


def test_a_finding_is_found_by_its_key_in_this_run_or_another(tmp_path):
    one, two = tmp_path / "1-s", tmp_path / "2-s"
    store.save_answer(one, answer("aa"))
    assert store.find_answer(tmp_path, two, "p", "bb") is None
    found = store.find_answer(tmp_path, two, "p", "aa")
    assert found is not None
    assert (two / "witnesses" / "p.safetensors").exists()  # carried over whole
    assert store.load_answer(two / "findings" / "p.json").finding.samples is not None


def test_a_failure_is_asked_again(tmp_path):
    store.save_answer(tmp_path / "1", answer("aa", status="failed"))
    assert store.find_answer(tmp_path, tmp_path / "1", "p", "aa") is None


def test_a_run_is_opened_again_by_its_key(tmp_path):
    first = store.open_run(tmp_path, "a/b <c>", "aa", {"seed": 0})
    assert first.name.endswith("-a-b-c")
    assert json.loads((first / "run.json").read_text())["seed"] == 0
    assert store.open_run(tmp_path, "a/b <c>", "aa", {}) == first
    second = store.open_run(tmp_path, "a/b <c>", "bb", {})
    assert second != first
    assert not any(p.name.startswith(".") for p in tmp_path.rglob("*"))


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    folder = store.open_run(tmp_path, "s", "aa", {})
    (folder / "findings").mkdir()
    names = (f"findings/.p.json.{1:016x}.part", f".audit.json.{2:016x}.part", f".card.md.{3:016x}.part", ".hidden")
    dead, alive, young, foreign = (folder / name for name in names)
    for path in (dead, alive, young, foreign):
        path.write_text("half")
        os.utime(path, (0, 0) if path is not young else None)
    with open(alive) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.open_run(tmp_path, "s", "aa", {})
        assert [p.exists() for p in (dead, alive, young, foreign)] == [False, True, True, True]
    store.open_run(tmp_path, "s", "aa", {})
    assert not alive.exists()


def test_half_a_file_is_never_seen(tmp_path, monkeypatch):
    target = tmp_path / "audit.json"
    store.write_atomically(target, "old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AssayError, match="audit.json': No space left on device; free some space"):
        store.write_atomically(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["audit.json"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AssayError, match="Cannot write .*x.json.*; .* --out"):
        store.write_atomically(tmp_path / "file" / "x.json", "")


def test_a_broken_finding_is_named(tmp_path):
    store.save_answer(tmp_path, answer())
    path = tmp_path / "findings" / "p.json"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(AssayError, match="Cannot read the finding .*; delete it and audit again"):
        store.load_answer(path)


def test_witnesses_that_would_fill_the_disk_are_counted_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(store.answers, "WITNESS_BYTES", 3 * 2 * 64)
    store.save_answer(tmp_path, answer())
    assert len(store.load_answer(tmp_path / "findings" / "p.json").finding.witnesses) == 3
    assert store.answers.witnesses_kept(tmp_path, "p") == (3, 2)


def test_witnesses_that_the_question_had_no_room_for_stay_counted_where_the_answer_is_stored_again(tmp_path):
    found = answer()
    thinned = dataclasses.replace(found.finding, witnesses=dataclasses.replace(found.finding.witnesses, left_out=7))
    store.save_answer(tmp_path / "a", dataclasses.replace(found, finding=thinned))
    store.save_answer(tmp_path / "b", store.load_answer(tmp_path / "a" / "findings" / "p.json"))
    assert store.answers.witnesses_kept(tmp_path / "b", "p") == (len(found.finding.witnesses), 7)


def test_nothing_is_null_that_is_not_none():
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.strict_json({"a": float("nan")})


def test_a_stored_answer_opens_without_torch(tmp_path):
    store.save_answer(tmp_path, answer())
    code = (
        "import sys; from pathlib import Path; from assay import store; "
        f"a = store.load_answer(Path({str(tmp_path)!r}) / 'findings' / 'p.json'); "
        "assert a.finding.samples is not None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# What cannot be believed is set aside and asked again.


def _torn(folder):
    path = folder / "findings" / "p.json"
    path.write_text(path.read_text()[:-40])


def _empty(folder):
    (folder / "findings" / "p.json").write_bytes(b"")


def _older(folder):
    path = folder / "findings" / "p.json"
    path.write_text(path.read_text().replace(f'"format": {store.FORMAT}', '"format": 1'))


def _foreign(folder):
    (folder / "findings" / "p.json").write_text('{"key": "aa", "format": "theirs"}')


def _without_samples(folder):
    (folder / "samples" / "p.parquet").unlink()


def _other_samples(folder):
    (folder / "samples" / "p.parquet").write_bytes(b"half")


def _a_link(folder):
    path = folder / "findings" / "p.json"
    path.rename(folder / "elsewhere.json")
    path.symlink_to(folder / "elsewhere.json")


@pytest.mark.parametrize("break_it", [_torn, _empty, _older, _foreign, _without_samples, _other_samples, _a_link])
def test_a_finding_that_cannot_be_believed_is_set_aside_and_asked_again(tmp_path, caplog, break_it):
    folder = tmp_path / "1-s"
    store.save_answer(folder, answer("aa"))
    break_it(folder)
    assert store.find_answer(tmp_path, folder, "p", "aa") is None
    assert not (folder / "findings" / "p.json").exists()
    assert len(list((folder / "aside").iterdir())) == 1
    (told,) = caplog.messages
    assert "\n" not in told
    assert "'findings/p.json' is set aside as" in told
    assert "and asked again: " in told
    store.save_answer(folder, answer("aa"))
    assert store.find_answer(tmp_path, folder, "p", "aa") is not None


def _vouched(folder):
    head = {"links": {"findings/p.json": store.files.digest(folder, "findings/p.json")}}
    (folder / "audit.json").write_text(store.strict_json(head))


def _another_value(folder):
    path = folder / "findings" / "p.json"
    path.write_text(path.read_text().replace('"value": 0.5', '"value": 0.9'))


@pytest.mark.parametrize("change_it", [_another_value, _a_link, _torn])
def test_a_finding_that_is_not_the_one_its_audit_vouches_for_is_set_aside(tmp_path, caplog, change_it):
    folder = tmp_path / "1-s"
    store.save_answer(folder, answer("aa"))
    answers.set_aside_changed(folder, ["p", "q"])  # nothing vouches for it yet
    _vouched(folder)
    answers.set_aside_changed(folder, ["p", "q"])  # it is the one
    assert not (folder / "aside").exists()
    change_it(folder)
    answers.set_aside_changed(folder, ["p", "q"])
    assert len(list((folder / "aside").iterdir())) == 1
    (told,) = caplog.messages
    assert told.endswith("and asked again: it was changed after audit.json was written")
    assert store.find_answer(tmp_path, folder, "p", "aa") is None


def test_of_two_audits_of_one_folder_the_one_that_looked_more_often_stands(tmp_path):
    """What it wrote is no change by somebody, if it is whole and answers the same question."""
    look = Look(inputs=5, steps=20, n=5, value=0.5, low=0.0, high=1.0, seconds=1.0, at=1.0, grows="inputs")
    ours = dataclasses.replace(answer("aa"), looks=(look,))
    more = dataclasses.replace(ours, looks=(look, look))
    written = store.save_answer(tmp_path, ours)
    assert written == store.files.digest(tmp_path, "findings/p.json")
    assert not answers.looked_more(tmp_path, "findings/p.json", ours)
    assert store.save_answer(tmp_path, more) != written
    assert answers.looked_more(tmp_path, "findings/p.json", ours)
    assert store.save_answer(tmp_path, ours) == store.files.digest(tmp_path, "findings/p.json") != written  # it stands
    assert not answers.looked_more(tmp_path, "findings/p.json", dataclasses.replace(ours, key="bb"))
    (tmp_path / "samples" / "p.parquet").write_bytes(b"another")
    assert not answers.looked_more(tmp_path, "findings/p.json", ours)


def test_a_finding_of_another_run_that_was_changed_is_not_carried_over(tmp_path):
    store.save_answer(tmp_path / "1-s", answer("aa"))
    _vouched(tmp_path / "1-s")
    _another_value(tmp_path / "1-s")
    assert store.find_answer(tmp_path, tmp_path / "2-s", "p", "aa") is None
    assert (tmp_path / "1-s" / "findings" / "p.json").exists()


@pytest.mark.parametrize("head", ["", "[]", "{}", '{"links": 3}', '{"links": null}'])
def test_an_audit_that_vouches_for_nothing_sets_nothing_aside(tmp_path, head):
    store.save_answer(tmp_path, answer("aa"))
    (tmp_path / "audit.json").write_text(head)
    answers.set_aside_changed(tmp_path, ["p"])
    assert (tmp_path / "findings" / "p.json").exists()


def test_what_is_set_aside_is_told_on_stderr_in_one_line(tmp_path):
    folder = tmp_path / "1-s"
    store.save_answer(folder, answer("aa"))
    _torn(folder)
    code = f"from pathlib import Path; from assay import store; r = Path({str(tmp_path)!r}); " + (
        "store.find_answer(r, r / '1-s', 'p', 'aa')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.stderr.startswith("'findings/p.json' is set aside as")
    assert done.stderr.count("\n") == 1


def test_the_broken_finding_of_another_run_is_passed_over_and_left_where_it_is(tmp_path):
    store.save_answer(tmp_path / "1-s", answer("aa"))
    store.save_answer(tmp_path / "2-s", answer("aa"))
    _other_samples(tmp_path / "2-s")
    found = store.find_answer(tmp_path, tmp_path / "3-s", "p", "aa")
    assert found is not None
    assert store.load_answer(tmp_path / "3-s" / "findings" / "p.json").finding.samples is not None
    assert (tmp_path / "2-s" / "findings" / "p.json").exists()


def test_samples_that_were_changed_are_not_read(tmp_path):
    store.save_answer(tmp_path, answer())
    _other_samples(tmp_path)
    with pytest.raises(AssayError, match="samples/p.parquet was changed after findings/p.json was written"):
        store.load_answer(tmp_path / "findings" / "p.json")


def test_what_an_older_answer_left_goes_with_it(tmp_path):
    store.save_answer(tmp_path, answer("aa"))
    store.save_answer(tmp_path, answer("bb", status="failed"))
    assert not (tmp_path / "samples" / "p.parquet").exists()
    assert not (tmp_path / "witnesses" / "p.safetensors").exists()


# Files and folders that last, and writers that share them.


def test_folders_are_synced_as_files_are(tmp_path, monkeypatch):
    done, sync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(os.fstat(fd).st_ino), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("renamed"), rename(*paths)))
    store.write_atomically(tmp_path / "a" / "b" / "file", "content")
    file, inner, outer, top = (
        p.stat().st_ino for p in (tmp_path / "a/b/file", tmp_path / "a/b", tmp_path / "a", tmp_path)
    )
    assert done == [top, outer, file, "renamed", inner]


def test_two_containers_with_the_same_process_number_draw_different_temporary_names(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    drawn, rename = [], os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: (drawn.append(str(source)), rename(source, target)))
    for _ in range(3):
        store.write_atomically(tmp_path / "audit.json", "{}")
    assert len(set(drawn)) == 3


def test_a_turn_is_waited_for(tmp_path):
    pytest.importorskip("fcntl")
    inside = threading.Event()

    def second():
        with store.turn(tmp_path):
            inside.set()

    other = threading.Thread(target=second)
    with store.turn(tmp_path):
        other.start()
        assert not inside.wait(0.2)
    other.join(60)
    assert inside.is_set()


def test_a_writer_that_hangs_holds_nobody_up_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(store.files, "PATIENCE", 0.05)
    with store.turn(tmp_path), store.turn(tmp_path):
        pass


def test_where_there_are_no_locks_an_answer_is_written_again_until_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(store.files, "flock", None)
    write, disturbed = store.write_atomically, []

    def disturbing(path, content):
        if path.parent.name == "findings" and not disturbed:
            disturbed.append(path)
            store.save_answer(tmp_path, answer("bb", n=3))  # another audit, between samples and finding
        return write(path, content)

    monkeypatch.setattr(store.answers, "write_atomically", disturbing)
    store.save_answer(tmp_path, answer("aa", n=5))
    assert disturbed
    back = store.load_answer(tmp_path / "findings" / "p.json")
    assert (back.key, len(back.finding.samples)) == ("aa", 5)


def test_the_first_of_two_answers_to_one_question_stands(tmp_path):
    store.save_answer(tmp_path, answer("aa", n=5))
    store.save_answer(tmp_path, answer("aa", n=3))
    assert len(store.load_answer(tmp_path / "findings" / "p.json").finding.samples) == 5


def test_two_processes_that_write_one_folder_leave_it_whole(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[3]); from pathlib import Path; from test_store import answer, store\n"
        "for i in range(25): store.save_answer(Path(sys.argv[1]), answer(sys.argv[2], n=4 + i % 3))"
    )
    here = os.path.dirname(__file__)
    words = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen([*words, key, here]) for key in ("aa", "bb")]
    assert [each.wait(120) for each in both] == [0, 0]
    store.load_answer(tmp_path / "findings" / "p.json")
    assert not list(tmp_path.rglob("*.part"))


def test_a_clock_that_is_set_back_does_no_harm(tmp_path, monkeypatch):
    class Clock(datetime):
        year_now = 2030

        @classmethod
        def now(cls, zone=None):
            return datetime(cls.year_now, 1, 1, tzinfo=zone)

    monkeypatch.setattr(store.runs, "datetime", Clock)
    first = store.open_run(tmp_path, "s", "aa", {})
    store.save_answer(first, answer("aa", status="failed"))
    Clock.year_now = 1971
    assert store.open_run(tmp_path, "s", "aa", {}) == first
    second = store.open_run(tmp_path, "s", "bb", {})
    store.save_answer(second, answer("aa"))
    assert second.name < first.name  # newer, with the older name
    assert store.find_answer(tmp_path, first, "p", "aa") is not None  # and its answer is found
    assert len({first, second, *(store.open_run(tmp_path, "s", key, {}) for key in ("cc", "dd"))}) == 4


@pytest.mark.parametrize("probe", ["../p", "/etc/p", "a/b", ".hidden", ""])
def test_an_answer_is_written_nowhere_else(tmp_path, probe):
    with pytest.raises(AssayError, match="is no file name"):
        store.save_answer(tmp_path, dataclasses.replace(answer(), probe=probe))


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_nothing_is_written_through_a_link_in_a_run(tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (run / "run.json").write_text("{}")
    (run / "findings").symlink_to(outside)
    with pytest.raises(AssayError, match=r"'findings' is a link, and may lead out of the run"):
        store.save_answer(run, answer())
    assert not list(outside.iterdir())


@pytest.mark.parametrize("inside", ["", "half"])
def test_a_run_that_was_killed_before_it_began_is_swept_once_it_is_old(tmp_path, inside):
    stub, young, busy, foreign = (
        tmp_path / name for name in ("20260101-000000-s", "20260101-000001-s", "20260101-000002-s", "empty")
    )
    for folder in (stub, young, busy, foreign):
        folder.mkdir()
        if inside:
            half = folder / f".run.json.{7:016x}.part"
            half.write_text(inside)
            os.utime(half, (0, 0))
    (busy / "notes.txt").write_text("mine")
    for folder in (stub, busy, foreign):
        os.utime(folder, (0, 0))
    begun = store.open_run(tmp_path, "s", "aa", {})
    assert {p.name for p in tmp_path.iterdir()} == {young.name, busy.name, foreign.name, begun.name}
    assert (busy / "notes.txt").read_text() == "mine"
    os.utime(young, (0, 0))
    assert store.open_run(tmp_path, "s", "aa", {}) == begun
    assert not young.exists()


def test_what_is_written_can_be_read_again_and_what_is_too_long_is_told_with_its_longest_part(tmp_path, monkeypatch):
    monkeypatch.setattr(store.answers, "JSON_BYTES", 5000)
    longest = 0
    for size in range(2000, 5000, 100):
        found, folder = answer(), tmp_path / str(size)
        found = dataclasses.replace(found, finding=dataclasses.replace(found.finding, says="é" * (size // 2)))
        try:
            store.save_answer(folder, found)
        except store.TooLarge as e:
            told = str(e)
            assert not list(folder.rglob("*.*"))
        else:
            longest = size
            assert store.load_answer(folder / "findings" / "p.json").finding.says == found.finding.says
    assert 2500 < longest < 4500
    assert "where 5,000 are read; keep less in its sentence (4,9" in told


@dataclasses.dataclass(frozen=True)
class IsItLong(Probe):
    """Does it go on and on?"""

    source: ClassVar[str] = "nobody"

    def ask(self, subject, run):
        measure = Measure(name="m", value=0.5, better="higher")
        view = Bars(name="on and on", title="t", y_label="y", labels=("a" * 300_000,), values=(1.0,))
        return Finding(says="So.", measures=(measure,), views=(view,))


@pytest.mark.usefixtures("undrawn")
def test_a_finding_too_long_to_be_read_breaks_its_question_alone(tmp_path, monkeypatch, digits):
    monkeypatch.setattr(store.answers, "JSON_BYTES", 250_000)
    done = audit(digits, probes=[IsItLong(), "accuracy"], out=tmp_path)
    assert done.status == 2
    assert [row.answer.status for row in done.rows] == ["failed", "asked"]
    assert "keep less in its view 'on and on' (300," in done.rows[0].answer.why
    assert open_audit(done.folder).status == 2


class IsItANumber(IsItLong):
    """Is what it draws a number?"""

    def ask(self, subject, run):
        measure = Measure(name="m", value=0.5, better="higher")
        view = Bars(name="none", title="t", y_label="y", labels=("a",), values=(float("nan"),))
        return Finding(says="So.", measures=(measure,), views=(view,))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("budget", ["quick", "30s"])
def test_a_finding_that_is_no_json_breaks_its_question_alone(tmp_path, digits, budget):
    done = audit(digits, probes=[IsItANumber(), "accuracy"], out=tmp_path, budget=budget)
    assert [row.answer.status for row in done.rows] == ["failed", "asked"]
    assert done.rows[0].answer.why.startswith("Its view 'none' cannot be kept: Out of range float values")
    assert open_audit(done.folder).status == 2


@pytest.mark.parametrize(
    "column",
    [
        np.array([True, False, True]),
        np.array([0.5, np.nan, -np.inf], dtype=np.float32),
        np.array([0.5, 1.0, 2.0]),
        np.arange(9).reshape(3, 3)[:, 1],
        np.array([3, 250, 0], dtype=np.uint8),
        np.array([1.5, np.nan, 2.0], dtype=np.float16),
        np.array(["", "größer", "日本"]),
        np.array(["a", None, "c"], dtype=object),
        np.array(["2025-05-02", "NaT", "2025-05-04"], dtype="datetime64[s]"),
        np.array([[1, 2], [3, 4]])[:0, 0],
        np.array([], dtype=str),
        np.tile([True, False, np.nan], 5).astype(np.float64),
    ],
    ids=lambda column: f"{column.dtype}-{len(column)}",
)
def test_a_column_is_written_as_pyarrow_would(column):
    want = pa.table({"index": pa.array(column, from_pandas=True)}).replace_schema_metadata({"split": "test"})
    out = io.BytesIO()
    pq.write_table(want, out)
    assert answers._table_bytes(Table("test", {"index": column})) == out.getvalue()


@pytest.mark.parametrize("n", [0, 1, 9, 70])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", ["bool", "uint8", "int64", "float16", "float32", "float64", "string", "dictionary"])
def test_a_column_is_read_as_pyarrow_would(kind, missing, n):
    values = np.random.default_rng(0).integers(0, 2 if kind == "bool" else 100, n)
    values = values.astype(str if kind in ("string", "dictionary") else kind)
    whole = pa.array(values, mask=np.arange(n) % 3 == 0 if missing else None)
    cuts = ([whole], [whole.slice(1), whole.slice(0, 0), whole.slice(2, 3), whole], [])  # offsets, and nothing at all
    for chunks in cuts:
        column = pa.chunked_array(chunks, whole.type)
        want = np.asarray(column.to_numpy(zero_copy_only=False))
        if kind == "dictionary":  # of which pyarrow gives some other word for one that is missing
            column = column.dictionary_encode()
        got = answers._numpy(column)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_writing_and_reading_samples_imports_no_pandas():
    code = (
        "import sys; import numpy as np; from assay.finding import Table; from assay.store import answers\n"
        "table = Table('test', {'index': np.arange(3), 'right': np.array([True, False, True]),\n"
        "    'score': np.array([0.5, np.nan, 1.0]), 'word': np.array(['a', 'b', ''])})\n"
        "content = answers._table_bytes(table)\n"
        "print(content[:4], 'pandas' in sys.modules)\n"
        "print(answers.read_table(content).columns['word'].tolist(), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "b'PAR1' False\n['a', 'b', ''] False\n"
