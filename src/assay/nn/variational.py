"""Mean-field variational layers: every weight is a Gaussian of its own, and a pass draws one net of them."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

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
    the whole batch, so a pass is one net: a layer that `Variational` comes by again is the one that it was, and so is a
    weight that the net reads without calling its layer, as torch's encoder does in eval mode. By itself each call draws
    anew, and what is read are the means. (Drawing the outputs instead, one for each input, has gradients of less
    variance, but doubles the cost, and for a convolution it is an approximation: its outputs share weights.) Running
    statistics of a batch normalisation are those of all draws.

    Source: Blundell et al., ICML 2015, arXiv:1505.05424, sec. 3.2; exp and batch normalisation: Liu et al., ICLR 2019,
        arXiv:1810.01279.
    """

    def __init__(self, layer: nn.Module, *, sigma: float, prior: float, spread: Spread = "softplus") -> None:
        super().__init__()
        self.layer, self.start, self.prior, self.spread = layer, sigma, prior, spread
        self.names = [name for name, _ in layer.named_parameters()]
        self.held: list[dict[str, Tensor]] = []  # within a pass of the net what it has drawn, {} before
        for name, mu in layer.named_parameters():
            self.register_parameter(f"rho_{name}", nn.Parameter(torch.empty_like(mu)))
        self.reset_parameters()

    def sigma(self, name: str) -> Tensor:
        """The standard deviations of the layer's parameter of that name."""
        rho: Tensor = getattr(self, f"rho_{name}")
        return rho.exp() if self.spread == "exp" else F.softplus(rho)

    def drawn(self) -> dict[str, Tensor]:
        """The layer's parameters, drawn: within a pass of the net once."""
        if self.held and self.held[0]:
            return self.held[0]
        layer = self.layer
        means = [(name, getattr(layer, name)) for name in self.names]
        drawn = {name: mu + self.sigma(name) * torch.randn_like(mu) for name, mu in means}
        if self.held:
            self.held[0] = drawn
        return drawn

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = functional_call(self.layer, self.drawn(), args, kwargs)
        return out

    def __getattr__(self, name: str) -> Any:
        """What is read that is not here is the layer's, of its parameters within a pass what was drawn."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "held" not in self.__dict__ or name.startswith("__"):
                raise
        return self.drawn()[name] if self.held and name in self.names else getattr(self.layer, name)

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

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o, by one net
        layers = [module for module in self.net.modules() if isinstance(module, MeanField) and not module.held]
        for layer in layers:
            layer.held.append({})
        try:
            return super().forward(x)
        finally:
            for layer in layers:
                layer.held.clear()

    def kl(self) -> Tensor:  # -> scalar
        """KL of all its Gaussian weights from the prior."""
        return torch.stack([module.kl() for module in self.net.modules() if isinstance(module, MeanField)]).sum()


def bare(module: nn.Module) -> nn.Module:
    """The layer that Gaussian weights were given to; any other module itself."""
    return module.layer if isinstance(module, MeanField) else module


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
    has parameters (batch normalisation, unless it is among the `kinds`, and other layers) stays a point, and so does a
    layer that is frozen where others learn. Weights of `net` that are Gaussian begin again around their means. The
    random numbers come from torch's global generator, as in dropout: seed it for the same draws again.
    """
    if not 0 < sigma < math.inf or not 0 < prior < math.inf:
        raise AssayError(f"as_variational got sigma={sigma}, prior={prior}; both are standard deviations, above 0.")
    if spread not in get_args(Spread):
        raise AssayError(f"as_variational got spread={spread!r}; it knows {' and '.join(get_args(Spread))}.")

    some_learn, seen = any(p.requires_grad for p in net.parameters()), set[nn.Module]()

    def make(module: nn.Module) -> nn.Module | None:
        layer = bare(module)
        own = list(layer.parameters(recurse=False))
        # by exact type: a subclass may hold or compute its weight in another way
        if type(layer) not in kinds or module in seen or not own:
            return None
        if some_learn and not any(p.requires_grad for p in own):
            return None
        seen.add(layer)
        return MeanField(layer, sigma=sigma, prior=prior, spread=spread)

    wanted = f"{', '.join(kind.__name__ for kind in kinds[:-1])} or {kinds[-1].__name__} layer"
    if not all(p.requires_grad for p in net.parameters()) and some_learn:
        wanted += " that is not frozen"
    return Variational(replaced(net, make, wanted), draws)
