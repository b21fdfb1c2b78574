r"""Many networks with one hidden layer, trained together as one.

Of r runs with p networks each, all networks of a run see the same batches, so that their first layers are one matrix
product and the rest is element by element:

    a = relu( [x 1] W ),    z = <a, v> + c,    score = 1 / (1 + exp(-z))        x: n d,  W: d+1 (p h),  v: p h,  c: p

The gradient of the mean cross-entropy is written out, because it is five lines and spares autograd's graph:

    dz = (score - y) / n,    dv = sum_n dz a,    dc = sum_n dz,    dW = [x 1]^T ( dz v [a > 0] )

and Adam (Kingma and Ba, ICLR 2015) moves every weight of every network. No network feels another: training them
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
        return torch.cat([self._hidden(part)[1].sigmoid() for part in parts], 1).transpose(1, 2)

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
        weights = [w.clone() for w in self]
        means, squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
        run, step = torch.arange(len(x), device=x.device)[:, None], 0
        for _ in range(epochs):
            order = torch.rand(y.shape, generator=rng, device=x.device).argsort(1)
            for seen in torch.split(order, batch, 1):
                step += 1
                slopes = Population(*weights).slopes(rows[run, seen], truth[run, seen])
                for w, slope, mean, square in zip(weights, slopes, means, squares, strict=True):
                    mean.lerp_(slope, 1 - BETA_1)
                    square.mul_(BETA_2).addcmul_(slope, slope, value=1 - BETA_2)
                    down = (square / (1 - BETA_2**step)).sqrt_().add_(TINY)
                    w.addcdiv_(mean, down, value=-lr / (1 - BETA_1**step))
        return Population(*weights)

    def slopes(self, rows: Tensor, y: Tensor) -> Population:  # r b d+1, r b
        """The gradient of each network's mean cross-entropy; a row's last entry is 1."""
        active, z = self._hidden(rows)
        dz = (z.sigmoid() - y[..., None]) / y.shape[1]  # r b p
        outer = torch.einsum("rbp,rbph->rph", dz, active)
        back = torch.where(active > 0, dz[..., None] * self.outer[:, None], 0.0)
        inner = (rows.transpose(1, 2) @ back.flatten(2)).view_as(self.inner)
        return Population(inner, outer, dz.sum(1))

    def _hidden(self, rows: Tensor) -> tuple[Tensor, Tensor]:  # r b d+1 -> r b p h, r b p
        active = (rows @ self.inner.flatten(2)).relu_().view(*rows.shape[:2], *self.inner.shape[2:])
        return active, torch.einsum("rbph,rph->rbp", active, self.outer) + self.shift[:, None]


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


def _with_ones(x: Tensor) -> Tensor:  # r n d -> r n d+1
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)
