"""Kinds of jobs: what a form asks for, and which words of the command line that makes. One file a kind, with a KIND.

    KIND = Kind(
        title="Audit a model",
        about="Many questions, judged.",
        fields=(Field("budget", "How hard to look", "choice", "quick", choices=("quick", "standard", "full")),),
        words=lambda settings, folder: ["audit", "fashion-cnn", "--budget", settings["budget"], "--out", ...],
    )

A form posts texts. `Kind.read` makes settings of them, each of its field's type and within its bounds, or says in one
line each what is wrong; `Kind.check` holds settings to the same, wherever they come from. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from assay.errors import AssayError

Type = Literal["text", "whole", "number", "yes", "choice", "several", "file", "files"]
LONGEST = 2000
"""Characters of one text, and entries of one list."""


@dataclass(frozen=True)
class Field:
    """One line of a form."""

    name: str
    label: str
    type: Type
    default: Any = None
    """None: it may be left empty, and is not passed on then."""
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: tuple[str, ...] | Callable[[], Sequence[str]] = ()
    """Of a choice, or of several; a function where they are looked up."""
    endings: tuple[str, ...] = ()
    """Of a file: how its name may end; empty: however. One that may end in .zip may be a folder that was unpacked."""
    refuse: Callable[[Path, str], None] = field(default=lambda path, name: None)
    """Of a file, or a folder that was unpacked, and its name: raises where it is not to be kept; nothing is opened."""
    help: str = ""
    folded: bool = False
    """Shown among the advanced ones."""
    needed: bool = False

    def options(self) -> tuple[str, ...]:
        return tuple(self.choices() if callable(self.choices) else self.choices)

    def read(self, text: str | Sequence[str]) -> Any:
        """What was typed, as a value; raises ValueError with the words for it."""
        if self.type in ("several", "files"):
            return [part for part in ([text] if isinstance(text, str) else list(text)) if part]
        one = (text if isinstance(text, str) else text[-1] if text else "").strip()
        if not one:
            return None
        if self.type == "yes":
            if one.lower() not in _YES | _NO:
                raise ValueError(f"{one[:40]!r} is neither yes nor no")
            return one.lower() in _YES
        if self.type not in ("whole", "number"):
            return one
        try:
            value = float(one)
        except ValueError:
            raise ValueError(f"{one[:40]!r} is no number") from None
        if self.type == "whole" and math.isfinite(value) and value == int(value):
            return int(value)
        return value

    def wrong(self, value: Any, files: Collection[str]) -> str:
        """Why this value cannot be taken; "" where it can."""
        if value is None or value == []:
            return "is needed" if self.needed else ""
        if self.type in ("whole", "number"):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return f"{value!r} is no number"
            if self.type == "whole" and value != int(value):
                return f"{value:g} is no whole number"
            low, high = self.low, self.high
            if (low is not None and value < low) or (high is not None and value > high):
                least, most = ("" if bound is None else f"{bound:g}" for bound in (low, high))
                span = (
                    f"from {least} to {most}" if least and most else f"{least} or more" if least else f"{most} or less"
                )
                return f"{value:g} is out of range; give {span}"
            return ""
        if self.type == "yes":
            return "" if isinstance(value, bool) else f"{value!r} is neither yes nor no"
        many = value if self.type in ("several", "files") else [value]
        if not isinstance(many, list) or not all(isinstance(one, str) for one in many):
            return f"{str(value)[:40]!r} is no text"
        if len(many) > LONGEST or any(len(one) > LONGEST for one in many):
            return f"is too long; {LONGEST} is the most"
        for one in many:
            if "\0" in one or "\n" in one:
                return f"{one[:40]!r} is more than one line"
            if self.type in ("file", "files"):
                if one not in files:
                    return f"the file {one[:80]!r} did not arrive; choose it again"
                unpacked = ".zip" in self.endings and "." not in one  # of an archive, as uploads keep it
                if self.endings and not unpacked and not one.lower().endswith(self.endings):
                    return f"{one[:80]!r} is not one that can be read here; it has to end in {', '.join(self.endings)}"
            elif self.type in ("choice", "several") and (known := self.options()) and one not in known:
                few = f"; choose from {', '.join(known)}" if len(known) < 12 else ""
                return f"there is no {one[:80]!r}{few}"
        return ""


_YES, _NO = {"yes", "on", "true", "1"}, {"no", "off", "false", "0"}
Words = Callable[[Mapping[str, Any], Path], list[str]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    title: str
    about: str
    fields: tuple[Field, ...]
    words: Words
    """From whole settings (every field is there) and the job's folder to the words after `assay`."""
    more: Callable[[Mapping[str, Any], Collection[str]], list[str]] = lambda settings, files: []
    """What else is wrong, beyond each field by itself."""
    listed: bool = True
    """Whether people choose it; one that a page of its own submits is not."""
    good: tuple[int, ...] = (0, 1, 3)
    """Statuses with which the command did what it was asked; 1 and 3 are verdicts."""
    progress: Callable[[Path], float | None] = field(default=lambda folder: None)
    """From 0 to 1, read off what the command has left in the job's folder; None: not known."""

    def read(self, posted: Mapping[str, str | Sequence[str]]) -> tuple[dict[str, Any], list[str]]:
        """Settings out of a form, and one line for each text that is not what its field asks for."""
        settings, wrong = {}, []
        for each in self.fields:
            try:
                value = each.read(posted.get(each.name, ""))
            except ValueError as e:
                wrong.append(f"{each.label}: {e}.")
                continue
            if value is not None and value != []:
                settings[each.name] = value
            elif each.type == "yes" and each.name in posted:
                settings[each.name] = False
        return settings, wrong

    def check(self, settings: Mapping[str, Any], files: Collection[str] = ()) -> list[str]:
        """One line for each thing that is wrong; none: it can be submitted."""
        known = {each.name for each in self.fields}
        wrong = [f"There is no setting {name[:40]!r}; leave it out." for name in settings if name not in known]
        for each in self.fields:
            if says := each.wrong(settings.get(each.name), files):
                wrong.append(f"{each.label}: {says}.")
        return wrong or self.more(self.whole(settings), files)

    def whole(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """With the defaults of what was left out."""
        given = {name: value for name, value in settings.items() if value is not None}
        return {each.name: given.get(each.name, each.default) for each in self.fields}

    def argv(self, settings: Mapping[str, Any], folder: Path) -> list[str]:
        """The words after `assay`: what was uploaded is in folder/files, what comes out goes to folder/run."""
        return self.words(self.whole(settings), folder)


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


@cache
def load(name: str) -> Kind:
    if name not in names():
        raise AssayError(f"There is no kind of job {name[:40]!r}; choose from {', '.join(names())}.")
    kind = importlib.import_module(f"{__name__}.{name}").KIND
    assert isinstance(kind, Kind)
    return kind
