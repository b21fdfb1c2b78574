"""assay cure, as a form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from assay import shelf
from assay.server.kinds import Field, Kind
from assay.server.kinds._opening import (
    GUARD,
    KNOBS,
    PLAIN_BUDGET,
    PROBES,
    SETTINGS,
    STANDARDS,
    SUBJECT,
    TUNED,
    WORK,
    opening_words,
    opening_wrong,
    option,
    options,
    subject_words,
    tuned_words,
    tuned_wrong,
)


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    words = ["cure", settings["remedy"], subject_words(settings, folder), *opening_words(settings, folder)]
    for name in ("budget", "inputs", "seed", "device", "timeout", "memory"):
        words += option(name, settings[name])
    words += [*options("probe", settings["probe"]), *options("set", settings["set"]), *tuned_words(settings)]
    if settings["standards"]:
        words += ["--standards", str(folder / "files" / settings["standards"])]
    return [*words, "--control" if settings["control"] else "--no-control", "--out", str(folder / "run")]


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    return [*opening_wrong(settings, files), *tuned_wrong(settings)]


KIND = Kind(
    title="Cure a model",
    about="Audit, apply a remedy, audit again, and compare; a plain training of the same length stands beside.",
    fields=(
        Field("remedy", "Remedy", "choice", choices=lambda: shelf.names("remedies"), needed=True),
        *SUBJECT,
        PLAIN_BUDGET,
        SETTINGS,
        Field("control", "Train plainly too, to compare with", "yes", True, folded=True),
        PROBES,
        STANDARDS,
        *WORK,
        *KNOBS,
        *TUNED,
        *GUARD,
    ),
    words=_words,
    more=_wrong,
)
