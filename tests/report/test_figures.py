"""Drawings: well-formed, deterministic, apart from each other, readable on any ground, harmless with any text."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from assay.finding import Bars, Beside, Boxes, Curve, Gallery, Histogram, Line, Matrix, Scatter
from assay.report.figures import COLOURS, draw, standalone

SVG = "{http://www.w3.org/2000/svg}"


def views(audit):
    every = [v for row in audit.rows if row.answer.finding for v in row.answer.finding.views]
    return [v for v in every if not isinstance(v, Gallery)]


def texts(svg):
    return [t.text or "" for t in ET.fromstring(svg).iter(f"{SVG}text")]


def ids(svg):
    return [e.attrib["id"] for e in ET.fromstring(svg).iter() if "id" in e.attrib]


@pytest.fixture(scope="module")
def drawn(realistic):
    return {v.name: draw(v) for v in views(realistic)}


def test_every_drawing_is_xml_with_a_name_for_those_who_do_not_see(drawn, realistic):
    for view in views(realistic):
        root = ET.fromstring(drawn[view.name])
        assert root.attrib["role"] == "img"
        assert view.title in root.attrib["aria-label"]
        assert view.says in root.attrib["aria-label"]
        assert root.find(f"{SVG}title").text == view.title


def test_ids_are_unique_and_every_reference_is_met(drawn):
    everywhere = [i for svg in drawn.values() for i in ids(svg)]
    assert len(everywhere) == len(set(everywhere))
    for svg in drawn.values():
        wanted = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
        assert {a or b for a, b in wanted} <= set(ids(svg))
        assert wanted


def test_the_same_view_is_the_same_bytes_and_a_key_sets_it_apart(realistic):
    view = views(realistic)[0]
    assert draw(view) == draw(view)
    assert not set(ids(draw(view, "before"))) & set(ids(draw(view, "after")))


def test_ink_is_current_colour_and_nothing_reaches_outside(drawn):
    for svg in drawn.values():
        assert "currentColor" in svg
        assert "#010203" not in svg
        assert "#000000" not in svg
        assert "<style" not in svg  # matplotlib's own would match every element of the page
        assert "<!DOCTYPE" not in svg
        assert "DejaVu" not in svg
        assert not re.findall(r'(?:href|src)="(?!#|data:image/png)[^"]*"', svg)


def test_drawing_leaves_matplotlib_as_it_was(realistic):
    import matplotlib as mpl

    chosen = mpl.rcParams.copy()["backend"]
    mpl.rcParams["font.size"], mpl.rcParams["backend"] = 17, "pdf"
    try:
        before = dict(mpl.rcParams.copy())
        larger = draw(views(realistic)[0])
        assert dict(mpl.rcParams.copy()) == before
    finally:
        mpl.rcParams["font.size"], mpl.rcParams["backend"] = mpl.rcParamsDefault["font.size"], chosen
    assert larger == draw(views(realistic)[0])


def test_a_file_of_its_own_has_a_ground(drawn):
    text = standalone(drawn["confusion"])
    assert ET.fromstring(text.encode()).tag == f"{SVG}svg"
    assert "prefers-color-scheme:dark" in text


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("ground", ["#ffffff", "#15181b"])
def test_colours_stand_out_on_both_grounds(colour, ground):
    light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_proportions_have_percent_axes_and_marks_have_labels(drawn):
    assert "100 %" in texts(drawn["radii"])
    assert "8/255, asked about" in texts(drawn["radii"])
    assert {"all classes", "guessing"} <= set(texts(drawn["per-class"]))
    assert {"right", "wrong"} <= set(texts(drawn["confidence"]))


def test_a_confusion_matrix_shows_its_numbers(drawn, realistic):
    (matrix,) = [v for v in views(realistic) if isinstance(v, Matrix)]
    shown = [t for t in texts(drawn["confusion"]) if t.isdigit()]
    assert sorted(shown) == sorted(f"{v:.0f}" for row in matrix.values for v in row)


def test_what_was_not_measured_is_a_dash_and_shares_keep_two_decimals():
    matrix = Matrix(
        name="m",
        title="m",
        row_label="r",
        column_label="c",
        rows=("a",),
        columns=("x", "y", "z"),
        values=((None, 0.25, -0.5),),
    )
    assert {"–", "0.25", "-0.50"} <= set(texts(draw(matrix)))


def test_hostile_text_stays_text(hostile):
    for view in views(hostile):
        svg = draw(view)
        tags = {e.tag.removeprefix(SVG) for e in ET.fromstring(svg).iter()}
        assert not tags & {"script", "img", "foreignObject", "a"}
        assert any("</title><script>" in t for t in texts(svg))
    curve = views(hostile)[0]
    assert any(t.startswith("_</title>") for t in texts(draw(curve)))  # matplotlib would drop such a label


def test_mathematics_and_long_names_are_not_interpreted():
    bars = Bars(
        name="b",
        title="b",
        y_label="y",
        labels=("$x_1$", "a very long class name that goes on and on"),
        values=(1.0, 2.0),
        marks=(Beside(r"\frac{1", 1.0),),
    )
    shown = texts(draw(bars))
    assert "$x_1$" in shown
    assert r"\frac{1" in shown
    assert "a very long class name th…"[:26] in shown


def test_a_thousand_classes_stay_small():
    names = tuple(f"class {i}" for i in range(1000))
    values = np.eye(1000)
    values[:, 3] += 0.2
    matrix = Matrix(
        name="m",
        title="m",
        row_label="truth",
        column_label="answer",
        rows=names,
        columns=names,
        values=tuple(map(tuple, values)),
    )
    svg = draw(matrix)
    assert len(svg) < 200_000
    assert any("1000 columns" in t for t in texts(svg))
    bars = draw(Bars(name="b", title="b", y_label="accuracy", labels=names, values=tuple(np.linspace(0, 1, 1000))))
    assert len(bars) < 200_000
    assert {"class 0", "class 999"} <= set(texts(bars))
    assert "class 500" not in texts(bars)
    assert any("20 lowest and the 20 highest of 1000" in t for t in texts(bars))


@pytest.mark.parametrize(
    "view",
    [
        Curve(name="c", title="c", x_label="x", y_label="y", lines=()),
        Curve(
            name="c", title="c", x_label="x", y_label="y", lines=(Line(label="one", x=(2,), y=(0.5,)),), diagonal=True
        ),
        Scatter(name="s", title="s", x_label="x", y_label="y", lines=()),
        Bars(name="b", title="b", y_label="y", labels=(), values=()),
        Boxes(name="o", title="o", x_label="x", y_label="y", labels=(), values=()),
        Boxes(name="o", title="o", x_label="x", y_label="y", labels=("a", "b"), values=((), (1.0,)), unit_y=True),
        Histogram(name="h", title="h", x_label="x", edges=(0, 1), counts=()),
        Matrix(name="m", title="m", row_label="r", column_label="c", rows=("a",), columns=("b",), values=((None,),)),
    ],
)
def test_next_to_nothing_is_drawn_without_complaint(view, recwarn):
    ET.fromstring(draw(view))
    assert not recwarn.list


def test_points_of_a_scatter_lie_where_they_are_and_one_alone_stands_out():
    many = Line(label="many", x=(0.0, 1.0, 4.0), y=(0.0, 2.0, 1.0))
    one = Line(label="chosen", x=(2.0,), y=(1.0,))
    svg = draw(Scatter(name="s", title="s", x_label="error", y_label="unfairness", lines=(many, one)))
    root = ET.fromstring(svg)
    assert {"error", "unfairness", "many", "chosen"} <= {t.text for t in root.iter(f"{SVG}text")}

    def dots(colour):
        uses = [u for u in root.iter(f"{SVG}use") if colour in u.attrib.get("style", "")]
        return [(float(u.attrib["x"]), float(u.attrib["y"])) for u in uses][:-1]  # the last is the legend's

    (a, b, c), (lone,) = dots(COLOURS[0]), dots(COLOURS[1])
    assert abs((b[0] - a[0]) * 4 - (c[0] - a[0])) < 0.1  # along x as 0, 1 and 4
    assert abs((a[1] - c[1]) * 2 - (a[1] - b[1])) < 0.1  # up along y as 0, 2 and 1
    assert abs(lone[0] - (a[0] + c[0]) / 2) < 0.1
    assert abs(lone[1] - c[1]) < 0.1
    assert not drawn_with(root, COLOURS[0], "1.8")  # and no line joins them


def test_boxes_show_quartiles_whiskers_and_what_lies_beyond():
    boxes = Boxes(
        name="o",
        title="o",
        x_label="severity",
        y_label="error",
        labels=("clean", "5"),
        values=((0.5,), (0.1, 0.2, 0.3, 0.4, 0.5, 0.95)),
        unit_y=True,
        marks=(Beside("calibrated", 0.1),),
    )
    root = ET.fromstring(draw(boxes))
    assert {"severity", "error", "clean", "5", "calibrated", "100 %"} <= {t.text for t in root.iter(f"{SVG}text")}
    height = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", drawn_with(root, COLOURS[0]))]
    ink = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", drawn_with(root, "currentColor", "1.8"))]
    at = {0.5: min(ink), 0.35: max(ink)}  # the medians, of which the lower lies lower on the page
    scale = (at[0.35] - at[0.5]) / 0.15

    def y(value):
        return at[0.5] + scale * (0.5 - value)

    for value in (0.1, 0.225, 0.475, 0.5):  # whisker, quartiles, whisker
        assert min(abs(h - y(value)) for h in height) < 0.05
    assert min(abs(h - y(0.95)) for h in height) > 1  # no whisker reaches the outlier
    (dot,) = [float(u.attrib["y"]) for u in root.iter(f"{SVG}use") if COLOURS[0] in u.attrib.get("style", "")]
    assert abs(dot - y(0.95)) < 0.05


def test_names_of_boxes_fold_where_they_would_reach_the_next():
    names = ("what is seen", "seen, random change", "input, random change", "short")
    boxes = Boxes(name="o", title="o", x_label="x", y_label="y", labels=names, values=((1.0, 2.0),) * 4)
    told = [t.text for t in ET.fromstring(draw(boxes)).iter(f"{SVG}text")]
    assert {"what is seen", "seen, random", "input, random", "short"} <= set(told)
    assert told.count("change") == 2


def drawn_with(root, colour, width=""):
    """All path data with a stroke of this colour and width."""
    style = f"stroke: {colour}; stroke-width: {width}" if width else f"stroke: {colour}"
    return " ".join(p.attrib["d"] for p in root.iter(f"{SVG}path") if style in p.attrib.get("style", ""))


def test_a_gallery_is_not_drawn():
    with pytest.raises(TypeError, match="not drawn"):
        draw(Gallery(name="g", title="g", exhibits=()))


def test_many_lines_differ_in_more_than_colour():
    lines = tuple(Line(label=f"l{i}", x=(0, 1), y=(0, i)) for i in range(15))
    svg = draw(Curve(name="c", title="c", x_label="x", y_label="y", lines=lines))
    styles = re.findall(r'<path [^>]*style="(fill: none; [^"]*stroke-width: 1.8[^"]*)"', svg)
    assert len(set(styles)) == 15
