"""A classifier whose probabilities go through a fitted map: what Dirichlet calibration and a mixture leave behind."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Remapped(nn.Module):
    """W log p + b of another model's probabilities p (Kull et al., NeurIPS 2019, arXiv:1910.12656).

    Both are buffers, fitted afterwards; W = I and b = 0, as it starts, change nothing. The model is held, not copied.
    """

    weight: Tensor  # c c
    shift: Tensor  # c

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # a wrapper does not change the mode of what it wraps
        self.register_buffer("weight", torch.eye(classes))
        self.register_buffer("shift", torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n c
        out: Tensor = self.model(x).log_softmax(-1) @ self.weight.T + self.shift
        return out


class Mixed(nn.Module):
    """The log of w_1 softmax(z/T) + w_2 softmax(z) + w_3/c (Zhang et al., ICML 2020, arXiv:2003.07329).

    T and w are buffers, fitted afterwards; T = 1 and w = (1, 0, 0), as it starts, change nothing. The model is held,
    not copied.
    """

    temperature: Tensor  # ()
    weights: Tensor  # 3

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.register_buffer("temperature", torch.tensor(1.0))
        self.register_buffer("weights", torch.tensor([1.0, 0.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n c
        z: Tensor = self.model(x)
        parts = torch.stack(
            ((z / self.temperature).log_softmax(-1), z.log_softmax(-1), torch.full_like(z, 1 / z.shape[-1]).log())
        )
        return torch.logsumexp(parts + self.weights.log()[:, None, None], 0)
