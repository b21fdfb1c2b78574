r"""Many networks with one hidden layer, trained together as one.

Of r runs with p networks each, all networks of a run see the same batches, so that a layer of all of them is one
product of a batch of matrices and the rest is element by element:

    a = relu( [x 1] W ),    z = a v + c,    score = 1 / (1 + exp(-z))        x: n d,  W: p d+1 h,  v: p h,  c: p

The gradient of the mean cross-entropy is written out, because it is five lines and spares autograd's graph:

    dz = (score - y) / n,    G = [x 1]^T ( dz [a > 0] ),    dW = G v,    dv = sum_d W G,    dc = sum_n dz

where dv = sum_n dz a needs no second look at the hidden units, which are what is large: a is [x 1] W where it is not 0.
Adam (Kingma and Ba, ICLR 2015) moves every weight of every network. No network feels another: training them
together or one after the other is the same but for rounding.

Source: Zhang et al., "Fairer Machine Learning Through Multi-objective Evolutionary Learning", ICANN 2021, sec. 3.2 and
    4.1: one hidden layer, weights drawn after Glorot and Bengio (2010), N(0, 0.01^2) on every weight and bias of an
    offspring, partial training by Adam.
Where print is open: the hidden units are rectified, the loss is cross-entropy, a partial training is one epoch in
    batches of 500 that begins with a fresh Adam (later code by the authors has one or two epochs of 500).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from assay.errors import AssayError

BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8
AT_ONCE = 2**28  # hidden units that are held at a time when scores are asked for: one gigabyte


class Population(NamedTuple):
    """The weights of r runs with p networks each."""

    inner: Tensor  # r d+1 p h: the last row is the bias
    outer: Tensor  # r p h
    shift: Tensor  # r p

    @property
    def size(self) -> int:
        return self.shift.shape[1]

    def scores(self, x: Tensor) -> Tensor:  # r n d -> r p n
        """Of each network for each input: the chance that it gives to class 1."""
        rows, hidden = _with_ones(x), self.inner[0, 0].numel() * len(x)
        parts = torch.split(rows, max(1, AT_ONCE // hidden), 1)
        weights = self.inner.transpose(1, 2), self.outer, self.shift
        return torch.cat([_hidden(part, *weights)[1].sigmoid() for part in parts], 2)

    def take(self, which: Tensor) -> Population:  # r q -> with q networks
        """These networks of each run, any of them more than once."""
        run = torch.arange(len(which), device=which.device)[:, None]
        inner = self.inner.transpose(1, 2)[run, which].transpose(1, 2)
        return Population(inner.contiguous(), self.outer[run, which], self.shift[run, which])

    def joined(self, other: Population) -> Population:
        """Those of both, side by side."""
        inner = torch.cat([self.inner, other.inner], 2)
        return Population(inner, torch.cat([self.outer, other.outer], 1), torch.cat([self.shift, other.shift], 1))

    def varied(self, noise: float, rng: Generator) -> Population:
        """Each with N(0, noise^2) on every weight and bias."""
        moved = (w + noise * torch.randn(w.shape, generator=rng, device=w.device, dtype=w.dtype) for w in self)
        return Population(*moved)

    def trained(
        self, x: Tensor, y: Tensor, *, epochs: int, lr: float, rng: Generator, batch: int = 500
    ) -> Population:  # r n d, r n
        """Each after so many epochs of Adam on its run's rows, in batches that are drawn anew each epoch."""
        if epochs < 0 or batch < 1:
            raise AssayError(f"A training got {epochs} epochs in batches of {batch}; give at least 0 and 1.")
        rows, truth = _with_ones(x), y.to(x.dtype)
        inner = self.inner.transpose(1, 2).clone(memory_format=torch.contiguous_format)  # network by network
        weights = [inner, self.outer.clone(), self.shift.clone()]
        means, squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
        run, step = torch.arange(len(x), device=x.device)[:, None], 0
        for _ in range(epochs):
            order = torch.rand(y.shape, generator=rng, device=x.device).argsort(1)
            for seen in torch.split(order, batch, 1):
                step += 1
                slopes = _slopes(rows[run, seen], truth[run, seen], *weights)
                for w, slope, mean, square in zip(weights, slopes, means, squares, strict=True):
                    mean.lerp_(slope, 1 - BETA_1)
                    square.mul_(BETA_2).addcmul_(slope, slope, value=1 - BETA_2)
                    down = (square / (1 - BETA_2**step)).sqrt_().add_(TINY)
                    w.addcdiv_(mean, down, value=-lr / (1 - BETA_1**step))
        return Population(inner.transpose(1, 2).contiguous(), *weights[1:])


def drawn(runs: int, size: int, features: int, hidden: int, rng: Generator) -> Population:
    """New networks: weights even within +-sqrt(6 / (in + out)) of their layer, biases 0."""
    if min(runs, size, features, hidden) < 1:
        raise AssayError(f"A population got {size} networks of {features} inputs and {hidden} hidden; give at least 1.")

    def even(*shape: int, edge: float) -> Tensor:
        return edge * (2 * torch.rand(shape, generator=rng, device=rng.device) - 1)

    inner = even(runs, features + 1, size, hidden, edge=(6 / (features + hidden)) ** 0.5)
    inner[:, -1] = 0
    outer = even(runs, size, hidden, edge=(6 / (hidden + 1)) ** 0.5)
    return Population(inner, outer, torch.zeros(runs, size, device=rng.device))


def _slopes(
    rows: Tensor, y: Tensor, inner: Tensor, outer: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # r b d+1, r b, r p d+1 h, r p h, r p
    """The gradient of each network's mean cross-entropy; a row's last entry is 1."""
    active, z = _hidden(rows, inner, outer, shift)
    dz = (z.sigmoid_() - y[:, None]) / y.shape[1]  # r p b
    # what autograd calls for relu, in place: where() would hold three more tensors of this size
    torch.ops.aten.threshold_backward.grad_input(dz[..., None].expand_as(active), active, 0, grad_input=active)
    pulled = rows.mT[:, None] @ active  # G: r p d+1 h
    return pulled * outer[:, :, None], (pulled * inner).sum(2), dz.sum(2)


def _hidden(rows: Tensor, inner: Tensor, outer: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:  # -> r p b h, r p b
    active = (rows[:, None] @ inner).relu_()
    return active, (active @ outer[..., None])[..., 0] + shift[..., None]


def _with_ones(x: Tensor) -> Tensor:  # r n d -> r n d+1
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)
