"""Any function of arrays, and a model that follows MAITE's protocol, as a model of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.errors import SubjectError
from assay.subjects.doors.opened import Opened


class FunctionModel(nn.Module):
    """f(array of n *d) -> array of n *k. Not differentiable: what numpy computes leaves no trace for a gradient."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *k
        out = self.function(x.detach().cpu().numpy().copy())
        values = out.detach().cpu() if isinstance(out, Tensor) else _tensor(out)
        return values.to(x.device, x.dtype)


class ListModel(nn.Module):
    """A model of MAITE's protocol: a list of n arrays of shape c h w in, a list of n arrays of k scores out."""

    def __init__(self, model: Callable[[Any], Any]) -> None:
        super().__init__()
        self.listed = model

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k
        outs = self.listed(list(x))
        if len(outs) != len(x):
            raise SubjectError(f"The model returned {len(outs)} answers for {len(x)} inputs; return one for each.")
        rows = [out if isinstance(out, Tensor) else _tensor(out) for out in outs]
        return torch.stack([row.to(x.device, x.dtype) for row in rows]) if rows else x.new_zeros(0, 1)


def _tensor(out: Any) -> Tensor:
    values = np.asarray(out)
    if values.dtype.kind not in "fiub":
        raise SubjectError(f"The function returned {values.dtype} of shape {values.shape}; return numbers.")
    return torch.from_numpy(np.ascontiguousarray(values))


def of_function(function: Callable[[Any], Any]) -> Opened:
    name = getattr(function, "__name__", type(function).__name__)
    return Opened(
        model=FunctionModel(function),
        name=name,
        about=f"{name}, a function of arrays: answers without gradients.",
        gradients=False,
    )


def is_maite(model: Any) -> bool:
    """Whether it looks like a model of maite.protocols: it is called with a list, and says who it is."""
    metadata = getattr(model, "metadata", None)
    return callable(model) and isinstance(metadata, Mapping) and isinstance(metadata.get("id"), str)


def of_maite(model: Any) -> Opened:
    names = model.metadata.get("index2label")
    numbered = isinstance(names, Mapping) and sorted(names) == list(range(len(names)))
    return Opened(
        model=ListModel(model),
        name=model.metadata["id"],
        about=f"{model.metadata['id']}, a model that follows MAITE's protocol.",
        answers="classes",
        classes=tuple(str(names[i]) for i in range(len(names))) if numbered and names else None,
    )
