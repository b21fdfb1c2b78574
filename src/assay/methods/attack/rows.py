"""Inputs that an attack works on a few at a time: all in memory, or taken whenever they are wanted."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray
from torch import Tensor


@runtime_checkable
class Rows(Protocol):
    """Inputs with their labels, any part of which can be had by number."""

    def __len__(self) -> int: ...

    def take(self, index: NDArray[Any], /) -> tuple[Tensor, Tensor]: ...


def taken(x: Tensor | Rows, rows: Tensor) -> Tensor:
    """These inputs, on the device of `rows`: n *d, k -> k *d."""
    return x[rows.to(x.device)] if isinstance(x, Tensor) else x.take(rows.cpu().numpy())[0].to(rows.device)
