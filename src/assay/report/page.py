"""The report: one HTML page that stands alone, from disk, and asks nobody for anything.

It is whole without scripts. Its one script filters what is shown by the words that are typed; the page's policy lets no
other run, by its hash.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.audit import Audit, Described, Judged
from assay.finding import Alarm, Gallery, Measure, Panel, View, share
from assay.probe import OTHER, THEMES, Answer
from assay.report import words
from assay.report.figures import draw
from assay.report.sensitivity import sensitivity
from assay.report.what_next import what_next
from assay.standard import Judgement
from assay.store import slug
from assay.store.answers import witnesses_kept

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_SAID = {
    "pass": "passes",
    "fail": "fails",
    "cannot tell": "cannot be told",
    "not asked": "was not asked",
    "no standard": "has no standard",
}
MOST_MEASURES = 24
"""More than these are folded away in the page."""
MOST_PASSES = 12
"""Where more questions pass or have no limit, the table of them is folded away."""
TEMPLATES = Path(__file__).parent / "templates"


def render(audit: Audit, drawn: Mapping[str, Sequence[Drawing]] | None = None) -> str:
    """The whole report of an audit, as text; `drawn` are its drawings per probe, where somebody has made them."""
    from markupsafe import Markup

    drawn = drawn if drawn is not None else {row.answer.probe: drawings(row) for row in audit.rows}
    told = [row for row in audit.rows if words.outcome(row) != "not asked"]
    sections = [_section(audit, row, tuple(drawn[row.answer.probe])) for row in told]
    script = (TEMPLATES / "search.js").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("audit.html")
        .render(
            audit=audit,
            facts=[*facts(audit.subject), *((Fact("Tuning effort", audit.tuned.says),) if audit.tuned else ())],
            tally=words.tally(audit),
            summaries=summaries(sections),
            themes=themes(sections),
            folded=not_asked(audit),
            nexts=what_next(audit),
            footer=list(colophon(audit)),
            sensitivity=sensitivity(audit.rows),
            most_measures=MOST_MEASURES,
            script=Markup(script),
            script_hash=base64.b64encode(sha256(script.encode()).digest()).decode("ascii"),
        )
    )


@cache
def environment() -> Environment:
    """Templates that escape whatever they are given and refuse what is not there."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        return words.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    made.filters.update(measured=words.measured, interval=words.interval, number=words.number, moment=words.moment)
    return made


# What is shown of a question.


@dataclass(frozen=True)
class Line:
    """A measure with the limit that it is held against; either may be missing."""

    measure: Measure | None
    limit: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Reason:
    verdict: str
    measure: str
    limit: str
    why: str


@dataclass(frozen=True)
class Drawing:
    name: str
    title: str
    says: str
    svg: Markup


@dataclass(frozen=True)
class Picture:
    uri: str
    width: int
    height: int
    small: bool


@dataclass(frozen=True)
class Pictured:
    """A gallery, and how large its pictures are shown."""

    view: Gallery
    room: int

    @staticmethod
    def of(panel: Panel) -> Picture:
        width, height = _png_size(panel.png)
        longest = max(width, height)
        # Small pictures grow by a whole factor, so that each pixel of the input stays a square.
        scale = -(-80 // longest) if longest <= 64 else min(1.0, 128 / longest)
        return Picture(
            uri="data:image/png;base64," + base64.b64encode(panel.png).decode("ascii"),
            width=max(1, round(width * scale)),
            height=max(1, round(height * scale)),
            small=longest <= 64,
        )


@dataclass(frozen=True, kw_only=True)
class Section:
    id: str
    answer: Answer
    outcome: words.Outcome
    says: str
    lines: tuple[Line, ...]
    measures: tuple[Line, ...]
    reasons: tuple[Reason, ...]
    alarms: tuple[Alarm, ...]
    drawings: tuple[Drawing, ...]
    galleries: tuple[Pictured, ...]
    method: tuple[tuple[str, str], ...]
    command: tuple[str, ...]


@dataclass(frozen=True)
class Theme:
    id: str
    heading: str
    rows: tuple[Section, ...]


@dataclass(frozen=True)
class Summary:
    """A table of questions: the ones to look at, then the others."""

    title: str
    rows: tuple[Section, ...]
    folded: bool


@dataclass(frozen=True)
class NotAsked:
    """One reason, and every question that was not asked for it."""

    why: str
    rows: tuple[Answer, ...]


def themes(sections: Sequence[Section]) -> list[Theme]:
    """The sections in the order in which they are read; a theme that nobody knows is that of what else was asked."""
    known = dict(THEMES)
    held: dict[str, list[Section]] = {theme: [] for theme in known}
    for section in sections:
        held[section.answer.theme if section.answer.theme in known else OTHER].append(section)
    return [Theme(f"theme:{theme}", known[theme], tuple(some)) for theme, some in held.items() if some]


def summaries(sections: Sequence[Section]) -> list[Summary]:
    """What failed, what broke and what cannot be told, in this order; then what passes and what has no limit."""
    order: tuple[words.Outcome, ...] = ("fail", "error", "cannot tell", "pass", "no standard")
    ranked = sorted(sections, key=lambda section: order.index(section.outcome))
    worth = tuple(s for s in ranked if s.outcome in order[:3])
    fine = tuple(s for s in ranked if s.outcome in order[3:])
    made = [Summary("What failed, broke or cannot be told", worth, False)] if worth else []
    return made + ([Summary("What passes, or has no limit", fine, len(fine) > MOST_PASSES)] if fine else [])


def not_asked(audit: Audit) -> list[NotAsked]:
    """What was not asked, by its reason; a reason that names its own question is told once for all of them."""
    by_reason: dict[str, list[Answer]] = {}
    for row in audit.rows:
        if words.outcome(row) == "not asked":
            why = row.answer.why.replace(f"--probe {row.answer.probe}", "--probe NAME").rstrip(".")
            by_reason.setdefault(why, []).append(row.answer)
    return [NotAsked(why, tuple(some)) for why, some in by_reason.items()]


@dataclass(frozen=True)
class Fact:
    name: str
    text: str
    more: str = ""


def facts(subject: Described) -> list[Fact]:
    """What the subject is, in the order in which a stranger asks."""
    classes = [" ".join(c.split()) for c in subject.classes]
    nameless = classes == [str(k) for k in range(len(classes))]  # numbers from 0, which the count tells already
    between = f"{subject.low:g} to {subject.high:g}".replace("-", words.MINUS)
    sides = " × ".join(map(str, subject.shape))
    told = [
        Fact("Task", words.task(subject.task, len(classes)), "" if nameless else ", ".join(classes)),
        Fact("Input", f"{sides}{' values' if len(subject.shape) == 1 else ''}, {between}"),
        Fact("Parameters", f"{subject.parameters:,}" if subject.parameters else "none that torch holds"),
        Fact("Data", ", ".join(_split(name, subject) for name in subject.splits)),
        Fact("Origin", " → ".join(("as given", *subject.origin))),
        Fact("Gradients", "yes" if subject.differentiable else "no, answers only"),
    ]
    if subject.draws > 1:
        told.append(Fact("Random", f"answers are averages of {subject.draws} draws"))
    return told


def _split(name: str, subject: Described) -> str:
    return f"{name} {subject.splits[name]:,}{' without labels' if name in subject.unlabelled else ''}"


def colophon(audit: Audit) -> Iterator[tuple[str, str]]:
    """What stands at the foot: enough to ask the same again elsewhere."""
    others = dict(audit.environment)
    sandbox = others.pop("sandbox", None)
    yield "Made with", f"Assay {others.pop('assay', 'of unknown version')}"
    yield "Environment", words.made_with(others, audit.device)
    if sandbox is not None:
        yield "Sandbox", f"the model ran with {sandbox}"
    if audit.made_otherwise:
        count = share(audit.made_otherwise, len(audit.rows))
        yield "Found otherwise", f"{count} answers were found earlier or elsewhere; each says with what"
    yield "Budget", words.budget(audit.budget)
    yield "Seed", str(audit.seed)
    yield "Time", words.taken(audit)
    yield "Fingerprint", audit.subject.fingerprint


def drawings(row: Judged, key: str = "") -> tuple[Drawing, ...]:
    """Every view of a finding that is drawn; `key` sets the ids apart from those of other drawings on the page."""
    return drawn_of(row.answer.finding.views if row.answer.finding else (), f"{key}/{row.answer.probe}")


def drawn_of(views: Sequence[View], key: str) -> tuple[Drawing, ...]:
    """Those that are no gallery."""
    from markupsafe import Markup

    return tuple(
        Drawing(v.name, v.title, v.says, Markup(draw(v, f"{key}/{i}")))
        for i, v in enumerate(views)
        if not isinstance(v, Gallery)
    )


def pictured(views: Sequence[View]) -> tuple[Pictured, ...]:
    """Those that are galleries."""
    return tuple(Pictured(v, _room(v)) for v in views if isinstance(v, Gallery))


def _section(audit: Audit, row: Judged, drawn: tuple[Drawing, ...]) -> Section:
    answer, finding = row.answer, row.answer.finding
    measures = {m.name: m for m in finding.measures} if finding else {}
    judged = [Line(measures.get(j.measure), _limit(j, measures), j.verdict) for j in row.judgements]
    headline = finding.measures[0] if finding else None
    lines = judged if any(line.measure is headline for line in judged) else [Line(headline), *judged]
    return Section(
        id=slug(answer.probe),
        answer=answer,
        outcome=words.outcome(row),
        says=says(row),
        lines=tuple(lines),
        measures=tuple(_every(finding.measures if finding else (), judged)),
        reasons=tuple(Reason(_SAID[j.verdict], j.measure, _limit(j, measures), why(j)) for j in row.judgements),
        alarms=finding.alarms if finding else (),
        drawings=drawn,
        galleries=pictured(finding.views if finding else ()),
        method=tuple(_method(audit, row)),
        command=() if answer.status == "does not apply" else words.command(audit, answer),
    )


def says(row: Judged) -> str:
    """The sentence that a manager needs; of a question without an answer, the reason."""
    match row.answer.status:
        case "does not apply":
            return f"Not asked: {row.answer.why}."
        case "failed":
            return f"This question could not be answered: {row.answer.why}"
        case "asked":
            return row.answer.finding.says if row.answer.finding else ""


def why(judgement: Judgement) -> str:
    """The reason for a verdict, and what would settle one that cannot be told."""
    reason = judgement.why.rstrip(".")
    if judgement.more is None or f"{judgement.more:,} more" in reason:
        return reason
    return f"{reason}; about {judgement.more:,} more input{'' if judgement.more == 1 else 's'} would settle it"


def _limit(judgement: Judgement, measures: dict[str, Measure]) -> str:
    measure = measures.get(judgement.measure)
    return words.limit(judgement.standard, measure.unit if measure else "")


def _every(measures: tuple[Measure, ...], judged: list[Line]) -> Iterator[Line]:
    """Each measure once per limit on it, and once without where there is none."""
    for m in measures:
        held = [line for line in judged if line.measure is m]
        yield from held or [Line(m)]


def _method(audit: Audit, row: Judged) -> Iterator[tuple[str, str]]:
    answer = row.answer
    yield "Method", answer.source
    if answer.settings:
        yield "Settings", words.settings(answer.settings)
    if answer.status == "does not apply":
        return
    yield "Taken", f"{words.duration(answer.seconds)}, {words.moment(answer.when)}"
    if told := words.spent(answer):
        yield "In the model", told
    if any(row is other for other in audit.made_otherwise):
        yield "Found with", words.made_with(answer.environment, audit.device)
    if audit.folder is not None:
        table, kept = f"samples/{answer.probe}.parquet", f"witnesses/{answer.probe}.safetensors"
        if (audit.folder / table).exists():
            yield "Every input", f"{table}, beside this page"
        if (audit.folder / kept).exists():
            n, left_out = witnesses_kept(audit.folder, answer.probe)
            part = f"{n:,} of {n + left_out:,} are kept, spread evenly: " if n and left_out else ""
            yield "Witnesses", f"{part}{kept}, to be judged again with assay verify"


def _png_size(png: bytes) -> tuple[int, int]:
    """Width and height from the IHDR chunk; 84 by 84 where there is none to read."""
    if len(png) < 24 or png[12:16] != b"IHDR":
        return 84, 84
    width, height = struct.unpack(">II", png[16:24])
    return (width, height) if width and height else (84, 84)


def _room(gallery: Gallery) -> int:
    """How wide an exhibit of this gallery needs to be for its pictures to stand side by side."""
    widths = [sum(Pictured.of(p).width + 9 for p in e.panels) for e in gallery.exhibits]
    return max([150, *widths])
