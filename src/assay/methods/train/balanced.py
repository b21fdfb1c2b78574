r"""Balanced batches: the same number of inputs of every class from every domain.

A batch holds `each` inputs of every cell (a class in a domain), domain by domain and in each class by class, so that a
loss that wants to know the domain reads it off the place: the first 1 / domains of a batch are the first domain's. Each
cell is gone through in an order of its own, and begun anew in another one when it is at its end; an epoch has as many
batches as show about as many inputs as there are.

`paired`: the k-th input of a class is the same thing in every domain (one digit at every angle), and a batch holds the
same ones of all of them.

Source: Wang, Loog and van Gemert, ICPR 2020, arXiv:2010.07591, sec. IV (5 domains x 10 classes x 5 inputs; the paired
    and the unpaired batches of 50).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train.fit import Order


def balanced(domain: Tensor, y: Tensor, *, each: int, paired: bool = False) -> Order:  # n, n
    """For `fit(order=...)`: batches of domains x classes x `each` inputs, from numbers of domains and of classes."""
    if each < 1:
        raise AssayError(f"each={each} puts no input into a batch; give a whole number of at least 1.")
    domains, classes = np.unique(domain.cpu().numpy()).tolist(), np.unique(y.cpu().numpy()).tolist()
    cells = [[torch.nonzero((domain == d) & (y == c))[:, 0].cpu() for c in classes] for d in domains]
    for d, row in zip(domains, cells, strict=True):
        for c, cell in zip(classes, row, strict=True):
            if not len(cell):
                raise AssayError(f"Domain {d} has no input of class {c}, which other domains have; leave one out.")
            if paired and len(cell) != len(cells[0][classes.index(c)]):
                raise AssayError(
                    f"Domain {d} has {len(cell)} inputs of class {c} and domain {domains[0]} "
                    f"{len(cells[0][classes.index(c)])}; pairs want the same ones of both."
                )
    batches = max(1, round(len(y) / (len(domains) * len(classes) * each)))

    def order(rng: torch.Generator) -> tuple[Tensor, ...]:
        shared = [_places(len(cell), batches * each, rng) for cell in cells[0]] if paired else None
        columns = [
            cell[_places(len(cell), batches * each, rng) if shared is None else shared[i]].reshape(batches, each)
            for row in cells
            for i, cell in enumerate(row)
        ]
        return torch.cat(columns, 1).unbind(0)

    return order


def _places(n: int, count: int, rng: torch.Generator) -> Tensor:  # -> count
    """So many places below n, none a second time before all were there."""
    rounds = -(-count // n)
    return torch.cat([torch.randperm(n, generator=rng) for _ in range(rounds)])[:count]
