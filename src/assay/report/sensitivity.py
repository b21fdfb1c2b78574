"""What a model may be sensitive to, and what this audit knows of each: the table of a whole report.

By source: the world shifts, somebody attacks, people took part. Shifts differ in what is at hand of the new place;
an attack aims at the classification or at the explanation, and changes the input or the architecture: Wang's
dissertation, TU Delft 2024, sec. 1.2, 1.3.2 and 8. A kind that no question of the audit has tested says so, and is
never told as passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from assay.audit import Judged
from assay.report import words
from assay.store import slug

Source = Literal["shift", "attack", "people"]
HEADINGS: dict[Source, str] = {"shift": "The world shifts", "attack": "Somebody attacks", "people": "People took part"}


@dataclass(frozen=True)
class Kind:
    """One kind of sensitivity: what happens, and the probes whose questions test it, by name."""

    source: Source
    name: str
    means: str
    asked_by: tuple[str, ...]


KINDS: tuple[Kind, ...] = (
    Kind("shift", "adaptation", "Inputs of the new place are at hand, and no labels.",
         ("how-far-is-it-from-home", "what-will-it-score-there")),
    Kind("shift", "generalisation", "Nothing of the new place is at hand.",
         ("does-it-extrapolate", "everyday-change", "confidence-under-shift", "does-it-find-them-in-part")),
    Kind("shift", "transfer", "A few inputs of the new place are at hand, with labels.", ("did-transfer-help",)),
    Kind("shift", "several domains", "Data come from several places, and a cue may hold in some alone.",
         ("could-an-invariance-bridge-it", "does-it-use-a-shortcut")),
    Kind("attack", "classification, by the input", "A small change of the input turns the answer.",
         ("worst-case-accuracy", "distance-to-failure", "one-change-for-all", "does-it-transfer",
          "can-a-few-words-break-it", "does-it-last")),
    Kind("attack", "classification, by the architecture",
         "An edit of the network makes it answer wrongly when a trigger is seen.", ()),
    Kind("attack", "explanation, by the input", "A small change of the input puts another map on the same answer.",
         ("can-the-map-be-chosen",)),
    Kind("attack", "explanation, by the architecture", "An edit of the network changes the map and leaves the answer.",
         ("does-the-map-survive", "was-it-tampered-with")),
    Kind("people", "defaults", "What nobody chose, the head, the density, was left as it came.",
         ("what-do-its-defaults-cost",)),
    Kind("people", "tuning", "Another person would have tuned it otherwise; `assay study` measures by how much.", ()),
    Kind("people", "labels", "Those who labelled the data were wrong.", ("which-labels-look-wrong",)),
)  # fmt: skip


@dataclass(frozen=True)
class Tested:
    """One question that tests the kind: its place in the page, its outcome, and what it measured."""

    id: str
    question: str
    outcome: words.Outcome
    measured: str


@dataclass(frozen=True)
class Cell:
    kind: Kind
    tested: tuple[Tested, ...]
    untested: str
    """Why nothing is known; empty where something is."""


def sensitivity(rows: Sequence[Judged]) -> dict[str, tuple[Cell, ...]]:
    """The cells under each heading; nothing where the audit asked no question that the table holds."""
    if not any(row.answer.probe in kind.asked_by for kind in KINDS for row in rows):
        return {}
    return {
        heading: tuple(_cell(kind, rows) for kind in KINDS if kind.source == source)
        for source, heading in HEADINGS.items()
    }


def _cell(kind: Kind, rows: Sequence[Judged]) -> Cell:
    here = [row for name in kind.asked_by for row in rows if row.answer.probe == name]
    tested = tuple(_tested(row) for row in here if _measured(row))
    return Cell(kind, tested, "" if tested else _why(kind.asked_by, here))


def _measured(row: Judged) -> bool:
    """Whether it came to a number: a question that found nothing to measure has tested nothing."""
    return row.answer.finding is not None and row.answer.finding.measure().value is not None


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
    return "Not tested: " + "; ".join(f"{row.answer.probe}: {_reason(row).rstrip('.')}" for row in here) + "."


def _reason(row: Judged) -> str:
    return row.answer.why if row.answer.finding is None else row.answer.finding.says
