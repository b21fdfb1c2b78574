"""The page of the ledger in a real browser: from disk, alone, at phone width, its filters at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.claim import Before, Claim, Entry, Evidence, Held, Published
from assay.finding import Measure
from assay.report import ledger

WIDTHS = (390, 1280)


def told(source: str, verdict: Held, before: Held | None = None, stale: str = "") -> ledger.Told:
    def never(run: object) -> Evidence:
        raise AssertionError("a page runs nothing")

    printed = tuple(Published(f"gain in accuracy of the network of row {i}", 0.1 * i, "table 3", "%") for i in (1, 2))
    claim = Claim(
        name="it", source="Someone, 2021, 'A title that is long enough to fill a line of a phone and a half'",
        says="Centring helps every network.", published=printed, here="two seeds", minutes=1, test=never,
    )  # fmt: skip
    if verdict == "not run":
        return ledger.Told(f"{source}/{verdict.replace(' ', '-')}", claim, None, "")
    measures = tuple(Measure(name=p.what, value=p.value, low=0.0, high=0.3, better="higher", unit="%") for p in printed)
    entry = Entry(
        id=f"{source}/it", says=claim.says, evidence=Evidence(verdict=verdict, says="It gained.", measures=measures),
        seed=0, budget="quick", machine="m", versions={}, command="assay claims test it", seconds=1.0,
        when="2026-11-17T06:00:00+00:00", commit="0" * 40,
        before=before and Before(verdict=before, says="Then not.", why="it rests on 5 trainings, then on 1" * 6),
    )  # fmt: skip
    return ledger.Told(f"{source}/{verdict.replace(' ', '-')}", claim, entry, stale)


@pytest.fixture(scope="module")
def page_of_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "claims.html"
    four = (
        told("first2021", "holds"),
        told("first2021", "cannot tell", before="fails"),
        told("second2021-a-source-of-a-longer-name", "fails", stale="since then the study changed"),
        told("second2021-a-source-of-a-longer-name", "not run"),
    )
    path.write_text(ledger.html(four), encoding="utf-8")
    return path


def test_it_opens_from_disk_without_a_request_at_any_width(visit: Any, page_of_four: Path) -> None:
    page = visit(page_of_four)  # which insists that it asked for nothing and said nothing
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("svg.dots").count() == 3
        drawn = page.locator("svg.dots text").first.bounding_box()
        assert drawn is not None
        assert drawn["height"] >= 9  # which can be read: the figure scrolls, the page does not


def test_on_a_phone_what_is_said_of_a_verdict_stands_below_it_and_not_among_the_labels(
    visit: Any, page_of_four: Path
) -> None:
    page = visit(page_of_four, viewport={"width": 390, "height": 800})
    row = page.locator("tr[data-stale=yes] td[data-label=Verdict]")
    verdict, stale = (row.locator(what).bounding_box() for what in (".badge", ".about"))
    assert row.locator(".about").inner_text() == "stale"
    assert stale["x"] >= verdict["x"]
    assert stale["y"] >= verdict["y"] + verdict["height"]


def test_filters_and_links_work_without_any_library(visit: Any, page_of_four: Path) -> None:
    page = visit(page_of_four)
    seen = "tr[data-verdict]:visible"
    assert page.locator(seen).count() == 4
    page.select_option("#by-source", "first2021")
    assert page.locator(seen).count() == 2
    page.select_option("#by-verdict", "holds")
    assert page.locator(seen).count() == 1
    page.select_option("#by-source", "")
    page.select_option("#by-verdict", "")
    page.check("#by-age")
    assert page.locator(seen).count() == 1
    page.uncheck("#by-age")
    changed = page.locator("a[href='#claim-first2021--cannot-tell']").first
    assert not changed.is_visible()  # the table of all comes first
    page.locator("main > details:not(.claim) summary").click()
    changed.click()
    fold = "document.getElementById('claim-first2021--cannot-tell')"
    assert page.evaluate(f"{fold}.open")
    page.evaluate(f"{fold}.open = false")
    changed.click()  # the same place again, where no hash changes
    assert page.evaluate(f"{fold}.open")
    page.evaluate(f"{fold}.open = false")
    page.select_option("#by-verdict", "fails")
    changed.click()  # a fold that the filter hides is shown, and the filter says so
    assert page.locator("#claim-first2021--cannot-tell").is_visible()
    assert page.input_value("#by-verdict") == ""


def test_what_changed_is_counted_and_told(page_of_four: Path) -> None:
    text = page_of_four.read_text(encoding="utf-8")
    assert "fails → cannot tell: <strong>1</strong>" in text
    assert "Then not." in text
