"""A copy of a network with some of its layers changed for others."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from assay.errors import AssayError


def replaced(net: nn.Module, make: Callable[[nn.Module], nn.Module | None], wanted: str) -> nn.Module:
    """A copy of `net` in which each module that `make` has another for is that other; one used twice stays one."""
    fresh = copy.deepcopy(net)
    new = {module: other for module in fresh.modules() if (other := make(module)) is not None}
    if not new:
        raise AssayError(f"{type(net).__name__} has no {wanted}, so there is nothing to replace.")
    for path, module in list(fresh.named_modules(remove_duplicate=False)):
        if path and module in new:
            parent, _, name = path.rpartition(".")
            setattr(fresh.get_submodule(parent), name, new[module])
    return new.get(fresh, fresh)
