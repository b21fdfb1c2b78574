"""A bounded kind with each value as its share of its range, so that a radius of 0.03 is 3 % of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from assay.inputs.change import Change
from assay.inputs.features import Features
from assay.inputs.kind import Bounded
from assay.inputs.reach import Reach
from assay.inputs.show import Show


def in_shares(kind: Bounded) -> Bounded:
    """The kind, with values from 0 to 1; itself where they are so already."""
    if kind.ranges is None and (kind.low, kind.high) == (0.0, 1.0):
        return kind
    return InShares(kind)


@dataclass(frozen=True)
class InShares(Bounded):
    """(x - low) / span of another kind's values, 0 where a feature has no range; it changes and tells them as that."""

    whole: Bounded

    @property
    def natural(self) -> Bounded:
        return self.whole

    @property
    def shape(self) -> tuple[int, ...]:
        return self.whole.shape

    @property
    def is_image(self) -> bool:
        return self.whole.is_image

    @property
    def is_picture(self) -> bool:
        return self.whole.is_picture

    @property
    def reach(self) -> Reach:
        return self.whole.reach.in_shares(*self.whole.edges())

    def may_miss(self) -> Tensor:
        return self.whole.may_miss()

    def present(self, x: Tensor) -> Tensor:
        return self.whole.present(self.back(x))

    def place(self, index: tuple[int, ...]) -> str:
        return self.whole.place(index)

    def shares(self, x: Tensor) -> Tensor:  # n *d -> n *d
        """Natural values as shares."""
        low, span = (edge.to(x.device) for edge in self.whole.edges())
        return ((x.double() - low) / torch.where(span > 0, span, torch.inf)).to(x.dtype)

    def back(self, x: Tensor) -> Tensor:  # n *d -> n *d
        """Shares as natural values: whole where these are."""
        low, span = (edge.to(x.device) for edge in self.whole.edges())
        return self.whole.typed((low + x.double() * span).to(x.dtype))

    def changes(self) -> Iterator[Change[Tensor]]:
        for change in self.whole.everyday().values():
            yield replace(change, function=partial(self._through, change.function))

    def features(self, x: Tensor) -> Features:  # *d
        return self.whole.features(self.back(x[None])[0])

    def show(self, x: Tensor) -> Show:  # *d
        return self.whole.show(self.back(x[None])[0])

    def _through(
        self,
        function: Callable[[Tensor, float, torch.Generator], Tensor],
        x: Tensor,
        strength: float,
        rng: torch.Generator,
    ) -> Tensor:  # n *d -> n *d
        return self.shares(function(self.back(x), strength, rng))
