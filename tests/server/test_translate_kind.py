"""The form of the translator: what is posted is what the command line gets, and what is wrong is a line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from assay.data.image_folder import SUFFIXES
from assay.data.image_pairs import open_image_pairs
from assay.errors import AssayError
from assay.jobs.translate import KNOBS, Settings, write_sample
from assay.methods.train import translate as trainer
from assay.server import kinds
from assay.server.uploads import PICTURES

if TYPE_CHECKING:
    from conftest import Command


def test_every_posted_field_reaches_the_trainer_as_the_number_it_is(
    assay: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Form, command line, trainer: the slider's text 1.0e-3 trains with 0.001, and dropout arrives."""
    kind = kinds.load("translate")
    posted = {"title": "<b>mine</b>", "epochs": "2", "members": "2", "batch": "3", "learning_rate": "1.0e-3",
              "weight_decay": "2.5e-5", "dropout": "0.7", "width": "2", "levels": "2", "distance": "l2",
              "turned": "no", "review": "0.1", "tolerance": "", "data": "pairs.zip", "seed": "5"}  # fmt: skip
    settings, wrong = kind.read(posted)
    assert wrong == []
    assert kind.check(settings, ["pairs.zip"]) == []
    (tmp_path / "files").mkdir()
    write_sample(tmp_path / "files" / "pairs.zip", train=2, test=1)
    seen: dict[str, Any] = {}

    def watched(model: Any, data: Any, **told: Any) -> Any:
        seen.update(told, dropout=model.net.drop.p, width=model.net.wide[0], levels=len(model.net.wide))
        raise AssayError("enough was seen")

    monkeypatch.setattr(trainer, "fit_translators", watched)
    words = kind.argv(settings, tmp_path)
    ended = assay(*words)
    assert "enough was seen" in ended.err
    wanted = {"epochs": 2, "members": 2, "batch": 3, "lr": 0.001, "weight_decay": 2.5e-5, "dropout": 0.7, "width": 2,
              "levels": 2, "distance": "l2", "turned": False, "seed": 5}  # fmt: skip
    assert {name: seen[name] for name in wanted} == wanted
    told = dict(zip(words[2::2], words[3::2], strict=False))
    assert (told["--title"], told["--review"], "--tolerance" in told) == ("<b>mine</b>", "0.1", True)
    assert words[-2:] == ["--out", str(tmp_path / "run")]
    assert kind.argv({}, tmp_path)[1] == "cells"  # sample data in one click


def test_the_defaults_are_the_jobs_own_and_have_an_uncertainty(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"output/test/c.png": None}, ""),  # answers without a truth
        ({"output/train/a.png": None, "output/train/a.tif": "input/train/a.png"}, ""),  # a pair but for the suffix
        ({"input/train/.hidden.png": "input/train/a.png", "input/train/notes.txt": "input/train/a.png"}, ""),
        ({"input/test/c.png": None, "output/test/c.png": None}, "'cells.zip' has no images in input/test; it should"),
        ({"output/train/a.png": None, "output/train/b.png": None}, "'cells.zip' has no images in output/train"),
        ({"input/train/a.png": None}, "output/train has 'a.png' and input/train has not; 1 of its images have no par"),
        ({"output/test/c.png": None, "output/test/C.png": "input/test/c.png"}, "input/test has 'c.png' and output/te"),
        ({f"input/train/x{n}.png": "input/train/a.png" for n in range(3)}, "input/train has .* 3 of its images"),
        ({"input/train/a.jpg": "input/train/a.png"}, "input/train holds 'a.jpg' and 'a.png', which are one name"),
        ({"input/train/more/a.png": "input/train/a.png"}, "'(cells/)?input/train/more/a.png' lies in a folder below"),
    ],
)
@pytest.mark.parametrize("inside", ["", "cells"])
def test_a_folder_that_the_trainer_would_not_take_is_refused_by_its_names(
    change: dict[str, str | None], says: str, inside: str, tmp_path: Path
) -> None:
    home = tmp_path / "pairs" / inside
    for place in ("input/train/a.png", "input/train/b.png", "input/test/c.png"):
        for path in (home / place, home / place.replace("input", "output")):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), 9).save(path)
    for place, source in change.items():
        (home / place).parent.mkdir(exist_ok=True)
        shutil.copy(home / source, home / place) if source else (home / place).unlink()
    refuse = next(each for each in kinds.load("translate").fields if each.name == "data").refuse
    if not says:
        refuse(tmp_path / "pairs", "cells.zip")
        assert open_image_pairs(tmp_path / "pairs").train.names == ("a", "b")
        return
    with pytest.raises(AssayError, match=f"^{says}"):
        refuse(tmp_path / "pairs", "cells.zip")
    with pytest.raises(AssayError):
        open_image_pairs(tmp_path / "pairs")


def test_pairs_are_one_archive_of_pictures_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("a,b")
    field = next(each for each in kinds.load("translate").fields if each.name == "data")
    with pytest.raises(AssayError, match=r"^'pairs.csv' is no zip file; pack the four folders into one\.$"):
        field.refuse(tmp_path / "pairs.csv", "pairs.csv")
    assert sorted(PICTURES) == sorted(SUFFIXES)


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
