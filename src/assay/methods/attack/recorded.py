"""A pass and its way back for one batch size, each recorded once and played again.

A pass of a small network is hundreds of kernels of a few microseconds, and the GPU waits for whoever starts them; as a
graph (torch.cuda.CUDAGraph) they are started at once. A graph reads and writes where it did when it was recorded, so
that each size has places of its own: the input x, the answer z, what is pulled back v, and the gradient g. Where there
is no GPU the same is done without a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Ask = Callable[[Tensor], Tensor]  # n *d -> n *o
FIRST = 3  # passes before the one that is recorded: they compile, plan and set aside whatever is needed later too


class Pool:
    """Memory that graphs share, of which only one is on its way at a time, and whose turn it is."""

    def __init__(self, device: torch.device) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.turn = 0


class Recorded:
    """`ask` and its gradient for batches of up to `size` inputs such as `x`: n *d.

    Between a pass and its way back nothing else may be played from the same pool; where something was, the pass is
    played again. Rows of a batch must not depend on each other: what lies behind the inputs is left from before.
    """

    def __init__(self, ask: Ask, x: Tensor, size: int, pool: Pool) -> None:
        self.size, self.pool = size, pool
        filled = x.detach()[torch.arange(size, device=x.device) % len(x)]
        self.x = laid_out(filled).clone(memory_format=torch.preserve_format).requires_grad_()
        self.z = self.v = self.g = self.x

        def there() -> None:
            with torch.enable_grad():
                self.z = ask(self.x)

        def back() -> None:
            (self.g,) = torch.autograd.grad(self.z, self.x, self.v)

        def once() -> None:
            there()
            self.v = torch.zeros_like(self.z)
            back()

        if x.is_cuda:
            with torch.cuda.device(x.device), torch.cuda.stream(torch.cuda.current_stream(x.device)):
                _at_first(once)  # whatever fails, torch is on the stream again that it was on
                self.z = self.g = self.x  # so that no graph of autograd outlives the passes that made it
                self.there, self.back = _captured(there, pool.handle), _captured(back, pool.handle)
            self.z = self.z.detach()
        else:
            once()
            self.there, self.back = there, back

    def go(self, x: Tensor) -> tuple[Tensor, int]:
        """The answer, and whose turn it was: n *d -> n *o."""
        self.x.detach()[: len(x)].copy_(x)
        self.there()
        self.pool.turn += 1
        return self.z.detach()[: len(x)].clone(), self.pool.turn

    def come_back(self, x: Tensor, v: Tensor, turn: int, to: Tensor) -> None:
        """Write v times the slope at x into `to`: n *d, n *o -> n *d. `turn` is what `go` said."""
        if turn != self.pool.turn:
            self.go(x)
        self.v[: len(v)].copy_(v)
        self.v[len(v) :].zero_()
        self.back()
        self.pool.turn += 1  # the way back has used up what the pass had left
        to.copy_(self.g[: len(v)])


def laid_out(x: Tensor) -> Tensor:
    """Images channels-last, as the kernels of a GPU want them."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


def _at_first(once: Callable[[], None]) -> None:
    """Pass a few times on a stream of its own; the last time nothing may make the GPU wait for the host.

    Who asks the host between kernels cannot be recorded, and a recording that fails halfway leaves torch's generators
    in disorder.
    """
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(FIRST - 1):
            once()
        with _without_waiting():
            once()
    torch.cuda.current_stream().wait_stream(aside)


@contextmanager
def _without_waiting() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _captured(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay
