"""A translator from pairs to page and archive: every check of its card, by the command line where that is meant."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from assay.data.image_pairs import ImagePairs, open_image_pairs
from assay.data.stained_cells import make_fields
from assay.errors import AssayError
from assay.jobs import translate as job
from assay.jobs.translate import KNOBS, Settings, network, translate, write_sample
from assay.methods.train import translate as trainer
from assay.nn.members import Members
from assay.run import Run
from assay.subjects import Source, open_subject

if TYPE_CHECKING:
    from conftest import Command

TINY = {"epochs": 1, "members": 2, "width": 2, "levels": 2}


def pairs(folder: Path, train: int = 6, test: int = 2, *, truth: bool = True) -> Path:
    """A zip of 8 pairs of 32 x 32 pixels."""
    path = folder / "pairs.zip"
    made = make_fields(range(train + test), side=32, cells=3)
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(train + test):
            split = "train" if k < train else "test"
            for side, image in (("input", made.x[k, 0]), ("output", made.stain[k, 0])):
                if truth or (side, split) != ("output", "test"):
                    held = io.BytesIO()
                    Image.fromarray(image).save(held, "PNG")
                    archive.writestr(f"{side}/{split}/<b>{k}.png", held.getvalue())
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The end-to-end run of the card: 8 pairs of 32 x 32, one epoch, two members."""
    from assay.engine.local import ThisProcess

    folder = tmp_path_factory.mktemp("translate")
    done = translate(
        pairs(folder), settings=Settings(**TINY), run=Run(engine=ThisProcess()), out=folder / "out",
        title="<script>alert(1)</script>",
    )  # fmt: skip
    assert done.told is not None
    return done.folder


def arrays(folder: Path, where: str) -> dict[str, Any]:
    with zipfile.ZipFile(folder / "results.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{where}/") and name.endswith(".npy")]
        return {Path(name).stem: np.load(io.BytesIO(archive.read(name)), allow_pickle=False) for name in names}


def test_the_archive_holds_as_many_predictions_as_test_images_and_mean_and_spread_fit(made: Path) -> None:
    with zipfile.ZipFile(made / "results.zip") as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        settings = json.loads(archive.read("settings.json"))
    for folder in ("source", "mean", "truth"):
        assert sum(name.startswith(f"{folder}/") and name.endswith(".png") for name in names) == 2
    mean, spread, error = (arrays(made, where) for where in ("mean", "spread", "error"))
    assert mean.keys() == spread.keys() == error.keys() == {"<b>6", "<b>7"}
    for name in mean:
        assert mean[name].shape == (1, 32, 32)
        assert spread[name].shape == error[name].shape == (32, 32)
        assert spread[name].max() > 0
    assert (settings["seed"], settings["members"], settings["epochs"]) == (0, 2, 1)


def test_the_page_is_whole_and_what_a_person_typed_stays_text(made: Path) -> None:
    page = (made / "translation.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>6" not in page
    assert page.count("data-row") >= 2
    assert 'type="range"' in page
    for elsewhere in ("http://", "https://", 'src="/', "@import"):
        assert elsewhere not in page.replace("http-equiv", "")
    told = json.loads((made / "translation.json").read_text())
    assert told["data"] == "pairs.zip"  # and not where it lies on somebody's machine
    assert str(made.parent) not in page
    assert told["uncertainty"] is True
    review = told["review"]
    assert review["threshold"] in review["thresholds"]
    assert review["flagged"] == sorted(review["flagged"], reverse=True)
    assert review["found"] == sorted(review["found"], reverse=True)
    assert review["flagged"][0] == 1
    at = review["thresholds"].index(review["threshold"])
    assert review["flagged"][at] == pytest.approx(0.05, abs=0.01)


def test_the_networks_can_be_asked_about_and_answer_as_the_archive_says(made: Path, tmp_path: Path) -> None:
    data = made.parent / "pairs.zip"
    subject = open_subject(Source(str(made / "translator.safetensors"), data=str(data)))
    x, _ = subject.data["test"].take(np.arange(2))
    for answer, mean in zip(subject.predict(x), arrays(made, "mean").values(), strict=True):
        assert np.allclose(answer.numpy(), mean, atol=1e-6)
    assert isinstance(subject.model, Members)
    for source, words in (
        (Source(str(made / "translator.safetensors")), "is a translator without data; give --data"),
        (Source(str(made / "translator.safetensors"), data=str(pairs(tmp_path, truth=False))), "has no output/test"),
    ):
        with pytest.raises(AssayError, match=words):
            open_subject(source)
    spoilt = tmp_path / "other.safetensors"
    spoilt.write_bytes((made / "translator.safetensors").read_bytes().replace(b'"width":"2"', b'"width":"4"'))
    with pytest.raises(AssayError, match="is no whole translator"):
        open_subject(Source(str(spoilt), data=str(data)))


def test_thresholds_flag_what_counting_by_hand_flags(made: Path) -> None:
    told = json.loads((made / "translation.json").read_text())
    spread, error = (np.stack(list(arrays(made, where).values())) for where in ("spread", "error"))
    for t, flagged, found, hits in zip(*(told["review"][k] for k in ("thresholds", "flagged", "found", "hits")),
                                       strict=True):  # fmt: skip
        above, wrong = spread >= t, error > 0.1
        assert flagged == pytest.approx(above.mean(), abs=1e-3)
        assert found == pytest.approx((above & wrong).sum() / max(1, wrong.sum()), abs=2e-2)
        assert hits == pytest.approx((above & wrong).sum() / max(1, above.sum()), abs=2e-2)


def test_one_member_has_no_uncertainty_and_says_so(run: Run, tmp_path: Path) -> None:
    done = translate(pairs(tmp_path), settings=Settings(**TINY | {"members": 1}), run=run, out=tmp_path / "out")
    assert "no uncertainty available" in done.says
    page = done.page.read_text(encoding="utf-8")
    assert "no uncertainty available" in page
    assert 'id="threshold"' not in page
    assert "spread, white is" not in page
    told = json.loads((done.folder / "translation.json").read_text())
    assert told["uncertainty"] is False
    assert told["review"] is None
    assert told["scores"]["area"] is None
    assert arrays(done.folder, "spread") == {}
    assert len(arrays(done.folder, "mean")) == 2


def test_without_truth_there_are_answers_and_no_errors(run: Run, tmp_path: Path) -> None:
    done = translate(pairs(tmp_path, truth=False), settings=Settings(**TINY), run=run, out=tmp_path / "out")
    assert "whose truth nobody gave" in done.says
    assert arrays(done.folder, "error") == {}
    assert len(arrays(done.folder, "spread")) == 2
    page = done.page.read_text(encoding="utf-8")
    assert "error, white is" not in page
    assert json.loads((done.folder / "translation.json").read_text())["review"]["found"] is None


@pytest.mark.parametrize(("name", "knob"), KNOBS.items())
def test_a_number_out_of_its_sliders_range_is_one_line(name: str, knob: Any) -> None:
    for value in (knob.low - max(knob.low, 1), knob.high * 1.01 + 1, float("nan")):
        with pytest.raises(AssayError, match=rf"--{name.replace('_', '-')} .* is out of range; give .* to .*\.$"):
            Settings(**{name: value})
    usual = getattr(Settings(), name)
    assert knob.low <= usual <= knob.high


def test_other_bad_words_are_one_line_each(tmp_path: Path, run: Run) -> None:
    with pytest.raises(AssayError, match="choose l1 or l2"):
        Settings(distance="l3")
    with pytest.raises(AssayError, match="The title has 200 letters"):
        translate("cells", settings=Settings(), run=run, out=tmp_path, title="x" * 200)
    few = open_image_pairs(pairs(tmp_path))
    assert few.train.y is not None
    part = few.train._replace(x=few.train.x[..., :16, :16], y=few.train.y[..., :16, :16])
    with pytest.raises(AssayError, match="16 x 16 pixels cannot be halved 5 times; give fewer --levels"):
        network(ImagePairs(part, few.test), Settings(levels=6))


def test_a_training_that_was_stopped_goes_on_and_ends_with_the_same_numbers(
    made: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings = pairs(tmp_path), Settings(**TINY)
    asked: Callable[..., Any] = job._write_weights

    def broken(*a: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(job, "_write_weights", broken)
    with pytest.raises(OSError, match="No space"):
        translate(data, settings=settings, run=run, out=tmp_path / "out", title="<script>alert(1)</script>")
    assert not (tmp_path / "out" / "translation.json").exists()
    assert list((tmp_path / "out" / "training").iterdir())
    monkeypatch.setattr(job, "_write_weights", asked)
    trained: list[int] = []
    real = trainer.fit
    monkeypatch.setattr(trainer, "fit", lambda *a, **k: real(*a, **k | {"on_epoch": lambda e, m: trained.append(e)}))
    done = translate(data, settings=settings, run=run, out=tmp_path / "out", title="<script>alert(1)</script>")
    assert trained == []  # every epoch was there
    for where in ("mean", "spread"):
        ours, theirs = arrays(done.folder, where), arrays(made, where)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert not (done.folder / "training").exists()
    again = translate(data, settings=settings, run=run, out=tmp_path / "out", title="<script>alert(1)</script>")
    assert (again.told, again.says) == (None, done.says)  # known from before
    with pytest.raises(AssayError, match="holds a training with other settings or data"):
        translate(data, settings=settings, run=run, out=tmp_path / "out", title="another")


def test_the_command_line_does_all_of_it(assay: Command, tmp_path: Path) -> None:
    assert assay("translate", "--write-sample", "--out", "pairs").status == 0
    with zipfile.ZipFile(tmp_path / "pairs" / "cells.zip") as archive:
        assert len(archive.namelist()) == 2 * (job.SAMPLE_TRAIN + job.SAMPLE_TEST)
    write_sample(tmp_path / "few.zip", train=2, test=1)
    words = ("few.zip", "--epochs", "1", "--members", "2", "--width", "2", "--levels", "2", "--learning-rate", "1.0e-3")
    ended = assay("translate", *words, "--out", "stain")
    assert ended.status == 0, ended.err
    assert "2 networks, trained on 2 pairs" in ended.out
    assert ended.out.strip().endswith("stain/translation.html")
    told = json.loads((tmp_path / "stain" / "translation.json").read_text())
    assert told["settings"]["learning_rate"] == 0.001
    assert "--learning-rate" not in told["command"]  # as usual
    assert told["command"][(at := told["command"].index("--epochs")) : at + 2] == ["--epochs", "1"]
    for wrong, said in ((("few.zip", "--epochs", "0"), "--epochs 0 is out of range"),
                        (("nowhere.zip",), "There is no 'nowhere.zip'"),
                        (("few.zip", "--learning-rate", "1.0"), "--learning-rate 1.0 is out of range")):  # fmt: skip
        ended = assay("translate", *wrong, "--out", "other")
        assert ended.status == 2
        assert said in ended.err
        assert len(ended.err.strip().splitlines()) == 1
