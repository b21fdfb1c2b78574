"""A model that takes only so many inputs at a time, as one does whose buffers were made for a batch of that size."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class InPieces(nn.Module):
    """The same model, shown at most so many inputs at once, whatever it is asked."""

    def __init__(self, model: nn.Module, most: int) -> None:
        super().__init__()
        self.model, self.most = model, most
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        return torch.cat([self.model(piece) for piece in torch.split(x, self.most)])


def at_a_time(model: nn.Module) -> float:
    """How many inputs this model takes at once: a layer that is watched meanwhile runs once in a pass of no more."""
    return min((part.most for part in model.modules() if isinstance(part, InPieces)), default=math.inf)
