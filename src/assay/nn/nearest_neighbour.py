"""The nearest-neighbour classifier as a network: it answers with a score per class, and its gradient exists."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError

CELLS = 2**22  # distances that are held at a time


class NearestNeighbour(nn.Module):
    """1-NN under d(x, z) = |G(x - z)|^2, G = `factor` (r f; None: the identity): the class of the nearest point.

    The score of a class is minus d to its nearest training point, so that the highest score is the answer and the
    difference of two scores is what a change of the input must overcome. The gradient is that of the nearest points
    as they stand, which is the right one wherever they are unique. Only 1-NN: votes of several neighbours have no
    such score. The training points are buffers, sorted by class, as in `train_x` (n *d) and `train_y` (n).
    """

    train_x: Tensor
    train_y: Tensor
    factor: Tensor
    embedded: Tensor
    middle: Tensor

    def __init__(
        self, train_x: Tensor, train_y: Tensor, *, factor: Tensor | None = None, classes: int | None = None
    ) -> None:
        super().__init__()
        if train_x.ndim < 2 or train_y.shape != train_x.shape[:1] or len(train_x) == 0:
            raise ShapeError(
                f"NearestNeighbour got points of shape {tuple(train_x.shape)} with labels of shape "
                f"{tuple(train_y.shape)}; it wants n points of at least one feature and n class indices."
            )
        if not train_x.is_floating_point() or not bool(train_x.isfinite().all()):
            raise AssayError(
                f"NearestNeighbour got points of {train_x.dtype} or with NaN; give finite floats in the input's units."
            )
        features = train_x[0].numel()
        if factor is not None and (
            factor.ndim != 2 or factor.shape[1] != features or not bool(factor.isfinite().all())
        ):
            raise ShapeError(
                f"NearestNeighbour got a factor of shape {tuple(factor.shape)} for {features} features; it wants "
                f"finite numbers of shape (r, {features})."
            )
        if train_y.is_floating_point() or int(train_y.min()) < 0:
            raise AssayError(f"NearestNeighbour got labels of {train_y.dtype} from {train_y.min()}; it wants 0, 1, ...")
        self.classes = int(train_y.max()) + 1 if classes is None else classes
        sizes = train_y.long().bincount(minlength=self.classes)
        if len(sizes) != self.classes or self.classes < 2 or int(sizes.min()) == 0:
            raise AssayError(
                f"NearestNeighbour got {sizes.tolist()} points of classes 0, 1, ... for {self.classes} classes; it "
                "wants two classes or more, and a point of each."
            )
        order = train_y.argsort(stable=True)
        self.register_buffer("train_x", train_x.detach()[order])
        self.register_buffer("train_y", train_y.long()[order])
        given = torch.eye(features) if factor is None else factor.detach()  # always there, so that weights fit again
        self.register_buffer("factor", given.to(train_x))
        z = self.train_x.flatten(1) @ self.factor.T
        self.register_buffer("middle", z.mean(0))  # r, around which squared lengths cancel less
        self.register_buffer("embedded", z - self.middle)  # n r
        self.sizes = tuple(sizes.tolist())

    def with_factor(self, factor: Tensor) -> NearestNeighbour:
        """The same points under another metric; this one stays as it was."""
        return NearestNeighbour(self.train_x, self.train_y, factor=factor, classes=self.classes)

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n c
        z = x.flatten(1) @ self.factor.T - self.middle  # n r
        with torch.no_grad():
            nearest = self._nearest(z)  # n c
        away = self.embedded[nearest] - z[:, None]  # again by difference: exact, and the search keeps no graph
        return -away.square().sum(2)

    def _nearest(self, z: Tensor) -> Tensor:  # n r -> n c
        width = max(1, CELLS // max(1, len(z)))
        columns, first = [], 0
        for size in self.sizes:
            least = z.new_full((len(z),), torch.inf)
            who = torch.zeros(len(z), dtype=torch.long, device=z.device)
            for points in torch.split(self.embedded[first : first + size], width):
                low, place = (points.square().sum(1) - 2 * z @ points.T).min(1)
                who = torch.where(low < least, place + first, who)
                least = torch.minimum(low, least)
                first += len(points)
            columns.append(who)
        return torch.stack(columns, 1)
