r"""Rounds: which question is asked next, and with how many inputs, until verdicts are settled or the time is over.

Next comes what promises the most verdicts for its time: the chance that a look settles one, over what it takes. Of a
question that was asked, the chance is that of a normal law around what was seen, for each number of inputs that it may
have next; of one that was not, that of a law whose values lie NEAR their limits. So what more inputs would hardly
settle waits until nothing else is left, and what has no limit until all that has one was asked; it is looked at once
more when all is settled and there is time. Where a question has all the inputs that its steps allow, it is asked with
more steps. What does not fit into the time is left out and says how long it would take. Speed was measured, and what a
question took once tells what it will take.

A verdict that is looked at many times must be right as often as one that is looked at once. How many inputs a question
has first is laid down before anything is asked, and one looks again only at the rungs of a ladder from there, each of
which has its share of the error (`methods/uncertainty/sequences.py`): the interval of a proportion is then exact at all
rungs at once, that of a mean of shares, whose values are kept, is what bets leave of it, and that of other measures is
widened as a normal one would be. A question for which there is no time has fewer inputs, on a ladder of its own, with a
small share that is kept for that. More steps are another attack, and so another number: each search of its own has a
share of the error. A question that had every input at its first look cannot be looked at again, and keeps the interval
of one look.

Needs no torch.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from assay.audit import Judged, Question, says_nothing_of_others
from assay.errors import AssayError
from assay.finding import CONFIDENCE, Curve, Finding, Line, Measure, Table, wilson
from assay.jobs.audit.effort import EFFORTS, OTHERWISE, inputs_of, seconds_of
from assay.probe import Answer, Grows, Look
from assay.run import BUDGETS, Budget
from assay.run import budget as budget_named
from assay.standard import Standards

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST = 27_777  # hours that may be given: three years
LEVELS = ("quick", "standard", "full")
SEARCHES = (0.98, 0.01, 0.01)
"""What share of the error each search of its own has: that of the first look, the next harder one, and the hardest."""
SEARCHES_FOR_INPUTS = (0.8, 0.15, 0.05)
"""The same of a question that has more inputs only with more steps, by the table of efforts."""
HURRIED = 0.05
"""The share of the error of looks that began with fewer inputs than FEWEST, because there was no time for more."""
FEWEST = 50
MOST_FIRST = 50_000  # inputs of a first look, whatever they promise: a question may hold them in memory
TYPICAL = 100  # inputs by which the first round is estimated
NEAR = 0.25
"""How far from its limit a value may be expected, in standard deviations of one input, before it was asked."""
MISJUDGED = 0.5
"""How far off the table of efforts may be expected, as a standard deviation of the logarithm."""
UNLIMITED = 0.5  # what an answer without a limit counts for, where a verdict counts 1
HOPELESS = 1e-9  # the least chance that counts: what is left to ask at the end is asked
FIRST_ROUND = 1 / 8
"""Of the time, what the first round may take by the estimates where it searches as hard as a named budget does."""
LAW = NormalDist()
SPANS = re.compile(r"\([^()]*\d[^()]* to [^()]*\d[^()]*\)")
"""An interval in a sentence."""
OF_ONE_LOOK = "Intervals in these sentences are those of one look; those of the measures allow for all looks."
WRITING = (1.0, 0.4)
"""Seconds that writing the report takes, and more for each look that is new in it, until it was seen."""


def seconds_named(text: str, option: str = "--budget") -> float | None:
    """The seconds that '90s', '10m' or '2h' stand for; None where it is no time; one of 0, or without a unit, fails."""
    told = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]*)", text)
    if told is None:
        return None
    number, unit = told.groups()
    if not float(number):
        raise AssayError(f"{option} {text!r} is no time to ask in; give more than 0s, for example 10m.")
    if unit not in UNITS:
        wrong = f"has the unit {unit!r}" if unit else "has no unit"
        raise AssayError(f"{option} {text!r} {wrong}; write {number}s, {number}m or {number}h.")
    seconds = float(number) * UNITS[unit]
    if seconds > 3600 * LONGEST:
        raise AssayError(f"{option} {text!r} is too long; give at most {LONGEST}h.")
    return seconds


def timed(text: str, inputs: int | None = None) -> Budget | None:
    """The budget of an audit with this time limit, or None where that is no time."""
    seconds = seconds_named(text)
    if seconds is None:
        return None
    quick = BUDGETS["quick"]
    return Budget(text, samples=None, steps=quick.steps, restarts=quick.restarts, seconds=seconds).bounded(inputs)


def budget_of(text: str, inputs: int | None = None) -> Budget:
    """What was given with --budget: a time, or one of the names."""
    return timed(text, inputs) or budget_named(text, inputs)


def keyed(budget: Budget) -> Budget:
    """What of it makes two answers the same question: the time does not."""
    return budget if budget.seconds is None else dataclasses.replace(budget, name="timed", seconds=None)


class Turn(NamedTuple):
    """A question to ask now: its place in the plan, how, about how long it takes, and how long it may."""

    place: int
    budget: Budget
    about: float
    most: float


class Offered(NamedTuple):
    """A turn, and how many verdicts it may be expected to settle in a second."""

    worth: float
    turn: Turn


class Rounds:
    """Chooses the next turn by the rows that are known. `clock` tells the seconds since the audit began."""

    def __init__(
        self,
        budget: Budget,
        asked: Sequence[Question],
        applies: Sequence[bool],
        standards: Standards,
        *,
        pace: float,
        there: int,
        clock: Callable[[], float],
        reading: float = 0.0,
        draws: int = 1,
    ) -> None:
        from assay.methods.uncertainty.sequences import rungs  # what lies beside it is heavy

        assert budget.seconds is not None
        self.budget, self.asked, self.applies, self.clock = budget, asked, applies, clock
        self.pace, self.reading, self.there, self.seconds = pace, reading, max(1, there), budget.seconds
        self.draws = draws
        self.most = most_inputs(budget, self.there)
        """Inputs that a question may have."""
        self.may = rungs(self.most)
        """With how many it may begin."""
        self.answered, self.unwritten, self.slow = 0, 0, contention()
        """Questions that have a finding; looks since the last report was written; how many times WRITING that took."""
        self.limited = [bool(standards.limits.get(q.probe, q.own)) for q in asked]
        self.too_long: dict[int, str] = {}
        """Questions that do not fit, and why."""
        self.done: set[int] = set()
        """Those that are not asked again: they took more than there was."""
        self.reopening, self.late = 0.0, False
        """Seconds that it would take to open the model once more, where it has to be and there is no time for that;
        whether that is so because a question took too long, and not because it ended the model's process."""
        left, typical = self.left, min(TYPICAL, self.most)
        self.level = next(
            (
                name
                for name in reversed(LEVELS)
                if sum(self._about(place, self._budget(name, typical)) for place in self._open()) <= FIRST_ROUND * left
            ),
            LEVELS[0],
        )
        self.first = [self._planned(place) for place in range(len(asked))]
        """The inputs of each question's first look; they do not depend on any answer."""

    @property
    def ending(self) -> float:
        """Seconds that are kept for the report, with one more look than there was."""
        return self.slow * (WRITING[0] + WRITING[1] * (self.unwritten + 1))

    @property
    def left(self) -> float:
        """Seconds left to ask in."""
        return self.seconds - self.ending - self.clock()

    def wrote(self, seconds: float) -> None:
        """So long did it take to write what is known; what was drawn is not drawn again."""
        self.slow = 1.25 * seconds / (WRITING[0] + WRITING[1] * self.unwritten)
        self.unwritten = 0

    def next(self, rows: Mapping[int, Judged]) -> Turn | None:
        """What to ask now; None where all is settled or nothing more fits. What does not fit is then in `too_long`."""
        turn = self._next(rows)
        self.unwritten += turn is not None and turn.about > 0
        return turn

    def _next(self, rows: Mapping[int, Judged]) -> Turn | None:
        self.answered = sum(row.answer.finding is not None for row in rows.values())
        waiting = [place for place in range(len(self.asked)) if place not in rows and place not in self.too_long]
        for place in waiting:
            if self.asked[place].left_out is not None or not self.applies[place]:
                least = self._budget(LEVELS[0], self.may[0])
                return Turn(place, least, 0.0, max(1.0, self.left))  # it says why at once
        turns = [turn for place, row in rows.items() for turn in self._again(place, row)]
        for limited in (True, False):  # what has no limit settles no verdict and comes last
            firsts = [self._first(p, alone=len(waiting) == 1) for p in waiting if self.limited[p] == limited]
            turns += [turn for turn in firsts if turn is not None]
            if any(turn is not None for turn in firsts):
                break
        turns = turns or [turn for place, row in rows.items() for turn in self._wider(place, row)]
        return max(turns, key=lambda offered: offered.worth).turn if turns else None

    def leave(self, place: int) -> None:
        """This took longer than there was, or broke where it had not before: it is not asked again."""
        self.done.add(place)

    def refuse_what_is_too_short(self) -> None:
        """An error where not even the cheapest question fits, that says how long that would take."""
        least = self._budget(LEVELS[0], self.may[0])
        cheapest = min(self._open(), key=lambda place: self._about(place, least), default=None)
        if cheapest is not None and (about := self._about(cheapest, least)) > self.left:
            before = self.clock()
            raise AssayError(
                f"A time of {self.budget.name} is too short: opening the model took {before:.0f} s, and "
                f"{self.asked[cheapest].probe} would take about {in_words(about)}; give at least "
                f"{math.ceil(before + about + self.ending)}s."
            )

    def _open(self) -> list[int]:
        return [p for p, q in enumerate(self.asked) if q.left_out is None and self.applies[p]]

    def _budget(self, level: str, inputs: int) -> Budget:
        return dataclasses.replace(BUDGETS[level], name=self.budget.name, samples=None, dear=inputs, inputs=inputs)

    def _about(self, place: int, budget: Budget) -> float:
        probe = self.asked[place].probe
        reading = self.reading * inputs_of(probe, budget, self.there)
        return seconds_of(probe, budget, self.pace, self.there, self.draws) + reading

    def _about_again(self, place: int, last: Look, budget: Budget) -> float:
        """Seconds of another look, by what the last one took."""
        before = self._budget(_level(last.steps), last.inputs)
        return last.seconds * max(1.0, self._about(place, budget) / self._about(place, before))

    def _planned(self, place: int) -> int:
        """The inputs of a first look: as many as promise most for their time; FEWEST where there is no limit."""
        enough = [n for n in self.may if FEWEST <= n <= MOST_FIRST]
        if enough and not self.limited[place]:
            return enough[0]
        return max(enough, key=lambda n: self._promise(place, self._budget(self.level, n)), default=self.most)

    def _first(self, place: int, alone: bool) -> Offered | None:
        """The first look as it was planned, or at few inputs where that does not fit."""
        left = self.left
        ways = ((self.level, self.first[place]), (LEVELS[0], self.may[0]))
        for level, inputs in ways if place not in self.done else ():
            budget = self._budget(level, inputs)
            about = self._about(place, budget)
            if about <= left:
                most = left if alone else max(about, left / 2)
                in_time = LAW.cdf(math.log(most / about) / MISJUDGED)
                return Offered(in_time * self._promise(place, budget), Turn(place, budget, about, most))
        self.too_long[place] = self.why_not(place)
        return None

    def _promise(self, place: int, budget: Budget) -> float:
        """Verdicts that a first look may be expected to settle in a second.

        In standard deviations of one input the value lies N(0, NEAR^2) off its limit, and what is seen of n inputs
        N(0, NEAR^2 + 1 / n); it settles the verdict where it is z / sqrt(n) off.
        """
        assert budget.inputs is not None
        chance = UNLIMITED
        if self.limited[place]:
            z = quantile(error_of(self.asked[place].probe, 0, budget.inputs, budget.inputs, self.most))
            n = inputs_of(self.asked[place].probe, budget, self.there)
            chance = 2 * LAW.cdf(-z / math.sqrt(1 + n * NEAR**2))
        return chance / self._costs(self._about(place, budget))

    def _costs(self, about: float) -> float:
        """Seconds of a look that takes so long, with its part of the report."""
        return about + self.slow * WRITING[1]

    def why_not(self, place: int) -> str:
        """Why a question has no answer when the time is over."""
        if place in self.too_long:
            return self.too_long[place]
        if place in self.done:
            return f"it does not fit into {self.budget.name}: it took more time than there was"
        about, left = self._about(place, self._budget(LEVELS[0], self.may[0])), self.left
        rest = f"{in_words(left)} were left" if left > 1 else "nothing was left"
        if self.reopening:
            ended = (
                "took more time than there was, and its process was ended" if self.late else "ended the model's process"
            )
            again = f"a question before {ended}, and opening the model again takes {in_words(self.reopening)}"
            return f"it does not fit into {self.budget.name}: {again}; {rest}"
        return f"it does not fit into {self.budget.name}: it would take about {in_words(about)}, and {rest}"

    def _again(self, place: int, row: Judged) -> Iterator[Offered]:
        """Further looks that fit, on the ladder that was begun: more inputs or, where those are all, more steps."""
        from assay.methods.uncertainty.sequences import ladder

        answer = row.answer
        if answer.finding is None or not answer.looks or place in self.done:
            return
        open_ones = list(unsettled(row))
        if not open_ones or not answer.looks[-1].grows:
            return
        probe, last, first, left = answer.probe, answer.looks[-1], answer.looks[0], self.left
        level, harder, rungs = _level(last.steps), last.grows == "steps", ladder(first.inputs, self.most)
        levels = LEVELS[LEVELS.index(level) + 1 :] if harder else (level,)
        before = self._budget(level, last.inputs)
        at = last.inputs if last.inputs in rungs else first.inputs  # another version had other rungs
        z = quantile(error_of(probe, searches(first, last.steps), first.inputs, at, self.most))
        for inputs in rungs:
            for name in levels if inputs > last.inputs or (harder and inputs == last.inputs) else ():
                budget = self._budget(name, inputs)
                about = self._about_again(place, last, budget)
                if about > left:
                    continue
                times = inputs_of(probe, budget, self.there) / inputs_of(probe, before, self.there)
                search = searches(first, budget.steps)
                wider = quantile(error_of(probe, search, first.inputs, inputs, self.most)) / z
                chance = max(settles(m, limit, times, z, wider) for m, limit in open_ones)
                yield Offered(max(chance, HOPELESS) / self._costs(about), Turn(place, budget, about, left))

    def _wider(self, place: int, row: Judged) -> Iterator[Offered]:
        """A second look at what has no limit, at no more inputs than a standard audit has; its first was at few."""
        from assay.methods.uncertainty.sequences import ladder

        looks, enough = row.answer.looks, BUDGETS["standard"].samples
        if row.verdict != "no standard" or len(looks) != 1 or looks[0].grows != "inputs" or place in self.done:
            return
        assert enough is not None
        first, left = looks[0], self.left
        for inputs in ladder(first.inputs, self.most):
            budget = self._budget(_level(first.steps), inputs)
            about = self._about_again(place, first, budget)
            if first.inputs < inputs <= enough and about <= left:
                yield Offered(inputs / self._costs(about), Turn(place, budget, about, left))


def most_inputs(budget: Budget, there: int) -> int:
    """The most inputs that a question of an audit with a time limit has, of so many that there are."""
    return there if budget.inputs is None else min(there, budget.inputs)


def error_of(probe: str, search: int, first: int, inputs: int, most: int) -> float:
    """How often the interval of a look at so many inputs may be wrong, of a question that began with `first`.

    Over all looks that there may be, of all searches, the sum is at most 1 - CONFIDENCE.
    """
    from assay.methods.uncertainty.sequences import share_of_error

    searches = SEARCHES_FOR_INPUTS if EFFORTS.get(probe, OTHERWISE).of == "steps" else SEARCHES
    begun = HURRIED if first < min(FEWEST, most) else 1 - HURRIED
    return (1 - CONFIDENCE) * begun * searches[search] * share_of_error(first, most, inputs)


def quantile(error: float) -> float:
    """The standard deviations on either side of a normal value outside which it lies so often."""
    return LAW.inv_cdf(1 - error / 2)


def unsettled(row: Judged) -> Iterator[tuple[Measure, float]]:
    """The measures whose verdicts more inputs may settle, and their limits: not those that are in doubt."""
    assert row.answer.finding is not None
    for judgement in row.judgements:
        if judgement.verdict != "cannot tell" or judgement.standard is None:
            continue
        try:
            m = row.answer.finding.measure(judgement.standard.measure)
        except AssayError:
            continue
        limit = judgement.standard.limit
        if not m.n or m.value is None or m.low is None or m.high is None:
            continue
        if m.low <= limit <= m.high or says_nothing_of_others(m):
            yield m, limit


def settles(m: Measure, limit: float, times: float, z: float, wider: float) -> float:
    """The chance that so many times the inputs settle a verdict, where an interval of z standard deviations did not.

    With a flat prior, and the inputs that were seen among the new ones, the next value is N(value, s^2 (1 - 1/times))
    for a standard deviation s of this one; its interval shrinks by the root of `times`, and is `wider` by another
    share of the error.
    """
    value, low, high = m.value, m.low, m.high
    if times <= 1 or value is None or low is None or high is None:
        return 0.0
    if says_nothing_of_others(m):
        return UNLIMITED
    next_value = NormalDist(value, (high - low) / 2 / z * math.sqrt(1 - 1 / times))
    shrunk = wider / math.sqrt(times)
    above, below = limit + shrunk * (value - low), limit - shrunk * (high - value)
    return 1 - next_value.cdf(above) + next_value.cdf(below)


def _level(steps: int) -> str:
    return next((name for name in LEVELS if BUDGETS[name].steps >= steps), LEVELS[-1])


def searches(first: Look, steps: int) -> int:
    """Which search one with so many steps is: 0 for that of the first look, more for harder ones."""
    return max(0, LEVELS.index(_level(steps)) - LEVELS.index(_level(first.steps)))


def contention(spin: float = 0.02) -> float:
    """How many times longer this process waits than it works, where others want the same cores; at least 1."""
    begun, worked = time.monotonic(), time.process_time()
    while time.process_time() - worked < spin:
        pass
    return max(1.0, (time.monotonic() - begun) / spin)


def looked(answer: Answer, before: tuple[Look, ...], budget: Budget, drawn: str | None, at: float, most: int) -> Answer:
    """An answer of one look among several, with the intervals that allow for all that there may be.

    `drawn` says what would have given more inputs, as `Drawn.grows` does; None where that is not known. `most` are
    the inputs that a question may have.
    """
    if answer.finding is None:
        return answer
    assert budget.inputs is not None
    n = answer.finding.measures[0].n
    if drawn is None:  # where more were allowed and no more were taken, they never will be
        drawn = "" if before and before[-1].n == n and before[-1].inputs < budget.inputs else "inputs"
    grows: Grows = "inputs" if drawn == "inputs" else "steps" if drawn == "steps" else ""
    once = not before and not grows
    search, first = (searches(before[0], budget.steps), before[0].inputs) if before else (0, budget.inputs)
    error = error_of(answer.probe, search, first, budget.inputs, most)
    finding = answer.finding if once else over_looks(answer.finding, error)
    headline = finding.measures[0]
    look = Look(
        inputs=budget.inputs,
        steps=budget.steps,
        n=headline.n,
        value=headline.value,
        low=headline.low,
        high=headline.high,
        seconds=answer.seconds,
        at=at,
        grows=grows,
    )
    looks = (*before, look)
    says = finding.says if once or not SPANS.search(finding.says) else f"{finding.says} {OF_ONE_LOOK}"
    finding = dataclasses.replace(finding, says=says, views=(*finding.views, *_over_time(headline, looks)))
    return dataclasses.replace(answer, finding=finding, looks=looks)


def _over_time(headline: Measure, looks: tuple[Look, ...]) -> tuple[Curve, ...]:
    """Time against width, where there was more than one look."""
    seen = [(k.at, k.value, k.low, k.high) for k in looks]
    told = [(at, v, low, high) for at, v, low, high in seen if v is not None and low is not None and high is not None]
    if len(told) < 2:
        return ()
    x, y, low, high = (tuple(column) for column in zip(*told, strict=True))
    last = looks[-1]
    return (
        Curve(
            name="looks",
            title="What each look told, over the time of the audit",
            x_label="seconds since the audit began",
            y_label=headline.name,
            unit_y=headline.unit == "%" and min(low) >= 0 and max(high) <= 1,
            lines=(Line(label=headline.name, x=x, y=y, low=low, high=high),),
            says=f"{len(looks)} looks, the last at {last.n or last.inputs:,} inputs; each interval allows for all of "
            "them.",
        ),
    )


def over_looks(finding: Finding, error: float) -> Finding:
    """The finding with intervals that are wrong with a chance of at most `error`, the share of one look."""
    wider = [_over_looks(m, finding.samples, error) for m in finding.measures]
    pairs = list(zip(finding.measures, wider, strict=True))
    return dataclasses.replace(finding, measures=tuple(next(_short_of_promise(m, pairs), wide) for m, wide in pairs))


def _short_of_promise(m: Measure, pairs: Sequence[tuple[Measure, Measure]]) -> Iterator[Measure]:
    """The measure with an interval that follows from another's, where it says how far that is short of its promise.

    Such a one is cut off at 0. What was seen may lie below, so that its own width around 0 says too little.
    """
    for seen, wide in pairs:
        for promise in (beside.value for beside in seen.beside if beside.label == "promised"):
            at, least, most = (max(0.0, promise - (end or 0.0)) for end in (seen.value, seen.high, seen.low))
            if most and m.better == "lower" and m.n == seen.n and (m.value, m.low, m.high) == (at, least, most):
                low, high = (max(0.0, promise - (end or 0.0)) for end in (wide.high, wide.low))
                yield dataclasses.replace(
                    m, low=low, high=high, about=_told(m, f"the interval is that of {seen.name!r}")
                )


def _over_looks(m: Measure, samples: Table | None, error: float) -> Measure:
    from assay.methods.uncertainty.exact import exact
    from assay.methods.uncertainty.sequences import mean_interval

    if m.value is None or m.low is None or m.high is None:
        return m
    hits = None if not m.n else round(m.value * m.n)
    if hits is not None and 0 <= hits <= (m.n or 0) and _same((m.low, m.high), wilson(hits, m.n or 0)):
        low, high = (float(end) for end in exact(hits, m.n or 0, error))
        return dataclasses.replace(m, low=low, high=high, about=_told(m, "the interval holds however often one looks"))
    shares = _shares(m, samples)
    if shares is not None:
        low, high = mean_interval(shares, alpha=error)
        says = "the interval holds however often one looks, whatever the law"
        return dataclasses.replace(m, low=min(low, m.value), high=max(high, m.value), about=_told(m, says))
    if m.n and m.low == m.high == m.value and m.unit == "%" and 0 <= m.value <= 1:
        low, high = _all_equal(m.value, m.n, error)
        says = "all values are equal: the interval is that of how often another comes, however often one looks"
        return dataclasses.replace(m, low=low, high=high, about=_told(m, says))
    wider = quantile(error) / quantile(1 - CONFIDENCE)
    low, high = m.value - wider * max(0.0, m.value - m.low), m.value + wider * max(0.0, m.high - m.value)
    low, high = min(low, m.low), max(high, m.high)
    if m.unit == "%" and m.low >= 0 and m.high <= 1:
        low, high = max(0.0, low), min(1.0, high)
    says = f"the interval is {wider:.2f} times as wide as for one look, to allow for others"
    return dataclasses.replace(m, low=low, high=high, about=_told(m, says))


def _shares(m: Measure, samples: Table | None) -> NDArray[np.float64] | None:  # -> n
    """The values of which the measure is the mean, where they are known and lie between 0 and 1."""
    import numpy as np

    if m.unit != "%" or m.column is None or samples is None or m.column not in samples.columns:
        return None
    column = np.asarray(samples.columns[m.column])
    if column.ndim != 1 or column.dtype.kind not in "biuf" or len(column) != m.n:
        return None
    values = column.astype(np.float64)
    inside = bool(np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all())
    return values if inside and m.value is not None and abs(float(values.mean()) - m.value) < 1e-6 else None


def _all_equal(value: float, n: int, error: float) -> tuple[float, float]:
    """Where the mean of a quantity in [0, 1] may lie of which n inputs all had the same value.

    The first names the value, and the n - 1 others have it again: it then comes with a chance of at least L, that of
    n - 1 hits of n - 1. What comes else is between 0 and 1, so that the mean lies in [L value, L value + 1 - L],
    whatever the law.
    """
    from assay.methods.uncertainty.exact import exact

    often = float(exact(n - 1, n - 1, error)[0]) if n > 1 else 0.0
    return often * value, often * value + 1 - often


def _same(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return all(abs(a - b) < 1e-9 for a, b in zip(one, other, strict=True))


def _told(m: Measure, says: str) -> str:
    return f"{m.about}; {says}" if m.about else says


def in_words(seconds: float) -> str:
    """'40 s', '3 min', '1.5 h': about so long."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
