"""The page of two audits compared, and its rows in a terminal. Of a cure, with its control between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.audit import Audit, Change
from assay.finding import View
from assay.report import words
from assay.store import slug
from assay.tuning import unequal

DIFF_COLUMNS = ("probe", "measure", "before", "after", "difference", "verdict", "how")
CONTROL_COLUMNS = ("probe", "measure", "before", "control", *DIFF_COLUMNS[3:])
SIDES = ("Before", "After")


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
    if effort := unequal(before.tuned, after.tuned):
        told.append(effort)
    return tuple(told)


def _versions(audit: Audit) -> str:
    """The versions of Assay that its answers were found with, which are not that of the audit where it resumed."""
    found = {row.answer.environment.get("assay") for row in audit.rows if row.answer.finding} - {None}
    return " and ".join(sorted(map(str, found))) or str(audit.environment.get("assay"))


def outcome(
    remedy: str,
    changes: Sequence[Change],
    since_before: Sequence[Change] = (),
    *,
    undertrained: str = "",
    trainings: int | None = None,
) -> str:
    """What a remedy did, in a sentence: one that helps nothing, or harms, is told so.

    `since_before` are the changes since before where `changes` are those from a control, and `undertrained` says how
    far that control fell. `trainings` are how often it was trained, None of what is not: one alone cannot tell what the
    remedy did from what another seed would.
    """
    if not changes:
        return f"What {remedy} did cannot be told: no measure is in both audits."
    (better, worse), (gained, lost) = (_ways(changes), _ways(since_before))
    fell = [f"Clearly worse than before: {_some(lost)}."] if lost else []
    if undertrained:
        rose = [f"Clearly better than before: {_some(gained)}."] if gained else []
        return " ".join([f"What {remedy} did cannot be told: the control undertrains ({undertrained}).", *rose, *fell])
    than = " than the control" if since_before else ""
    told = [f"{way}: {_some(names)}." for way, names in (("Better", better), ("Worse", worse)) if names]
    if not (better and worse):
        missing = [way for way, names in (("better", better), ("worse", worse)) if not names]
        told.append(f"Nothing is clearly {' or clearly '.join(missing)}{than}.")
    if trainings == 1:
        came = " and ".join(way for way, names in (("better", better), ("worse", worse)) if names) or "no different"
        did = (
            f"{remedy} came out {came} in one training{' each' if since_before else ''}; another seed may turn this "
            "round, and --trainings 3 tells."
        )
    else:
        did = "helps and harms" if better and worse else "helps" if better else "does not help here"
        did += ": it makes things worse" if worse and not better else ""
        did = f"{remedy} {did}{f', in the mean of {trainings} trainings' if trainings else ''}."
    return " ".join([did, *told, *fell])


def _ways(changes: Sequence[Change]) -> tuple[list[str], list[str]]:
    """What is clearly better, and what clearly worse."""
    better, worse = ([f"{c.measure} ({c.probe})" for c in changes if c.verdict == way] for way in ("better", "worse"))
    return better, worse


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
    before: Audit,
    after: Audit,
    changes: Sequence[Change],
    *,
    control: Audit | None = None,
    since_before: Sequence[Change] = (),
    price: str = "",
    notes: Sequence[str] = (),
    views: Sequence[View] = (),
    template: str = "diff.html",
    first: Mapping[str, Any] | None = None,
) -> str:
    """A page like the report, with both audits side by side; of a cure, with `control`, `price`, `notes` and `views`.

    With a control the changes are those from it to the audit after, and those since before stand under them. Another
    `template` may put more before it, with what is in `first`.
    """
    from assay.report.page import colophon, drawings, drawn_of, environment, pictured, says

    audits = (before, after) if control is None else (before, control, after)
    called = control.subject.name.rpartition("+")[2].replace("-", " ") if control else ""  # as its remedy is
    labels = SIDES if control is None else ("Before", called.capitalize(), "After")
    since = {(c.probe, c.measure): c for c in since_before} if control else {}
    rows = [{row.answer.probe: row for row in each.rows} for each in audits]
    sections = []
    for probe in [*rows[-1], *(p for p in rows[0] if p not in rows[-1])]:
        sides = [each.get(probe) for each in rows]
        figures = [
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
                "twins": [[d[name] for d in figures] for name in figures[-1] if all(name in d for d in figures)],
                "alarms": [side.answer.finding.alarms if side and side.answer.finding else () for side in sides],
            }
        )
    return (
        environment()
        .get_template(template)
        .render(
            audits=audits,
            labels=labels,
            control=called,
            changes=changes,
            counted=counted(changes),
            tallies=[words.tally(each) for each in audits],
            sections=sections,
            cautions=cautions(before, after),
            colophons=[list(colophon(each)) for each in audits],
            difference=words.difference,
            price=price,
            notes=notes,
            drawings=drawn_of(views, "cure"),
            galleries=pictured(views),
            **(first or {}),
        )
    )
