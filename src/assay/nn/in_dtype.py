"""A network that computes in another floating point than it is asked in."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class InDtype(nn.Module):
    """The network with its weights and all that it computes in `dtype`; what goes in and comes out is as before.

    `tokens` are numbers of words, which go in as they are: rounded, they would be other words.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, *, tokens: bool = False) -> None:
        super().__init__()
        self.model, self.dtype, self.tokens = model.to(dtype), dtype, tokens
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *k
        out: Tensor = self.model(x if self.tokens else x.to(self.dtype))
        return out.to(x.dtype)
