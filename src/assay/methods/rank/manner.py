"""How a walk is made, beyond where to: in which region, charged for what, with what momentum.

What `walk` takes as a mask and as penalties, said in numbers that fit on a command line.

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.3 (Algorithm 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypedDict, get_args

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.rank.penalties import Penalties, SparseForm

Momentum = Literal["printed", "classic"]


class Ways(TypedDict):
    """The settings of `walk` that a manner is made of."""

    mask: Tensor | None
    penalties: Penalties
    damping: float
    momentum: Momentum


@dataclass(frozen=True)
class Manner:
    """`region` is top, left, bottom, right in pixels, the last two not included; the others are as for `walk`."""

    region: tuple[int, ...] = ()
    tv: float = 0.0
    sparse: float = 0.0
    sparse_form: SparseForm = "smooth"
    close: float = 0.0
    damping: float = 0.0
    momentum: Momentum = "printed"

    def __post_init__(self) -> None:
        if self.region and (
            len(self.region) != 4
            or min(self.region) < 0
            or not (self.region[0] < self.region[2] and self.region[1] < self.region[3])
        ):
            raise AssayError(
                f"The region {','.join(map(str, self.region))} is none; give top,left,bottom,right in pixels, such as "
                "0,0,4,8 for the upper half of 8 x 8."
            )
        if not 0 <= self.damping < float("inf"):
            raise AssayError(f"The damping {self.damping:g} must be at least 0; 0 leaves momentum out.")
        if self.momentum not in get_args(Momentum):
            raise AssayError(f"There is no momentum {self.momentum!r}; choose {' or '.join(get_args(Momentum))}.")
        _ = self.penalties  # says what is wrong with them now

    @classmethod
    def name(cls) -> str:
        return "the walk"

    @cached_property
    def penalties(self) -> Penalties:
        return Penalties(tv=self.tv, sparse=self.sparse, sparse_form=self.sparse_form, close=self.close)

    def mask(self, x: Tensor) -> Tensor | None:  # n *c h w -> h w
        """Where inputs may change; None: everywhere."""
        if not self.region:
            return None
        top, left, bottom, right = self.region
        if x.ndim < 3 or bottom > x.shape[-2] or right > x.shape[-1]:
            raise AssayError(
                f"The region {','.join(map(str, self.region))} does not lie in inputs of shape {tuple(x.shape[1:])}; "
                "give top,left,bottom,right within an image."
            )
        mask = torch.zeros(x.shape[-2:], dtype=torch.bool, device=x.device)
        mask[top:bottom, left:right] = True
        return mask

    def inside(self, heat: Tensor) -> Tensor:  # n h w -> n h' w'
        """The part of a map where it can be other than 0; two maps are alike elsewhere whatever the model."""
        if not self.region:
            return heat
        top, left, bottom, right = self.region
        return heat[..., top:bottom, left:right]

    def ways(self, x: Tensor) -> Ways:  # n *d
        """What to give to `walk` for these inputs."""
        return {
            "mask": self.mask(x),
            "penalties": self.penalties,
            "damping": self.damping,
            "momentum": self.momentum,
        }

    def told(self) -> str:
        """What is not as usual, in words; empty where nothing is."""
        charged = {"roughness": self.tv, "the number of values changed": self.sparse, "length": self.close}
        parts = [f"charged {weight:g} for {what}" for what, weight in charged.items() if weight]
        if self.region:
            top, left, bottom, right = self.region
            parts.insert(0, f"only in rows {top} to {bottom - 1} and columns {left} to {right - 1}")
        if self.damping:
            parts.append(f"with {self.momentum} momentum of {self.damping:g}")
        return ", ".join(parts)

    def changed(self) -> dict[str, str]:
        """The settings that are not the usual ones, as they are typed."""
        usual, told = Manner(), {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value != getattr(usual, name):
                told[name] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return told


PLAIN = Manner()
