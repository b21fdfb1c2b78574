"""assay claims test, as a form."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from assay import shelf
from assay.server.kinds import Field, Kind
from assay.server.kinds._opening import BUDGET, WORK, budget_wrong, option

ID = re.compile(r"([\w-]+)/[\w-]+")


def _words(settings: Mapping[str, Any], folder: Path) -> list[str]:
    words = ["claims", "--ledger", str(folder / "run" / "ledger"), "test"]
    words += ["--all"] if settings["all"] else settings["claim"]
    for name in ("budget", "seed", "device"):
        words += option(name, settings[name])
    return words


def _wrong(settings: Mapping[str, Any], files: Collection[str]) -> list[str]:
    claims, wrong = settings["claim"] or [], budget_wrong(settings["budget"])
    if bool(claims) == bool(settings["all"]):
        wrong.append("Name the claims to test, or take all of them; not both.")
    for each in claims:
        found = ID.fullmatch(each)
        if found is None or found[1] not in shelf.names("claims"):
            wrong.append(f"There is no claim {each[:60]!r}; the page of claims lists them.")
    return wrong


KIND = Kind(
    title="Test claims",
    about="Run the studies behind published statements, and record whether they hold here.",
    fields=(
        Field(
            "claim", "Claims", "several", help="As the page of claims names them, such as co2021/jacobian-similarity."
        ),
        Field("all", "All of them", "yes", False, help="Then the time below says how long: those that fit are run."),
        BUDGET,
        *(each for each in WORK if each.name != "inputs"),
    ),
    words=_words,
    more=_wrong,
)
