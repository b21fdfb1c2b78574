r"""Twelve criteria of how much a channel matters, from weights and from a sample of data; larger means keep.

Of a channel with the filter w (the weights that write it), batch normalisation gamma z + beta, and the answers a after
ReLU over a sample:

    l1               sum |w|                        l2               || w ||_2
    fpgm             sum_j || w - w_j ||_2          fermat           || w - w* ||_2, w* the layer's geometric median
    bn-gamma         | gamma |                      bn-beta          | beta |
    apoz             1 - share of zeros of a        entropy          of the histogram of mean a, one mean per input
    taylor-l1        || w * dL/dw ||_1              taylor-l2        || w * dL/dw ||_2
    taylor-bn-gamma  | gamma dL/dgamma |            taylor-bn-beta   | beta dL/dbeta |

L is the mean loss of the sample, the network in eval mode. The geometric median minimises sum_j || w* - w_j || and is
found by Weiszfeld's iteration. Channels that live and die together (surgery.Edge) are scored together: a residual edge
has several writers and several normalisations, and a channel's score is the sum of its scores over those members, for
it is all of them that go. Answers are read where they leave a normalisation, where there is one, else a writer; what is
not positive there is zero after ReLU, and of a residual sum each member is looked at before the sum.

`scaled` brings the scores of one edge and criterion to [0, 1] by its least and its largest: factors of a blend and a
threshold over all edges then mean the same everywhere.

Source: names and the list, He, Huang, Liang, Liang & Yang, "Blending Pruning Criteria for Convolutional Neural
    Networks", ICANN 2021, sec. 2 and 5 (eleven in its search, without apoz; twelve in its tables). Definitions: Li et
    al., arXiv:1608.08710 (l1); He et al., CVPR 2019 (fpgm); Huang et al., arXiv:2004.11627 (fermat); Liu et al., ICCV
    2017 (gamma); Hu et al., arXiv:1607.03250 (apoz); Luo and Wu, arXiv:1706.05791 (entropy); Molchanov et al., CVPR
    2019 (taylor); Weiszfeld 1937.
Where print is open: [0, 1] is reached by min-max; a constant score becomes 1/2 throughout, so that it decides nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from assay.errors import AssayError, ShapeError
from assay.methods.compress.surgery import Edge
from assay.methods.train.fit import Loss, Rows

Criterion = Literal[
    "l1", "l2", "fpgm", "fermat", "bn-gamma", "bn-beta", "apoz", "entropy", "taylor-l1", "taylor-l2", "taylor-bn-gamma",
    "taylor-bn-beta",
]  # fmt: skip
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
OF_NORMS: tuple[Criterion, ...] = ("bn-gamma", "bn-beta", "taylor-bn-gamma", "taylor-bn-beta")
BINS = 100  # of the histogram behind an entropy
STEPS, TOL = 200, 1e-7  # of Weiszfeld's iteration; it stops where a step is this small beside the filters' spread
BATCH = 256


def scores(
    model: nn.Module,
    edges: Sequence[Edge],
    x: Tensor,
    y: Tensor,
    *,
    criteria: Sequence[Criterion] = CRITERIA,
    loss: Loss = F.cross_entropy,
    batch: int = BATCH,
) -> dict[str, Tensor]:  # x: n *d, y: n ; of each edge, by name: i m
    """The score of every channel of every edge by each of `criteria`, as they are; larger means keep.

    The model stays as it was. `x` and `y` are read only where a criterion asks for data; `loss` is a mean over inputs.
    """
    for name in criteria:
        if name not in CRITERIA:
            raise AssayError(f"There is no criterion {name!r}; choose one of {', '.join(CRITERIA)}.")
    lacking = without_norm(model, edges) if set(criteria) & set(OF_NORMS) else None
    if lacking is not None:
        name = next(each for each in criteria if each in OF_NORMS)
        raise AssayError(
            f"The criterion {name!r} reads a batch normalisation, and none follows {lacking!r}; take one of "
            f"{', '.join(each for each in CRITERIA if each not in OF_NORMS)}."
        )
    own = copy.deepcopy(model).eval().requires_grad_(True)
    seen = {edge.name: _Answers(own, edge) for edge in edges}
    answers, slopes = bool({"apoz", "entropy"} & set(criteria)), any(each.startswith("taylor") for each in criteria)
    if answers or slopes:
        if len(x) != len(y) or not len(x):
            raise ShapeError(f"Criteria got {len(x)} inputs and {len(y)} labels; give one label each, at least one.")
        with _watched(seen.values() if answers else ()), torch.set_grad_enabled(slopes):
            for some, labels in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
                said = own(some)
                if slopes:
                    torch.autograd.backward(loss(said, labels) * (len(some) / len(x)))
    with torch.no_grad():
        return {
            edge.name: torch.stack([_score(name, own, edge, seen[edge.name]) for name in criteria]) for edge in edges
        }


def sample(data: Rows, most: int) -> tuple[Tensor, Tensor]:  # -> n *d, n
    """At most so many of the inputs, spread evenly over all."""
    x, y = data.take(np.linspace(0, len(data) - 1, min(most, len(data))).round().astype(np.int64))
    return torch.as_tensor(x), torch.as_tensor(y)


def scaled(scores: Tensor) -> Tensor:  # *i m -> *i m
    """Of each criterion to [0, 1], by its least and largest of the layer; a constant one to 1/2."""
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    span = high - low
    return torch.where(span > 0, (scores - low) / torch.where(span > 0, span, 1), 0.5)


def without_norm(model: nn.Module, edges: Sequence[Edge]) -> str | None:
    """An edge that no batch normalisation with a scale and a shift belongs to; None where all have one."""
    modules = dict(model.named_modules())
    return next((edge.name for edge in edges if not _norms(modules, edge)), None)


def usable(model: nn.Module, edges: Sequence[Edge]) -> tuple[Criterion, ...]:
    """The criteria that this network has: all, or those that read no normalisation."""
    lacks = without_norm(model, edges) is not None
    return tuple(each for each in CRITERIA if not (lacks and each in OF_NORMS))


def kept(score: Tensor, count: int) -> Tensor:  # m -> m, bool
    """The `count` highest, of equal ones the first."""
    if not 1 <= count <= len(score):
        raise AssayError(f"{count} of {len(score)} channels cannot be kept; keep from 1 to all of them.")
    order = score.argsort(descending=True, stable=True)
    return torch.zeros(len(score), dtype=torch.bool).index_fill_(0, order[:count].cpu(), True)


# Filters as rows.


def l1(w: Tensor) -> Tensor:  # m d -> m
    return w.abs().sum(1)


def l2(w: Tensor) -> Tensor:  # m d -> m
    return w.square().sum(1).sqrt()


def fpgm(w: Tensor) -> Tensor:  # m d -> m
    """How far each is from all the others, together."""
    return torch.cdist(w, w, compute_mode="donot_use_mm_for_euclid_dist").sum(1)


def fermat(w: Tensor) -> Tensor:  # m d -> m
    """How far each is from the geometric median of all."""
    return l2(w - geometric_median(w))


def geometric_median(w: Tensor) -> Tensor:  # m d -> d
    """The point whose distances to the rows have the least sum, by Weiszfeld's iteration from their mean.

    w* <- sum_j w_j / ||w* - w_j||  /  sum_j 1 / ||w* - w_j||; on a row itself its weight is bounded, not infinite.
    """
    rows = w.double()
    at = rows.mean(0)
    spread = float(l2(rows - at).mean())
    if spread == 0:
        return at.to(w)
    for _ in range(STEPS):
        near = 1 / l2(rows - at).clamp_min(1e-9 * spread)
        before, at = at, near @ rows / near.sum()
        if float((at - before).norm()) <= TOL * spread:
            break
    return at.to(w)


def entropy(values: Tensor, bins: int = BINS) -> Tensor:  # n m -> m
    """Shannon's, in nats, of each column's histogram between its least and its largest; 0 of a constant column."""
    low, high = values.amin(0), values.amax(0)
    place = ((values - low) / torch.where(high > low, high - low, 1) * bins).long().clamp_max(bins - 1)
    counts = torch.zeros(bins, values.shape[1], device=values.device, dtype=values.dtype)
    share = counts.scatter_add_(0, place, torch.ones_like(values)) / len(values)
    return -torch.xlogy(share, share).sum(0)


def filters(module: nn.Module) -> Tensor:  # -> m d
    """The weights that write each output channel, one row a channel."""
    return _rows(module, module.get_parameter("weight"))


def _rows(module: nn.Module, weight: Tensor) -> Tensor:
    outputs_second = isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    return (weight.transpose(0, 1) if outputs_second else weight).flatten(1)


def _norms(modules: Mapping[str, nn.Module], edge: Edge) -> dict[str, _BatchNorm]:
    found = {name: modules[name] for name in edge.norms}
    return {name: norm for name, norm in found.items() if isinstance(norm, _BatchNorm) and norm.affine}


OF_WEIGHTS: Mapping[Criterion, Callable[[Tensor], Tensor]] = {"l1": l1, "l2": l2, "fpgm": fpgm, "fermat": fermat}


def _score(name: Criterion, model: nn.Module, edge: Edge, seen: _Answers) -> Tensor:  # -> m
    """The sum over the members of an edge, and over the places that a channel has in each."""
    modules = dict(model.named_modules())
    writers = {each: modules[each] for each in edge.writers}
    parts: dict[str, Tensor]  # of each member its places
    if name in OF_WEIGHTS:
        parts = {at: OF_WEIGHTS[name](filters(each)) for at, each in writers.items()}
    elif name in ("taylor-l1", "taylor-l2"):
        norm = l1 if name == "taylor-l1" else l2
        parts = {at: norm(filters(each) * _rows(each, _slope(each, "weight"))) for at, each in writers.items()}
    elif name in OF_NORMS:
        which = "weight" if name.endswith("gamma") else "bias"
        norms = _norms(modules, edge)
        parts = {at: each.get_parameter(which).abs() for at, each in norms.items()}
        if name.startswith("taylor"):
            parts = {at: p * _slope(norms[at], which).abs() for at, p in parts.items()}
    elif name == "apoz":
        parts = {at: torch.cat(each).mean(0) for at, each in seen.positive.items()}
    else:
        parts = {at: entropy(torch.cat(each)) for at, each in seen.means.items()}
    total = next(iter(parts.values())).new_zeros(edge.size)
    for at, values in parts.items():
        channel = edge.outputs[at].to(values.device)
        mine = channel >= 0
        total.index_add_(0, channel[mine], values[mine])
    return total


def _slope(module: nn.Module, which: str) -> Tensor:
    p = module.get_parameter(which)
    return torch.zeros_like(p) if p.grad is None else p.grad  # no gradient reached it


class _Answers:
    """What leaves the members of one edge, as ReLU lets it through: of each, by batch, n places."""

    def __init__(self, model: nn.Module, edge: Edge) -> None:
        modules = dict(model.named_modules())
        self.modules: dict[str, nn.Module] = {**_norms(modules, edge)} or {at: modules[at] for at in edge.writers}
        self.positive: dict[str, list[Tensor]] = {at: [] for at in self.modules}  # share
        self.means: dict[str, list[Tensor]] = {at: [] for at in self.modules}

    def keep(self, at: str, out: Tensor) -> None:
        last = isinstance(self.modules[at], nn.Linear)
        each = out.detach().movedim(-1, 1) if last else out.detach()
        each = each.flatten(2) if each.ndim > 2 else each[..., None]
        self.positive[at].append((each > 0).to(each.dtype).mean(2))
        self.means[at].append(each.relu().mean(2))


@contextmanager
def _watched(edges: Iterable[_Answers]) -> Iterator[None]:
    handles = [
        module.register_forward_hook(lambda _m, _x, out, seen=seen, at=at: seen.keep(at, out))
        for seen in edges
        for at, module in seen.modules.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
