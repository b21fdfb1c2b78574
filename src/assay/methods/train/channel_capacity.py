r"""A network as a noisy channel: how much it can tell of its input, and training that makes that less.

    Y = f(X) + e,   e ~ N(0, I),   E|X|^2 <= P;    MIC = max over densities of X of I(X; Y),    EIC = its mean over some

Of a linear map MIC is known: power is poured over the singular values g_1 >= g_2 >= ... like water (`water_filling`).
Of a network it is not, and two numbers stand in for the two, neither of which needs data:

    EIC:   trace  =  E_v E_x |f(x) - E_x f(x)|^2,          v ~ U[1/2, 1]^n,   x ~ N(0, diag(v))
    MIC:   MICS   =  E |f(x)|/|x|  +  Var |f(x)|/|x|,      x ~ N(0, I)

    L  =  task  +  eic (sum of the traces)  +  mic (sum of the MICS),    of the whole network and of each of its layers

Of a linear layer the trace is 3/4 |W|_F^2: there the EIC penalty is weight decay and nothing else. MICS of c Q with
orthogonal columns is c; the variance is a price on singular values that differ.

Source: Ye and Lin, "Channel Capacity of Neural Networks", ICANN 2021, doi:10.1007/978-3-030-86380-7_21, theorem 1 and
    sec. 3.3; "as coded" is what its public code does (IanyePKU/IC-Regularization-methods).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from assay.errors import AssayError

Density = Literal["eic", "mic", "coded"]
DENSITIES, INPUTS = 4, 16  # of the fake inputs of a step: densities, and inputs of each; print does not say
MOST = 5.0  # what the public code halves a MIC penalty down to


class Poured(NamedTuple):
    """How the power is spent."""

    mic: Tensor  # nats
    level: Tensor  # of the water, lambda
    used: int  # singular values that get any


def water_filling(gains: Tensor, power: float) -> Poured:  # d
    r"""MIC of a linear map with these singular values, under E|X|^2 <= power.

        sum_i max(lambda - 1/g_i^2, 0) = P,    MIC = 1/2 sum_{i <= k} log(lambda g_i^2),    k = #{lambda > 1/g_i^2}

    Source: Ye and Lin, theorem 1, after El Gamal and Kim, Network Information Theory, sec. 9.1. A map of rank 0, which
        print leaves out, tells nothing: 0.
    """
    if not (math.isfinite(power) and power >= 0):
        raise AssayError(f"power={power} bounds no input; give a finite number of at least 0.")
    bottom = gains[gains > 0].sort(descending=True).values.pow(-2)  # ascending
    levels = (power + bottom.cumsum(0)) / torch.arange(1, len(bottom) + 1, device=gains.device, dtype=gains.dtype)
    used = int((levels > bottom).sum())
    if not used:
        return Poured(gains.new_zeros(()), gains.new_zeros(()), 0)
    level = levels[used - 1]
    return Poured((level / bottom[:used]).log().sum() / 2, level, used)


def linear_mic(weight: Tensor, power: float) -> Tensor:  # m n -> ()
    """The exact MIC of x -> W x, in nats."""
    return water_filling(torch.linalg.svdvals(weight), power).mic


def fake_inputs(
    shape: tuple[int, ...], density: Density, rng: torch.Generator, *, densities: int = DENSITIES, inputs: int = INPUTS
) -> Tensor:  # -> v k *d
    """Draws from the densities that a penalty wants, `inputs` from each: of "mic" all are the same.

    "coded": one standard deviation from U[0, 1] for each feature, where print has variances from U[1/2, 1].
    """
    g = torch.randn(densities, inputs, *shape, generator=rng, device=rng.device)
    if density == "mic":
        return g
    u = torch.rand(densities, 1, *shape, generator=rng, device=rng.device)
    return g * (u if density == "coded" else ((1 + u) / 2).sqrt())


def output_trace(y: Tensor, *, as_published: bool = False) -> Tensor:  # v k *o -> ()
    """The trace of the covariance of the outputs, mean over the densities.

    Departs from print: divides by k - 1, so that it has no bias; `as_published` by k.
    """
    if y.shape[1] < 2:
        raise AssayError(f"A covariance wants at least 2 inputs of each density, got {y.shape[1]}.")
    trace: Tensor = y.flatten(2).var(1, correction=0 if as_published else 1).sum(-1).mean()
    return trace


def mic_surrogate(x: Tensor, y: Tensor, *, squared: bool = False) -> Tensor:  # v k *d, v k *o -> ()
    """MICS; `squared` is the public code's, of |f(x)|^2/|x|^2, halved until it is at most 5."""
    flat_x, flat_y = x.flatten(2), y.flatten(2)
    if not squared:
        longer = (flat_y.square().sum(-1) + torch.finfo(y.dtype).tiny).sqrt()  # with a slope at 0 too
        ratio: Tensor = longer / flat_x.norm(dim=-1)
        return ratio.mean() + ratio.var()
    ratio = flat_y.square().sum(-1) / flat_x.square().sum(-1)
    price = ratio.mean() + ratio.var(correction=0)
    halvings = (price.detach() / MOST).log2().ceil().clamp(min=0)
    return price / 2**halvings


def check_prices(eic: float, mic: float) -> None:
    for name, price in (("eic", eic), ("mic", mic)):
        if not (math.isfinite(price) and price >= 0):
            raise AssayError(f"{name}={price} is no price on capacity; give a number of at least 0, such as 0.1.")


class CapacityPenalty:
    """The loss above in the two pieces that `fit` takes: `fit(..., augment=p.augment, loss=p.loss)`.

    Blocks are the whole network and each of its convolutions and fully connected layers, with fake inputs of the shape
    that it is given when `model` is shown `x`, a few inputs. Those of the whole network are shares of the range of its
    inputs: low + span g. Batch normalisation takes the statistics of the fake inputs and keeps none of them.

    Departs from print: a trace is divided by the number of its outputs, as in the public code, so that a price means
    the same for a map of 20,000 values and for ten logits. `as_published` has the sum.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        *,
        eic: float = 0.0,
        mic: float = 0.0,
        low: Tensor | float = 0.0,
        span: Tensor | float = 1.0,
        as_published: bool = False,
    ) -> None:
        check_prices(eic, mic)
        if not x.is_floating_point():
            raise AssayError(f"Capacity got inputs of {x.dtype}; fake ones are drawn as numbers, not words or indices.")
        self.model, self.eic, self.mic, self.as_published = model, eic, mic, as_published
        self.low, self.span = (torch.as_tensor(edge, dtype=torch.float32) for edge in (low, span))
        self.shape = tuple(x.shape[1:])
        self.layers = _shapes(model, x)
        self._rng: torch.Generator | None = None

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n
        self._rng = rng
        return x, y

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:  # n c, n -> ()
        fit = F.cross_entropy(logits, y)
        if not (self.eic or self.mic):
            return fit
        if self._rng is None:
            raise AssayError("The capacity penalty draws inputs; pass its `augment` to fit too.")
        return fit + self.penalty(self._rng)

    def penalty(self, rng: torch.Generator) -> Tensor:  # -> ()
        traces, surrogates = self.of_each(rng)
        return self.eic * torch.stack(traces).sum() + self.mic * torch.stack(surrogates).sum()

    def of_each(self, rng: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
        """Trace and MICS of the whole network and of each layer; those of a price of 0 are 0 and cost nothing."""
        device = next(self.model.parameters()).device
        low, span = self.low.to(device), self.span.to(device)
        traces, surrogates = [], []
        for module, shape in ((self.model, self.shape), *self.layers):
            whole = module is self.model
            nothing = torch.zeros((), device=device)
            if self.eic:
                x = fake_inputs(shape, "eic", rng).to(device)
                y = self._said(module, low + span * x if whole else x)
                trace = output_trace(y, as_published=self.as_published)
                traces.append(trace if self.as_published else trace / math.prod(y.shape[2:]))
            else:
                traces.append(nothing)
            if self.mic:
                x = fake_inputs(shape, "mic", rng).to(device)
                y = self._said(module, low + span * x if whole else x)
                surrogates.append(mic_surrogate(x, y))
            else:
                surrogates.append(nothing)
        return traces, surrogates

    @staticmethod
    def _said(module: nn.Module, x: Tensor) -> Tensor:  # v k *d -> v k *o
        held = [(each, dict(each._buffers)) for each in module.modules()]
        try:
            for each, own in held:  # copies, which the pass may move: to write back would spoil the graph
                each._buffers.update({name: b if b is None else b.clone() for name, b in own.items()})
            out: Tensor = module(x.flatten(0, 1))
        finally:
            for each, own in held:
                each._buffers.update(own)
        return out.reshape(*x.shape[:2], *out.shape[1:])


def weighted(model: nn.Module) -> list[nn.Module]:
    """Its convolutions and fully connected layers."""
    return [module for module in model.modules() if isinstance(module, _ConvNd | nn.Linear)]


@torch.no_grad()
def _shapes(model: nn.Module, x: Tensor) -> list[tuple[nn.Module, tuple[int, ...]]]:
    """Each layer with the shape of the first tensor that it is given, in the order in which they are called."""
    seen: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = next((each for each in (*args, *named.values()) if isinstance(each, Tensor)), None)
        if given is not None:
            seen.setdefault(module, tuple(given.shape[1:]))

    hooks = [
        module.register_forward_pre_hook(note, with_kwargs=True) for module in weighted(model) if module is not model
    ]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return list(seen.items())
