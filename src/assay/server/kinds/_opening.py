"""What several kinds ask alike: which model and which data, how hard to look, and what the model's process may take.

Left out on purpose, as they hand the machine to whoever sends the form: --allow-pickle, --no-sandbox, --trust,
--environment. They are for the command line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from assay import shelf
from assay.errors import AssayError
from assay.server.kinds import Field
from assay.tuning import Tuning

MODELS = (
    ".onnx",
    ".pt2",
    ".pt",
    ".ts",
    ".jit",
    ".safetensors",
    ".skops",
    ".keras",
    ".txt",
    ".lgb",
    ".json",
    ".ubj",
    ".py",
)
BUDGETS = ("quick", "standard", "full")
TASKS = (
    "classification", "regression", "segmentation", "tagging", "forecast", "image-to-image", "labels", "detection",
    "retrieval",
)  # fmt: skip
SETTING = re.compile(r"[A-Za-z_]\w*=(?:\d+/\d+|[\w.,:+*-]*)")

SUBJECT = (
    Field("model", "A model of your own", "file", endings=(*MODELS, ".zip"),
          help="An .onnx or a .pt2 file brings all it needs. A folder as model hubs have them: as a zip."),
    Field(
        "data",
        "Data to test it on",
        "file",
        help="A zip or folder of images with one folder per class, an .npz, or a table: .csv, .parquet, .jsonl.",
    ),
    Field("target", "Of a table: the column that it predicts", "text"),
    Field("subject", "Or a model that comes with Assay", "text", "fashion-cnn"),
)  # fmt: skip
KNOBS = (
    Field(
        "task", "What the model is asked for", "choice", choices=TASKS, folded=True, help="Where the data do not tell."
    ),
    Field("text", "Of a table: the column with texts", "text", folded=True),
    Field("train", "What it was trained on", "file", folded=True),
    Field("domains", "Data from elsewhere", "files", folded=True, help="Each is a domain, named like its file."),
    Field("domain_column", "Of a table: the column that says which domain", "text", folded=True),
    Field(
        "sensitive", "Of a table: what is known of the people", "several", folded=True, help="Such as sex, or age<25."
    ),
    Field("fixed", "Of a table: columns that nobody can change", "several", folded=True),
    Field("gallery", "What a model that returns vectors searches", "file", folded=True),
    Field("metric", "How its vectors are compared", "choice", choices=("cosine", "euclidean"), folded=True),
    Field("original", "The model that this one was made from", "file", endings=MODELS, folded=True),
    Field("bounds", "What input values lie between", "text", folded=True, help="Two numbers, such as 0 255."),
    Field("mean", "Subtracted from the input, per channel", "text", folded=True, help="Such as 0.5,0.5,0.5."),
    Field("std", "What it is then divided by", "text", folded=True),
    Field("size", "Scale images to so many pixels", "whole", low=1, high=4096, folded=True),
    Field("draws", "Of a random model: passes to average", "whole", low=1, high=1000, folded=True),
    Field("output", "Of several outputs, the one to read", "text", folded=True),
    Field("layout", "Where an ONNX model has its channels", "choice", choices=("nchw", "nhwc"), folded=True),
    Field("feed", "Inputs of an ONNX model that the data do not fill", "several", folded=True, help="NAME=NUMBER"),
    Field("builder", "What builds the network of a file of weights", "file", endings=(".py",), folded=True),
    Field("function", "Of a Python file: the function to call", "text", folded=True),
)
WORK = (
    Field("inputs", "The most inputs that a question looks at", "whole", low=1, high=10**9, folded=True),
    Field("seed", "Seed", "whole", 0, low=0, high=2**31 - 1, folded=True, help="The same seed gives the same numbers."),
    Field("device", "Where to compute", "choice", "cpu", choices=("cpu", "cuda", "auto"), folded=True),
)
GUARD = (
    Field("timeout", "Seconds that one question may take", "number", low=1, high=10**7, folded=True),
    Field("memory", "GB that the model's process may hold", "number", low=0.1, high=10**5, folded=True),
)
BUDGET = Field(
    "budget", "How hard to look", "text", "quick", help="quick, standard or full; or for how long: 90s, 10m, 2h."
)
PLAIN_BUDGET = Field("budget", "How hard to look", "choice", "quick", choices=BUDGETS)
PROBES = Field("probe", "Ask only these", "several", choices=lambda: shelf.names("probes"), folded=True)
STANDARDS = Field("standards", "Limits of your own", "file", endings=(".toml",), folded=True)
SETTINGS = Field("set", "Settings", "several", folded=True, help="NAME=VALUE, such as radius=8/255.")

TUNED = (
    Field("tries", "Tuning effort: configurations that were tried", "whole", low=1, high=10**9, folded=True,
          help="Before this one was chosen. It stands in the report beside the numbers."),
    Field("effort", "Tuning effort: what that took", "text", folded=True, help="Such as 2h, or 8 GPU hours."),
    Field("chosen_by", "Tuning effort: who chose", "text", folded=True, help="A person's experience, or a program."),
    Field("baseline", "Tuning effort: what it is compared with was tuned", "choice",
          choices=("equal", "less", "none"), folded=True, help="With equal effort, with less, or not at all."),
)  # fmt: skip

ASKING = (PROBES, STANDARDS, *WORK, *KNOBS, *TUNED, *GUARD)
"""Of an audit, and of a cure, which audits before and after."""


def asking_words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    words = []
    for name in ("budget", "inputs", "seed", "device", "timeout", "memory"):
        words += option(name, settings[name])
    words += [*options("probe", settings["probe"]), *tuned_words(settings)]
    if settings["standards"]:
        words += ["--standards", str(folder / "files" / settings["standards"])]
    return words


def asking_wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    return [*opening_wrong(settings, files), *tuned_wrong(settings)]


def tuning(settings: Mapping[str, Any]) -> Tuning | None:
    """What was told of it; None where nothing was."""
    told = {"tries": settings["tries"], "budget": settings["effort"], "by": settings["chosen_by"]}
    told |= {"baseline": settings["baseline"]}
    given = {name: value for name, value in told.items() if value is not None}
    return Tuning(**given) if given else None


def tuned_words(settings: Mapping[str, Any]) -> list[str]:
    told = tuning(settings)
    return [] if told is None else ["--tuned", told.typed]


def tuned_wrong(settings: Mapping[str, Any]) -> list[str]:
    try:
        tuning(settings)
    except AssayError as e:
        return [str(e)]
    return []


def subject_words(settings: Mapping[str, Any], folder: Path) -> str:
    if settings["model"] is None:
        return str(settings["subject"])
    path = folder / "files" / settings["model"]
    return f"{path}:{settings['function'] or 'build'}" if path.suffix.lower() == ".py" else str(path)


def opening_words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    """The options that say how the subject is opened."""
    files, words = folder / "files", []
    for name in ("data", "train", "gallery", "original"):
        words += option(name, None if settings[name] is None else files / settings[name])
    for name in (
        "target",
        "text",
        "task",
        "domain_column",
        "metric",
        "mean",
        "std",
        "size",
        "draws",
        "output",
        "layout",
    ):
        words += option(name, settings[name])
    for name in ("sensitive", "fixed", "feed"):
        words += options(name, settings[name])
    words += options("domain", (f"{Path(one).stem}={files / one}" for one in settings["domains"] or ()))
    if settings["bounds"]:
        words += ["--bounds", *settings["bounds"].split()]
    if settings["builder"]:
        words += ["--builder", f"{files / settings['builder']}:{settings['function'] or 'build'}"]
    return words


def option(name: str, value: Any) -> list[str]:
    """An option with its value, where there is one."""
    return [] if value is None else [f"--{name.replace('_', '-')}", str(value)]


def options(name: str, values: Iterable[str] | None) -> list[str]:
    return [word for value in values or () for word in option(name, value)]


def opening_wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    wrong = []
    if settings["model"] is None and settings["subject"] not in shelf.names("subjects"):
        wrong.append(
            f"There is no model {str(settings['subject'])[:40]!r} that comes with Assay; send one of your own."
        )
    if settings["model"] is not None and settings["data"] is None and not settings["model"].lower().endswith(".py"):
        wrong.append("A model of your own needs data to be tested on; send some along.")
    if settings["bounds"] and len(settings["bounds"].split()) != 2:
        wrong.append(f"What input values lie between: {settings['bounds'][:40]!r} is not two numbers; write 0 255.")
    if settings["function"] and not settings["function"].isidentifier():
        wrong.append(f"{settings['function'][:40]!r} is no name of a function.")
    return wrong + settings_wrong(settings)


def settings_wrong(settings: Mapping[str, Any]) -> list[str]:
    """Settings are numbers and names; none can name a file of the server's."""
    return [
        f"Settings: {each[:60]!r} is not NAME=VALUE with a number or a plain name; write radius=8/255."
        for each in settings.get("set") or ()
        if not SETTING.fullmatch(each)
    ]


def budget_wrong(text: str) -> list[str]:
    from assay.jobs.audit.rounds import seconds_named

    try:
        known = text in BUDGETS or seconds_named(text) is not None
    except AssayError as e:
        return [str(e)]
    return (
        [] if known else [f"How hard to look: {text[:40]!r} is none of {', '.join(BUDGETS)}, and no time such as 10m."]
    )
