r"""Losses that a wrong label cannot drive far: bounded where the cross entropy is not.

With p_y the probability that the model gives to the label y,

    generalised     L_q = (1 - p_y^q) / q,      0 < q <= 1;   as q -> 0 it is -log p_y, at q = 1 it is 1 - p_y
    symmetric       a (-log p_y) + b RCE,       RCE = -sum_c p_c log e_c(y) = -A (1 - p_y),   log 0 := A

The gradient of L_q is p_y^q times that of the cross entropy: an input whose label the model does not believe pulls
little. A loss whose sum over all labels is constant has the same minimum where labels are wrong at random (Ghosh et
al., AAAI 2017). At q = 1 the sum is c - 1; else it is from (c - c^(1-q)) / q to (c - 1) / q. The cross entropy has
no such bound. 1 - p_y is half of the absolute error sum_c |p_c - e_c|.

Source: Zhang and Sabuncu, NeurIPS 2018, arXiv:1805.07836, eq. 6 (without the truncation of sec. 3.3); Wang et al.,
    ICCV 2019, arXiv:1908.06112, eq. 5 to 7, with A = -4 as there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train.fit import Loss

CLIPPED = -4.0  # A: what the logarithm of 0 counts as


def generalised_cross_entropy(q: float) -> Loss:
    if not 0 < q <= 1:
        raise AssayError(f"The generalised cross entropy got q={q:g}; give a number above 0, near cross entropy, to 1.")

    def loss(logits: Tensor, labels: Tensor) -> Tensor:  # n c, n -> scalar
        said = torch.log_softmax(logits, 1).gather(1, labels[:, None])
        # expm1: (1 - p^q) / q of a small q would be rounding
        return (-torch.expm1(q * said) / q).mean()

    return loss


def symmetric_cross_entropy(a: float, b: float) -> Loss:
    if not (a >= 0 and b >= 0 and a + b > 0):
        raise AssayError(
            f"The symmetric cross entropy got a={a:g}, b={b:g}; give two numbers of 0 or more, not both 0."
        )

    def loss(logits: Tensor, labels: Tensor) -> Tensor:  # n c, n -> scalar
        p = torch.softmax(logits, 1).gather(1, labels[:, None])
        return a * F.cross_entropy(logits, labels) - b * CLIPPED * (1 - p).mean()

    return loss
