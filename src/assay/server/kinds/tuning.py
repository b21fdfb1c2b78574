"""What people do in a study that is open to them: train a try, train the final configuration, analyse.

Its page submits these. A study lies in the run folder of the job that made it, beside which the others' folders lie.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from assay.server.kinds import Field, Kind

ID = re.compile(r"[A-Za-z0-9_-]{22}")
DOES = ("try", "finish", "analyse")


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    study = str(folder.parent / settings["study"] / "run")
    if settings["do"] == "analyse":
        return ["study", "analyse", study]
    number = ["--number" if settings["do"] == "try" else "--try", str(settings["number"])]
    return ["study", settings["do"], study, *number, "--", settings["participant"]]


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    if not ID.fullmatch(settings["study"]):
        return [f"{settings['study'][:40]!r} is no id of a study."]
    if settings["do"] != "analyse" and not (ID.fullmatch(settings["participant"] or "") and settings["number"]):
        return ["A try needs its participant and its number."]
    return []


KIND = Kind(
    title="A step of a study",
    about="What a participant of a study asked for.",
    fields=(
        Field("study", "Study", "text", needed=True),
        Field("do", "What", "choice", "try", choices=DOES),
        Field("participant", "Participant", "text"),
        Field("number", "Try", "whole", low=1, high=9999),
    ),
    words=_words,
    more=_wrong,
    listed=False,
)
