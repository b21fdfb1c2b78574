from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import binomtest

from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Bars,
    Beside,
    Boxes,
    Curve,
    Exhibit,
    Finding,
    Gallery,
    Histogram,
    Line,
    Matrix,
    Measure,
    Panel,
    Scatter,
    Table,
    Witnesses,
    bootstrap,
    finding_from_json,
    finding_to_json,
    share,
    wilson,
)


@given(n=st.integers(1, 400), data=st.data())
@settings(deadline=None, max_examples=60)
def test_wilson_equals_scipys_and_holds_the_share(n, data):
    hits = data.draw(st.integers(0, n))
    low, high = wilson(hits, n)
    theirs = binomtest(hits, n).proportion_ci(method="wilson")
    assert low == pytest.approx(theirs.low, abs=1e-9)
    assert high == pytest.approx(theirs.high, abs=1e-9)
    assert 0 <= low <= hits / n <= high <= 1


def test_bootstrap_of_a_mean_has_the_width_of_the_normal_interval():
    v = np.random.default_rng(0).normal(3, 2, size=400)
    low, high = bootstrap(lambda counts: counts @ v / len(v), len(v), seed=0, draws=2000)
    assert high - low == pytest.approx(2 * 1.96 * v.std() / 20, rel=0.1)
    assert low < v.mean() < high


def test_bootstrap_counts_sum_to_n_and_do_not_depend_on_the_chunks():
    sums = []
    bootstrap(lambda counts: (sums.append(counts.sum(1)), counts[:, 0])[1], 50_000, seed=1, draws=100)
    assert len(sums) > 1  # 50,000 rows do not fit into one chunk
    assert all((s == 50_000).all() for s in sums)
    assert bootstrap(lambda c: c @ np.arange(10.0), 10, seed=3) == bootstrap(lambda c: c @ np.arange(10.0), 10, seed=3)


def test_a_value_is_none_never_nan():
    with pytest.raises(AssayError, match="pass None for what was not measured"):
        Measure(name="m", value=float("nan"), better="higher")
    with pytest.raises(AssayError, match="low 2 above high 1"):
        Measure(name="m", value=1, low=2, high=1, better="higher")
    with pytest.raises(AssayError, match=r"no value for \['m'\]; add an alarm"):
        Finding(says="", measures=(Measure(name="m", value=None, better="higher"),))


def test_a_finding_names_each_measure_once_and_finds_them():
    one, two = (Measure(name=n, value=0.5, better="higher") for n in ("a", "b"))
    finding = Finding(says="", measures=(one, two))
    assert finding.measure() is one
    assert finding.measure("b") is two
    with pytest.raises(AssayError, match=r"no measure 'c'; it has \['a', 'b'\]"):
        finding.measure("c")
    with pytest.raises(AssayError, match="names a measure twice"):
        Finding(says="", measures=(one, one))
    with pytest.raises(AssayError, match="at least one measure"):
        Finding(says="", measures=())


def test_tables_need_an_index_and_equal_columns():
    with pytest.raises(AssayError, match="needs a column 'index'"):
        Table("test", {"a": np.arange(3)})
    with pytest.raises(AssayError, match="differ in length"):
        Table("test", {"index": np.arange(3), "a": np.arange(2)})


def test_every_view_survives_strict_json():
    picture = Exhibit.of(3, "a bag", np.zeros((1, 8, 8)), np.full((1, 8, 8), 0.1))
    assert [p.label for p in picture.panels] == ["clean", "changed", "difference"]
    finding = Finding(
        says="so",
        measures=(Measure.proportion("a", [1, 0, 1], better="higher", beside=(Beside("b", 0.1),)),),
        alarms=(Alarm("careful", ("a",)),),
        views=(
            Curve(
                name="c",
                title="t",
                x_label="x",
                y_label="y",
                marks=(Beside("m", 1.0),),
                lines=(
                    Line(label="l", x=(0.0, 1.0), y=(1.0, 2.0), low=(0.0, 1.0), high=(2.0, 3.0)),
                    Line(label="k", x=(), y=()),
                ),
            ),
            Scatter(
                name="s",
                title="t",
                x_label="x",
                y_label="y",
                lines=(Line(label="l", x=(0.0,), y=(1.0,)), Line(label="k", x=(0.0, 1.0), y=(1.0, 2.0))),
            ),
            Bars(name="b", title="t", y_label="y", labels=("p", "q"), values=(1.0, 2.0)),
            Boxes(
                name="o",
                title="t",
                x_label="x",
                y_label="y",
                labels=("p", "q"),
                values=((1.0, 2.0, 4.0), ()),
                marks=(Beside("m", 1.0),),
            ),
            Histogram(name="h", title="t", x_label="x", edges=(0.0, 1.0), counts=(("all", (3.0,)),)),
            Matrix(
                name="m", title="t", row_label="r", column_label="c", rows=("a",), columns=("b",), values=((None,),)
            ),
            Gallery(name="g", title="t", exhibits=(picture,)),
        ),
    )
    stored = json.loads(json.dumps(finding_to_json(finding), allow_nan=False))
    assert finding_from_json(stored) == finding


def test_panels_are_eight_bit_thumbnails_with_the_right_greys():
    image = np.array([[[0.0, 0.5, 1.0]]])
    with Image.open(io.BytesIO(Panel.of("x", "alt", image).png)) as picture:
        assert [picture.getpixel((i, 0)) for i in range(3)] == [0, 128, 255]
    with Image.open(io.BytesIO(Panel.of("x", "alt", np.zeros((3, 400, 200))).png)) as picture:
        assert picture.size == (80, 160)
        assert picture.mode == "RGB"
    with pytest.raises(AssayError, match=r"\(1 or 3, h, w\), got \(2, 4, 4\)"):
        Panel.of("x", "alt", np.zeros((2, 4, 4)))


def test_the_difference_is_grey_where_nothing_changed():
    clean = np.zeros((1, 4, 4))
    changed = clean.copy()
    changed[0, 0, 0] = 0.01
    with Image.open(io.BytesIO(Exhibit.of(0, "", clean, changed).panels[2].png)) as picture:
        assert picture.getpixel((0, 0)) == 255  # stretched to its own largest value
        assert picture.getpixel((3, 3)) == 128


def test_witnesses_keep_their_rows_together():
    w = Witnesses(
        split="test",
        index=np.arange(3),
        clean=np.zeros((3, 2)),
        changed=np.ones((3, 2)),
        label=np.arange(3),
        said=np.arange(3) + 1,
        norm=("linf", "l2", "none"),
        radius=np.arange(3.0),
        how=("a", "b", "c"),
    )
    kept = w.keep(np.array([True, False, True]))
    assert (kept.norm, kept.how, kept.index.tolist(), len(kept)) == (("linf", "none"), ("a", "c"), [0, 2], 2)


def test_a_share_reads_the_same_everywhere():
    assert share(3, 40) == "3 of 40 (8 %)"
    assert share([1, 2], 4) == "2 of 4 (50 %)"
    assert share(0, 0) == "0 of 0"


def test_a_median_counts_what_never_happens_and_is_not_measured_where_that_is_half():
    values = [0.0, 1.0, 2.0, 3.0, np.inf]
    m = Measure.median("m", values, better="higher", seed=0)
    assert m.value == 2.0
    assert m.n == 5
    assert 0.0 <= m.low <= 2.0 <= m.high <= 3.0
    assert Measure.median("m", [1.0, 4.0], better="higher", seed=0).value == 1.0  # the lower of two
    never = Measure.median("m", [1.0, np.inf, np.inf], better="higher", seed=0)
    assert (never.value, never.low, never.high, never.n) == (None, None, None, 3)
    samples = np.random.default_rng(0).exponential(size=(60, 100))
    found = [Measure.median("m", sample, better="higher", seed=0) for sample in samples]
    assert sum(m.low <= np.log(2) <= m.high for m in found) >= 51  # 95 % of 60 is 57; below 51 once in a thousand times
    with pytest.raises(AssayError, match="median of 0 values"):
        Measure.median("m", [], better="higher", seed=0)


def test_a_line_of_shares_has_the_wilson_band():
    line = Line.shares("held", [0, 0.5], [8, 0], 10)
    assert (line.x, line.y) == ((0.0, 0.5), (0.8, 0.0))
    assert line.low is not None
    assert line.high is not None
    assert (line.low[0], line.high[0]) == wilson(8, 10)
    assert (line.low[1], line.high[1]) == wilson(0, 10)


def test_the_interval_of_a_contrast_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    truth, n = ((0.5, 0.95), (0.5, 0.9), (-1.0, 0.7)), 60
    wanted = sum(w * p for w, p in truth)
    held = 0
    for _ in range(1000):
        m = Measure.contrast("x", [(w, rng.random(n) < p) for w, p in truth], better="lower")
        held += m.low <= wanted <= m.high
    assert 0.93 <= held / 1000 <= 0.985


def test_a_contrast_of_one_part_is_its_proportion_and_one_of_perfect_parts_is_no_point():
    hits = np.arange(40) < 25
    one, plain = Measure.contrast("x", [(1.0, hits)], better="higher"), Measure.proportion("x", hits, better="higher")
    assert (one.value, one.low, one.high, one.n) == pytest.approx((plain.value, plain.low, plain.high, plain.n))
    whole = np.ones(40, dtype=bool)
    same = Measure.contrast("x", [(1.0, whole), (-1.0, whole)], better="lower")
    assert same.value == 0
    assert same.low < 0 < same.high
    assert same.low == pytest.approx(-same.high)
