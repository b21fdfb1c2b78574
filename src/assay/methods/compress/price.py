"""What a network costs, counted or measured, and the largest part of it that a price pays for.

    flops        multiply-adds of its convolutions and Linears for one input
    parameters   numbers that are learnt
    memory       weights of its convolutions and Linears, kw kh c_in c_out, as Gator counts them
    latency      seconds of one answer to a batch, the median of several, measured

Multiply-adds are counted where layers are called; what the forward code computes by itself is not seen.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from assay.errors import AssayError
from assay.methods.compress.surgery import Edge, cut, lifeless

Kind = Literal["flops", "parameters", "memory", "latency"]
Per = Literal["network", "layer"]
WARM, REPEATS = 3, 15  # answers that do not count, and those whose median does


@dataclass(frozen=True)
class Price:
    """At most this share of what the whole network costs."""

    kind: Kind
    share: float

    def __str__(self) -> str:
        return f"{self.kind}={self.share:g}"


def within(price: str) -> Price:
    """`flops=0.5`, `latency=0.6`, `parameters=0.3` or `memory=0.3`."""
    kind, _, share = price.partition("=")
    if kind not in get_args(Kind):
        known = ", ".join(get_args(Kind))
        raise AssayError(f"The price {price!r} is of no known kind; write one of {known} and a share, as in flops=0.5.")
    try:
        number = float(share)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1:
        raise AssayError(f"The price {price!r} is no share; write a number above 0 and at most 1, as in {kind}=0.5.")
    return Price(cast(Kind, kind), number)


def flops(model: nn.Module, example: Tensor) -> int:
    """Multiply-adds for one input, the mean over the inputs of `example`."""
    return _multiplied(model, uses(model, example))


def uses(model: nn.Module, example: Tensor) -> dict[str, float]:
    """How often each layer's weights are used for one input: at each place of its output, a transposed one's input."""
    used: dict[str, float] = {}

    def count(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        at = out
        if isinstance(module, _ConvTransposeNd):
            at = args[0] if args else kwargs["input"]
        places = at.shape[1:-1] if isinstance(module, nn.Linear) else at.shape[2:]
        used[name] = used.get(name, 0) + len(at) / len(example) * math.prod(places)

    handles = [
        module.register_forward_hook(partial(count, name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | _ConvNd)
    ]
    modes = [(module, module.training) for module in model.modules()]
    held = next((t for t in (*model.parameters(), *model.buffers())), example)
    try:
        model.eval()  # a pass in training mode would move running statistics
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(example.to(held.device))
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    return used


def _multiplied(model: nn.Module, used: Mapping[str, float]) -> int:
    layers = ((name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear | _ConvNd))
    return round(sum(m.weight.numel() * used.get(name, 0) for name, m in layers))


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def memory(model: nn.Module) -> int:
    return _multiplied(model, dict.fromkeys(dict(model.named_modules()), 1))


def latency(
    model: nn.Module, example: Tensor, device: torch.device | str = "cpu", *, warm: int = WARM, repeats: int = REPEATS
) -> float:
    """Seconds of one answer to `example` on that device: the median of `repeats`, after `warm` that do not count."""
    device = torch.device(device)
    there = copy.deepcopy(model).eval().to(device)
    x, taken = example.to(device), []
    with torch.no_grad():
        for _ in range(warm + repeats):
            start = time.perf_counter()
            there(x)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - start)
    return statistics.median(taken[warm:])


def cost(kind: Kind, model: nn.Module, example: Tensor, device: torch.device | str = "cpu") -> float:
    if kind == "latency":
        return latency(model, example, device)
    if kind == "flops":
        return flops(model, example[:1])
    return parameters(model) if kind == "parameters" else memory(model)


def affordable(
    model: nn.Module,
    edges: Sequence[Edge],
    scores: Mapping[str, Tensor],
    price: Price,
    example: Tensor,
    *,
    per: Per = "network",
    may_empty: bool = False,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:  # name of an edge -> size  ->  name -> bool (size)
    """The largest set of channels within the price, dropped from the lowest score up; a tie goes by its place.

    `per="network"` compares the scores of all edges; `per="layer"` only those of one, and takes the same share of each.
    Without `may_empty` the best channel of each edge stays; with it, only of those that the answer hangs on. The cost
    falls as more is dropped, so the number that must go is found by bisection; each trial is a network that is cut, and
    measured where the price is a latency.
    """
    names = [edge.name for edge in edges]
    for edge in edges:
        of = scores.get(edge.name)
        if of is None or of.shape != (edge.size,) or not bool(torch.isfinite(of).all()):
            got = "none" if of is None else f"shape {tuple(of.shape)}, or one that is no number"
            raise AssayError(f"The scores of edge {edge.name!r} are {got}; give {edge.size} numbers, one each channel.")
    parts = []
    for edge in edges:
        score = scores[edge.name].detach().double().cpu()
        rank = score.argsort(stable=True).argsort().double()
        value = rank / edge.size if per == "layer" else score
        may_go = may_empty and not lifeless(edges, {edge.name: torch.zeros(edge.size, dtype=torch.bool)})
        parts.append(value if may_go else value.where(rank < edge.size - 1, math.inf))
    flat = torch.cat(parts)
    order = flat.argsort(stable=True)
    droppable = int(torch.isfinite(flat).sum())

    def kept(dropped: int) -> dict[str, Tensor]:
        stays = torch.ones(len(flat), dtype=torch.bool)
        stays[order[:dropped]] = False
        return dict(zip(names, torch.split(stays, [edge.size for edge in edges]), strict=True))

    used = uses(model, example[:1]) if price.kind == "flops" else {}

    def paid(of: nn.Module) -> float:
        return _multiplied(of, used) if price.kind == "flops" else cost(price.kind, of, example, device)

    whole = paid(model)

    def share(dropped: int) -> float:
        return paid(cut(model, edges, kept(dropped))) / whole

    least = share(droppable)
    if least > price.share:
        left = "as little as the answer needs" if may_empty else "one channel of each edge"
        raise AssayError(
            f"The price {price} cannot be met: with {left} left of what can be cut, the network still costs "
            f"{least:.3g} of its {price.kind}; ask for {_above(least):g} or more."
        )
    low, high = 0, droppable  # too dear or not known; affordable
    if share(0) <= price.share:
        return kept(0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if share(middle) <= price.share else (middle, high)
    if lifeless(edges, kept(high)):
        raise AssayError(
            f"The price {price} leaves nothing that reads the input; ask for more, or do not let edges empty."
        )
    return kept(high)


def _above(share: float) -> float:
    """Rounded up to two digits that can be typed."""
    step = 10.0 ** (math.floor(math.log10(share)) - 1) if share > 0 else 0.01
    return min(1.0, round(math.ceil(share / step - 1e-9) * step, 12))
