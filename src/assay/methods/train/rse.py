r"""What training with noise minimises (random self-ensemble), and what of it is a price on curvature.

Each step of a net with noise layers (nn/noisy.py) draws e afresh and goes down on loss(f_e(x), y): `fit` with a plain
cross-entropy does that, since the noise is part of the net. In the mean over e this is

    E_e loss(f_e)  =  loss(f_0)  +  1/2 sum_l s_l^2 trace( H_l )  +  O(s^4),    H_l = d^2 loss / d e_l^2 at e = 0

with one term for each noise layer l of standard deviation s_l: flat minima are cheaper. It bounds the loss of the mean
answer from above, for each input and any draws: mean_e -log p_e(y) >= -log mean_e p_e(y) (Jensen).

Source: Liu, Cheng, Zhang and Hsieh, ECCV 2018, arXiv:1712.00673; in Liu, UCLA 2021, sec. 2.1.4, eq. 2.9 and 2.11. The
    dissertation reads the trace as a Lipschitz constant (eq. 2.12), which asks for convexity and is loose; the two
    numbers here are those of eq. 2.11 as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.noisy import Noise


def curvature_price(
    net: nn.Module, x: Tensor, y: Tensor, *, probes: int = 16, rng: torch.Generator
) -> Tensor:  # n *d, n -> n
    """1/2 sum_l s_l^2 trace(H_l) of each input, by `probes` random signs v: the mean of v H v is the trace."""
    noise: list[Tensor] = []
    wide: list[Tensor] = []

    def none_yet(std: Tensor, like: Tensor) -> Tensor:
        noise.append(torch.zeros_like(like, requires_grad=True))
        wide.append(std)
        return noise[-1]

    with torch.enable_grad(), _noise_is(none_yet, net):
        height = F.cross_entropy(net(x), y, reduction="none")
        slopes = torch.autograd.grad(height.sum(), noise, create_graph=True)
    total = torch.zeros_like(height.detach())
    for _ in range(probes):
        signs = [
            std * (2 * torch.randint(2, e.shape, generator=rng, device=rng.device) - 1).to(e)
            for std, e in zip(wide, noise, strict=True)
        ]
        bent = torch.autograd.grad(slopes, noise, signs, retain_graph=True, materialize_grads=True)
        total += torch.stack([(v * h).flatten(1).sum(1) for v, h in zip(signs, bent, strict=True)]).sum(0)
    return total / (2 * probes)


@torch.no_grad()
def noise_price(
    net: nn.Module, x: Tensor, y: Tensor, *, draws: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:  # n *d, n -> n, n
    """E_e loss(f_e) - loss(f_0) of each input and its standard error, by pairs of draws e and -e."""
    if draws < 2:
        raise AssayError(f"noise_price got draws={draws}; it wants at least 2 pairs to know its own error.")
    with _noise_is(lambda std, like: torch.zeros_like(like), net):
        still = F.cross_entropy(net(x), y, reduction="none")
    gaps = []
    for _ in range(draws):
        kept: list[Tensor] = []
        with _noise_is(partial(_drawn, rng, kept), net):
            one = F.cross_entropy(net(x), y, reduction="none")
        with _noise_is(partial(_turned, kept), net):
            other = F.cross_entropy(net(x), y, reduction="none")
        gaps.append((one + other) / 2 - still)
    each = torch.stack(gaps)  # draws n
    return each.mean(0), each.std(0) / draws**0.5


def _drawn(rng: torch.Generator, kept: list[Tensor], std: Tensor, like: Tensor) -> Tensor:
    kept.append(std * torch.randn(like.shape, generator=rng, device=rng.device, dtype=like.dtype).to(like))
    return kept[-1]


def _turned(kept: list[Tensor], std: Tensor, like: Tensor) -> Tensor:
    return -kept.pop(0)


@contextmanager
def _noise_is(give: Callable[[Tensor, Tensor], Tensor], net: nn.Module) -> Iterator[None]:
    """Every noise layer adds what `give(std, input)` gives, in the order in which they are called."""
    layers = [module for module in net.modules() if isinstance(module, Noise) and not module.is_off]
    if not layers:
        raise AssayError(f"{type(net).__name__} has no noise layer that is on; with_noise puts them in.")
    hooks = [
        layer.register_forward_hook(lambda layer, args, _: args[0] + give(layer.std.to(args[0]), args[0]))
        for layer in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
