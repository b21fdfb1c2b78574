"""Pair explanation: what would change a comparison, with its trial, as a record. `jobs/explain_pair` makes one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from assay.finding import Bars, Curve, Measure, Panel

Outcome = Literal["pass", "fail", "cannot tell", "not asked"]


class Check(NamedTuple):
    """A verdict in a few words, as it stands beside a map."""

    outcome: Outcome
    says: str


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One audit of the explanation; `verdict` is the outcome in a few words."""

    name: str
    question: str
    outcome: Outcome
    verdict: str
    says: str
    measures: tuple[Measure, ...] = ()
    views: tuple[Bars | Curve, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two inputs; `given` is what the user typed for it."""

    what: str
    given: str
    value: float | None
    panel: Panel


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The input at one step of the walk, and what the model sees there."""

    step: int
    c: float
    panel: Panel
    seen: Panel | None
    strange: bool = False
    """What is seen is further from all that the decoder knows than held-out inputs are."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A map as it is shown, with its scale: the colours from `low` to `high`, in the unit of the inputs."""

    panel: Panel
    says: str
    colours: tuple[str, ...]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A picture decoded of an embedding that no input has, and what the model says of it."""

    label: str
    c: float
    panel: Panel
    strange: bool


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Such pictures on one way through the embeddings."""

    title: str
    says: str
    drawn: tuple[Drawn, ...]


@dataclass(frozen=True, kw_only=True)
class PairExplanation:
    """What would change one comparison, as far as that can be believed."""

    subject: str
    about: str
    first: Side
    second: Side
    ordered: bool
    """A ranking; else a similarity, whose answers are distances."""
    scale: tuple[float, float]
    ends: tuple[str, str]
    c: float
    right: float | None
    target: float
    swapped_target: float
    """Where the same change of mind lies when the two are swapped."""
    reached_c: float
    says: str
    walk_says: str
    change_says: str
    seen_says: str
    unseen: str
    """Why there is no perception; empty where there is."""
    walked: Curve
    frames: tuple[Frame, ...]
    pictures: tuple[Panel, ...]
    maps: tuple[Shown, ...]
    checks: tuple[Check, ...]
    """Of all these maps: they are drawings of one change."""
    seen: tuple[Panel, ...]
    seen_maps: tuple[Shown, ...]
    seen_checks: tuple[Check, ...]
    strips: tuple[Strip, ...]
    trials: tuple[Trial, ...]
    decoder: bool
    """One was trained for this page."""
    settings: str
    manner: tuple[str, ...]
    """What was set of the walk, as it is typed: NAME=VALUE."""
    method: str
    budget: str
    seed: int
    device: str
    when: str
    seconds: float
    source: tuple[str, ...]
    page: Path
    moving: str
