r"""MART: adversarial training that minds what the network gets wrong as it is.

    L  =  mean_i  BCE( p(x'_i), y_i )  +  lam KL( p(x_i) || p(x'_i) ) (1 - p_y(x_i)),
    BCE( p, y )  =  -log p_y - log( 1 - max_{k != y} p_k ),      x'_i as in PGD adversarial training

Inputs that the network is unsure of weigh more in the second term; the first asks for a margin as well.

Source: Wang, Zou, Yi, Bailey, Ma and Gu, ICLR 2020, eq. 8 to 11; lam is 5 in the experiments.
Departs from print: both halves go through the network as one batch, so that batch normalisation sees both;
    log(1 - p_k) is taken from the logits, where it does not round to minus infinity.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.loss import others, own
from assay.methods.train.adversary import Adversary
from assay.methods.train.trades import divergence


class Mart:
    """The two pieces that `fit` takes beside the model: `fit(model, ..., augment=m.augment, loss=m.loss)`.

    A radius of 0 leaves the plain training: nothing is changed, and the loss is the cross-entropy.
    """

    def __init__(self, adversary: Adversary, *, lam: float = 5.0) -> None:
        if not 0 <= lam < math.inf:
            raise AssayError(f"lam={lam} is no weight for the divergence; give a number of at least 0, such as 5.")
        self.adversary, self.lam = adversary, lam

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> 2n *d, n
        if self.adversary.radius == 0:
            return x, y
        return torch.cat([x, self.adversary.worst(x, y, rng)]), y

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:  # 2n c, n -> scalar
        if self.adversary.radius == 0:
            return F.cross_entropy(logits, y)
        if len(logits) != 2 * len(y):
            raise AssayError("MART reads inputs and changed inputs; pass `augment` of this object to fit too.")
        clean, changed = logits.chunk(2)
        unsure = 1 - own(clean.softmax(1), y)  # n
        weighed = divergence(clean.log_softmax(1), changed) * unsure
        return (boosted(changed, y) + self.lam * weighed).mean()


def boosted(z: Tensor, y: Tensor) -> Tensor:
    """-log p_y - log(1 - p_k), k the likeliest other class: n c, n -> n."""
    rival = others(z, y).argmax(1)
    without = others(z, rival).logsumexp(1) - z.logsumexp(1)  # log(1 - p_k)
    return F.cross_entropy(z, y, reduction="none") - without
