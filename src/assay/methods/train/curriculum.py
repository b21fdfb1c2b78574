r"""Curriculum: the batches of an epoch when inputs stand in an order, the most typical first.

    ordered                  x_1 | x_2 | ... | x_n                                            n updates
    mini-batch               x_1 .. x_b | x_b+1 .. x_2b | ...                       ceil(n / b)
    batch-repetition         each of those `times` times before the next      times ceil(n / b)
    repeat-until-remember    x_1 .. x_b | x_1 .. x_b+m | x_1 .. x_b+2m | ... | x_1 .. x_n     1 + ceil((n - b) / m)

Order and repetition come together in three of the four, so that a gain over ordinary batches may be that of more
updates. `in_random_order` is the same scheduler with an order that is new each epoch: what is credited to the order is
the difference from that. The last scheduler shows (n + b) / 2 inputs an update: n^2 / 2m an epoch, and n of them at
once.

Source: Krysinska, Morzy and Kajdanowicz, ICANN 2021, sec. 4 and table 2 (b = 32, times = 4, m = 4).
Departs from print: batches of one size differ by at most one input, as in `fit`, where print has a rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train.fit import Order

Scheduler = Literal["ordered", "mini-batch", "batch-repetition", "repeat-until-remember"]


@dataclass(frozen=True)
class Schedule:
    """How an order becomes batches; `times` is batch repetition's, `more` what each next batch of the last adds."""

    scheduler: Scheduler
    batch: int = 32
    times: int = 4
    more: int = 4

    def __post_init__(self) -> None:
        for name in ("batch", "times", "more"):
            if getattr(self, name) < 1:
                raise AssayError(f"{name}={getattr(self, name)} makes no batches; give a whole number of at least 1.")

    def batches(self, ranked: Tensor) -> tuple[Tensor, ...]:  # n
        n = len(ranked)
        if self.scheduler == "ordered":
            return ranked.tensor_split(n)
        if self.scheduler == "repeat-until-remember":
            return tuple(ranked[: min(n, self.batch + k * self.more)] for k in range(self.updates(n)))
        equal = ranked.tensor_split(math.ceil(n / self.batch))
        again = self.times if self.scheduler == "batch-repetition" else 1
        return tuple(each for each in equal for _ in range(again))

    def updates(self, n: int) -> int:
        """Of an epoch of n inputs."""
        if self.scheduler == "ordered":
            return n
        if self.scheduler == "repeat-until-remember":
            return 1 + max(0, math.ceil((n - self.batch) / self.more))
        return math.ceil(n / self.batch) * (self.times if self.scheduler == "batch-repetition" else 1)

    def in_order(self, ranked: Tensor) -> Order:  # n
        """For `fit(order=...)`: the same batches every epoch."""
        batches = self.batches(ranked.cpu())
        return lambda rng: batches

    def in_random_order(self, n: int) -> Order:
        """For `fit(order=...)`: as many updates on batches of the same sizes, of inputs in a new order each epoch."""
        return lambda rng: self.batches(torch.randperm(n, generator=rng))
