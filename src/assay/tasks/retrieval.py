r"""The items of a gallery that answer a query, by similarity.

With s_j the similarity that the model gives item j, R the relevant items and F the first k items by s,

    score   |F and R| / min(k, |R|)
    margin  max_{j in R} s_j - max_{j not in R} s_j                   (the first is relevant)
    loss    log sum_j exp(s_j) - log sum_{j in R} exp(s_j)

The score is the precision of the first k where at least k items are relevant, and their recall where at most k are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.tasks.task import Focus, Task, Trivial, misshapen, numbered_names, one_of


@dataclass(frozen=True)
class Retrieval(Task):
    """The model returns a similarity of the query to each of the items; targets are 1 where an item is relevant."""

    items: tuple[str, ...]
    first: int = 5

    headline: ClassVar[str] = "precision of the first"
    good: ClassVar[str] = "puts a relevant item first"
    output: ClassVar[str] = "(n, g) similarities, one for each item of the gallery"

    def __post_init__(self) -> None:
        if not 1 <= self.first <= len(self.items) or len(self.items) < 2:
            raise AssayError(
                f"Retrieval of the first {self.first} of {len(self.items)} items; give at least 2 items, and 1 to find."
            )

    @classmethod
    def told_by(cls, x: Tensor, target: NDArray[Any], out: Tensor, classes: tuple[str, ...] | None) -> Task:
        """A gallery of as many items as an output has similarities."""
        return cls(classes or numbered_names(out.shape[-1]))

    def wrong_output(self, out: Any, n: int) -> str | None:
        wrong = misshapen(out, n, len(self.items), "items")
        if wrong is None and n and bool((out == out[:, :1]).all()):
            return f"it gives every item the same similarity, {float(out[0, 0]):g} for input 0"
        return wrong

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        if targets.ndim != 2 or targets.shape[1] != len(self.items):
            return f"targets have shape {targets.shape}; give a row of {len(self.items)} zeros and ones for each query"
        strange = np.argwhere(~np.isin(targets, (0, 1)))
        if len(strange):
            query, item = strange[0]
            return f"the relevance of item {item} for query {query} is {targets[query, item]}, not 0 or 1"
        for count, how in ((targets.astype(bool).sum(1), "no"), ((~targets.astype(bool)).sum(1), "every")):
            none = np.flatnonzero(count == 0)
            if len(none):
                return f"{how} item of the {len(self.items)} is relevant for query {none[0]}; there is nothing to find"
        return None

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        relevant = target.bool()
        ahead = out.argsort(dim=1, descending=True, stable=True)[:, : self.first]  # of equal ones the first comes first
        return (relevant.gather(1, ahead).sum(1) / relevant.sum(1).clamp(1, self.first)).to(out.dtype)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        relevant = target.bool()
        best, other = (out.masked_fill(hidden, -torch.inf).amax(1) for hidden in (~relevant, relevant))
        return best - other

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return out.logsumexp(1) - out.masked_fill(~target.bool(), -torch.inf).logsumexp(1)

    def confidence(self, out: Tensor) -> Tensor:
        """The chance that the first belongs before the second, were the gap between them its log-odds."""
        top = out.topk(2, dim=1).values
        return torch.sigmoid(top[:, 0] - top[:, 1])

    @property
    def no_promise(self) -> str:
        return "its answers are similarities, which are no probabilities"

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        order = np.argsort(-np.asarray(targets, dtype=np.float64).mean(0), kind="stable")
        out = torch.empty(len(order))
        out[torch.from_numpy(order)] = -torch.arange(len(order), dtype=torch.float32)
        return Trivial("always puts the items first that are relevant most often", out)

    @property
    def named(self) -> tuple[str, ...]:
        return self.items

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The similarity to the item that it puts first."""
        own = out.argmax(1) if which is None else torch.full((len(out),), which, device=out.device)
        return Focus(one_of(out, own), tuple(f"the similarity to {self.items[j]}" for j in own.tolist()))

    def words(self, out: Tensor) -> str:
        return self._listed(out.argsort(descending=True, stable=True)[: self.first])

    def told(self, target: Tensor) -> str:
        return self._listed(target.nonzero()[:, 0])

    def _listed(self, places: Tensor) -> str:
        return ", ".join(self.items[int(j)] for j in places[: self.first]) + (
            ", ..." if len(places) > self.first else ""
        )
