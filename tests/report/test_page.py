"""The page: whole, alone, escaped, and saying of every question what came of it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from assay.audit import open_audit
from assay.errors import AssayError
from assay.finding import Finding, Measure
from assay.report import words, write
from assay.report.card import card
from assay.report.page import MOST_MEASURES, Pictured, render
from assay.standard import Standard
from assay.store import save_answer

VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """A page taken apart; refuses tags that do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words, self.text_of = [], [], [], {}
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open:
            self.text_of.setdefault(self.open[-1], []).append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).replace(words.NBSP, " ").split())

    def attributes(self, name):
        return [a[name] for _, a in self.tags if name in a]


@pytest.fixture(scope="module")
def page(rendered):
    return Page(rendered["realistic"])


@pytest.fixture(scope="module", params=["hostile", "hostile comparison"])
def attacked(request, rendered):
    return Page(rendered[request.param])


def test_every_question_has_a_row_a_section_and_its_sentence(page, realistic):
    sections = [a["id"] for t, a in page.tags if t == "section" and a.get("class") == "probe"]
    told = [row for row in realistic.rows if row.answer.status != "does not apply"]
    assert sections == [row.answer.probe for row in told]
    assert len(told) < len(realistic.rows)  # what was not asked has a line, see test_sixty.py
    for row in told:
        assert page.text.count(row.answer.question) >= 2
    for row in realistic.rows:
        said = row.answer.finding.says if row.answer.finding else row.answer.why
        assert (said if row in told else said[0].upper() + said[1:]) in page.text
    for kind, also in (("badge", set()), ("mark", {"not-asked"})):
        classes = [a["class"].split() for t, a in page.tags if t == "span" and kind in a.get("class", "").split()]
        assert {c[1] for c in classes} == {"pass", "fail", "cannot-tell", "no-standard", "error"} | also


def test_the_first_screen_says_what_it_is_about(page, realistic):
    for said in (
        realistic.subject.name,
        realistic.subject.about,
        "classification, 10 classes",
        "1 × 28 × 28, 0 to 1",
        "206,922",
        "train 10,000, test 2,000",
        "as given",
        "6 questions: 1 passes, 1 fails, 1 cannot tell",
        "89.0 % (86.0 to 91.5 %)",
        "at least 85 %",
        "4.7 % (3.3 to 6.5 %)",
        "at most 5 %",
    ):
        assert said in page.text, said


def test_below_it_says_how_and_how_to_repeat_it(page, realistic):
    for said in (
        "more inputs would settle it",
        "a perfectly calibrated model at n = 500: 2.1 %",
        "not measured",
        realistic.alarms[0].says,
        realistic.rows[2].answer.finding.alarms[0].says,
        "In doubt, and not passed while this stands: worst-case accuracy",
        "Settings",
        "radius = 0.0313725",
        "83 s, 2 May 2025, 14:03 UTC",
        "arXiv:1706.06083",
        "Assay 0.1.0",
        "Python 3.11.9",
        "2 cores",
        "20 steps and 1 restart",
        realistic.subject.fingerprint,
        "not measured",
    ):
        assert said in page.text, said
    commands = " ".join(page.text_of["span"]).replace(words.NBSP, " ")
    assert "'my models/subject.py:build'" in commands
    assert f"radius={8 / 255!r}" in commands


def test_figures_and_pictures_are_there_and_named(page):
    assert len([a for t, a in page.tags if t == "svg" and a.get("role") == "img"]) == 6
    pictures = [a for t, a in page.tags if t == "img"]
    assert len(pictures) == 24
    assert all(a["alt"] and a["src"].startswith("data:image/png;base64,") for a in pictures)
    assert {(a["width"], a["class"]) for a in pictures} == {("84", "small-picture")}  # 28 pixels, three times


def test_it_is_one_file_that_asks_for_nothing(page, attacked, rendered):
    for whole in (page, attacked):
        assert not {t for t, _ in whole.tags} & {"iframe", "object", "embed", "form", "base", "audio"}
        assert not [n for _, a in whole.tags for n in a if n.startswith("on")]
        for name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            assert all(v.startswith(("#", "data:")) for v in whole.attributes(name)), name
        (policy,) = [a["content"] for t, a in whole.tags if a.get("http-equiv") == "Content-Security-Policy"]
        scripts = whole.text_of.get("script", [])
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
        allowed = "".join(f"; script-src 'sha256-{digest}'" for digest in digests)
        assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'{allowed}"
        assert [t for t, _ in whole.tags].count("script") == len(scripts) <= 1
        assert "@import" not in "".join(whole.text_of["style"])
        assert "url(" not in "".join(whole.text_of["style"])
    assert len(rendered["realistic"]) < 3_000_000


def test_ids_are_unique_and_links_lead_somewhere(page, attacked, rendered):
    for whole in (page, attacked, Page(rendered["comparison"])):
        ids = whole.attributes("id")
        assert len(ids) == len(set(ids))
        inside = [h[1:] for h in whole.attributes("href") + whole.attributes("xlink:href") if h.startswith("#")]
        assert set(inside) <= set(ids)


def test_headings_and_tables_can_be_walked(page):
    levels = [int(t[1]) for t, _ in page.tags if t in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert {"header", "main", "footer"} <= {t for t, _ in page.tags}
    assert all("scope" in a for t, a in page.tags if t == "th")
    assert ("a", {"class": "skip", "href": "#main"}) in page.tags


def test_whatever_users_write_stays_text(attacked, build):
    shown = " ".join(words.printable(build.hostile).split())
    assert attacked.text.count(shown) > 10
    assert "{{ 7*7 }}" in attacked.text
    assert "\x00" not in attacked.text
    assert attacked.text_of["title"][0].startswith("</title><script>")
    for name in ("alt", "aria-label", "title"):
        for value in attacked.attributes(name):
            assert "<script>" in value


def test_every_verdict_in_every_place(build):
    def finding(low, high):
        return Finding(
            says="s", measures=(Measure(name="m", value=(low + high) / 2, low=low, high=high, n=50, better="higher"),)
        )

    rows = [
        build.answered(f"p{i}", f"Question {i}?", finding(*ends), Standard(at_least=0.5))
        for i, ends in enumerate([(0.6, 0.7), (0.1, 0.2), (0.4, 0.61)])
    ]
    page = Page(render(build.audit(*rows)))
    assert "3 questions: 1 passes, 1 fails, 1 cannot tell, 0 not asked." in page.text
    for reason in ("m passes. It should be at least 0.5", "m fails.", "m cannot be told."):
        assert reason in page.text
    settle = rows[2].judgements[0].more
    assert page.text.count(f"about {settle:,} more inputs would settle it") == 1


def test_a_limit_on_a_measure_that_is_not_there_is_shown(build):
    from assay.standard import Judgement

    finding = Finding(says="s", measures=(Measure(name="m", value=0.5, better="higher"),))
    row = build.answered("p", "Question?", finding)
    odd = Judgement(
        standard=Standard(measure="gone", at_least=0.1), measure="gone", verdict="cannot tell", why="no such"
    )
    page = Page(render(build.audit(dataclasses.replace(row, judgements=(odd,)))))
    assert "gone cannot be told. It should be at least 0.1: no such." in page.text


def test_many_measures_are_folded(build):
    many = tuple(Measure(name=f"m{i}", value=float(i), better="neither") for i in range(MOST_MEASURES + 5))
    page = Page(render(build.audit(build.answered("p", "Q?", Finding(says="s", measures=many)))))
    assert "5 more measures" in page.text
    assert all(f"m{i}" in page.text for i in range(MOST_MEASURES + 5))


def test_pictures_grow_by_whole_factors_and_photographs_shrink(build):
    import numpy as np

    from assay.finding import Panel

    small = Pictured.of(Panel.of("a", "a", np.zeros((3, 32, 20))))
    assert (small.width, small.height, small.small) == (60, 96, True)
    large = Pictured.of(Panel.of("a", "a", np.zeros((3, 320, 160))))
    assert (large.width, large.height, large.small) == (64, 128, False)
    assert Pictured.of(Panel(label="a", alt="a", png=b"not a picture")).width == 84


def test_writing_leaves_everything_and_reading_renders_the_same_page(small, tmp_path):
    for row in small.rows:
        save_answer(tmp_path, row.answer)
    write(small, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} >= {"audit.json", "report.html", "junit.xml", "card.md", "figures"}
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {"worst-case-accuracy-radii.svg"}
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "samples/accuracy.parquet, beside this page" in written
    assert "samples/confidence.parquet" not in written
    assert render(open_audit(tmp_path)) == written
    assert not list(tmp_path.rglob(".*"))


def test_hostile_audits_are_written_below_their_folder_only(hostile, tmp_path):
    with pytest.raises(AssayError, match="is no file name"):
        write(hostile, tmp_path / "refused")
    assert not list(tmp_path.rglob("*.svg"))
    rows = tuple(
        dataclasses.replace(r, answer=dataclasses.replace(r.answer, probe=f"plain-{i}"))
        for i, r in enumerate(hostile.rows)
    )
    for row in rows:
        save_answer(tmp_path / "run", row.answer)
    write(dataclasses.replace(hostile, rows=rows), tmp_path / "run")  # the names of its views are hostile still
    assert {p.name for p in tmp_path.iterdir()} <= {"run", "refused"}
    assert len(list((tmp_path / "run" / "figures").iterdir())) == 6


def test_a_report_needs_no_torch(small, tmp_path):
    for row in small.rows:
        save_answer(tmp_path, row.answer)
    write(small, tmp_path)
    code = (
        "import sys, pathlib; sys.modules['torch'] = None\n"
        "from assay.audit import open_audit; from assay.report import write\n"
        "from assay.jobs.compare import page\n"
        f"folder = pathlib.Path({str(tmp_path)!r}); audit = open_audit(folder, whole=True)\n"
        "write(audit, folder); page(audit, audit)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_notebook_shows_the_page_in_a_frame(small):
    frame = Page(small._repr_html_())
    ((tag, attributes),) = frame.tags
    assert tag == "iframe"
    Page(attributes["srcdoc"])


def test_an_answer_that_was_found_elsewhere_says_with_what(build):
    found = Finding(says="so", measures=(Measure(name="m", value=1.0, better="higher"),))
    rows = [build.answered(name, f"{name}?", found) for name in ("here", "there")]
    now = dict(build.audit(*rows).environment)
    made = (now, {**now, "torch": "2.5.1", "system": "Linux aarch64"})
    here, there = (
        dataclasses.replace(row, answer=dataclasses.replace(row.answer, environment=environment))
        for row, environment in zip(rows, made, strict=True)
    )
    audit = build.audit(here, there)
    page, text = render(audit), card(audit)
    assert page.count("Found with") == 1
    assert "Linux aarch64" in page.split("Found with")[1].split("</dd>")[0]
    assert "1 of 2 (50 %) answers were found earlier or elsewhere" in page
    assert text.count("torch 2.5.1") == 1
    assert "- there? Found" in text
    assert "elsewhere" not in render(build.audit(here))
