"""Claim: a published statement, the published numbers, and a study that tests it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

Held = Literal["holds", "fails", "cannot tell", "not run"]


@dataclass(frozen=True)
class Published:
    """A number as printed, with its place: table, row and column."""

    what: str
    value: float
    where: str
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a study measured. `measures` stand in the order of the claim's published numbers where they correspond."""

    verdict: Held
    says: str
    measures: tuple[Measure, ...]


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
