from __future__ import annotations

import importlib.metadata
import json
import os
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import assay.probes
from assay import shelf
from assay.claim import Claim
from assay.errors import AssayError
from assay.probe import OTHER, THEMES, Probe, configure
from assay.remedy import Remedy
from assay.subject import Recipe


@pytest.mark.parametrize("name", shelf.names("probes"))
def test_every_probe_is_a_question_with_settings_and_a_source(name):
    kind = shelf.load("probes", name)
    assert issubclass(kind, Probe)
    assert kind.name() == name
    assert kind.question().endswith("?")
    assert kind.source
    assert is_dataclass(kind)
    assert kind() == kind(**{f.name: getattr(kind(), f.name) for f in fields(kind)})


@pytest.mark.parametrize("place", ["probes", "remedies"])
def test_settings_that_were_stored_are_read_as_they_were(place):
    for name in shelf.names(place):
        kind = shelf.load(place, name)
        assert configure(kind, json.loads(json.dumps(kind().settings()))) == kind()


@pytest.mark.parametrize("name", shelf.names("remedies"))
def test_every_remedy_makes_a_promise_and_has_a_source(name):
    kind = shelf.load("remedies", name)
    assert issubclass(kind, Remedy)
    assert kind.name() == name
    assert kind.promise().endswith(".")
    assert kind.source


@pytest.mark.parametrize("name", shelf.names("subjects"))
def test_every_subject_says_what_it_is(name):
    recipe = shelf.load("subjects", name)
    assert isinstance(recipe, Recipe)
    assert recipe.says
    assert recipe.source


@pytest.mark.parametrize("name", shelf.names("claims"))
def test_every_claim_says_what_is_published_and_what_is_tested(name):
    claims = shelf.load("claims", name)
    assert claims
    assert len({c.name for c in claims}) == len(claims)
    for claim in claims:
        assert isinstance(claim, Claim)
        assert claim.says.endswith(".")
        assert claim.here
        assert all(p.where for p in claim.published)


def test_the_first_shelves_hold_what_they_should():
    assert {"accuracy", "confidence", "worst-case-accuracy", "everyday-change"} <= set(shelf.names("probes"))
    assert "weight-gradient-centralization" in shelf.names("remedies")
    assert "fashion-cnn" in shelf.names("subjects")
    assert "fuhl2021" in shelf.names("claims")


def test_probes_lie_in_the_folders_of_their_themes():
    folders = {path.parent.name: path for path in Path(assay.probes.__file__).parent.glob("*/__init__.py")}
    assert set(folders) == set(dict(THEMES)) - {OTHER}
    for folder, heading in THEMES[:-1]:
        assert folders[folder].read_text() == f'"""{heading}"""\n'
        kept = {path.stem.replace("_", "-") for path in folders[folder].parent.glob("[!_]*.py")}
        assert kept
        assert {(shelf.load("probes", name).theme(), shelf.folder(name)) for name in kept} == {(folder, folder)}
    assert {shelf.folder(name) for name in shelf.ours("probes")} == set(folders)  # and none lies beside them
    assert shelf.folder("theirs") is None


def test_two_probes_of_one_name_are_refused(tmp_path, monkeypatch):
    for file in ("one/__init__.py", "one/same.py", "one/_helper.py", "two/__init__.py", "two/_helper.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise SystemExit('this was run')")
    monkeypatch.setattr(assay.probes, "__path__", [str(tmp_path)])
    assert shelf.ours("probes") == ["same"]
    (tmp_path / "two/same.py").touch()
    with pytest.raises(AssayError, match="the probe 'same': assay.probes.one.same, assay.probes.two.same; rename one"):
        shelf.names("probes")


def test_a_shelf_is_read_again_where_a_file_came(tmp_path, monkeypatch):
    monkeypatch.setattr(assay.probes, "__path__", [str(tmp_path)])
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "__init__.py").touch()
    (tmp_path / "one" / "first.py").touch()
    for folder in (tmp_path / "one", tmp_path):
        os.utime(folder, (1, 1))
    read = shelf._kept.cache_info().misses
    assert shelf.ours("probes") == shelf.ours("probes") == ["first"]
    assert shelf._kept.cache_info().misses == read + 1  # kept
    (tmp_path / "one" / "second.py").touch()
    assert shelf.ours("probes") == ["first", "second"]
    (tmp_path / "one" / "second.py").unlink()  # in the same tick
    assert shelf.ours("probes") == ["first"]


def test_third_parties_shelve_through_entry_points(monkeypatch):
    theirs = importlib.metadata.EntryPoint("theirs", "assay.probes.right.accuracy:Accuracy", "assay.probes")
    gone = importlib.metadata.EntryPoint("gone", "no.such.module:X", "assay.probes")
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [theirs, gone] if group == "assay.probes" else []
    )
    assert "theirs" in shelf.names("probes")
    assert shelf.load("probes", "theirs").__name__ == "Accuracy"
    with pytest.raises(AssayError, match="probe 'gone' of 'no.such.module:X' does not load"):
        shelf.load("probes", "gone")


def test_a_package_that_is_installed_meanwhile_is_found_and_a_run_that_is_written_is_no_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "late" not in shelf.names("probes")
    read = shelf._offered.cache_info().misses
    (tmp_path / "runs").mkdir()
    os.utime(tmp_path, (1, 1))
    assert "late" not in shelf.names("probes")
    assert shelf._offered.cache_info().misses == read  # nothing was read again
    record = tmp_path / "late_probes-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: late-probes\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[assay.probes]\nlate = assay.probes.right.accuracy:Accuracy\n")
    os.utime(tmp_path, (2, 2))
    assert shelf.load("probes", "late").__name__ == "Accuracy"


def test_an_unknown_name_says_what_is_near():
    with pytest.raises(AssayError, match="no probe 'acuracy'; did you mean 'accuracy'"):
        shelf.load("probes", "acuracy")
    with pytest.raises(AssayError, match="no remedy 'zzz'; `assay remedies` lists them"):
        shelf.load("remedies", "zzz")
