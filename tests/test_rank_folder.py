"""A folder of pictures with numbers, trained on and audited from the command line.

The pictures are drawn here, so that their numbers are known: discs by their radius, which stands in the name of the
file, and bars by their length, which stands in a CSV file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from assay.audit import open_audit
from assay.data.valued_images import ValuedImages, open_valued
from assay.errors import AssayError
from assay.jobs.explain_pair.scene import read
from assay.jobs.rank import Trained, train_on_folder
from assay.run import Run
from assay.subjects import Source, open_subject

if TYPE_CHECKING:
    from conftest import Command


def discs(folder: Path, count: int = 150) -> Path:
    """Discs of radius 2 to 10 somewhere in 28 x 28: grey, PNG, 7_012.png for a radius of 7."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    down, across = np.mgrid[:28, :28]
    for k in range(count):
        radius = int(rng.integers(2, 11))
        y, x = rng.uniform(radius + 1, 27 - radius, 2)
        inside = (down - y) ** 2 + (across - x) ** 2 <= radius**2
        Image.fromarray(np.where(inside, rng.integers(150, 256), 20).astype(np.uint8)).save(
            folder / f"{radius}_{k:03}.png"
        )
    return folder


def bars(folder: Path, count: int = 150) -> Path:
    """Coloured bars of 1 to 14 pixels somewhere in 16 x 16; a CSV file has half their length, in any order."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = []
    for k in range(count):
        length = int(rng.integers(1, 15))
        y, x = int(rng.integers(2, 12)), int(rng.integers(0, 17 - length))
        pixels = np.zeros((16, 16, 3), np.uint8)
        pixels[y : y + 3, x : x + length] = rng.integers(100, 256, 3)
        Image.fromarray(pixels).save(folder / f"bar{k:03}.png")
        rows.append(f"{length / 2},bar{k:03}.png\n")
    (folder / "lengths.csv").write_text("length,file\n" + "".join(rng.permutation(rows)))
    return folder


def numbers(out: str, row: str) -> tuple[float, float]:
    """What a row of the printed table says of the ranker and of what takes no training."""
    found = re.search(rf"{row}\s+([\d.]+)(?: %)?\s+([\d.]+)", out)
    assert found is not None, out
    return float(found[1]), float(found[2])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("draw", [discs, bars])
def test_a_folder_is_trained_on_and_audited(draw: Callable[[Path], Path], assay: Command, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures")
    trained = assay("rank", "pictures", "--architecture", "digits", "--steps", "150", "--out", "out")
    assert trained.status == 0, trained.err
    assert trained.last == "out/ranker.safetensors"
    assert "trained on 120 images, tested on 2000 pairs of 30 others" in trained.out
    assert "caution" not in trained.out
    error, constant = numbers(trained.out, "mean error of the comparison, from 0 to 1")
    assert error < 0.5 * constant
    order, _ = numbers(trained.out, "pairs put in the right order")
    assert order > 85
    redrawn, blank = numbers(trained.out, "mean squared error of a pixel")
    assert redrawn < 0.5 * blank

    audited = assay("audit", "out/ranker.safetensors", "--data", "pictures", "--probe", "accuracy")
    assert audited.status in (0, 1, 3), audited.err
    found = open_audit(Path(audited.last).parent)
    assert found.source == ("out/ranker.safetensors", "--data", "pictures")
    answer = found.rows[0].answer
    assert answer.finding is not None
    accuracy = answer.finding.measures[0]
    assert accuracy.value is not None
    assert accuracy.value > 0.85

    subject = open_subject(Source("out/ranker.safetensors", "pictures"))
    test = subject.pairs["test"]
    held = {path.name for path in open_valued(folder).split(0.2)["test"].paths}
    assert {path.name for path in test.singles.paths} == held  # type: ignore[attr-defined]
    pairs, _ = test.take(np.arange(len(test)))
    with torch.no_grad():
        c = subject.model(pairs).double().numpy()
    gaps = test.gaps / (2 * np.ptp(open_valued(folder).values))
    assert np.abs(gaps + 0.5 - c).mean() == pytest.approx(error, abs=1e-4)  # what was printed, written out
    assert np.abs(gaps).mean() == pytest.approx(constant, abs=1e-4)
    assert 100 * ((c > 0.5) == (gaps > 0))[gaps != 0].mean() == pytest.approx(order, abs=0.1)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return discs(tmp_path_factory.mktemp("few") / "pictures", 30)


def quickly(folder: Path, run: Run, out: Path, *, architecture: str | None = "digits", seed: int = 0) -> Trained:
    again = Run(engine=run.engine, seed=seed)
    return train_on_folder(folder, architecture=architecture, embedding=3, steps=2, batch=4, run=again, out=out)


def test_the_same_seed_gives_the_same_file_and_leaves_the_global_generator_alone(
    few: Path, run: Run, tmp_path: Path
) -> None:
    state = torch.get_rng_state()
    files = [quickly(few, run, tmp_path / str(k), seed=seed).path.read_bytes() for k, seed in enumerate((0, 0, 1))]
    assert torch.equal(torch.get_rng_state(), state)
    assert len({len(file) for file in files}) == 1
    weights = [open_subject(Source(str(tmp_path / str(k) / "ranker.safetensors"), str(few))) for k in range(3)]
    first, same, other = (subject.fingerprint() for subject in weights)
    assert first == same != other


def test_the_architecture_follows_the_images(few: Path, run: Run, tmp_path: Path) -> None:
    assert quickly(few, run, tmp_path / "a", architecture=None).architecture == "grey"
    done = quickly(bars(tmp_path / "colour", 10), run, tmp_path / "b", architecture=None)
    assert done.architecture == "colour"
    assert open_subject(Source(str(done.path), str(tmp_path / "colour"))).inputs.shape == (2, 3, 112, 112)


def test_a_decoder_can_be_a_mirror_or_come_afterwards(few: Path, run: Run, tmp_path: Path) -> None:
    """The comparison is the same, whatever draws; what a mirror misses of its own embeddings stands beside."""
    done = {
        how: train_on_folder(few, architecture="digits", steps=5, batch=8, decoder=how, run=run, out=tmp_path / how)
        for how in ("mirror", "afterwards")
    }
    assert done["mirror"].worth.error == pytest.approx(done["afterwards"].worth.error, rel=1e-4)
    assert done["mirror"].mirrored is not None
    assert done["mirror"].mirrored != done["mirror"].worth.redrawn  # of its own embeddings, and of the ranker's
    assert done["afterwards"].mirrored is None
    assert "mirror decoder" in open_subject(Source(str(done["mirror"].path), str(few))).about
    assert "decoder trained afterwards" in open_subject(Source(str(done["afterwards"].path), str(few))).about


def test_image_files_are_scaled_as_those_it_was_trained_on(few: Path, run: Run, tmp_path: Path) -> None:
    subject = open_subject(Source(str(quickly(few, run, tmp_path).path), str(few)))
    singles = subject.pairs["test"].singles
    assert isinstance(singles, ValuedImages)
    own, (x, what, value) = singles.take(np.array([2]))[0], read(subject, singles.paths[2])
    torch.testing.assert_close(x, own, rtol=0, atol=0)
    assert (what, value) == (singles.paths[2].name, singles.values[2])
    Image.new("RGB", (50, 31), "white").save(tmp_path / "else.jpg")
    x, _, value = read(subject, tmp_path / "else.jpg")
    assert (tuple(x.shape), value) == ((1, 1, 8, 8), None)
    with pytest.raises(AssayError, match="There is no image 'nowhere.png'; give the number of a test input"):
        read(subject, "nowhere.png")


def test_a_ranker_that_learnt_nothing_is_told(assay: Command, few: Path) -> None:
    done = assay("rank", str(few), "--architecture", "digits", "--steps", "1")
    assert done.status == 0
    assert done.last == "ranker/ranker.safetensors"
    error, constant = numbers(done.out, "mean error of the comparison, from 0 to 1")
    assert (error >= constant) == ("caution: it compares no better than the constant 0.5" in done.out)
    redrawn, blank = numbers(done.out, "mean squared error of a pixel")
    assert (redrawn >= blank) == ("caution: it draws no better than the mean image" in done.out)
    assert "caution" in done.out


def test_values_beyond_those_of_the_folder(few: Path, run: Run, tmp_path: Path) -> None:
    done = train_on_folder(
        few, architecture="digits", values=(0, 50), steps=1, batch=2, held_back=0.5, run=run, out=tmp_path
    )
    assert (done.low, done.high, done.images, done.worth.images) == (0, 50, 15, 15)
    gaps = open_subject(Source(str(done.path), str(few))).pairs["test"].gaps
    assert done.worth.constant == pytest.approx(np.abs(gaps).mean() / 100)


def test_help_teaches_both_ways_to_give_numbers(assay: Command) -> None:
    told = assay("rank", "--help")
    assert told.status == 0
    for words in ("CSV file", "25_0_1_20170109.jpg has 25", "assay audit", "Example: assay rank"):
        assert words in " ".join(told.out.split())


def refuse(assay: Command, says: str, *words: str) -> None:
    ended = assay("rank", *words)
    assert ended.status == 2
    assert ended.out == ""
    lines = [line for line in ended.err.splitlines() if line.startswith("assay: ")]
    assert len(lines) == 1
    assert "this should not happen" not in lines[0]
    assert re.search(says, lines[0]), lines[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--architecture vast", "no architecture 'vast'; choose one of digits, grey, colour"),
        ("--decoder odd", "no decoder 'odd'; choose one of joint, mirror, afterwards"),
        ("--steps 0", "--steps must be at least 1, got 0"),
        ("--embedding 0", "--embedding must be at least 1, got 0"),
        ("--held-back 0", "0 of 30 images leaves 30 to train on and 0 to test on"),
        ("--held-back 1", "1 of 30 images leaves 0 to train on"),
        ("--held-back 0.03", "All 1 images to test on have the number .*; give more images"),
        ("--values 0 5", r"_\d+\.png has the number \d+, outside --values 0 5; widen the range"),
        ("--values 50 0", "--values 50 0 is no range"),
        ("--values 0 inf", "--values 0 inf is no range"),
        ("--device abacus", "no device 'abacus'"),
    ],
)
def test_bad_options_are_told_in_one_line(assay: Command, few: Path, options: str, says: str) -> None:
    refuse(assay, says, str(few), *options.split())


def picture(path: Path, side: int = 9) -> None:
    Image.fromarray(np.full((side, side), 100, np.uint8)).save(path)


def test_bad_folders_are_told_in_one_line(assay: Command, tmp_path: Path) -> None:
    refuse(assay, "There is no folder nowhere", "nowhere")
    folder = tmp_path / "bad"
    folder.mkdir()
    refuse(assay, "bad holds no images", "bad")
    for k in range(12):
        picture(folder / f"7_{k}.png", side=9 + k)
    refuse(assay, "Every image of bad has the number 7, so there is no order to learn", "bad")
    picture(folder / "seven.png")
    refuse(assay, r"bad/seven\.png has no number: its name does not begin with digits", "bad")
    (folder / "seven.png").unlink()
    (folder / "a.csv").write_text("7_0.png,1\n7_99.png,2\n")
    refuse(assay, r"Row 2 of bad/a\.csv names '7_99\.png', and bad holds no such image", "bad")
    (folder / "a.csv").write_text("7_0.png,1\n7_1.png,2\n")
    refuse(assay, r"bad/7_10\.png has no number: no row of a\.csv names it", "bad")
    (folder / "b.csv").write_text("")
    refuse(assay, r"bad holds 2 CSV files, a\.csv and b\.csv", "bad")


def test_a_damaged_image_and_a_place_that_cannot_be_written(assay: Command, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    for k in range(12):
        picture(folder / f"{k}_.png")
    (tmp_path / "file").write_text("")
    refuse(assay, "Cannot write into 'file/deep': .*; choose another with --out", "bad", "--out", "file/deep")
    (folder / "7_.png").write_bytes(b"junk")
    refuse(assay, r"bad/7_\.png cannot be read as an image", "bad", "--architecture", "digits")


def test_too_few_pairs_in_a_batch(few: Path, run: Run, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="--batch must be at least 2, got 1"):
        train_on_folder(few, batch=1, run=run, out=tmp_path)
