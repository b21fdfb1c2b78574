r"""What a network costs by how many channels each of its edges has, and what one channel more would cost.

    total(c) = fixed + sum_j line_j c_j + sum_jk pair_jk c_j c_k,        lambda_j(c) = d total / d c_j

A convolution from edge j to edge k is a pair: kernel area (times the places of its output, for FLOPs) times both
counts. A side that nobody cuts, the image and the answer, makes a line of it, and so does what follows one edge alone,
as a depthwise convolution, a normalisation or a bias. Thus

    sum_j c_j lambda_j(c) = 2 (total of the pairs) + (total of the lines):

each layer is counted once for each of its sides that can be cut.

Source: Passov, David and Netanyahu, "Gator", ICANN 2021, eq. 5 (memory) and 6 (FLOPs).
Departs from print: places are those of the true shapes, where print has 4^-s after s steps of stride 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from assay.methods.compress.dependency import Edge, ends, follows, is_depthwise
from assay.methods.compress.price import latency, uses
from assay.methods.compress.surgery import cut

Counted = Literal["flops", "memory", "parameters"]

LEAST = 0.01


@dataclass(frozen=True)
class Bill:
    """Of e edges; in float64, which holds FLOPs exactly."""

    sizes: Tensor  # e
    lines: Tensor  # e
    pairs: Tensor  # e e
    fixed: float = 0.0
    measured: Tensor | None = None  # e: per channel, where it was timed and does not follow the counts

    def total(self, counts: Tensor) -> Tensor:  # *b e -> *b
        return self.fixed + counts @ self.lines + ((counts @ self.pairs) * counts).sum(-1)

    def per_channel(self, counts: Tensor) -> Tensor:  # e -> e
        """lambda: what one channel more of each edge would cost while the others stay."""
        if self.measured is not None:
            return self.measured
        return self.lines + (self.pairs + self.pairs.T) @ counts

    def to(self, device: torch.device | str) -> Bill:
        sizes, lines, pairs = (part.to(device) for part in (self.sizes, self.lines, self.pairs))
        measured = None if self.measured is None else self.measured.to(device)
        return replace(self, sizes=sizes, lines=lines, pairs=pairs, measured=measured)


def bill(model: nn.Module, edges: Sequence[Edge], example: Tensor, of: Counted) -> Bill:
    """What the network costs as it stands, as price.py counts it."""
    sizes = torch.tensor([edge.size for edge in edges], dtype=torch.float64)
    lines, pairs, fixed = torch.zeros_like(sizes), torch.zeros(len(sizes), len(sizes), dtype=torch.float64), 0.0
    used = uses(model, example[:1]) if of == "flops" else {}
    for name, module in model.named_modules():
        layer = isinstance(module, _ConvNd | nn.Linear)
        own = {what: float(p.numel()) for what, p in module.named_parameters(recurse=False)}
        if of != "parameters":
            own = {"weight": own["weight"] * (used.get(name, 0.0) if of == "flops" else 1)} if layer else {}
        if not own:
            continue
        ins, outs = (_times([getattr(edge, side).get(name) for edge in edges], sizes) for side in ("inputs", "outputs"))
        if isinstance(module, _ConvNd | nn.Linear):
            wide, tall = ends(module)
        else:
            wide = tall = follows(module) or 1
        if layer and not is_depthwise(module):
            each = own.pop("weight") / (wide * tall)
            rest_in, rest_out = wide - float(ins @ sizes), tall - float(outs @ sizes)
            pairs += each * torch.outer(ins, outs)
            lines += each * (rest_out * ins + rest_in * outs)
            fixed += each * rest_in * rest_out
        for amount in own.values():
            lines += amount / tall * outs
            fixed += amount * (1 - float(outs @ sizes) / tall)
    return Bill(sizes, lines, pairs, fixed)


def _times(places: Sequence[Tensor | None], sizes: Tensor) -> Tensor:  # e -> e
    """How often a channel of each edge stands on this side of a module: as often as a flattened map has pixels, and on
    the mean less than once where the module has a part of the edge, as one of several that are concatenated."""
    return torch.tensor([0 if at is None else int((at >= 0).sum()) for at in places], dtype=torch.float64) / sizes


def timed(flops: Bill, whole: float, saved: Tensor, removed: Tensor, *, as_coded: bool = False) -> Bill:  # e, e
    r"""A bill in seconds: `whole` of all channels, `saved` where `removed` channels of one edge alone were gone.

        lambda_j = saved_j / removed_j

    The total takes the bill of FLOPs, each pair times the mean of what a FLOP of its two edges was worth: to add up
    what was saved edge by edge would count each layer twice, and half of every edge would save all there is. Timing is
    noisy: an edge that seemed to save nothing costs a hundredth of what it would by its FLOPs.

    Source: as above, sec. 3.3; print does not say by what the difference is divided, and the channels removed are what
        makes it a cost per channel. `as_coded`: lambda follows the counts as FLOPs do, times what was measured, as in
        the public code (EliPassov/gator).
    """
    counted = flops.per_channel(flops.sizes)
    each = (saved / removed).maximum(LEAST * whole * counted / (flops.sizes @ counted))
    worth = each / counted  # seconds a FLOP
    pairs = flops.pairs * (worth[:, None] + worth[None]) / 2
    scaled = replace(flops, lines=flops.lines * worth, pairs=pairs, fixed=0.0)
    rest = whole - float(scaled.total(flops.sizes))
    return replace(scaled, fixed=rest, measured=None if as_coded else each)


def seconds(
    model: nn.Module,
    edges: Sequence[Edge],
    example: Tensor,
    device: torch.device | str = "cpu",
    *,
    as_coded: bool = False,
) -> Bill:
    """`timed`, measured here: one answer to `example` by the whole network, and with half of each edge gone in turn."""
    halves = [edge.size // 2 for edge in edges]
    smaller = [cut(model, edges, {e.name: torch.arange(e.size) >= half}) for e, half in zip(edges, halves, strict=True)]
    whole = latency(model, example, device)
    saved = whole - torch.tensor([latency(each, example, device) for each in smaller], dtype=torch.float64)
    removed = torch.tensor(halves, dtype=torch.float64).clamp(min=1)
    return timed(bill(model, edges, example, "flops"), whole, saved, removed, as_coded=as_coded)
