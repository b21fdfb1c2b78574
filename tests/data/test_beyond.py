from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

from assay.data import beyond
from assay.errors import AssayError

at_hand = pytest.mark.skipif(not os.environ.get("ASSAY_DATA"), reason="needs the data sets in ASSAY_DATA")


def test_unset_or_missing_says_how_to_set_it(tmp_path, monkeypatch):
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    assert beyond.assay_data() is None
    for read in (beyond.mnist, beyond.fashion_mnist, beyond.cifar10, beyond.imagenet_sample):
        with pytest.raises(AssayError, match="ASSAY_DATA is not set; set it to a folder that holds"):
            read()
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    assert beyond.assay_data() == tmp_path
    with pytest.raises(AssayError, match=r"no tabular/adult\.csv\.gz in ASSAY_DATA=.*put it there"):
        beyond.tabular("adult")


def test_unknown_table():
    with pytest.raises(AssayError, match="no table 'iris'; choose one of adult, compas, letter, pendigits"):
        beyond.tabular("iris")


def test_categories_become_columns(tmp_path, monkeypatch):
    (tmp_path / "tabular").mkdir()
    lines = [
        "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,capital-gain,"
        "capital-loss,hours-per-week,native-country,income-per-year",
        "39,?,1,Bachelors,13,Single,Clerk,Own,White,Male,2174,0,40,Peru,<=50K",
        "50,Private,2,HS,9,Married,Clerk,Wife,Black,Female,0,5,13,Peru,>50K",
    ]
    (tmp_path / "tabular" / "adult.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    x, y, columns = beyond.tabular("adult")
    rows = [dict(zip(columns, row, strict=True)) for row in x.tolist()]
    assert y.tolist() == [0, 1]
    assert rows[0]["age"] == 39
    assert rows[0]["capital-gain"] == 2174
    assert [row["workclass=?"] for row in rows] == [1, 0]
    assert [row["sex=Male"] for row in rows] == [1, 0]
    assert [row["native-country=Peru"] for row in rows] == [1, 1]
    assert not any(name.startswith(("fnlwgt", "education=")) for name in columns)


@at_hand
@pytest.mark.parametrize(
    ("name", "shape", "classes", "ones"),
    [
        ("adult", (32561, 91), 2, 7841),
        ("compas", (6172, 15), 2, 2809),  # ProPublica's filter leaves 6172
        ("letter", (20000, 16), 26, 766),
        ("pendigits", (10992, 16), 10, 1143),
    ],
)
def test_tables(name, shape, classes, ones):
    x, y, columns = beyond.tabular(name)
    assert x.shape == shape
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    assert y.dtype == np.int64
    assert len(np.unique(y)) == classes
    assert y.max() == classes - 1
    assert (y == 1).sum() == ones
    assert len(set(columns)) == shape[1]


@at_hand
@pytest.mark.parametrize(("read", "ones"), [(beyond.mnist, [6742, 1135]), (beyond.fashion_mnist, [6000, 1000])])
def test_idx_sets(read, ones):
    data = read()
    assert {part: rows.x.shape for part, rows in data.items()} == {
        "train": (60_000, 1, 28, 28),
        "test": (10_000, 1, 28, 28),
    }
    assert [(rows.labels == 1).sum() for rows in data.values()] == ones


@at_hand
def test_cifar_pixels_are_those_of_the_file():
    """The test part only: all 60,000 images take too long for a quick suite."""
    path = beyond.entry("cifar-10", "test.parquet")
    data = beyond.decode_all(path)
    assert data.x.shape == (10_000, 3, 32, 32)
    assert data.x.dtype == np.uint8
    assert data.classes[:2] == ("airplane", "automobile")
    rows = np.array([0, 4321, 9999])
    direct, _ = beyond.Parquet(path).take(rows)
    assert (direct == data.take(rows)[0]).all()
    assert beyond.decode_all(path) is data


@at_hand
def test_imagenet_is_streamed():
    data = beyond.imagenet_sample()
    x, y = data.take(np.array([999, 0]))
    assert x.shape == (2, 3, 256, 256)
    assert len(data) == len(data.classes) == 1000
    assert [data.classes[k] for k in y] == [data.classes[999], "tench"]
