"""assay audit, as a form."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from assay.server.kinds import Kind
from assay.server.kinds._opening import (
    ASKING,
    BUDGET,
    SUBJECT,
    asking_words,
    asking_wrong,
    budget_wrong,
    opening_words,
    subject_words,
)


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    words = ["audit", subject_words(settings, folder), *opening_words(settings, folder)]
    return [*words, *asking_words(settings, folder), "--out", str(folder / "run")]


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    return [*asking_wrong(settings, files), *budget_wrong(settings["budget"])]


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
    fields=(*SUBJECT, BUDGET, *ASKING),
    words=_words,
    more=_wrong,
    progress=progress,
)
