"""Claim: a published statement, the published numbers, and a study that tests it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

Held = Literal["holds", "fails", "cannot tell", "not run"]


@dataclass(frozen=True)
class Published:
    """A number as printed, with its place: table, row and column.

    `measured` names the measure that is of the same kind, where it is not called `what` too: the two stand side by
    side. A number that no measure is of the kind of stands alone.
    """

    what: str
    value: float
    where: str
    unit: str = ""
    measured: str = ""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A number in print that ours must come near in every seed before anything is concluded: a baseline, mostly."""

    what: str
    values: tuple[float, ...]  # of each seed
    printed: float | None
    """None: drawn there, without a number."""
    low: float
    high: float = 1.0

    def missed(self) -> str:
        """Why nothing may be concluded, in a sentence; empty where it was reached."""
        if self.values and all(self.low <= v <= self.high for v in self.values):
            return ""
        reached = ", ".join(f"{100 * v:.1f}" for v in self.values)
        return (
            f"{self.what} {f'is {reached} % in the seeds' if reached else 'was not measured'}, not between "
            f"{100 * self.low:g} and {100 * self.high:g} % "
            f"(printed: {'no number' if self.printed is None else f'{100 * self.printed:g} %'})."
        )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a study measured, and what it would conclude; `judged` has the last word.

    `gates` are what must be near print first. `seeds` is how many trainings its intervals run over; None: none is
    needed, because nothing is trained.
    """

    verdict: Held
    says: str
    measures: tuple[Measure, ...]
    gates: tuple[Gate, ...] = ()
    seeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`name` is unique within its source's file; the claim's id is '<file>/<name>'."""

    name: str
    source: str
    says: str
    published: tuple[Published, ...]
    here: str
    minutes: float
    """About how long the study takes on two cores."""
    test: Callable[[Run], Evidence]
    seeds: int = 0
    """The fewest trainings that a verdict may rest on: five where one takes under two minutes on a GPU, three else."""
    ours: bool = False
    """A statement of our own about the source's method, which is no claim of theirs: a note."""


def too_few(claim: Claim, seeds: int) -> str:
    """Why no verdict may rest on so many trainings; empty where one may."""
    if seeds >= claim.seeds:
        return ""
    return f"it rests on {seeds} {'training' if seeds == 1 else 'trainings'}, and {claim.seeds} are asked for"


def judged(claim: Claim, evidence: Evidence) -> Evidence:
    """The evidence with the verdict that it may have: nothing is concluded from networks unlike print's or too few."""
    if evidence.verdict not in ("holds", "fails"):
        return evidence
    doubts = [missed for gate in evidence.gates if (missed := gate.missed())]
    said = f" The networks are not those in print: {' '.join(doubts)}" if doubts else ""
    if few := too_few(claim, 1 if evidence.seeds is None else evidence.seeds):
        said += f" I{few[1:]}."
    return replace(evidence, verdict="cannot tell", says=evidence.says + said) if said else evidence


@dataclass(frozen=True, kw_only=True)
class Before:
    """What the ledger said of a claim until its verdict became another."""

    verdict: Held
    says: str = ""
    when: str = ""
    commit: str = ""
    why: str = ""
    """What was another at the test that changed it, in words."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One record of the ledger: a claim as it was worded when it was tested, what came of it, and what made it."""

    id: str
    says: str
    evidence: Evidence
    seed: int
    budget: str
    machine: str
    versions: Mapping[str, str]
    command: str
    seconds: float
    when: str
    here: str = ""
    """On what it was tested; empty in a record from before this was kept."""
    commit: str = ""
    """Of the checkout that Assay lay in, with a + where files had changed since; empty where it lay in none."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Hashes: `claim` of the study's own files, `methods` of the methods, layers and data that they import."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Files of ASSAY_DATA that were read, with their hashes."""
    before: Before | None = None
    """The last verdict that was another; None in a record from before this was kept."""
