"""Pairs of images from a folder or an archive: what is understood, and one line for each thing that is wrong."""

from __future__ import annotations

import io
import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assay.data import image_pairs
from assay.data.image_pairs import open_image_pairs
from assay.errors import AssayError

Files = dict[str, bytes]


def png(seed: int, *, size: tuple[int, int] = (12, 8), colour: bool = False, kind: str = "PNG") -> bytes:
    rng, held = np.random.default_rng(seed), io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (*size, 3) if colour else size, dtype=np.uint8)).save(held, kind)
    return held.getvalue()


def files() -> Files:
    """Three pairs to train on and two to test; outputs are in colour, and of another format here and there."""
    made = {}
    for split, count in (("train", 3), ("test", 2)):
        for k in range(count):
            made[f"input/{split}/field {k}.png"] = png(k)
            made[f"output/{split}/field {k}.tif"] = png(10 + k, colour=True, kind="TIFF")
    return made


def as_zip(folder: Path, made: Files, top: str = "") -> Path:
    path = folder / "pairs.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in made.items():
            archive.writestr(top + name, content)
    return path


def as_folder(folder: Path, made: Files, top: str = "") -> Path:
    for name, content in made.items():
        path = folder / "pairs" / top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "pairs"


@pytest.mark.parametrize("write", [as_zip, as_folder])
@pytest.mark.parametrize("top", ["", "my data/"])
def test_both_forms_are_read_alike_and_names_belong_together(
    write: Callable[..., Path], top: str, tmp_path: Path
) -> None:
    made = files() | {"__MACOSX/input/x": b"", "input/train/.DS_Store": b"", "readme.txt": b"mine"}
    made = made if not top else {k: v for k, v in made.items() if k != "readme.txt"}
    ticks: list[int] = []
    pairs = open_image_pairs(write(tmp_path, made, top), tick=ticks.append)
    assert pairs.train.names == ("field 0", "field 1", "field 2")
    assert pairs.shapes == ((1, 12, 8), (3, 12, 8))
    assert pairs.test.y is not None
    assert len(pairs.test.x) == len(pairs.test.y) == 2
    with Image.open(io.BytesIO(made["output/test/field 1.tif"])) as image:
        assert np.array_equal(pairs.test.y[1].transpose(1, 2, 0), np.asarray(image))
    assert sum(ticks) == 10


def test_test_images_may_have_no_truth(tmp_path: Path) -> None:
    made = {name: content for name, content in files().items() if not name.startswith("output/test")}
    assert open_image_pairs(as_zip(tmp_path, made)).test.y is None


WRONG: list[tuple[Callable[[Files], Files], str]] = [
    (lambda f: {k: v for k, v in f.items() if k != "output/train/field 1.tif"},
     "input/train has 'field 1.png' and output/train has not; 1 of its images have no partner"),
    (lambda f: f | {"output/test/more.png": png(5, colour=True)}, "output/test has 'more.png' and input/test has not"),
    (lambda f: f | {"input/train/field 1.png": png(1, size=(10, 8))}, "is 8 x 10 pixels, where .* is 8 x 12"),
    (lambda f: f | {"output/train/field 1.tif": png(1, size=(10, 8), colour=True)}, "is 8 x 10 pixels"),
    (lambda f: f | {"input/test/field 1.png": png(1, colour=True)}, "input/test/field 1.png is in colour, where .*"
     "input/train/field 0.png is grey"),
    (lambda f: {k: v for k, v in f.items() if not k.startswith("input/test")}, "has no images in input/test; it"),
    (lambda f: f | {"input/train/field 1.png": b"no image"}, "field 1.png cannot be read as an image"),
    (lambda f: f | {"input/train/field 1.png": png(1)[:60]}, "field 1.png cannot be read as an image"),
    (lambda f: f | {"input/train/field 1.jpg": png(1)}, "one name but for the suffix"),
]  # fmt: skip


@pytest.mark.parametrize("write", [as_zip, as_folder])
@pytest.mark.parametrize(("change", "words"), WRONG)
def test_what_is_wrong_is_told_in_one_line(
    write: Callable[..., Path], change: Callable[[Files], Files], words: str, tmp_path: Path
) -> None:
    with pytest.raises(AssayError, match=words) as told:
        open_image_pairs(write(tmp_path, change(files())))
    assert "\n" not in str(told.value)


def test_a_colour_image_for_a_grey_model_is_refused(tmp_path: Path) -> None:
    made = {name: png(1, colour=True) if name.startswith("input") else v for name, v in files().items()}
    with pytest.raises(AssayError, match="is in colour, and the model takes images that are grey"):
        open_image_pairs(as_zip(tmp_path, made), channels=1)


@pytest.mark.parametrize("name", ["../evil.png", "input/../../evil.png", "/etc/evil.png", "input\\..\\evil.png", "C:x"])
def test_a_path_that_leads_out_of_the_archive_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    path = as_zip(tmp_path, files())
    with zipfile.ZipFile(path, "a") as archive:
        entry = zipfile.ZipInfo("x")
        entry.filename = name  # as it stands: the constructor would mend it
        archive.writestr(entry, png(1))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(AssayError, match="leads out of it; do not trust it"):
        open_image_pairs(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_links_locks_and_what_is_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_zip(tmp_path, files())
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("input/train/link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(AssayError, match="holds the link"):
        open_image_pairs(path)
    big = as_zip(tmp_path, files() | {"input/train/zeros.png": bytes(10**6)})
    for limit, words in (("MOST_BYTES", "unpacks to"), ("MOST_FILES", "files, over 3"), ("MOST_ONE", "unpacks to")):
        with monkeypatch.context() as patch:
            patch.setattr(image_pairs, limit, 3)
            with pytest.raises(AssayError, match=words):
                open_image_pairs(big)
    with monkeypatch.context() as patch:
        patch.setattr(image_pairs, "MOST_BYTES", 10_000)  # of which a quarter may be held of one side of a split
        patch.setattr(
            image_pairs, "_of_archive", lambda archive, name: image_pairs.of_folder(folder, image_pairs.SUFFIXES)
        )
        folder = as_folder(tmp_path, {k: png(1, size=(60, 60)) for k in files()})
        with pytest.raises(AssayError, match="scale them down or take fewer"):
            open_image_pairs(path)


def test_what_is_no_archive_is_told_so(tmp_path: Path) -> None:
    whole = as_zip(tmp_path, files()).read_bytes()
    for number, content in enumerate((b"", b"PK\x05\x06", whole[:-40], whole[: len(whole) // 2])):
        path = tmp_path / f"{number}.zip"
        path.write_bytes(content)
        with pytest.raises(AssayError, match=r"cannot be read as a zip archive \(.*\); pack it again"):
            open_image_pairs(path)
    broken = bytearray(whole)
    at = whole.find(png(0)) + 30
    broken[at] ^= 0xFF
    (tmp_path / "crc.zip").write_bytes(bytes(broken))
    with pytest.raises(AssayError, match="cannot be read"):
        open_image_pairs(tmp_path / "crc.zip")
    with pytest.raises(AssayError, match=re.escape("There is no")):
        open_image_pairs(tmp_path / "nowhere")


def deep(values: np.ndarray, kind: str) -> bytes:
    held = io.BytesIO()
    Image.fromarray(values.astype(np.uint16)).save(held, kind)
    return held.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_brought_to_eight_by_one_factor_and_it_is_told(kind: str, tmp_path: Path) -> None:
    """A camera of 12 bits in files of 16: clipped at 255 all of it would be white, by 65535 all of it black."""
    rng = np.random.default_rng(0)
    made, seen = files(), {}
    for place in ("input/train", "input/test"):
        for name in [each for each in made if each.startswith(place)]:
            made.pop(name)
            stem = name.rpartition(".")[0]
            seen[stem] = rng.integers(0, 4000, (12, 8))
            if place == "input/train":
                seen[stem][0, 0] = 4095
            made[f"{stem}.{'png' if kind == 'PNG' else 'tif'}"] = deep(seen[stem], kind)
    bright = next(stem for stem in seen if stem.startswith("input/test"))
    seen[bright][3, 4] = 60_000
    made[f"{bright}.{'png' if kind == 'PNG' else 'tif'}"] = deep(seen[bright], kind)
    pairs = open_image_pairs(as_zip(tmp_path, made))
    for split in ("train", "test"):
        part = getattr(pairs, split)
        for name, image in zip(part.names, part.x, strict=True):
            wanted = np.rint(np.minimum(seen[f"input/{split}/{name}"], 4095) * 255 / 4095)
            np.testing.assert_array_equal(image[0], wanted)
    assert pairs.notes == (
        "The images of input have 16 bits and were brought to 8 by one factor for all: 4,095, the greatest value in "
        "input/train, became 255; 1 pixels of test images are brighter, and are cut there. Errors and spreads are "
        "shares of that range.",
    )
    stem = next(iter(seen))
    made.pop(f"{stem}.{'png' if kind == 'PNG' else 'tif'}")
    with pytest.raises(AssayError, match="bits, where .* save all images of input alike"):
        open_image_pairs(as_zip(tmp_path, made | {f"{stem}.png": png(1)}))


def test_what_is_black_from_corner_to_corner_has_no_scale(tmp_path: Path) -> None:
    black = deep(np.zeros((12, 8)), "PNG")
    made = {name: black if name.startswith("input") else held for name, held in files().items()}
    with pytest.raises(AssayError, match="All images in input/train are black"):
        open_image_pairs(as_zip(tmp_path, made))
