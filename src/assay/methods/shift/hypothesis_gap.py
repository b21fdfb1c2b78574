r"""Whether one hypothesis on the features serves every domain: what P(y | z, D) says against what P(y | z) says.

    hypothesis invariance (HIR)    argmax_y P(y | z, D) = argmax_y P(y | z)      for all D, wherever D has z
    its strong version             P(y | z, D) = P(y | z)

Both posteriors are shares of labels among the k nearest inputs, of the domain and of all domains, each domain counting
as much as another, the input itself left out. What chance makes two such estimates differ by is measured where nothing
differs, between two halves of the domain, and stands beside: it is too much by a little, since halves are sparser.

Only inputs that another domain holds too (support_overlap.py) say anything. Where the supports are disjoint every
representation is hypothesis invariant, and so is a constant one: read it with the overlap, and with the accuracy.

Source: Wang, Loog & van Gemert, ICPR 2020, arXiv:2010.07591, eq. 3.4 in Wang's dissertation, TU Delft 2024, sec. 3.3.3.
Departs from print: print trains towards it by the divergence of single posteriors and leaves the estimation of
    P(y | z, D) open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.shift.support_overlap import held

MOST, LEAST = 15, 3  # neighbours
SPLITS = 5  # into halves


class HypothesisGap(NamedTuple):
    """Of one domain, for each of its inputs."""

    common: Tensor  # n: another domain has inputs there
    differs: Tensor  # n: the domain's own posterior has another largest class than that of all domains
    by_chance: Tensor  # n: how often halves of the domain differ so
    kl: Tensor  # n: KL of the domain's posterior from that of all, in nats
    kl_by_chance: Tensor  # n


def hypothesis_gaps(
    z: Sequence[Tensor], y: Sequence[Tensor], classes: int, *, rng: torch.Generator
) -> list[HypothesisGap]:  # each n *d, n
    """The gap of every domain; features and labels of each, in one order."""
    if len(z) < 2 or len(z) != len(y) or any(len(a) != len(b) for a, b in zip(z, y, strict=True)):
        raise ShapeError(f"hypothesis_gaps got features of {len(z)} domains and labels of {len(y)}; give two or more.")
    sizes = [len(part) for part in z]
    k = max(LEAST, min(MOST, min(sizes) // 10))
    if min(sizes) < 2 * k + 2:
        raise AssayError(f"hypothesis_gaps got domains of {sizes} inputs; give at least {2 * k + 2} of each.")
    rows = [part.detach().flatten(1).double() for part in z]
    rows = [part - rows[0].mean(0) for part in rows]  # distances stay, and their rounding shrinks
    hot = [torch.nn.functional.one_hot(part, classes).double() for part in y]
    pool, pooled = torch.cat(rows), torch.cat([h * (max(sizes) / len(h)) for h in hot])
    found, start = [], 0
    for d, mine in enumerate(rows):
        others = [part for e, part in enumerate(rows) if e != d]
        common = torch.stack([held(mine, part) for part in others]).any(0)
        apart = torch.cdist(mine, pool)
        apart[:, start : start + len(mine)].fill_diagonal_(torch.inf)
        own = apart[:, start : start + len(mine)]
        alone, every = _posterior(own, hot[d], k), _posterior(apart, pooled, k)
        chance, kl_chance = torch.zeros(2, len(mine)).to(own)
        for _ in range(SPLITS):
            first = torch.randperm(len(mine), generator=rng, device=rng.device).to(mine.device) % 2 == 0
            one, two = (_posterior(own[:, half], hot[d][half], k) for half in (first, ~first))
            chance += (one.argmax(1) != two.argmax(1)) / SPLITS
            kl_chance += (_kl(one, two) + _kl(two, one)) / (2 * SPLITS)
        found.append(HypothesisGap(common, alone.argmax(1) != every.argmax(1), chance, _kl(alone, every), kl_chance))
        start += len(mine)
    return found


def _posterior(apart: Tensor, weight: Tensor, k: int) -> Tensor:  # n m, m c -> n c
    """The share of each class among the k nearest, and among all that are as near as the k-th of them."""
    reach = apart.topk(k, 1, largest=False).values[:, -1:]
    counts = (apart <= reach).to(weight) @ weight
    return counts / counts.sum(1, keepdim=True)


def _kl(p: Tensor, q: Tensor) -> Tensor:  # n c, n c -> n
    """With a thousandth of the uniform in both, so that no class is impossible."""
    p, q = (0.999 * part + 0.001 / part.shape[1] for part in (p, q))
    return (p * (p / q).log()).sum(1)
