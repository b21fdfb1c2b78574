"""How numbers read: digits that mean something, signs, units, and commands that a shell takes back apart."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import shelf
from assay.finding import Measure
from assay.report import what_next, words
from assay.report.page import facts
from assay.standard import Standard


def plain(text: str) -> str:
    return text.replace(words.NBSP, " ").replace(words.MINUS, "-")


@pytest.mark.parametrize(
    ("value", "unit", "width", "shown"),
    [
        (0.913, "%", None, "91.3 %"),
        (0.0, "%", None, "0 %"),
        (1.0, "%", None, "100 %"),
        (0.9996, "%", None, "99.96 %"),
        (0.0002, "%", None, "0.02 %"),
        (1.37, "%", None, "137.0 %"),
        (-0.25, "%", None, "-25.0 %"),
        (0.02312, "", 0.0121, "0.023"),
        (0.02312, "", None, "0.0231"),
        (123.4, "", 31.0, "123"),
        (0.0, "", None, "0"),
        (206922.0, "", None, "206,922"),
        (3.2e-9, "", None, "3.2e-09"),
        (-1.5, "log-odds", 0.3, "-1.50 log-odds"),
        (None, "%", None, "not measured"),
    ],
)
def test_a_number_shows_the_digits_that_mean_something(value, unit, width, shown):
    assert plain(words.number(value, unit, width)) == shown


def test_a_measure_reads_with_its_interval_and_a_unit_keeps_its_hyphen():
    m = Measure(name="m", value=0.913, low=0.8849, high=0.935, better="higher", unit="%")
    assert plain(words.in_full(m)) == "91.3 % (88.5 to 93.5 %)"
    odd = Measure(name="m", value=-2.0, low=-3.0, high=-1.0, better="higher", unit="log-odds")
    assert words.interval(odd) == f"{words.MINUS}3.0{words.NBSP}to{words.NBSP}{words.MINUS}1.0{words.NBSP}log-odds"
    assert words.interval(Measure(name="m", value=1.0, better="higher")) == ""


def test_a_limit_is_in_the_unit_of_its_measure():
    assert plain(words.limit(Standard(at_least=0.855), "%")) == "at least 85.5 %"
    assert plain(words.limit(Standard(at_most=0.05), "")) == "at most 0.05"


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ((0.0123, "%", 0.004, 0.021), "+1.2 points (+0.4 to +2.1)"),
        ((-0.5, "", -0.7, -0.3), "-0.50 (-0.70 to -0.30)"),
        ((0.0, "%", 0.0, 0.0), "0.0 points (0.0 to 0.0)"),
        ((None, "%"), ""),
        ((0.5, "nats"), "+0.500 nats"),
    ],
)
def test_a_difference_is_signed_and_of_percentages_in_points(args, shown):
    assert plain(words.difference(*args)) == shown


def test_the_tally_counts_every_row_once(realistic):
    assert words.tally(realistic) == (
        "1 passes, 1 fails, 1 cannot tell, 1 not asked, 1 ended in an error, 1 without a standard"
    )
    assert words.tally(dataclasses.replace(realistic, rows=realistic.rows[:1])) == (
        "1 passes, 0 fail, 0 cannot tell, 0 not asked"
    )


def test_a_budget_is_stated_in_words(realistic):
    assert words.budget(realistic.budget) == (
        "quick: at most 500 inputs per question; 20 steps and 1 restart where a worst case is searched for"
    )
    assert words.budget({"name": "full", "samples": None}) == "full: every input per question"
    assert words.budget({"name": "quick", "samples": 500, "dear": 200}) == (
        "quick: at most 500 inputs per question, 200 where each is asked about dozens of times"
    )
    assert words.budget({"name": "quick", "samples": 50, "inputs": 50}) == (
        "quick, --inputs 50: at most 50 inputs per question"
    )


def test_the_command_repeats_the_bound(realistic):
    bounded = dataclasses.replace(realistic, budget={**realistic.budget, "inputs": 50})
    line = " ".join(words.command(bounded, realistic.row("worst-case-accuracy").answer))
    assert "--budget quick --inputs 50 --seed" in line
    assert "--budget quick --inputs 50 --seed" in " ".join(words.cure_command(bounded, "ensemble", ["accuracy"]))
    inside = dataclasses.replace(bounded, source=())
    assert "budget='quick', inputs=50, seed" in words.command(inside, realistic.row("worst-case-accuracy").answer)[0]
    assert "budget='quick', inputs=50, seed" in words.cure_command(inside, "ensemble", ["accuracy"])[0]


def test_a_cure_is_offered_with_a_budget_that_it_takes(realistic):
    timed = dataclasses.replace(realistic, budget={**realistic.budget, "name": "10m", "seconds": 600.0})
    assert "--budget 10m --seed" in " ".join(words.command(timed, realistic.row("worst-case-accuracy").answer))
    assert "--budget quick --seed" in " ".join(words.cure_command(timed, "ensemble", ["accuracy"]))
    inside = dataclasses.replace(timed, source=())
    assert "budget='quick', seed" in words.cure_command(inside, "ensemble", ["accuracy"])[0]


def test_remedies_that_are_named_instead_are_on_the_shelf():
    assert {"pgd-training", "trades", "mart"} <= set(shelf.ours("remedies"))
    assert all(name in what_next.ATTACKED for name in ("pgd-training", "trades", "mart"))


def test_the_command_repeats_the_question_with_every_setting(realistic):
    line = " ".join(words.command(realistic, realistic.row("worst-case-accuracy").answer))
    assert shlex.split(line) == [
        "assay",
        "ask",
        "worst-case-accuracy",
        "my models/subject.py:build",
        "--budget",
        "quick",
        "--seed",
        "0",
        "--set",
        "norm=linf",
        "--set",
        f"radius={8 / 255!r}",
        "--set",
        "radii=0.01,0.02",
        "--set",
        "targeted=false",
        "--set",
        "stop=none",
    ]
    on_gpu = dataclasses.replace(realistic, device="cuda:0")
    assert "--device cuda:0" in " ".join(words.command(on_gpu, realistic.rows[0].answer))


def test_an_audit_made_in_python_is_repeated_in_python(realistic):
    (line,) = words.command(dataclasses.replace(realistic, source=()), realistic.row("accuracy").answer)
    assert line == (
        "assay.audit(subject, probes=['accuracy'], budget='quick', seed=0, "
        "standards=assay.standard.Standards(settings={'accuracy': {'bins': 15}}))"
    )
    compile(line, "line", "eval")


@given(st.lists(st.text(), max_size=4))
@settings(max_examples=50, deadline=None)
def test_source_words_survive_the_shell(realistic, source):
    audit = dataclasses.replace(realistic, source=("x", *source))
    line = " ".join(words.command(audit, realistic.rows[0].answer))
    assert shlex.split(line)[3 : 4 + len(source)] == ["x", *source]


@given(st.text(st.characters()))
@settings(max_examples=200, deadline=None)
def test_printable_text_encodes_and_is_xml(text):
    from xml.etree import ElementTree as ET

    shown = words.printable(text)
    shown.encode("utf-8")
    element = ET.Element("a")
    element.text = shown
    ET.fromstring(ET.tostring(element, encoding="unicode"))
    assert len(shown) == len(text)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.01, "under 0.1 s"), (3.21, "3.2 s"), (83.0, "83 s"), (600, "10 min"), (7300, "2 h 2 min")]
)
def test_durations(seconds, shown):
    assert plain(words.duration(seconds)) == shown


def test_moments():
    assert words.moment("2025-05-02T16:03:11+02:00") == "2 May 2025, 14:03 UTC"
    assert words.moment("yesterday") == "yesterday"


@pytest.mark.parametrize(
    ("name", "classes", "said"),
    [
        ("Classification", 10, "classification, 10 classes"),
        ("Detection", 1, "detection, 1 class"),
        ("ImageToImage", 0, "image to image"),
        ("Labels", 3, "several labels at once, of 3"),
        ("Control", 2, "control, 2 actions"),
        ("Ranking", 2, "ranking, 2 answers"),
    ],
)
def test_a_task_and_what_it_chooses_from(name, classes, said):
    assert words.task(name, classes) == said


def test_no_question_of_the_shelf_is_without_what_could_be_done_instead():
    assert set(what_next.INSTEAD) == set(shelf.ours("probes"))
    assert all(says.endswith(".") for says in what_next.INSTEAD.values())


@pytest.mark.parametrize(("classes", "more"), [(("0", "1", "2"), ""), (("0", "180"), "0, 180"), (("a", "b"), "a, b")])
def test_classes_without_names_are_not_listed(build, classes, more):
    assert facts(build.described(classes=classes))[0].more == more
