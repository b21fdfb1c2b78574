r"""The items of a gallery that answer a query, by the descriptors that the model gives to both.

With d(x) the descriptor of a query, g_j that of item j, R the relevant items and F the first k items,

    s_j     <d, g_j> for the cosine (descriptors of length 1), <d - c, g_j - c> - |g_j - c|^2 / 2 for Euclid, with c
            the mean of all g_j: nearest is largest
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
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.arrays import UNIT
from assay.data.nearest import Metric, Nearest, Offsets, nearest, offsets
from assay.errors import AssayError
from assay.tasks.task import Focus, Task, Trivial, misshapen

HELD = 2**24  # similarities that are held at a time
SAID = 3  # items of a group that are named, where the group has no name


class Items(Protocol):
    """The inputs of a gallery."""

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]: ...  # k -> k *d, k *t

    def fingerprint(self) -> str: ...


class Held(NamedTuple):
    """What of a gallery is compared, where it is wanted."""

    descriptors: Tensor  # g d
    offset: Offsets
    starts: Tensor  # m + 1
    rows: Tensor  # r
    keys: Tensor  # r: group * g + item, ascending

    def to(self, device: torch.device) -> Held:
        offset = Offsets(*(t.to(device) for t in self.offset))
        return Held(self.descriptors.to(device), offset, *(t.to(device) for t in self[2:]))


class Described:
    """A gallery: its inputs, what the model made of them, and which of them answer the queries of each group.

    `rows[starts[i]:starts[i + 1]]` are the items that are relevant for group i, ascending. `by` tells which model
    described them and by how many passes: descriptors of another one, or of this one before it changed, are others.
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
        by: str = "",
    ) -> None:
        self.items, self.metric, self.starts, self.rows = items, metric, starts, rows
        self.groups, self.names, self.bounds, self.by = groups, names, bounds, by
        self.size, self.width = descriptors.shape
        group = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        lists = (torch.from_numpy(each) for each in (starts, rows, group * self.size + rows))
        held = Held(descriptors, offsets(descriptors, metric), *lists)
        self._on: dict[str, Held] = {str(descriptors.device): held}

    def anew(self, descriptors: Tensor, by: str) -> Described:  # g d
        """The same items as another model describes them."""
        return Described(
            self.items, descriptors, self.metric, self.starts, self.rows, groups=self.groups, names=self.names,
            bounds=self.bounds, by=by,
        )  # fmt: skip

    def on(self, device: torch.device) -> Held:
        """What is compared, brought there once."""
        held = self._on.get(str(device))
        if held is None:
            held = self._on[str(device)] = next(iter(self._on.values())).to(device)
        return held

    @cached_property
    def _digest(self) -> str:
        told = f"{self.items.fingerprint()} {self.metric} {self.size} {self.width} {self.groups} {self.by}"
        digest = hashlib.sha256(told.encode())
        digest.update(self.starts.tobytes() + self.rows.tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:  # a subject's fingerprint reads it: descriptors follow from the items and `by`
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
        held = self.on(out.device)
        return nearest(out.detach(), held.descriptors, min(k, self.size), held.offset)

    def count(self, target: Tensor) -> Tensor:  # n 1 -> n
        """How many items are relevant for each query."""
        starts, group = self.on(target.device).starts, target[:, 0]
        return starts[group + 1] - starts[group]

    def relevant(self, group: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:  # n -> r, r
        """Which of a run of items are relevant for each of these groups: places of groups, items; both ascending."""
        _, _, _, rows, keys = self.on(group.device)
        low, high = (torch.searchsorted(keys, group * self.size + end) for end in (start, stop))
        count = high - low
        owner = torch.repeat_interleave(torch.arange(len(group), device=group.device), count)
        place = torch.arange(len(owner), device=group.device) - (count.cumsum(0) - count - low)[owner]
        return owner, rows[place]

    def found(self, rows: Tensor, target: Tensor) -> Tensor:  # n k, n 1 -> n k
        """Which of these items are relevant."""
        keys = self.on(rows.device).keys
        asked = target * self.size + rows
        return keys[torch.searchsorted(keys, asked).clamp_max(len(keys) - 1)] == asked

    def compared(self, out: Tensor, start: int, stop: int) -> Tensor:  # n d -> n (stop - start)
        """The similarity of each query to a run of items."""
        held = self.on(out.device)
        block = held.offset.centred(held.descriptors[start:stop].to(out))
        return torch.addmm(held.offset.each[start:stop].to(out), held.offset.centred(out), block.T)

    def deciding(self, out: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:  # n d, n 1 -> n, n
        """The nearest relevant item of each query, and the nearest that is not."""
        with torch.no_grad():
            group = torch.unique_consecutive(target[:, 0].sort().values)
            member = torch.searchsorted(group, target[:, 0])
            best = out.new_full((2, len(out)), -torch.inf)
            row = torch.zeros(2, len(out), dtype=torch.long, device=out.device)
            step = max(1, HELD // max(1, len(out)))
            for start in range(0, self.size, step):
                stop = min(start + step, self.size)
                s = self.compared(out.detach(), start, stop)
                owner, item = self.relevant(group, start, stop)
                own = torch.zeros(len(group), stop - start, dtype=torch.bool, device=out.device)
                own[owner, item - start] = True
                for side, none in enumerate((~own, own)):
                    top, place = s.masked_fill(none[member], -torch.inf).max(1)
                    row[side] = torch.where(top > best[side], place + start, row[side])
                    best[side] = torch.maximum(best[side], top)
        return row[0], row[1]

    def towards(self, out: Tensor, item: Tensor) -> Tensor:  # n d, n -> n
        """The similarity of each query to one item, with its gradient."""
        descriptors, offset, *_ = self.on(out.device)
        near = offset.centred(out) * offset.centred(descriptors[item].to(out))
        return near.sum(1) + offset.each[item].to(out)


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
        return (hits / self.gallery.count(target).clamp(1, self.first)).to(out.dtype)

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
        starts, rows = self.gallery.starts, self.gallery.rows
        asked = np.bincount(np.asarray(targets)[:, 0], minlength=len(starts) - 1)
        best = int(np.bincount(rows, np.repeat(asked, np.diff(starts)), minlength=self.gallery.size).argmax())
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
