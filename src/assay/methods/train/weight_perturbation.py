r"""Adversarial weight perturbation: train each step at the weights nearby that are worst for its batch.

    v_l  =  size ||w_l|| g_l / ||g_l||,   g = grad_w mean_i loss( f(x_i; w), y_i ),   for every kernel and matrix w_l
    w   <-  w - lr grad_w mean_i loss( f(x_i; w + v), y_i )

A minimum that is flat in the weights leaves less between the losses under attack of training and of test inputs: that
gap is what an adversarial training loses to overfitting. It costs a forward and backward pass a step. Biases and
normalisations, which have one dimension, stay where they are.

Source: Wu, Xia and Wang, NeurIPS 2020, arXiv:2004.05884, eq. 8 to 11 with one step, as in the public code.
Departs from print: the pass that finds v moves running means too, where the public code spends a copy of the model on
    it. As there, the optimiser steps from w + v, and v is taken off after.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.fit import Loss

TINY = 1e-12  # of a gradient's length: a kernel that no gradient reaches stays


class WeightPerturbation:
    """Of each step of a training: `move(x, y)`, its loss and gradient, the optimiser, `back()`.

    `ask` is the model as the training asks it, compiled or not. All is done in place, so that it can be recorded.
    """

    def __init__(
        self,
        model: nn.Module,
        size: float = 0.01,
        *,
        loss: Loss = F.cross_entropy,
        ask: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if not 0 <= size < math.inf:
            raise AssayError(f"size={size} is no share of a weight's length; give at least 0, such as 0.01.")
        self.size, self.loss, self.ask = size, loss, ask or model
        self.kernels: list[Tensor] = [p for p in model.parameters() if size and p.requires_grad and p.ndim > 1]
        self.by = [torch.zeros_like(p) for p in self.kernels]

    def move(self, x: Tensor, y: Tensor) -> None:  # n *d, n
        """Move the weights to the place nearby that is worst for this batch."""
        if not self.kernels:
            return
        slopes = torch.autograd.grad(self.loss(self.ask(x), y), self.kernels)
        with torch.no_grad():
            lengths, steep = torch._foreach_norm(self.kernels), torch._foreach_norm(slopes)
            for by, slope, long, high in zip(self.by, slopes, lengths, steep, strict=True):
                torch.mul(slope, self.size * long / high.clamp_min(TINY), out=by)
            torch._foreach_add_(self.kernels, self.by)

    @torch.no_grad()
    def back(self) -> None:
        """Take off what `move` added, once."""
        if self.kernels:
            torch._foreach_sub_(self.kernels, self.by)
            torch._foreach_zero_(self.by)
