"""The folders of runs: how one is named, made, and found again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from assay.store.files import (
    first_key,
    make_folder,
    naming,
    new_folder,
    strict_json,
    sweep,
    sweep_stub,
    turn,
    write_atomically,
)

NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9._+-]+")
"""Of a run's folder; other folders beside it are none of ours."""


def slug(text: str) -> str:
    """A user's name for a thing, as a file name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")[:60] or "subject"


def open_run(root: Path, subject: str, key: str, manifest: Mapping[str, Any]) -> Path:
    """The folder of the audit with this key: one that was begun, whether it ended or not, else a new one.

    Two audits that begin at once get the same folder for the same key, and never one for two. The time in a name is
    for people: nothing hangs on it, so that a clock that was set back does no harm.
    """
    with naming(root / "run.json"):
        make_folder(root)
    with turn(root):
        for beside in list(root.glob("*")):
            if NAME.fullmatch(beside.name):
                sweep_stub(beside)
        for found in sorted(root.glob("*/run.json"), reverse=True):
            if first_key(root, f"{found.parent.name}/run.json") == key:
                sweep(found.parent)
                return found.parent
        folder = _new(root, f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{slug(subject)}")
        write_atomically(folder / "run.json", strict_json({"key": key, **manifest}))
    return folder


def _new(root: Path, name: str) -> Path:
    with naming(root / name):
        return next(
            folder for twin in count(1) if new_folder(folder := root / (name if twin == 1 else f"{name}-{twin}"))
        )
