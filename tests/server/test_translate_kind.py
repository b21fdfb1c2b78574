"""The form of the translator: what is posted is what the command line gets, and what is wrong is a line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

kinds = pytest.importorskip("assay.server.kinds")


def test_slider_text_reaches_the_command_line_as_the_number_it_is(tmp_path: Path) -> None:
    kind = kinds.load("translate")
    posted = {"title": "<b>mine</b>", "epochs": "10", "members": "2", "batch": "4", "learning_rate": "1.0e-3",
              "weight_decay": "2.0e-5", "dropout": "0.3", "turned": "no", "data": "pairs.zip"}  # fmt: skip
    settings, wrong = kind.read(posted)
    assert wrong == []
    assert kind.check(settings, ["pairs.zip"]) == []
    words = kind.argv(settings, tmp_path)
    assert words[:2] == ["translate", str(tmp_path / "files" / "pairs.zip")]
    told = dict(zip(words[2::2], words[3::2], strict=False))
    assert {name: told[f"--{name}"] for name in ("title", "epochs", "members", "batch", "dropout")} == {
        "title": "<b>mine</b>", "epochs": "10", "members": "2", "batch": "4", "dropout": "0.3"}  # fmt: skip
    assert float(told["--learning-rate"]) == 0.001
    assert float(told["--weight-decay"]) == 2e-5
    assert "--not-turned" in words
    assert words[-2:] == ["--out", str(tmp_path / "run")]
    assert kind.argv({}, tmp_path)[1] == "cells"  # sample data in one click


def test_the_defaults_are_the_jobs_own_and_have_an_uncertainty(tmp_path: Path) -> None:
    from assay.jobs.translate import KNOBS, Settings

    kind = kinds.load("translate")
    whole = kind.whole({})
    assert kind.check({}) == []
    for name, knob in KNOBS.items():
        field = next(each for each in kind.fields if each.name == name)
        assert whole[name] == getattr(Settings(), name)
        assert (field.low, field.high, field.folded) == (knob.low, knob.high, knob.folded)
    assert whole["members"] >= 3
    assert [each.name for each in kind.fields if not each.folded] == ["data", "title", "epochs", "members"]


@pytest.mark.parametrize(
    ("posted", "words"),
    [
        ({"epochs": "500"}, "Epochs: 500 is out of range; give from 1 to 200."),
        ({"learning_rate": "1.0"}, "Learning rate: 1 is out of range; give from 0.0001 to 0.01."),
        ({"dropout": "much"}, "Dropout: 'much' is no number."),
        ({"members": "2.5"}, "Ensemble size: 2.5 is no whole number."),
        ({"title": "x" * 121}, "Project name: it has 121 letters; give up to 120."),
    ],
)
def test_what_is_out_of_range_is_one_line(posted: dict[str, str], words: str) -> None:
    kind = kinds.load("translate")
    settings, wrong = kind.read(posted)
    assert (wrong or kind.check(settings)) == [words]


def test_progress_is_read_off_the_folder_and_no_torch_is_needed(tmp_path: Path) -> None:
    kind = kinds.load("translate")
    assert kind.progress(tmp_path) is None
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "progress.json").write_text(json.dumps({"done": 3, "of": 12}))
    assert kind.progress(tmp_path) == 0.25
    (tmp_path / "run" / "progress.json").write_text("{")
    assert kind.progress(tmp_path) is None
    says = "import sys; from assay.server import kinds; kinds.load('translate'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", says], capture_output=True, text=True).stdout.strip() == "False"
