r"""What can be told of labels from features, each input answered by the others: kernel ridge regression in closed form.

    f_-i(x_i) = Y_i - (G^-1 Y)_i / (G^-1)_ii,     G = K + penalty * I,  K_ij = exp(-|x_i - x_j|^2 / s)

Y are rows of zeros and a one, less their mean; s is the median squared distance, so that the unit does not matter; the
penalty is the one of PENALTIES with the smallest squared error, each input left out in turn. Where all inputs are the
same every answer is the commonness of each class, which is what a representation without information is worth.

Source: Rifkin & Lippert, "Notes on Regularized Least Squares", MIT 2007 (leave-one-out by one decomposition). Answers
    of a regression on zeros and ones estimate P(y | x), and may leave [0, 1] by a little.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import ShapeError
from assay.methods.shift.mk_mmd import median_distance

PENALTIES = (0.01, 0.1, 1.0, 10.0)


def leave_one_out(x: Tensor, y: Tensor, classes: int) -> Tensor:  # n *d, n -> n k
    """An estimate of P(y | x) for each input, made without its own label; float64."""
    if len(x) < 2 or y.shape != x.shape[:1]:
        raise ShapeError(
            f"leave_one_out got {tuple(x.shape)} features and {tuple(y.shape)} labels; give 2 or more of each."
        )
    rows = x.detach().flatten(1).double()
    rows = rows - rows.mean(0)
    hot = torch.nn.functional.one_hot(y, classes).double()
    off = hot - hot.mean(0)
    apart = torch.cdist(rows, rows).square()
    values, vectors = torch.linalg.eigh((-apart / median_distance(rows)).exp())
    turned = vectors.T @ off
    best, error = off, torch.inf
    for penalty in PENALTIES:
        shrunk = 1 / (values.clamp_min(0) + penalty)
        missed = vectors @ (shrunk[:, None] * turned) / (vectors.square() @ shrunk)[:, None]  # n k
        now = float(missed.square().mean())
        if now < error:
            best, error = missed, now
    return hot - best
