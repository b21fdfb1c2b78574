r"""Who was in the training set, told with shadow models: LiRA, the likelihood-ratio attack.

Shadows are models of the same architecture, each trained on one half of a pool that holds members and non-members
alike. Of every input x, phi(x) = log p_y / (1 - p_y) (membership.py) is about normal over shadows that were trained on
it, and over those that were not; the model under attack is then compared with both:

    online    log N(phi; mu_in, sigma_in) - log N(phi; mu_out, sigma_out)
    offline   Phi( (phi - mu_out) / sigma_out )                      for shadows that need not know who is asked about

The means are each input's own. Few shadows do not tell a spread of each input's own; below OWN of them on a side it is
that of all inputs together, the root mean square of what is left around their means, with as many degrees of freedom as
are left.

Shadows come in pairs of a random half of the pool and the other half: each input is in exactly half of them, each
shadow learns half of the pool. All that is held of a shadow is one number for each input: one pass each.

Source: Carlini et al., S&P 2022, arXiv:2112.03570, sec. IV (online is algorithm 1) and VI (one spread for few shadows).
    Departs from print: offline gives the score z = (phi - mu_out) / sigma_out, whose order is that of Phi(z) and which
    does not round to 1 where many inputs are far above.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.private.membership import label_confidence

OWN = 32  # shadows on one side, from which on each input has a spread of its own: 64 in all, as in print
FLOOR = 1e-6  # of a spread: shadows that all say the same


def halves(pool: int, shadows: int, rng: torch.Generator) -> Tensor:  # -> s n of bool
    """Which inputs of a pool each shadow is trained on: a random half, and the next shadow the other."""
    if shadows < 2 or shadows % 2 or pool < 2:
        raise AssayError(
            f"{shadows} shadows over a pool of {pool} do not pair up in halves; give an even number of shadows of at "
            "least 2, and at least 2 inputs."
        )
    order = torch.rand(shadows // 2, pool, generator=rng).argsort(1)
    first = order < pool // 2
    return torch.stack([first, ~first], 1).flatten(0, 1)


def confidences(
    ask: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, *, batch: int = 512
) -> Tensor:  # n *d, n -> n, float64
    """phi of each input by one model, in one pass: n *d -> n k is asked a batch at a time."""
    with torch.no_grad():
        parts = [
            label_confidence(ask(part), own)
            for part, own in zip(torch.split(x, batch), torch.split(y, batch), strict=True)
        ]
    return torch.cat(parts)


class Lira(NamedTuple):
    """Scores of each input, higher for a member's."""

    online: NDArray[np.float64]  # n
    offline: NDArray[np.float64]  # n


def lira(
    observed: Tensor, shadows: Tensor, inside: Tensor, *, own_spread: bool | None = None
) -> Lira:  # n, s n, s n of bool
    """Both scores from phi of the model under attack, of each shadow, and who was in which.

    `own_spread`: each input its own, or one for all; left out, by how many shadows there are.
    """
    if shadows.shape != inside.shape or observed.shape != shadows.shape[1:]:
        raise ShapeError(
            f"lira got {tuple(observed.shape)} observed, {tuple(shadows.shape)} of shadows and {tuple(inside.shape)} "
            "of who was inside; give one of n, and two of shadows by n."
        )
    count = inside.sum(0)
    fewest = int(torch.minimum(count, len(inside) - count).min())
    if fewest < 2:
        raise AssayError(
            f"Some input is in, or out of, only {fewest} of {len(inside)} shadows, which tells no spread; train at "
            "least 4, with each input in half of them."
        )
    phi, seen = shadows.double(), observed.double()
    sides = []
    for mask in (inside, ~inside):
        w = mask.double()
        k = w.sum(0)
        mean = (phi * w).sum(0) / k
        left = ((phi - mean).square() * w).sum(0)
        own = fewest >= OWN if own_spread is None else own_spread
        variance = left / (k - 1) if own else (left.sum() / (k - 1).sum()).expand_as(left)
        sides.append((mean, variance.sqrt().clamp_min(FLOOR)))
    (mean_in, sd_in), (mean_out, sd_out) = sides
    z_in, z_out = (seen - mean_in) / sd_in, (seen - mean_out) / sd_out
    online = (z_out.square() - z_in.square()) / 2 + sd_out.log() - sd_in.log()
    return Lira(online.cpu().numpy(), z_out.cpu().numpy())
