"""What one everyday change is: a function of inputs, strength and randomness, with the five strengths it is used at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from assay.errors import AssayError

X = TypeVar("X")
SEVERITIES = (1, 2, 3, 4, 5)
OURS = "Assay's own; no published benchmark stands behind the strengths"
Strengths = tuple[float, float, float, float, float]


@dataclass(frozen=True)
class Change(Generic[X]):
    """One everyday way for an input to go bad, for a batch of inputs of one kind.

    `function(x, strength, rng)` returns a new batch; what the strength means is its own and stands in `about`. The same
    state of `rng` gives the same change, and across severities the same places and directions wherever the draws do
    not depend on the strength: a higher severity then changes what the lower one did, and more.
    """

    name: str
    about: str
    function: Callable[[X, float, torch.Generator], X]
    strengths: Strengths
    source: str = OURS

    def __call__(self, x: X, severity: int, rng: torch.Generator) -> X:
        """The batch at a severity from 1 (mild) to 5."""
        if severity not in SEVERITIES:
            raise AssayError(f"Severity {severity!r} of {self.name} is not one of 1, 2, 3, 4, 5; 1 is the mildest.")
        return self.function(x, self.strengths[int(severity) - 1], rng)
