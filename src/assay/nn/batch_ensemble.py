"""Batch ensemble: members that share every weight matrix and differ by two vectors a layer."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.members import Average, Members, mean_of
from assay.nn.replaced import replaced


class RankOne(nn.Module):
    r"""A Linear or Conv2d layer for several members: member i has the weight W * (s_i r_i^T) and its own bias b_i.

        y = ((x * r_i) W) * s_i + b_i

    r_i multiplies the input channels, s_i the output channels. The rows of a batch belong to the members in turn, in
    parts as equal as can be: row j of n to member floor(j m / n). So a batch repeated m times goes through all members,
    and a batch of training is split among them.

    Source: Wen, Tran and Ba, ICLR 2020, arXiv:2002.06715, eq. 1 and 5.
    """

    r: nn.Parameter  # m in
    s: nn.Parameter  # m out
    b: nn.Parameter | None  # m out

    def __init__(self, layer: nn.Linear | nn.Conv2d, members: int, rng: torch.Generator, *, spread: float) -> None:
        super().__init__()
        self.layer, self.count, self.spread = copy.deepcopy(layer), members, spread
        bias, self.layer.bias = self.layer.bias, None
        wide = (
            (layer.in_channels, layer.out_channels)
            if isinstance(layer, nn.Conv2d)
            else (layer.in_features, layer.out_features)
        )
        self.r, self.s = (nn.Parameter(layer.weight.new_empty(members, width)) for width in wide)
        self.b = None if bias is None else nn.Parameter(bias.detach().repeat(members, 1))
        self._scatter(rng)

    def forward(self, x: Tensor) -> Tensor:  # n in h w -> n out h' w', or n *k in -> n *k out
        member = torch.arange(x.shape[0], device=x.device) * self.count // max(x.shape[0], 1)  # n
        y: Tensor = self.layer(x * self._beside(self.r[member], x))
        y = y * self._beside(self.s[member], y)
        return y if self.b is None else y + self._beside(self.b[member], y)

    def reset_parameters(self) -> None:
        """The members' vectors anew, by the global generator, and biases of 0; the shared weight resets itself."""
        self._scatter(None)
        if self.b is not None:
            nn.init.zeros_(self.b)

    @torch.no_grad()
    def _scatter(self, rng: torch.Generator | None) -> None:
        for vectors in (self.r, self.s):
            noise = torch.randn(vectors.shape, generator=rng, device=vectors.device if rng is None else rng.device)
            vectors.copy_(1 + self.spread * noise)

    def _beside(self, vectors: Tensor, x: Tensor) -> Tensor:  # n c -> n c 1 1, or n *1 c
        ones = (1,) * (x.ndim - 2)
        shape = (*vectors.shape, *ones) if isinstance(self.layer, nn.Conv2d) else (vectors.shape[0], *ones, -1)
        return vectors.reshape(shape)

    def extra_repr(self) -> str:
        return f"members={self.count}, spread={self.spread:g}"


class BatchEnsemble(Members):
    """A net of `RankOne` layers. In eval mode it answers with the mean of its members, from one batch.

    That is the log of their mean probability, or the `average` of something else (members.py).

    In training mode each input goes through one member, by its place in the batch: the loss of the batch is the mean
    over members, and costs what it costs for the plain net.
    """

    def __init__(self, net: nn.Module, count: int, *, average: Average = "probabilities") -> None:
        super().__init__()
        self.net, self.count, self.average = net, count, average

    def members(self, x: Tensor) -> Tensor:  # n *d -> m n *o
        every: Tensor = self.net(x.repeat(self.count, *(1,) * (x.ndim - 1)))  # mn *o
        return every.view(self.count, x.shape[0], *every.shape[1:])

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        if self.training:
            one: Tensor = self.net(x)
            return one
        return mean_of(self.members(x), self.average)


def as_batch_ensemble(
    net: nn.Module, members: int, rng: torch.Generator, *, spread: float = 0.2, average: Average = "probabilities"
) -> BatchEnsemble:
    """A copy of `net` whose Linear and Conv2d layers have so many members, with r_i, s_i ~ N(1, spread^2).

    What else has parameters (batch normalisation, other layers) is shared. Departs from print: the paper starts from
    random signs or N(1, 0.5^2); 0.2 is that of the public benchmark xuanqing94/BNNBench, and keeps the members so close
    that one batch normalisation serves all. `spread` 0 gives members that are all `net`.
    """
    if members < 1:
        raise AssayError(f"A batch ensemble needs at least one member, got {members}; 4 is usual.")
    if not spread >= 0:
        raise AssayError(f"A batch ensemble got spread={spread}; it is a standard deviation, at least 0.")

    def make(module: nn.Module) -> nn.Module | None:
        # by exact type: a subclass may compute with its weight in a way that two vectors do not commute with
        if type(module) not in (nn.Linear, nn.Conv2d):
            return None
        return RankOne(module, members, rng, spread=spread)  # type: ignore[arg-type]

    return BatchEnsemble(replaced(net, make, "Linear or Conv2d layer"), members, average=average)
