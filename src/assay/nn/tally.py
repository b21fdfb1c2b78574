"""How often a network is passed, counted while it is asked, without a trace on it.

A hook would be seen by whoever reads the network layer by layer, and a wrapper would change its layers' names. What
torch calls in the place of a module's own call, where it was compiled, is neither: copies do not take it along, and
a pass that somebody compiles goes by it uncounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

COUNTED: list[tuple[nn.Module, Tally]] = []
"""What is counted just now, for an engine that passes it elsewhere."""


class Tally:
    """Inputs that passed, apart those whose gradient is wanted: for it they pass back too."""

    def __init__(self) -> None:
        self.answers = self.slopes = 0

    def add(self, x: Tensor) -> None:  # n *d
        count = len(x) if x.ndim else 1
        if x.requires_grad and torch.is_grad_enabled():
            self.slopes += count
        else:
            self.answers += count


@contextmanager
def counted(model: nn.Module) -> Iterator[Tally]:
    """Inside, what passes through `model` as a whole is counted; a program of TorchScript cannot be."""
    tally = Tally()
    if isinstance(model, torch.jit.ScriptModule):
        yield tally
        return
    before = vars(model).get("_compiled_call_impl")  # what `model.compile()` left

    def call(*given: Any, **named: Any) -> Any:
        x = next((each for each in (*given, *named.values()) if isinstance(each, Tensor)), None)
        if x is not None:
            tally.add(x)
        return (before or model._call_impl)(*given, **named)

    model._compiled_call_impl = call
    COUNTED.append((model, tally))
    try:
        yield tally
    finally:
        COUNTED.remove((model, tally))
        if before is None:
            vars(model).pop("_compiled_call_impl", None)
        else:
            model._compiled_call_impl = before
