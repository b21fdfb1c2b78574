"""Two audits compared, measure by measure: paired where the inputs are the same. Of a cure, with its control between.

Paired, the difference is the mean of the differences of single inputs, so that what the two share (hard inputs are hard
for both) cancels. Of right-or-wrong columns the interval is the adjusted Wald interval for paired proportions, of all
others the bootstrap's.

Source: Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired
data", Journal of Educational and Behavioral Statistics 37(4), 2012. A percentile bootstrap calls four changed answers
in five hundred, all for the better, a clear gain; McNemar's exact test (p = 0.125) and this interval do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

from assay.audit import Audit, Judged
from assay.finding import CONFIDENCE, Better, Measure, Table, bootstrap
from assay.report import words
from assay.store import slug

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Direction = Literal["better", "worse", "changed", "no clear change", "cannot tell"]
FEWEST_PAIRS = 10
"""With fewer inputs in common no interval of a paired difference means anything."""
DIFF_COLUMNS = ("probe", "measure", "before", "after", "difference", "verdict", "how")
CONTROL_COLUMNS = ("probe", "measure", "before", "plain retraining", *DIFF_COLUMNS[3:])
SIDES = ("Before", "After")
THREE_SIDES = ("Before", "Plain retraining", "After")
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Change:
    """One measure in two audits. `difference` is after minus before; `n` counts the pairs, where there are any."""

    probe: str
    question: str
    measure: str
    unit: str
    better: Better
    before: Measure
    after: Measure
    difference: float | None
    low: float | None
    high: float | None
    paired: bool
    n: int | None
    verdict: Direction
    why: str


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


def cautions(before: Audit, after: Audit) -> tuple[str, ...]:
    """What keeps the two audits as a whole from being the same questions."""
    told = []
    search = [(a.budget.get("steps"), a.budget.get("restarts")) for a in (before, after)]
    if search[0] != search[1]:
        told.append(
            f"The budgets differ: {words.budget(before.budget)}, then {words.budget(after.budget)}. A harder search "
            f"finds worse, so a worst case may have moved without the subject."
        )
    versions = [_versions(a) for a in (before, after)]
    if versions[0] != versions[1]:
        told.append(f"The audits were made with Assay {versions[0]} and {versions[1]}; a method may have changed.")
    if before.device != after.device:
        told.append(f"One audit ran on {before.device}, the other on {after.device}; rounding differs.")
    return tuple(told)


def _versions(audit: Audit) -> str:
    """The versions of Assay that its answers were found with, which are not that of the audit where it resumed."""
    found = {row.answer.environment.get("assay") for row in audit.rows if row.answer.finding} - {None}
    return " and ".join(sorted(map(str, found))) or str(audit.environment.get("assay"))


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
        if was.n != n or now.n != n:
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


def paired_difference(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float, float]:  # n, n
    """Mean of b - a with its interval."""
    import numpy as np

    gain, n = b - a, len(a)
    if np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        up, down = (float((gain == side).sum() + 1) / (n + 2) for side in (1, -1))
        half = _Z * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
        low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    else:
        low, high = bootstrap(lambda counts: counts @ gain / n, n, seed=_SEED)
    return float(gain.mean()), low, high


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


def outcome(remedy: str, changes: Sequence[Change]) -> str:
    """What a remedy did, in a sentence: one that helps nothing, or harms, is told so."""
    better, worse = ([f"{c.measure} ({c.probe})" for c in changes if c.verdict == way] for way in ("better", "worse"))
    if not changes:
        return f"What {remedy} did cannot be told: no measure is in both audits."
    if better and worse:
        return f"{remedy} helps and harms. Better: {_some(better)}. Worse: {_some(worse)}."
    if better:
        return f"{remedy} helps. Better: {_some(better)}. Nothing is clearly worse."
    if worse:
        return f"{remedy} does not help here: it makes things worse. Worse: {_some(worse)}. Nothing is clearly better."
    return f"{remedy} does not help here: nothing is clearly better, and nothing clearly worse."


def _some(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def diff_text(changes: Sequence[Change], before: Sequence[Change] = ()) -> list[tuple[str, ...]]:
    """Rows for a terminal, one string per column of `DIFF_COLUMNS`.

    With `before`, the changes since before of a cure whose `changes` are those from its control: `CONTROL_COLUMNS`.
    """
    if before:
        since = {(c.probe, c.measure): c for c in before}
        first = [since.get((c.probe, c.measure)) for c in changes]
        return [
            (*row[:2], words.in_full(was.before) if was else "not asked", *row[2:])
            for row, was in zip(diff_text(changes), first, strict=True)
        ]
    return [
        (
            words.printable(c.probe),
            words.printable(c.measure),
            words.in_full(c.before),
            words.in_full(c.after),
            words.difference(c.difference, c.unit, c.low, c.high),
            c.verdict,
            words.printable(c.why),
        )
        for c in changes
    ]


def counted(changes: Sequence[Change]) -> str:
    """'2 better, 1 worse, 3 without a clear change, 0 cannot tell'."""
    seen = [c.verdict for c in changes]
    parts = [
        f"{seen.count('better')} better",
        f"{seen.count('worse')} worse",
        f"{seen.count('no clear change')} without a clear change",
        f"{seen.count('cannot tell')} cannot tell",
    ]
    if "changed" in seen:
        parts.append(f"{seen.count('changed')} changed")
    return ", ".join(parts)


def render_diff(
    before: Audit, after: Audit, *, control: Audit | None = None, price: str = "", notes: Sequence[str] = ()
) -> str:
    """A page like the report, with both audits side by side; of a cure, with its `control`, `price` and `notes`.

    With a control the changes are those from it to the audit after, and those since before stand under them.
    """
    from assay.report.page import colophon, drawings, environment, says

    audits = (before, after) if control is None else (before, control, after)
    labels = SIDES if control is None else THREE_SIDES
    changes = compare(control or before, after)
    since = {(c.probe, c.measure): c for c in compare(before, after)} if control else {}
    rows = [{row.answer.probe: row for row in each.rows} for each in audits]
    sections = []
    for probe in [*rows[-1], *(p for p in rows[0] if p not in rows[-1])]:
        sides = [each.get(probe) for each in rows]
        drawn = [
            {d.name: d for d in drawings(side, slug(label))} if side else {}
            for side, label in zip(sides, labels, strict=True)
        ]
        sections.append(
            {
                "id": slug(probe),
                "question": next(s.answer.question for s in reversed(sides) if s),
                "outcomes": [words.outcome(side) if side else "not asked" for side in sides],
                "says": [says(side) if side else "This audit did not ask." for side in sides],
                "changes": [(c, since.get((c.probe, c.measure))) for c in changes if c.probe == probe],
                "twins": [[d[name] for d in drawn] for name in drawn[-1] if all(name in d for d in drawn)],
                "alarms": [side.answer.finding.alarms if side and side.answer.finding else () for side in sides],
            }
        )
    return (
        environment()
        .get_template("diff.html")
        .render(
            audits=audits,
            labels=labels,
            controlled=control is not None,
            changes=changes,
            counted=counted(changes),
            tallies=[words.tally(each) for each in audits],
            sections=sections,
            cautions=cautions(before, after),
            colophons=[list(colophon(each)) for each in audits],
            difference=words.difference,
            price=price,
            notes=notes,
        )
    )
