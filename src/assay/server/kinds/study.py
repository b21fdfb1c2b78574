"""assay study run and assay study new, as a form. What people then do in a study is `tuning.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from assay import shelf
from assay.server.kinds import Field, Kind
from assay.server.kinds._opening import GUARD, option

KINDS = ("expert", "medium", "novice", "tpe")
SIMULATED, PEOPLE = "simulated", "people"


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    run = str(folder / "run")
    simulated = settings["who"] == SIMULATED
    words = ["study", "run", settings["subject"]] if simulated else ["study", "new", run, settings["subject"]]
    if simulated:
        tuners = ",".join(f"{name}={settings[name]}" for name in KINDS if settings[name])
        words += ["--tuners", tuners, "--tries", str(settings["tries"]), "--out", run]
    for name in (
        "title",
        "random",
        "minutes",
        "seeds",
        "most_epochs",
        "validation",
        "thresholds",
        "cut",
        "seed",
        "device",
    ):
        words += option(name, settings[name])
    words += ["--as-published"] if settings["as_published"] else []
    return words + option("timeout", settings["timeout"]) + option("memory", settings["memory"])


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    if settings["subject"] not in shelf.names("subjects"):
        return [f"The model to tune: there is no {settings['subject'][:60]!r}; take one that comes with Assay."]
    if settings["who"] == SIMULATED and not any(settings[name] for name in KINDS):
        return ["A study with simulated tuners needs one or more of some kind."]
    return []


KIND = Kind(
    title="Study who tunes",
    about="How much does a result depend on the person who tunes it? The same network, data, seed and time for all.",
    fields=(
        Field(
            "who", "Who tunes", "choice", SIMULATED, choices=(SIMULATED, PEOPLE),
            help="Programs, at once; or people, who take part at an address that the study has once it is made.",
        ),
        Field("title", "Name of the study", "text", help="What its page is called; who takes part does not see it."),
        Field("subject", "The model to tune", "text", "digits-mlp", help="A classifier that comes with Assay."),
        Field("expert", "Simulated experts", "whole", 5, low=0, high=200),
        Field("medium", "Simulated tuners with some experience", "whole", 5, low=0, high=200),
        Field("novice", "Simulated novices", "whole", 5, low=0, high=200),
        Field("tries", "Tries of each simulated tuner", "whole", 12, low=1, high=500),
        Field("minutes", "Minutes that a person has", "number", 120, low=0.1, high=10080),
        Field("random", "Random configurations, for reference", "whole", 100, low=0, high=10000),
        Field("tpe", "Tuners by optuna's estimator", "whole", 0, low=0, high=200, folded=True),
        Field("seeds", "Trainings of a final configuration", "whole", 10, low=1, high=100, folded=True),
        Field("most_epochs", "The most epochs of a try", "whole", 30, low=1, high=1000, folded=True),
        Field("validation", "Share of the training inputs that tries are judged by", "number", 0.2, low=0.01, high=0.9,
              folded=True),
        Field("thresholds", "Accuracies whose tries are counted", "text", "0.25,0.5", folded=True),
        Field("cut", "Months from which one is an expert", "number", 9, low=0.1, high=1200, folded=True),
        Field("as_published", "Groups and means as in print", "yes", False, folded=True),
        Field("seed", "Seed of the split and of every try", "whole", 0, low=0, high=2**31 - 1, folded=True),
        Field("device", "Where to compute", "choice", "cpu", choices=("cpu", "cuda", "auto"), folded=True),
        *GUARD,
    ),
    words=_words,
    more=_wrong,
)  # fmt: skip
