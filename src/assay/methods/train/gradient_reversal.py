r"""Gradient reversal: features from which a second head cannot tell the domain.

    L_net  =  CE( f(x), y )  -  weight CE( D(z), domain ),        L_D  =  CE( D(z), domain )

z are the features, what enters the network's last linear layer; D is a small network on them. Both losses are descended
at once: between z and D lies a layer that does nothing forwards and multiplies gradients by -weight backwards.

Source: Ganin and Lempitsky, ICML 2015, arXiv:1409.7495, eq. 1 to 9 (their lambda is `weight`); D is of one hidden layer
    of 100 units, as theirs for digits.
Departs from print: `weight` stays as it is, where they let it grow from 0 to 1 as training goes on.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.train.alignment import WithFeatures

HIDDEN = 100


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:  # type: ignore[override]
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return -ctx.weight * grad, None


def reversed_gradient(x: Tensor, weight: float = 1.0) -> Tensor:  # *d -> *d
    """x itself, whose gradient comes back times -weight."""
    out: Tensor = _Reversed.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


class WithCritic(WithFeatures):
    """`net` with the head that tells domains beside its answer: n *d -> n k+g, and n k in eval mode.

    `x` are a few inputs, to see how wide the features are; the head is drawn from `rng`. `close` leaves the net as it
    was.
    """

    def __init__(
        self, net: nn.Module, head: str, domains: int, x: Tensor, *, weight: float = 1.0, rng: torch.Generator
    ) -> None:
        super().__init__(net, head)
        if not 0 <= weight < math.inf:
            raise AssayError(f"weight={weight} is none for a gradient; give a number of at least 0, such as 1.")
        self.weight = weight
        net.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            net(x)
        wide = self.features().shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=rng, device=rng.device)))
            critic = nn.Sequential(nn.Linear(wide, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, domains))
        self.critic = critic.to(x.device)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        if not self.training:
            return out
        return torch.cat([out, self.critic(reversed_gradient(self.features(), self.weight))], 1)


class GradientReversal:
    """The loss of `WithCritic` in training mode on batches of `each` inputs of each domain, labelled ones first."""

    def __init__(self, *, classes: int, domains: int, each: int) -> None:
        self.classes, self.domains, self.each = classes, domains, each

    def loss(self, out: Tensor, y: Tensor) -> Tensor:  # g*each k+g, n -> scalar
        if out.shape != (self.domains * self.each, self.classes + self.domains):
            raise ShapeError(
                f"GradientReversal got outputs of shape {tuple(out.shape)} for {self.domains} domains of {self.each} "
                f"inputs and {self.classes} classes; train WithCritic of as many domains, in training mode."
            )
        domain = torch.arange(self.domains, device=y.device).repeat_interleave(self.each)
        return F.cross_entropy(out[: len(y), : self.classes], y) + F.cross_entropy(out[:, self.classes :], domain)
