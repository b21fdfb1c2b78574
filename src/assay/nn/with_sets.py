"""A classifier that also answers with a set of classes, fitted to hold the true one as often as it promises."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from assay.errors import AssayError

Score = Callable[[Tensor, Tensor], Tensor]
"""Probabilities and one uniform number for each input to a score for each class, high where it is unlikely.
# n c, n -> n c"""


class WithSets(nn.Module):
    """The logits of another model as they are, and `sets`: the classes whose score is at most a threshold.

    The threshold is a buffer, fitted on held-out inputs (methods/uncertainty/conformal.py) so that the sets hold the
    true class with probability 1 - `alpha`; before that it is infinite, and every class is in every set. With `classes`
    there is a threshold for each of so many. `rule` says in words which score it is. A model whose pass is random is
    asked `draws` times. The model is held, not copied.
    """

    threshold: Tensor  # () or c

    def __init__(
        self, model: nn.Module, score: Score, *, alpha: float, rule: str, draws: int = 1, classes: int | None = None
    ) -> None:
        super().__init__()
        if not 0 < alpha < 1:
            raise AssayError(f"WithSets got alpha={alpha}; it is the share of misses allowed, between 0 and 1.")
        self.model = model
        self.training = model.training  # a wrapper does not change the mode of what it wraps
        self.score, self.alpha, self.rule, self.draws = score, alpha, rule, draws
        self.register_buffer(
            "threshold", torch.full(() if classes is None else (classes,), math.inf, dtype=torch.float64)
        )

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n c
        out: Tensor = self.model(x)
        return out

    @torch.no_grad()
    def sets(self, x: Tensor, *, rng: torch.Generator | None = None) -> Tensor:  # n *d -> n c of bool
        """Which classes are in the set of each input."""
        return self.sets_of(torch.stack([self(x).softmax(-1) for _ in range(self.draws)]).mean(0), rng=rng)

    def sets_of(self, probabilities: Tensor, *, rng: torch.Generator | None = None) -> Tensor:  # n c -> n c of bool
        """The sets that belong to these probabilities.

        A score that breaks ties at random draws from `rng`. Without one it takes u = 0, the least score: the sets hold
        those of every draw, so that the promise is kept, with larger sets.
        """
        u = torch.zeros(len(probabilities), dtype=torch.float64)
        if rng is not None:
            u = torch.rand(len(probabilities), generator=rng, device=rng.device, dtype=torch.float64)
        return self.score(probabilities, u.to(probabilities.device)) <= self.threshold
