"""The four kinds of attack, and what this audit knows of each.

An attack aims at the classification or at the explanation, and it changes the input or the architecture: the table of
Wang's dissertation, TU Delft 2024, sec. 1.3.2. A kind that no question of the audit has tested says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from assay.audit import Judged
from assay.report import words
from assay.store import slug

Aim = Literal["classification", "explanation"]
Way = Literal["input", "architecture"]

AIMS: tuple[Aim, ...] = ("classification", "explanation")
WAYS: tuple[Way, ...] = ("input", "architecture")
ASKED_BY: dict[tuple[Aim, Way], tuple[str, ...]] = {
    ("classification", "input"): ("worst-case-accuracy",),
    ("classification", "architecture"): (),
    ("explanation", "input"): ("can-the-map-be-chosen",),
    ("explanation", "architecture"): ("does-the-map-survive", "was-it-tampered-with"),
}
"""The questions that test each kind, by the names of their probes."""
MEANS: dict[tuple[Aim, Way], str] = {
    ("classification", "input"): "A small change of the input turns the answer.",
    ("classification", "architecture"): "An edit of the network makes it answer wrongly when a trigger is seen.",
    ("explanation", "input"): "A small change of the input puts another map on the same answer.",
    ("explanation", "architecture"): "An edit of the network changes the map and leaves the answer.",
}


@dataclass(frozen=True)
class Tested:
    """One question that tests the kind: its place in the page, its outcome, and what it measured."""

    id: str
    question: str
    outcome: words.Outcome
    measured: str


@dataclass(frozen=True)
class Cell:
    aim: Aim
    way: Way
    means: str
    tested: tuple[Tested, ...]
    untested: str
    """Why nothing is known; empty where something is."""


def four_attacks(rows: Sequence[Judged]) -> tuple[tuple[Cell, ...], ...]:
    """The table, a row for each aim and a column for each way; () where the audit asked no question that it holds."""
    asked = {row.answer.probe: row for row in rows}
    if not any(name in asked for names in ASKED_BY.values() for name in names):
        return ()
    return tuple(tuple(_cell(aim, way, asked) for way in WAYS) for aim in AIMS)


def _cell(aim: Aim, way: Way, asked: dict[str, Judged]) -> Cell:
    names = ASKED_BY[aim, way]
    here = [asked[name] for name in names if name in asked]
    tested = tuple(_tested(row) for row in here if row.answer.finding is not None)
    return Cell(aim, way, MEANS[aim, way], tested, "" if tested else _why(names, here))


def _tested(row: Judged) -> Tested:
    answer = row.answer
    assert answer.finding is not None  # the caller saw to it
    headline = answer.finding.measure()
    return Tested(
        slug(answer.probe), answer.question, words.outcome(row), f"{headline.name}: {words.in_full(headline)}"
    )


def _why(names: Sequence[str], here: Sequence[Judged]) -> str:
    if not names:
        return "Not tested: no question of Assay asks this yet."
    if not here:
        return f"Not tested: this audit did not ask {' or '.join(names)}."
    return "Not tested: " + "; ".join(f"{row.answer.probe}: {row.answer.why.rstrip('.')}" for row in here) + "."
