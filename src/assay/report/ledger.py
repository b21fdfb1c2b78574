"""The pages of the ledger of claims: counts, what each verdict means, one table, and a fold for each claim.

A published number and a measured one stand side by side only where they are of one kind: the measure has the published
number's name, or the claim says which one it is (`Published.measured`), and print's data are those here. All others
stand apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from assay.claim import Before, Claim, Entry, Held, Published
from assay.finding import Measure
from assay.report.words import in_full, measured, moment

VERDICTS: dict[Held, str] = {
    "holds": "the statement's own comparison came out as printed, by the rule that its fold states",
    "fails": "it came out the other way, by that rule; whether a baseline like print's was asked for stands there",
    "cannot tell": "the interval allows both, or the networks, the data, their number or the rule bear no verdict",
    "not run": "nobody has tested it here",
}
LOOKS = {"holds": "pass", "fails": "fail", "cannot tell": "cannot tell", "not run": "not asked"}
INTRODUCTION = (
    "Each claim is a published statement with the numbers as printed, beside what the study in Assay measured. A note "
    "is a statement of ours about a source's method, and is counted apart. A claim that was never run says so. A "
    "record is stale where the code behind it has changed since, or is not known: it tells what was found then, and "
    "is counted apart too."
)
CHANGES = (
    "Verdicts that became others when a claim was tested again or its record was doubted, and claims that were tested "
    "for the first time; of records from before this was kept, nothing is known."
)
OTHER = "of other data, networks or settings than those here"
WIDTH, ROW, LEFT, RIGHT = 640, 26, 250, 24  # of a figure, in pixels
MOST_DOTS = 20


class Pair(NamedTuple):
    """A published number and the measure of its kind."""

    printed: Published
    here: Measure


class Dot(NamedTuple):
    """One row of a figure, in pixels."""

    y: float
    name: str
    printed: float
    here: float
    low: float
    high: float


class Figure(NamedTuple):
    """Measured beside print: a dot with its bar, and a ring."""

    height: int
    dots: tuple[Dot, ...]
    ticks: tuple[tuple[float, str], ...]
    alt: str


@dataclass(frozen=True)
class Told:
    """A claim as both pages show it."""

    id: str
    claim: Claim
    entry: Entry | None
    stale: str
    unlike: tuple[str, ...] = ()
    """How the names of those published numbers begin that are of other data: they stand beside none of ours."""
    doubt: str = ""
    """Why its record's verdict may not be concluded by the rules of today."""

    @property
    def source(self) -> str:
        return self.id.partition("/")[0]

    @property
    def anchor(self) -> str:
        return f"claim-{self.id.replace('/', '--')}"

    @property
    def verdict(self) -> Held:
        if self.entry is None:
            return "not run"
        return "cannot tell" if self.doubt else self.entry.evidence.verdict

    @property
    def doubted(self) -> str:
        """What the record says and why it is not concluded, in a sentence; empty where nothing is in doubt."""
        return f"Its record says {self.entry.evidence.verdict}: {self.doubt}." if self.entry and self.doubt else ""

    @property
    def look(self) -> str:
        return LOOKS[self.verdict]

    @property
    def measures(self) -> tuple[Measure, ...]:
        return () if self.entry is None else self.entry.evidence.measures

    @property
    def pairs(self) -> list[Pair]:
        known = {m.name: m for m in self.measures}
        found = ((p, known.get(p.measured or p.what)) for p in self.claim.published if not self._is_unlike(p))
        return [Pair(p, m) for p, m in found if m is not None and m.unit == p.unit]

    @property
    def alone(self) -> list[tuple[str, list[Published]]]:
        """The other published numbers, by why they stand alone."""
        paired = [pair.printed for pair in self.pairs]
        left = [p for p in self.claim.published if p not in paired]
        why = "not run" if self.entry is None else "and nothing of the kind was measured here"
        groups = [(OTHER, [p for p in left if self._is_unlike(p)]), (why, [p for p in left if not self._is_unlike(p)])]
        return [(why, numbers) for why, numbers in groups if numbers]

    def _is_unlike(self, number: Published) -> bool:
        return number.what.startswith(self.unlike)

    @property
    def others(self) -> list[Measure]:
        return [m for m in self.measures if m not in [pair.here for pair in self.pairs]]

    @property
    def size(self) -> str:
        if self.entry is None:
            return ""
        if self.entry.evidence.seeds:
            return f"{self.entry.evidence.seeds} trainings"
        most = max((m.n or 0 for m in self.measures), default=0)
        return f"n = {most:,}" if most else ""

    @property
    def change(self) -> Before | None:
        """What was said until the verdict became what it is, a first test among it; None where that is not known."""
        if self.entry is None or not self.doubt:
            return None if self.entry is None else self.entry.before
        verdict, when, made = self.entry.evidence.verdict, self.entry.when, self.entry.commit
        return Before(verdict=verdict, when=when, commit=made, why=f"in doubt: {self.doubt}")

    @property
    def before(self) -> Before | None:
        """What was said until the verdict became another; None where nothing was."""
        return None if self.change is None or self.change.verdict == "not run" else self.change

    @property
    def was(self) -> str:
        """The verdict before, with its day and commit."""
        if self.before is None:
            return ""
        known = (moment(self.before.when).partition(",")[0], self.before.commit and f"commit {self.before.commit[:12]}")
        return f"{self.before.verdict} ({', '.join(filter(None, known))})"

    @property
    def gated(self) -> str:
        """Whether print's baseline was asked for before the verdict, in words; empty where there is none to doubt."""
        if self.entry is None or self.verdict not in ("holds", "fails"):
            return ""
        gates = self.entry.evidence.gates
        if not gates:
            return "Its record names no baseline in print that had to be reached first."
        return f"Reached first: {', '.join(gate.what for gate in gates)}."

    @property
    def date(self) -> str:
        """A page does not age by itself: when it was tested, not how long ago."""
        return "" if self.entry is None else moment(self.entry.when).partition(",")[0]

    @property
    def here(self) -> str:
        """What it was tested on, or would be; a test of today would be another where the record does not say."""
        return self.claim.here if self.entry is None else self.entry.here or "its record does not say"

    @property
    def how(self) -> str:
        entry = self.entry
        if entry is None:
            return f"Never run here; it takes about {self.claim.minutes:g} min: assay claims test {self.id}"
        versions = ", ".join(f"{package} {version}" for package, version in entry.versions.items() if package != "code")
        made = f", commit {entry.commit[:12]}{'+' * entry.commit.endswith('+')}" if entry.commit else ""
        data = f"; data {', '.join(f'{name} {digest[:12]}' for name, digest in entry.data.items())}" * bool(entry.data)
        reworded = "" if entry.says == self.claim.says else f" It was tested as it was worded then: {entry.says}"
        return f"{moment(entry.when)}, {entry.machine}, {versions}{made}{data}: {entry.command}{reworded}"

    @property
    def figure(self) -> Figure | None:
        """Where two or more numbers of one unit can share an axis."""
        pairs = [p for p in self.pairs if p.here.value is not None]
        if not 2 <= len(pairs) <= MOST_DOTS or len({p.printed.unit for p in pairs}) > 1:
            return None
        rows = [(p.printed.value, p.here.value or 0.0, p.here.low, p.here.high) for p in pairs]
        all_ = [v for row in rows for v in row if v is not None and math.isfinite(v)]
        low, high = min(all_), max(all_)
        if high <= low or (min(map(abs, all_)) > 0 and max(map(abs, all_)) > 1000 * min(map(abs, all_))):
            return None

        def at(value: float) -> float:
            return round(LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low), 1)

        dots = tuple(
            Dot(ROW * (i + 0.5), p.printed.what, at(a), at(b), at(b if c is None else c), at(b if d is None else d))
            for i, (p, (a, b, c, d)) in enumerate(zip(pairs, rows, strict=True))
        )
        unit = pairs[0].printed.unit
        ticks = tuple((at(v), _number(v, unit)) for v in (low, high))
        return Figure(ROW * len(dots) + 24, dots, ticks, f"Measured beside print, {len(dots)} numbers of {self.id}")


def _number(value: float, unit: str) -> str:
    return f"{value * (100 if unit == '%' else 1):.3g} {unit}".strip()


def printed(number: Published) -> str:
    """With all the digits of print; a share whose unit is % as the percentage that it was."""
    return f"{number.value * (100 if number.unit == '%' else 1):.10g} {number.unit}".strip()


class Count(NamedTuple):
    """How many claims have a verdict, and what it means."""

    verdict: Held
    now: int
    """Published statements, by records of code as it is now."""
    old: int
    """The same by stale records."""
    ours: int
    """Notes, whatever their age."""
    means: str


def counts(claims: Sequence[Told]) -> list[Count]:
    theirs = [t for t in claims if not t.claim.ours]
    now, old = (Counter(t.verdict for t in theirs if bool(t.stale) == stale) for stale in (False, True))
    ours = Counter(t.verdict for t in claims if t.claim.ours)
    return [Count(verdict, now[verdict], old[verdict], ours[verdict], means) for verdict, means in VERDICTS.items()]


def moves(claims: Sequence[Told]) -> list[tuple[Held, Held, int]]:
    """From which verdict to which, and how many: of each claim's last change, a first test among them."""
    found = Counter((t.change.verdict, t.verdict) for t in claims if t.change is not None)
    order = list(VERDICTS)
    return [(*move, n) for move, n in sorted(found.items(), key=lambda m: [order.index(v) for v in m[0]])]


def markdown(claims: Sequence[Told]) -> str:
    lines = [
        "# Claims",
        "",
        INTRODUCTION,
        "",
        "| verdict | by today's code | stale | notes | what it means |",
        "|---|---:|---:|---:|---|",
    ]
    lines += [f"| {c.verdict} | {c.now} | {c.old or ''} | {c.ours or ''} | {c.means} |" for c in counts(claims)]
    lines += ["", "## All", "", "| claim | print | here | verdict | size | tested |", "|---|---|---|---|---|---|"]
    for t in claims:
        first = t.pairs[0] if t.pairs else None
        cells = (
            f"{t.id}{' (note)' if t.claim.ours else ''}",
            f"{first.printed.what}: {printed(first.printed)}" if first else "",
            in_full(first.here) if first else "",
            f"{t.verdict}{', stale' if t.stale else ''}",
            t.size,
            t.date,
        )
        lines.append("| " + " | ".join(_md(cell) for cell in cells) + " |")
    if moves(claims):
        lines += ["", "## What changed", "", CHANGES, ""]
        lines += ["| before | after | claims |", "|---|---|---:|"]
        lines += [f"| {was} | {now} | {n} |" for was, now, n in moves(claims)]
    if any(t.before for t in claims):
        lines += ["", "| claim | before | after | what was another |", "|---|---|---|---|"]
        lines += [f"| {_md(t.id)} | {_md(t.was)} | {t.verdict} | {_md(t.before.why)} |" for t in claims if t.before]
    for t in claims:
        lines += [
            "",
            f"## {_md(t.id)}: {t.verdict}{' (stale)' if t.stale else ''}",
            "",
            f"{'Note of ours, no statement of theirs: ' if t.claim.ours else ''}{_md(t.claim.says)}",
            "",
            f"Source: {_md(t.claim.source)}. Tested here on: {_md(t.here)}.",
        ]
        lines += ["", _md(t.entry.evidence.says)] if t.entry is not None else []
        lines += ["", f"In doubt. {_md(t.doubted)}"] if t.doubt else []
        if t.pairs:
            lines += ["", "| published | | measured here | |", "|---|---|---|---|"]
            lines += [
                f"| {_md(f'{p.what} ({p.where})')} | {_md(printed(p))} | {_md(m.name)} | {_md(in_full(m))} |"
                for p, m in t.pairs
            ]
        for why, numbers in t.alone:
            lines += ["", f"Published, {why}:", ""]
            lines += [f"- {_md(f'{p.what} ({p.where}): {printed(p)}')}" for p in numbers]
        if t.others:
            lines += ["", "Measured here, without a number of the kind in print:", ""]
            lines += [f"- {_md(f'{m.name}: {in_full(m)}')}" for m in t.others]
        lines += ["", _md(t.gated)] if t.gated else []
        lines += ["", _md(f"Before: {t.was}. {t.before.says}")] if t.before and not t.doubt else []
        lines += ["", _md(t.how)] + ([f"Stale: {_md(t.stale)}."] if t.stale else [])
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    """Plain text that Markdown leaves alone."""
    escaped = "".join(f"\\{c}" if c in r"\`*_[]<>|#" else c for c in " ".join(text.split(" ")))
    return " ".join(escaped.split("\n"))


def html(claims: Sequence[Told]) -> str:
    import base64
    from hashlib import sha256

    from markupsafe import Markup

    from assay.report.page import TEMPLATES
    from assay.report.page import environment as templates

    script = (TEMPLATES / "ledger.js").read_text(encoding="utf-8")
    return (
        templates()
        .get_template("ledger.html")
        .render(
            claims=claims,
            introduction=INTRODUCTION,
            counts=counts(claims),
            changes=CHANGES,
            moves=moves(claims),
            looks=LOOKS,
            sources=sorted({t.source for t in claims}),
            printed=printed,
            measured=measured,
            in_full=in_full,
            script=Markup(script),
            script_hash=base64.b64encode(sha256(script.encode()).digest()).decode(),
            width=WIDTH,
            left=LEFT,
        )
    )
