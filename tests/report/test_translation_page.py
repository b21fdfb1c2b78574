"""The page of translators in a real browser: the slider flags pixels, by keyboard too, at any width."""

from __future__ import annotations

import numpy as np
import pytest

from assay.report.translation import Pictures, Review, Scores, Translation, in_words, overlay, picture, render

SPREAD = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)


def told(members: int = 3, name: str = "field <i>1</i>") -> Translation:
    """One image whose spread runs from 0 to 1 in even steps, so that what a threshold flags is known."""
    thresholds = tuple(np.linspace(0, 1, 11).tolist())
    flagged = tuple(float((t <= SPREAD).mean()) for t in thresholds)
    sure = members > 1
    one = Pictures(
        name=name, source=picture(SPREAD[None]), mean=picture(1 - SPREAD[None]), truth=picture(SPREAD[None]),
        spread=picture(SPREAD[None]) if sure else None, error=picture(SPREAD[None]),
        flagged=overlay(SPREAD >= 0.5) if sure else None, regions=int(sure),
    )  # fmt: skip
    review = Review(threshold=0.5, thresholds=thresholds, flagged=flagged, found=flagged, hits=flagged)
    scores = Scores(error=0.1, root=0.2, blind=0.3, correlation=0.9, undefined=2, wrong=0.1, area=0.1, rank=0.5)
    return Translation(
        title="<script>alert('x')</script>", when="2026-01-01T00:00:00+00:00", data="pairs.zip", trained_on=8,
        tested_on=3, shape=(1, 8, 8), answers=1, members=members, tolerance=0.1,
        settings={"learning_rate": 0.001, "way": "ensemble"}, seed=0,
        scores=scores, review=review if sure else None, losses=((0.5, 0.25),), widest=1.0, largest=1.0,
        pictures=(one,), command=("assay", "translate", "pairs.zip"), environment={"assay": "0", "torch": "0"},
    )  # fmt: skip


@pytest.fixture
def page(tmp_path, visit):
    def go(given: Translation, **context):
        path = tmp_path / "translation.html"
        path.write_text(render(given), encoding="utf-8")
        return visit(path, **context)

    return go


def test_the_slider_flags_what_is_at_least_as_uncertain(page):
    shown = page(told())
    assert "<script>alert('x')</script>" in shown.locator("h1").inner_text()
    assert "field <i>1</i>" in shown.locator("h3").first.inner_text()
    assert shown.locator("[data-count]").inner_text() == "50.0 % flagged"
    slider = shown.locator("#threshold")
    slider.focus()
    shown.keyboard.press("ArrowLeft")
    assert shown.locator("[data-count]").inner_text() == "59.4 % flagged"  # 38 of 64 are at 0.4 or more, to the pixel
    assert "flags 59.4 % of all pixels" in shown.locator("#told").inner_text()
    shown.keyboard.press("End")
    assert shown.locator("[data-count]").inner_text() == "1.6 % flagged"
    assert slider.get_attribute("aria-valuetext") == "spread 1.00"
    assert shown.locator("canvas.flags").count() == 1
    assert shown.locator(".side figure").count() == 5
    for width in (390, 800):
        shown.set_viewport_size({"width": width, "height": 800})
        assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_one_network_has_no_slider_and_says_why(page):
    shown = page(told(members=1))
    assert shown.locator("#threshold").count() == 0
    assert shown.locator(".alarm").inner_text().strip().startswith("no uncertainty available")
    assert shown.locator(".side figure").count() == 4
    assert "no uncertainty available" in in_words(told(members=1))


def test_without_its_script_what_was_chosen_is_flagged(page):
    shown = page(told(), java_script_enabled=False)
    assert shown.locator("img.flags").count() == 1
    assert shown.locator("#slide").is_hidden()
    assert "1 region flagged" in shown.locator("h3").first.inner_text()
    assert "2 more test images are in results.zip" in shown.locator("main").inner_text()
