from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from assay.data.image_folder import ImageFolder
from assay.data.npz import Npz
from assay.data.open import open_data
from assay.data.parquet import Parquet
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
