r"""Adversarial weight perturbation: train each step at the weights nearby that are worst for its batch.

    v_l  =  size ||w_l|| g_l / ||g_l||,   g = grad_w mean_i loss( f(x_i; w), y_i ),   for every kernel and matrix w_l
    w   <-  w - lr grad_w mean_i loss( f(x_i; w + v), y_i )

A minimum that is flat in the weights leaves less between the losses under attack of training and of test inputs: that
gap is what an adversarial training loses to overfitting. It costs a forward and backward pass a step. Biases and
normalisations, which have one dimension, stay where they are.

Source: Wu, Xia and Wang, NeurIPS 2020, arXiv:2004.05884, eq. 8 to 11 with one step, as in the public code.
Departs from print: weights go back before the optimiser steps and not after, so that weight decay sees their own; and
    the pass that finds v moves running means too, where the public code spends a copy of the model on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.fit import Augment, Loss, swiftly

TINY = 1e-12  # of a gradient's length: a kernel that no gradient reaches stays


class WeightPerturbation:
    """The two pieces that `fit` takes beside the model: `fit(model, ..., augment=p.augment, after_backward=p.back)`.

    `first` is the augmentation of the training, as that against an attacker, whose batches are the ones that weights
    move for; `loss` is the one that `fit` gets. `swift`: as in `fit`.
    """

    def __init__(
        self,
        model: nn.Module,
        size: float = 0.01,
        *,
        first: Augment | None = None,
        loss: Loss = F.cross_entropy,
        swift: bool = False,
    ) -> None:
        if not 0 <= size < math.inf:
            raise AssayError(f"size={size} is no share of a weight's length; give at least 0, such as 0.01.")
        self.model, self.size, self.first, self.loss = model, size, first, loss
        self._ask: Callable[[Tensor], Tensor] = swiftly(model) if swift else model
        self._moved: list[Tensor] = []
        self._before: list[Tensor] = []

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The batch as `first` makes it; the weights are moved for it until `back`."""
        if self.first is not None:
            x, y = self.first(x, y, rng)
        kernels: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad and p.ndim > 1]
        if self.size == 0 or not kernels:
            return x, y
        slopes = torch.autograd.grad(self.loss(self._ask(x), y), kernels)
        self._moved, self._before = kernels, [p.detach().clone() for p in kernels]
        with torch.no_grad():
            for p, slope, length, steep in zip(
                kernels, slopes, torch._foreach_norm(kernels), torch._foreach_norm(slopes), strict=True
            ):
                p.addcmul_(slope, length / steep.clamp_min(TINY), value=self.size)
        return x, y

    def back(self) -> None:
        """Give the weights back as they were before `augment`."""
        with torch.no_grad():
            for p, old in zip(self._moved, self._before, strict=True):
                p.copy_(old)
        self._moved, self._before = [], []
