r"""The few directions along which several samples vary most together: principal components by subspace iteration.

    Q <- orth( X' X Q ),  a few times from a random start;   X rows centred, Q the first directions

Distances in many dimensions are all alike, and a neighbour is then none: tests by neighbours want few of them. A
direction is kept while it holds more than NOISE of the variance of the first. Sums are in float64, of a few rows at a
time: a copy of all of them would be twice what a sample in float32 takes.

Source: Halko, Martinsson & Tropp, SIAM Review 2011, arXiv:0909.4061, alg. 4.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError

MOST = 10
NOISE = 1e-6
ITERATIONS, SPARE = 8, 10
VALUES = 2**20  # that are taken at a time


class Principal(NamedTuple):
    """The middle of all samples and the directions, the first one first, to bring any sample into."""

    mean: Tensor  # d
    axes: Tensor  # d p

    def __call__(self, x: Tensor) -> Tensor:  # n *d -> n p
        """In float64."""
        return torch.cat([part @ self.axes.to(x.device) for part in _parts([x], self.mean)])


def principal(samples: Sequence[Tensor], most: int = MOST) -> Principal:  # each n *d -> d, d p; p <= most
    """The principal components of all samples together, or all there are. Constant ones keep one direction."""
    if most < 1:
        raise AssayError(f"principal got {most} components; give a whole number of at least 1.")
    rows = [part.detach().flatten(1) for part in samples]
    if not rows or min(map(len, rows)) == 0:
        raise AssayError("principal got a sample without rows; give at least one row of each.")
    d, device = rows[0].shape[1], rows[0].device
    none = torch.zeros(d, dtype=torch.float64, device=device)
    middle = none + sum(part.sum(0) for part in _parts(rows, none)) / sum(map(len, rows))
    if d <= most + SPARE:
        values, ways = torch.linalg.eigh(sum((part.T @ part for part in _parts(rows, middle)), none.new_zeros(d, d)))
    else:
        rng = torch.Generator().manual_seed(0)
        found = torch.randn(d, most + SPARE, generator=rng, dtype=torch.float64).to(device)
        for _ in range(ITERATIONS):
            moved = sum((part.T @ (part @ found) for part in _parts(rows, middle)), torch.zeros_like(found))
            found = torch.linalg.qr(moved).Q
        within = [part @ found for part in _parts(rows, middle)]
        values, turn = torch.linalg.eigh(sum((part.T @ part for part in within), none.new_zeros(2 * (found.shape[1],))))
        ways = found @ turn
    values, ways = values.flip(0), ways.flip(1)
    kept = max(1, int((values[:most] > NOISE * values[0]).sum()))
    return Principal(middle, ways[:, :kept])


def _parts(samples: Sequence[Tensor], middle: Tensor) -> Iterator[Tensor]:  # each n *d, d -> each k d
    """A few rows at a time, centred, in float64."""
    for x in samples:
        rows = x.detach().flatten(1)
        for part in torch.split(rows, max(1, VALUES // max(1, rows.shape[1]))):
            yield part.double() - middle.to(x.device)
