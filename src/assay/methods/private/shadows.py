"""Shadow models for lira.py: the same architecture, trained from fresh weights on one half of a pool after the other.

What is kept of a shadow is its confidence in the label of every input of the pool: one pass, then it is let go.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.methods.private.lira import confidences
from assay.methods.train.fit import Rows, fit, reset

EPOCHS, STEPS = 10, 1000  # of a training whose length was left open: at least so many epochs, about so many steps
TRIED = 8  # batches, to tell how long a training takes
Predict = Callable[[nn.Module, Tensor], Tensor]  # a shadow and inputs n *d -> logits n k


@dataclass(frozen=True)
class Recipe:
    """How a shadow is trained, with Adam; the nearer to how the model was, the more its shadows tell of it."""

    epochs: int | None = None
    lr: float = 1e-3
    batch: int = 128

    def epochs_of(self, inputs: int) -> int:
        """Those that were chosen, or as many as a plain training takes."""
        return self.epochs or max(EPOCHS, math.ceil(STEPS / math.ceil(inputs / self.batch)))


@dataclass(frozen=True)
class Pool:
    """Members and others with their labels, at hand."""

    x: Tensor  # n *d
    y: Tensor  # n

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.integer]) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        rows = torch.as_tensor(np.asarray(index))
        return self.x[rows], self.y[rows]

    def some(self, inside: Tensor) -> Pool:  # n of bool
        return Pool(self.x[inside], self.y[inside])


class Shadows(NamedTuple):
    """What shadows say of every input of the pool."""

    confidence: Tensor  # s n, float64: log p_y / (1 - p_y)
    right: Tensor  # s n of bool


def trained(model: nn.Module, rows: Rows, recipe: Recipe, *, seed: int, device: str = "cpu") -> nn.Module:
    """One shadow: the architecture of `model`, whose weights are drawn anew."""
    rng = torch.Generator().manual_seed(seed)
    shadow = reset(model, rng).requires_grad_(True)
    fit(
        shadow, rows, epochs=recipe.epochs_of(len(rows)), lr=recipe.lr, batch=recipe.batch, optimiser="adam", rng=rng,
        device=device,
    )  # fmt: skip
    return shadow.eval()


def shadows(
    model: nn.Module,
    pool: Pool,
    inside: Tensor,
    recipe: Recipe,
    *,
    seed: int,
    device: str = "cpu",
    predict: Predict = lambda shadow, x: shadow(x),
    done: Callable[[], None] = lambda: None,
) -> Shadows:  # inside: s n of bool
    """Train a shadow on each row of `inside` and ask it about the whole pool; `done` is called after each."""
    y, found, right = pool.y.to(device), [], []
    for number, mask in enumerate(inside):
        shadow = trained(model, pool.some(mask), recipe, seed=seed + number, device=device)
        said: list[Tensor] = []

        def ask(x: Tensor, shadow: nn.Module = shadow, said: list[Tensor] = said) -> Tensor:
            logits = predict(shadow, x.to(device))
            said.append(logits.argmax(1))
            return logits

        found.append(confidences(ask, pool.x, y).cpu())
        right.append((torch.cat(said) == y).cpu())
        done()
    return Shadows(torch.stack(found), torch.stack(right))


def seconds_of(model: nn.Module, pool: Pool, recipe: Recipe, *, device: str = "cpu") -> float:
    """About how long one shadow takes, from a few steps of it."""
    half = len(pool) // 2
    few = Pool(*pool.take(np.arange(min(half, TRIED * recipe.batch))))
    steps = math.ceil(len(few) / recipe.batch)
    once = Recipe(1, recipe.lr, recipe.batch)
    trained(model, Pool(*few.take(np.arange(min(len(few), recipe.batch)))), once, seed=0, device=device)  # warm
    start = time.perf_counter()
    trained(model, few, once, seed=0, device=device)
    step = (time.perf_counter() - start) / steps
    return step * (recipe.epochs_of(half) * math.ceil(half / recipe.batch) + math.ceil(len(pool) / recipe.batch) / 3)
