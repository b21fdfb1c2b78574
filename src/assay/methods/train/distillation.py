r"""Defensive distillation: a student of the same form learns what a teacher says at a high temperature.

    teacher   min_w  mean_i  CE( z(x_i; w) / T, y_i )
    student   min_v  mean_i  -sum_c  t_c(x_i) log softmax( z(x_i; v) / T )_c,      t = softmax( z(x_i; w) / T )

and the student answers with softmax(z), T = 1: its logits have grown about T-fold, so that the gradient of its
cross-entropy rounds to nothing and an attacker who follows that gradient is lost. One who climbs the logits is not:
believe the margin attacks of an audit.

Source: Papernot, McDaniel, Wu, Jha and Swami, S&P 2016, arXiv:1511.04508, sec. IV; broken by Carlini and Wagner, S&P
    2017, arXiv:1608.04644, sec. VIII.
Departs from print: both losses are times T, which leaves their minima where they are. Without it the logits have T
    times as far to go on gradients that are T times smaller.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError


class Distillation:
    """What `fit` takes: `loss` for the teacher; `augment` and `loss` of `Distillation(T, teacher)` for the student."""

    def __init__(self, temperature: float, teacher: nn.Module | None = None) -> None:
        if not 0 < temperature < math.inf:
            raise AssayError(f"temperature={temperature} is none; give a number above 0, such as 40.")
        self.temperature, self.teacher = temperature, teacher

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n c
        """The same inputs with what the teacher says of them."""
        assert self.teacher is not None
        with torch.no_grad():
            return x, (self.teacher(x) / self.temperature).softmax(1)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:  # n c, n or n c -> scalar
        return self.temperature * F.cross_entropy(logits / self.temperature, y)
