"""Modules that stand where a layer was: they are called as it is called and read as it is read."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class InPlace(nn.Sequential):
    """Modules one after another, one of which is the `layer` that stood here.

    A net may call a layer in its own way (`self.up(x, output_size=...)`) and read it (`self.conv.weight.dtype`): what
    is handed over beside the input goes to the layer, and what is read that is not here is the layer's. Its
    `reset_parameters` is not: who goes through all modules would draw it twice.
    """

    def __init__(self, *modules: nn.Module, layer: nn.Module) -> None:
        super().__init__(*modules)
        self.place = modules.index(layer)

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        for place, module in enumerate(self):
            input = module(input, *args, **kwargs) if place == self.place else module(input)
        return input

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "place" not in self.__dict__ or name.startswith("__") or name == "reset_parameters":
                raise
        return getattr(self[self.place], name)
