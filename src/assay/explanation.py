"""Explanation: what is told of one input, its maps and the trial of each, as a record. `jobs/explain.py` makes one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.methods.explain.trial import Check, Scored, Verdict

Kind = Literal["image", "table", "text", "series"]
Units = Literal["patches", "superpixels", "pixels", "columns", "words", "stretches"]
Criterion = Literal["held", "moved"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """What is explained. `names` are the words, columns or stretches of time, `values` what is recorded in each column,
    `told` the same in words where the kind of input has them, `lines` a series by its channels."""

    what: str
    kind: Kind
    image: NDArray[np.float32] | None = None  # c h w in [0, 1]
    names: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    told: tuple[str, ...] = ()
    lines: tuple[tuple[str, tuple[float, ...]], ...] = ()
    truth: str | None = None

    @property
    def recorded(self) -> tuple[str, ...]:
        """What stands in each column or stretch, in words."""
        return self.told or tuple(f"{v:.4g}" for v in self.values)


@dataclass(frozen=True, kw_only=True)
class Map:
    """One map as it is shown, which is also how it is tried: features rank by the sum of |value|.

    `picks` are the features in order, where the method picks them. Where a map promises to add up, `base` is where it
    starts from (`start` in words), and base + sum of values - missed is the score that is explained.
    """

    name: str
    says: str
    shown: NDArray[np.float64]  # h w, words, or columns
    signed: bool
    scores: tuple[Scored, ...]
    likeness: float | None  # to the maps of models with new weights, signs left out; None where it could not be asked
    signed_likeness: float | None  # the same if signs count
    gap: float | None  # |missed| as a share of score - base
    verdict: Verdict
    checks: tuple[Check, ...]
    picks: tuple[int, ...] = ()
    decided: str = ""
    base: float | None = None
    missed: float | None = None
    start: str = ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why the model says what it says of one input, as far as its maps can be believed.

    Where the answer is no class there are no `classes`, `probabilities`, `answer` and `rival`: `says` is the answer in
    words, and `number` the one number of it that maps explain. Of a class, `number` is what its score is.
    """

    subject: str
    about: str
    input: Input
    score: float  # of the answer: the logit, or the number, that maps explain
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    answer: int | None = None
    rival: int | None = None
    says: str = ""
    number: str = "its logit"
    of: str | None = None  # which part of the answer, where somebody said so
    picture: NDArray[np.float32] | None = None  # c h w in [0, 1]: the answer, where it is an image
    units: Units
    criterion: Criterion
    methods: tuple[str, ...]
    maps: tuple[Map, ...]
    left_out: tuple[tuple[str, str], ...]
    groups: NDArray[np.int64]  # of the entries that are shown
    reference: str
    budget: str
    seed: int
    device: str
    when: str
    seconds: float
    source: tuple[str, ...]
    page: Path
