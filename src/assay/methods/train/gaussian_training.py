r"""Gaussian training: train on inputs under noise, fresh at each step.

    min_w  mean_i  E_{e ~ N(0, sigma^2 I)}  CE( f(x_i + e; w), y_i )

one draw for each input and step. Nothing is clipped: the network that randomised smoothing asks meets the same noise.

Source: Lecuyer et al., S&P 2019, arXiv:1802.03471, sec. 4; Cohen, Rosenfeld and Kolter, ICML 2019, arXiv:1902.02918,
    sec. 3.3, as the training of the base network of a certificate (methods/certify/smoothing.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.errors import AssayError


class GaussianTraining:
    """The piece that `fit` takes: `fit(model, ..., augment=GaussianTraining(0.25).augment)`.

    `sigma` is a share of the range of a value, which is `span` wide, one for all or one for each.
    """

    def __init__(self, sigma: float, *, span: Tensor | float = 1.0) -> None:
        if not 0 <= sigma < math.inf:
            raise AssayError(
                f"sigma={sigma} is no size of a noise; give a share of the range of 0 or more, such as 0.25."
            )
        self.sigma, self.span = sigma, torch.as_tensor(span)

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n
        if self.sigma == 0:
            return x, y
        noise = torch.randn(x.shape, generator=rng, device=rng.device, dtype=x.dtype).to(x.device)
        return x + self.sigma * self.span.to(x) * noise, y
