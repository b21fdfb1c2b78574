r"""Alignment: be right where there are labels, and have the features of all domains lie alike.

    L  =  mean_i CE( f(x_i), y_i )  +  weight  mean_{d < d'}  distance( F_d, F_d' )

F_d are the features, what enters the network's last linear layer, of the inputs of domain d in the batch. `distance` is
MK-MMD (shift/mk_mmd.py) or CORAL (coral.py). Domains without labels count as domains and not in the first term. One
labelled and one unlabelled domain is adaptation; several labelled ones alone are domain generalisation by invariant
features.

Source: Long et al., ICML 2015, arXiv:1502.02791, eq. 4, and Wang, dissertation, TU Delft 2024, sec. 2.3.3 (MK-MMD,
    weight 0.99, one layer); Sun and Saenko 2016, arXiv:1607.01719, eq. 6 (CORAL). Both have two domains; the mean over
    pairs is that of Gulrajani and Lopez-Paz, ICLR 2021, arXiv:2007.01434.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.train.fit import Rows

Distance = Callable[[Tensor, Tensor], Tensor]  # m f, n f -> scalar


class WithFeatures(nn.Module):
    """`net` with what enters its module `head` beside its answer: n *d -> n k+f, and n k in eval mode.

    `close` leaves the net as it was.
    """

    def __init__(self, net: nn.Module, head: str) -> None:
        super().__init__()
        self.net = net
        self._seen: Tensor | None = None
        self._hook = net.get_submodule(head).register_forward_pre_hook(self._catch)

    def _catch(self, module: nn.Module, given: Any) -> None:
        self._seen = given[0] if self.training else None

    def features(self) -> Tensor:  # -> n f
        """Of the pass that has just been made, once: they hold the whole graph."""
        assert self._seen is not None
        seen, self._seen = self._seen.flatten(1), None
        return seen

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return torch.cat([out, self.features()], 1) if self.training else out

    def close(self) -> None:
        self._hook.remove()


class Beside:
    """`augment` for `fit`: puts `count` inputs of each unlabelled domain behind the batch, which has labels."""

    def __init__(self, domains: Sequence[Rows], count: int) -> None:
        self.domains, self.count = tuple(domains), count

    def augment(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n+t *d, n
        parts = [x]
        for rows in self.domains:
            some = torch.randint(len(rows), (self.count,), generator=rng, device=rng.device)
            parts.append(torch.as_tensor(rows.take(np.asarray(some.cpu()))[0], device=x.device))
        return torch.cat(parts), y


class Alignment:
    """The loss of `WithFeatures` in training mode on batches of `each` inputs of each domain, labelled ones first.

    `classes` is how wide the answer is. With `weight` 0 it is the plain training.
    """

    def __init__(self, distance: Distance, weight: float, *, classes: int, each: int) -> None:
        if not 0 <= weight < math.inf:
            raise AssayError(f"weight={weight} is none for a distance; give a number of at least 0, such as 1.")
        self.distance, self.weight, self.classes, self.each = distance, weight, classes, each

    def loss(self, out: Tensor, y: Tensor) -> Tensor:  # g*each k+f, n -> scalar
        right = F.cross_entropy(out[: len(y), : self.classes], y)
        if self.weight == 0:
            return right
        if len(out) % self.each or len(out) < 2 * self.each:
            raise ShapeError(f"A batch of {len(out)} inputs does not hold two domains or more, {self.each} of each.")
        if not bool(out.detach().isfinite().all()):
            return right + out.sum()  # no number either: fit tells what became of the training
        domains = torch.split(out[:, self.classes :], self.each)
        apart = torch.stack([self.distance(a, b) for a, b in combinations(domains, 2)])
        return right + self.weight * apart.mean()
