"""assay explain, as a form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from assay.server.kinds import Field, Kind
from assay.server.kinds._opening import (
    GUARD,
    KNOBS,
    PLAIN_BUDGET,
    SETTINGS,
    SUBJECT,
    WORK,
    opening_words,
    opening_wrong,
    option,
    options,
    subject_words,
)

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
UNITS = ("patches", "superpixels", "pixels", "columns", "words", "stretches")


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    words = ["explain", subject_words(settings, folder), *opening_words(settings, folder)]
    if settings["pair"]:
        words += ["--pair", *settings["pair"].split(), *option("to", settings["to"]), *options("set", settings["set"])]
        words += ["--decoder"] if settings["decoder"] else []
    else:
        image = settings["image"]
        words += ["--input", settings["input"] if image is None else str(folder / "files" / image)]
        words += options("method", settings["method"])
        for name in ("why_not", "of", "units", "criterion"):
            words += option(name, settings[name])
    for name in ("budget", "seed", "device", "timeout", "memory"):
        words += option(name, settings[name])
    return [*words, "--out", str(folder / "run")]


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    wrong, given, pair = opening_wrong(settings, files), settings["input"], settings["pair"]
    if given.startswith(("/", "~")) or ".." in given or "\\" in given:
        wrong.append(f"Which input: {given[:40]!r} looks like a file of the server's; send the image along instead.")
    if pair and not (len(pair.split()) == 2 and all(part.isascii() and part.isdigit() for part in pair.split())):
        wrong.append(f"Two test inputs: {pair[:40]!r} is not two numbers; write 12 40.")
    if not pair and (settings["to"] is not None or settings["decoder"] or settings["set"]):
        wrong.append(
            "Where a comparison is to go, a decoder and settings of the walk are for two inputs; say which two."
        )
    if pair and (settings["method"] or settings["why_not"] or settings["of"] or settings["units"]):
        wrong.append(
            "Maps, another class, a part of the answer and units are for one input; leave out the two, or those."
        )
    return wrong


KIND = Kind(
    title="Explain one answer",
    about="Explain one answer by many maps, and put each map on trial; or change one of two inputs until they compare "
    "otherwise.",
    fields=(
        *SUBJECT,
        Field("input", "Which input", "text", "0", help="The number of a test input, a sentence, or a row's values."),
        Field("image", "Or an image of your own", "file", endings=IMAGES),
        Field("pair", "Of a model that compares: two test inputs", "text", help="Two numbers, such as 12 40."),
        PLAIN_BUDGET,
        Field("method", "Only these maps", "several", folded=True),
        Field("why_not", "Why not this class", "text", folded=True, help="By number or name."),
        Field("of", "Of an answer that is no class: which part", "text", folded=True),
        Field("units", "What is ranked", "choice", choices=UNITS, folded=True),
        Field("criterion", "What greedy-as picks", "choice", choices=("held", "moved"), folded=True),
        Field("to", "Where the comparison is to go", "number", folded=True),
        Field("decoder", "Train a decoder for a model that has none", "yes", False, folded=True),
        SETTINGS,
        *(each for each in WORK if each.name != "inputs"),
        *KNOBS,
        *GUARD,
    ),
    words=_words,
    more=_wrong,
)
