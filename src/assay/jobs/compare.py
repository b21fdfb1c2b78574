"""Compare two audits, measure by measure: paired where the inputs are the same. Of several trainings, their mean.

Paired, the difference is the mean of the differences of single inputs, so that what the two share (hard inputs are hard
for both) cancels. Of right-or-wrong columns the interval is the adjusted Wald interval for paired proportions, of all
others the bootstrap's.

Source: Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired
data", Journal of Educational and Behavioral Statistics 37(4), 2012. A percentile bootstrap calls four changed answers
in five hundred, all for the better, a clear gain; McNemar's exact test (p = 0.125) and this interval do not.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.audit import Audit, Change, Direction, Judged
from assay.finding import CONFIDENCE, Better, Measure, Table, paired_difference
from assay.report import words
from assay.report.diff import render_diff

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST_PAIRS = 10
"""With fewer inputs in common no interval of a paired difference means anything."""

FEWEST_TRAININGS = 3
"""Two say nothing of how far a third may lie: Student's quantile for them is 12.7."""


def page(before: Audit, after: Audit) -> str:
    """Both audits side by side, with what changed."""
    return render_diff(before, after, compare(before, after))


def compare(before: Audit, after: Audit) -> tuple[Change, ...]:
    """Every measure that both audits have, in the order of the second."""
    rows = {row.answer.probe: row for row in before.rows}
    changes = []
    for new in after.rows:
        old = rows.get(new.answer.probe)
        if old is None or old.answer.finding is None or new.answer.finding is None:
            continue
        measures = {m.name: m for m in old.answer.finding.measures}
        changes += [
            _change(before, after, old, new, measures[m.name], m)
            for m in new.answer.finding.measures
            if m.name in measures
        ]
    return tuple(changes)


def _change(before: Audit, after: Audit, old: Judged, new: Judged, was: Measure, now: Measure) -> Change:
    pairs = _pairs(before, after, old, new, was, now)
    paired = not isinstance(pairs, str)
    difference = low = high = None
    n = None
    if isinstance(pairs, str):
        why = f"not paired: {pairs}"
        if was.value is not None and now.value is not None:
            difference = now.value - was.value
            if was.low is not None and was.high is not None and now.low is not None and now.high is not None:
                # Half-widths in quadrature, each side with the half that it can move by.
                low = difference - math.hypot(now.value - now.low, was.high - was.value)
                high = difference + math.hypot(now.high - now.value, was.value - was.low)
                why += "; the interval joins those of the two, in quadrature"
            else:
                why += "; without an interval on both sides the difference has none"
    else:
        a, b = pairs  # n, n
        n = len(a)
        difference, low, high = paired_difference(a, b)
        why = f"paired on {n:,} inputs"
        if (was.n, now.n) not in ((n, n), (None, None)):
            why += f", those that both asked about ({was.n or 0:,} before, {now.n or 0:,} after)"
    verdict = _verdict(now.better, low, high)
    other = _settings(old.answer.settings, new.answer.settings)
    if other or was.better != now.better or was.unit != now.unit:
        verdict = "cannot tell"
        why = f"it was not the same question: {other or 'the measure changed its meaning'}; {why}"
    return Change(
        probe=new.answer.probe,
        question=new.answer.question,
        measure=now.name,
        unit=now.unit,
        better=now.better,
        before=was,
        after=now,
        difference=difference,
        low=low,
        high=high,
        paired=paired,
        n=n,
        verdict=verdict,
        why=why,
    )


def over_trainings(each: Sequence[Sequence[Change]]) -> tuple[Change, ...]:
    r"""What `compare` found in each of K trainings, as one: the mean, with an interval over trainings and inputs.

        low = d - sqrt( (mean_k (d_k - low_k))^2 + (t s / sqrt(K))^2 ),   high likewise

    with d_k the difference in training k and low_k the end of its interval over inputs, d and s mean and standard
    deviation of the d_k, and t Student's quantile for K - 1. All trainings answer the same inputs, so that what inputs
    vary by does not shrink with their number. A verdict asks beside that all of them agree in direction.

    Trainings are not resampled: three that do nothing agree in direction every fourth time, and then each resample of
    them does.
    """
    if len(each) == 1:
        return tuple(each[0])
    found = [{(c.probe, c.measure): c for c in changes} for changes in each]
    return tuple(_joined([one[key] for one in found]) for key in found[0] if all(key in one for one in found))


def _joined(each: Sequence[Change]) -> Change:
    """One measure's changes, one of each training."""
    from scipy.special import stdtrit as student

    first = each[0]
    seen = [c.difference for c in each if c.difference is not None]
    ends = [(c.low, c.high) for c in each if c.low is not None and c.high is not None]
    difference = statistics.fmean(seen) if len(seen) == len(each) else None
    low = high = None
    if difference is not None and len(ends) == len(each):
        spread = float(student(len(each) - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(seen) / math.sqrt(len(each))
        low = difference - math.hypot(difference - statistics.fmean(low for low, _ in ends), spread)
        high = difference + math.hypot(statistics.fmean(high for _, high in ends) - difference, spread)
    verdict = _verdict(first.better, low, high)
    told = ", ".join(words.difference(c.difference, c.unit) or "not measured" for c in each)
    why = f"{first.why}; the mean of {len(each)} trainings ({told})"
    if any(c.verdict == "cannot tell" for c in each):
        verdict = "cannot tell"
    elif verdict != "no clear change" and min(seen) <= 0 <= max(seen):
        verdict, why = "cannot tell", f"{why}, which do not agree"
    return dataclasses.replace(
        first,
        before=_mean([c.before for c in each]),
        after=_mean([c.after for c in each]),
        difference=difference,
        low=low,
        high=high,
        paired=all(c.paired for c in each),
        verdict=verdict,
        why=why,
    )


def _mean(each: Sequence[Measure]) -> Measure:
    """Of all trainings, from the lowest end of their intervals to the highest."""
    values = [m.value for m in each if m.value is not None]
    ends = [(m.low, m.high) for m in each if m.low is not None and m.high is not None]
    whole = len(ends) == len(each)
    return dataclasses.replace(
        each[0],
        value=statistics.fmean(values) if len(values) == len(each) else None,
        low=min(low for low, _ in ends) if whole else None,
        high=max(high for _, high in ends) if whole else None,
    )


def _pairs(
    before: Audit, after: Audit, old: Judged, new: Judged, was: Measure, now: Measure
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | str:  # n, n; or why there are none
    """The column of both, on the inputs that both asked about, in the same order."""
    import numpy as np

    if was.value is None or now.value is None:
        return f"it was not measured {'before' if was.value is None else 'after'}"
    if was.column is None or was.column != now.column:
        return "it is no mean over inputs"
    assert old.answer.finding is not None  # compare saw to it
    assert new.answer.finding is not None
    tables = old.answer.finding.samples, new.answer.finding.samples
    if tables[0] is None or tables[1] is None:
        return f"the table of inputs {'before' if tables[0] is None else 'after'} is not at hand"
    if tables[0].split != tables[1].split:
        return f"the inputs are from {tables[0].split!r} before and {tables[1].split!r} after"
    split = tables[0].split
    prints = before.subject.data.get(split), after.subject.data.get(split)
    if prints[0] is None or prints[0] != prints[1]:
        return f"the data {split!r} are not the same"
    sides = [_column(table, was.column) for table in (tables[0], tables[1])]
    if sides[0] is None or sides[1] is None:
        return f"the table has no numbers in {was.column!r}"
    (i, a), (j, b) = sides[0], sides[1]
    if len(np.unique(i)) < len(i) or len(np.unique(j)) < len(j):
        return "an input stands in the table more than once"
    common, at, bt = np.intersect1d(i, j, assume_unique=True, return_indices=True)
    if len(common) < FEWEST_PAIRS:
        return f"only {len(common)} inputs were asked about in both"
    return a[at], b[bt]


def _column(table: Table, name: str) -> tuple[NDArray[Any], NDArray[np.float64]] | None:  # n, n
    """Places and values of a column, without the inputs that have none."""
    import numpy as np

    if name not in table.columns:
        return None
    try:
        values = np.asarray(table.columns[name], dtype=np.float64)
    except (TypeError, ValueError):
        return None
    known = np.isfinite(values)
    return np.asarray(table.columns["index"])[known], values[known]


def _verdict(better: Better, low: float | None, high: float | None) -> Direction:
    if low is None or high is None:
        return "cannot tell"
    if low <= 0 <= high:
        return "no clear change"
    if better == "neither":
        return "changed"
    return "better" if (low > 0) == (better == "higher") else "worse"


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which settings differ, in words."""
    differ = [
        f"{key} was {words.setting(old[key]) if key in old else 'not there'}, then "
        f"{words.setting(new[key]) if key in new else 'not there'}"
        for key in sorted({*old, *new})
        if (key in old) != (key in new) or words.setting(old[key]) != words.setting(new[key])
    ]
    return ", ".join(differ)
