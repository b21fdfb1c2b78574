"""The table of sensitivities: each kind with the questions that test it, and a plain word where none does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from assay import shelf
from assay.finding import Alarm, Finding, Measure
from assay.report.sensitivity import HEADINGS, KINDS, Cell, sensitivity
from assay.report.words import NBSP
from assay.standard import Standard

Cells = dict[str, Cell]


def found(name: str, value: float) -> Finding:
    return Finding(says="so", measures=(Measure(name=name, value=value, low=value, high=value, n=9, better="lower"),))


def cells(*rows: object) -> Cells:
    return {cell.kind.name: cell for line in sensitivity(rows).values() for cell in line}  # type: ignore[arg-type]


@pytest.fixture
def table(build: SimpleNamespace) -> Cells:
    return cells(
        build.answered("accuracy", "How often?", found("accuracy", 0.9)),
        build.answered("was-it-tampered-with", "Was it?", found("signs of tampering", 2.0), Standard(at_most=0)),
        build.answered("does-the-map-survive", "Does it?", found("largest gap", 0.01), Standard(at_most=0.05)),
        build.unanswered("can-the-map-be-chosen", "Can it?", "does not apply", "it needs gradients."),
        build.unanswered("did-transfer-help", "Did it?", "does not apply", "it needs a domain"),
    )


def test_a_tested_kind_has_question_outcome_measure_and_link(table: Cells) -> None:
    cell = table["explanation, by the architecture"]
    assert [t.id for t in cell.tested] == ["does-the-map-survive", "was-it-tampered-with"]
    assert [t.outcome for t in cell.tested] == ["pass", "fail"]
    assert [t.question for t in cell.tested] == ["Does it?", "Was it?"]
    assert cell.tested[1].measured.replace(NBSP, " ") == "signs of tampering: 2.00 (2.00 to 2.00)"
    assert cell.untested == ""


def test_an_untested_kind_says_so_and_why(table: Cells) -> None:
    untested = {name: cell.untested for name, cell in table.items() if not cell.tested}
    assert set(table) - set(untested) == {"explanation, by the architecture"}
    assert untested["classification, by the architecture"] == "Not tested: no question of Assay asks this yet."
    assert untested["classification, by the input"].startswith("Not tested: this audit did not ask worst-case-accuracy")
    assert untested["explanation, by the input"] == "Not tested: can-the-map-be-chosen: it needs gradients."
    assert untested["transfer"] == "Not tested: did-transfer-help: it needs a domain."
    assert all(why.startswith("Not tested: ") for why in untested.values())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.asked_by], ids=lambda kind: kind.name)
def test_without_its_test_a_cell_is_untested_and_never_passed(kind: object, build: SimpleNamespace) -> None:
    names = [name for each in KINDS for name in each.asked_by]
    rows = {name: build.answered(name, "?", found("share", 0.1), Standard(at_most=1)) for name in names}
    whole = cells(*rows.values())
    assert all(bool(cell.tested) == bool(cell.kind.asked_by) for cell in whole.values())
    left = cells(*(row for name, row in rows.items() if name not in kind.asked_by))  # type: ignore[attr-defined]
    for name, cell in left.items():
        if name == kind.name:  # type: ignore[attr-defined]
            assert cell.tested == ()
            assert cell.untested.startswith("Not tested: this audit did not ask")
        else:
            assert cell == whole[name]


def test_a_question_that_broke_tested_nothing(build: SimpleNamespace) -> None:
    rows = cells(build.unanswered("worst-case-accuracy", "How many?", "failed", "out of memory"))
    cell = rows["classification, by the input"]
    assert cell.tested == ()
    assert cell.untested == "Not tested: worst-case-accuracy: out of memory."


def test_a_question_that_measured_nothing_tested_nothing_and_one_asked_twice_stands_twice(
    build: SimpleNamespace,
) -> None:
    blank = Measure(name="accuracy", value=None, better="higher")
    empty = Finding(says="No head fits.", measures=(blank,), alarms=(Alarm("No head fits."),))
    rows = (
        build.answered("what-do-its-defaults-cost", "What?", empty),
        build.answered("worst-case-accuracy", "At 8?", found("worst", 0.4)),
        build.answered("worst-case-accuracy", "At 2?", found("worst", 0.8)),
    )
    told = cells(*rows)
    assert told["defaults"].untested == "Not tested: what-do-its-defaults-cost: No head fits."
    assert [t.question for t in told["classification, by the input"].tested] == ["At 8?", "At 2?"]


def test_it_is_whole_and_names_only_questions_that_exist(table: Cells) -> None:
    assert list(table) == [kind.name for kind in KINDS]
    assert {kind.source for kind in KINDS} == set(HEADINGS)
    assert {name for kind in KINDS for name in kind.asked_by} <= set(shelf.names("probes"))
    assert all(kind.means.endswith(".") for kind in KINDS)


def test_an_audit_of_other_things_has_no_table(build: SimpleNamespace) -> None:
    assert sensitivity((build.answered("accuracy", "How often?", found("accuracy", 0.9)),)) == {}
    assert sensitivity(()) == {}
