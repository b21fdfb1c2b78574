from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from assay.data.image_folder import ImageFolder
from assay.data.npz import Npz
from assay.data.open import has_labels, open_data
from assay.data.parquet import Parquet
from assay.data.table import Table
from assay.data.texts import Texts
from assay.errors import AssayError


def test_each_form_opens_and_all_give_the_same(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 5), dtype=np.uint8)
    encoded = []
    for k, image in enumerate(pixels):
        (tmp_path / "folder" / f"{k}").mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "folder" / f"{k}" / "a.png")
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    np.savez(tmp_path / "d.npz", x=pixels, y=[0, 1])
    pq.write_table(pa.table({"image": encoded, "label": [0, 1]}), tmp_path / "d.PARQUET")
    opened = [open_data(tmp_path / name) for name in ("folder", "d.npz", "d.PARQUET")]
    assert [type(data) for data in opened] == [ImageFolder, Npz, Parquet]
    for data in opened:
        x, y = data.take(np.array([1, 0]))
        assert (x.numpy() * 255).round().tolist() == pixels[::-1, None].tolist()
        assert y.tolist() == [1, 0]
    for name in ("folder", "d.PARQUET"):
        assert open_data(str(tmp_path / name), size=(3, 2), channels=3).take(np.array([0]))[0].shape == (1, 3, 3, 2)
    with pytest.raises(AssayError, match="plain numbers, not encoded images"):
        open_data(tmp_path / "d.npz", size=(3, 2))


def test_unknown_and_missing(tmp_path):
    (tmp_path / "d.tar").write_text("1,2")
    with pytest.raises(AssayError, match=r"d\.tar is no data set .*sub-folder of images per class.*\.npz.*\.parquet"):
        open_data(tmp_path / "d.tar")
    with pytest.raises(AssayError, match=r"There is nothing at .*nowhere"):
        open_data(tmp_path / "nowhere")


def test_inputs_alone_are_told_from_inputs_with_labels(tmp_path):
    """Every form, with labels and without: the inputs are the same, and labels that nobody gave are zeros."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 5), dtype=np.uint8)
    encoded = []
    for k, image in enumerate(pixels):
        for place in (tmp_path / "bare", tmp_path / "folder" / f"{k}"):
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{k}.png")
        encoded.append((tmp_path / "bare" / f"{k}.png").read_bytes())
    np.savez(tmp_path / "d.npz", x=pixels, y=[0, 1])
    np.savez_compressed(tmp_path / "bare.npz", images=pixels, other=[3])
    pq.write_table(pa.table({"image": encoded, "label": [0, 1]}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"image": encoded}), tmp_path / "bare.parquet")
    for name in ("folder", "d.npz", "d.parquet"):
        assert has_labels(tmp_path / name)
    for name in ("bare", "bare.npz", "bare.parquet"):
        assert not has_labels(tmp_path / name)
        data = open_data(tmp_path / name, labelled=False)
        x, y = data.take(np.array([1, 0]))
        assert (x.numpy() * 255).round().tolist() == pixels[::-1, None].tolist()
        assert y.tolist() == [0, 0]
        assert data.classes is None
        with pytest.raises(AssayError):
            open_data(tmp_path / name)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    assert has_labels(tmp_path / "t.csv", "b")
    assert not has_labels(tmp_path / "t.csv", "c")
    (tmp_path / "t.csv").write_text('\ufeffb;"a;c"\r\n1;2\n' + "broken;further;down\n")  # where nobody looks
    assert [has_labels(tmp_path / "t.csv", name) for name in ("b", "a;c", "a")] == [True, True, False]
    (tmp_path / "t.csv").write_text("a" * 200_000 + ",b\n1,2\n")
    assert not has_labels(tmp_path / "t.csv", "c")
    assert has_labels(tmp_path / "none.npz")  # whoever opens it says that there is nothing


def test_rows_and_texts_without_a_target_are_read_as_those_with_one(tmp_path):
    (tmp_path / "a.csv").write_text("text,n,y\none two,1,yes\nthree,2,no\nfour,3,no\n")
    (tmp_path / "b.csv").write_text("text,n\nfour,7\none,2\n")
    table = Table(tmp_path / "a.csv", "y", columns=["n"])
    bare = table.like(tmp_path / "b.csv", labelled=False)
    assert bare.take(np.arange(2))[0].tolist() == [[7.0], [2.0]]
    assert bare.labels.tolist() == [0, 0]
    with pytest.raises(AssayError, match="has no target column 'y'"):
        table.like(tmp_path / "b.csv")
    texts = Texts(tmp_path / "b.csv", "y", tokenizer=lambda some: [[len(w) for w in t.split()] for t in some],
                  labelled=False, length=2)  # fmt: skip
    assert texts.take(np.arange(2))[0].tolist() == [[4.0, 0.0], [3.0, 0.0]]
    assert texts.labels.tolist() == [0, 0]
