"""Where the time of an audit went: a flame of its questions, their parts and batches, and a table; one page alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.audit import Audit
from assay.probe import Spent
from assay.report import words
from assay.report.page import environment
from assay.trace import OF_A_BATCH, Asked, Span

WIDE = 1080.0  # of a flame, in its own units
TALL = 22
NARROW = 0.7  # below which neighbours become one box
LETTER = 7.0  # what a letter takes
DEEPEST = 6
SHOWN = 12  # questions that have a flame of their own, the longest
NAMES = {
    "question": "question",
    "part": "part of a question",
    "read": "inputs read",
    "sent": "inputs sent to the device",
    "done": "worked on, in the model most of all",
    "fetched": "results fetched",
    "batches": "several batches",
}


@dataclass(frozen=True)
class Box:
    """One rectangle of a flame."""

    kind: str
    x: float
    y: int
    width: float
    label: str
    """As much of its name as it has room for."""
    title: str


@dataclass(frozen=True)
class Flame:
    id: str
    title: str
    boxes: tuple[Box, ...]
    height: int
    marks: tuple[tuple[float, str], ...]
    """Where the seconds stand, and how they are written."""


@dataclass(frozen=True)
class Row:
    """A question in the table."""

    name: str
    id: str
    cells: tuple[str, ...]


COLUMNS = ("Time", "Of all", "Passes", "A second", "Of the limit", "Read", "Sent", "Worked on", "Fetched", "Beside")


def render_profile(audit: Audit, asked: Sequence[Asked], pace: float) -> str:
    """The page; `pace` is the seconds that the model takes for an input by itself, 0 where that is not known."""
    whole = sum(each.spans[0].seconds for each in asked)
    longest = sorted(range(len(asked)), key=lambda i: -asked[i].spans[0].seconds)[:SHOWN]
    own = [_flame(f"question-{i}", _name(asked[i]), list(asked[i].spans)) for i in sorted(longest)]
    passes = sum(each.answers + each.slopes for each in asked)
    least = Spent(answers=sum(e.answers for e in asked), slopes=sum(e.slopes for e in asked), pace=pace).least
    every = [span for each in asked for span in each.spans]
    return (
        environment()
        .get_template("profile.html")
        .render(
            audit=audit,
            asked=len(asked),
            whole=words.duration(whole),
            passes=f"{passes:,}",
            limit=f"{1 / pace:,.0f}" if pace else "",
            share=f"{100 * least / whole:.0f}" if pace and whole else "",
            flame=_flame("all", "All questions", every) if every else None,
            own=own,
            rows=[_row(i, each, whole, pace, i in longest) for i, each in enumerate(asked)],
            columns=COLUMNS,
            names=NAMES,
            wide=WIDE,
            tall=TALL,
        )
    )


def _name(asked: Asked) -> str:
    question = asked.spans[0]
    return f"{question.name}, at most {question.inputs:,} inputs" if question.inputs else question.name


def _row(place: int, asked: Asked, whole: float, pace: float, has_flame: bool) -> Row:
    seconds, passes = asked.spans[0].seconds, asked.answers + asked.slopes
    spent = Spent(answers=asked.answers, slopes=asked.slopes, pace=pace)
    batches = [asked.seconds.get(kind, 0.0) for kind in ("read", "sent", "done", "fetched")]

    def part(of: float) -> str:
        return f"{100 * of / seconds:.0f}{words.NBSP}%" if seconds else ""

    return Row(
        _name(asked),
        f"question-{place}" if has_flame else "",
        (
            words.duration(seconds),
            f"{100 * seconds / whole:.0f}{words.NBSP}%" if whole else "",
            f"{passes:,}" if passes else "",
            f"{passes / seconds:,.0f}" if passes and seconds else "",
            part(spent.least) if passes and pace else "",
            *(part(each) if each else "" for each in batches),
            part(max(0.0, seconds - sum(batches))),
        ),
    )


def _flame(name: str, title: str, spans: Sequence[Span]) -> Flame:
    start, end = min(s.start for s in spans), max(s.end for s in spans)
    scale = WIDE / max(end - start, 1e-9)
    rows: dict[int, list[Box]] = {}
    for depth, span in _deep(spans):
        boxes = rows.setdefault(depth, [])
        x, width = scale * (span.start - start), scale * span.seconds
        told = f", {span.inputs:,} inputs" if span.inputs else ""
        says = f"{span.name} ({NAMES[span.kind]}{told}): {words.duration(span.seconds)}"
        last = boxes[-1] if boxes else None
        if last is not None and width < NARROW and x - (last.x + last.width) < NARROW and last.width < 4 * NARROW:
            wider = max(last.width, x + width - last.x)
            kind = last.kind if last.kind == span.kind or span.kind not in OF_A_BATCH else "batches"
            boxes[-1] = Box(kind, last.x, last.y, wider, "", NAMES["batches"] if kind == "batches" else last.title)
            continue
        room = int(width / LETTER) - 1
        label = "" if room < 4 else span.name if len(span.name) <= room else span.name[: room - 1] + "…"
        boxes.append(Box(span.kind, x, depth * TALL, width, label if depth < DEEPEST else "", says))
    height = TALL * (1 + max(rows))
    return Flame(name, title, tuple(b for boxes in rows.values() for b in boxes), height, tuple(_marks(end - start)))


def _deep(spans: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """Each span with how many others it lies in."""
    around: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.start, -s.end, s.kind != "question", s.kind != "part")):
        while around and around[-1].end <= span.start:
            around.pop()
        yield min(len(around), DEEPEST), span
        if span.kind not in OF_A_BATCH:
            around.append(span)


def _marks(seconds: float) -> Iterator[tuple[float, str]]:
    """Round numbers of seconds along a flame, at most ten."""
    step = 1e-3
    while seconds / step > 10:
        step *= 2 if f"{step:e}"[0] in "15" else 2.5
    for i in range(int(seconds / step) + 1):
        yield WIDE * i * step / max(seconds, 1e-9), f"{i * step:g}{words.NBSP}s"
