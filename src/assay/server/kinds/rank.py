"""assay rank, as a form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from assay.server.kinds import Field, Kind
from assay.server.kinds._opening import GUARD, WORK, option


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    words = ["rank", str(folder / "files" / settings["data"])]
    for name in ("architecture", "embedding", "steps", "decoder", "held_back", "seed", "device", "timeout", "memory"):
        words += option(name, settings[name])
    if settings["low"] is not None:
        words += ["--values", str(settings["low"]), str(settings["high"])]
    return [*words, "--out", str(folder / "run")]


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    low, high = settings["low"], settings["high"]
    if (low is None) != (high is None) or (low is not None and low >= high):
        return ["The least and the greatest number go together, the least first; give both, or neither."]
    return []


KIND = Kind(
    title="Train a ranker",
    about="Train a model that says which of two images has the higher number, and draws what it sees.",
    fields=(
        Field(
            "data",
            "Images with a number each",
            "file",
            needed=True,
            help="A zip or folder of images; the numbers stand in a CSV file in it, or at the beginning of the names: "
            "25_0.jpg has 25.",
        ),
        Field("architecture", "Architecture", "choice", choices=("digits", "grey", "colour")),
        Field("steps", "Training steps", "whole", 3000, low=1, high=10**7),
        Field("embedding", "Numbers that an image is reduced to", "whole", low=1, high=4096, folded=True),
        Field("low", "The least number that there can be", "number", folded=True),
        Field("high", "The greatest", "number", folded=True),
        Field(
            "decoder",
            "How what draws is trained",
            "choice",
            "joint",
            choices=("joint", "mirror", "afterwards"),
            folded=True,
        ),
        Field("held_back", "Share to be tested on", "number", 0.2, low=0.01, high=0.9, step=0.01, folded=True),
        *(each for each in WORK if each.name != "inputs"),
        *GUARD,
    ),
    words=_words,
    more=_wrong,
)
