from __future__ import annotations

import csv
import datetime as dt
import io
import math
import os
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import hostile
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from assay.data.arrow import MOST_COLUMNS, MOST_LINE
from assay.data.column import Column
from assay.data.open import open_data
from assay.data.table import MISSING, Table
from assay.errors import AssayError
from assay.inputs import Row
from assay.subject import Data

PLAIN = {
    "age": [31, 17, 64, 17, 52, 40],
    "pay": [1.5, 2.25, 0.5, 9.0, 3.0, 4.5],
    "sort": ["b", "a", "b", "c", "a", "b"],
    "member": [True, False, True, True, False, True],
    "y": ["no", "yes", "yes", "no", "no", "yes"],
}
QUICK = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def as_csv(columns) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows(["" if v is None else v for v in row] for row in zip(*columns.values(), strict=True))
    return out.getvalue()


# What is read


def test_csv_parquet_and_frames_give_the_same(tmp_path):
    path = written(tmp_path / "d.csv", as_csv(PLAIN))
    pq.write_table(pa.table(PLAIN), tmp_path / "d.parquet", row_group_size=2)
    tables = [
        Table(path, "y"),
        Table(tmp_path / "d.parquet", "y"),
        Table.of(pa.table(PLAIN), "y"),
        Table.of(PLAIN, "y"),
        Table(written(tmp_path / "e.csv", as_csv(PLAIN).replace(",", ";")), "y"),
        Table(written(tmp_path / "f.csv", b"\xef\xbb\xbf" + as_csv(PLAIN).encode()), "y"),
        open_data(path, target="y"),
    ]
    x = torch.tensor([PLAIN["age"], PLAIN["pay"], [1, 0, 1, 2, 0, 1], PLAIN["member"]]).T
    for table in tables:
        assert isinstance(table, Data)
        assert len(table) == 6
        assert table.classes == ("no", "yes")
        assert_close(table.take(np.arange(6))[0], x, rtol=0, atol=0)
        assert table.take(np.array([1, 0]))[1].tolist() == [1, 0]
        assert table.columns == tables[0].columns
    Row(tables[0].columns).check(x)
    assert_close(Row(tables[0].columns).encode({k: v for k, v in PLAIN.items() if k != "y"}), x, rtol=0, atol=0)


def test_what_was_understood_is_told():
    frame = {
        "id": [7, 9, 8, 10],
        "name": ["ann", "bo", "cy", "di"],
        "age": [30, None, 18, 24],
        "city": ["X", None, "Y", "X"],
        "flag": [True, None, False, True],
        "same": [3, 3, 3, 3],
        "void": [None] * 4,
        "z": [0.5, 1.0, 2.0, 0.1],
        "y": [0, 1, 1, 0],
    }
    told = Table.of(frame, "y").described()
    assert told == [
        "The target 'y' has 2 classes: '0' 50.0%, '1' 50.0%.",
        "'age': integer from 18 to 30, half are up to 24; 25.0% are missing.",
        f"'city': 3 categories: 'X', 'Y', '{MISSING}'; 25.0% are missing and read as a category of their own.",
        f"'flag': 3 categories: 'false', 'true', '{MISSING}'; 25.0% are missing and read as a category of their own.",
        "'same': integer from 3 to 3, half are up to 3.",
        "'z': number from 0.1 to 2, half are up to 0.5.",
        "'id' is another number of one run in every row: an id, left out.",
        "'name' is another word in every row: an id, left out.",
        "'age' is empty in 25.0% of the rows, and the model is shown the median, 24; one that takes empty cells gets "
        "them from Subject.of(..., kind=Row(...)).",
        "'same' is '3' in every row.",
        "'void' holds nothing; it is left out.",
        "The code of a category is its place among the sorted ones of this table.",
    ]


def test_columns_are_shown_in_the_order_that_the_model_has():
    table = Table.of({**PLAIN, "id": list(range(6))}, "y", columns=("id", "sort", "age"))
    assert [c.name for c in table.columns] == ["id", "sort", "age"]
    assert table.x[:, 0].tolist() == list(range(6))
    with pytest.raises(AssayError, match="`columns` names the target or a column twice"):
        Table.of(PLAIN, "y", columns=("age", "y"))
    with pytest.raises(AssayError, match="has no column 'aeg'; did you mean 'age'"):
        Table.of(PLAIN, "y", columns=("aeg",))


def test_categories_are_what_is_named_so(tmp_path):
    path = written(tmp_path / "d.csv", "code,x,y\n01,1,a\n1,5,b\n3+,2,a\n01,1,b\n")
    table = Table(path, "y", categories=("code",))
    assert table.columns[0].categories == ("01", "1", "3+")
    assert table.x[:, 0].tolist() == [0, 1, 2, 0]


def test_words_for_nothing_are_gaps_and_a_run_with_a_number_twice_is_no_id(tmp_path):
    table = Table(written(tmp_path / "d.csv", "a,b,y\nNA,1,x\nu,1,y\nnull,3,x\nv,4,y\n"), "y")
    assert table.columns[0].categories == ("u", "v", MISSING)
    assert table.columns[1].name == "b"


def test_dates_are_days(tmp_path):
    path = written(tmp_path / "d.csv", "d,t,y\n1970-01-02,1970-01-01 12:00:00,a\n1970-01-11,1970-01-02 00:00:00,b\n")
    table = Table(path, "y")
    assert table.x.tolist() == [[1, 0.5], [10, 1]]
    assert table.columns[0].unit == "days since 1970"
    assert table.columns[0].type == "number"


def test_every_sort_of_number_that_parquet_has(tmp_path):
    when = [dt.datetime(1970, 1, 1, 6), dt.datetime(1970, 1, 3)]
    zoned = pa.timestamp("ns", "UTC")
    columns = {
        "half": pa.array(np.array([1.5, 2.5], dtype=np.float16)),
        "decimal": pa.array([Decimal("1.25"), Decimal("7.50")]),
        "unsigned": pa.array([5, 200], pa.uint8()),
        "zoned": pa.array(when, zoned),
        "time": pa.array([dt.time(0, 1), dt.time(1)], pa.time32("ms")),
        "took": pa.array([dt.timedelta(seconds=2), dt.timedelta(minutes=1)], pa.duration("us")),
        "coded": pa.array([40, 7]).dictionary_encode(),
        "view": pa.array(["p", "q"], pa.large_string()),
        "y": pa.array(["a", "b"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "d.parquet")
    names = [name for name in columns if name != "y"]
    wanted = [[1.5, 2.5], [1.25, 7.5], [5, 200], [0.25, 2], [60, 3600], [2, 60], [40, 7], [0, 1]]
    for source in (tmp_path / "d.parquet", pa.table(columns)):
        assert Table(source, "y", columns=names).x.T.tolist() == wanted
    with pytest.raises(AssayError, match="'raw' is binary; give numbers, words, booleans or dates"):
        Table.of({"raw": [b"x", b"y"], "y": [0, 1]}, "y")


def test_one_hot_says_the_same_as_codes():
    frame = {**PLAIN, "sort": ["b", None, "b", "c", "a", "b"]}
    codes, hot = Table.of(frame, "y"), Table.of(frame, "y", encode="one-hot")
    assert [c.name for c in hot.columns][2:6] == ["sort=a", "sort=b", "sort=c", f"sort={MISSING}"]
    assert (hot.x[:, 2:6].sum(1) == 1).all()
    assert hot.x[:, 2:6].argmax(1).tolist() == codes.x[:, 2].tolist()
    assert (hot.x[:, [0, 1, 6]] == codes.x[:, [0, 1, 3]]).all()
    Row(hot.columns).check(torch.from_numpy(hot.x))
    with pytest.raises(AssayError, match="encode is 'hot'"):
        Table.of(frame, "y", encode="hot")


# Targets


@pytest.mark.parametrize(
    ("y", "told", "classes", "labels"),
    [
        (["b", "a", "b"], {}, ("a", "b"), [1, 0, 1]),
        (["b", "a", "b"], {"classes": ("b", "a", "c")}, ("b", "a", "c"), [0, 1, 0]),
        ([True, False, True], {}, ("false", "true"), [1, 0, 1]),
        ([10, 9, 10], {}, ("9", "10"), [1, 0, 1]),
        ([2.0, 1.0, 2.0], {"task": "classification"}, ("1", "2"), [1, 0, 1]),
        ([10, 9, 10], {"task": "regression"}, None, [10, 9, 10]),
        ([0.5, 1.0, 2.0], {}, None, [0.5, 1, 2]),
    ],
)
def test_targets(y, told, classes, labels):
    table = Table.of({"x": [1.0, 5.0, 2.0], "y": y}, "y", **told)
    assert table.classes == classes
    assert table.labels.tolist() == labels
    assert table.labels.dtype == (np.float32 if classes is None else np.int64)


def test_many_whole_numbers_are_numbers():
    table = Table.of({"x": [float(k % 7) for k in range(21)], "y": list(range(0, 42, 2))}, "y")
    assert table.classes is None
    assert "is a number, from 0 to 40, on average 20" in table.described()[0]


# Leaks


def leaks(frame, **told):
    return [line for line in Table.of(frame, "y", **told).described() if "gives the target away" in line]


def test_leaks_are_noticed_and_only_they():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 40)
    noise = rng.normal(size=40)
    names = np.array(["no", "may", "yes"])
    assert leaks({"x": noise, "code": names[y].tolist(), "y": y}) == [
        "'code' gives the target away: each of its 3 values goes with one class. Did the model see it in training, and "
        "will it have it in use?"
    ]
    assert len(leaks({"x": noise, "code": (7 - 2 * y).tolist(), "y": names[y].tolist()})) == 1
    wrong = names[y].tolist()
    wrong[3] = names[(y[3] + 1) % 3]
    assert not leaks({"x": noise, "code": wrong, "y": y})
    value = rng.normal(size=40)
    assert "correlation is -1.0000" in leaks({"x": noise, "twin": -3 * value + 1, "y": value})[0]
    assert not leaks({"x": noise, "twin": value + 0.2 * noise, "y": value})


# Like the table that was trained on


def test_like_takes_columns_codes_medians_and_classes_from_training(tmp_path):
    train = Table.of({**PLAIN, "age": [31, 17, None, 17, 52, 40]}, "y")
    other = {"y": ["yes"], "sort": ["c"], "age": [None], "pay": [99.0], "member": [False], "more": ["?"]}
    test = train.like(written(tmp_path / "t.csv", as_csv(other)))
    assert test.columns == train.columns
    assert test.x.tolist() == [[31, 99, 2, 0]]  # 31 is the median of training
    assert test.labels.tolist() == [1]
    assert test.classes == ("no", "yes")
    assert "'pay' runs from 99 to 99 here, and from 0.5 to 9 in training." in test.described()
    hot = Table.of(PLAIN, "y", encode="one-hot")
    assert (hot.like(PLAIN).x == hot.x).all()
    lost = written(tmp_path / "lost.csv", "y,age,pay,member\nno,1,2,true\n")
    with pytest.raises(AssayError, match=r"lost\.csv has no column 'sort'"):
        train.like(lost)
    opened = open_data(tmp_path / "t.csv", target="y", train=written(tmp_path / "train.csv", as_csv(PLAIN)))
    assert opened.x.tolist() == [[31, 99, 2, 0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sort": ["d"]}, r"'sort' has the category 'd' in row 0, never seen in training; known are 'a', 'b', 'c'"),
        ({"sort": [None]}, "'sort' is empty in row 0, and none was in training"),
        ({"member": [None]}, "'member' is empty in row 0, and none was in training"),
        ({"age": ["old"]}, "'age' has 'old' in row 0; it was a column of type integer in training"),
        ({"age": [2.5]}, "'age' has 2.5 in row 0; it is a column of whole numbers"),
        ({"member": [3]}, "'member' has 3 in row 0; it was a column of type boolean"),
        ({"y": ["maybe"]}, "'y' is 'maybe' in row 0, not among the classes 'no', 'yes'"),
    ],
)
def test_what_training_did_not_have_is_refused(change, words):
    one = {name: cells[:1] for name, cells in PLAIN.items()}
    train = Table.of(PLAIN, "y")
    assert len(train.like(one)) == 1
    with pytest.raises(AssayError, match=words):
        train.like({**one, **change})
    del one["pay"]
    with pytest.raises(AssayError, match="The frame has no column 'pay'"):
        train.like(one)


# Properties

WORDS = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=5).map(lambda w: "w" + w)
KINDS = {
    "integer": st.integers(-(2**24), 2**24),
    "number": st.floats(-1e6, 1e6, width=32),
    "category": WORDS,
    "boolean": st.booleans(),
}


@st.composite
def tables(draw, *, gaps=False):
    n = draw(st.integers(2, 9))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    frame = {}
    for k, kind in enumerate(kinds):
        cell = st.one_of(st.none(), KINDS[kind]) if gaps else KINDS[kind]
        cells = draw(st.lists(cell, min_size=n, max_size=n).filter(lambda c: any(v is not None for v in c)))
        frame[f"{kind}{k}"] = cells
    frame["y"] = ["a", "b", *draw(st.lists(st.sampled_from("abc"), min_size=n - 2, max_size=n - 2))]
    return frame


def names(frame):
    return [name for name in frame if name != "y"]


@QUICK
@given(tables())
def test_columns_and_codes_are_those_of_column(frame):
    """Two readers of one table: this one by Arrow, `Column` cell by cell."""
    table = Table.of(frame, "y", columns=names(frame))
    for k, column in enumerate(table.columns):
        cells = np.array(frame[column.name], dtype=object)
        assert column == Column.of(column.name, cells)
        assert table.x[:, k].tolist() == column.encode(cells).astype(np.float32).tolist()


@QUICK
@given(tables(gaps=True))
def test_with_gaps_too_but_for_what_fills_them(frame):
    table = Table.of(frame, "y", columns=names(frame))
    for k, column in enumerate(table.columns):
        # a gap makes floating point of whole numbers, so a column of floats with one may have been some
        kind = float if column.name.startswith("number") else object
        plain = Column.of(column.name, np.array(frame[column.name], dtype=kind))
        gone = np.array([v is None for v in frame[column.name]])
        got = table.x[:, k]
        if not gone.any() or plain.type in ("integer", "number"):
            assert column == replace(plain, missing=False)
            assert (got[gone] == np.float32(plain.usual)).all()
        else:
            assert column.categories[-1] == MISSING
            assert [column.told(v) for v in got[gone]] == [MISSING] * gone.sum()
        assert np.isfinite(got).all()


@QUICK
@given(tables(gaps=True))
def test_codes_and_categories_are_inverse(frame):
    table = Table.of(frame, "y", columns=names(frame))
    for k, column in enumerate(table.columns):
        if column.type == "category":
            back = [column.told(v) for v in table.x[:, k]]
            words = {True: "true", False: "false", None: MISSING}
            assert back == [v if isinstance(v, str) else words[v] for v in frame[column.name]]
    assert [table.classes[k] for k in table.labels] == frame["y"]


@QUICK
@given(tables(gaps=True), st.randoms(use_true_random=False))
def test_types_do_not_hang_on_the_order_of_rows(tmp_path, frame, shuffle: random.Random):
    order = list(range(len(frame["y"])))
    shuffle.shuffle(order)
    turned = {name: [cells[k] for k in order] for name, cells in frame.items()}
    one, other = (Table.of(f, "y", columns=names(frame)) for f in (frame, turned))
    assert one.columns == other.columns
    assert (one.x[order] == other.x).all()
    assert one.fingerprint() == other.fingerprint() or frame != turned


@QUICK
@given(tables(gaps=True))
def test_a_csv_gives_what_was_written(tmp_path, frame):
    path = tmp_path / "d.csv"
    pc.write_csv(pa.table(frame), path)
    one, other = Table(path, "y", columns=names(frame)), Table.of(frame, "y", columns=names(frame))
    assert_close(one.x, other.x, rtol=1e-6, atol=0)
    assert [c.categories for c in one.columns] == [c.categories for c in other.columns]


# What is refused

BAD = {
    "a target that is missing": ("a,label\n1,x\n2,y\n", "has no target column 'y'; it has 'a', 'label'"),
    "a target that is nearly there": ("a,Y\n1,x\n2,y\n", "has no target column 'y'; did you mean 'Y'"),
    "a constant target": ("a,y\n1,x\n3,x\n", "The target 'y' is 'x' in every row; there is nothing to tell apart"),
    "mixed types": ("a,y\n1,x\n2,x\ntwo,y\n4,x\n", "'a' mixes numbers .'1'. and words: row 2 is 'two'"),
    "an empty file": ("", r"d\.csv is empty"),
    "a header alone": ("a,y\n", r"d\.csv holds no rows"),
    "a header without an end": ("a,y", "cannot be read as CSV"),
    "an empty first line": ("\na,y\n1,2\n", r"The first line of .*d\.csv is empty"),
    "one name twice": ("a,a,y\n1,2,x\n3,4,y\n", r"d\.csv has two columns called 'a'"),
    "too many categories": (
        "a,y\n" + "".join(f"w{k % 1500},{k % 2}\n" for k in range(1502)),
        "'a' has 1,500 categories, more than 1,000",
    ),
    "a binary file": (b"PK\x03\x04\0\0\0", r"d\.csv is no CSV: it holds zero bytes"),
    "a ragged row": ("a,b,y\n1,2,x\n1,y\n", r"Row 1 of .*d\.csv has 2 cells where the header has 3 \('1,y'\)"),
    "a row too long": ("a,y\n1,x\n1,2,3\n", r"Row 1 of .*d\.csv has 3 cells where the header has 2"),
    "a target full of gaps": ("a,y\n1,\n3,\n", "The target 'y' has no value in any row"),
    "a gap in the target": ("a,y\n1,x\n3,\n2,y\n", "The target 'y' has no value in row 1; fill it or drop the row"),
    "an infinite value": ("a,y\n1.5,x\n-inf,y\n", "'a' has -inf in row 1, infinite in single precision"),
    "too large for single precision": ("a,y\n1.5,x\n1e300,y\n", r"'a' has 1e\+300 in row 1, infinite in single"),
    "not UTF-8": (b"a,y\n1,x\n2,caf\xe9\n", r"Line 3 of .*d\.csv is not UTF-8 \(byte 0xe9\); save it as UTF-8"),
    "cut in a letter": (b"a,y\n1,x\n2,caf\xc3", r"Line 3 of .*d\.csv is not UTF-8"),
    "ids alone": ("a,y\n1,x\n2,y\n", "Nothing is left of the columns 'a' to show a model"),
    "a target alone": ("y\nx\ny\n", "The table has no column beside the target"),
    "a quote that never closes": ('a,b,y\n1,"2,x\n1,2,y\n', r"d\.csv has a quote that never closes, in row 0"),
    "a quote that takes all": ('a,y\n1,x\n1,"y\n1,x\n2,y\n', "a quote that never closes, in the last row, in 'y'"),
    "a quote in the header": ('a,"y\n1,x\n', r"A quote in the header of .*d\.csv never closes"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_line(tmp_path, name):
    text, words = BAD[name]
    with pytest.raises(AssayError, match=words) as refused:
        Table(written(tmp_path / "d.csv", text), "y")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"classes": ("no", "maybe")}, r"The target 'y' is 'yes' in row 1, not among the classes 'no', 'maybe'"),
        ({"classes": ("no", "yes", "no")}, "Two classes have one name"),
        ({"task": "regression"}, r"The target 'y' holds words \('no'\); a regression needs numbers"),
        ({"task": "guess"}, "task is 'guess'"),
        ({"task": "regression", "classes": ("a",)}, "A regression has no classes"),
    ],
)
def test_targets_that_cannot_be(told, words):
    with pytest.raises(AssayError, match=words):
        Table.of(PLAIN, "y", **told)
    with pytest.raises(AssayError, match=r"The target 'y' has 0.5 in row 0; classes are words or whole numbers"):
        Table.of({"x": [3, 1], "y": [0.5, 1.0]}, "y", task="classification")
    with pytest.raises(AssayError, match="has 1,001 different values, more than 1,000 classes"):
        Table.of({"x": [1.0] * 1001, "y": [f"w{k}" for k in range(1001)]}, "y")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"x": [1, 2, "three"], "y": [0, 1, 1]}, "'x' mixes numbers .1. and words: row 2 is 'three'"),
        ({"x": ["a", None, 5], "y": [0, 1, 1]}, "'x' mixes words .'a'. and numbers: row 2 is 5"),
        ({"x": [True, 2], "y": [0, 1]}, "'x' mixes booleans .True. and numbers: row 1 is 2"),
        ({"x": [[1], [2]], "y": [0, 1]}, "'x' is list<item: int64>; give numbers, words, booleans or dates"),
        ({"x": [1, 2, 3], "y": [0, 1]}, "The columns of the frame have 2 to 3 rows"),
        ({"x": [], "y": []}, "The frame holds no rows"),
        (pa.table([[1], [2], [3]], names=["x", "x", "y"]), "The frame has two columns called 'x'"),
        (7, "A int is no table; give a data frame"),
    ],
)
def test_bad_frames(frame, words):
    with pytest.raises(AssayError, match=words):
        Table.of(frame, "y")


def test_frames_by_protocol_alone():
    class Streams:  # as pandas and polars have it
        def __arrow_c_stream__(self, schema=None):
            held = pa.table({**PLAIN, "__index_level_0__": [f"r{k}" for k in range(6)]})
            return held.__arrow_c_stream__(schema)

    class Mixed:
        def __arrow_c_stream__(self, schema=None):
            raise pa.ArrowInvalid("Could not convert 'x' with type str: tried to convert to int64")

        def to_dict(self, how):
            assert how == "list"
            return {"x": [1, "x"], "y": [0, 1]}

    table = Table.of(Streams(), "y")
    assert [c.name for c in table.columns] == ["age", "pay", "sort", "member"]
    with pytest.raises(AssayError, match="'x' mixes numbers .1. and words: row 1 is 'x'"):
        Table.of(Mixed(), "y")


def test_bad_parquet(tmp_path):
    path = written(tmp_path / "d.parquet", b"junk" * 9)
    with pytest.raises(AssayError, match="cannot be read as Parquet"):
        Table(path, "y")
    pq.write_table(pa.table({"x": [{"a": 1}], "y": [1]}), path)
    with pytest.raises(AssayError, match=r"'x' of .* is struct<a: int64>; give numbers, words, booleans or dates"):
        Table(path, "y")
    with pytest.raises(AssayError, match="There is no file"):
        Table(tmp_path / "none.csv", "y")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(AssayError, match="is a pipe; give a plain file"):
        Table(tmp_path / "pipe.csv", "y")


def test_a_dictionary_that_unpacks_to_gigabytes_stays_packed(tmp_path):
    """Two hundred thousand rows, half of which name one long text, are 1.6 GB, written out."""
    large = pa.DictionaryArray.from_arrays(pa.array(np.arange(200_000) % 2), ["x" * 2**14, "b"])
    pq.write_table(pa.table({"a": large, "y": np.arange(200_000) % 3}), tmp_path / "d.parquet", store_schema=False)
    table = Table(tmp_path / "d.parquet", "y")
    assert table.x[:2, 0].tolist() == [1, 0]
    assert all(len(line) < 500 for line in table.described())


def many_columns(path: Path) -> Path:
    return written(path, ",".join(f"c{k}" for k in range(100_000)) + "\n" + ",".join(["1"] * 100_000) + "\n")


def hidden_columns(path: Path) -> Path:
    """A line break in quotes hides from who counts on the first line how wide the header is."""
    return written(path, b'"a\nb"' + b"," * 4_000_000 + b"\n")


def long_line(path: Path) -> Path:
    with path.open("wb") as file:
        file.write(b"a,y\n")
        for _ in range(100):
            file.write(b"1," * 2**19)
    return path


def long_cell(path: Path) -> Path:
    with path.open("wb") as file:
        file.write(b'a,y\n1,"')
        for _ in range(100):
            file.write(b"1,2\n" * 2**18)
    return path


def many_cells(path: Path) -> Path:
    with path.open("wb") as file:
        file.write(b",".join(b"c%d" % k for k in range(1000)) + b"\n")
        for _ in range(80):
            file.write((b"," * 999 + b"\n") * 1000)
    return path


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (many_columns, f"has 100,000 columns, more than {MOST_COLUMNS:,}; give a part"),
        (hidden_columns, "A quote in the header of .* never closes; names of columns stand on one line"),
        (long_line, f"Line 2 of .* has more than {MOST_LINE:,} bytes"),
        (long_cell, f"has a row of more than {MOST_LINE:,} bytes; close its quotes"),
        (many_cells, "has more than 67,108,864 cells; give a part"),
    ],
)
def test_a_hostile_file_is_refused_in_little_time_and_memory(tmp_path, write, words):
    path = write(tmp_path / "d.csv")

    def refusal() -> str:
        with pytest.raises(AssayError, match=words) as refused:
            Table(path, "y")
        return str(refused.value)[:200]

    _, _, base = hostile._apart(lambda: "nothing", 20, None)
    said, took, peak = hostile._apart(refusal, 20, None)
    path.unlink()
    assert "; " in said, said
    assert took < 10
    assert peak - base < 150 * 1024  # kB


# Fingerprints


def test_a_fingerprint_hangs_on_every_cell_and_not_on_the_time(tmp_path):
    frame = {**PLAIN, "id": [f"r{k}" for k in range(6)], "gap": [None, 1, 2, 3, 5, 5]}
    path = written(tmp_path / "d.csv", as_csv(frame))
    table = Table(path, "y")
    before = table.fingerprint()
    os.utime(path, (1, 1))
    assert Table(path, "y").fingerprint() == before
    assert Table(path, "y", encode="one-hot").fingerprint() != before
    assert Table(path, "y", classes=("yes", "no")).fingerprint() != before
    seen = {before}
    in_frames = {Table.of(frame, "y").fingerprint()}
    assert in_frames == {Table.of(dict(frame), "y").fingerprint()}
    other = {"age": 18, "pay": 2.5, "sort": "c", "member": False, "y": "yes", "id": "r9", "gap": 4}
    for name in frame:
        for row in (0, 5):
            value = other[name] if frame[name][row] != other[name] else frame[name][1 - row]
            if value == frame[name][row]:
                continue
            changed = {**frame, name: [value if k == row else v for k, v in enumerate(frame[name])]}
            seen.add(Table(written(path, as_csv(changed)), "y").fingerprint())
            in_frames.add(Table.of(changed, "y").fingerprint())
    assert len(seen) == len(in_frames) >= 14


def test_take_gives_copies():
    table = Table.of(PLAIN, "y")
    x, _ = table.take(np.arange(6))
    x += 1
    assert table.x[0, 0] == 31
    assert not math.isnan(table.x.sum())
