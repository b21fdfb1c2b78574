r"""TRADES: be right on the inputs, and say the same around them.

    L  =  mean_i  CE( f(x_i), y_i )  +  beta KL( p(x_i) || p(x'_i) ),
    x'_i  =  argmax_{||x' - x_i||_inf <= radius}  KL( p(x_i) || p(x') ),      p = softmax f

Source: Zhang, Yu, Jiao, Xing, El Ghaoui and Jordan, ICML 2019, arXiv:1901.08573, eq. 5 and Algorithm 1; their beta is
    6 in the experiments.
Departs from print: the search begins at a random point of the ball, where Algorithm 1 begins 0.001 N(0, 1) away from
    the input (at the input itself the divergence has no slope); both halves go through the network as one batch, so
    that batch normalisation sees both.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train.adversary import Adversary


class Trades:
    """The two pieces that `fit` takes beside the model: `fit(model, ..., augment=t.augment, loss=t.loss)`.

    `augment` puts the changed inputs behind the inputs, and `loss` reads the two halves. With `beta` 0 or a radius of 0
    it is the plain training.
    """

    def __init__(self, adversary: Adversary, *, beta: float = 6.0) -> None:
        if not 0 <= beta < math.inf:
            raise AssayError(f"beta={beta} is no weight for the divergence; give a number of at least 0, such as 6.")
        self.adversary, self.beta = adversary, beta
        self._plain = beta == 0 or adversary.radius == 0

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> 2n *d, n
        if self._plain:
            return x, y
        with self.adversary.asked() as ask, torch.no_grad():
            said = ask(self.adversary.range.shares(x)).log_softmax(1)  # n c
        if not bool(said.isfinite().all()):
            raise AssayError("The model answered NaN or infinity to the inputs as they are.")

        def away(z: Tensor, _: Tensor) -> Tensor:
            return divergence(said, z)

        return torch.cat([x, self.adversary.worst(x, y, rng, away)]), y

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:  # 2n c, n -> scalar
        if self._plain:
            return F.cross_entropy(logits, y)
        if len(logits) != 2 * len(y):
            raise AssayError("TRADES reads inputs and changed inputs; pass `augment` of this object to fit too.")
        clean, changed = logits.chunk(2)
        return F.cross_entropy(clean, y) + self.beta * divergence(clean.log_softmax(1), changed).mean()


def divergence(log_p: Tensor, z: Tensor) -> Tensor:
    """KL( p || softmax z ) for each input, from log p and logits: n c, n c -> n."""
    return F.kl_div(z.log_softmax(1), log_p, reduction="none", log_target=True).sum(1)
