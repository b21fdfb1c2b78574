"""Where a network can be looked into: what has a row for each input, in their order, once in a pass."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def inner_points(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules by name, without what is inside one that says `rows_inside = False`.

    Such a module shows those inside it other rows than the inputs, or calls them several times. What is caught there
    belongs to no input.
    """
    hidden: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(hidden):
            continue
        yield name, module
        if not getattr(module, "rows_inside", True):
            hidden = (*hidden, f"{name}." if name else "")
