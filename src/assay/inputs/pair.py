"""Pairs: two inputs at once, of one kind (`Pair`) or of two (`Both`). What happens to one happens to each by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from assay.errors import ShapeError
from assay.inputs.change import Change
from assay.inputs.features import Features
from assay.inputs.kind import Bounded, Kind
from assay.inputs.reach import BothReach, Reach
from assay.inputs.show import SideBySide

Two = tuple[Any, Any]  # a batch of the first, and one of the second with as many inputs


def pair_of(first: Kind[Any, Any], second: Kind[Any, Any]) -> Pair | Both:
    """Pairs of these kinds: one tensor n 2 *d where both are the same tensors, else two batches."""
    alike = first == second
    return Pair(first) if alike and isinstance(first, Bounded) else Both(first, second)


@dataclass(frozen=True)
class Pair(Bounded):
    """Two inputs of one kind in one tensor, 2 by *d."""

    one: Bounded

    @property
    def shape(self) -> tuple[int, ...]:
        return (2, *self.one.shape)

    @property
    def ranges(self) -> tuple[tuple[float, float], ...] | None:
        return None if self.one.ranges is None else self.one.ranges * 2

    @property
    def low(self) -> float:
        return self.one.low

    @property
    def high(self) -> float:
        return self.one.high

    @property
    def is_picture(self) -> bool:
        return self.one.is_image

    @property
    def reach(self) -> Reach:
        one = self.one.reach
        free, low, span, step, choices = (
            torch.stack([each, each]) for each in (one.free, one.low, one.span, one.step, one.choices)
        )
        return replace(one, free=free, low=low, span=span, step=step, choices=choices)

    def typed(self, x: Tensor) -> Tensor:  # n 2 *d -> n 2 *d
        return self.one.typed(x.flatten(0, 1)).view_as(x)

    def present(self, x: Tensor) -> Tensor:  # n 2 *d -> n 2 *d
        there = self.one.present(x.flatten(0, 1))
        return there if there.ndim == len(self.one.shape) else there.reshape(-1, 2, *there.shape[1:])

    def may_miss(self) -> Tensor:
        return self.one.may_miss()

    def place(self, index: tuple[int, ...]) -> str:
        return f"{self.one.place(index[1:])} of the {('first', 'second')[index[0]]}"

    def changes(self) -> Iterator[Change[Tensor]]:
        for change in self.one.changes():
            yield replace(change, function=partial(_each_by_itself, change.function))

    def features(self, x: Tensor) -> Features:  # 2 *d
        return Features.beside(self.one.features(x[0]), self.one.features(x[1]), stacked=True)

    def show(self, x: Tensor) -> SideBySide:  # 2 *d
        return SideBySide(self.one.show(x[0]), self.one.show(x[1]))


@dataclass(frozen=True)
class Both(Kind[Two, Two]):
    """An input of each of two kinds: an image and what is said of it, a question and an answer."""

    first: Kind[Any, Any]
    second: Kind[Any, Any]

    def check(self, x: Two) -> None:
        if not isinstance(x, tuple) or len(x) != 2 or len(x[0]) != len(x[1]):
            raise ShapeError("A batch of pairs is a tuple of two batches with as many inputs; give (first, second).")
        self.first.check(x[0])
        self.second.check(x[1])

    def everyday(self) -> Mapping[str, Change[Two]]:
        """Changes that both have, on both; the others on the one that has them, which the name says."""
        first, second = self.first.everyday(), self.second.everyday()
        found: dict[str, Change[Two]] = {}
        for name, change in first.items():
            other = second.get(name)
            key = name if other else f"first-{name}"
            found[key] = _joined(key, change, change, other)
        for name, change in second.items():
            if name not in first:
                found[f"second-{name}"] = _joined(f"second-{name}", change, None, change)
        return MappingProxyType(found)

    @property
    def reach(self) -> BothReach:
        return BothReach(self.first.reach, self.second.reach)

    def features(self, x: Two) -> Features:
        return Features.beside(self.first.features(x[0]), self.second.features(x[1]), stacked=False)

    def show(self, x: Two) -> SideBySide:
        return SideBySide(self.first.show(x[0]), self.second.show(x[1]))


def _each_by_itself(
    function: Callable[[Tensor, float, torch.Generator], Tensor], x: Tensor, strength: float, rng: torch.Generator
) -> Tensor:  # n 2 *d -> n 2 *d
    return function(x.flatten(0, 1), strength, rng).view_as(x)


def _joined(key: str, about: Change[Any], first: Change[Any] | None, second: Change[Any] | None) -> Change[Two]:
    def function(x: Two, severity: float, rng: torch.Generator) -> Two:
        a = x[0] if first is None else first(x[0], int(severity), rng)
        b = x[1] if second is None else second(x[1], int(severity), rng)
        return a, b

    return Change(key, about.about, function, (1, 2, 3, 4, 5), about.source)
