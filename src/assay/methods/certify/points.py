"""The training points of a nearest-neighbour classifier, seen through what stands in front of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from assay.methods.certify.layers import normalises
from assay.nn.nearest_neighbour import NearestNeighbour
from assay.nn.read_as import Rescaled


class Points(NamedTuple):
    """Training points in the units of the subject's inputs, and the metric."""

    x: NDArray[np.float64]  # n f
    y: NDArray[np.int64]  # n
    factor: NDArray[np.float64] | None  # r f; None is the identity, or a multiple of it, which orders points alike


def points(model: nn.Module) -> Points | None:
    """The points behind any (x - mean) / std and low + u span; None where the model is no nearest neighbour.

    |G(low + u span - z)| = |G span (u - (z - low) / span)|. Where a feature has no range (span 0) all inputs agree, so
    that a point must have that value too, or else its distance has a part that no input can show, and the answer is
    None.
    """
    around: list[nn.Module] = []
    while normalises(model) or isinstance(model, Rescaled):
        around.append(model)
        model = model.get_submodule("model")
    if not isinstance(model, NearestNeighbour):
        return None
    x, factor = model.train_x.double(), model.factor.double()
    for outer in reversed(around):
        if isinstance(outer, Rescaled):
            scale, shift = outer.span.double(), outer.low.double()
        else:
            mean, std = outer.get_buffer("mean").double(), outer.get_buffer("std").double()
            scale, shift = 1 / std, -mean / std
        scale = scale.expand(x.shape[1:])
        if bool(((x != shift) & (scale == 0)).any()):
            return None
        factor = factor * scale.flatten()
        x = torch.where(scale == 0, 0.0, (x - shift) / torch.where(scale == 0, 1.0, scale))
    one = float(factor[0, 0])
    plain = one != 0 and torch.equal(factor, one * torch.eye(factor.shape[1]).to(factor))
    return Points(x.flatten(1).cpu().numpy(), model.train_y.cpu().numpy(), None if plain else factor.cpu().numpy())
