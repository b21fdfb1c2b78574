"""The reference subjects of every task: they open, are as good as they say, and are asked what fits them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import assay
from assay import shelf
from assay.run import BUDGETS
from assay.subjects import Source, open_subject

TASKS = {
    "cart-pole": "Control",
    "credit-logit": "Classification",
    "diabetes-mlp": "Regression",
    "digits-denoiser": "ImageToImage",
    "digits-retrieval": "Retrieval",
    "hiring-mlp": "Classification",
    "scenes-labels": "Labels",
    "seasons-forecaster": "Forecast",
    "sentences-tagger": "Tagging",
}


@pytest.mark.parametrize("name", TASKS)
def test_it_is_better_than_what_saw_no_input_and_goes_bad_every_day(name, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", replace(BUDGETS["quick"], samples=120))
    subject = open_subject(Source(name))
    assert subject.task.name() == TASKS[name]
    probes = [p for p in ("accuracy", "everyday-change") if shelf.load("probes", p)().why_not(subject) is None]
    audit = assay.audit(subject, probes=probes)
    right = audit.row("accuracy").answer.finding
    assert right is not None
    first, second = right.measures[:2]
    blind = first.beside[0].value
    assert first.value is not None
    assert first.low is not None
    assert first.low > blind, (first.value, blind)
    if "classes" not in subject.task.gives:
        assert second.value is not None
        assert second.value > second.beside[0].value
    if "everyday-change" in probes:
        kept = audit.row("everyday-change").answer.finding
        assert kept is not None
        assert kept.measures[0].value is not None
        assert kept.measures[0].value < first.value


def test_words_are_not_moved_by_a_little():
    subject = open_subject(Source("sentences-tagger"))
    why = shelf.load("probes", "worst-case-accuracy")().why_not(subject)
    assert why == "it changes values by a little, and an input here is a row of words by number: none lies between two"
