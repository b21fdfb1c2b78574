r"""Models that compare: which of two inputs has the higher value, and are the two the same?

Both answer a pair with one number. Its odds o, above 0 where the answer is the second of the classes, are the margin,
and (-o / 2, o / 2) the logits of the two classes. Two equal values have no order: such a pair has no class.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.held_out import Part
from assay.data.pairs import LIKENESS, ORDER, Pairs
from assay.errors import AssayError
from assay.tasks.classification import Classification
from assay.tasks.task import Choice, Task, Trivial, not_finite

ROUNDING = 1e-7  # a comparison of exactly 0 or 1 has no odds


class Logits(nn.Module):
    """A model of pairs that gives the logits of both classes in place of its one number."""

    def __init__(self, model: nn.Module, task: Comparison) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, pair: Tensor) -> Tensor:  # n 2 *d -> n 2
        half = self.task.odds(self.model(pair)) / 2
        return torch.stack([-half, half], 1)


class Comparison(Task):
    """What ranking and similarity share: a target is the place of the right answer among `classes`."""

    headline: ClassVar[str] = "accuracy"
    good: ClassVar[str] = "is the right one of two"
    gives: ClassVar[tuple[str, ...]] = ("comparison",)
    noun: ClassVar[str] = "pair"

    tie: float
    """Where the answer turns."""

    @abstractmethod
    def odds(self, out: Tensor) -> Tensor:  # n -> n
        """Above 0 where the answer is the second of `classes`."""

    @abstractmethod
    def outside(self, out: Tensor) -> str | None:  # n
        """Why these numbers are no comparisons, or None."""

    def wrong_output(self, out: Any, n: int) -> str | None:
        if not isinstance(out, Tensor):
            return f"it returned {type(out).__name__}, not a tensor"
        if out.shape != (n,):
            return f"it returned shape {tuple(out.shape)} for {n} pairs"
        return not_finite(out) or self.outside(out)

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.ndim != 1:
            return f"targets have shape {targets.shape}; give 0 or 1 for each pair"
        strange = np.flatnonzero(~np.isin(targets, (0, 1)))
        return f"the target of pair {strange[0]} is {targets[strange[0]]}, not 0 or 1" if len(strange) else None

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        return self.right(out, target).to(out.dtype)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        odds = self.odds(out)
        first = (odds == 0) & ~target.bool()  # even odds say the first of the classes, as equal logits do
        return (2 * target.to(out.dtype) - 1) * odds + first * torch.finfo(out.dtype).tiny

    def right(self, out: Tensor, target: Tensor) -> Tensor:
        return ((self.odds(out) > 0) == target.bool()) & ~out.isnan()

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-self.margin(out, target))

    def confidence(self, out: Tensor) -> Tensor:
        return torch.sigmoid(self.odds(out).abs())

    @property
    def no_promise(self) -> str:
        return (
            f"the task is {self.name()}: a comparison is held to its own scale by is-the-comparison-calibrated, and a "
            "distance is no probability"
        )

    def choice(self, model: nn.Module, data: Mapping[str, Pairs]) -> Choice:
        """Which of the two it says, among pairs of which one is right."""
        with_class = {split: Part(pairs, np.arange(pairs.untied)) for split, pairs in data.items()}
        return Choice(Logits(model, self), Classification(self.classes), with_class)

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        second = bool(np.asarray(targets).mean() > 0.5)
        return Trivial("always says the commonest class", torch.tensor(self._said(second)))

    @abstractmethod
    def _said(self, second: bool) -> float:
        """An output that says the first of the classes, or the second."""

    def words(self, out: Tensor) -> str:
        return f"{self.classes[int(self.odds(out) > 0)]}, {float(out):.3g}"

    def told(self, target: Tensor) -> str:
        return self.classes[int(target)]

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(targets, dtype=np.int64)


@dataclass(frozen=True)
class Ranking(Comparison):
    """A pair goes in, a comparison in [0, 1] comes out: above 0.5 the first has the higher value.

    Values lie in [low, high]; the right comparison of a and b is (a - b) / (2 (high - low)) + 1/2.
    """

    low: float
    high: float

    classes: ClassVar[tuple[str, ...]] = ORDER  # type: ignore[misc]
    output: ClassVar[str] = "one comparison from 0 to 1 for each pair (end the tail with a sigmoid)"
    gives: ClassVar[tuple[str, ...]] = ("comparison", "order")
    tie: ClassVar[float] = 0.5  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise AssayError(
                f"Ranking wants values that differ, got low {self.low:g} and high {self.high:g}; mend them."
            )

    def target(self, gap: NDArray[np.float64]) -> NDArray[np.float64]:  # n: first value less second -> n
        return np.asarray(gap / (2 * (self.high - self.low)) + 0.5)

    def odds(self, c: Tensor) -> Tensor:
        c = c.clamp(ROUNDING, 1 - ROUNDING)
        return c.log() - (-c).log1p()

    def outside(self, out: Tensor) -> str | None:
        beyond = out[(out < 0) | (out > 1)]
        return f"it returned {float(beyond[0]):g} for a pair" if len(beyond) else None

    def _said(self, second: bool) -> float:
        return 0.75 if second else 0.25


@dataclass(frozen=True)
class Similarity(Comparison):
    """A pair goes in, a distance comes out: below the threshold the two are the same."""

    threshold: float

    classes: ClassVar[tuple[str, ...]] = LIKENESS  # type: ignore[misc]
    output: ClassVar[str] = "one distance of at least 0 for each pair"

    def __post_init__(self) -> None:
        if not 0 < self.threshold < float("inf"):
            raise AssayError(f"Similarity wants a threshold above 0, got {self.threshold:g}; give a distance.")

    @property
    def tie(self) -> float:  # type: ignore[override]
        return self.threshold

    def odds(self, distance: Tensor) -> Tensor:
        return (self.threshold - distance) / self.threshold

    def outside(self, out: Tensor) -> str | None:
        beyond = out[out < 0]
        return f"it returned {float(beyond[0]):g} for a pair" if len(beyond) else None

    def _said(self, second: bool) -> float:
        return 0.0 if second else 2 * self.threshold
