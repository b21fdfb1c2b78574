r"""Recycling: add what the model saw change back onto the input, and look whether it agrees with itself (Algorithm 4).

    h = p(e(A)),   h' = p(e(A + ε)),   d = h' - h,   h'' = p(e(A + d));      c, c', c'' compare A, A + ε, A + d with B

    perception follows     cos(h'' - h, h' - h)          1: the recycled change is seen as the attack was
    decision follows       (c'' - c) / (c' - c)          1: as far; below 0: the other way
    same pixels            cos(d, ε), Spearman's rank correlation of the two maps

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.6 and 5.3.7. The
    numbers are not in print: there perception is looked at and correlations are named without values. Nor is clipping,
    although A + d leaves the box: `box` clips it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from assay.errors import ShapeError
from assay.methods.rank.agreement import cosine, rank_correlation
from assay.methods.rank.maps import grey


class SeesPairs(Protocol):
    """A model of pairs with a decoder, as `assay.nn.siamese.Siamese` is."""

    def encode(self, x: Tensor) -> Tensor: ...  # n *d -> n s

    def compare(self, e1: Tensor, e2: Tensor) -> Tensor: ...  # n s, n s -> n

    def decode(self, e: Tensor) -> Tensor: ...  # n s -> n *d


class Recycled(NamedTuple):
    """What became of the perceived change when it was put back; NaN where a direction or a ratio has no meaning."""

    x: Tensor  # n *d, A + d
    change: Tensor  # n *d, d
    seen: tuple[Tensor, Tensor, Tensor]  # h, h', h''
    c: tuple[Tensor, Tensor, Tensor]  # c, c', c''
    perception: Tensor  # n, cos(h'' - h, h' - h)
    decision: Tensor  # n, (c'' - c) / (c' - c)
    cosine: Tensor  # n, of d and ε
    spearman: Tensor  # n, of their maps
    length: tuple[Tensor, Tensor]  # n, of ε and of d


@torch.no_grad()
def recycle(
    model: SeesPairs,
    x: Tensor,
    attacked: Tensor,
    partner: Tensor,
    *,
    instead: Tensor | None = None,
    box: tuple[float, float] | None = None,
) -> Recycled:
    """Recycle what `attacked` (A + ε) changed in the perception of `x` (A), compared with `partner` (B): n *d each.

    `instead` is put back in place of d, such as a random change as long as it: the baseline of all these numbers.
    """
    if not x.shape == attacked.shape == partner.shape:
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, attacked, partner))
        raise ShapeError(f"Recycling takes inputs, attacked inputs and partners of one shape, got {shapes}.")
    other = model.encode(partner)
    e = [model.encode(x), model.encode(attacked)]
    h = [model.decode(code) for code in e]
    d = h[1] - h[0] if instead is None else instead
    again = x + d if box is None else (x + d).clamp(*box)
    e.append(model.encode(again))
    h.append(model.decode(e[2]))
    c = [model.compare(code, other) for code in e]
    eps = attacked - x
    asked = c[1] - c[0]
    return Recycled(
        x=again,
        change=d,
        seen=(h[0], h[1], h[2]),
        c=(c[0], c[1], c[2]),
        perception=cosine(h[2] - h[0], h[1] - h[0]),
        decision=torch.where(asked != 0, (c[2] - c[0]) / torch.where(asked != 0, asked, 1), torch.nan),
        cosine=cosine(d, eps),
        spearman=rank_correlation(grey(x, again), grey(x, attacked)),
        length=(eps.flatten(1).norm(dim=1), d.flatten(1).norm(dim=1)),
    )
