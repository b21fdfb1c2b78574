r"""Helper examples: beyond the ball a network need not keep the answer, and keeping it costs accuracy.

    L  =  mean_i  CE( f(x_i), y_i )  +  beta KL( p(x_i) || p(x'_i) )  +  gamma CE( f(x_i + far (x'_i - x_i)), h(x'_i) )

with x' the point of the ball where KL( p(x) || p(x') ) is largest (trades.py), p = softmax f, and h(x') the class that
a plainly trained network gives it. A network that was only told to say the same inside the ball says it far outside
too, along the directions of the attacker: that margin is more than was asked for, and the helpers take it back.

Source: Rade and Moosavi-Dezfooli, ICLR 2022, openreview Azh9QBQ4tR7, sec. 4; beta 2.5, gamma 0.5, far 2 as in the
    public code, which reaches 84.90 % and, under AutoAttack at 8/255, 49.08 % with a ResNet-18 on CIFAR-10.
Departs from print: the three kinds of inputs go through the network as one batch, so that batch normalisation sees all;
    helpers may leave the box of the inputs, as there.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.attack.attacked import Model
from assay.methods.attack.loss import Loss
from assay.methods.train.trades import divergence


class Helpers:
    """What a training against an attacker shows and asks, where it has helpers; `plain` is the plain network.

    Of each batch: the attacker climbs `away`, the network is shown `shown` and its answers are judged by `loss`.
    """

    def __init__(self, plain: nn.Module, *, beta: float = 2.5, gamma: float = 0.5, far: float = 2.0) -> None:
        for name, value in (("beta", beta), ("gamma", gamma)):
            if not 0 <= value < math.inf:
                raise AssayError(f"{name}={value} weighs nothing; give a number of at least 0, such as 0.5.")
        if not 1 <= far < math.inf:
            raise AssayError(f"far={far} leaves the helpers inside the ball; give at least 1, such as 2.")
        self.plain, self.beta, self.gamma, self.far = plain.eval().requires_grad_(False), beta, gamma, far

    @torch.no_grad()
    def away(self, ask: Model, x: Tensor) -> Loss:  # n *d
        """What the attacker climbs: how far an answer is from that to the input itself."""
        said = ask(x).log_softmax(1)
        return lambda z, _: divergence(said, z)

    def shown(self, x: Tensor, worst: Tensor) -> Tensor:  # n *d, n *d -> 3n *d
        """The inputs, what the attacker made of them, and as far again in its direction."""
        return torch.cat([x, worst, torch.lerp(x, worst, self.far)])

    @torch.no_grad()
    def aims(self, y: Tensor, worst: Tensor) -> Tensor:  # n, n *d -> 2n
        """The labels of the inputs and those of the helpers."""
        with torch.autocast(worst.device.type, torch.bfloat16, enabled=worst.is_cuda):
            return torch.cat([y, self.plain(worst).argmax(1)])

    def loss(self, out: Tensor, aims: Tensor, smoothing: float = 0.0) -> Tensor:  # 3n c, 2n -> 1
        clean, worst, beyond = out.chunk(3)
        truth, helpers = aims.chunk(2)
        apart = divergence(clean.log_softmax(1), worst).mean()
        right = F.cross_entropy(clean, truth, label_smoothing=smoothing)
        return right + self.beta * apart + self.gamma * F.cross_entropy(beyond, helpers)
