"""The table of four attacks: each kind with the questions that test it, and a plain word where none does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from assay import shelf
from assay.finding import Finding, Measure
from assay.report.four_attacks import AIMS, ASKED_BY, WAYS, Aim, Cell, Way, four_attacks
from assay.report.words import NBSP
from assay.standard import Standard

Table = dict[tuple[Aim, Way], Cell]


def found(name: str, value: float) -> Finding:
    return Finding(says="so", measures=(Measure(name=name, value=value, low=value, high=value, n=9, better="lower"),))


@pytest.fixture
def table(build: SimpleNamespace) -> Table:
    rows = (
        build.answered("accuracy", "How often?", found("accuracy", 0.9)),
        build.answered("was-it-tampered-with", "Was it?", found("signs of tampering", 2.0), Standard(at_most=0)),
        build.answered("does-the-map-survive", "Does it?", found("largest gap", 0.01), Standard(at_most=0.05)),
        build.unanswered("can-the-map-be-chosen", "Can it?", "does not apply", "it needs gradients."),
    )
    return {(c.aim, c.way): c for line in four_attacks(rows) for c in line}


def test_a_tested_kind_has_question_outcome_measure_and_link(table: Table) -> None:
    cell = table["explanation", "architecture"]
    assert [t.id for t in cell.tested] == ["does-the-map-survive", "was-it-tampered-with"]
    assert [t.outcome for t in cell.tested] == ["pass", "fail"]
    assert [t.question for t in cell.tested] == ["Does it?", "Was it?"]
    assert cell.tested[1].measured.replace(NBSP, " ") == "signs of tampering: 2.00 (2.00 to 2.00)"
    assert cell.untested == ""


def test_an_untested_kind_says_so_and_why(table: Table) -> None:
    assert table["classification", "architecture"].untested == "Not tested: no question of Assay asks this yet."
    assert table["classification", "input"].untested == "Not tested: this audit did not ask worst-case-accuracy."
    assert table["explanation", "input"].untested == "Not tested: can-the-map-be-chosen: it needs gradients."
    assert all(c.tested == () for (aim, way), c in table.items() if (aim, way) != ("explanation", "architecture"))


def test_a_question_that_broke_tested_nothing(build: SimpleNamespace) -> None:
    rows = (build.unanswered("worst-case-accuracy", "How many?", "failed", "out of memory"),)
    (first, *_), _ = four_attacks(rows)
    assert first.tested == ()
    assert first.untested == "Not tested: worst-case-accuracy: out of memory."


def test_it_is_whole_and_names_only_questions_that_exist(table: Table, build: SimpleNamespace) -> None:
    assert list(table) == [(aim, way) for aim in AIMS for way in WAYS]
    assert set(ASKED_BY) == set(table)
    assert {name for names in ASKED_BY.values() for name in names} <= set(shelf.names("probes"))
    assert all(cell.means.endswith(".") for cell in table.values())


def test_an_audit_of_other_things_has_no_table(build: SimpleNamespace) -> None:
    assert four_attacks((build.answered("accuracy", "How often?", found("accuracy", 0.9)),)) == ()
    assert four_attacks(()) == ()
