"""A ReLU that stops growing."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.replaced import replaced


class BoundedReLU(nn.Module):
    """min(max(x, 0), bound): what a layer hands on cannot pile up. A bound of infinity is the ReLU itself.

    Source: Zantedeschi, Nicolae and Rawat, AISec 2017, arXiv:1707.06728, sec. 4.1; a bound of 1 is theirs.
    """

    def __init__(self, bound: float = 1.0) -> None:
        super().__init__()
        if not bound > 0:
            raise AssayError(f"bound={bound} lets nothing through; give a number above 0, such as 1.")
        self.bound = bound

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *d
        return torch.relu(x) if math.isinf(self.bound) else x.clamp(0, self.bound)

    def extra_repr(self) -> str:
        return f"{self.bound:g}"


def relus(net: nn.Module) -> int:
    """How many ReLUs of a network are modules, which can be replaced; those called in a forward pass are not seen."""
    return sum(type(module) is nn.ReLU for module in net.modules())


def with_bounded_relus(net: nn.Module, bound: float) -> nn.Module:
    """A copy of `net`, with its weights, in which every nn.ReLU is bounded."""
    return replaced(net, lambda module: BoundedReLU(bound) if type(module) is nn.ReLU else None, "nn.ReLU")
