"""assay audit, as a form."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from assay.server.kinds import Kind
from assay.server.kinds._opening import (
    BUDGET,
    GUARD,
    KNOBS,
    PROBES,
    STANDARDS,
    SUBJECT,
    TUNED,
    WORK,
    budget_wrong,
    opening_words,
    opening_wrong,
    option,
    options,
    subject_words,
    tuned_words,
    tuned_wrong,
)


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    words = ["audit", subject_words(settings, folder), *opening_words(settings, folder)]
    for name in ("budget", "inputs", "seed", "device", "timeout", "memory"):
        words += option(name, settings[name])
    words += [*options("probe", settings["probe"]), *tuned_words(settings)]
    if settings["standards"]:
        words += ["--standards", str(folder / "files" / settings["standards"])]
    return [*words, "--out", str(folder / "run")]


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    return [*opening_wrong(settings, files), *budget_wrong(settings["budget"]), *tuned_wrong(settings)]


def progress(folder: Path) -> float | None:
    """Questions that have been answered, of those that the newest run under run/ asks."""
    runs = sorted((folder / "run").glob("*/run.json"))
    try:
        asked = json.loads(runs[-1].read_text())["probes"]
        return len(list((runs[-1].parent / "findings").glob("*.json"))) / len(asked)
    except (IndexError, KeyError, TypeError, ValueError, OSError, ZeroDivisionError):
        return None


KIND = Kind(
    title="Audit a model",
    about="Ask many questions of a model, judge the answers, write a report: pass, fail or cannot tell.",
    fields=(*SUBJECT, BUDGET, PROBES, STANDARDS, *WORK, *KNOBS, *TUNED, *GUARD),
    words=_words,
    more=_wrong,
    progress=progress,
)
