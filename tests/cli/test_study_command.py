"""assay study, as typed: one line for whatever is wrong, and a participant's way on the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from assay.store.studies import Study, StudyFolder

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Command

NEEDED = ("--set", "epochs=1", "--set", "batch-size=128", "--set", "loss=cross-entropy", "--set", "optimiser=adam")


@pytest.fixture
def made(tmp_path: Path) -> StudyFolder:
    return StudyFolder.make(tmp_path / "study", Study(seeds=(1, 2), most_epochs=3, facts={"classes": 10}))


def test_a_participant_on_the_command_line(made: StudyFolder, assay: Command) -> None:
    at = str(made.path)
    joined = assay("study", "join", at, "--months", "12")
    id = joined.out.strip()
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", id)
    assert "You have 120 minutes" in joined.err
    tried = assay("study", "try", at, *NEEDED, "--why", "epochs=1", "--", id)
    assert tried.status == 0, tried.err
    assert "training: 1 of 1 epochs" in tried.out
    assert "try 1: done, validation accuracy" in tried.out
    assert "test" not in tried.out
    assert "validation accuracy" in assay("study", "show", at, "--", id).out
    ended = assay("study", "finish", at, "--try", "1", "--", id)
    assert re.search(r"test accuracy \d+\.\d % over 2 seeds", ended.out)
    done = assay("study", "analyse", at)
    assert done.status == 0
    assert (made.path / "report.html").exists()
    assert "cannot" in done.out or "too few" in done.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "--tuners", "guru=3"), "There is no tuner 'guru'"),
        (("run", "--tuners", "expert"), "is not KIND=N"),
        (("run", "--tuners", "expert=1,expert=2"), "names expert twice"),
        (("run", "--minutes", "0"), "--minutes 0.0 is out of its range"),
        (("run", "--seed", "3"), "The seed 3 of the tries is one of those at the end"),
        (("run", "--thresholds", "half"), "is no list of shares"),
        (("run", "--settings", "nothing.toml"), "Cannot read the settings"),
        (("join", "{study}", "--months", "-1"), "months of experience cannot be"),
        (("join", "nowhere", "--months", "1"), "There is no study in"),
        (("try", "{study}", "short"), "'short' is no id of a participant"),
        (("try", "{study}", "A" * 22, *NEEDED), "Nobody in this study has the id"),
        (("try", "{study}", "A" * 22, "--number", "1", "--set", "epochs=2"), "leave out --set"),
        (("show", "{study}", "A" * 22), "Nobody in this study has the id"),
        (("analyse", "{study}"), "Nobody has joined"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    made: StudyFolder, assay: Command, words: tuple[str, ...], says: str
) -> None:
    found = assay("study", *(word.format(study=made.path) for word in words))
    assert found.status == 2
    assert says in found.err
    assert len(found.err.strip().splitlines()) == 1
    assert not (made.path.parent / "study" / "report.html").exists()


def test_a_settings_file_defines_a_study_and_its_slips_are_told(tmp_path: Path, assay: Command) -> None:
    from assay.cli.study import Definition

    file = tmp_path / "study.toml"
    file.write_text('minutes = 60\nmost-epochs = 7\nseeds = [5, 6]\nthresholds = [0.4]\ntitle = "Ours"\n')
    study = Definition(settings_file=file, minutes=30.0).study("digits-mlp")
    assert (study.minutes, study.most_epochs, study.seeds, study.thresholds) == (30.0, 7, (5, 6), (0.4,))
    for text, says in (
        ("hours = 2", "sets 'hours', which no study has"),
        ("minutes = 'long'", "This is no study: its study has the minutes 'long'"),
        ("minutes = ", "Cannot read the settings"),
        ("facts = 3", "sets 'facts'"),
    ):
        file.write_text(text)
        found = assay("study", "run", "--settings", str(file))
        assert found.status == 2
        assert says in found.err


def test_a_file_that_a_folder_names_is_not_run_unless_it_is_named_again(tmp_path: Path, assay: Command) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text("raise SystemExit('it ran')\ndef build(): ...\n")
    folder = StudyFolder.make(tmp_path / "study", Study(subject=f"{trap}:build", facts={"classes": 2}))
    id = assay("study", "join", str(folder.path), "--months", "1").out.strip()
    found = assay("study", "try", str(folder.path), *NEEDED, "--", id)
    assert found.status == 2
    assert "if you trust it" in found.err
    assert "it ran" not in found.err
    other = assay("study", "try", str(folder.path), "--number", "1", "--subject", "digits-mlp", "--", id)
    assert "is not that of the study" in other.err


def test_the_knobs_are_listed(assay: Command) -> None:
    out = assay("study", "knobs").out
    assert "initial-accumulator" in out
    assert "must be chosen" in out
