"""A model that is asked without gradients, whoever asks: one that calls `x.numpy()` refuses an input that wants one."""

from __future__ import annotations

from torch import Tensor, nn


class Detached(nn.Module):
    """The model, of inputs that carry no gradient: neither does what it answers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        out: Tensor = self.model(x.detach())
        return out.detach()
