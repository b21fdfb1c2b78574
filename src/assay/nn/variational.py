"""Mean-field variational layers: every weight is a Gaussian of its own, and a pass draws one net of them."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from assay.errors import AssayError
from assay.nn.members import Drawn
from assay.nn.replaced import replaced

Spread = Literal["softplus", "exp"]
KINDS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d)
NORMALISED: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d,
)  # fmt: skip


def gaussian_kl(mu: Tensor, sigma: Tensor, prior_mu: float, prior_sigma: float) -> Tensor:  # *d, *d -> scalar
    r"""KL( N(mu, sigma^2) || N(prior_mu, prior_sigma^2) ), summed over independent coordinates.

    log(prior_sigma / sigma) + (sigma^2 + (mu - prior_mu)^2) / (2 prior_sigma^2) - 1/2
    """
    apart = (sigma.square() + (mu - prior_mu).square()) / (2 * prior_sigma**2)
    return (math.log(prior_sigma) - sigma.log() + apart - 0.5).sum()


class MeanField(nn.Module):
    r"""A layer with a factorised Gaussian over its weights and biases: twice the parameters.

        w = mu + sigma * e,   e ~ N(0, I),   sigma = log(1 + exp(rho)),   or with spread="exp"   sigma = exp(rho)

    mu are the parameters of the layer that it is built on. Each pass, in training and in eval mode, draws one w for
    the whole batch, so a pass is one net. (Drawing the outputs instead, one for each input, has gradients of less
    variance, but doubles the cost, and for a convolution it is an approximation: its outputs share weights.) Running
    statistics of a batch normalisation are those of all draws.

    Source: Blundell et al., ICML 2015, arXiv:1505.05424, sec. 3.2; exp and batch normalisation: Liu et al., ICLR 2019,
        arXiv:1810.01279.
    """

    def __init__(self, layer: nn.Module, *, sigma: float, prior: float, spread: Spread = "softplus") -> None:
        super().__init__()
        self.layer, self.start, self.prior, self.spread = layer, sigma, prior, spread
        self.names = [name for name, _ in layer.named_parameters()]
        for name, mu in layer.named_parameters():
            self.register_parameter(f"rho_{name}", nn.Parameter(torch.empty_like(mu)))
        self.reset_parameters()

    def sigma(self, name: str) -> Tensor:
        """The standard deviations of the layer's parameter of that name."""
        rho = self.get_parameter(f"rho_{name}")
        return rho.exp() if self.spread == "exp" else F.softplus(rho)

    def forward(self, x: Tensor) -> Tensor:
        drawn = {name: mu + self.sigma(name) * torch.randn_like(mu) for name, mu in self.layer.named_parameters()}
        out: Tensor = functional_call(self.layer, drawn, (x,))
        return out

    def kl(self) -> Tensor:  # -> scalar
        """KL( q || N(0, prior^2) ), in closed form."""
        terms = [gaussian_kl(mu, self.sigma(name), 0.0, self.prior) for name, mu in self.layer.named_parameters()]
        return torch.stack(terms).sum()

    def reset_parameters(self) -> None:
        """The standard deviations as at the start; the means reset themselves."""
        for name in self.names:
            rho = math.log(self.start if self.spread == "exp" else math.expm1(self.start))
            nn.init.constant_(self.get_parameter(f"rho_{name}"), rho)

    def extra_repr(self) -> str:
        return f"start={self.start:g}, prior={self.prior:g}, spread={self.spread}"


class Variational(Drawn):
    """A net of `MeanField` layers; `draws` nets drawn from it make its opinion."""

    def kl(self) -> Tensor:  # -> scalar
        """KL of all its Gaussian weights from the prior."""
        return torch.stack([module.kl() for module in self.net.modules() if isinstance(module, MeanField)]).sum()


def as_variational(
    net: nn.Module,
    *,
    draws: int,
    sigma: float,
    prior: float,
    kinds: tuple[type[nn.Module], ...] = KINDS,
    spread: Spread = "softplus",
) -> Variational:
    """A copy of `net` whose layers of these kinds have Gaussian weights, around those of `net`.

    `sigma` is the standard deviation that each starts with, `prior` that of the prior N(0, prior^2) of each. What else
    has parameters (batch normalisation, unless it is among the `kinds`, and other layers) stays a point. The random
    numbers come from torch's global generator, as in dropout: seed it for the same draws again.
    """
    if not 0 < sigma < math.inf or not 0 < prior < math.inf:
        raise AssayError(f"as_variational got sigma={sigma}, prior={prior}; both are standard deviations, above 0.")
    if spread not in get_args(Spread):
        raise AssayError(f"as_variational got spread={spread!r}; it knows {' and '.join(get_args(Spread))}.")

    def make(module: nn.Module) -> nn.Module | None:
        # by exact type: a subclass may hold or compute its weight in another way
        if type(module) not in kinds or next(module.parameters(recurse=False), None) is None:
            return None
        return MeanField(module, sigma=sigma, prior=prior, spread=spread)

    wanted = f"{', '.join(kind.__name__ for kind in kinds[:-1])} or {kinds[-1].__name__} layer"
    return Variational(replaced(net, make, wanted), draws)
