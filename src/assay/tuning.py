"""Tuning effort: how often, how long and by whom a model was tuned before it was measured, as its people tell it.

A reported number mixes the merit of a method with the skill and the effort of its tuner (Anand, Wang, Loog and van
Gemert, "Black Magic in Deep Learning", BMVC 2020). Its recommendations are the fields: the number stands beside the
tries, the budget and who chose, and a baseline is to be tuned with equal effort. `assay study` measures the share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from assay.errors import AssayError

Baseline = Literal["", "equal", "less", "none"]
LONGEST = 200  # letters of a budget, or of who chose
MOST_TRIES = 10**9
EXAMPLE = "tries=40,budget=2h,by=optuna,baseline=equal"
_BASELINES: Mapping[Baseline, str] = {
    "": "nobody has told",
    "equal": "tuned with the same effort",
    "less": "tuned with less effort: part of a difference from it may be the tuning's",
    "none": "not tuned: part of a difference from it may be the tuning's",
}


@dataclass(frozen=True, kw_only=True)
class Tuning:
    tries: int | None = None
    """Configurations that were tried before this one was chosen, itself among them."""
    budget: str = ""
    """What that took: "2h", "8 GPU hours"."""
    by: str = ""
    """Who chose: a person's experience, a program."""
    baseline: Baseline = ""
    """How what it is compared with was tuned."""

    def __post_init__(self) -> None:
        if self.tries is not None and not 1 <= self.tries <= MOST_TRIES:
            raise AssayError(f"--tuned tries={self.tries} is no number of tries; give a whole number from 1.")
        for name in ("budget", "by"):
            text = getattr(self, name)
            if len(text) > LONGEST or not text.isprintable() or "," in text:
                raise AssayError(f"--tuned {name}={text[:40]!r} is not up to {LONGEST} letters without a comma.")
        if self.baseline not in get_args(Baseline):
            raise AssayError(f"--tuned baseline={self.baseline!r} is none; choose equal, less or none.")
        if not self.typed:
            raise AssayError(f"--tuned tells nothing; write for example {EXAMPLE}.")

    @classmethod
    def read(cls, text: str) -> Tuning:
        """As it is typed: tries=40,budget=2h,by=optuna."""
        given: dict[str, Any] = {}
        for part in text.split(","):
            name, equals, value = (word.strip() for word in part.partition("="))
            if name not in cls.__dataclass_fields__ or not equals or not value or name in given:
                raise AssayError(f"--tuned {part.strip()[:60]!r} is not one of tries=N, budget=TIME, by=WHO and "
                                 f"baseline=equal|less|none, each once; write for example {EXAMPLE}.")  # fmt: skip
            given[name] = value
        if "tries" in given:
            tries = given["tries"]
            if not tries.isascii() or not tries.isdigit() or len(tries) > 10:
                raise AssayError(f"--tuned tries={tries[:40]!r} is no number of tries; give a whole number from 1.")
            given["tries"] = int(tries)
        return cls(**given)

    @property
    def typed(self) -> str:
        """What `read` makes the same of."""
        told = {"tries": self.tries, "budget": self.budget, "by": self.by, "baseline": self.baseline}
        return ",".join(f"{name}={value}" for name, value in told.items() if value)

    @property
    def says(self) -> str:
        """In a few words, beside a headline."""
        tries = "" if self.tries is None else f"{self.tries:,} {'try' if self.tries == 1 else 'tries'}"
        parts = [tries, self.budget, f"chosen by {self.by}" if self.by else ""]
        return ", ".join(part for part in parts if part) or f"baseline {_BASELINES[self.baseline]}"

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Each with its name; what was not told is told to be so."""
        return (
            ("Tries", f"{self.tries:,}" if self.tries is not None else _BASELINES[""]),
            ("Budget", self.budget or _BASELINES[""]),
            ("Chosen by", self.by or _BASELINES[""]),
            ("Baseline", _BASELINES[self.baseline]),
        )

    @property
    def caution(self) -> str:
        """How to read it."""
        best = (
            f"The best of {self.tries:,} tries looks better than it is where the choice was made on the inputs that "
            "are asked about here. "
            if self.tries is not None and self.tries > 1
            else ""
        )
        return (
            f"{best}This is the word of whoever asked; nothing of it was measured here. How much a result depends on "
            "its tuner, assay study measures."
        )


def unequal(before: Tuning | None, after: Tuning | None) -> str:
    """What to mind of two models that were not tuned alike; "" where they were, or where nothing is known of both."""
    if before == after or (after is not None and after.baseline == "equal"):
        return ""
    told = [f"{'before' if side is before else 'after'} {side.says}" for side in (before, after) if side is not None]
    if len(told) == 1:
        told.append("of the other nobody has told")
    return f"The two were not tuned alike ({'; '.join(told)}): part of the difference may be the tuning's."
