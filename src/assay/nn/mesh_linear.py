r"""A dense layer whose units are the points of a mesh: one feeds another only if the two lie close.

With D_ij the distance of points i and j of the mesh at rest, and reach alpha,

    o = (C * W)^T i + b,    C_ij = 1 where D_ij <= alpha, else 0

so that after h such layers a unit has heard of nothing farther than h hops, each of at most alpha.

Source: Heese, Morand, Helm and Bortz, "CupNet - Pruning a Network for Geometric Data", ICANN 2021, eq. 2 and 3. Only
the weights that C keeps exist here: an optimiser has nothing to hold for the others.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, linear

from assay.errors import AssayError, ShapeError

Start = Literal["kept", "dense"]
FEW = 1 / 20  # of all pairs: with 2 % of 1,979 points' a pass takes an eighth of the time, with slopes a third


def within_reach(points: NDArray[Any] | Tensor, reach: float) -> Tensor:  # m d -> 2 c
    """The pairs (from, to) of points at most `reach` apart, each point with itself among them, sorted by where to."""
    from scipy.spatial import cKDTree

    places = np.asarray(points.detach().cpu() if isinstance(points, Tensor) else points, dtype=np.float64)
    if places.ndim != 2 or not len(places) or not np.isfinite(places).all():
        raise ShapeError(f"A mesh is finite numbers of shape (points, axes), got {places.shape}; give one row a point.")
    if not reach >= 0:
        raise AssayError(f"reach={reach} is no distance; give 0 (each point by itself) or more.")
    near = cKDTree(places).query_pairs(reach, output_type="ndarray") if np.isfinite(reach) else None
    if near is None:
        near = np.stack(np.triu_indices(len(places), 1), 1)
    itself = np.arange(len(places))
    source = np.concatenate([near[:, 0], near[:, 1], itself])
    target = np.concatenate([near[:, 1], near[:, 0], itself])
    return torch.from_numpy(np.stack([source, target])[:, np.lexsort((source, target))])


class MeshLinear(nn.Module):
    """(C * W)^T i + b of `points` units, `pairs` (from, to) what C keeps, as `within_reach` gives them: *n m -> *n m.

    It starts as Glorot and Bengio (2010): uniform up to sqrt(6 / (a + b)), with a the units that are heard and b those
    that hear. `start="kept"` counts those that C keeps; "dense" counts all, as a masked layer of TensorFlow does (in
    print nothing is said): with few kept, what is said then shrinks from layer to layer.

    Where C keeps few pairs, those alone are multiplied; slopes of slopes are then not to be had, as torch has none.
    """

    pairs: Tensor  # 2 c
    first: Tensor  # m: where the pairs to each point begin

    def __init__(self, pairs: Tensor, points: int, *, start: Start = "kept") -> None:
        super().__init__()
        if start not in get_args(Start):
            raise AssayError(f"MeshLinear got start={start!r}; it knows {' and '.join(get_args(Start))}.")
        if pairs.ndim != 2 or len(pairs) != 2 or not pairs.shape[1]:
            raise ShapeError(f"MeshLinear got pairs of shape {tuple(pairs.shape)}; give (2, pairs), from and to.")
        if int(pairs.min()) < 0 or int(pairs.max()) >= points:
            raise AssayError(f"MeshLinear got pairs of {int(pairs.min())} to {int(pairs.max())} for {points} points.")
        if bool(((pairs[1] * points + pairs[0]).diff() <= 0).any()):
            raise AssayError("MeshLinear wants each pair once, sorted by where it leads to, as from `within_reach`.")
        self.points, self.start = points, start
        self.sparse = pairs.shape[1] <= FEW * points**2
        # they follow from the mesh: no part of the weights on disk
        self.register_buffer("pairs", pairs, persistent=False)
        self.register_buffer("first", torch.searchsorted(pairs[1].contiguous(), torch.arange(points)), persistent=False)
        self.weight = nn.Parameter(torch.empty(pairs.shape[1]))
        self.bias = nn.Parameter(torch.empty(points))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.start == "dense":
            both = torch.full_like(self.weight, 2.0 * self.points)
        else:
            heard, hear = (torch.bincount(self.pairs[end], minlength=self.points) for end in (1, 0))
            both = (heard[self.pairs[1]] + hear[self.pairs[0]]).to(self.weight.dtype)
        with torch.no_grad():
            self.weight.uniform_(-1, 1).mul_((6 / both).sqrt())
            self.bias.zero_()

    def dense(self) -> Tensor:
        """C * W as a whole: m m, from by to."""
        whole = self.weight.new_zeros(self.points**2)
        return whole.index_put((self.pairs[0] * self.points + self.pairs[1],), self.weight).view(self.points, -1)

    def fill(self, weight: Tensor, bias: Tensor) -> None:  # m m, m
        """Take W and b; of W what C keeps."""
        if weight.shape != (self.points, self.points) or bias.shape != (self.points,):
            raise ShapeError(f"MeshLinear of {self.points} points got {tuple(weight.shape)} and {tuple(bias.shape)}.")
        with torch.no_grad():
            self.weight.copy_(weight[self.pairs[0], self.pairs[1]])
            self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:  # *n m -> *n m
        if x.shape[-1] != self.points:
            raise ShapeError(f"MeshLinear of {self.points} points got inputs of shape {tuple(x.shape)}.")
        if not self.sparse:
            return linear(x, self.dense().T, self.bias)
        table = x.reshape(-1, self.points).T.contiguous()  # m n: a row for each point
        said = embedding_bag(self.pairs[0], table, self.first, mode="sum", per_sample_weights=self.weight)
        return said.T.reshape(x.shape) + self.bias
