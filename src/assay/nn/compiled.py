"""A network whose answers come from torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from assay.nn.on_demand import OnDemand

Backend = Literal["inductor", "aot-eager", "eager"]


class Compiled(nn.Module):
    """The answers of a compiled pass; slopes, and whatever watches a layer inside, are those of the network itself.

    A compiled pass has no second derivative, and hooks that are put on its layers afterwards are passed over in
    silence. So it is compiled for answers alone, for batches of any length; where a gradient is asked for or a layer is
    watched, `model` answers as it is, which is the same function up to rounding. Hooks that the network came with
    (weight norm, rounded activations) are part of it, and are compiled.
    """

    def __init__(self, model: nn.Module, backend: Backend = "inductor") -> None:
        super().__init__()
        self.model, self.backend = model, backend
        self._own = tuple(_hooks(model))
        self._pass = OnDemand()
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *k
        slopes = torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in self.parameters()))
        if slopes or any(all(hook is not own for own in self._own) for hook in _hooks(self.model)):
            out: Tensor = self.model(x)
            return out
        if self._pass.made is None:
            self._pass.made = torch.compile(self.model, backend=self.backend.replace("-", "_"), dynamic=True)
        fast: Tensor = self._pass.made(x)
        return fast


def _hooks(model: nn.Module) -> Iterator[Callable[..., Any]]:
    """Whatever is called before or after a layer. Their keys are numbers of this process, which say nothing of it."""
    for layer in model.modules():
        yield from chain(layer._forward_pre_hooks.values(), layer._forward_hooks.values())
