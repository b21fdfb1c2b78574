r"""Knowledge distillation: a smaller network learns what a larger one says, and what the labels say.

    min_v  mean_i  mix T^2 CE( softmax(t_i / T), softmax(z_i / T) ) + (1 - mix) CE( y_i, softmax(z_i) )

with t the teacher's logits and z the student's. T^2 keeps the two parts in proportion whatever T is: the gradient of
the first shrinks as 1 / T^2. With mix = 0 it is the plain training, whatever T.

Source: Hinton, Vinyals and Dean 2015, arXiv:1503.02531, sec. 2. The loss at a temperature is that of
    `methods/train/distillation.py`, which is already times T.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.compress.surgery import cut, edges
from assay.methods.train.distillation import Distillation


class Taught(Distillation):
    """What `fit` takes: `augment` puts what the teacher says beside the label, `loss` reads both."""

    def __init__(self, temperature: float, teacher: nn.Module, mix: float) -> None:
        super().__init__(temperature, teacher)
        if not 0 <= mix <= 1:
            raise AssayError(f"mix={mix:g} is no share of the loss; give one from 0 (labels alone) to 1 (teacher).")
        self.mix = mix

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n 1+c
        """The same inputs; the label and then what the teacher says, softened."""
        x, soft = super().augment(x, y, rng)
        return x, torch.cat([y.unsqueeze(1).to(soft), soft], 1)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:  # n c, n 1+c -> scalar
        soft = self.temperature * super().loss(logits, y[:, 1:])
        return self.mix * soft + (1 - self.mix) * F.cross_entropy(logits, y[:, 0].long())


def narrower(model: nn.Module, width: float, example: Tensor) -> nn.Module:  # n *d
    """The same architecture with this share of the channels of every inner layer, at least one, and its own answer.

    Which channels stay does not matter to who trains it anew: the first ones do.
    """
    refuse_width(width)
    found = edges(model, example)
    return cut(model, found, {e.name: torch.arange(e.size) < max(1, math.ceil(width * e.size)) for e in found})


def refuse_width(width: float) -> None:
    if not 0 < width <= 1:
        raise AssayError(f"width={width:g} is no share of the channels; give one above 0 and at most 1, such as 0.5.")
