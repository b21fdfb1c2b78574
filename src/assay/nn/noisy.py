"""Random self-ensemble: a net with noise in front of its convolutions, whose passes are as many nets as one likes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from assay.errors import AssayError
from assay.nn.in_place import InPlace
from assay.nn.members import Drawn
from assay.nn.replaced import replaced
from assay.nn.variational import bare

WORTH = 1 << 20  # values, below which starting the kernel takes longer than what it saves


class Noise(nn.Module):
    """x + std e, e ~ N(0, I) anew for each value, input and pass, in training and in eval mode; 0 hands on x itself.

    `std` is one number or one for each feature. What comes in is not changed: a shortcut around it stays quiet. The
    random numbers come from torch's global generator, as in dropout.
    """

    std: Tensor  # () or *d

    def __init__(self, std: float | Tensor) -> None:
        super().__init__()
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32).clone())
        self.is_off = not bool(self.std.any())

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *d
        if self.is_off:
            return x
        added = _added_at_once(x, self.std)
        return torch.addcmul(x, self.std.to(x), torch.randn_like(x)) if added is None else added(x, self.std)

    def extra_repr(self) -> str:
        return f"std={float(self.std.mean()):g}"


def _added_at_once(x: Tensor, std: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    """What adds noise of this one deviation to these values in one kernel (noise_kernel.py), where that can be."""
    serves = (
        x.is_cuda
        and std.ndim == 0
        and WORTH <= x.numel() < 1 << 31
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and (x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)))
        and not torch.compiler.is_compiling()  # which fuses the noise with more than that
        and not torch.cuda.is_current_stream_capturing()  # a recorded seed would be the same each time
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)  # type: ignore[attr-defined]
    )
    return _kernel() if serves else None


@cache
def _kernel() -> Callable[[Tensor, Tensor], Tensor] | None:
    try:
        from assay.nn.noise_kernel import Added
    except ImportError:  # torch without Triton
        return None
    return Added.apply


def with_noise(
    net: nn.Module, x: Tensor, *, first: float, inner: float, draws: int, span: Tensor | float = 1.0
) -> Drawn:
    r"""A copy of `net` with noise in front of every convolution, on in training and in eval mode alike: n *d -> Drawn.

        x -> x + e,   e ~ N(0, (first span)^2) on the input,   e ~ N(0, inner^2) before each further convolution;
        p(c | x)  ~  mean of `draws` softmaxes

    `x` are a few inputs: a pass over them shows which convolution comes first. Its noise is put on the input itself,
    as a share of the range `span`, so that it means the same whether a net normalises inside or not.

    Source: Liu, Cheng, Zhang and Hsieh, ECCV 2018, arXiv:1712.00673; in Liu, UCLA 2021, sec. 2.1.3, Alg. 2 and
        Fig. 2.1 ("init-noise" is `first`, 0.2 there, "inner-noise" is `inner`, 0.1 there, 50 draws). The public
        code adds the noise in place, so that shortcuts carry it too; here they do not.

    Convolutions of any kind count that are modules and that are called; one that a `forward` calls as a function is
    not seen. A convolution that is used again is noisy each time, the first one from its second use on. One of Gaussian
    weights (variational.py) has the noise in front of them. Batch normalisation follows the mode.
    """
    if not (0 <= first < math.inf and 0 <= inner < math.inf):
        raise AssayError(
            f"with_noise got first={first}, inner={inner}; both are standard deviations, finite and at least 0."
        )
    if not x.is_floating_point():
        raise AssayError(f"with_noise got inputs of {x.dtype}; noise is added to numbers, not to words or indices.")
    trial, called = copy.deepcopy(net).eval(), list[_ConvNd]()
    convolutions = [module for module in trial.modules() if isinstance(module, _ConvNd)]
    for module in convolutions:
        module.register_forward_pre_hook(lambda module, _: called.append(module))
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        is_steady = torch.equal(trial(x), trial(x))
    if not called:
        does = "calls none of its convolutions" if convolutions else "has no convolution"
        raise AssayError(f"{type(net).__name__} {does}, and noise is put in front of those.")
    first_place, places, seen = convolutions.index(called[0]), count(), set[nn.Module]()
    is_reused = called.count(called[0]) > 2  # two passes were made

    def make(module: nn.Module) -> nn.Module | None:
        layer = bare(module)
        if not isinstance(layer, _ConvNd) or module in seen:
            return None
        seen.add(layer)
        if next(places) != first_place:
            return InPlace(Noise(inner), module, layer=module)
        # the noise of its first use is the input's
        return QuietAtFirst(Noise(inner), module) if is_reused else InPlace(Noise(0.0), module, layer=module)

    noise, made = Noise(first * torch.as_tensor(span)), replaced(net, make, "convolution")
    body = OnePass(noise, made) if is_reused else nn.Sequential(noise, made)
    return Drawn(body, draws, rows_apart=is_steady)


class QuietAtFirst(InPlace):
    """Noise in front of a convolution from its second use in a pass on; `OnePass` says when a pass begins."""

    def __init__(self, noise: Noise, layer: nn.Module) -> None:
        super().__init__(noise, layer, layer=layer)
        self.was_used = False

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        noise, layer = self
        given = noise(input) if self.was_used else input
        self.was_used = True
        out: Tensor = layer(given, *args, **kwargs)
        return out


class OnePass(nn.Sequential):
    """Noise on the input and the net behind it, whose first convolution is used again."""

    def forward(self, input: Tensor) -> Tensor:  # n *d -> n *o
        layers = [module for module in self.modules() if isinstance(module, QuietAtFirst)]
        noise, net = self
        try:
            out: Tensor = net(noise(input))
        finally:
            for layer in layers:
                layer.was_used = False
        return out
