"""The report in a real browser, from disk: quiet, alone, complete, at any width, in the dark and on paper."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def pages(rendered, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in ("realistic", "hostile", "comparison")}
    for name, path in paths.items():
        path.write_text(rendered[name], encoding="utf-8")
    return paths


@pytest.fixture
def visit(visit, pages):
    return lambda name, **context: visit(pages[name], **context)


def test_rows_figures_and_pictures_are_there(visit, realistic):
    page = visit("realistic")
    asked = [row for row in realistic.rows if row.answer.status != "does not apply"]
    assert page.locator("table.questions tbody").count() == len(asked)
    assert page.locator("svg[role=img]").count() == 6
    for i in range(6):
        box = page.locator("svg[role=img]").nth(i).bounding_box()
        assert box["width"] > 300
        assert box["height"] > 100
    widths = page.eval_on_selector_all("img", "all => all.map(i => [i.complete, i.naturalWidth])")
    assert widths == [[True, 28]] * 24
    page.locator("table.questions a.ask").first.click()  # what fails is first
    assert page.url.endswith("#worst-case-accuracy")
    assert page.locator("#worst-case-accuracy h3").is_visible()


def test_a_name_with_a_script_in_it_stays_text(visit):
    page = visit("hostile")
    assert "<script>alert('x')</script>" in page.locator("h1").inner_text()
    assert "<script>" in page.title()
    assert page.locator("script").count() == 1  # the page's own
    assert page.locator("img[onerror]").count() == 0


@pytest.mark.parametrize("name", ["realistic", "hostile", "comparison"])
def test_nothing_scrolls_sideways(visit, name):
    page = visit(name, viewport={"width": 390, "height": 800})
    for width in (390, 800, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_at_phone_width_rows_are_cards(visit):
    page = visit("realistic", viewport={"width": 390, "height": 800})
    assert page.locator("table.questions tbody td").first.evaluate("e => getComputedStyle(e).display") == "block"
    boxes = [page.locator("svg[role=img]").nth(i).bounding_box() for i in range(6)]
    assert all(b["x"] >= 0 and b["x"] + b["width"] <= 390 for b in boxes)


def test_dark_is_dark_and_its_ink_light(visit):
    def brightness(page, selector, what):
        colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{what}")
        return sum(float(part) for part in colour[4:-1].split(",")[:3]) / 3

    paper, ink = {}, {}
    page = visit("realistic")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        paper[scheme] = brightness(page, "body", "backgroundColor")
        ink[scheme] = brightness(page, "svg[role=img] text", "fill")
    assert paper["dark"] < 40 < 200 < paper["light"]
    assert ink["dark"] > 200 > 60 > ink["light"]


def test_on_paper_nothing_is_hidden_or_cut(visit):
    page = visit("realistic", viewport={"width": 690, "height": 900}, color_scheme="dark")
    folded = page.locator(".facts details span").first
    assert not folded.is_visible()
    page.emulate_media(media="print")
    assert folded.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 690
    assert page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 20_000


def test_the_first_tab_leads_past_the_head(visit):
    page = visit("realistic")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answers"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
