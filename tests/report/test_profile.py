"""Where the time of an audit went: what is told of each batch, and the page that shows it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import assay
from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.engine.traced import Traced, in_parts
from assay.errors import AssayError
from assay.probe import Spent
from assay.report import words
from assay.report.profile import render_profile
from assay.run import silent
from assay.store import chain, load_answer
from assay.subjects import open_subject
from assay.trace import MOST, Asked, Span, Trace


@pytest.fixture(scope="module")
def digits() -> assay.Subject:
    return open_subject(assay.subjects.Source("digits-mlp"))


def data(n: int) -> Arrays:
    return Arrays(np.random.default_rng(0).random((n, 3), dtype=np.float32), np.zeros(n, dtype=np.int64))


def test_a_traced_engine_finds_the_same_and_tells_of_each_batch_in_order():
    trace, given, rows = Trace(), data(300), np.arange(300)
    ticks: list[int] = []
    told = {"seed": 3, "device": "cpu", "few": {}, "room": 1, "most": 200}

    def work(shard):
        return {"x": shard.x, "drawn": torch.rand(len(shard.x), generator=shard.rng)}

    plain = ThisProcess(batch=128).map(work, given, rows, tick=lambda n: None, **told)
    with trace.question("it", 300):
        found = Traced(ThisProcess(batch=128), trace).map(work, given, rows, tick=ticks.append, **told)
    assert found.keys() == plain.keys()
    assert all(np.array_equal(found[name], plain[name]) for name in plain)
    assert ticks == [128, 128, 44]
    whole, *batches = trace.asked().spans
    assert (whole.kind, whole.name, whole.inputs) == ("question", "it", 300)
    assert [s.kind for s in batches] == ["read", "sent", "done", "fetched"] * 3
    assert [s.inputs for s in batches[::4]] == [128, 128, 44]
    edges = [whole.start, *(t for s in batches for t in (s.start, s.end)), whole.end]
    assert edges == sorted(edges)
    sums = trace.asked().seconds
    Traced(ThisProcess(batch=128), Trace()).map(work, given, rows, tick=ticks.append, **{**told, "most": 100})
    assert ticks[3:] == [100, 100, 100]
    assert sums["done"] == pytest.approx(sum(s.seconds for s in batches if s.kind == "done"))


def test_parts_are_told_and_a_question_that_is_ended_is_one_too():
    trace = Trace()

    def ended():
        with trace.question("it"), in_parts(silent, trace)("looking", 7) as tick:
            tick(1)
            raise KeyError

    with pytest.raises(KeyError):
        ended()
    kinds = [(s.kind, s.name, s.inputs) for s in trace.asked().spans]
    assert kinds == [("question", "it", 0), ("part", "looking", 7)]


def test_ever_so_many_batches_become_few_and_no_time_and_no_input_is_lost():
    trace = Trace()
    with trace.question("it"):
        for i in range(5 * MOST):
            trace.add("read", "read", i * 1e-3, (i + 0.5) * 1e-3, 2)
            trace.add("done", "worked on", (i + 0.5) * 1e-3, (i + 1) * 1e-3, 2)
    asked = trace.asked()
    assert len(asked.spans) <= MOST + 1
    assert asked.seconds["read"] == pytest.approx(2.5e-3 * MOST)
    spans = asked.spans[1:]
    assert sum(s.inputs for s in spans if s.kind in ("read", "batches")) == pytest.approx(10 * MOST, rel=1e-3)
    assert all(a.end <= b.start + 1e-9 for a, b in pairwise(spans))


def asked_of(name: str, start: float = 0.0) -> Asked:
    spans = (
        Span("question", name, start, start + 4.0, 50),
        Span("part", "looking", start + 1.0, start + 3.0, 50),
        Span("read", "read", start + 1.0, start + 1.5, 50),
        Span("done", "worked on", start + 1.5, start + 3.0, 50),
    )
    return Asked(spans, {"read": 0.5, "done": 1.5}, 1000, 500)


def test_what_another_process_tells_is_read_as_it_is_or_refused():
    told = json.loads(json.dumps(asked_of("it").to_json()))
    back = Asked.from_json(told)
    assert back.spans == asked_of("it").spans
    assert (back.answers, back.slopes, back.seconds["done"]) == (1000, 500, 1.5)
    for wrong in (
        None, [], [[], {}, 0, 0], [[["question", "it", 1, 0, 0]], {}, 0, 0], [[["fire", "it", 0, 1, 0]], {}, 0, 0],
        [[["question", "it", 0, float("inf"), 0]], {}, 0, 0], [[["question", "it", 0, 1, 0]], {}, -1, 0],
        [[["question", "it", 0, 1, 0]], {"read": "x"}, 0, 0],
    ):  # fmt: skip
        with pytest.raises(AssayError, match="tells of no question"):
            Asked.from_json(wrong)


@pytest.fixture(scope="module")
def audited(digits, tmp_path_factory):
    return assay.audit(digits, probes=["accuracy"], inputs=60, out=tmp_path_factory.mktemp("runs"), profile=True)


def test_the_page_stands_alone_shows_each_question_and_escapes_what_it_shows(audited):
    page = render_profile(audited, [asked_of("<b>one</b>"), asked_of("two", 4.0)], 1e-3)
    assert "<b>one" not in page
    assert page.count('class="flame"') == 3  # all of them, and each
    assert not re.search(r"(src|href)=\"(?!#|data:|report\.html)", page)
    assert "<script" not in page
    assert "took 8.0" in page
    assert "these passes alone would have taken 62 % of the time" in page  # 2,000 and 3 x 1,000, at 1 ms, of 8 s
    assert "By itself it passes 1,000 a second" in page
    cells = re.findall(r'<td class="number" data-label="[^"]+">([^<]*)</td>', page)[:10]
    assert [c.replace("\xa0", " ") for c in cells] == [
        "4.0 s", "50 %", "1,500", "375", "62 %", "12 %", "", "38 %", "", "50 %",
    ]  # fmt: skip
    assert "every answer was known from before" in render_profile(audited, [], 0.0)


def test_an_audit_writes_it_beside_the_report_and_asks_the_same_question(digits, audited, tmp_path):
    page = (audited.folder / "profile.html").read_text()
    assert page.count('class="flame"') == 2
    assert "accuracy, at most 60 inputs" in page
    assert chain.broken(audited.folder) == []
    plain = assay.audit(digits, probes=["accuracy"], inputs=60, out=audited.folder.parent)
    assert plain.folder == audited.folder  # it is the same question, whoever watched
    assert plain.rows[0].answer.key == audited.rows[0].answer.key
    again = assay.audit(digits, probes=["accuracy"], inputs=60, out=audited.folder.parent, profile=True)
    assert (again.folder / "profile.html").read_text() == page  # which tells of what was asked
    (again.folder / "profile.html").unlink()
    assay.audit(digits, probes=["accuracy"], inputs=60, out=audited.folder.parent, profile=True)
    assert "every answer was known from before" in (again.folder / "profile.html").read_text()
    with pytest.raises(AssayError, match="profile=True writes a page"):
        assay.audit(digits, probes=["accuracy"], inputs=60, profile=True)


def test_a_finding_says_its_passes_and_the_report_how_near_they_came_to_the_limit(audited):
    spent = audited.rows[0].answer.spent
    assert spent.answers >= 60
    assert spent.slopes == 0
    assert 0 < spent.pace < 1
    stored = load_answer(audited.folder / "findings" / "accuracy.json")
    assert stored.spent == spent
    report = (audited.folder / "report.html").read_text()
    assert f"{spent.passes:,} passes: " in report
    assert "of the model&#39;s own limit" in report
    head = json.loads((audited.folder / "audit.json").read_text())
    assert head["rows"][0]["spent"] == {"answers": spent.answers, "slopes": 0, "pace": spent.pace}


def test_a_search_that_outruns_its_model_is_told_as_that_and_not_as_more_than_all(audited):
    answer = replace(audited.rows[0].answer, spent=Spent(answers=100, slopes=300, pace=0.01), seconds=5.0)
    assert words.spent(answer).endswith("80 a second, 2.0 times as fast as the model's own")
    assert words.taken(replace(audited, rows=(replace(audited.rows[0], answer=answer),))).endswith(
        f"where the model's 400 passes alone would take {words.duration(10.0)}"
    )
    slower = replace(answer, seconds=20.0)
    assert words.spent(slower).replace("\xa0", " ").endswith("20 a second, 50 % of the model's own limit")
    assert (
        words.taken(replace(audited, rows=(replace(audited.rows[0], answer=slower),)))
        .replace("\xa0", " ")
        .endswith("of which the model's 400 passes alone would take 50 %")
    )


def test_what_was_not_counted_is_not_told(audited):
    row = replace(audited.rows[0], answer=replace(audited.rows[0].answer, spent=None))

    assert words.spent(row.answer) == ""
    assert words.taken(replace(audited, rows=(row,))).endswith("for all questions")
