r"""How early a search finds what it should: ranks, recall at k, average precision, and what chance would find.

With the items of a gallery of size g in the order of their similarity to a query (of equal ones the first comes
first), R of them relevant, and 1 <= r_1 < ... < r_R the ranks of those,

    recall at k         [ r_1 <= k ]                   averaged over queries: the share with a relevant item among the
                                                       first k, which is the CMC curve at k
    average precision   1/R sum_i i / r_i              averaged over queries: mAP

of a random order, exactly,

    recall at k         1 - prod_{i < k} (g - R - i) / (g - i)                         about k R / g
    average precision   a + (1 - a) H_g / g,   a = (R - 1) / (g - 1),   H_g = sum_{i <= g} 1 / i

Nothing here is an interval: queries are what is resampled, and whoever averages over them does that.

Source: Arandjelovic et al., CVPR 2016, arXiv:1511.07247, sec. 5 (recall at k of places); Zheng et al., ICCV 2015,
    doi:10.1109/ICCV.2015.133, sec. 3.2 (CMC and mAP of persons).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.nearest import key

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def ranks(similarity: Tensor, query: Tensor, item: Tensor) -> Tensor:  # n g, r, r -> n m
    """The ranks of the relevant items of each query, ascending, and infinity where a query has no more.

    Item j is relevant for query i where (i, j) stands among the pairs; every query has one at least.
    """
    n, g = similarity.shape
    keys = key(similarity, torch.arange(g, device=similarity.device))
    count = torch.bincount(query, minlength=n)
    m = int(count.max())
    order = torch.argsort(query, stable=True)
    slot = torch.arange(len(query), device=query.device) - (count.cumsum(0) - count)[query[order]]
    own = keys.new_full((n, m), torch.iinfo(torch.long).max)
    own[query[order], slot] = keys[query[order], item[order]]
    own = own.sort(dim=1).values
    # Of each item, how many relevant ones it comes before; summed up, how many items come before each of those.
    before = torch.searchsorted(own, keys)
    ahead = torch.zeros(n, m + 1, dtype=torch.long, device=keys.device)
    ahead.scatter_add_(1, before, torch.ones_like(before))
    ahead = ahead.flip(1).cumsum(1).flip(1)[:, 1:]
    rank = torch.where(torch.arange(m, device=keys.device) < count[:, None], ahead + 1.0, torch.inf).double()
    return rank.sort(dim=1).values


def average_precision(rank: Tensor) -> Tensor:  # n m -> n
    place = torch.arange(1, rank.shape[1] + 1, device=rank.device, dtype=rank.dtype)
    return (place / rank).sum(1) / rank.isfinite().sum(1)


def chance_of_recall(items: int, relevant: Ints, k: int) -> Floats:  # n -> n
    """The chance that one of k items, drawn blindly, is relevant."""
    drawn = np.arange(min(k, items))
    left = np.maximum(items - np.asarray(relevant)[:, None] - drawn, 0)
    missed: Floats = np.prod(left / (items - drawn), axis=1)
    return 1 - missed


def chance_of_precision(items: int, relevant: Ints) -> Floats:  # n -> n
    """The mean average precision of a random order."""
    a = (np.asarray(relevant, dtype=np.float64) - 1) / max(items - 1, 1)
    harmonic = float((1 / np.arange(1, items + 1)).sum())
    return a + (1 - a) * harmonic / items
