"""assay audit, as a form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.server.kinds import Field, Kind


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    return ["audit", settings["subject"], "--budget", settings["budget"], "--out", str(folder / "run")]


KIND = Kind(
    title="Audit a model",
    about="Ask many questions, judge the answers, write a report.",
    fields=(
        Field("subject", "A model that comes with Assay", "text", "fashion-cnn"),
        Field("budget", "How hard to look", "choice", "quick", choices=("quick", "standard", "full")),
    ),
    words=_words,
)
