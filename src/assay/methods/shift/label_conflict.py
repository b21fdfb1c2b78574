r"""Whether two domains give the same inputs different labels: a test of P(y | x, a) = P(y | x, b).

Inputs of both domains are paired, the nearest two first, none farther apart than neighbours of their own domain. With
r = e_y - P(y | x) what a smooth fit to both domains together leaves of a label, each input left out in turn,

    u_p = r_a(p) - r_b(p),     T = sum over neighbouring pairs p, q of u_p . u_q

is agreement within domains less agreement across them: e_a.e_a' + e_b.e_b' - e_a.e_b' - e_b.e_a'. Where no domain tells
more of a label than the input does, a pair may swap its labels, u_p -> -u_p; p is the share of such swaps of pairs that
reach T. T over twice the number of neighbours estimates the mean of |P(. | x, a) - P(. | x, b)|^2 / 2: 0 without
conflict, 1 where two certain labels always differ; neighbours that are not near blur it towards 0.

Covariate shift alone leaves p uniform: the pairs lie where both domains are, and the fit takes out what the partners
differ by because one lies a little to the side that its domain is on. Without the fit, in 20 dimensions, half of all
tests were below .05 without any conflict; with it 1 in 20 where labels change smoothly. It is not exact: where classes
part sharply, and pairs are few and in many dimensions, about 1 in 6 is below .05, so that few dimensions are best.

Source: the condition: Wang, dissertation, TU Delft 2024, sec. 8.1. Swaps within near pairs: Runge, AISTATS 2018,
    arXiv:1709.01447 (local permutation). Taking out what partners differ by: Abadie & Imbens, JBES 2011.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.shift.leave_one_out import leave_one_out

NEIGHBOURS = 5
LEAST = 30  # pairs; with fewer nothing is said
DEALS, DRAWS = 999, 500
TIE = 1e-9


class Conflict(NamedTuple):
    """How much labels differ between domains at the same inputs, with a 95 % interval, and whether that is chance."""

    strength: float
    low: float
    high: float
    p_value: float
    pairs: int
    differ: float
    """The share of pairs with two labels, for whatever reason."""


def label_conflict(
    a: Tensor, y_a: Tensor, b: Tensor, y_b: Tensor, *, classes: int, rng: torch.Generator
) -> Conflict | None:  # n *d, n, m *d, m
    """The test of two domains; None where fewer than 30 pairs are found, because the domains do not overlap."""
    if a.shape[1:] != b.shape[1:] or y_a.shape != a.shape[:1] or y_b.shape != b.shape[:1]:
        raise ShapeError(
            f"label_conflict got {tuple(a.shape)} and {tuple(b.shape)} inputs with {tuple(y_a.shape)} and "
            f"{tuple(y_b.shape)} labels; give rows of one length with a label each."
        )
    if min(len(a), len(b)) <= NEIGHBOURS:
        raise AssayError(f"label_conflict got {len(a)} and {len(b)} inputs; give more than {NEIGHBOURS} of each.")
    left, right = (part.detach().flatten(1).double() for part in (a, b))
    left, right = left - left.mean(0), right - left.mean(0)  # distances stay, and their rounding shrinks
    i, j = pairs(left, right)
    if len(i) < LEAST:
        return None
    labels = torch.cat([y_a, y_b])
    told = leave_one_out(torch.cat([left, right]), labels, classes)
    rest = torch.nn.functional.one_hot(labels, classes).double() - told
    u = rest[i] - rest[len(a) + j]
    middle = (left[i] + right[j]) / 2
    apart = torch.cdist(middle, middle)
    apart.fill_diagonal_(torch.inf)
    near = apart.topk(NEIGHBOURS, 1, largest=False).indices
    linked = torch.zeros_like(apart).scatter_(1, near, 1.0)
    linked = (linked + linked.T) / 2
    agree = linked * (u @ u.T)

    def along(s: Tensor) -> Tensor:  # t p -> t
        return ((s @ agree) * s).sum(1)

    swaps = torch.randint(0, 2, (DEALS, len(i)), generator=rng, device=rng.device).to(u) * 2 - 1
    drawn = torch.randint(0, len(i), (DRAWS, len(i)), generator=rng, device=rng.device).to(i)
    counts = torch.zeros(DRAWS, len(i)).to(u).scatter_add_(1, drawn, torch.ones(drawn.shape).to(u))
    resampled = along(counts) / (2 * ((counts @ linked) * counts).sum(1))
    low, high = resampled.quantile(torch.tensor([0.025, 0.975]).to(u)).tolist()
    total = float(agree.sum())
    return Conflict(
        strength=total / (2 * float(linked.sum())),
        low=low,
        high=high,
        p_value=(1 + int((along(swaps) >= total - TIE).sum())) / (1 + DEALS),
        pairs=len(i),
        differ=float((y_a[i] != y_b[j]).double().mean()),
    )


def pairs(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:  # n d, m d -> p, p
    """One-to-one, the nearest two first, no farther apart than the larger of their distances to a 5th neighbour."""
    reach = [torch.cdist(part, part).kthvalue(NEIGHBOURS + 1, 1).values for part in (a, b)]
    apart = torch.cdist(a, b)
    apart = apart.masked_fill(apart > torch.maximum(reach[0][:, None], reach[1]), torch.inf)
    rows, columns = [a.new_empty(0, dtype=torch.long)], [a.new_empty(0, dtype=torch.long)]
    while True:  # all who are nearest to each other, which is what one pair at a time would come to
        least, to = apart.min(1)
        back = apart.argmin(0)
        found = ((back[to] == torch.arange(len(a), device=a.device)) & least.isfinite()).nonzero()[:, 0]
        if len(found) == 0:
            return torch.cat(rows), torch.cat(columns)
        rows.append(found)
        columns.append(to[found])
        apart[found], apart[:, to[found]] = torch.inf, torch.inf
