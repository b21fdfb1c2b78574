from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from assay.data.image import Form
from assay.data.valued_images import ValuedImages, open_valued
from assay.errors import AssayError, ShapeError


def save(path: Path, fill: int = 0, size: tuple[int, int] = (4, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(size, fill, np.uint8)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for fill, name in enumerate(("7_0_1_x.png", "25_1_0_y.png", "deep/116_2_z.bmp")):
        save(tmp_path / name, fill)
    (tmp_path / "notes.txt").write_text("not an image")
    save(tmp_path / ".thumbs" / "a.png")
    return tmp_path


def by_table(root: Path, text: str) -> dict[str, float]:
    """What a folder with this CSV file gives, by the images' names."""
    (root / "values.csv").write_text(text)
    data = open_valued(root)
    return {path.name: float(value) for path, value in zip(data.paths, data.values, strict=True)}


def test_numbers_come_from_the_names_of_files(root: Path) -> None:
    data = open_valued(root)
    assert {path.name: value for path, value in zip(data.paths, data.values.tolist(), strict=True)} == {
        "7_0_1_x.png": 7,
        "25_1_0_y.png": 25,
        "116_2_z.bmp": 116,
    }
    x, values = data.take(np.array([2, 0, 2]))
    assert x.shape == (3, 1, 4, 6)
    assert x.dtype == torch.float32
    assert values.tolist() == data.values[[2, 0, 2]].tolist()
    fills = {"7_0_1_x.png": 0, "25_1_0_y.png": 1, "116_2_z.bmp": 2}
    assert_close(x[:, 0, 0, 0] * 255, torch.tensor([float(fills[data.paths[k].name]) for k in (2, 0, 2)]))


@pytest.mark.parametrize(
    "text",
    [
        "file,age\n7_0_1_x.png,1.5\n25_1_0_y.png,-2\ndeep/116_2_z.bmp,3e2\n",
        "7_0_1_x.png,1.5\n25_1_0_y.png,-2\n116_2_z.bmp,3e2",  # no heading; a name alone, which no other image has
        "age;who;file\n1.5;ann;7_0_1_x.png\n-2;bob;25_1_0_y.png\n\n3e2;;116_2_z.bmp\n",  # one column of numbers
        "\tfile\tvalue\n0\t7_0_1_x.png\t1.5\n1\t25_1_0_y.png\t-2\n2\t116_2_z.bmp\t3e2\n",  # one that is called value
        '\ufeff"file", "value"\n"7_0_1_x.png", "1.5"\n"25_1_0_y.png", "-2"\n"116_2_z.bmp", "3e2"\n',
    ],
)
def test_numbers_come_from_the_table_where_there_is_one(root: Path, text: str) -> None:
    assert by_table(root, text) == {"7_0_1_x.png": 1.5, "25_1_0_y.png": -2, "116_2_z.bmp": 300}


BAD_TABLES = [
    ("7_0_1_x.png,1\n25_1_0_y.png,2\n", r"deep/116_2_z\.bmp has no number: no row of values\.csv names it; add one"),
    ("7_0_1_x.png,1\n25_1_0_y.png,2\n116_2_z.bmp,3\nlost.png,4\n", r"Row 4 of .* names 'lost\.png', and .* no such"),
    ("lost.png,4\n7_0_1_x.png,1\n25_1_0_y.png,2\n116_2_z.bmp,3\n", r"Row 1 of .* names 'lost\.png', and .* no such"),
    ("file,age\n7_0_1_x.png,1\n7_0_1_x.png,2\n116_2_z.bmp,3\n", r"Row 3 of .* names '7_0_1_x\.png', which an earlier"),
    (
        "file,age\n7_0_1_x.png,old\n25_1_0_y.png,2\n116_2_z.bmp,3\n",
        r"Row 2 of .* gives 'old' as the number of '7_0_1_x",
    ),
    ("file,age\n7_0_1_x.png,1\n25_1_0_y.png,nan\n116_2_z.bmp,3\n", r"Row 3 of .* gives 'nan' as the number of '25_1_"),
    ("file,age\n7_0_1_x.png,1\n25_1_0_y.png\n116_2_z.bmp,3\n", r"Row 3 of .* gives '' as the number of '25_1_0_y"),
    ("file,a,b\n7_0_1_x.png,1,2\n25_1_0_y.png,2,3\n116_2_z.bmp,3,4\n", r"columns 'a' and 'b' of .* call .* 'value'"),
    ("file,a,b\n7_0_1_x.png,x,y\n25_1_0_y.png,2,3\n116_2_z.bmp,3,4\n", r"no column with a number in every row"),
    ("file,age\nA.png,1\nB.png,2\n", r"names no image of .*, such as 25_1_0_y\.png; give a column of names"),
    ("file,age\n", r"has no rows of an image's name and its number"),
    ("", r"has no rows of an image's name and its number"),
    ("7_0_1_x.png\n25_1_0_y.png\n116_2_z.bmp\n", r"has no rows of an image's name and its number"),
]


@pytest.mark.parametrize(("text", "says"), BAD_TABLES)
def test_a_bad_table_is_told_in_one_line(root: Path, text: str, says: str) -> None:
    with pytest.raises(AssayError, match=says) as told:
        by_table(root, text)
    assert "\n" not in str(told.value)


def test_a_name_that_two_images_have_wants_its_folder(root: Path) -> None:
    save(root / "other" / "116_2_z.bmp")
    text = "7_0_1_x.png,1\n25_1_0_y.png,2\ndeep/116_2_z.bmp,3\n"
    with pytest.raises(AssayError, match=r"names '116_2_z\.bmp', and .* holds no such image"):
        by_table(root, text + "116_2_z.bmp,4\n")
    assert by_table(root, text + "other/116_2_z.bmp,4\n")["116_2_z.bmp"] == 4


def test_a_table_that_is_no_text(root: Path) -> None:
    (root / "values.csv").write_bytes("7_0_1_x.png,1\n".encode("utf-16"))
    with pytest.raises(AssayError, match=r"values\.csv cannot be read as CSV .* write it again as UTF-8"):
        open_valued(root)


def test_two_tables(root: Path) -> None:
    for name in ("b.csv", "A.CSV", ".hidden.csv", "deep/c.csv"):
        (root / name).write_text("")
    with pytest.raises(AssayError, match=r"holds 2 CSV files, A\.CSV and b\.csv; leave only the one"):
        open_valued(root)


@pytest.mark.parametrize("name", ["holiday.png", "x25_a.png", "25.png", "25-a_b.png", "_25_a.png"])
def test_a_file_without_a_number_is_named(root: Path, name: str) -> None:
    save(root / name)
    with pytest.raises(AssayError, match=rf"{name} has no number: its name .* name it like 25_anything\.jpg") as told:
        open_valued(root)
    assert "\n" not in str(told.value)


def test_no_folder_and_no_images(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"There is no folder .*nowhere"):
        open_valued(tmp_path / "nowhere")
    (tmp_path / "values.csv").write_text("a.png,1\n")
    with pytest.raises(AssayError, match=r"holds no images \(\.png"):
        open_valued(tmp_path)


def test_different_shapes_want_a_size(root: Path) -> None:
    save(root / "9_wide.png", size=(5, 7))
    data = open_valued(root)
    with pytest.raises(ShapeError, match=r"9_wide\.png is 5 x 7 where the first image .* is 4 x 6 .*size=\(h, w\)"):
        data.take(np.arange(len(data)))
    x, _ = open_valued(root, size=(3, 3), channels=3).take(np.arange(4))
    assert x.shape == (4, 3, 3, 3)


def test_impossible_forms(root: Path) -> None:
    with pytest.raises(AssayError, match="size must be"):
        open_valued(root, size=(0, 3))
    with pytest.raises(AssayError, match=r"channels must be 1 .* got 4"):
        open_valued(root, channels=4)


def test_images_are_decoded_when_taken(root: Path) -> None:
    data = open_valued(root)
    data.paths[2].write_bytes(b"junk")
    data.take(np.array([0, 1]))
    with pytest.raises(AssayError, match="cannot be read as an image"):
        data.take(np.array([2]))


def test_fingerprint_sees_files_form_and_numbers_not_the_root(root: Path, tmp_path: Path) -> None:
    before = open_valued(root).fingerprint()
    assert open_valued(root).fingerprint() == before
    assert open_valued(root, size=(2, 2)).fingerprint() != before
    text = "7_0_1_x.png,7\n25_1_0_y.png,25\n116_2_z.bmp,116\n"
    (root / "values.csv").write_text(text)
    assert open_valued(root).fingerprint() == before  # the same numbers, by another way
    (root / "values.csv").write_text(text.replace("116\n", "117\n"))
    assert open_valued(root).fingerprint() != before
    (root / "values.csv").unlink()
    moved = root.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert open_valued(moved).fingerprint() == before
    os.utime(moved / "7_0_1_x.png", (1, 1))
    assert open_valued(moved).fingerprint() == before
    (moved / "7_0_1_x.png").rename(moved / "7_0_1_y.png")
    assert open_valued(moved).fingerprint() != before


@settings(deadline=None, max_examples=20)
@given(n=st.integers(2, 60), share=st.floats(0.01, 0.99))
def test_a_split_parts_the_images_and_is_always_the_same(
    tmp_path_factory: pytest.TempPathFactory, n: int, share: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "0_one.png"
    save(path)
    data = ValuedImages(path.parent, [path] * n, np.arange(n, dtype=np.float64), Form(1, None))
    if not 0 < round(share * n) < n:
        with pytest.raises(AssayError, match=rf"of {n} images leaves .* give a share between 0 and 1"):
            data.split(share)
        return
    once, again = data.split(share), data.split(share)
    assert len(once["test"]) == round(share * n)
    assert sorted([*once["train"].values, *once["test"].values]) == list(range(n))
    assert all(once[part].values.tolist() == again[part].values.tolist() for part in once)


def test_a_split_takes_from_all_over_and_keeps_each_image_with_its_number(root: Path) -> None:
    for k in range(40):
        save(root / f"{200 + k}_a.png", 100 + k)
    parts = open_valued(root).split(0.25)
    assert parts["test"].values.min() < 215 < 225 < parts["test"].values.max()
    x, values = parts["test"].take(np.arange(len(parts["test"])))
    late = values >= 200
    assert_close(x[late, 0, 0, 0].double() * 255, values[late] - 100, rtol=0, atol=1e-4)


def test_marks_know_an_image_again_by_its_bytes(root: Path, tmp_path: Path) -> None:
    data = open_valued(root)
    marks = dict(zip((path.name for path in data.paths), data.marks().tolist(), strict=True))
    assert len(set(marks.values())) == 3
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "1_other.png").write_bytes((root / "7_0_1_x.png").read_bytes())
    assert open_valued(copy).marks().tolist() == [marks["7_0_1_x.png"]]
