"""What a network weighs and how long it takes, before and after, in a sentence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.methods.compress.price import latency
from assay.nn.onnx_net import OnnxNet

AT_MOST, REPEATS = 0.2, 7  # seconds of a pass that is measured: of a slow one with fewer inputs; and how often


def stored(model: nn.Module) -> int:
    """Bytes of its parameters and buffers, each counted once: what a file of them holds, but for names and shapes."""
    seen = {t.data_ptr(): t.numel() * t.element_size() for t in model.state_dict().values() if t.numel()}
    return sum(seen.values())


def answers_on(model: nn.Module, device: torch.device | str) -> str:
    """Where it computes what it is asked on this device: an ONNX graph on the CPU, wherever its inputs are."""
    return "cpu" if any(isinstance(module, OnnxNet) for module in model.modules()) else str(device)


def told(plain: nn.Module, shipped: nn.Module, sizes: tuple[int, int], x: Tensor) -> str:  # n *d
    """The network as it was and as it ships: the bytes that they store, and a pass as measured where `x` is."""
    slow = latency(shipped, x[:1], x.device, warm=1, repeats=1)
    x = x[: max(1, min(len(x), int(AT_MOST / slow)))]
    took = [1e3 * latency(each, x, x.device, warm=1, repeats=REPEATS) for each in (plain, shipped)]
    on = [answers_on(each, x.device) for each in (plain, shipped)]
    return (
        f"It stores {sizes[1]:,} bytes, where the network as it was stores {sizes[0]:,} "
        f"({sizes[1] / max(1, sizes[0]):.2f} times as many). On this machine, with {torch.get_num_threads()} threads, "
        f"{len(x)} inputs take {took[1]:.3g} ms on {on[1]}, and took {took[0]:.3g} ms on {on[0]} "
        f"({took[1] / took[0]:.2f} times as long)."
    )
