"""Rows: types read off a table, cells that stay what they are, and columns that nobody can change."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.inputs import SEVERITIES, Column, Row
from assay.inputs.row import slipped
from assay.inputs.show import Cells

TABLE = {
    "age": [34, 51, 27, 45],
    "height": [1.71, 1.85, 1.62, 1.9],
    "colour": ["red", "blue", "red", "green"],
    "member": [True, False, True, True],
    "income": np.array([1200.0, np.nan, 2400.0, 3100.0]),
    "sister": ["yes", None, "no", "no"],
}
KIND = Row.of(TABLE, units={"height": "m"}, bounds={"age": (0, 120)}, fixed=["colour"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def many(kind: Row, n: int, seed: int = 0) -> Tensor:
    low, span = kind.edges()
    return kind.typed((low + span * torch.rand(n, *kind.shape, generator=seeded(seed), dtype=torch.float64)).float())


def test_a_table_says_what_its_columns_are():
    assert KIND.columns == (
        Column("age", "integer", 0, 120, 34),
        Column("height", "number", 1.62, 1.9, 1.71, unit="m"),
        Column("colour", "category", 0, 2, 2, categories=("blue", "green", "red"), fixed=True),
        Column("member", "boolean", 0, 1, 1),
        Column("income", "integer", 1200, 3100, 2400, missing=True),
        Column("sister", "category", 0, 1, 0, categories=("no", "yes"), missing=True),
    )
    assert_close(
        KIND.encode(TABLE)[1],
        torch.tensor([51.0, 1.85, 0.0, 0.0, math.nan, math.nan]),
        equal_nan=True,
    )
    assert KIND.show(KIND.encode(TABLE)[1]) == Cells(
        (
            ("age", "51"),
            ("height", "1.85 m"),
            ("colour", "blue"),
            ("member", "no"),
            ("income", "missing"),
            ("sister", "missing"),
        )
    )
    assert KIND.features(KIND.encode(TABLE)[0]).names == tuple(TABLE)


def test_a_data_frames_own_missing_value_is_missing():
    class NAType:
        def __eq__(self, other: object) -> bool:
            raise TypeError("boolean value of NA is ambiguous")

    kind = Row.of({"a": [3, NAType(), 5]})
    assert kind.columns == (Column("a", "integer", 3, 5, 3, missing=True),)
    assert kind.encode({"a": [NAType(), 4]})[:, 0].isnan().tolist() == [True, False]


def test_whole_numbers_too_large_for_single_precision_are_numbers():
    assert Row.of({"when": [1_700_000_000, 1_700_000_001]}).columns[0].type == "number"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"a": [1, "old", 3]}, r"'a' mixes whole numbers \(1\) and words \('old'\)"),
        ({"a": [True, 2.5]}, r"'a' mixes booleans \(True\) and numbers \(2.5\)"),
        ({"a": [[1], [2, 3]]}, "holds a list"),
        ({"a": [1, 2], "b": [1, 2, 3]}, "'a' has 2 rows and 'b' has 3"),
        ({"a": [None, None]}, "'a' holds nothing"),
        ({"a": np.array([np.nan])}, "'a' holds nothing"),
        ({"a": np.array([1.0, np.inf])}, "'a' holds an infinite value"),
        ({"a": np.ones((2, 2))}, r"'a' has shape \(2, 2\)"),
        ({}, "has no columns"),
    ],
)
def test_a_table_that_makes_no_sense_is_told_in_one_line(table: dict[str, object], words: str):
    with pytest.raises(AssayError, match=words) as told:
        Row.of(table)  # type: ignore[arg-type]
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"colour": ["red", "blue", "teal", "green"]},
            "the category 'teal' in row 2, never seen in training; known are",
        ),
        ({"age": [1, None, 2, 3]}, "'age' is empty in row 1"),
        ({"age": [1, 2.5, 2, 3]}, "'age' has 2.5 in row 1; it is a column of whole numbers"),
        ({"age": ["a", "b", "c", "d"]}, "'age' holds words; it is a column of whole numbers or numbers"),
        ({"member": [1, 0, 1, 0]}, "'member' holds whole numbers; it is a column of booleans"),
        ({"age": [1, 2, 3, 400]}, r"Input 3 has the value 400 in the column 'age', outside the bounds \[0, 120\]"),
    ],
)
def test_rows_that_are_not_like_those_of_training_are_told(change: dict[str, object], words: str):
    with pytest.raises(AssayError, match=words) as told:
        KIND.encode({**TABLE, **change})  # type: ignore[dict-item]
    assert "\n" not in str(told.value)


def test_a_column_that_is_not_there_is_told():
    with pytest.raises(AssayError, match="no column 'age', only height"):
        KIND.encode({name: cells for name, cells in TABLE.items() if name != "age"})
    with pytest.raises(AssayError, match="There is a fixed column for 'aeg'"):
        Row.of(TABLE, fixed=["aeg"])
    with pytest.raises(AssayError, match="bounds for 'colour', a column of words"):
        Row.of(TABLE, bounds={"colour": (0, 1)})
    with pytest.raises(AssayError, match="Two columns are called 'a'"):
        Row((Column("a", "number", 0, 1, 0), Column("a", "number", 0, 1, 0)))
    with pytest.raises(ShapeError, match="at least one column"):
        Row(())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_integers_stay_whole_categories_known_and_what_is_fixed_untouched(data: st.DataObject):
    types = data.draw(st.lists(st.sampled_from(["number", "integer", "category", "boolean"]), min_size=1, max_size=6))
    columns = []
    for k, each in enumerate(types):
        top = data.draw(st.integers(0, 40))
        names = tuple(f"v{i}" for i in range(top + 1)) if each == "category" else ()
        high = 1 if each == "boolean" else top
        low = data.draw(st.integers(-30, 0)) if each in ("number", "integer") else 0
        fixed, missing = data.draw(st.booleans()), data.draw(st.booleans())
        columns.append(Column(f"c{k}", each, low, high, low, categories=names, missing=missing, fixed=fixed))  # type: ignore[arg-type]
    kind = Row(tuple(columns))
    x = many(kind, data.draw(st.integers(1, 9)))
    for k, column in enumerate(columns):
        if column.missing:
            x[:1, k] = math.nan
    severity = data.draw(st.integers(1, 5))
    for name, change in kind.everyday().items():
        changed = change(x, severity, seeded(severity))
        kind.check(changed)
        for k, column in enumerate(columns):
            if column.fixed:
                assert_close(changed[:, k], x[:, k], rtol=0, atol=0, equal_nan=True)
            there = changed[:, k][~changed[:, k].isnan()]
            if column.type != "number":
                assert torch.equal(there, there.round()), name
            assert ((there >= column.low) & (there <= column.high)).all(), name
            if not column.missing:
                assert len(there) == len(x), name


def test_missing_cells_are_empty_where_the_model_takes_that_and_usual_elsewhere():
    kind = Row((Column("a", "number", 0, 10, 4), Column("b", "number", 0, 10, 7, missing=True)))
    x = many(kind, 4000)
    changed = kind.everyday()["missing-cells"](x, 5, seeded())
    gone = changed[:, 1].isnan()
    assert 0.46 < gone.float().mean() < 0.54  # strength 0.5
    moved = changed[:, 0] != x[:, 0]
    assert 0.46 < moved.float().mean() < 0.54
    assert (changed[moved, 0] == 4).all()


def test_swapped_cells_are_the_columns_own_in_another_order():
    x = many(KIND, 501)
    changed = KIND.everyday()["swapped-cells"](x, 5, seeded())
    assert_close(changed.sort(0).values, x.sort(0).values, rtol=0, atol=0)
    moved = (changed != x)[:, KIND.columns.index(KIND.columns[1])].float().mean()
    assert 0.28 < moved < 0.42  # strength 0.35


def test_a_slipped_digit_is_the_key_beside_it():
    """Against the digits as one would write them, one cell at a time."""
    x = torch.tensor([[1234.0, 0.7, 305.0, 9.99, -48.2, 100.0, 0.01, 7.0]]).repeat(200, 1)
    whole = torch.tensor([True, False, True, False, False, True, False, True])
    wrong = slipped(x, 1.0, seeded(), whole=whole, measured=torch.ones(8, dtype=torch.bool), span=torch.ones(8))
    beside = {"0": "9", "1": "2", **{str(d): f"{d - 1}{(d + 1) % 10}" for d in range(2, 10)}}
    for k in range(8):
        digits = 0 if whole[k] else 2 + int(abs(float(x[0, k])) < 1) + 2 * int(abs(float(x[0, k])) < 0.1)
        before = f"{float(x[0, k]):.{digits}f}"
        seen = {f"{v:.{digits}f}" for v in wrong[:, k].double().tolist()}
        start = next(i for i, c in enumerate(before) if c in "123456789")
        places = [i for i in range(start, len(before)) if before[i] != "."][:3]
        typed = {before[:i] + c + before[i + 1 :] for i in places for c in beside[before[i]]}
        assert seen <= typed, (before, seen - typed)
        assert len(seen) > 1 or len(typed) == 1


def test_a_moved_point_is_a_factor_of_ten_cut_off_at_the_bounds():
    kind = Row((Column("a", "number", -1000.0, 1000.0, 0.0), Column("b", "integer", 0, 100, 5)))
    x = many(kind, 2000)
    changed = kind.everyday()["moved-points"](x, 4, seeded())
    moved = changed[:, 0] != x[:, 0]
    assert 0.15 < moved.float().mean() < 0.25  # strength 0.2
    a, b = x[moved, 0].double(), changed[moved, 0].double()
    near = torch.minimum((b - a / 10).abs(), (b - (a * 10).clamp(-1000, 1000)).abs())
    assert near.max() < 1e-3


def test_an_attacker_takes_whole_steps_and_stays_in_the_ball():
    kind = Row(
        (
            Column("n", "number", 0.0, 50.0, 1.0),
            Column("i", "integer", 0, 20, 1),
            Column("c", "category", 0, 4, 0, categories=tuple("abcde")),
            Column("f", "number", 0.0, 1.0, 0.0, fixed=True),
        )
    )
    reach = kind.reach
    assert reach.free.tolist() == [True, True, True, False]
    assert reach.step.tolist() == [0.0, 1.0, 4.0, 0.0]
    assert reach.choices.tolist() == [0, 0, 5, 0]
    x = many(kind, 400)
    for radius in (0.02, 0.06, 0.3, 0.99):
        wild = x + radius * reach.span * (2 * torch.rand(x.shape, generator=seeded(1)) - 1)
        settled = reach.settled(wild.float(), x)
        kind.check(settled)
        share = (settled.double() - x) / reach.span
        assert share.abs().max() <= radius + 1e-6
        assert share.norm(dim=1).max() <= ((wild - x) / reach.span).norm(dim=1).max() + 1e-6
        assert torch.equal(settled[:, 1], settled[:, 1].round())
        assert torch.equal(settled[:, 2:], x[:, 2:])  # no ball below the whole range moves a category
        assert (settled[:, 1] != x[:, 1]).any() == (radius > 0.05)  # one step is a twentieth of the range
    one = torch.tensor([[0.0, 3.0, 0.0, 0.5]])
    assert reach.settled(torch.tensor([[60.0, 3.9, 4.0, 0.9]]), one).tolist() == [[50.0, 3.0, 4.0, 0.5]]
    assert not Row((Column("i", "integer", 0, 9, 1),)).reach.gradient


def test_noise_has_the_deviation_that_it_says():
    kind = Row((Column("a", "number", 0.0, 200.0, 0.0), Column("i", "integer", 0, 100, 0)))
    x = torch.full((4000, 2), 50.0)
    for severity in SEVERITIES[:3]:
        change = kind.everyday()["noise"]
        off = change(x, severity, seeded()) - x
        assert_close(
            off.std(0) / torch.tensor([200.0, 100.0]),
            torch.full((2,), change.strengths[severity - 1]),
            rtol=0.06,
            atol=0,
        )


def test_rounding_leaves_few_values():
    kind = Row((Column("a", "number", -1.0, 1.0, 0.0), Column("i", "integer", 0, 30, 0)))
    changed = kind.everyday()["rounding"](many(kind, 3000), 4, seeded())  # ten steps
    assert torch.unique((changed[:, 0] * 1e4).round()).tolist() == [-10000 + 2000 * k for k in range(11)]
    assert torch.unique(changed[:, 1]).tolist() == [3 * k for k in range(11)]


def test_a_slipped_category_is_any_of_the_others():
    kind = Row((Column("c", "category", 0, 3, 0, categories=tuple("abcd")), Column("b", "boolean", 0, 1, 0)))
    x = torch.tensor([[2.0, 1.0]]).repeat(6000, 1)
    change = kind.everyday()["slipped-categories"]
    changed = change(x, 5, seeded())
    seen = torch.bincount(changed[:, 0].long(), minlength=4) / len(x)
    share = change.strengths[4]
    assert_close(seen, torch.tensor([share / 3, share / 3, 1 - share, share / 3]), atol=0.03, rtol=0)
    assert_close((changed[:, 1] == 0).float().mean(), torch.tensor(share), atol=0.03, rtol=0)


def test_reach_tells_what_may_change_and_how():
    columns = (
        Column("a", "number", 0.0, 50.0, 1.0),
        Column("b", "integer", 0, 10, 1),
        Column("c", "category", 0, 2, 0, categories=("x", "y", "z")),
        Column("d", "integer", 0, 5, 1, fixed=True),
        Column("e", "number", 2.0, 2.0, 2.0),
    )
    reach = Row(columns).reach
    assert reach.mask is not None
    assert reach.mask.tolist() == [True, True, False, False, False]
    assert reach.smooth.tolist() == [True, False, False, False, False]
    assert reach.told() == ", whole numbers in whole steps, categories not at all, 1 fixed value never"
    assert reach.told(1) == ", whole numbers in whole steps, any one category at will, 1 fixed value never"
    assert reach.told(2).count("any 2 categories at will") == 1
    plain = Row(columns[:1]).reach
    assert (plain.mask, plain.told(1)) == (None, "")
    low, span = torch.tensor([0.0, 0.0, 0.0, 0.0, 2.0]), torch.tensor([100.0, 20.0, 2.0, 5.0, 0.0])
    shares = reach.in_shares(low.double(), span.double())
    assert shares.span.tolist() == [0.5, 0.5, 1.0, 1.0, 0.0]
    assert shares.step.tolist() == [0.0, 0.05, 1.0, 0.2, 0.0]
    some = dataclasses.replace(reach, free=reach.free & torch.tensor([[True] * 5, [False] * 5]))
    assert some.take(torch.tensor([1])).mask.tolist() == [[False] * 5]
    assert reach.take(torch.tensor([1])) is reach


def test_what_is_settled_neither_fills_a_missing_cell_nor_makes_one():
    reach = Row((Column("a", "number", 0.0, 1.0, 0.5, missing=True), Column("b", "integer", 0, 9, 1))).reach
    clean = torch.tensor([[math.nan, 3.0], [0.5, 3.0]])
    proposed = torch.tensor([[0.2, 4.0], [math.nan, math.nan]])
    assert_close(reach.settled(proposed, clean), torch.tensor([[math.nan, 4.0], [0.5, 3.0]]), equal_nan=True)


def test_bounds_and_reach_are_made_once_however_often_a_batch_changes(monkeypatch):
    kind = Row((Column("a", "number", 0.0, 1.0, 0.5), Column("b", "number", 0.0, 9.0, 1.0, fixed=True)))
    change = kind.everyday()["noise"]
    asked = []
    made = Row.bounds
    monkeypatch.setattr(Row, "bounds", lambda self: asked.append(1) or made(self))
    x = torch.tensor([[0.2, 3.0], [0.9, 8.0]])
    for seed in range(3):
        changed = change(x, 5, seeded(seed))
        assert (changed[:, 1] == x[:, 1]).all()
        assert (changed[:, 0] != x[:, 0]).any()
    assert len(asked) <= 3  # for the bounds, and for the edges of its reach
    wider = dataclasses.replace(kind, columns=(Column("a", "number", 0.0, 5.0, 0.5), kind.columns[1]))
    wider.check(torch.tensor([[4.0, 3.0]]))  # another kind has bounds of its own
    with pytest.raises(AssayError, match="outside the bounds"):
        kind.check(torch.tensor([[4.0, 3.0]]))
