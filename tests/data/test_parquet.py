from __future__ import annotations

import io
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from assay.data.parquet import Parquet
from assay.errors import AssayError, ShapeError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (10, 4, 6, 3), dtype=np.uint8)
LABELS = list(range(10))


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write(path, image, label=LABELS, metadata=None):
    table = pa.table({"image": image, "label": label, "name": [str(k) for k in range(len(label))]})
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=3)
    return path


ENCODED = [png(pixels) for pixels in PIXELS]
STRUCTS = [{"bytes": raw, "path": None} for raw in ENCODED]


@pytest.mark.parametrize("image", [ENCODED, STRUCTS, pa.array(ENCODED, pa.large_binary())])
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(picks=st.lists(st.integers(-10, 9), max_size=12))
def test_encoded_images_come_in_the_order_asked_for(tmp_path, image, picks):
    data = Parquet(write(tmp_path / "d.parquet", image))
    x, y = data.take(np.array(picks, dtype=np.int64))
    assert len(data) == 10
    assert data.classes is None
    assert x.dtype == torch.float32
    assert y.tolist() == [pick % 10 for pick in picks]
    assert_close(x, torch.from_numpy(PIXELS[picks]).permute(0, 3, 1, 2) / 255, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["uint8", "float32", "float64"])
@pytest.mark.parametrize(("axes", "turned"), [((72,), (72,)), ((12, 6), (1, 12, 6)), ((4, 6, 3), (3, 4, 6))])
def test_fixed_size_lists(tmp_path, kind, axes, turned):
    column = pa.array(PIXELS.ravel().astype(kind))
    for side in reversed(axes):
        column = pa.FixedSizeListArray.from_arrays(column, side)
    data = Parquet(write(tmp_path / "d.parquet", column))
    x, _ = data.take(np.array([9, 0, 4]))
    wanted = PIXELS[[9, 0, 4]].reshape(3, *axes)
    wanted = np.moveaxis(wanted, -1, 1) if len(axes) == 3 else wanted.reshape(3, *turned)
    scale = 255 if kind == "uint8" else 1
    assert_close(x, torch.from_numpy(wanted.copy()).float() / scale, rtol=0, atol=0)


def test_row_groups_are_read_one_at_a_time_and_only_those_asked_for(tmp_path, monkeypatch):
    data = Parquet(write(tmp_path / "d.parquet", ENCODED))  # row groups 0-2, 3-5, 6-8, 9
    read, plain = [], data.encoded_images

    def spy(group):
        read.append(group)
        assert data.held is None  # the last group was let go
        return plain(group)

    monkeypatch.setattr(data, "encoded_images", spy)
    data.take(np.array([8, 3, 7, 4, 6]))
    assert read == [1, 2]
    data.take(np.array([6]))  # still held
    assert len(read) == 2
    data.take(np.array([0]))
    assert read == [1, 2, 0]


def test_size_and_channels(tmp_path):
    path = write(tmp_path / "d.parquet", ENCODED)
    assert Parquet(path, size=(2, 2), channels=1).take(np.arange(4))[0].shape == (4, 1, 2, 2)
    assert Parquet(path, channels=1).take(np.arange(4))[0].shape == (4, 1, 4, 6)


def test_class_names_given_or_left_by_datasets(tmp_path):
    features = {"info": {"features": {"label": {"names": list("abcdefghij"), "_type": "ClassLabel"}}}}
    path = write(tmp_path / "d.parquet", ENCODED, metadata={"huggingface": json.dumps(features)})
    assert Parquet(path).classes == tuple("abcdefghij")
    assert Parquet(path, classes="klmnopqrst").classes == tuple("klmnopqrst")
    assert Parquet(write(tmp_path / "e.parquet", ENCODED, metadata={"huggingface": "{}"})).classes is None
    with pytest.raises(AssayError, match="Label 9 at row 9 has no name among the 3 classes"):
        Parquet(path, classes="abc")


@pytest.mark.parametrize("image", [ENCODED, STRUCTS])
def test_corrupt_bytes_name_the_row(tmp_path, image):
    broken = list(image)
    broken[7] = b"junk" if image is ENCODED else {"bytes": b"junk", "path": None}
    broken[8] = None if image is ENCODED else {"bytes": None, "path": "x.png"}
    data = Parquet(write(tmp_path / "d.parquet", broken))
    data.take(np.arange(7))
    with pytest.raises(AssayError, match=r"Row 7 of .*d\.parquet cannot be read as an image"):
        data.take(np.array([0, 7]))
    with pytest.raises(AssayError, match=r"Row 8 of .* has no image bytes"):
        data.take(np.array([8]))


def test_unequal_sizes_name_the_row_both_sizes_and_the_mend(tmp_path):
    data = Parquet(write(tmp_path / "d.parquet", [*ENCODED[:9], png(PIXELS[9, :3])]))
    with pytest.raises(ShapeError, match=r"Row 9 of .* is 3 x 6 where row 0 is 4 x 6 .*size=\(h, w\)"):
        data.take(np.arange(10))


@pytest.mark.parametrize(
    ("image", "label", "words"),
    [
        ([[1, 2]] * 2, [0, 1], "Column image of .* is list<.*fixed-size lists"),
        (["a", "b"], [0, 1], "Column image of .* is string"),
        (
            pa.array([[True, False]] * 2, pa.list_(pa.bool_(), 2)),
            [0, 1],
            "Column image of .* is fixed_size_list<.*bool>",
        ),
        (pa.array([[1.0, None]] * 2, pa.list_(pa.float32(), 2)), [0, 1], "Row group 0 of .* missing values"),
        (  # an older pyarrow cannot read such a column back
            pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
            [0, 1],
            r"Row group 0 of .* (missing values|cannot be read \(Expected all lists)",
        ),
        (ENCODED[:2], ["a", "b"], "Column label of .* is string; give class indices"),
        (ENCODED[:2], [0.0, 1.0], "Column label of .* is double"),
        (ENCODED[:2], [0, None], "Row 1 of .* has no label"),
        (ENCODED[:2], [0, -4], "Label -4 at row 1 is negative"),
        (pa.array([], pa.binary()), pa.array([], pa.int64()), "holds no rows"),
    ],
)
def test_errors_say_what_came_and_how_to_mend_it(tmp_path, image, label, words):
    path = write(tmp_path / "d.parquet", image, label)
    with pytest.raises(AssayError, match=words):
        Parquet(path)


def test_missing_columns_files_and_junk(tmp_path):
    pq.write_table(pa.table({"img": ENCODED, "label": LABELS}), tmp_path / "d.parquet")
    with pytest.raises(AssayError, match="has columns 'img', 'label' but no image; rename"):
        Parquet(tmp_path / "d.parquet")
    (tmp_path / "d.parquet").write_bytes(b"junk" * 9)
    with pytest.raises(AssayError, match="cannot be read as Parquet"):
        Parquet(tmp_path / "d.parquet")
    with pytest.raises(AssayError, match="There is no file"):
        Parquet(tmp_path / "nowhere.parquet")


def test_numbers_have_no_size_to_choose(tmp_path):
    path = write(tmp_path / "d.parquet", pa.array([[1.0, 2.0]] * 10, pa.list_(pa.float32(), 2)))
    with pytest.raises(AssayError, match="plain numbers, not encoded images; leave size and channels out"):
        Parquet(path, size=(2, 2))


def test_a_damaged_row_group_is_named(tmp_path):
    path = write(tmp_path / "d.parquet", ENCODED)
    data = Parquet(path)
    raw = bytearray(path.read_bytes())
    column = data.file.metadata.row_group(2).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    raw[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(raw)
    data = Parquet(path)
    data.take(np.arange(6))
    with pytest.raises(AssayError, match=r"Row group 2 of .* cannot be read"):
        data.take(np.arange(10))


def test_fingerprint(tmp_path):
    path = write(tmp_path / "d.parquet", ENCODED)
    before = Parquet(path).fingerprint()
    assert Parquet(path).fingerprint() == before
    assert Parquet(path, size=(2, 2)).fingerprint() != before
    os.utime(path, (1, 1))
    assert Parquet(path).fingerprint() == before
    write(path, ENCODED[::-1])
    assert Parquet(path).fingerprint() != before
