"""What an attacker may change of an input, in which norms, and what a radius means there."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    free: Tensor  # *d bool: what may change at all; n *d where that is another of each input (a padding)
    low: Tensor  # *d float64, natural units
    span: Tensor  # *d float64, natural units
    step: Tensor  # *d float64, natural units
    choices: Tensor  # *d int64
    scale: str = "a share of each feature's range"

    def settled(self, x: Tensor, clean: Tensor) -> Tensor:  # n *d, n *d -> n *d
        """What a proposed change comes to: inside the box, in whole steps, only where something may change.

        Steps are taken from the clean value and cut off towards it, so that no norm of the change grows: what was
        inside a ball around `clean`, a point of the box, stays inside. A cell that is missing stays so, and none goes
        missing.
        """
        low, span, step = (edge.to(x.device) for edge in (self.low, self.span, self.step))
        change = torch.minimum(torch.maximum(x.double(), low), low + span) - clean.double()
        # a change of one step less a rounding error is one step
        whole = torch.trunc(change / torch.where(step > 0, step, 1.0) * (1 + 1e-6)) * step
        change = torch.where(step > 0, whole, change)
        moved = torch.minimum(torch.maximum(clean.double() + change, low), low + span).to(x.dtype)
        return torch.where(self.free.to(x.device) & (change.abs() > 0), moved, clean)  # NaN is no change

    @property
    def coded(self) -> Tensor:
        """Where a value is the code of a category, so that its size says nothing: *d."""
        return self.choices > 0

    @property
    def smooth(self) -> Tensor:
        """What may take any value of its range: *d, or n *d."""
        return self.free & (self.step == 0)

    def movable(self, codes: bool = False) -> Tensor:  # -> () or n bool
        """Whether anything may change at all, of each input where that differs; categories where `codes` may."""
        may = self.free & (~self.coded | codes)
        return may.flatten(self.free.ndim - self.low.ndim).any(-1)

    @property
    def mask(self) -> Tensor | None:
        """What a gradient may move, whole numbers among it: `settled` brings them to whole steps. None: all of it."""
        ordered = self.free & ~self.coded
        return None if bool(ordered.all()) else ordered

    def take(self, rows: Tensor) -> Reach:
        """That of some of the inputs."""
        return self if self.free.ndim == self.low.ndim else replace(self, free=self.free[rows])

    def to(self, device: torch.device) -> Reach:
        parts = {name: getattr(self, name).to(device) for name in ("free", "low", "span", "step", "choices")}
        return replace(self, **parts)

    def in_shares(self, low: Tensor, span: Tensor) -> Reach:  # *d or (), *d or ()
        """The same of values that are shares of these ranges; what has no range is 0."""
        wide = torch.where(span > 0, span, torch.inf)
        return replace(self, low=(self.low - low) / wide, span=self.span / wide, step=self.step / wide)

    def told(self, codes: int = 0) -> str:
        """How such inputs may change, where not every value may by any amount, in words that follow a size."""
        free = self.free if self.free.ndim == self.low.ndim else self.free.any(0)
        whole, coded = free & (self.step > 0) & ~self.coded, free & self.coded
        still = int((~free & (self.span > 0)).sum())
        parts = ["whole numbers in whole steps"] if bool(whole.any()) else []
        if bool(coded.any()):
            count = f"any {codes} categories" if codes > 1 else "any one category"
            parts.append(f"{count} at will" if codes else "categories not at all")
        if still:
            parts.append(f"{still} fixed {'values' if still > 1 else 'value'} never")
        return "".join(f", {part}" for part in parts)

    def of_proofs(self) -> str:
        """What a proof over every change of a size says of such inputs; nothing to add where all of it may happen."""
        told = self.told()
        if not told:
            return ""
        codes = bool((self.free & self.coded).any())
        return (
            f"A proof lets every value take any change of that size, and an attack what can happen{told}: what is "
            "proved of the one holds for the other."
            + (" Of a category that takes another code nothing is proved." if codes else "")
        )


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
