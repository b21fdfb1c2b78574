r"""The items of a gallery that answer a query, by the descriptors that the model gives to both.

With d(x) the descriptor of a query, g_j that of item j, R the relevant items and F the first k items,

    s_j     <d, g_j> for the cosine (descriptors of length 1), <d, g_j> - |g_j|^2 / 2 for Euclid: nearest is largest
    score   |F and R| / min(k, |R|)
    margin  max_{j in R} s_j - max_{j not in R} s_j                   (the first is relevant)

as `Retrieval`, whose model gives all similarities itself. Here the gallery was described once, stays as it is, and is
searched in blocks. Which items are relevant is kept as a list for each group of queries that share them (all of a
label; each query by itself where relevance comes from pairs or places), so that nothing is as large as queries times
items. The target of a query is the number of its group, in a column of its own: groups are no classes to draw by.

The margin's gradient is that of the two items which decide it; all others are only looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import UNIT
from assay.data.nearest import Metric, Nearest, nearest, offsets
from assay.errors import AssayError
from assay.tasks.task import Focus, Task, Trivial, misshapen

HELD = 2**24  # similarities that are held at a time
SAID = 3  # items of a group that are named, where the group has no name


class Items(Protocol):
    """The inputs of a gallery."""

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...  # k -> k *d, k *t

    def fingerprint(self) -> str: ...


class Described:
    """A gallery: its inputs, what the model made of them, and which of them answer the queries of each group.

    `rows[starts[i]:starts[i + 1]]` are the items that are relevant for group i, ascending.
    """

    def __init__(
        self,
        items: Items,
        descriptors: Tensor,  # g d
        metric: Metric,
        starts: NDArray[np.int64],  # m + 1
        rows: NDArray[np.int64],
        *,
        groups: Sequence[str] | None = None,  # m: their names
        names: Sequence[str] | None = None,  # g: those of the items
        bounds: tuple[float, float] = UNIT,  # of the values of items, to show them by
    ) -> None:
        self.items, self.metric, self.starts, self.rows = items, metric, starts, rows
        self.groups, self.names, self.bounds = groups, names, bounds
        self.size, self.width = descriptors.shape
        parts = (descriptors, offsets(descriptors, metric), torch.from_numpy(starts), torch.from_numpy(rows))
        self._on: dict[str, tuple[Tensor, ...]] = {str(descriptors.device): parts}

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Descriptors, offsets, starts and rows where they are wanted, brought there once: g d, g, m + 1, r."""
        held = self._on.get(str(device))
        if held is None:
            held = self._on[str(device)] = tuple(t.to(device) for t in next(iter(self._on.values())))
        return held

    @cached_property
    def _digest(self) -> str:
        told = f"{self.items.fingerprint()} {self.metric} {self.size} {self.width} {self.groups}"
        digest = hashlib.sha256(told.encode())
        digest.update(self.starts.tobytes() + self.rows.tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:  # a subject's fingerprint reads it: the descriptors follow from the model and the items
        return f"Described({self._digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def name(self, item: int) -> str:
        return f"item {item}" if self.names is None else f"{self.names[item]} (item {item})"

    def group(self, number: int) -> str:
        if self.groups is not None:
            return self.groups[number]
        rows = self.rows[self.starts[number] : self.starts[number + 1]]
        return " or ".join(self.name(int(j)) for j in rows[:SAID]) + (" or ..." if len(rows) > SAID else "")

    def first(self, out: Tensor, k: int) -> Nearest:  # n d -> n k, n k
        """The k nearest items of each query."""
        descriptors, offset, *_ = self.on(out.device)
        return nearest(out.detach(), descriptors, min(k, self.size), offset)

    def relevant(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # n 1 -> n, r, r
        """How many items are relevant for each query; and each with its query: query numbers, items."""
        _, _, starts, rows = self.on(target.device)
        group = target[:, 0]
        count = starts[group + 1] - starts[group]
        query = torch.repeat_interleave(torch.arange(len(group), device=target.device), count)
        place = torch.arange(len(query), device=target.device) - (count.cumsum(0) - count - starts[group])[query]
        return count, query, rows[place]

    def found(self, rows: Tensor, target: Tensor) -> Tensor:  # n k, n 1 -> n k
        """Which of these items are relevant."""
        _, query, item = self.relevant(target)
        known = query * self.size + item  # ascending: queries are, and in each its items
        asked = torch.arange(len(rows), device=rows.device)[:, None] * self.size + rows
        at = torch.searchsorted(known, asked).clamp_max(len(known) - 1)
        return known[at] == asked

    def deciding(self, out: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:  # n d, n 1 -> n, n
        """The nearest relevant item of each query, and the nearest that is not."""
        descriptors, offset, *_ = self.on(out.device)
        with torch.no_grad():
            _, query, item = self.relevant(target)
            best = out.new_full((2, len(out)), -torch.inf)
            row = torch.zeros(2, len(out), dtype=torch.long, device=out.device)
            step = max(1, HELD // max(1, len(out)))
            for start in range(0, self.size, step):
                block = descriptors[start : start + step]
                s = torch.addmm(offset[start : start + step].to(out), out.detach(), block.to(out).T)
                here = (item >= start) & (item < start + step)
                at = (query[here], item[here] - start)
                own = torch.full_like(s, -torch.inf)
                own[at] = s[at]
                s[at] = -torch.inf
                for side, each in enumerate((own, s)):
                    top, place = each.max(1)
                    row[side] = torch.where(top > best[side], place + start, row[side])
                    best[side] = torch.maximum(best[side], top)
        return row[0], row[1]

    def towards(self, out: Tensor, item: Tensor) -> Tensor:  # n d, n -> n
        """The similarity of each query to one item, with its gradient."""
        descriptors, offset, *_ = self.on(out.device)
        return (out * descriptors[item].to(out)).sum(1) + offset[item].to(out)


@dataclass(frozen=True)
class Search(Task):
    """The model returns a descriptor of the query; targets are numbers of groups that share their relevant items."""

    gallery: Described
    first: int = 5

    headline: ClassVar[str] = "precision of the first"
    good: ClassVar[str] = "puts a relevant item first"
    output: ClassVar[str] = "(n, d) descriptors, as many numbers as those of the gallery have"

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.gallery.size:
            raise AssayError(
                f"A search for the first {self.first} of {self.gallery.size} items; ask for 1 to {self.gallery.size}."
            )

    def wrong_output(self, out: Any, n: int) -> str | None:
        return misshapen(out, n, self.gallery.width, "numbers of a descriptor of the gallery")

    def wrong_targets(self, targets: NDArray[Any]) -> str | None:
        groups = len(self.gallery.starts) - 1
        if targets.ndim != 2 or targets.shape[1] != 1 or targets.dtype.kind not in "iu":
            return f"targets have shape {targets.shape}; give the number of a group for each query, shape (n, 1)"
        strange = np.flatnonzero((targets[:, 0] < 0) | (targets[:, 0] >= groups))
        if len(strange):
            return f"query {strange[0]} is of group {targets[strange[0], 0]}, and there are {groups}"
        return None

    def score(self, out: Tensor, target: Tensor) -> Tensor:
        hits = self.gallery.found(self.gallery.first(out, self.first).rows, target).sum(1)
        count, *_ = self.gallery.relevant(target)
        return (hits / count.clamp(1, self.first)).to(out.dtype)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        own, other = self.gallery.deciding(out, target)
        return self.gallery.towards(out, own) - self.gallery.towards(out, other)

    def confidence(self, out: Tensor) -> Tensor:
        """The chance that the first belongs before the second, were the gap between them its log-odds."""
        top = self.gallery.first(out, 2).similarity
        return torch.sigmoid(top[:, 0] - top[:, 1])

    @property
    def no_promise(self) -> str:
        return "its answers are compared by similarity, which is no probability"

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        _, _, item = self.gallery.relevant(torch.as_tensor(targets))
        best = int(torch.bincount(item, minlength=self.gallery.size).argmax())
        descriptors, *_ = self.gallery.on(torch.device("cpu"))
        return Trivial("always describes what it sees as the item that is relevant most often", descriptors[best])

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(self.gallery.name(j) for j in range(self.gallery.size))

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The similarity to the item that it finds first; of Euclid's the part that a small change moves."""
        item = self.gallery.first(out, 1).rows[:, 0] if which is None else torch.full((len(out),), which)
        descriptors, *_ = self.gallery.on(out.device)
        weight = descriptors[item.to(out.device)].to(out)
        if self.gallery.metric == "euclidean":
            weight = weight - out.detach()
        return Focus(weight, tuple(f"the similarity to {self.gallery.name(j)}" for j in item.tolist()))

    def picture(self, out: Tensor) -> NDArray[np.float32] | None:
        """The item that it finds first, where items are images."""
        item, _ = self.gallery.items.take(self.gallery.first(out[None], 1).rows[0].cpu().numpy())
        if item.ndim != 4 or item.shape[1] not in (1, 3):
            return None
        low, high = self.gallery.bounds
        shown: NDArray[np.float32] = ((item[0] - low) / (high - low)).clamp(0, 1).numpy()
        return shown

    def words(self, out: Tensor) -> str:
        rows = self.gallery.first(out[None], self.first).rows[0].tolist()
        return ", ".join(self.gallery.name(j) for j in rows)

    def told(self, target: Tensor) -> str:
        return self.gallery.group(int(target.reshape(-1)[0]))
