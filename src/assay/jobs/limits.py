"""Limits of `assay ship`: how much worse the smaller model may be, and whether it is, by intervals of differences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from assay import shelf
from assay.audit import Audit, Change
from assay.errors import AssayError
from assay.finding import Alarm, Finding, Measure
from assay.probes.deployed.what_did_it_forget import CHURN, GAINED, NO_HARM, SHARES, score_gained
from assay.standard import Standard, judge

Outcome = Literal["within", "exceeded", "cannot tell"]
FORGET = "what-did-it-forget"
FINER: Mapping[str, str] = {"accuracy": GAINED}
"""Of a question, what FORGET measures of the same, paired on more inputs."""
WRITTEN = "write for example accuracy=0.5pt (points of a share), or of what is no share the number alone, in its unit"


@dataclass(frozen=True)
class Limit:
    """The most harm that is borne: of a question by its name (or how that begins), or of one of its measures."""

    of: str
    most: float
    points: bool

    def __str__(self) -> str:
        return f"{self.of}={100 * self.most:g}pt" if self.points else f"{self.of}={self.most:g}"


@dataclass(frozen=True, kw_only=True)
class Held:
    """A limit against what was found: `harm` is how much worse it became, with its interval."""

    limit: Limit
    probe: str
    measure: str
    harm: Measure | None
    outcome: Outcome
    why: str
    more: int | None = None


def parsed(words: Sequence[str]) -> tuple[Limit, ...]:
    """Limits as they are typed, with commas between."""
    found: dict[str, Limit] = {}
    for word in (part.strip() for each in words for part in each.split(",")):
        of, equals, amount = (part.strip() for part in word.partition("="))
        if not equals or not of or not amount:
            raise AssayError(f"--limit {word!r} is not NAME=AMOUNT; {WRITTEN}.")
        read = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(\S*)", amount)
        if read is None:
            raise AssayError(f"--limit {word!r} has no amount of 0 or more; {WRITTEN}.")
        number, unit = float(read[1]), read[2]
        if unit not in ("", "pt"):
            raise AssayError(f"--limit {word!r} has the unit {unit!r}, which is none; {WRITTEN}.")
        if of in found:
            raise AssayError(f"--limit gives {of!r} twice; give it once.")
        found[of] = Limit(of, number / 100 if unit else number, bool(unit))
    if not found:
        raise AssayError(f"--limit says nothing; {WRITTEN}.")
    return tuple(found.values())


def probe_of(limit: Limit, asked: Sequence[str]) -> str | None:
    """The question that a limit names, None where it can only be one of its measures; one that is not asked is an
    error. Where FORGET is asked it measures what is FINER, too."""
    measured = [*asked, *(name for name in FINER if FORGET in asked and name not in asked)]
    for names, there in ((measured, True), (shelf.names("probes"), False)):
        fits = [limit.of] if limit.of in names else [name for name in names if name.startswith(limit.of)]
        if len(fits) > 1:
            raise AssayError(f"--limit {limit} could be of {' or '.join(fits)}; write which.")
        if fits and not there:
            raise AssayError(
                f"--limit {limit} is on {fits[0]}, which is not asked; add --probe {fits[0]}, or leave the limit out."
            )
        if fits:
            return fits[0]
    return None


def refuse_unasked(limits: Sequence[Limit], asked: Sequence[str]) -> None:
    """Before anything runs: refuse a limit on a question that is not asked, and one without points on what FORGET has
    in shares by its name."""
    for limit in limits:
        probe = probe_of(limit, asked)
        share = _paired(probe) or next((name for name in _fits(limit.of, SHARES, begins=False) if not probe), None)
        if share is not None:
            _refuse_unit(limit, share, "%")


def refuse_unknown(limits: Sequence[Limit], before: Audit, headline: str) -> None:
    """Before anything is made, by the audit before: refuse a limit on what nobody measures, and one in a unit that is
    not its own. FORGET, which only the audit after has, measures SHARES and what became of the `headline`."""
    asked = [row.answer.probe for row in before.rows]
    found = {row.answer.probe: row.answer.finding.measures for row in before.rows if row.answer.finding}
    known = {m.name: m.unit for each in found.values() for m in each if m.name not in NO_HARM}
    known |= {score_gained(headline): ""} | dict.fromkeys(SHARES, "%")
    for limit in limits:
        probe = probe_of(limit, asked)
        paired = _paired(probe)
        if paired is not None:
            fits = [paired]
        else:
            fits = _fits(limit.of, [*known]) if probe is None else [m.name for m in found.get(probe, ())][:1]
        _refuse_several(limit, fits)
        for name in fits:
            _refuse_unit(limit, name, known[name])
            if probe is None and name not in SHARES:
                each = [of for of, measures in found.items() if name in [m.name for m in measures]]
                _refuse_several(limit, [f"{name} ({of})" for of in each])
        if probe is None and not fits:
            some = ", ".join([*asked, *SHARES][:8])
            raise AssayError(f"--limit {limit} is on a question that is not asked; name one that is, such as {some}.")


def _paired(probe: str | None) -> str | None:
    """What FORGET measures where a limit is on this question."""
    return CHURN if probe == FORGET else FINER.get(probe or "")


def _refuse_several(limit: Limit, names: Sequence[str]) -> None:
    if len(names) > 1:
        raise AssayError(f"--limit {limit} could be on {' or '.join(names[:4])}; write which.")


def _refuse_unit(limit: Limit, name: str, unit: str) -> None:
    """Points are of shares, and a share is limited in points: 1 for a whole share would bear any loss."""
    if limit.points and unit != "%":
        own = f"in {unit}" if unit else "a plain number"
        raise AssayError(f"--limit {limit} is in points of a share, and {name} is {own}; write the number alone.")
    if unit == "%" and not limit.points:
        raise AssayError(
            f"--limit {limit} has no unit, and {name} is a share; write {limit.of}={limit.most:g}pt for so many points."
        )


def held(limit: Limit, changes: Sequence[Change], before: Audit, after: Audit) -> Held:
    """The limit against the paired difference; of what only pairs can tell, against the measure itself."""
    rows = {row.answer.probe: row.answer for row in after.rows}
    probe = probe_of(limit, tuple(rows))
    forgot = rows[FORGET].finding if FORGET in rows else None
    name = FINER.get(probe or "")
    if name is not None and forgot is not None:
        return _judged(limit, FORGET, _of_itself(forgot.measure(name)), forgot.alarms)
    paired = [m.name for m in forgot.measures if m.name not in NO_HARM] if forgot is not None else []
    wanted = paired[:1] if probe == FORGET else _fits(limit.of, paired) if probe is None else []
    if forgot is not None and wanted:
        _refuse_several(limit, wanted)
        return _judged(limit, FORGET, _of_itself(forgot.measure(wanted[0])), forgot.alarms)
    mine = [c for c in changes if (c.probe == probe if probe is not None else True)]
    if probe is None:
        names = _fits(limit.of, [c.measure for c in mine if c.measure not in NO_HARM])
        mine = [c for c in mine if c.measure in names]
        _refuse_several(limit, list(dict.fromkeys(f"{c.measure} ({c.probe})" for c in mine)))
    if not mine:
        where = probe or limit.of
        row = rows.get(probe or "", rows.get(FORGET))
        why = row.why if row is not None and row.finding is None else "no measure of it is in both"
        return Held(limit=limit, probe=where, measure="", harm=None, outcome="cannot tell", why=f"not compared: {why}")
    change = mine[0]
    alarms = tuple(
        alarm
        for audit in (before, after)
        for row in audit.rows
        if row.answer.probe == change.probe and row.answer.finding
        for alarm in row.answer.finding.alarms
    )
    if "not the same question" in change.why or change.difference is None or change.low is None or change.high is None:
        return Held(
            limit=limit, probe=change.probe, measure=change.measure, harm=None, outcome="cannot tell", why=change.why
        )
    value, low, high = _harm(change.better, change.difference, change.low, change.high)
    harm = Measure(
        name=change.measure, value=value, low=low, high=high, n=change.n, unit=change.unit, better="lower",
        about=change.why,
    )  # fmt: skip
    return _judged(limit, change.probe, harm, alarms)


def _harm(better: str, value: float, low: float, high: float) -> tuple[float, float, float]:
    """How much worse, of a difference; where no way is better, how far either way."""
    if better == "higher":
        return -value, -high, -low
    if better == "lower":
        return value, low, high
    return abs(value), max(0.0, low, -high), max(abs(low), abs(high))


def _of_itself(measure: Measure) -> Measure:
    """The harm of a measure that is a difference already, or counts what changed."""
    if measure.value is None:
        return measure
    low, high = (measure.value if end is None else end for end in (measure.low, measure.high))
    value, low, high = _harm(measure.better, measure.value, low, high)
    return Measure(
        name=measure.name, value=value, low=low, high=high, n=measure.n, unit=measure.unit, better="lower",
        about=measure.about,
    )  # fmt: skip


def _judged(limit: Limit, probe: str, harm: Measure, alarms: Sequence[Alarm]) -> Held:
    _refuse_unit(limit, harm.name, harm.unit)
    doubts = tuple(Alarm(a.says, (harm.name,)) for a in alarms if a.about(harm.name))
    blank = () if harm.value is not None else (Alarm("It was not measured.", (harm.name,)),)
    said = judge(Standard(at_most=limit.most), Finding(says="", measures=(harm,), alarms=(*doubts, *blank)))
    outcomes: dict[str, Outcome] = {"pass": "within", "fail": "exceeded"}
    return Held(
        limit=limit,
        probe=probe,
        measure=harm.name,
        harm=harm,
        outcome=outcomes.get(said.verdict, "cannot tell"),
        why=said.why.replace(" 1 %", " 1 point").replace(" %", " points") if harm.unit == "%" else said.why,
        more=said.more,
    )


def _fits(word: str, names: Sequence[str], *, begins: bool = True) -> list[str]:
    """Names of measures that a word stands for: the same, or how one `begins`; hyphens are spaces."""
    wanted = word.replace("-", " ").lower()
    exact = [name for name in dict.fromkeys(names) if name.lower() in (wanted, word.lower())]
    return exact or [name for name in dict.fromkeys(names) if begins and name.lower().startswith(wanted)]
