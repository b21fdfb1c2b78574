"""Data sets that a training or a study holds on the device as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class _Rows(Protocol):
    def __len__(self) -> int: ...

    def take(self, index: NDArray[Any], /) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Whole:
    """A data set on the device as a whole, where a batch is an index and no copy from host memory."""

    x: Tensor  # n *d
    y: Tensor  # n

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(index, device=self.x.device)
        return self.rows(rows)

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor]:  # k -> k *d, k
        """By numbers that are on the device already."""
        return self.x[index], self.y[index]


def whole(splits: Mapping[str, _Rows], device: str) -> dict[str, Whole]:
    return {
        split: Whole(*(part.to(device) for part in data.take(np.arange(len(data))))) for split, data in splits.items()
    }
