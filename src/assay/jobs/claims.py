"""The ledger of claims: what was published, what was measured here, and under which conditions.

One JSON file per claim, `<file>--<name>.json`, with the evidence, the seed, the versions and the machine behind it and
the command that repeats it. A claim without a record was not run, and says so.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from assay import shelf
from assay.claim import Claim, Evidence, Published
from assay.errors import AssayError
from assay.finding import Beside, Measure
from assay.report.words import in_full, moment
from assay.run import Run, environment
from assay.store import strict_json, write_atomically

LEDGER = Path("claims/ledger")
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One record: a claim as it was worded when it was tested, and what came of it."""

    id: str
    says: str
    evidence: Evidence
    seed: int
    budget: str
    machine: str
    versions: Mapping[str, str]
    command: str
    seconds: float
    when: str
    here: str = ""
    """On what it was tested; empty in a record from before this was kept."""


def claims() -> dict[str, Claim]:
    """Every claim on the shelf by its id, '<file>/<name>'."""
    found: dict[str, Claim] = {}
    for source in shelf.names("claims"):
        for each in shelf.load("claims", source):
            name = f"{source}/{each.name}"
            if name in found:
                raise AssayError(f"Two claims are called {name!r}; give each its own name.")
            found[name] = each
    return found


def claim(name: str) -> Claim:
    known = claims()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`assay claims` lists them."
        raise AssayError(f"There is no claim {name!r}; {hint}")
    return known[name]


def record(name: str, run: Run, root: Path = LEDGER) -> Entry:
    """Run the study behind a claim and record it."""
    tested = claim(name)
    start = time.perf_counter()
    evidence = tested.test(run)
    versions = environment(run.device)
    place, device = f"{versions.pop('system')}, {versions.pop('cores')} cores", versions.pop("device")
    options = [] if run.budget.name == "quick" else ["--budget", run.budget.name]
    options += ["--seed", str(run.seed), *([] if run.device == "cpu" else ["--device", run.device])]
    entry = Entry(
        id=name,
        says=tested.says,
        evidence=evidence,
        seed=run.seed,
        budget=run.budget.name,
        machine=place if run.device == "cpu" else f"{place}, {device}",
        versions=versions,
        command=shlex.join(["assay", "claims", "test", name, *options]),
        seconds=time.perf_counter() - start,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        here=tested.here,
    )
    write_atomically(_file(root, name), strict_json({"format": FORMAT, **dataclasses.asdict(entry)}))
    return entry


def _file(root: Path, name: str) -> Path:
    return root / f"{name.replace('/', '--')}.json"


def read(root: Path = LEDGER) -> dict[str, Entry]:
    """Every record of the ledger by its claim's id."""
    return {entry.id: entry for entry in map(_entry, sorted(root.glob("*.json")))}


def _entry(path: Path) -> Entry:
    try:
        stored = {"here": "", **json.loads(path.read_text(encoding="utf-8"))}
        told: dict[str, Any] = {f.name: stored[f.name] for f in dataclasses.fields(Entry)}
        evidence = told["evidence"]
        measures = tuple(
            Measure(**{**m, "beside": tuple(Beside(**b) for b in m["beside"])}) for m in evidence["measures"]
        )
        return Entry(
            **{**told, "evidence": Evidence(verdict=evidence["verdict"], says=evidence["says"], measures=measures)}
        )
    except (OSError, KeyError, TypeError, ValueError) as e:
        raise AssayError(f"Cannot read the record {str(path)!r}: {type(e).__name__} {e}; test that claim again.") from e


@dataclass(frozen=True)
class _Told:
    """A claim as both pages show it: each cell is plain text."""

    id: str
    claim: Claim
    verdict: str
    says: str
    numbers: tuple[tuple[str, str, str, str], ...]
    """Published what, published value, measured what, measured value."""
    here: str
    """On what it was tested, or would be."""
    how: str


def _told(root: Path) -> list[_Told]:
    known = read(root)
    return [_tell(name, each, known.get(name)) for name, each in claims().items()]


def _printed(number: Published) -> str:
    """With all the digits of print; a share whose unit is % as the percentage that it was."""
    return f"{number.value * (100 if number.unit == '%' else 1):.10g} {number.unit}".strip()


def _tell(name: str, each: Claim, entry: Entry | None) -> _Told:
    measures = entry.evidence.measures if entry else ()
    numbers = tuple(
        (
            f"{p.what} ({p.where})" if p else "",
            _printed(p) if p else "",
            m.name if m else "",
            in_full(m) if m else "not run" if entry is None else "",
        )
        for p, m in zip_longest(each.published, measures)
    )
    if entry is None:
        how = f"Never run here; it takes about {each.minutes:g} min: assay claims test {name}"
        return _Told(name, each, "not run", "", numbers, each.here, how)
    versions = ", ".join(f"{package} {version}" for package, version in entry.versions.items())
    reworded = "" if entry.says == each.says else f" It was tested as it was worded then: {entry.says}"
    how = f"{moment(entry.when)}, {entry.machine}, {versions}: {entry.command}{reworded}"
    return _Told(name, each, entry.evidence.verdict, entry.evidence.says, numbers, entry.here or each.here, how)


def page_markdown(root: Path = LEDGER) -> str:
    """The ledger as Markdown."""
    lines = ["# Claims", "", INTRODUCTION, ""]
    for t in _told(root):
        lines += [
            f"## {_md(t.id)}: {t.verdict}",
            "",
            _md(t.claim.says),
            "",
            f"Source: {_md(t.claim.source)}. Tested here on: {_md(t.here)}.",
            "",
        ]
        lines += [_md(t.says), ""] if t.says else []
        if t.numbers:
            lines += ["| published | | measured here | |", "|---|---|---|---|"]
            lines += ["| " + " | ".join(_md(cell) for cell in row) + " |" for row in t.numbers] + [""]
        lines += [_md(t.how), ""]
    return "\n".join(lines)


def _md(text: str) -> str:
    """Plain text that Markdown leaves alone."""
    escaped = "".join(f"\\{c}" if c in r"\`*_[]<>|#" else c for c in " ".join(text.split(" ")))
    return " ".join(escaped.split("\n"))


def page(root: Path = LEDGER) -> str:
    """The ledger as one HTML page that stands alone, dressed like the report."""
    from assay.report.page import environment as templates

    return (
        templates()
        .from_string(_PAGE)
        .render(
            claims=_told(root),
            introduction=INTRODUCTION,
            looks={"holds": "pass", "fails": "fail", "cannot tell": "cannot tell", "not run": "not asked"},
        )
    )


INTRODUCTION = (
    "Each claim is a published statement with the numbers as printed, beside what the study in Assay "
    "measured. A claim that was never run says so."
)

_PAGE = """{% extends "base.html" %}
{% import "parts.html" as parts %}
{% macro number(what, value) %}
{% if value %}<div><span class="value">{{ value }}</span><br><span class="about">{{ what }}</span></div>{% endif %}
{% endmacro %}
{% block title %}Claims: Assay{% endblock %}
{% block body %}
<header class="top"><div class="wide"><h1>Claims</h1><p>{{ introduction }}</p></div></header>
<main id="main" class="wide">
{% for told in claims %}{% set look = looks[told.verdict] %}
<section class="probe" aria-labelledby="claim-{{ loop.index }}">
<div class="heading"><h2 id="claim-{{ loop.index }}">{{ told.id }}</h2>
<span class="badge {{ look | replace(' ', '-') }}">{{ parts.icon(parts.icons[look]) }}{{ told.verdict }}</span></div>
<p class="lead">{{ told.claim.says }}</p>
<p class="small muted">{{ told.claim.source }}</p>
{% if told.says %}<p>{{ told.says }}</p>{% endif %}
{% if told.numbers %}
<table class="rows" role="table">
<caption class="hidden">Published and measured numbers of {{ told.id }}</caption>
<thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Published</th>
<th role="columnheader" scope="col">Measured here</th></tr></thead>
<tbody role="rowgroup">
{% for printed, value, measure, measured in told.numbers %}
<tr role="row">
<td role="cell" class="number" data-label="Published">{{ number(printed, value) }}</td>
<td role="cell" class="number" data-label="Measured">{{ number(measure, measured) }}</td>
</tr>
{% endfor %}
</tbody>
</table>
{% endif %}
<dl class="method"><dt>Tested on</dt><dd>{{ told.here }}</dd><dt>Record</dt><dd>{{ told.how }}</dd></dl>
</section>
{% endfor %}
</main>
{% endblock %}
"""
