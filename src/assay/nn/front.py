"""One network of a front: it answers by the one that was chosen, and keeps the others to choose from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError


class Encoded(nn.Module):
    """Rows of a table as numbers of one scale: (x - middle) / spread, and 0 or 1 for each value of a category.

    `values` says how many values each column has, 0 for one of numbers. A missing number is the middle, a missing
    category none of its values.
    """

    middle: Tensor  # of the columns of numbers
    spread: Tensor

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__()
        self.values = tuple(values)
        self.numbers = [i for i, many in enumerate(self.values) if not many]
        self.register_buffer("middle", torch.zeros(len(self.numbers)))
        self.register_buffer("spread", torch.ones(len(self.numbers)))

    @property
    def wide(self) -> int:
        return sum(many or 1 for many in self.values)

    def fit(self, x: Tensor) -> None:  # n d
        """Take middle and spread from these rows; a column that is constant keeps its unit."""
        seen = x[:, self.numbers].double()
        there = ~seen.isnan()
        count = there.sum(0).clamp_min(1)
        mean = torch.where(there, seen, 0.0).sum(0) / count
        spread = (torch.where(there, seen - mean, 0.0).square().sum(0) / count).sqrt()
        self.middle.copy_(mean)
        self.spread.copy_(torch.where(spread > 0, spread, 1.0))

    def forward(self, x: Tensor) -> Tensor:  # n d -> n wide
        numbers = ((x[:, self.numbers] - self.middle) / self.spread).nan_to_num(0.0)
        parts = [numbers]
        for i, many in enumerate(self.values):
            if many:
                code = x[:, i].nan_to_num(-1.0).round().long().clamp(-1, many - 1)
                parts.append(F.one_hot(code + 1, many + 1)[:, 1:].to(x.dtype))
        return torch.cat(parts, 1)


class OneOfFront(nn.Module):
    """Encoded rows, one hidden layer of ReLUs, two logits (0, z); `choose` puts another member in its place.

    Members lie in the order of the front: by squared error, those that another dominates after all that none does.
    """

    inner: Tensor  # wide+1 p h, the last row is the bias
    outer: Tensor  # p h
    shift: Tensor  # p
    objectives: Tensor  # p 4: squared error, unfairness within groups, between them, mean error
    plain: Tensor  # 4: the same of one network that was trained as long, without evolution
    on_front: Tensor  # p
    chosen: Tensor  # one number

    def __init__(self, values: Sequence[int], members: int, hidden: int) -> None:
        super().__init__()
        self.encoded = Encoded(values)
        self.first = nn.Linear(self.encoded.wide, hidden)
        self.last = nn.Linear(hidden, 1)
        self.register_buffer("inner", torch.zeros(self.encoded.wide + 1, members, hidden))
        self.register_buffer("outer", torch.zeros(members, hidden))
        self.register_buffer("shift", torch.zeros(members))
        self.register_buffer("objectives", torch.zeros(members, 4))
        self.register_buffer("plain", torch.zeros(4))
        self.register_buffer("on_front", torch.zeros(members, dtype=torch.bool))
        self.register_buffer("chosen", torch.zeros((), dtype=torch.long))

    def choose(self, member: int) -> None:
        """Answer by this member from now on."""
        there = int(self.on_front.sum())
        if not 0 <= member < there:
            raise AssayError(f"There is no member {member} on the front, which has {there}; choose 0 to {there - 1}.")
        self.chosen.fill_(member)
        with torch.no_grad():
            self.first.weight.copy_(self.inner[:-1, member].T)
            self.first.bias.copy_(self.inner[-1, member])
            self.last.weight.copy_(self.outer[member][None])
            self.last.bias.copy_(self.shift[member][None])

    def forward(self, x: Tensor) -> Tensor:  # n d -> n 2
        z: Tensor = self.last(self.first(self.encoded(x)).relu())
        return torch.cat([torch.zeros_like(z), z], 1)
