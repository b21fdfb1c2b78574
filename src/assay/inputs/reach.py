"""What an attacker may change of an input, in which norms, and what a radius means there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["linf", "l2", "words", "characters"]


@dataclass(frozen=True, eq=False)
class Reach:
    """Values in a box. A radius is a share of the range `span` of each feature, in either norm.

    `step` is the smallest change of a feature: 0 where any value will do, 1 for an integer. A category has no order, so
    that its codes have no distance: its step is its whole range, and no ball smaller than that moves it. A search
    without gradients may give it any of its `choices` codes (0 where a feature is no category).
    """

    norms: tuple[Norm, ...]
    gradient: bool  # whether small steps along a gradient make sense: some feature is free and has no step
    free: Tensor  # *d bool: what may change at all
    low: Tensor  # *d float64, natural units
    span: Tensor  # *d float64, natural units
    step: Tensor  # *d float64, natural units
    choices: Tensor  # *d int64
    scale: str = "a share of each feature's range"

    def settled(self, x: Tensor, clean: Tensor) -> Tensor:  # n *d, n *d -> n *d
        """What a proposed change comes to: inside the box, in whole steps, only where something may change.

        Steps are taken from the clean value and cut off towards it, so that no norm of the change grows: what was
        inside a ball around `clean`, a point of the box, stays inside.
        """
        low, span, step = (edge.to(x.device) for edge in (self.low, self.span, self.step))
        change = torch.minimum(torch.maximum(x.double(), low), low + span) - clean.double()
        # a change of one step less a rounding error is one step
        whole = torch.trunc(change / torch.where(step > 0, step, 1.0) * (1 + 1e-6)) * step
        change = torch.where(step > 0, whole, change)
        moved = (clean.double() + change).to(x.dtype)
        return torch.where(self.free.to(x.device) & (change != 0), moved, clean)


@dataclass(frozen=True)
class WordReach:
    """Words and characters of a text, which have no gradient; a radius is the share of words that may change."""

    norms: tuple[Norm, ...] = ("words", "characters")
    gradient: bool = False
    scale: str = "a share of the words, or of the characters"


@dataclass(frozen=True, eq=False)
class BothReach:
    """Each of two inputs within its own reach."""

    first: Reach | WordReach | BothReach
    second: Reach | WordReach | BothReach

    @property
    def gradient(self) -> bool:
        return self.first.gradient and self.second.gradient

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The norms that both have."""
        return tuple(norm for norm in self.first.norms if norm in self.second.norms)


AnyReach = Reach | WordReach | BothReach
