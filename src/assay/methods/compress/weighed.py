"""What a network weighs and how long it takes: bytes of what it stores, seconds of one pass on this machine."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor, nn

PASSES = 7


def stored(model: nn.Module) -> int:
    """Bytes of its parameters and buffers, each counted once: what a file of them holds, but for names and shapes."""
    seen = {t.data_ptr(): t.numel() * t.element_size() for t in model.state_dict().values() if t.numel()}
    return sum(seen.values())


def seconds(model: nn.Module, x: Tensor) -> float:  # n *d
    """Seconds of one pass in eval mode, the median of seven after two that do not count."""
    taken = []
    with torch.inference_mode():
        for _ in range(PASSES + 2):
            start = time.perf_counter()
            model(x)
            if x.device.type == "cuda":
                torch.cuda.synchronize(x.device)
            taken.append(time.perf_counter() - start)
    return statistics.median(taken[2:])


def told(plain: nn.Module, shipped: nn.Module, sizes: tuple[int, int], x: Tensor) -> str:
    """Size and time of the network as it was and as it ships, in a sentence; `sizes` are the bytes that they store."""
    took = [1000 * seconds(each, x) for each in (plain, shipped)]
    return (
        f"It stores {sizes[1]:,} bytes, where the network in floats stores {sizes[0]:,} "
        f"({sizes[1] / max(1, sizes[0]):.2f} times as many). On this machine, with {torch.get_num_threads()} threads, "
        f"{len(x)} inputs take {took[1]:.3g} ms, and took {took[0]:.3g} ms ({took[1] / took[0]:.2f} times as long)."
    )
