"""The page of an explanation: no map without its verdict, nothing unescaped, readable on a phone and in the dark."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.explanation import Explanation, Input, Kind, Map
from assay.jobs.explain import UNITS
from assay.methods.explain.trial import Check, Scored, Verdict
from assay.report.explanation import digits_of, figure, heat, render, scale_of

HOSTILE = "<script>alert('x')</script>"
NAMES = ("s-r-bar", "s-r", "insertion", "deletion")


def made(kind: Kind, *, hostile: str = "") -> Explanation:
    draw = np.random.default_rng(0)
    shape = (8, 8) if kind == "image" else (5,)
    groups = np.kron(np.arange(16).reshape(4, 4), np.ones((2, 2), np.int64)) if kind == "image" else np.arange(5)
    scores = tuple(Scored(name, 12.5, tuple(draw.uniform(0, 20, 19))) for name in NAMES)  # type: ignore[arg-type]

    def map_of(name: str, verdict: Verdict, picks: tuple[int, ...] = (), gap: float | None = None) -> Map:
        checks = (Check("faithful", "pass", f"Better than chance{hostile}."),)
        shown = np.isin(groups, picks).astype(float) if picks else draw.normal(size=shape)
        base = None if gap is None else 3.5 + gap - float(shown.sum())  # the score is 3.5
        return Map(
            name=f"{name}{hostile}", says=f"how{hostile}", shown=shown, signed=not picks, scores=scores,
            likeness=0.25, signed_likeness=0.05, gap=gap, verdict=verdict, checks=checks, picks=picks,
            decided="Held." if picks else "", base=base, missed=gap, start="0",
        )  # fmt: skip

    return Explanation(
        subject=f"toy{hostile}",
        about=f"a toy{hostile}",
        input=Input(
            what=f"input 3{hostile}",
            kind=kind,
            image=draw.uniform(size=(1, 8, 8)).astype(np.float32) if kind == "image" else None,
            names=() if kind == "image" else tuple(f"name{k}{hostile}" for k in range(5)),
            values=(0.5, 1.5, 2.5, 3.5, 4.5) if kind == "table" else (),
            truth=f"cat{hostile}",
        ),
        classes=(f"cat{hostile}", f"dog{hostile}", "cow"),
        probabilities=(0.7, 0.2, 0.1),
        score=3.5,
        answer=0,
        rival=1,
        units=UNITS[kind][0],
        criterion="held",
        methods=("all",),
        maps=(
            map_of("gradient", "believable", gap=0.01),
            map_of("random", "not believable"),
            map_of("gradcam", "cannot tell"),
            map_of("greedy-as", "believable", picks=(0, 3)),
        ),
        left_out=(("edges", f"no image{hostile}"),),
        groups=groups,
        reference="0",
        budget="quick",
        seed=0,
        device="cpu",
        when="2026-01-02T03:04:05+00:00",
        seconds=12.0,
        source=("toy.py:build", hostile) if hostile else ("toy.py:build",),
        page=Path("explanation.html"),
    )


@pytest.mark.parametrize("kind", ["image", "table", "text"])
def test_no_map_without_its_verdict_and_no_score_without_what_chance_gets(kind: Kind) -> None:
    told = made(kind)
    page = render(told)
    cards = re.findall(r'<li class="map">.*?</figure></li>', page, re.S)
    assert len(cards) == len(told.maps)
    for card, m in zip(cards, told.maps, strict=True):
        assert f"<strong>{m.name}</strong>" in card
        assert re.search(rf'class="badge [a-z-]+">.*?{m.verdict}</span>', card, re.S)
        assert ("<img" in card) == (kind == "image")
    body = page[page.index("The trial in numbers") :]
    assert body.count("; beats ") == 4 * len(told.maps)
    assert body.count("higher is better") >= 2 + 2 * len(told.maps)
    assert body.count("lower is better") >= 4 + 4 * len(told.maps)
    assert (
        "It says cat (70.0\u00a0%), which is right. 4 maps of why: 2 believable, 1 not believable, 1 cannot tell."
        in page
    )
    assert 'assay</span> <span class="word">explain' in page
    assert "edges</strong>: no image" in page
    for outside in ("http:", "https:", "<script", '<link rel="stylesheet'):
        assert outside not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)


def test_an_answer_that_is_wrong_is_said_to_be() -> None:
    told = made("text")
    page = render(replace(told, input=replace(told.input, truth="dog")))
    assert "; in truth it is dog." in page
    assert "which is right" not in page
    assert "right" not in render(replace(told, input=replace(told.input, truth=None))).split("</h2>")[0].split("<h2")[1]


@pytest.mark.parametrize("kind", ["image", "table", "text"])
def test_names_with_a_script_in_them_stay_text(kind: Kind) -> None:
    page = render(made(kind, hostile=HOSTILE))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_heat_lies_over_the_image_itself_and_fades_to_it() -> None:
    black, dark = np.zeros((1, 2, 2), np.float32), round(255 * 0.15)
    drawn = heat(np.array([[1.0, -1.0], [0.0, 0.25]]), black, signed=True).astype(int)
    assert drawn[0, 0].tolist() == [0xD5, 0x5E, 0x00]
    assert drawn[0, 1].tolist() == [0x2F, 0x7F, 0xC1]
    assert drawn[1, 0].tolist() == [dark] * 3
    assert abs(drawn[1, 1] - (dark + drawn[0, 0]) / 2).max() <= 1  # the root of a quarter is half
    plain = heat(np.array([[0.9, 0.8], [0.8, 1.0]]), black, signed=False).astype(int)
    assert plain[0, 1].tolist() == [dark] * 3  # the least of a map without a sign says nothing
    assert plain[1, 1].tolist() == [0xD5, 0x5E, 0x00]
    image = np.array([[[0.0, 0.5], [0.75, 1.0]]], np.float32)
    nothing = heat(np.zeros((2, 2)), image, signed=True).astype(int)[..., 0]
    assert nothing[0, 0] < nothing[0, 1] < nothing[1, 0] < nothing[1, 1]  # what is bright stays brighter


def test_a_scale_has_the_true_values_and_the_colours_of_the_map() -> None:
    values = np.array([[0.5, -2.0], [0.0, 1.0]])
    scale = scale_of(values, signed=True)
    assert scale.ticks == ("\u22122.00", "0", "+2.00")
    assert (scale.colours[0], scale.colours[-1]) == ("rgb(47 127 193)", "rgb(213 94 0)")
    assert "Full colour at 2.00" in scale.says
    assert "half as deep at 0.500" in scale.says  # the root of a quarter
    plain = scale_of(np.array([[0.2, 0.6]]), signed=False)
    assert plain.ticks == ("0.200", "0.400", "0.600")
    assert "half as deep at 0.300" in plain.says
    assert scale_of(np.zeros((2, 2)), signed=True).ticks[1] == "0"


def test_a_row_falls_from_the_base_to_the_score_and_says_what_is_missed() -> None:
    told = made("table")
    (table,) = re.findall(r'<table class="fall".*?</table>', render(told).split("gradient</strong>")[1], re.S)[:1]
    cells = re.findall(r'scope="row">(.*?)</th>.*?class="number">(.*?)</td>', table, re.S)
    names = [re.sub(r"<.*", "", name).strip() for name, _ in cells]
    numbers = [float(text.replace("\u2212", "-")) for _, text in cells]
    assert (names[0], names[-2:]) == ("base value", ["not accounted for", "score of cat"])
    assert sorted(names[1:-2]) == [f"name{k}" for k in range(5)]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.03)  # seven numbers, rounded to 0.01
    assert numbers[-1] == 3.5
    assert abs(numbers[1]) == max(map(abs, numbers[1:-2]))
    many = replace(told.input, names=tuple(f"c{k}" for k in range(40)), values=(0.0,) * 40)
    wide = replace(told.maps[0], shown=np.arange(40.0), base=3.5 - 780 + 0.01)
    page = render(replace(told, input=many, maps=(wide,), groups=np.arange(40)))
    assert "25 other columns, together" in page
    assert "+300" in page  # 0 to 24


@pytest.mark.parametrize(
    ("value", "among", "sign", "text"),
    [
        (1.234, (1.234,), True, "+1.23"),
        (-0.0001, (5.0,), True, "0.00"),  # no minus before a zero
        (-12.34, (12.34,), False, "\u221212.3"),
        (3e-9, (3e-9,), False, "3.00e\u221209"),
        (0.0, (0.0,), True, "0.00"),
    ],
)
def test_numbers_have_the_figures_that_matter(value: float, among: tuple[float, ...], sign: bool, text: str) -> None:
    assert figure(value, digits_of(among), sign=sign) == text


def test_words_have_their_numbers_and_picks_their_order() -> None:
    told = made("text")
    page = render(told)
    card = re.findall(r'<li class="map">.*?</figure></li>', page, re.S)
    values = [float(v.replace("\u2212", "-")) for v in re.findall(r'class="worth number">(.*?)</span>', card[0])]
    assert values == pytest.approx(told.maps[0].shown.tolist(), abs=0.006)
    assert "not accounted for = <strong>3.50</strong>, the score" in card[0]
    assert "the score.</p>" not in card[1]  # this one promises nothing
    assert re.findall(r"pick </span>(\d)", card[3]) == ["1", "2"]
    pictures = re.findall(r'<li class="map">.*?</figure></li>', render(made("image")), re.S)
    marks = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" font-size="[\d.]+">(\d)</text>', pictures[3])
    assert marks == [("1.00", "1.00", "1"), ("7.00", "1.00", "2")]  # the middles of the first and the fourth patch
    assert "1 at 12 % from the left, 12 % down; 2 at 88 %" in pictures[3]
    assert 'class="ramp"' in pictures[0]
    assert 'class="ramp"' not in pictures[3]


def test_in_a_browser_nothing_scrolls_sideways_or_asks_for_anything(visit: Any, tmp_path: Path) -> None:
    for kind in ("image", "table", "text"):
        path = tmp_path / f"{kind}.html"
        path.write_text(render(made(kind, hostile=HOSTILE if kind == "text" else "")), encoding="utf-8")
        page = visit(path)
        for width, scheme in ((390, "dark"), (1280, "light")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (kind, width)
            for card in page.locator("li.map").all():
                badge = card.locator(".badge").bounding_box()
                assert badge is not None
                assert badge["x"] + badge["width"] <= width
            pictures = page.eval_on_selector_all("img", "all => all.map(i => i.complete && i.naturalWidth > 0)")
            assert pictures == [True] * (5 if kind == "image" else 0)


def test_a_series_breaks_where_nothing_is_known() -> None:
    told = made("table")
    lines = (("a", (0.0, float("nan"), 1.0, 2.0)), ("b", (float("nan"),) * 2), ("c", (1.0, 3.0)))
    page = render(replace(told, input=replace(told.input, lines=lines)))
    drawn = re.findall(r'<polyline points="([^"]*)"', page)
    assert drawn == ["0.00,19.00 0.00,19.00", "66.67,10.00 100.00,1.00", "0.00,19.00 100.00,1.00"]
    assert "4 times, from 0 to 2, 1 unknown" in page
    assert "2 times, no value is known" in page
    assert "2 times, from 1 to 3" in page
