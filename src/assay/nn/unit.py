"""Descriptors of length 1, so that a product of two is the cosine of the angle between them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize


class Unit(nn.Module):
    """A model that returns vectors, each brought to length 1; 0 stays 0."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n s
        out: Tensor = self.model(x)
        return normalize(out, dim=1) if isinstance(out, Tensor) and out.ndim == 2 else out
