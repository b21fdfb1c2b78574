r"""MMF: further heads, one for each label tree, on an early stage of a network, to steer it towards milder mistakes.

    L  =  (1 - Lambda) CE( f(x), c )  +  sum_m  lambda_m CE( h_m(phi(x)), g_m(c) ),        Lambda = sum_m lambda_m

f is the network, phi what a stage inside it gives out (averaged over its places), h_m a linear layer, and g_m(c) the
group of class c in tree m: what stands just below the root. Only f answers once it is trained, so that the heads cost
nothing then. Lambda = 0 is the plain training; at Lambda = 1 no gradient reaches the network's own head.

Source: Li, Zhou, Zhou and Wang, "MMF: Multi-task Multi-structure Fusion for Hierarchical Image Classification", ICANN
    2021, sec. 3.2 and 3.5, eq. 7; lambda is 0.1 for one tree and 0.15 for each of two on CIFAR-100 there, and heads on
    early stages do better than on late ones (fig. 4a).
Where print is open: the early stage is the second size of the maps, as the network halves them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import groupby
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.activations import shown

MAPS = (_ConvNd, _NormBase, nn.GroupNorm, _MaxPoolNd, _AvgPoolNd, _AdaptiveMaxPoolNd, _AdaptiveAvgPoolNd)
ROWS = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer)


class Mmf:
    """The loss of outputs with heads behind them (`WithHeads` in training mode), for `fit(..., loss=mmf.loss)`.

    `groups` has for each tree the group of each class, `weights` its lambda.
    """

    def __init__(self, groups: Sequence[Tensor], weights: Sequence[float]) -> None:  # k each
        if not groups or len(groups) != len(weights) or len({len(g) for g in groups}) > 1:
            raise AssayError(f"Mmf got {len(groups)} trees and {len(weights)} weights; give one for each tree.")
        if not (all(w >= 0 for w in weights) and sum(weights) <= 1):  # nor is nan
            raise AssayError(
                f"weights={','.join(f'{w:g}' for w in weights)} are no shares of a loss; give numbers of at least 0 "
                "whose sum is at most 1, such as 0.1."
            )
        self.groups, self.weights = tuple(groups), tuple(weights)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many groups each tree has."""
        return tuple(int(g.max()) + 1 for g in self.groups)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:  # n k+s, n -> scalar
        k = len(self.groups[0])
        if out.shape[1] != k + sum(self.sizes):
            raise ShapeError(
                f"Mmf got outputs of shape {tuple(out.shape)} for {k} classes and {sum(self.sizes)} groups; train "
                "WithHeads of these trees, in training mode."
            )
        own, *heads = torch.split(out, [k, *self.sizes], 1)
        total = (1 - sum(self.weights)) * F.cross_entropy(own, y)
        for head, weight, group in zip(heads, self.weights, self.groups, strict=True):
            total = total + weight * F.cross_entropy(head, group.to(y.device)[y])
        return total


class WithHeads(nn.Module):
    """`net` with a linear head for each size on what its module `stage` gives out: n *d -> n k+s, and n k in eval mode.

    `x` are a few inputs, to see how wide that is. The heads are drawn from `rng`. `close` leaves the net as it was.
    """

    def __init__(self, net: nn.Module, stage: str, sizes: Sequence[int], x: Tensor, *, rng: torch.Generator) -> None:
        super().__init__()
        trial, known = copy.deepcopy(net).eval(), dict[str, bool]()
        _watch(trial, lambda name, _, features_last: known.update({name: features_last}))
        _, seen = shown(trial, x, (stage,))
        self.features_last = known[stage]
        wide = _averaged(seen[stage], self.features_last).shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=rng, device=rng.device)))
            heads = [nn.Linear(wide, size) for size in sizes]
        self.net, self.heads = net, nn.ModuleList(heads).to(seen[stage].device)
        self._seen: Tensor | None = None
        self._hook = net.get_submodule(stage).register_forward_hook(self._catch)

    def _catch(self, module: nn.Module, given: Any, out: Tensor) -> None:
        self._seen = out if self.training else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        if not self.training:
            return out
        assert self._seen is not None
        seen = _averaged(self._seen, self.features_last)
        self._seen = None  # it holds the whole graph
        return torch.cat([out, *(head(seen) for head in self.heads)], 1)

    def close(self) -> None:
        self._hook.remove()


def _averaged(out: Tensor, features_last: bool) -> Tensor:  # n f *p, or n p f -> n f
    if out.ndim < 3:
        return out
    return out.mean(1) if features_last else out.flatten(2).mean(2)


def _watch(net: nn.Module, told: Callable[[str, Any, bool], None]) -> None:
    """Have `told(name, output, whether its features stand last)` called as each module inside `net` ends.

    Of a sequence n t f they do, and of what a convolution makes, n f t, not: as the last layer that tells has it.
    """
    last = True

    def note(name: str, module: nn.Module, out: Any) -> None:
        nonlocal last
        last = (last or isinstance(module, ROWS)) and not isinstance(module, MAPS)
        told(name, out, last and isinstance(out, Tensor) and out.ndim == 3)

    for name, module in net.named_modules():
        if name:
            module.register_forward_hook(lambda module, _, out, name=name: note(name, module, out))


def early_stage(net: nn.Module, x: Tensor) -> str:  # n *d
    """The name of the module that ends the second size of maps in a pass over `x`; without maps, a middle one."""
    trial, ended = copy.deepcopy(net).eval(), list[tuple[str, tuple[int, ...]]]()

    def note(name: str, out: Any, features_last: bool) -> None:
        if isinstance(out, Tensor) and out.ndim > 1 and len(out) == len(x):
            ended.append((name, tuple(out.shape[1:-1] if features_last else out.shape[2:])))

    _watch(trial, note)
    with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        trial(x)
    names = [name for name, _ in ended]
    once = [(name, size) for name, size in ended if names.count(name) == 1]
    stages = [list(same) for size, same in groupby(once, key=lambda each: each[1]) if prod(size) > 1]
    if len(stages) > 1:
        return stages[1][-1][0]
    rest = (stages[0] if stages else once)[:-1]
    if not rest:
        raise AssayError(f"{type(net).__name__} has no module inside it that a head could read; name one with stage=.")
    return rest[len(rest) // 2][0]
