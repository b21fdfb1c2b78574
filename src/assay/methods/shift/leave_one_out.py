r"""What can be told of labels from features: kernel ridge regression, each input answered by the others.

    f(x) = mean + k(x, X) G^-1 Y,     G = K + penalty * I,   K_ij = exp(-|x_i - x_j|^2 / s)
    f_-i(x_i) = Y_i - (G^-1 Y)_i / (G^-1)_ii                 without a second fit

Y are rows of zeros and a one, less their mean; s is the median squared distance, so that the unit does not matter; the
penalty is the one of PENALTIES with the smallest squared error, each input left out in turn. Where all inputs are the
same every answer is the commonness of each class, which is what a representation without information is worth.

An answer is linear in the labels, f(x) = sum_i h_i(x) Y_i, and without input i it is f(x) - h_i(x) (Y_i - f_-i(x_i)).
So the jackknife, which fits again without each input in turn, needs no further fit either (but for the penalty):

    var f(x) = sum_i h_i(x)^2 (Y_i - f_-i(x_i))^2

Source: Rifkin & Lippert, "Notes on Regularized Least Squares", MIT 2007 (leave-one-out by one decomposition). Answers
    of a regression on zeros and ones estimate P(y | x), and may leave [0, 1] by a little.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.errors import ShapeError
from assay.methods.shift.mk_mmd import median_distance

PENALTIES = (0.01, 0.1, 1.0, 10.0)


class Told:
    """A fit to features and labels; `left_out` is its answer to each of these inputs without its own label."""

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:  # n *d, n
        if len(x) < 2 or y.shape != x.shape[:1]:
            raise ShapeError(
                f"leave_one_out got {tuple(x.shape)} features and {tuple(y.shape)} labels; give 2 or more of each."
            )
        rows = x.detach().flatten(1).double()
        self.centre = rows.mean(0)
        self.rows = rows - self.centre  # distances stay, and their rounding shrinks
        hot = torch.nn.functional.one_hot(y, classes).double()
        self.mean = hot.mean(0)
        self.scale = median_distance(self.rows)
        values, vectors = torch.linalg.eigh(self._kernel(self.rows))
        turned = vectors.T @ (hot - self.mean)
        self.left_out: Tensor = hot
        self.vectors = vectors
        error = torch.inf
        for penalty in PENALTIES:
            shrunk = 1 / (values.clamp_min(0) + penalty)
            weights = vectors @ (shrunk[:, None] * turned)
            missed = weights / (vectors.square() @ shrunk)[:, None]  # n k
            now = float(missed.square().mean())
            if now < error:
                self.weights, self.left_out, error = weights, hot - missed, now
                self.shrunk, self.missed = shrunk, missed

    def _kernel(self, rows: Tensor) -> Tensor:  # m d -> m n
        near: Tensor = (-torch.cdist(rows, self.rows).square() / self.scale).exp()
        return near

    def at(self, x: Tensor) -> Tensor:  # m *d -> m k
        """An estimate of P(y | x) for other inputs."""
        told: Tensor = self.mean + self._kernel(x.detach().flatten(1).double() - self.centre) @ self.weights
        return told

    def parts(self, x: Tensor | None = None) -> Tensor:  # m *d -> m n, rows sum to 1
        """What each label counts in the answer to other inputs, or in `left_out`."""
        inverse = (self.vectors * self.shrunk) @ self.vectors.T
        if x is None:
            found: Tensor = torch.eye(len(inverse)).to(inverse) - inverse / inverse.diagonal()[:, None]
        else:
            found = self._kernel(x.detach().flatten(1).double() - self.centre) @ inverse
<<<<<<< HEAD
        whole: Tensor = found + (1 - found.sum(1, keepdim=True)) / len(inverse)  # through the mean of the labels
        return whole
=======
        found += (1 - found.sum(1, keepdim=True)) / len(inverse)  # through the mean of the labels
        return found
>>>>>>> h-m1


def leave_one_out(x: Tensor, y: Tensor, classes: int) -> Tensor:  # n *d, n -> n k
    """An estimate of P(y | x) for each input, made without its own label; float64."""
    return Told(x, y, classes).left_out
