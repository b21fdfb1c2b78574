r"""Deep k nearest neighbours: how many of an input's neighbours, layer by layer, speak against every class.

With Omega_L(x) the labels of the k training inputs whose activations at layer L are nearest to those of x,

    a(x, c) = sum_L |{ i in Omega_L(x) : i != c }|                                 nonconformity
    p_c(x)  = |{ (x', y') held back : a(x', y') >= a(x, c) }| / |held back|        its rank among ordinary inputs
    credibility(x) = max_c p_c(x)

Source: Papernot & McDaniel 2018, "Deep k-Nearest Neighbors", arXiv:1803.04765, algorithm 1 and sec. III-C.
Departs from print: neighbours are exact, by cosine of the activations less the training mean, where print has hashes
    for it. The inputs held back come from the training inputs given, a fifth of them, where print takes test ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.uncertainty.activations import BATCH, shown

HELD_BACK = 5  # one in so many training inputs


@dataclass(frozen=True)
class DeepNeighbours:
    """A fitted detector: the activations of the training inputs at each layer, and the ranks of those held back."""

    model: nn.Module
    middles: dict[str, Tensor]  # f
    directions: dict[str, Tensor]  # n f, of length 1
    hot: Tensor  # n c, labels
    held_back: Tensor  # m, nonconformities, ascending
    k: int

    @classmethod
    def fit(
        cls, model: nn.Module, x: Tensor, y: Tensor, *, layers: Sequence[str], rng: np.random.Generator, k: int = 75
    ) -> DeepNeighbours:  # n *d, n
        """Look at the training inputs `x` of classes `y` at the modules called `layers`."""
        if not layers:
            raise AssayError("DeepNeighbours got no layers; name at least one module, such as the last.")
        kept = len(x) - len(x) // HELD_BACK
        if y.shape != x.shape[:1] or y.is_floating_point() or len(x) < HELD_BACK or not 1 <= k <= kept:
            raise AssayError(
                f"DeepNeighbours got {len(x)} inputs, {y.dtype} labels of shape {tuple(y.shape)} and k={k}; give a "
                f"class index each, at least {HELD_BACK} inputs and k from 1 to {kept}, those that are not held back."
            )
        order = torch.as_tensor(rng.permutation(len(x))).to(x.device)
        rest, back = order[:kept], order[kept:]
        shots = [shown(model, part, layers)[1] for part in torch.split(x[rest], BATCH)]
        inner = {name: torch.cat([s[name].flatten(1) for s in shots]) for name in dict.fromkeys(layers)}
        if not all(bool(rows.isfinite().all()) for rows in inner.values()):
            raise AssayError("A layer gave NaN or inf on training inputs; leave out the inputs that cause it.")
        middles = {name: rows.mean(0) for name, rows in inner.items()}
        directions = {name: nn.functional.normalize(rows - middles[name]) for name, rows in inner.items()}
        hot = nn.functional.one_hot(y[rest], int(y.max()) + 1).to(x.device).float()
        bare = cls(model, middles, directions, hot, torch.zeros(0), k)
        own = bare.nonconformity(x[back]).gather(1, y[back][:, None].to(x.device))[:, 0]
        return cls(model, middles, directions, hot, own.sort().values, k)

    def nonconformity(self, x: Tensor) -> Tensor:  # n *d -> n c
        """a(x, c)."""
        return torch.cat([self._against(part) for part in torch.split(x, BATCH)])

    def p_values(self, x: Tensor) -> Tensor:  # n *d -> n c
        below = torch.searchsorted(self.held_back, self.nonconformity(x))  # those that are smaller
        return 1 - below.double() / len(self.held_back)

    def score(self, x: Tensor) -> Tensor:  # n *d -> n, in [0, 1], high = familiar
        """The credibility."""
        return self.p_values(x).amax(1)

    def _against(self, x: Tensor) -> Tensor:  # n *d -> n c
        inner = shown(self.model, x, list(self.directions))[1]
        total = self.hot.new_zeros(len(x), self.hot.shape[1])
        for name, train in self.directions.items():
            way = nn.functional.normalize(inner[name].flatten(1) - self.middles[name])
            near = (way @ train.T).topk(self.k).indices  # n k
            total += self.k - self.hot[near].sum(1)
        return total
