r"""How many wrong labels it takes: last layers learnt from changed labels, judged by inputs that no enemy saw.

    lost(k)    the share right before less the share right after the first k changes, over the inputs that judge
    borne      the largest k that was tried below the first with lost(k) >= limit

Which enemy is the worst at k is decided as an enemy would, by the aimed inputs and what is believed to be right there.
Decided by those that judge it would count chance as harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.methods.poison.head import fit_heads
from assay.methods.poison.rounds import Chosen

FINER = 6
ROUNDING = 1e-12


class Inputs(NamedTuple):
    """Features as `Scaling` gives them: n d+1 of training, m d+1 aimed at, j d+1 that judge; and their targets."""

    x: Tensor
    y: Tensor
    aimed: Tensor
    aimed_y: Tensor
    judges: Tensor
    judges_y: Tensor


class Trial:
    """What layers learnt from changed labels get right, by enemy and number of changes.

    `believed` are the targets of the aimed inputs as an enemy has them: m.
    """

    def __init__(self, inputs: Inputs, classes: int, layer: Tensor, believed: Tensor, *, ridge: float) -> None:
        self.inputs, self.classes, self.layer, self.believed, self.ridge = inputs, classes, layer, believed, ridge
        self.right: dict[tuple[str, int], NDArray[np.bool_]] = {}  # j
        self.aimed: dict[tuple[str, int], NDArray[np.bool_]] = {}  # m
        self.fooled: dict[tuple[str, int], float] = {}
        self.clean = _hits(layer[None], inputs.judges, inputs.judges_y)[0]
        self.aimed_clean = _hits(layer[None], inputs.aimed, inputs.aimed_y)[0]

    def learn(self, name: str, chosen: Chosen, counts: Sequence[int]) -> None:
        """Learn a layer from each number of these changes, and keep what it gets right."""
        given, new = self.inputs, [k for k in counts if (name, k) not in self.right]
        if not new:
            return
        rows = chosen.first(given.y, new)
        layers = fit_heads(given.x, rows, self.classes, ridge=self.ridge, start=self.layer)
        right, aimed = _hits(layers, given.judges, given.judges_y), _hits(layers, given.aimed, given.aimed_y)
        fooled = 1 - _hits(layers, given.aimed, self.believed).mean(1)
        for i, k in enumerate(new):
            self.right[name, k], self.aimed[name, k], self.fooled[name, k] = right[i], aimed[i], float(fooled[i])

    def look_closer(self, chosen: Mapping[str, Chosen], limit: float) -> None:
        """More numbers of changes between the last that keeps to a limit and the first that does not."""
        counts, lost = self.by_the_worst(chosen)
        first = first_over(counts, lost.mean(1), limit)
        if first is None:
            return
        last = int(borne(counts, lost.mean(1), limit))
        between = np.linspace(last, first, FINER + 2)[1:-1].round().astype(int)
        for name, each in chosen.items():
            self.learn(name, each, sorted(set(between.tolist()) - {0, last, first}))

    def counts(self, names: Mapping[str, Chosen] | Sequence[str]) -> list[int]:
        """The numbers of changes that all of them were tried with."""
        return sorted(set.intersection(*({k for by, k in self.right if by == name} for name in names)))

    def lost(self, name: str, k: int) -> NDArray[np.float64]:  # -> j
        """1 where it was right before and is not now, -1 where it is the other way round."""
        return np.asarray(self.clean.astype(float) - self.right[name, k])

    def worst(self, names: Mapping[str, Chosen] | Sequence[str], k: int) -> str:
        return max(names, key=lambda name: self.fooled[name, k])

    def by_the_worst(
        self, names: Mapping[str, Chosen] | Sequence[str]
    ) -> tuple[list[int], NDArray[np.float64]]:  # -> k, k j
        """The numbers of changes, and what is lost by the worst of these enemies at each."""
        counts = self.counts(names)
        return counts, np.stack([self.lost(self.worst(names, k), k) for k in counts])


def borne(counts: Sequence[float], lost: NDArray[np.float64], limit: float) -> NDArray[np.float64]:  # *r k -> *r
    """How much is borne: the last of the growing `counts` before what is lost comes to the limit, or 0."""
    over = lost >= limit - ROUNDING
    below = np.array([0.0, *counts])
    return np.asarray(below[np.where(over.any(-1), over.argmax(-1), len(counts))])


def first_over(counts: Sequence[int], lost: NDArray[np.float64], limit: float) -> int | None:  # k
    """The first of them that comes to the limit, or None."""
    return next((k for k, mean in zip(counts, lost, strict=True) if mean >= limit - ROUNDING), None)


def _hits(layers: Tensor, x: Tensor, y: Tensor) -> NDArray[np.bool_]:  # r d c, n d, n -> r n
    return np.asarray(torch.eq((x @ layers).argmax(2), y).cpu().numpy())
