r"""CupNet: from a few numbers to the places of the points of a mesh, by layers that know which points are close.

k numbers -> a frame of a unit for each coordinate -> split by axis -> h layers of `MeshLinear` for each axis -> the
coordinates. ReLU and dropout follow the frame and each layer of the mesh. With m points, d = 3 m coordinates and c
pairs within reach it has

    n_cup = (k d + d) + 3 h (c + m) + 3 (m^2 + m)

weights, and `RefNet`, h + 1 dense layers of s units in place of frame and mesh,

    n_ref = (k s + s) + h (s^2 + s) + (s d + d),    s = ceil((-u + sqrt(u^2 - 4 h (d - n_cup))) / (2 h)),

u = k + h + d + 1, the smallest s with n_ref >= n_cup.

Source: Heese, Morand, Helm and Bortz, "CupNet - Pruning a Network for Geometric Data", ICANN 2021, sec. 2. Print
contradicts itself twice. Its text has one last dense layer that merges the axes (`as_published`), while eq. 4 counts
one for each axis, and so do the 12,277,950 weights of its best network: a merged one has 35 million by itself. Its
text gives RefNet m outputs, eq. 5 and the 34,898,737 weights of its best one d.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.mesh_linear import MeshLinear, Start, within_reach

AXES = 3


def cup_size(inputs: int, points: int, hidden: int, pairs: int, *, as_published: bool = False) -> int:
    """n_cup; `as_published` with the last layer of the text."""
    d = AXES * points
    last = d * d + d if as_published else AXES * (points * points + points)
    return (inputs * d + d) + AXES * hidden * (pairs + points) + last


def ref_size(inputs: int, outputs: int, hidden: int, size: int) -> int:
    """n_ref."""
    return (inputs * size + size) + hidden * (size * size + size) + (size * outputs + outputs)


def matched_size(inputs: int, outputs: int, hidden: int, weights: int) -> int:
    """The smallest s with which RefNet has at least so many weights, at least 1; in whole numbers, so exact."""
    if hidden < 1:
        raise AssayError(f"matched_size got hidden={hidden}; RefNet is matched with at least 1.")
    u = inputs + hidden + outputs + 1
    square = max(0, u * u - 4 * hidden * (outputs - weights))
    size = max(1, (math.isqrt(square) - u) // (2 * hidden))
    while ref_size(inputs, outputs, hidden, size) < weights:
        size += 1
    return size


class CupNet(nn.Module):
    """`hidden` layers of a mesh of `points`, of which those within `reach` hear each other: n k -> n 3m.

    `points` are m by as many axes as the mesh at rest has. The answer has the first axis of all points, then the
    second, then the third. `start` is that of `MeshLinear`.
    """

    def __init__(
        self,
        inputs: int,
        points: NDArray[Any] | Tensor,
        *,
        hidden: int = 2,
        reach: float,
        dropout: float = 0.2,
        start: Start = "kept",
        as_published: bool = False,
    ) -> None:
        super().__init__()
        if inputs < 1 or hidden < 0 or not 0 <= dropout < 1:
            raise AssayError(f"CupNet got inputs={inputs}, hidden={hidden}, dropout={dropout}; give 1, 0, 0 or more.")
        pairs, m = within_reach(points, reach), len(points)
        self.frame = Glorot(inputs, AXES * m)
        self.mesh = nn.ModuleList(
            nn.Sequential(*(each for _ in range(hidden) for each in _layer(MeshLinear(pairs, m, start=start), dropout)))
            for _ in range(AXES)
        )
        self.last = nn.ModuleList([Glorot(AXES * m, AXES * m)] if as_published else [Glorot(m, m) for _ in range(AXES)])
        self.drop = nn.Dropout(dropout)

    def heard(self, frame: Tensor) -> tuple[Tensor, ...]:  # n 3m -> 3 times n m
        """What the layers of the mesh make of the frame, each axis by itself."""
        return tuple(layers(x) for layers, x in zip(self.mesh, frame.chunk(AXES, -1), strict=True))

    def forward(self, x: Tensor) -> Tensor:  # n k -> n 3m
        axes = self.heard(self.drop(self.frame(x).relu()))
        if len(self.last) == 1:
            axes = (torch.cat(axes, -1),)
        return torch.cat([last(each) for last, each in zip(self.last, axes, strict=True)], -1)


class RefNet(nn.Module):
    """`hidden` + 1 dense layers of `size` units, ReLU and dropout after each, and a dense layer: n k -> n d."""

    def __init__(self, inputs: int, outputs: int, *, hidden: int, size: int, dropout: float = 0.2) -> None:
        super().__init__()
        if min(inputs, outputs, size) < 1 or hidden < 0 or not 0 <= dropout < 1:
            raise AssayError(f"RefNet got {inputs}, {outputs}, hidden={hidden}, size={size}, dropout={dropout}.")
        wide = (inputs, *[size] * hidden)
        self.body = nn.Sequential(*(each for a in wide for each in _layer(Glorot(a, size), dropout)))
        self.last = Glorot(size, outputs)

    def forward(self, x: Tensor) -> Tensor:  # n k -> n d
        out: Tensor = self.last(self.body(x))
        return out


class Glorot(nn.Linear):
    """A dense layer that starts as one of TensorFlow, with which print was made: Glorot's uniform, biases at 0."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)


def _layer(layer: nn.Module, dropout: float) -> tuple[nn.Module, ...]:
    return layer, nn.ReLU(), nn.Dropout(dropout)
