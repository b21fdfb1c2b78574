r"""Label noise: labels flipped on purpose, to see whether a finder finds them, and a simple finder to compare with.

    planted       in each of r copies of the labels a share s of the inputs, no input in two copies, gets another class:
                  any other with equal chance, or the one class that its own is most often like
    left out      m_i = f_y(x_i) - max_{c != y} f_c(x_i),   f the ridge regression on all inputs but the i-th

f without the i-th input needs no further fit: with the hat matrix H = U (U'U + lam I)^-1 U' of all inputs,

    f_c(x_i)  =  ( (H Y)_ic - H_ii Y_ic ) / (1 - H_ii),     Y the one-hot labels less their means.

A label that the other inputs speak against has a low m. Flips in the labels are in every fit, as they would be in a
real training: a model that was trained before they were planted never saw them, and would find them too easily.

Source: the self-confidence by held-out predictions of Northcutt, Jiang and Chuang, JAIR 2021, arXiv:1911.00068, sec. 3,
    with a margin in place of the probability and ridge regression in place of the network; the identity of Allen,
    Technometrics 1974 (PRESS).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError

RIDGE = 0.1  # times the mean eigenvalue of U'U


class Planted(NamedTuple):
    """Copies of the labels, and which of them were flipped: r n each."""

    labels: Tensor
    flipped: Tensor


def plant(labels: Tensor, copies: int, share: float, rng: torch.Generator, alike: Tensor | None = None) -> Planted:
    """`alike` names for each class the one that its inputs are flipped to; left out: any other that there is.

    labels: n, alike: k
    """
    n, there = len(labels), torch.unique(labels)  # type: ignore[no-untyped-call]
    each = max(1, round(share * n))
    if not 0 < share < 1 or copies < 1 or copies * each > n:
        raise AssayError(
            f"{copies} copies with a share of {share:g} flipped need {copies * each} inputs, and there are {n}; give "
            "fewer copies or a smaller share."
        )
    if len(there) < 2:
        raise AssayError(f"All {n} labels are of one class; there is no other to flip one to.")
    rows = torch.randperm(n, generator=rng, device=rng.device).to(labels.device)[: copies * each].reshape(copies, each)
    if alike is None:
        place = torch.searchsorted(there, labels[rows])
        step = torch.randint(1, len(there), rows.shape, generator=rng, device=rng.device).to(labels.device)
        others = there[(place + step) % len(there)]
    else:
        others = alike[labels[rows]]
    given = labels.repeat(copies, 1)
    return Planted(given.scatter(1, rows, others), torch.zeros_like(given, dtype=torch.bool).scatter(1, rows, True))


def likest(counts: Tensor, labels: Tensor) -> Tensor:  # n k, n -> k
    """For each class the other one that is commonest among the neighbours of its inputs."""
    k = counts.shape[1]
    between = counts.new_zeros(k, k).index_add_(0, labels, counts)
    there = torch.zeros(k, dtype=torch.bool, device=labels.device).index_fill(0, labels, True)
    return between.fill_diagonal_(-1).masked_fill(~there, -2).argmax(1)


def left_out_margin(u: Tensor, labels: Tensor, classes: int) -> Tensor:  # n d, n or r n -> n or r n
    """By how much the inputs but this one are for its label; the less, the likelier it is wrong."""
    n, d = u.shape
    rows = u.double()
    lam = RIDGE * float(rows.square().sum()) / d + 1e-9
    if d <= n:
        solved = torch.linalg.solve(rows.T @ rows + lam * torch.eye(d).to(rows), rows.T)  # d n
        own = (rows * solved.T).sum(1, keepdim=True)
    else:
        alike = rows @ rows.T
        hat = torch.linalg.solve(alike + lam * torch.eye(n).to(rows), alike)
        own = hat.diagonal()[:, None]

    def margin(given: Tensor) -> Tensor:  # n -> n
        y = F.one_hot(given, classes).double()
        y -= y.mean(0)
        said = rows @ (solved @ y) if d <= n else hat @ y
        held = said.sub_(own * y).div_(1 - own)  # n k
        mine: Tensor = held.gather(1, given[:, None])[:, 0]
        other: Tensor = held.scatter_(1, given[:, None], -torch.inf).amax(1)
        return mine - other

    # one labelling after the other: all at once are r n k numbers, several times over
    return torch.stack([margin(given) for given in labels.reshape(-1, n)]).reshape(labels.shape)
