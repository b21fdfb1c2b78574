r"""PGD adversarial training: train on inputs as they are worst for the model, and on nothing else.

    min_w  mean_i  max_{||x' - x_i||_inf <= radius}  loss( f(x'; w), y_i )

Each batch is replaced by the last points of a climb from random starts (adversary.py), then the weights step down on
it. `steps=1` with a step of 1.25 radius is the fast form of Wong, Rice and Kolter, ICLR 2020, arXiv:2001.03994; with
few steps watch the accuracy under a strong attack, which such a training can lose from one epoch to the next.

Source: Madry, Makelov, Schmidt, Tsipras and Vladu, ICLR 2018, arXiv:1706.06083, eq. 2.1 and sec. 3.
Departs from print: the search asks the model in eval mode, where the public code leaves batch normalisation training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.methods.train.adversary import Adversary


class PgdTraining:
    """The piece that `fit` takes beside the model: `fit(model, ..., augment=PgdTraining(adversary).augment)`."""

    def __init__(self, adversary: Adversary) -> None:
        self.adversary = adversary

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n
        return self.adversary.worst(x, y, rng), y
