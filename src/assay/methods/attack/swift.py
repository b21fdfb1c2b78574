"""Search fast, believe in full: a model whose gradients come from a compiled bf16 copy and whose answers are its own.

Every attack asks a model in two ways: for a gradient, to search, and without one, to verify. `swift` answers the first
from a compiled, channels-last bf16 pass and the second from the float32 model, untouched. Batches are cut and padded to
a few sizes, so that inputs that leave do not make the compiler start again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

SIZES = (512, 1024, 4096)
"""What batches are cut and padded to. A small network is filled by thousands of inputs only."""
CALL = 256  # inputs that pass in the time that it takes to start a pass

MOST_VARIANTS = 64  # compiled in one process: sizes times networks


class Swift(nn.Module):
    """`model` as it is for answers; compiled, bf16 and channels-last where a gradient is asked for."""

    def __init__(self, model: nn.Module, *, sizes: tuple[int, ...] = SIZES, mode: str | None = None) -> None:
        super().__init__()
        import torch._dynamo  # seconds, and most who attack compile nothing

        self.model, self.sizes = model, tuple(sorted(sizes))
        # every size of every network counts against one limit of 8, beyond which torch runs uncompiled without a word
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_VARIANTS)
        self.search: Callable[..., Any] = torch.compile(self._search, dynamic=False, mode=mode)

    def _search(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            out: Tensor = self.model(x)
        return out.float()

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        # Answers are padded too: cuDNN takes 30 ms to plan for a batch size that it has not met (measured on an H200).
        ask = self.search if torch.is_grad_enabled() and x.requires_grad else self.model
        return torch.cat([_padded(ask, x[start : start + n], size) for start, n, size in self._cuts(len(x))])

    def _cuts(self, n: int) -> Iterator[tuple[int, int, int]]:
        """Start, length and padded length of each part, for the least padding and the fewest calls together."""
        start = 0
        while start < n:
            size = cheapest(n - start, self.sizes)[1]
            yield start, min(n - start, size), size
            start += size


def _padded(ask: Callable[..., Any], x: Tensor, size: int) -> Tensor:
    n = len(x)
    if size > n:
        x = torch.cat([x, x[:1].detach().expand(size - n, *x.shape[1:])])
    out: Tensor = ask(x)[:n]
    return out


@lru_cache(maxsize=100_000)
def cheapest(n: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """The cost of n inputs, in inputs that pass, and the first size to take; the largest first while there are many."""
    if n <= 0:
        return 0, 0
    if n > 2 * sizes[-1]:
        return n, sizes[-1]
    cost, size = min((size + CALL + cheapest(n - size, sizes)[0], -size) for size in sizes)  # of equals, the larger
    return cost, -size
