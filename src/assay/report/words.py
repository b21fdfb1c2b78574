"""How numbers, limits and budgets read, the same in every file that people read of an audit."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from assay.audit import Audit, Judged
from assay.finding import Measure
from assay.probe import Answer, spelled
from assay.standard import Standard

Outcome = Literal["pass", "fail", "cannot tell", "error", "not asked", "no standard"]
OUTCOMES: tuple[Outcome, ...] = ("pass", "fail", "cannot tell", "error", "not asked", "no standard")

NBSP = "\u00a0"
MINUS = "\u2212"
# What XML 1.0 does not allow, what HTML calls an error, halves of surrogate pairs, which do not encode as UTF-8, and
# what is not seen itself but moves, hides or turns round what stands beside it: no two names may look alike by it, and
# no line read otherwise than it is. Tab and line feed stay; whoever wants one line joins the words.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufff9-\ufffc\ufffe\uffff"
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """The same text with every character that no page, file or terminal should be given shown as U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def outcome(row: Judged) -> Outcome:
    """A row's verdict, where a question that broke is told apart from one that does not apply."""
    return "error" if row.answer.status == "failed" else row.verdict


def tally(audit: Audit) -> str:
    """'2 pass, 1 fails, 1 cannot tell, 0 not asked': the four words always, the other two where there are any."""
    seen = [outcome(row) for row in audit.rows]
    count = {word: seen.count(word) for word in OUTCOMES}
    parts = [
        f"{count['pass']} {'passes' if count['pass'] == 1 else 'pass'}",
        f"{count['fail']} {'fails' if count['fail'] == 1 else 'fail'}",
        f"{count['cannot tell']} cannot tell",
        f"{count['not asked']} not asked",
    ]
    if count["error"]:
        parts.append(f"{count['error']} ended in an error")
    if count["no standard"]:
        parts.append(f"{count['no standard']} without a standard")
    return ", ".join(parts)


def task(name: str, classes: int) -> str:
    """A task as people read it, and what it chooses from: 'image to image', 'detection, 3 classes'."""
    said = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    things = {"Labels": "label", "Control": "action", "Ranking": "answer", "Similarity": "answer"}.get(name, "class")
    if not classes:
        return said
    several = f"{things}{'es' if things.endswith('s') else 's'}"
    if name == "Labels":
        return f"several labels at once, of {classes:,}"
    return f"{said}, {classes:,} {things if classes == 1 else several}"


def _digits(value: float, unit: str, width: float | None) -> int:
    """Decimals to print: two figures of the interval's width; of a percentage one, and more next to 0 and 100."""
    if unit == "%":
        size = abs(value)
        return 1 if size == 0 or size >= 1 else next((d for d in (1, 2, 3) if 0 < round(100 * size, d) < 100), 4)
    if width is None or width <= 0:
        size = abs(value)
        return 0 if size == 0 or size >= 1000 else max(0, 2 - math.floor(math.log10(size)))
    return max(0, 1 - math.floor(math.log10(width)))


def _plain(value: float, unit: str, digits: int) -> str:
    if unit == "%":
        text = f"{100 * value:.0f}" if value in (0, 1) else f"{100 * value:.{digits}f}"
    else:
        text = f"{value:,.{digits}f}" if digits <= 6 else f"{value:.3g}"
    return text.replace("-", MINUS)


def _with_unit(text: str, unit: str) -> str:
    return f"{text}{NBSP}{unit}" if unit else text


def number(value: float | None, unit: str = "", width: float | None = None) -> str:
    """A number as people read it; `width`, the width of its interval, says how many digits mean something."""
    if value is None:
        return "not measured"
    return _with_unit(_plain(value, unit, _digits(value, unit, width)), unit)


def _width(m: Measure) -> float | None:
    return None if m.low is None or m.high is None else m.high - m.low


def measured(m: Measure) -> str:
    return number(m.value, m.unit, _width(m))


def interval(m: Measure) -> str:
    """'88.5 to 93.5 %', or nothing where there is none."""
    if m.low is None or m.high is None:
        return ""
    low, high = (_plain(v, m.unit, _digits(v, m.unit, _width(m))) for v in (m.low, m.high))
    return _with_unit(f"{low}{NBSP}to{NBSP}{high}", m.unit)


def in_full(m: Measure) -> str:
    """Value and interval in one line: '91.3 % (88.5 to 93.5 %)'."""
    between = interval(m)
    return f"{measured(m)} ({between})" if between else measured(m)


def limit(standard: Standard | None, unit: str) -> str:
    if standard is None:
        return ""
    bound = f"{standard.limit * (100 if unit == '%' else 1):.10g}".replace("-", MINUS)
    return f"at{NBSP}{'least' if standard.at_least is not None else 'most'}{NBSP}{_with_unit(bound, unit)}"


def difference(value: float | None, unit: str, low: float | None = None, high: float | None = None) -> str:
    """A signed difference; that of two percentages is in points."""
    if value is None:
        return ""
    width = high - low if low is not None and high is not None else None
    scale, unit_said, digits = (100, "points", 1) if unit == "%" else (1, unit, _digits(value, unit, width))

    def signed(v: float) -> str:
        text = f"{scale * v:+.{digits}f}" if digits <= 6 else f"{scale * v:+.3g}"
        return (text if float(text) else text[1:]).replace("-", MINUS)

    between = f" ({signed(low)}{NBSP}to{NBSP}{signed(high)})" if low is not None and high is not None else ""
    return _with_unit(signed(value), unit_said) + between


def duration(seconds: float) -> str:
    if seconds < 0.1:
        return f"under 0.1{NBSP}s"
    if seconds < 10:
        return f"{seconds:.1f}{NBSP}s"
    if seconds < 99.5:
        return f"{seconds:.0f}{NBSP}s"
    minutes = round(seconds / 60)
    return f"{minutes}{NBSP}min" if minutes < 100 else f"{minutes // 60}{NBSP}h {minutes % 60}{NBSP}min"


def taken(audit: Audit) -> str:
    """How long all questions took, and how much of that the model alone would have."""
    seconds = sum(row.answer.seconds for row in audit.rows)
    counted = [spent for row in audit.rows if (spent := row.answer.spent) is not None and spent.pace]
    told = f"{duration(seconds)} for all questions"
    if not counted or not seconds:
        return told
    passes, least = sum(s.passes for s in counted), sum(s.least for s in counted)
    if least > seconds:  # a search goes through a faster copy
        return f"{told}, where the model's {passes:,} passes alone would take {duration(least)}"
    return f"{told}, of which the model's {passes:,} passes alone would take {100 * least / seconds:.0f}{NBSP}%"


def spent(answer: Answer) -> str:
    """What of its time a question spent in the model; empty where that was not counted."""
    told = answer.spent
    if told is None or not told.passes or answer.seconds <= 0:
        return ""
    slopes = f", {told.slopes:,} of them with a gradient" if told.slopes else ""
    share, limit = told.least / answer.seconds, ""
    if told.pace:
        limit = f", {100 * share:.0f}{NBSP}% of the model's own limit"
        if share > 1:  # a search goes through a faster copy
            limit = f", {share:.1f} times as fast as the model's own"
    return f"{told.passes:,} passes{slopes}: {told.passes / answer.seconds:,.0f} a second{limit}"


def moment(when: str) -> str:
    """An ISO date as '2 May 2025, 14:03 UTC'; what is not one stays as it is."""
    try:
        then = datetime.fromisoformat(when)
    except ValueError:
        return when
    then = then.astimezone(UTC) if then.tzinfo else then
    zone = " UTC" if then.tzinfo else ""
    return f"{then.day} {then:%B %Y, %H:%M}{zone}"


def budget(told: Mapping[str, Any]) -> str:
    """What a budget allowed, in words."""

    def counted(n: int, thing: str) -> str:
        return f"{n:,} {thing}{'' if n == 1 else 's'}"

    if told.get("seconds"):
        most = f"at most {counted(told['inputs'], 'input')} per question; " if told.get("inputs") else ""
        goes_on = "more inputs and steps, round by round, until verdicts are settled or time is over"
        return f"{told.get('name')}: {most}{goes_on}"
    samples = told.get("samples")
    inputs = "every input" if samples is None else f"at most {counted(samples, 'input')}"
    dear = f", {told['dear']:,} where each is asked about dozens of times" if told.get("dear") else ""
    search = [counted(told[f"{thing}s"], thing) for thing in ("step", "restart") if f"{thing}s" in told]
    searched = f"; {' and '.join(search)} where a worst case is searched for" if search else ""
    bound = f", --inputs {told['inputs']}" if told.get("inputs") else ""
    return f"{told.get('name', 'unnamed')}{bound}: {inputs} per question{dear}{searched}"


def made_with(environment: Mapping[str, str], device: str) -> str:
    """Versions and machine: 'Python 3.11.9, Linux x86_64, 2 cores, device cpu, torch 2.6.0, code 9f86d081884c'."""
    said = {"python": "Python {}", "system": "{}", "cores": "{} cores", "code": "code {:.12}"}
    told = {**environment, "device": environment.get("device", device)}
    return ", ".join(said.get(k, f"{k} {{}}").format(v) for k, v in told.items())


def setting(value: Any) -> str:
    """A setting as the command line takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(setting(v) for v in value)
    return str(value)


def settings(told: Mapping[str, Any]) -> str:
    """Settings for the eye: floats to six figures, lists with room to break."""

    def short(value: Any) -> str:
        if isinstance(value, list | tuple):
            return " ".join(short(v) for v in value) or "none"
        return f"{value:.6g}" if isinstance(value, float) else setting(value)

    return ", ".join(f"{spelled(k)} = {short(v)}" for k, v in told.items())


def command(audit: Audit, answer: Answer) -> tuple[str, ...]:
    """The words of the line that asks this again: quoted for the shell, or Python where the audit was made there."""
    name = audit.budget.get("name", "quick")
    if not audit.source:
        chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in answer.settings.items()}
        with_settings = (
            f", standards=assay.standard.Standards(settings={{{answer.probe!r}: {chosen!r}}})" if chosen else ""
        )
        device = f", device={audit.device!r}" if audit.device != "cpu" else ""
        return (
            f"assay.audit(subject, probes=[{answer.probe!r}], budget={name!r}{_bound(audit)}, seed={audit.seed}"
            f"{device}{with_settings})",
        )
    words = ["assay", "ask", answer.probe, *audit.source, *_conditions(audit)]
    for key, value in answer.settings.items():
        words += ["--set", f"{spelled(key)}={setting(value)}"]
    return tuple(shlex.quote(word) for word in words)


def cure_command(audit: Audit, remedy: str, probes: Sequence[str]) -> tuple[str, ...]:
    """The words of the line that applies a remedy and asks these questions before and after, quoted likewise.

    A cure has no time limit: after an audit with one it looks quickly.
    """
    if audit.budget.get("seconds"):
        audit = dataclasses.replace(audit, budget={**audit.budget, "name": "quick"})
    if not audit.source:
        name, device = audit.budget.get("name", "quick"), f", device={audit.device!r}" if audit.device != "cpu" else ""
        return (
            f"assay.jobs.cure.cure({remedy!r}, subject, probes={list(probes)!r}, budget={name!r}{_bound(audit)}, "
            f"seed={audit.seed}{device})",
        )
    asked = [word for probe in probes for word in ("--probe", probe)]
    return tuple(shlex.quote(word) for word in ("assay", "cure", remedy, *audit.source, *asked, *_conditions(audit)))


def _bound(audit: Audit) -> str:
    return f", inputs={audit.budget['inputs']}" if audit.budget.get("inputs") else ""


def _conditions(audit: Audit) -> list[str]:
    device = ["--device", audit.device] if audit.device != "cpu" else []
    bound = ["--inputs", str(audit.budget["inputs"])] if audit.budget.get("inputs") else []
    return ["--budget", str(audit.budget.get("name", "quick")), *bound, "--seed", str(audit.seed), *device]


def cost(training: float | None, inference: float | None) -> str:
    """What a remedy asks for, as multiples of the plain model's training and of one of its answers."""
    if training is None or inference is None:
        return "not stated"
    trained = "no training" if training == 0 else f"{training:.2g} of the plain training"
    if training >= 1:
        trained = "as long a training as the plain one" if training == 1 else f"{training:.3g} times the plain training"
    answers = (
        "an answer takes as long as before" if inference == 1 else f"an answer takes {inference:.3g} times as long"
    )
    return f"{trained}, and {answers}"
