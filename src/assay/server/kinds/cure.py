"""assay cure, as a form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay import shelf
from assay.server.kinds import Field, Kind
from assay.server.kinds._opening import (
    ASKING,
    PLAIN_BUDGET,
    SETTINGS,
    SUBJECT,
    asking_words,
    asking_wrong,
    opening_words,
    option,
    options,
    subject_words,
)


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    words = ["cure", settings["remedy"], subject_words(settings, folder), *opening_words(settings, folder)]
    words += [*options("set", settings["set"]), *asking_words(settings, folder)]
    words += ["--control" if settings["control"] else "--no-control", *option("trainings", settings["trainings"])]
    return [*words, "--out", str(folder / "run")]


KIND = Kind(
    title="Cure a model",
    about="Audit, apply a remedy, audit again, and compare; a plain training of the same length stands beside.",
    fields=(
        Field("remedy", "Remedy", "choice", choices=lambda: shelf.names("remedies"), needed=True),
        *SUBJECT,
        PLAIN_BUDGET,
        SETTINGS,
        Field("control", "Train plainly too, to compare with", "yes", True, folded=True),
        Field(
            "trainings",
            "How often to train both",
            "choice",
            "1",
            choices=("1", "3", "5"),
            folded=True,
            help="One training each cannot tell a remedy from luck; more give intervals over trainings and inputs.",
        ),
        *ASKING,
    ),
    words=_words,
    more=asking_wrong,
)
