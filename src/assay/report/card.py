"""The model card: YAML front matter that model hubs read (`model-index`), then the same for people, in Markdown.

Front matter follows the Hugging Face model card specification (huggingface/hub-docs, modelcard.md). `verified` is left
out: it is the hub's word, not ours.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from assay.audit import Audit
from assay.finding import CONFIDENCE
from assay.report import words
from assay.report.page import facts, says, why
from assay.store import slug

HUB = {
    "Classification": {3: "image-classification", 1: "tabular-classification"},
    "Labels": {3: "image-classification", 1: "tabular-classification"},
    "Regression": {1: "tabular-regression"},
    "Segmentation": {3: "image-segmentation"},
    "ImageToImage": {3: "image-to-image"},
    "Forecast": {2: "time-series-forecasting"},
    "Tagging": {1: "token-classification"},
    "Detection": {3: "object-detection"},
    "Control": {1: "reinforcement-learning", 3: "reinforcement-learning"},
}
"""What a hub calls our tasks, by the axes of an input."""


def card(audit: Audit) -> str:
    return f"---\n{_yaml(front_matter(audit))}---\n\n{_body(audit)}"


def front_matter(audit: Audit) -> dict[str, Any]:
    """What a hub reads: every measured number with its interval, size and settings."""
    task = HUB.get(audit.subject.task, {}).get(len(audit.subject.shape), "other")
    metrics = list(_metrics(audit))
    told: dict[str, Any] = {"tags": ["assay", task]}
    if metrics:  # a hub refuses an index without results
        told["model-index"] = [
            {
                "name": audit.subject.name,
                "results": [
                    {
                        "task": {"type": task},
                        "dataset": {
                            "name": f"Data of {audit.subject.name}",
                            "type": slug(audit.subject.name).lower(),
                            "args": {"splits": dict(audit.subject.splits), "fingerprints": dict(audit.subject.data)},
                        },
                        "metrics": metrics,
                    }
                ],
            }
        ]
    return told


def _metrics(audit: Audit) -> Iterator[dict[str, Any]]:
    for row in audit.rows:
        for m in row.answer.finding.measures if row.answer.finding else ():
            if m.value is None:
                continue
            between = f", {CONFIDENCE:.0%} interval {words.interval(m)}" if words.interval(m) else ""
            size = f", n = {m.n}" if m.n is not None else ""
            yield {
                "type": slug(m.name).lower(),
                "value": m.value,
                "name": f"{m.name} ({row.answer.probe}{between}{size})",
                "args": {
                    "probe": row.answer.probe,
                    "low": m.low,
                    "high": m.high,
                    "n": m.n,
                    "unit": m.unit,
                    "better": m.better,
                    "seed": audit.seed,
                    "budget": audit.budget.get("name"),
                    "settings": dict(row.answer.settings),
                },
            }


def _body(audit: Audit) -> str:
    subject = audit.subject
    out = [f"# {_md(subject.name)}", ""]
    if subject.about:
        out += [_md(subject.about), ""]
    out += [f"- {fact.name}: {_md(fact.text)}{f' ({_md(fact.more)})' if fact.more else ''}" for fact in facts(subject)]
    out += [
        "",
        "## What was asked",
        "",
        f"{len(audit.rows)} questions: {words.tally(audit)}.",
        "",
        f"| verdict | question | measured ({CONFIDENCE:.0%} interval) | limit |",
        "|---|---|---|---|",
    ]
    out += _verdicts(audit)
    out += ["", "In words:", ""]
    out += [f"- {_md(row.answer.question)} {_md(says(row))}" for row in audit.rows]
    out += ["", "## Alarms", ""]
    alarms = [f"- {_md(a.says)}" for a in audit.alarms]
    alarms += [
        f"- {_md(row.answer.question)} {_md(a.says)}"
        for row in audit.rows
        if row.answer.finding
        for a in row.answer.finding.alarms
    ]
    out += alarms or ["None."]
    if audit.tuned is not None:
        out += ["", "## Tuning effort", "", *(f"- {name}: {_md(text)}" for name, text in audit.tuned.lines)]
        out += ["", _md(audit.tuned.caution)]
    out += ["", "## How it was measured", ""]
    for row in audit.rows:
        settings = words.settings(row.answer.settings)
        chosen = f" Settings: {_md(settings)}." if settings else ""
        out.append(f"- {_md(row.answer.question)} {_md(row.answer.source)}{chosen}")
    out += [
        "",
        f"Budget: {_md(words.budget(audit.budget))}. Seed {audit.seed}. "
        f"Measured {_md(words.moment(audit.when))} with {_md(words.made_with(audit.environment, audit.device))}. "
        f"Fingerprint of the subject: {_md(subject.fingerprint)}.",
        *(
            f"- {_md(row.answer.question)} Found {_md(words.moment(row.answer.when))} with "
            f"{_md(words.made_with(row.answer.environment, audit.device))}."
            for row in audit.made_otherwise
        ),
        "",
        "## Limits of this card",
        "",
        f"- Intervals hold {CONFIDENCE:.0%} for each number by itself, and for inputs like those that were drawn.",
        "- A worst case that was searched for is the worst that was found: a stronger search may find worse.",
        "- A pass says that this question found nothing worse than the limit; what was not asked is open.",
        "- The numbers are self-reported by whoever ran the audit; with the fingerprint, the seed and the same "
        "version anyone can ask again.",
        "",
    ]
    return "\n".join(out)


def _verdicts(audit: Audit) -> Iterator[str]:
    for row in audit.rows:
        finding = row.answer.finding
        measures = {m.name: m for m in finding.measures} if finding else {}
        question = _md(row.answer.question)
        if not row.judgements:
            headline = finding.measures[0] if finding else None
            shown = _md(f"{headline.name} {words.in_full(headline)}") if headline else ""
            yield f"| {words.outcome(row)} | {question} | {shown} | |"
        for j in row.judgements:
            m = measures.get(j.measure)
            shown = _md(f"{j.measure} {words.in_full(m)}" if m else j.measure)
            limit = words.limit(j.standard, m.unit if m else "")
            yield f"| {j.verdict} | {question} | {shown} | {_md(limit)}: {_md(why(j))} |"


def _md(text: str) -> str:
    """Words as Markdown shows them: one line, no markup, no cell borders, no HTML."""
    flat = html.escape(" ".join(words.printable(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat)


_NOT_WORDS = ("null", "true", "false", "yes", "no", "on", "off")  # what YAML 1.1 takes them for


def _yaml(value: Mapping[str, Any]) -> str:
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Mapping[str, Any]) -> Iterator[str]:
    """Block style for mappings and for lists of mappings; every scalar as JSON writes it, which is YAML too."""
    for key, item in value.items():
        head = key if re.fullmatch(r"[a-z][a-z_-]+", key) and key not in _NOT_WORDS else _scalar(key)
        if isinstance(item, Mapping) and item:
            yield f"{head}:"
            yield from (f"  {line}" for line in _lines(item))
        elif isinstance(item, list | tuple) and item:
            yield f"{head}:"
            for entry in item:
                if isinstance(entry, Mapping) and entry:
                    inner = list(_lines(entry))
                    yield f"- {inner[0]}"
                    yield from (f"  {line}" for line in inner[1:])
                else:
                    yield f"- {_scalar(entry)}"
        else:
            yield f"{head}: {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        text = json.dumps(value, allow_nan=False)
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)  # YAML 1.1 reads 1e-05 as a word, 1.0e-05 as a number
    if isinstance(value, str):
        value = words.printable(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
