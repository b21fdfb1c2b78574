"""`assay probes NAME` and `assay remedies NAME`: one question or cure in full."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from assay import shelf
from assay.cli.settings import settings_of
from assay.cli.shelves import fitting, in_words, theme
from assay.probe import configure
from assay.subject import Recipe
from assay.tasks.task import GIVES

if TYPE_CHECKING:
    from conftest import Command


EVERY = [(which, name) for which in ("probes", "remedies") for name in shelf.ours(which)]  # type: ignore[arg-type]

LOAD = shelf.load


@cache
def recipe(name: str) -> Recipe:
    kept: Recipe = LOAD("subjects", name)
    return replace(kept, build=cache(kept.build))


@pytest.fixture(autouse=True)
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of our subjects is built once for all of these tests: they look at it, and ask it nothing."""
    monkeypatch.setattr(shelf, "load", lambda which, name: recipe(name) if which == "subjects" else LOAD(which, name))


def test_a_question_is_told_with_all_that_one_must_know_to_ask_it(assay: Command) -> None:
    ended = assay("probes", "worst-case-accuracy")
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert (
        lines[0] == "Does it stay right when someone changes the input on purpose, by no more than the eye would miss?"
    )
    assert "passes: its first measure, at least 0.4" in lines
    assert any(line.startswith("source: Croce & Hein") for line in lines)
    assert re.search(r"^ *radius +number +8/255 +`radius` is the l_inf budget", ended.out, re.MULTILINE)
    assert re.search(r"^ *steps +whole number \| none +none *$", ended.out, re.MULTILINE)
    assert lines[-2:] == [
        "example: assay ask worst-case-accuracy fashion-cnn",
        "example: assay ask worst-case-accuracy fashion-cnn --set radius=8/255",
    ]


def test_what_a_question_needs_and_when_it_is_asked_are_told(assay: Command) -> None:
    told = assay("probes", "can-the-map-be-chosen").out.splitlines()
    assert "needs: a number of one input's answer that can be explained, gradients" in told
    assert "asked: from --budget standard on, or by its name: it takes long" in told
    told = assay("probes", "accuracy").out.splitlines()
    assert not [line for line in told if line.startswith(("needs:", "asked:")) or "setting" in line]
    assert told[-1] == "example: assay ask accuracy fashion-cnn --budget standard"


def test_needs_are_told_as_a_report_says_what_is_missing() -> None:
    assert in_words(("spread", "gradients", "train")) == f"{GIVES['spread']}, gradients, the training data"


def test_a_remedy_is_told_too(assay: Command) -> None:
    ended = assay("remedies", "sgld")
    lines = ended.out.splitlines()
    assert ended.status == 0
    assert lines[0] == shelf.load("remedies", "sgld").promise()
    assert "needs: answers whose mean is an answer too, the training data" in lines
    assert re.search(r"^ *samples +whole number +5 +see epochs", ended.out, re.MULTILINE)
    assert lines[-1] == "example: assay cure sgld fashion-cnn --set samples=5"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["probes", "acuracy"], "There is no probe 'acuracy'; did you mean 'accuracy'?"),
        (["remedies", "x"], "There is no remedy 'x'; `assay remedies` lists them."),
    ],
)
def test_an_unknown_name_is_one_line(words: list[str], says: str, assay: Command) -> None:
    assert assay(*words) == (2, "", f"assay: {says}\n")


@pytest.mark.parametrize(("which", "name"), EVERY)
def test_of_each_on_the_shelf_the_examples_can_be_run(which: str, name: str, assay: Command) -> None:
    ended = assay(which, name)
    assert ended.status == 0
    kind = shelf.load(which, name)  # type: ignore[arg-type]
    for setting in settings_of(kind):
        assert re.search(rf"^ *{setting.name} ", ended.out, re.MULTILINE)
    plain, more = (shlex.split(line.removeprefix("example: ")) for line in ended.out.splitlines()[-2:])
    assert plain[:3] == more[:3] == ["assay", "ask" if which == "probes" else "cure", name]
    if plain[3] == "SUBJECT":  # none of ours fits: it reads texts, and ours are embedded
        assert all(kind().why_not(shelf.load("subjects", ours).build()) for ours in shelf.ours("subjects"))
    else:
        assert kind().why_not(shelf.load("subjects", plain[3]).build()) is None
    assert more[3:5] in ([plain[3], "--set"], [plain[3], "--budget"])
    if more[4] == "--set":
        setting, _, value = more[5].partition("=")
        configure(kind, {setting: value})


def test_where_no_subject_of_ours_fits_the_example_has_the_word_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = shelf.load("probes", "accuracy")
    monkeypatch.setattr(kind, "why_not", lambda self, subject: "never")
    assert fitting(kind) == "SUBJECT"


def test_the_theme_is_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Kind", (), {})
    for module, says in (
        ("assay.probes.attacked.fall", "attacked"),
        ("assay.probes.fall", ""),
        ("their.own.set.x", ""),
    ):
        monkeypatch.setattr(kind, "__module__", module)
        assert theme(kind) == says  # type: ignore[arg-type]
