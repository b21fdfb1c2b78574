"""All that a study tells: who got how far, in how many tries, against random tries, and which test says what.

Source: Anand, Wang, Loog and van Gemert, BMVC 2020, sec. 7.3, items (a) to (g) of which are the fields below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from assay.methods.study.comparisons import (
    Tested,
    bonferroni,
    holm,
    kruskal_wallis,
    levene,
    mann_whitney,
    permuted,
    spearman,
)
from assay.methods.study.effort import Band, band, chance_not_above, expected_best, tries_to_reach
from assay.methods.study.experience import CUT, GROUPS, group
from assay.methods.study.hyperparameters import GUESS, REASONS, from_defaults
from assay.methods.study.people import Participant
from assay.methods.study.person import Share, person_share

THRESHOLDS = (0.25, 0.50)


@dataclass(frozen=True)
class Corrected:
    """A test of two groups, its p value by itself and corrected for all tests of its kind that are made."""

    groups: tuple[str, str]
    test: Tested
    holm: float | None
    bonferroni: float | None


@dataclass(frozen=True)
class Reach:
    """Of a group: after how many tries each who reached a threshold did, and how many never did."""

    group: str
    threshold: float
    tries: tuple[int, ...]
    never: int


@dataclass(frozen=True)
class Against:
    """One participant against as many random tries, on validation accuracy."""

    id: str
    tries: int
    best: float
    expected: float
    """The mean best of as many random tries."""
    chance: float
    """How often as many random tries end at this best or below."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    people: tuple[Participant, ...]
    groups: Mapping[str, tuple[Participant, ...]]
    """Those who ended, by experience; programs that are no persons are in none."""
    ungrouped: int
    experience: Tested
    """(a) months and mean final test accuracy."""
    shuffled: tuple[float, float] | None
    """Between which 95 % of such correlations lie where months are dealt out anew."""
    spread: tuple[Corrected, ...]
    """(b) Levene's, of each pair of groups."""
    level: tuple[Corrected, ...]
    """Mann and Whitney's, of each pair."""
    several: Tested
    """Kruskal and Wallis's."""
    person: Share | None
    """How much of a single result is the person's; None of fewer than two who ended."""
    reach: tuple[Reach, ...]
    """(c)"""
    curves: Mapping[str, Band]
    """(d) best so far by tries, of each group and of each program that is no person."""
    defaults: Mapping[str, tuple[int, int]]
    """(e) of each group, how many began with every default, of how many."""
    above_half: tuple[int, int]
    """Of those who began with defaults, how many ended above 50 %, of how many."""
    reasons: Mapping[str, Mapping[int, float]]
    """(f) of each group, the share of each reason among all that were given."""
    guesses: Tested
    """(f) months and the share of guesses."""
    reference: tuple[float, ...]
    """(g) validation accuracies of random configurations."""
    expected: tuple[float, ...]
    """The mean best of 1, 2, ... of them."""
    against: tuple[Against, ...]
    cut: float = CUT
    as_published: bool = False


def analyse(
    people: Sequence[Participant],
    reference: Sequence[float],
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    cut: float = CUT,
    as_published: bool = False,
    persons: Sequence[str] = ("", "expert", "medium", "novice"),
    seed: int = 0,
) -> Analysis:
    """The whole analysis; `persons` are the values of `simulated` that stand for people with experience."""
    counted = [p for p in people if p.simulated in persons]
    ended = [p for p in counted if p.ended]
    of = {p.id: group(p.months, cut, as_published=as_published) for p in counted}
    groups = {name: tuple(p for p in ended if of[p.id] == name) for name in GROUPS}
    tuned = {name: tuple(p for p in counted if of[p.id] == name and p.tries) for name in GROUPS}
    for program in sorted({p.simulated for p in people if p.simulated not in persons}):
        tuned[program] = tuple(p for p in people if p.simulated == program and p.tries)
    heights = {name: [float(np.mean(p.test)) for p in some] for name, some in groups.items()}
    pairs = list(combinations(GROUPS, 2))
    months, final = [p.months for p in ended], [float(np.mean(p.test)) for p in ended]
    experience = spearman(months, final)
    dealt = permuted(months, final, np.random.default_rng(seed)) if experience.p is not None else np.zeros(0)
    began = {name: [p for p in some if p.tries] for name, some in tuned.items() if name in GROUPS}
    first = {p.id: from_defaults(p.tries[0].configuration) for some in began.values() for p in some}
    beginners = [p for p in ended if first.get(p.id)]
    share = [(p.months, _guesses(p)) for p in counted]
    known = [(m, g) for m, g in share if g is not None]
    most = max((len(p.tries) for p in people), default=0)
    drawn = tuple(reference)
    return Analysis(
        people=tuple(people),
        groups=groups,
        ungrouped=sum(each is None for each in of.values()),
        experience=experience,
        shuffled=(float(np.quantile(dealt, 0.025)), float(np.quantile(dealt, 0.975))) if len(dealt) else None,
        spread=_corrected(pairs, [levene(heights[a], heights[b]) for a, b in pairs]),
        level=_corrected(pairs, [mann_whitney(heights[a], heights[b]) for a, b in pairs]),
        several=kruskal_wallis(*(heights[name] for name in GROUPS)),
        person=_person(ended),
        reach=tuple(_reach(name, tuned[name], t) for t in thresholds for name in tuned if tuned[name]),
        curves={
            name: band([p.accuracies for p in some], as_published=as_published) for name, some in tuned.items() if some
        },
        defaults={name: (sum(first[p.id] for p in some), len(some)) for name, some in began.items()},
        above_half=(sum(float(np.mean(p.test)) > 0.5 for p in beginners), len(beginners)),
        reasons={name: _reasons(some) for name, some in tuned.items() if name in GROUPS},
        guesses=spearman([m for m, _ in known], [g for _, g in known]),
        reference=drawn,
        expected=tuple(expected_best(drawn, n) for n in range(1, min(most, len(drawn)) + 1)),
        against=tuple(each for p in people if (each := _against(p, drawn)) is not None),
        cut=cut,
        as_published=as_published,
    )


def _corrected(pairs: Sequence[tuple[str, str]], tests: Sequence[Tested]) -> tuple[Corrected, ...]:
    p = [test.p for test in tests]
    return tuple(Corrected(*each) for each in zip(pairs, tests, holm(p), bonferroni(p), strict=True))


def _person(ended: Sequence[Participant]) -> Share | None:
    seeds = min((len(p.test) for p in ended), default=0)
    return person_share([p.test[:seeds] for p in ended]) if len(ended) > 1 and seeds > 1 else None


def _reach(name: str, people: Sequence[Participant], threshold: float) -> Reach:
    found = [tries_to_reach(p.accuracies, threshold) for p in people]
    return Reach(name, threshold, tuple(n for n in found if n is not None), sum(n is None for n in found))


def _reasons(people: Sequence[Participant]) -> dict[int, float]:
    given = Counter(code for p in people for t in p.tries for code in t.reasons.values())
    return {code: given[code] / given.total() for code in REASONS} if given else {}


def _guesses(p: Participant) -> float | None:
    given = [code for t in p.tries for code in t.reasons.values()]
    return given.count(GUESS) / len(given) if given else None


def _against(p: Participant, reference: Sequence[float]) -> Against | None:
    best, n = p.best(), len(p.tries)
    if best is None or best.accuracy is None or n > len(reference):
        return None
    return Against(p.id, n, best.accuracy, expected_best(reference, n), chance_not_above(reference, best.accuracy, n))
