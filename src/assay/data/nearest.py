r"""The rows of a gallery that are nearest to a query, exactly, in blocks: nothing is as large as queries times rows.

Of a query q and row j of the gallery g, with a centre c and an offset b_j,

    s_j = <q - c, g_j - c> + b_j,      c = 0 and b_j = 0 for the cosine of rows of length 1,
                                       c = the mean of g and b_j = -|g_j - c|^2 / 2 for Euclid

so that the largest s is the nearest: |q - g_j|^2 = |q - c|^2 - 2 s_j. The centre moves no distance, and without it what
all rows have in common would cancel in single precision, and their order with it. It is rounded to a power of 2 about
the spread of the rows: rows near 0 stay as they are, and those that are as near as each other are so to the bit where
they were. Products are of single precision, as those of any flat index are. Of rows that are as near as each other the
first one comes first: similarity and place are one whole number,

    key_j = 2^32 o(s_j) + (2^32 - 1 - j),        o: the bits of a float, such that the larger float has the larger o

of which no two are equal, so that a block and its neighbours agree on every order.

A running list of the k best is kept for each query. A piece of a block is looked into only for queries of which its
largest similarity is above the k-th kept, which after m rows is so for about k / m of the rows: beside the product that
leaves one maximum for each piece.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError

Metric = Literal["cosine", "euclidean"]
QUERIES = 2048  # that are looked for together
ROWS = 2048  # of the gallery that they are compared with at a time
PART = 64  # of those, whose largest similarity decides whether they are looked into
PLACE = 2**32


class Nearest(NamedTuple):
    """The k nearest rows of each query, the nearest first."""

    rows: Tensor  # n k
    similarity: Tensor  # n k


class Offsets(NamedTuple):
    """What is taken from queries and rows before their product, and what is added to it: float64."""

    centre: Tensor  # d
    each: Tensor  # g

    def centred(self, rows: Tensor) -> Tensor:  # n d -> n d
        """Queries or rows seen from the centre, in their own precision; those of the cosine as they are."""
        return rows - self.centre.to(rows) if self.shifted else rows

    @property
    def shifted(self) -> bool:
        return bool(self.each.any())


def offsets(gallery: Tensor, metric: Metric) -> Offsets:  # g d
    if metric == "cosine":
        zeros = gallery.new_zeros(sum(gallery.shape), dtype=torch.float64)
        return Offsets(zeros[len(gallery) :], zeros[: len(gallery)])
    parts = torch.split(gallery, ROWS)
    mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(gallery)
    spread = torch.stack([(part.double() - mean).square().sum() for part in parts]).sum().div(gallery.numel()).sqrt()
    unit = torch.exp2(spread.log2().ceil())
    # Of single precision, so that a difference from it is the same in either; 0 where all rows are one.
    centre = torch.where(unit > 0, (mean / unit).round() * unit, 0.0).float().double()
    return Offsets(centre, torch.cat([-(part.double() - centre).square().sum(1) / 2 for part in parts]))


def key(similarity: Tensor, row: Tensor) -> Tensor:  # *s, *s -> *s
    """One whole number, larger for a larger similarity, and where that is the same for the earlier row."""
    bits = (similarity.float() + 0.0).view(torch.int32)  # -0 is 0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() * PLACE + (PLACE - 1 - row)


def rows_of(k: Tensor) -> Tensor:  # *s -> *s
    return PLACE - 1 - k.remainder(PLACE)


def similarity_of(k: Tensor) -> Tensor:  # *s -> *s
    order = (k >> 32).int()
    return torch.where(order < 0, order ^ 0x7FFFFFFF, order).view(torch.float32)


def nearest(queries: Tensor, gallery: Tensor, k: int, offset: Offsets) -> Nearest:  # n d, g d
    """The k rows of the gallery with the largest similarity to each query, in the order of products in float64."""
    if queries.ndim != 2 or gallery.ndim != 2 or queries.shape[1] != gallery.shape[1]:
        raise ShapeError(
            f"Queries of shape {tuple(queries.shape)} and a gallery of shape {tuple(gallery.shape)}; give rows of as "
            "many numbers on both sides."
        )
    if not 1 <= k <= len(gallery):
        raise AssayError(f"The first {k} of a gallery of {len(gallery)}; ask for 1 to {len(gallery)}.")
    with torch.no_grad():
        found = [_nearest(part.float(), gallery, k, offset) for part in torch.split(queries, QUERIES)]
    return Nearest(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _nearest(queries: Tensor, gallery: Tensor, k: int, offset: Offsets) -> Nearest:
    step = max(ROWS, k)
    shifted = offset.shifted  # the offset as one more number of each row is cheaper than a sum afterwards
    asked = torch.cat([offset.centred(queries), queries.new_ones(len(queries), 1)], 1) if shifted else queries
    room = queries.new_empty(len(queries), step)
    best = queries.new_zeros((len(queries), 0), dtype=torch.long)  # n k keys, the largest first
    least = queries.new_empty(len(queries))  # the last similarity among them
    for start in range(0, len(gallery), step):
        block = gallery[start : start + step].float()
        if shifted:
            block = torch.cat([offset.centred(block), offset.each[start : start + step, None].float()], 1)
        out = room if len(block) == step else queries.new_empty(len(queries), len(block))
        s = torch.mm(asked, block.T, out=out)
        if start:
            _merge(best, least, s, start)
        else:
            best = key(s, torch.arange(len(block), device=s.device)).topk(min(k, len(block)), dim=1).values
            least = similarity_of(best[:, -1])
    rows = rows_of(best).sort(dim=1).values
    exact = offset.centred(gallery[rows].double()) * offset.centred(queries.double())[:, None]
    exact = exact.sum(2) + offset.each[rows]
    exact, order = exact.sort(dim=1, descending=True, stable=True)
    return Nearest(rows.gather(1, order), exact.float())


def _merge(best: Tensor, least: Tensor, s: Tensor, start: int) -> None:  # n k, n, n b
    """Put what of a block is nearer than the k-th so far among the best keys; most of it is not, and is not touched.

    A row that is only as near as the k-th comes later, and after it.
    """
    part = PART if s.shape[1] % PART == 0 else s.shape[1]
    pieces = s.view(len(s), -1, part)
    query, piece = (pieces.amax(2) > least[:, None]).nonzero(as_tuple=True)
    if not len(query):
        return
    some = pieces[query, piece]
    at, place = (some > least[query, None]).nonzero(as_tuple=True)
    hit, owner, count = torch.unique_consecutive(query[at], return_inverse=True, return_counts=True)
    slot = torch.arange(len(at), device=s.device) - (count.cumsum(0) - count)[owner]
    new = best.new_full((len(hit), int(count.max())), torch.iinfo(torch.long).min)
    new[owner, slot] = key(some[at, place], start + part * piece[at] + place)
    kept = torch.cat([best[hit], new], 1).topk(best.shape[1], dim=1).values
    best[hit] = kept
    least[hit] = similarity_of(kept[:, -1])
