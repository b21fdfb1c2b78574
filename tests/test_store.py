from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from assay import store
from assay.errors import AssayError
from assay.finding import Finding, Measure, Table, Witnesses
from assay.probe import Answer


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
    assert json.loads((tmp_path / "findings" / "p.json").read_text())["witnesses_left_out"] == 2


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
