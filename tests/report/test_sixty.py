"""The page of sixty questions: by theme, what failed first, what was not asked in a line a reason, and what next."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from hashlib import blake2b

import pytest
from test_page import Page

from assay.audit import Offer, open_audit
from assay.finding import Bars, Curve, Finding, Line, Measure
from assay.probe import THEMES
from assay.remedy import Tried
from assay.report import words, write
from assay.report.figures import draw
from assay.report.page import MOST_PASSES, render
from assay.report.what_next import INSTEAD, what_next
from assay.standard import Standard
from assay.store import save_answer

ENDS = {"pass": (0.8, 0.9), "fail": (0.1, 0.2), "cannot tell": (0.4, 0.6)}


def found(verdict, figures=0):
    low, high = ENDS[verdict]
    headline = Measure(name="share", value=(low + high) / 2, low=low, high=high, n=400, better="higher", unit="%")
    views = [
        Curve(
            name=f"curve-{i}",
            title="A curve",
            x_label="size",
            y_label="share",
            lines=(Line(label="it", x=tuple(range(30)), y=tuple(1 / (j + 1) for j in range(30))),),
        )
        if i % 2
        else Bars(name=f"bars-{i}", title="Bars", y_label="y", labels=tuple("abcdefghij"), values=(0.5,) * 10)
        for i in range(figures)
    ]
    others = tuple(Measure(name=f"measure {i}", value=i / 7, better="lower") for i in range(8))
    return Finding(says=f"It comes to {verdict}.", measures=(headline, *others), views=tuple(views))


def offer(remedy="soothe", mends=("q-fail",), training=1.0, inference=1.0, tried=(), promise="Makes it better."):
    return Offer(
        remedy=remedy, promise=promise, mends=mends, training=training, inference=inference, tried=tuple(tried)
    )


@pytest.fixture(scope="session")
def of_theme(build):
    def made(theme, verdict, name, figures=0):
        row = build.answered(name, f"What about {name}?", found(verdict, figures), Standard(at_least=0.5))
        return dataclasses.replace(row, answer=dataclasses.replace(row.answer, theme=theme))

    return made


@pytest.fixture(scope="session")
def sixty(build, of_theme):
    """Forty-eight questions in every theme and twelve that were not asked, for two reasons."""
    themes = [theme for theme, _ in reversed(THEMES)]  # not in the order in which they are read
    verdicts = ("pass", "pass", "pass", "fail", "pass", "cannot tell")
    rows = [of_theme(themes[i % len(themes)], verdicts[i % 6], f"question-{i:02}", figures=3) for i in range(48)]
    late = "it takes long: --budget standard asks it, and so does --probe {}"
    rows += [build.unanswered(n := f"late-{i}", f"Late {i}?", "does not apply", late.format(n)) for i in range(7)]
    rows += [build.unanswered(f"pair-{i}", f"Pair {i}?", "does not apply", "it is for pairs") for i in range(5)]
    offers = (offer(mends=("question-03", "question-09")), offer("other-cure", ("question-03",), 5, 5))
    return build.audit(*rows, offers=offers)


@pytest.fixture(scope="module")
def text(sixty):
    """The page; of drawings that differ in their ids alone, matplotlib makes one."""
    made = {}

    def once(view, key=""):
        if (like := type(view)) not in made:
            made[like] = draw(view)
        (ids,) = set(re.findall(r'id="(f[0-9a-f]{10})-', made[like]))
        return made[like].replace(ids, "f" + blake2b(f"{key} {view.name}".encode(), digest_size=5).hexdigest())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay.report.page.draw", once)
        return render(sixty)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_sections_stand_by_theme_in_the_order_in_which_they_are_read(page, sixty):
    headings = [a["id"] for t, a in page.tags if t == "section" and a.get("id", "").startswith("theme:")]
    assert headings == [f"theme:{theme}" for theme, _ in THEMES]
    order = {theme: i for i, (theme, _) in enumerate(THEMES)}
    theme_of = {row.answer.probe: row.answer.theme for row in sixty.rows}
    sections = [a["id"] for t, a in page.tags if t == "section" and a.get("class") == "probe"]
    assert len(sections) == 48
    places = [order[theme_of[name]] for name in sections]
    assert places == sorted(places)
    for _, heading in THEMES:
        assert page.text.count(heading) == 2  # in the contents, and above its questions


def test_a_theme_that_nobody_knows_stands_under_what_else_was_asked(build, of_theme):
    page = Page(render(build.audit(of_theme("<b>mine</b>", "pass", "theirs"), of_theme("right", "pass", "ours"))))
    headings = [a["id"] for t, a in page.tags if t == "section" and a.get("id", "").startswith("theme:")]
    assert headings == ["theme:right", "theme:other"]


def test_what_failed_comes_first_and_many_passes_are_folded(page, text, build, of_theme):
    rows = [a["data-of"] for t, a in page.tags if t == "tbody" and "data-of" in a]
    verdicts = ["pass", "pass", "pass", "fail", "pass", "cannot tell"]
    shown = [verdicts[int(name.removeprefix("question-")) % 6] for name in rows]
    assert shown == ["fail"] * 8 + ["cannot tell"] * 8 + ["pass"] * 32
    folded = "What passes, or has no limit: 32 questions"
    assert re.search(rf"<details[^>]*><summary>{folded}</summary>", text)
    few = render(build.audit(*(of_theme("right", "pass", f"q{i}") for i in range(MOST_PASSES))))
    assert "<h3>What passes, or has no limit</h3>" in few


def test_what_was_not_asked_has_one_line_a_reason(page, text):
    lines = re.findall(r"<li>.*?</li>", text.split('<ul class="unasked">')[1].split("</ul>")[0])
    assert len(lines) == 2
    assert "It takes long: --budget standard asks it, and so does --probe NAME." in lines[0]
    assert [f"late-{i}" in lines[0] for i in range(7)] == [True] * 7
    assert [f"pair-{i}" in lines[1] for i in range(5)] == [True] * 5
    assert page.text.count("it is for pairs") + page.text.count("It is for pairs") == 1


def test_a_limit_on_what_was_not_asked_is_not_folded_away(build):
    from assay.audit import Judged, judgements

    row = build.unanswered("q", "Asked?", "does not apply", "it takes long")
    held = Judged(answer=row.answer, judgements=judgements(row.answer, (Standard(at_least=0.5),), ()))
    page = Page(render(build.audit(held)))
    assert "What failed, broke or cannot be told" in page.text
    assert "What was not asked" not in page.text


def test_the_contents_mark_every_verdict(text):
    contents = text.split('<nav class="contents"')[1].split("</nav>")[0]
    assert [contents.count(f'class="mark {word}"') for word in ("fail", "cannot-tell", "pass")] == [8, 8, 32]
    assert contents.count('href="#question-') == 48


def test_one_script_and_a_field_that_waits_for_it(page, text):
    assert text.count("<script>") == 1
    (field,) = [a for t, a in page.tags if a.get("id") == "search:field"]
    assert "hidden" in field  # without scripts there is no field that does nothing
    for named in re.findall(r'getElementById\("([^"]*)"\)', text):
        assert named in page.attributes("id")


def test_sixty_questions_with_figures_are_one_file_below_three_megabytes(text, sixty):
    assert len(sixty.rows) == 60
    assert text.count('role="img"') == 3 * 48
    assert len(text.encode()) < 3_000_000


def test_next_lists_the_remedies_that_fit_the_failures_alone(build, of_theme):
    tried = Tried(probe="q-fail", says="from 1 to 2 %", claim="who/what")
    elsewhere = Tried(probe="q-pass", says="from 3 to 4 %", claim="who/else")
    audit = build.audit(
        of_theme("right", "fail", "q-fail"),
        of_theme("right", "fail", "accuracy"),
        of_theme("right", "pass", "q-pass"),
        of_theme("right", "cannot tell", "q-unsure"),
        offers=(
            offer("dear", training=5.0),
            offer("cheap", training=0.0, tried=(tried, elsewhere)),
            offer("other", mends=("q-pass", "q-unsure")),
            offer("unstated", training=None, inference=None),
            offer("rm -rf ~"),
            offer("--help"),
        ),
    )
    first, second = what_next(audit)
    assert (first.id, second.id) == ("q-fail", "accuracy")
    assert [fit.remedy for fit in first.remedies] == ["cheap", "dear", "unstated"]
    assert [fit.gained for fit in first.remedies] == [("from 1 to 2 % (who/what)",), (), ()]
    assert first.remedies[0].cost == "no training, and an answer takes as long as before"
    assert first.remedies[1].cost == "5 times the plain training, and an answer takes as long as before"
    assert first.remedies[2].cost == "not stated"
    assert second.remedies == ()
    page = Page(render(audit))
    assert f"No remedy of Assay's fits this model for What about accuracy? {INSTEAD['accuracy']}" in page.text
    assert "1 more remedy: unstated" in page.text
    assert "rm -rf" not in page.text
    assert "What next" not in Page(render(build.audit(of_theme("right", "pass", "q")))).text


@pytest.mark.parametrize(
    "source", [("digits-mlp",), ("my models/subject.py:build", "--data", "a b.npz", "--draws", "4")]
)
def test_the_commands_of_next_parse(build, of_theme, source):
    import typer

    from assay.cli import app

    audit = build.audit(
        of_theme("right", "fail", "confidence"), of_theme("right", "pass", "accuracy"), source=source,
        offers=(offer("temperature", mends=("confidence",)),), device="cuda:1",
    )  # fmt: skip
    ((fit,),) = [each.remedies for each in what_next(audit)]
    line = shlex.split(" ".join(fit.command))
    assert line[:3] == ["assay", "cure", "temperature"]
    taken = typer.main.get_command(app).commands["cure"].make_context("cure", line[2:]).params
    assert (taken["remedy"], taken["subject"]) == ("temperature", source[0])
    assert (list(taken["probe"]), taken["budget"], taken["seed"]) == (["confidence", "accuracy"], "quick", 0)
    assert taken["device"] == "cuda:1"


def test_in_python_the_command_of_next_is_a_call(build, of_theme):
    audit = build.audit(of_theme("right", "fail", "q-fail"), offers=(offer(),), source=())
    ((fit,),) = [each.remedies for each in what_next(audit)]
    (line,) = fit.command
    seen = []
    import assay.jobs.cure

    names = {"assay": assay, "subject": "it"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assay.jobs.cure, "cure", lambda *words, **more: seen.append((words, more)))
        eval(line, names)
    assert seen == [(("soothe", "it"), {"probes": ["q-fail"], "budget": "quick", "seed": 0})]


def test_offers_stay_text_whatever_they_say(build, of_theme):
    x = build.hostile
    tried = Tried(probe="q-fail", says=x, claim=x)
    page = Page(render(build.audit(of_theme("right", "fail", "q-fail"), offers=(offer(promise=x, tried=(tried,)),))))
    shown = " ".join(words.printable(x).split())
    assert page.text.count(shown) == 3
    assert [t for t, _ in page.tags].count("script") == 1


def test_offers_are_kept_and_an_audit_without_them_opens(build, of_theme, tmp_path):
    tried = Tried(probe="q-fail", says="from 1 to 2 %", claim="who/what")
    audit = build.audit(of_theme("right", "fail", "q-fail"), offers=(offer(tried=(tried,)), offer("b", training=None)))
    for row in audit.rows:
        save_answer(tmp_path, row.answer)
    write(audit, tmp_path)
    assert open_audit(tmp_path).offers == audit.offers
    told = json.loads((tmp_path / "audit.json").read_text())
    del told["offers"]
    (tmp_path / "audit.json").write_text(json.dumps(told))
    old = open_audit(tmp_path)
    assert old.offers is None
    page = Page(render(old))
    assert "This audit is older than the list of remedies" in page.text
    assert "No remedy of Assay's" not in page.text


@pytest.mark.parametrize("spoilt", [{"training": "x"}, {"tried": [3]}, {"more": 1}, {"mends": [3]}])
def test_offers_that_do_not_read_are_refused(build, of_theme, tmp_path, spoilt):
    from assay.errors import AssayError

    audit = build.audit(of_theme("right", "fail", "q-fail"), offers=(offer(),))
    for row in audit.rows:
        save_answer(tmp_path, row.answer)
    write(audit, tmp_path)
    told = json.loads((tmp_path / "audit.json").read_text())
    told["offers"][0] |= spoilt
    (tmp_path / "audit.json").write_text(json.dumps(told))
    with pytest.raises(AssayError, match="Cannot read the audit"):
        open_audit(tmp_path)


# In a browser.


@pytest.fixture
def at(visit, text, tmp_path):
    path = tmp_path / "sixty.html"
    path.write_text(text, encoding="utf-8")
    return lambda **context: visit(path, **context)


def test_words_leave_the_questions_that_hold_them_and_paper_has_all(at):
    page = at(viewport={"width": 1400, "height": 900})
    sections, rows = page.locator("section.probe:visible"), page.locator("nav [data-of]:visible")
    assert (sections.count(), rows.count()) == (48, 48)
    page.get_by_label("Find a question").fill("QUESTION-03  about")
    assert (sections.count(), rows.count()) == (1, 1)
    assert page.locator("#question-03").is_visible()
    assert page.locator("table.questions tbody:visible").count() == 1
    assert page.locator(".theme:visible h2", has_text="Is it sure?").count() == 0
    assert page.get_by_role("status").inner_text() == "1 of 48 hold these words"
    page.get_by_label("Find a question").fill("nowhere")
    assert sections.count() == 0
    page.emulate_media(media="print")
    assert sections.count() == 48
    assert not page.get_by_label("Find a question").is_visible()
    assert not page.locator("nav.contents").is_visible()
    page.emulate_media(media="screen")
    page.get_by_label("Find a question").fill("")
    assert sections.count() == 48


def test_a_search_unfolds_what_it_finds_and_folds_it_again(at):
    page = at(viewport={"width": 1400, "height": 900})
    row = page.locator('tbody[data-of="question-00"]')
    assert not row.is_visible()
    page.get_by_label("Find a question").fill("question-00")
    assert row.is_visible()
    page.get_by_label("Find a question").fill("")
    assert not row.is_visible()


def test_contents_stand_at_the_side_or_fold_at_the_top(at):
    wide = at(viewport={"width": 1400, "height": 900})
    link = wide.locator("nav [data-of] a").first
    assert link.is_visible()
    assert link.bounding_box()["x"] + link.bounding_box()["width"] <= wide.locator("main").bounding_box()["x"]
    wide.evaluate("window.scrollTo(0, 5000)")
    assert wide.get_by_label("Find a question").bounding_box()["y"] >= 0  # it stays in sight
    phone = at(viewport={"width": 390, "height": 800})
    link = phone.locator("nav [data-of] a").first
    assert not link.is_visible()
    phone.get_by_text("Contents", exact=True).click()
    assert link.is_visible()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_scripts_all_is_there_but_the_field(at):
    page = at(java_script_enabled=False, viewport={"width": 1400, "height": 900})
    assert page.locator("section.probe:visible").count() == 48
    assert not page.locator("#search\\:field").is_visible()
