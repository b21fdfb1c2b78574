"""Search fast, believe in full: a model whose gradients come from a compiled bf16 copy and whose answers are its own.

Every attack asks a model in two ways: for a gradient, to search, and without one, to verify. `swift` answers the first
from a compiled, channels-last bf16 pass and the second from the float32 model, untouched. Batches are padded to a few
sizes, so that inputs that leave do not make the compiler start again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SIZES = (64, 256, 1024)
"""What batches are padded to, up to the largest; above it they are cut."""


class Swift(nn.Module):
    """`model` as it is for answers; compiled, bf16 and channels-last where a gradient is asked for."""

    def __init__(self, model: nn.Module, *, sizes: tuple[int, ...] = SIZES, mode: str | None = None) -> None:
        super().__init__()
        self.model, self.sizes = model, sizes
        self.search: Callable[..., Any] = torch.compile(self._search, dynamic=False, mode=mode)

    def _search(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            out: Tensor = self.model(x)
        return out.float()

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        if not (torch.is_grad_enabled() and x.requires_grad):
            out: Tensor = self.model(x)
            return out
        return torch.cat([self._padded(part) for part in x.split(self.sizes[-1])])  # type: ignore[no-untyped-call]

    def _padded(self, x: Tensor) -> Tensor:
        n = len(x)
        room = next(size for size in self.sizes if size >= n)
        if room > n:
            x = torch.cat([x, x[:1].detach().expand(room - n, *x.shape[1:])])
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = self.search(x)[:n]
        return out
