"""Numbers of several trainings: intervals that resample trainings and inputs, what they allow to say, and gates.

The trainings of a study answer the same inputs, so that a resample draws inputs once for all of them, and trainings
with repetition. Three trainings say little of how far a fourth may lie: a verdict asks beside that all of them agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.claim import Evidence, Gate, Held
from assay.finding import Better, Measure, bootstrap

Array = NDArray[np.float64]


class Gap(NamedTuple):
    """A number with its interval over trainings and inputs, and the same number in each training."""

    measure: Measure
    seeds: Array

    @property
    def low(self) -> float:
        return self.measure.low or 0.0

    @property
    def high(self) -> float:
        return self.measure.high or 0.0


def resampled(each: Callable[[Array], Array], n: int, *, seed: int = 0, draws: int = 1000) -> tuple[float, float]:
    """The interval of a mean over trainings; `each`: how often each of n inputs counts, draws n -> trainings draws."""
    rng = np.random.default_rng(seed)

    def mean(counts: Array) -> Array:  # draws n -> draws
        found = each(counts)
        which = rng.integers(0, len(found), found.T.shape)
        means: Array = np.take_along_axis(found.T, which, 1).mean(1)
        return means

    return bootstrap(mean, n, seed=seed, draws=draws)


def mean(name: str, values: Sequence[Array], unit: str = "", better: Better = "higher") -> Gap:
    """Over trainings and inputs; of each training n numbers, or k n where each input was asked about k times."""
    each = np.stack([np.atleast_2d(v).mean(0) for v in values])  # trainings n
    low, high = resampled(lambda counts: each @ counts.T / each.shape[1], each.shape[1])
    value = float(each.mean())
    measure = Measure(
        name=name, value=value, low=min(low, value), high=max(high, value), better=better, n=each.shape[1], unit=unit
    )
    return Gap(measure, each.mean(1))


def accuracy(name: str, right: Sequence[Array]) -> Measure:
    return mean(name, right, "%").measure


def gap(name: str, ours: Sequence[Array], others: Sequence[Array]) -> Gap:
    """How much more often ours are right, paired by training and input."""
    return mean(name, [a - b for a, b in zip(ours, others, strict=True)], "%")


def above(limit: float, *gaps: Gap) -> Held:
    """holds: every interval, and every training, lies above the limit. fails: one interval, with its trainings, below.

    A limit that print does not give is nothing that a statement can fail by: see `by_ours`.
    """
    if all(gap.low > limit and (gap.seeds > limit).all() for gap in gaps):
        return "holds"
    if any(gap.high < limit and (gap.seeds < limit).all() for gap in gaps):
        return "fails"
    return "cannot tell"


def by_ours(held: Held) -> Held:
    """What a threshold of ours alone decides: it may be met, and where it is not, nothing can be told."""
    return "cannot tell" if held == "fails" else held


def points(gap: Gap) -> str:
    return f"{100 * (gap.measure.value or 0.0):+.1f}"


def gate(what: str, right: Sequence[Array], printed: float | None, low: float, high: float = 1.0) -> Gate:
    """A share of each training that must be near print's."""
    return Gate(what=what, values=tuple(float(v.mean()) for v in right), printed=printed, low=low, high=high)


def evidence(held: Held, says: str, gates: Sequence[Gate], *measures: Measure) -> Evidence:
    """Of as many trainings as each gate was asked in."""
    seeds = min(len(gate.values) for gate in gates)
    return Evidence(verdict=held, says=says, measures=measures, gates=tuple(gates), seeds=seeds)
