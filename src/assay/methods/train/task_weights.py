r"""Several losses at once, each weighed by how well it is met: the weights are learned with the network.

    L  =  sum_i  exp(-s_i) L_i  +  s_i / 2,        s_i = log mu_i^2

For losses that stand still the lowest L has  exp(s_i) = mu_i^2 = 2 L_i,  so that a loss counts 1 / (2 L_i): what is
large counts less, and each counts as much in the end.

Source: Yang et al., ICANN 2021, sec. 3.4, L = sum L_i / mu_i^2 + log prod mu_i; after Kendall et al., CVPR 2018,
    arXiv:1705.07115, which has 1 / (2 mu^2) for a squared error, and 1 / mu^2 for a cross entropy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from assay.errors import AssayError


class TaskWeights(nn.Module):
    """One s for each loss, 0 at first: mu = 1. Train its parameters with those of the network."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        if losses < 1:
            raise AssayError(f"There are {losses} losses to weigh; give at least 1.")
        self.log_square = nn.Parameter(torch.zeros(losses))  # s

    def forward(self, losses: Sequence[Tensor]) -> Tensor:  # k scalars -> scalar
        if len(losses) != len(self.log_square):
            raise AssayError(f"TaskWeights got {len(losses)} losses and has {len(self.log_square)} weights.")
        return ((-self.log_square).exp() * torch.stack(list(losses)) + self.log_square / 2).sum()

    @property
    def weights(self) -> Tensor:  # k
        """exp(-s): what each loss counts."""
        return (-self.log_square.detach()).exp()


def lowest(losses: Tensor) -> Tensor:  # k -> k
    """mu^2 at which L is lowest for losses that stand still: 2 L_i."""
    return 2 * losses
