"""assay translate, as a form: epochs and ensemble size, the other sliders folded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from assay.data.pair_names import of_folder, refuse_unpaired
from assay.errors import AssayError
from assay.jobs.translate import KNOBS, LONGEST, PROGRESS, SAMPLE, WAYS, Settings, progress_in
from assay.server.kinds import Field, Kind
from assay.server.kinds._opening import GUARD, WORK, option
from assay.server.uploads import PICTURES

LABELS = {
    "epochs": "Epochs",
    "members": "Ensemble size",
    "batch": "Batch size",
    "learning_rate": "Learning rate",
    "weight_decay": "Weight decay",
    "dropout": "Dropout",
    "width": "Channels at full size",
    "levels": "Sizes of the network",
    "review": "Share of pixels to review",
    "tolerance": "Error above which a pixel is wrong",
}
STEPS = {"learning_rate": 1e-4, "weight_decay": 1e-6, "dropout": 0.1, "review": 0.001, "tolerance": 0.001}
USUAL = Settings()
HELP = (
    "A zip with input/train, input/test, output/train and output/test; the two images of a pair have one name. All "
    "of one size; grey ones may have 16 bits. Left empty: cells made here, to try it out."
)


def _refuse(pairs: Path, name: str) -> None:
    if not pairs.is_dir():
        raise AssayError(f"{name!r} is no zip file; pack the four folders into one.")
    refuse_unpaired(name, of_folder(pairs, PICTURES))


def _slider(name: str) -> Field:
    knob, usual = KNOBS[name], getattr(USUAL, name)
    help = f"{knob.about[0].upper()}{knob.about[1:]}."
    return Field(
        name, LABELS[name], "whole" if isinstance(usual, int) else "number", usual, low=knob.low, high=knob.high,
        step=STEPS.get(name), help=help, folded=knob.folded,
    )  # fmt: skip


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    data = settings["data"]
    words = ["translate", SAMPLE if data is None else str(folder / "files" / data)]
    for name in ("title", *KNOBS, "distance", "way", "seed", "device", "timeout", "memory"):
        words += option(name, settings[name])
    return [*words, "--turned" if settings["turned"] else "--not-turned", "--out", str(folder / "run")]


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    title = settings["title"] or ""
    if len(title) > LONGEST:
        return [f"Project name: it has {len(title)} letters; give up to {LONGEST}."]
    try:
        Settings(**{each.name: settings[each.name] for each in fields(Settings)})
    except AssayError as e:
        return [str(e)]
    return []


KIND = Kind(
    title="Train an image translator",
    about="Train networks that turn one image into another, such as a stain that is not there, and see where they are "
    "unsure.",
    fields=(
        Field("data", "Pairs of images", "file", refuse=_refuse, help=HELP),
        Field("title", "Project name", "text"),
        *(_slider(name) for name in KNOBS),
        Field("distance", "What it lowers", "choice", USUAL.distance, choices=("l1", "l2"), folded=True),
        Field("way", "Way to an uncertainty", "choice", USUAL.way, choices=WAYS, folded=True,
              help="Several networks are the dearest and mostly the best; the others train one, or little more."),
        Field("turned", "Turn training pairs over and round", "yes", USUAL.turned, folded=True),
        *(each for each in WORK if each.name != "inputs"),
        *GUARD,
    ),
    words=_words,
    more=_wrong,
    progress=lambda folder: progress_in(folder / "run" / PROGRESS),
)  # fmt: skip
