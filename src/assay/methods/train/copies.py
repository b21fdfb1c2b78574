r"""Which inputs are copies of each other: repeated as they are, or moved by far less than what parts them from others.

    the same      x_i = x_j, unless rows as short as these coincide anyway:  n^2/2 prod_f sum_v p_f(v)^2 >= 1,
                  p_f(v) the share of inputs whose feature f has the value v
    near copies   i and j each among the first k_i, k_j of the other's nearest, where  d_i,(k+1) >= 3 d_i,(k)

d_i,(k) is the distance of i to its k-th nearest among those that are not the same. Copies with one label vouch for each
other, also where it is wrong; those that have several labels tell of it by themselves. Not seen: near copies of which
there are more than 64, or that were moved by a third of the way to another input (turned, mirrored, cut).

Source: our own rule; in high dimensions the distances to the nearest inputs grow by far less than a factor of three.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from assay.errors import ShapeError

GAP = 3.0  # times as far as the last near copy is the next input
MOST = 64  # near copies of one input
BLOCK = 2**24  # distances that are held at a time
ROUNDING = 1e-6  # of the mean square of a row


class Voices(NamedTuple):
    """Inputs of which copies have one voice about their label."""

    first: Tensor  # m: the place of the first of each
    of: Tensor  # n: which of these an input is a copy of, or is


def voices(x: Tensor, labels: Tensor, *, columns: bool) -> Voices:  # n *d, n
    """`columns` says that features have units of their own, so that distances are in spreads of each."""
    rows = x.flatten(1).float()
    if columns:
        spread = rows.std(0)
        rows = rows / torch.where(spread > 0, spread, 1)
    first, of = torch.unique(copies(rows, labels), return_inverse=True)  # type: ignore[no-untyped-call]
    return Voices(first, of)


def copies(x: Tensor, labels: Tensor) -> Tensor:  # n *d, n -> n
    """For each input the place of the first that it is a copy of, its own where it is none or has another label.

    Where copies have several labels each is its own. Near copies that are half of their class or more are no copies but
    the class, which lies far from the others.
    """
    if len(labels) != len(x) or labels.ndim != 1:
        raise ShapeError(f"copies got labels of shape {tuple(labels.shape)} for {len(x)} inputs; it wants one each.")
    rows, place = x.flatten(1).float(), torch.arange(len(x), device=x.device)
    if _coincide(rows):
        return place
    different, same = torch.unique(rows, dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
    group = _near(different)[same]
    size, of_class = torch.bincount(group), torch.bincount(labels)
    is_class = (2 * size[group] >= of_class[labels]) & (torch.bincount(same)[same] < size[group])
    group = torch.where(is_class, len(x) + same, group)  # its copies as they are stay copies

    def of_group(values: Tensor, how: str) -> Tensor:  # n -> n
        return values.new_zeros(2 * len(x)).scatter_reduce(0, group, values, how, include_self=False)[group]

    divided = of_group(labels, "amin") != of_group(labels, "amax")
    return torch.where(divided, place, of_group(place, "amin"))


def _coincide(x: Tensor) -> bool:  # n d
    """Whether two of so many rows would be the same by chance, were their features independent."""
    n = len(x)
    log = math.log(n) + math.log(max(n - 1, 1)) - math.log(2)
    for feature in x.T:
        _, counts = torch.unique(feature, return_counts=True)  # type: ignore[no-untyped-call]
        log += math.log(float((counts / n).square().sum()))
        if log < 0:
            return False
    return True


def _near(x: Tensor) -> Tensor:  # n d, all different -> n
    """The number of the group of near copies that each is in."""
    n, k = len(x), min(MOST + 1, len(x) - 1)
    if k < 2:
        return torch.arange(n, device=x.device)
    x = x - x.mean(0)
    least = (ROUNDING * x.square().sum(1).mean()).sqrt()
    one, other = [], []
    for rows in torch.arange(n, device=x.device).tensor_split(math.ceil(n * n / BLOCK)):
        apart = torch.cdist(x[rows], x)
        apart[torch.arange(len(rows), device=x.device), rows] = torch.inf
        near = apart.topk(k, 1, largest=False)
        far = near.values.clamp_min(least)
        step = far[:, 1:] / far[:, :-1]
        last = torch.where(step.amax(1) >= GAP, step.argmax(1), -1)  # of the near copies
        at, place = (torch.arange(k, device=x.device) <= last[:, None]).nonzero(as_tuple=True)
        one.append(rows[at])
        other.append(near.indices[at, place])
    i, j = torch.cat(one).cpu().numpy(), torch.cat(other).cpu().numpy()
    edges = coo_array(([1] * len(i), (i, j)), shape=(n, n)).tocsr()
    _, group = connected_components(edges.multiply(edges.T), directed=False)
    return torch.as_tensor(group, dtype=torch.int64, device=x.device)
