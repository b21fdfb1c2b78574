r"""Importance weighting: train on inputs of one place as if they came from another.

    L  =  1/n  sum_i  w_i CE( f(x_i), y_i ),        w_i  =  ( p_t(z_i) / p_s(z_i) )^lambda,  scaled to the mean 1

p_s and p_t are the densities of what is trained on and of where it is to serve (shift/importance_weights.py), at z, the
first principal components of the inputs (shift/principal.py): a density of all their values cannot be told from some
hundred of them. It helps where only the inputs have moved (covariate shift) and the network is too small to be right
everywhere; it cannot where labels have.

Source: Shimodaira 2000, doi:10.1016/S0378-3758(00)00115-4 (the weighted likelihood and lambda); Wang, dissertation, TU
    Delft 2024, sec. 5.4.1 (t densities, on one feature). The components are ours.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train.fit import Rows


class Weighted:
    """The same inputs with their weights behind their labels, for `weighted_loss`."""

    def __init__(self, rows: Rows, weights: Tensor) -> None:  # n
        if len(rows) != len(weights):
            raise AssayError(f"Got {len(weights)} weights for {len(rows)} inputs; give one each.")
        self.rows, self.weights = rows, weights.detach().cpu().double()

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: NDArray[Any], /) -> tuple[Tensor, Tensor]:  # k -> k *d, k 2
        x, y = self.rows.take(index)
        return torch.as_tensor(x), torch.stack([torch.as_tensor(y).double(), self.weights[index]], 1)


def weighted_loss(out: Tensor, target: Tensor) -> Tensor:  # n k, n 2 -> scalar
    """The mean cross-entropy of labels, each times its weight."""
    each = F.cross_entropy(out, target[:, 0].long(), reduction="none")
    return (each * target[:, 1].to(each)).mean()
