"""A model that changes torch for the whole process, or wants it changed: gradients off, another type by default.

Whoever asks it finds torch as it was before. The model itself finds the default type for which it was made.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Contained(nn.Module):
    """The same model, asked with `default` as torch's type; type and gradients are put back after each answer."""

    def __init__(self, model: nn.Module, default: torch.dtype) -> None:
        super().__init__()
        self.model, self.default = model, default
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.default)
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                out: Tensor = self.model(x)
        finally:
            torch.set_default_dtype(before)
        return out
