"""A classifier with its logits scaled and shifted: what temperature and vector scaling leave behind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.errors import ShapeError


class Scaled(nn.Module):
    """w * z + b of another model's logits z; with all w = 1/T and b = 0 the answer stays and the confidence moves.

    Guo et al., ICML 2017, arXiv:1706.04599, sec. 4.2. Both are buffers, as fitted afterwards and not trained; it starts
    as w = 1, b = 0, which leaves the logits as they are. The model is held, not copied.
    """

    scale: Tensor  # c
    shift: Tensor  # c

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # a wrapper does not change the mode of what it wraps
        self.register_buffer("scale", torch.ones(classes))
        self.register_buffer("shift", torch.zeros(classes))

    def set(self, scale: Tensor, shift: Tensor) -> None:  # c, c
        for given, kept in ((scale, self.scale), (shift, self.shift)):
            if given.shape != kept.shape:
                raise ShapeError(f"Scaled got {tuple(given.shape)} for {len(kept)} classes; give one number for each.")
            kept.copy_(given)

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n c
        out: Tensor = self.model(x) * self.scale + self.shift
        return out
