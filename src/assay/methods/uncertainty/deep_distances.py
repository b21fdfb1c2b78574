r"""Deep distances: how far an input's activations lie from those of training, layer by layer, whatever is predicted.

With d_L(x) the distance of the direction of x's activations at layer L, less the training mean, to the k-th nearest one
of training (outliers.py, Neighbours), and m_L the median of d_L over training inputs that are held back,

    score(x) = - (1 / layers) sum_L d_L(x) / m_L

so that a layer counts by what is usual there: -1 is an ordinary input. No label is looked at, which is what deep
nearest neighbours (deep_neighbours.py) need.

Source: Sun et al., ICML 2022, arXiv:2204.06507, sec. 3 (the distance, at one layer). The mean over layers is Assay's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.uncertainty.activations import BATCH, Seen, shown
from assay.methods.uncertainty.outliers import Neighbours

HELD_BACK = 5  # one in so many training inputs


@dataclass(frozen=True)
class DeepDistances:
    """A fitted score: at each layer the mean of training, its neighbours, and the distance that is usual."""

    model: nn.Module
    middles: dict[str, Tensor]  # f
    near: dict[str, Neighbours]
    usual: dict[str, float]

    @classmethod
    def fit(
        cls, model: nn.Module, x: Tensor, *, layers: Sequence[str], rng: np.random.Generator, k: int = 50
    ) -> DeepDistances:  # n *d
        """Look at the training inputs `x` at the modules called `layers`."""
        kept = len(x) - len(x) // HELD_BACK
        if not layers or len(x) < HELD_BACK or not 1 <= k <= kept:
            raise AssayError(
                f"DeepDistances got {len(layers)} layers, {len(x)} inputs and k={k}; name at least one module, give at "
                f"least {HELD_BACK} inputs, and k from 1 to {kept}, those that are not held back."
            )
        order = torch.as_tensor(rng.permutation(len(x))).to(x.device)
        rest, back = (_inner(model, x[rows], layers) for rows in (order[:kept], order[kept:]))
        middles = {name: f.mean(0) for name, f in rest.items()}
        near = {name: Neighbours.fit(_seen(f - middles[name]), torch.zeros(0), k=k) for name, f in rest.items()}
        usual = {name: float((-near[name].score(_seen(f - middles[name]))).median()) for name, f in back.items()}
        told = {name: m for name, m in usual.items() if m > 0}  # where every input is the same, nothing is far
        if not told:
            raise AssayError("No layer tells training inputs apart; deep distances have no scale: name other layers.")
        return cls(model, middles, {name: near[name] for name in told}, told)

    def score(self, x: Tensor) -> Tensor:  # n *d -> n, high = familiar
        inner = _inner(self.model, x, list(self.usual))
        each = [self.near[name].score(_seen(inner[name] - self.middles[name])) / m for name, m in self.usual.items()]
        return torch.stack(each).mean(0)


def _inner(model: nn.Module, x: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:  # n *d -> n f each
    shots = [shown(model, part, layers)[1] for part in torch.split(x, BATCH)]
    return {name: torch.cat([s[name].flatten(1) for s in shots]) for name in dict.fromkeys(layers)}


def _seen(features: Tensor) -> Seen:  # n f
    return Seen(features, features, features)
