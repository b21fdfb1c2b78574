"""The page of an explained pair: no map without its verdict, nothing unescaped, readable on a phone and in the dark."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from assay.finding import Beside, Curve, Line, Measure, Panel
from assay.pair_explanation import Check, Drawn, Frame, PairExplanation, Shown, Side, Strip, Trial
from assay.report.pair_explanation import animate, render, tally

HOSTILE = "<script>alert('x')</script>"


def made(*, decoder: bool = True, hostile: str = "") -> PairExplanation:
    draw = np.random.default_rng(0)

    def panel(label: str, channels: int = 1) -> Panel:
        return Panel.of(f"{label}{hostile}", f"alt of {label}{hostile}", draw.uniform(size=(channels, 8, 8)))

    def frame(step: int, c: float) -> Frame:
        seen = panel(f"seen {step}") if decoder else None
        return Frame(step=step, c=c, panel=panel(f"step {step}"), seen=seen, strange=step == 40)

    def shown(label: str) -> Shown:
        says = f"how it is drawn{hostile}"
        return Shown(panel=panel(label, 3), says=says, colours=("#000", "#fff"), low=0.001, high=0.0502)

    def curve(name: str) -> Curve:
        lines = (Line(label=f"the answer{hostile}", x=(0.0, 1.0, 2.0), y=(0.8, 0.7, 0.5)),)
        return Curve(name=name, title=f"How{hostile}", x_label="step", y_label="answer", lines=lines)

    angle = Measure(
        name=f"angle{hostile}", value=12.5, unit="degrees", better="lower", beside=(Beside("random", 90.0),)
    )
    return PairExplanation(
        subject=f"toy{hostile}",
        about=f"a toy{hostile}",
        first=Side(what=f"input 12{hostile}", given="12", value=7.0, panel=panel("first")),
        second=Side(what="input 40", given="40", value=None, panel=panel("second")),
        ordered=True,
        scale=(0.0, 1.0),
        ends=(f"the second is higher{hostile}", "the first is higher"),
        c=0.8,
        right=0.75,
        target=0.5,
        swapped_target=0.5,
        reached_c=0.504,
        says=f"It says 0.80{hostile}.",
        walk_says=f"It took 40 steps{hostile}.",
        change_says=f"The change is small{hostile}.",
        seen_says=f"It sees a digit{hostile}." if decoder else "",
        unseen="" if decoder else f"the model has no decoder{hostile}.",
        walked=curve("walk"),
        frames=tuple(frame(step, c) for step, c in ((0, 0.8), (20, 0.7), (40, 0.504))),
        pictures=(panel("before"), panel("after"), panel("change")),
        maps=tuple(shown(label) for label in ("grey", "green on red", "red on blue", "regions, max", "regions, mean")),
        checks=(Check("fail", f"not local{hostile}"), Check("pass", "needs the model")),
        seen=(panel("seen before"), panel("seen after")) if decoder else (),
        seen_maps=(shown("seen difference"),) if decoder else (),
        seen_checks=(Check("fail", "drawn from nowhere"),) if decoder else (),
        strips=(
            Strip(title=f"A line{hostile}", says=f"To compare{hostile}.",
                  drawn=(Drawn(label="0 %", c=0.8, panel=panel("line"), strange=True),)),
        ) if decoder else (),
        trials=(
            Trial(name="local", question=f"Is it local{hostile}?", outcome="fail", verdict=f"not local{hostile}",
                  says=f"The angle is wide{hostile}.", measures=(angle,), views=(curve("angles"),)),
            Trial(name="sanity", question="Does it need the model?", outcome="pass", verdict="needs the model",
                  says="It does.", measures=(angle,)),
            Trial(name="tie", question="How far to a tie?", outcome="cannot tell", verdict="cannot tell",
                  says="Who knows."),
            Trial(name="recycled", question="Does it agree with itself?", outcome="pass" if decoder else "not asked",
                  verdict="agrees" if decoder else "not asked", says="Left out." if not decoder else "It does."),
        ),
        decoder=False,
        settings="target 0.5",
        manner=("tv=0.1",),
        method="a thesis",
        budget="quick",
        seed=0,
        device="cpu",
        when="2026-01-02T03:04:05+00:00",
        seconds=12.0,
        source=("toy.py:build", hostile) if hostile else ("toy.py:build",),
        page=Path("explanation.html"),
        moving="walk.gif",
    )  # fmt: skip


def page_of(told: PairExplanation) -> str:
    return render(told, animate(told.frames, scale=told.scale, target=told.target))


def test_no_map_without_its_verdict_and_no_audit_without_what_chance_gets() -> None:
    told = made()
    page = page_of(told)
    cards = re.findall(r'<li class="map">.*?</figure></li>', page, re.S)
    assert len(cards) == len(told.maps) + len(told.seen_maps)
    for card, m in zip(cards, (*told.maps, *told.seen_maps), strict=True):
        assert f"<strong>{m.panel.label}</strong>" in card
        assert "from 0.001 to 0.05" in card  # what its colours stand for
        assert "linear-gradient(90deg, #000, #fff)" in card
        assert "badge" not in card
    groups = re.findall(r'<p class="verdicts" aria-label="([^"]+)">(.*?)</p>\s*<ul class="maps">', page, re.S)
    assert [label for label, _ in groups] == ["Verdicts on these maps", "Verdicts on what is seen"]
    assert re.search(
        r'class="badge fail">.*?not local</span>.*class="badge pass">.*?needs the model<', groups[0][1], re.S
    )
    assert re.search(r'class="badge fail">.*?drawn from nowhere</span>', groups[1][1], re.S)
    assert page.count("from nowhere</span></figcaption>") == 2  # the last frame of what is seen, and one on the line
    trials = re.findall(r'<article class="trial".*?</article>', page, re.S)
    assert len(trials) == 4
    for text, trial in zip(trials, told.trials, strict=True):
        assert trial.question in text
        assert re.search(rf'class="badge {trial.outcome.replace(" ", "-")}">.*?{trial.verdict}</span>', text, re.S)
        assert text.count("<td") == 3 * len(trial.measures)
    assert "random: 90.0\u00a0degrees" in trials[0]
    assert ">lower<" in trials[0]
    assert "It says 0.80. Audits of this explanation: 2 pass, 1 fails, 1 cannot tell." in page
    for outside in ("http:", "https:", "<script", '<link rel="stylesheet'):
        assert outside not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert all(re.search(r'alt="[^"]+"', img) for img in re.findall(r"<img[^>]*>", page))


def test_the_page_says_how_to_explain_the_other_one() -> None:
    told = replace(made(), target=0.25, swapped_target=0.75)
    words = re.sub(r"<[^>]+>", "", page_of(told))
    assert "assay explain toy.py:build --pair 40 12 --to 0.75 --set tv=0.1 --budget quick --seed 0" in words
    assert "assay explain toy.py:build --pair 12 40 --to 0.25 --set tv=0.1 --budget quick --seed 0" in words
    assert "swap the two numbers." in re.sub(r"<[^>]+>", "", page_of(replace(told, source=())))


def test_without_a_decoder_the_page_says_why_nothing_is_seen() -> None:
    page = page_of(made(decoder=False))
    assert "Left out: the model has no decoder." in page
    assert "What it sees on the way" not in page
    assert "2 pass" not in page
    assert "1 passes, 1 fails, 1 cannot tell, 1 not asked" in page


def test_names_with_a_script_in_them_stay_text() -> None:
    for decoder in (True, False):
        page = page_of(made(decoder=decoder, hostile=HOSTILE))
        assert "<script" not in page
        assert "&lt;script&gt;" in page


def test_the_animation_has_a_frame_for_each_step_and_stands_still_at_the_ends() -> None:
    told = made()
    moving = animate(told.frames, scale=(0.0, 1.0), target=0.5)
    with Image.open(io.BytesIO(moving)) as image:
        assert image.n_frames == 3  # type: ignore[attr-defined]
        lasts, firsts = [], []
        for k in range(3):
            image.seek(k)
            lasts.append(image.info["duration"])
            firsts.append(np.asarray(image.convert("RGB")))
        assert image.info["loop"] == 0
    assert lasts[0] == lasts[2] > 5 * lasts[1]
    width = firsts[0].shape[1]
    assert width > 2 * 160  # two pictures side by side
    assert f"data:image/gif;base64,{base64.b64encode(moving).decode()}" in render(told, moving)

    def dot(pixels: np.ndarray) -> float:
        """Where the orange dot stands, as a share of the width."""
        orange = (abs(pixels.astype(int) - (0xD5, 0x5E, 0x00)) < 30).all(2)
        return float(np.nonzero(orange)[1].mean() / width)

    assert dot(firsts[0]) > dot(firsts[1]) > dot(firsts[2])
    alone = animate(made(decoder=False).frames, scale=(0.0, 1.0), target=0.5)
    with Image.open(io.BytesIO(alone)) as image:
        assert image.size[0] < width


def test_the_tally_counts_every_outcome() -> None:
    assert tally(made().trials) == "2 pass, 1 fails, 1 cannot tell"
    assert tally(()) == "0 pass, 0 fail, 0 cannot tell"


def test_in_a_browser_nothing_scrolls_sideways_or_asks_for_anything(visit: Any, tmp_path: Path) -> None:
    for name, told in (("seen", made()), ("unseen", made(decoder=False, hostile=HOSTILE))):
        path = tmp_path / f"{name}.html"
        path.write_text(page_of(told), encoding="utf-8")
        page = visit(path)
        for width, scheme in ((360, "dark"), (1280, "light")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            for badge in page.locator(".verdicts .badge").all():
                box = badge.bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= width
            for card in page.locator(".map").all():  # a map is as wide as its card
                outer, inner = card.bounding_box(), card.locator("img").bounding_box()
                assert outer is not None
                assert inner is not None
                assert inner["width"] > outer["width"] - 40
            pictures = page.eval_on_selector_all("img", "all => all.map(i => i.complete && i.naturalWidth > 0)")
            assert pictures == [True] * (21 if name == "seen" else 14)
