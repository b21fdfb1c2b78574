r"""The few directions along which several samples vary most together: principal components by subspace iteration.

    Q <- orth( X' X Q ),  a few times from a random start;   X rows centred, Q the first directions

Distances in many dimensions are all alike, and a neighbour is then none: tests by neighbours want few of them. A
direction is kept while it holds more than NOISE of the variance of the first.

Source: Halko, Martinsson & Tropp, SIAM Review 2011, arXiv:0909.4061, alg. 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.errors import AssayError

MOST = 10
NOISE = 1e-6
ITERATIONS, SPARE = 8, 10


def principal(samples: Sequence[Tensor], most: int = MOST) -> list[Tensor]:  # each n *d -> each n p, p <= most
    """Every sample in the principal components of all of them; float64. Constant samples keep one column of zeros."""
    rows = [part.detach().flatten(1).double() for part in samples]
    if not rows or min(map(len, rows)) == 0:
        raise AssayError("principal got a sample without rows; give at least one row of each.")
    every = torch.cat(rows)
    middle = every.mean(0)
    every = every - middle
    d = every.shape[1]
    if d <= most + SPARE:
        values, ways = torch.linalg.eigh(every.T @ every)
        values, ways = values.flip(0), ways.flip(1)
    else:
        rng = torch.Generator().manual_seed(0)
        ways = torch.randn(d, most + SPARE, generator=rng, dtype=torch.float64).to(every.device)
        for _ in range(ITERATIONS):
            ways = torch.linalg.qr(every.T @ (every @ ways)).Q
        seen, turn = torch.linalg.eigh((every @ ways).T @ (every @ ways))
        values, ways = seen.flip(0), (ways @ turn).flip(1)
    kept = max(1, int((values[:most] > NOISE * values[0]).sum()))
    return [(part - middle) @ ways[:, :kept] for part in rows]
