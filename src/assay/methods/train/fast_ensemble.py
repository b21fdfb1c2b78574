r"""FastEnsemble: leave a trained minimum along directions of low loss, and come back to another net nearby.

    l+(w) = l(f(x; w), y) - (lam / |A|) sum_{a in A} (1/P) ||w - a||_1                              (eq. 5.2)

    A = {w_0},  w_0 the trained net (the seed)
    for n = 1 .. N-1:   w = w_0;   k2 steps down l+  ("quick training": escape);
                        k3 steps down l ("fine-tuning": settle);   w_n = w;   A = A + {w_n}         (algorithm 10)

The gradient of the penalty is -(lam / (|A| P)) sum_a sign(w - a), and exactly 0 where w = a, so that the first step
goes by the data alone. P is the number of trained weights; buffers (batch normalisation's statistics) have no part in
the distance. A training of k1 steps makes all of it cost k1 + (N-1)(k2 + k3) steps; print has (k2 + k3) / k1 at 3 to
8 %. A larger lam makes members that differ more and are weaker, each by itself.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021, sec. 5.4.
Departs from print: the distance is the mean over the weights, not the sum, as in the public code
    (xuanqing94/BNNBench): only so are its lam (5 on CIFAR-10, 15, 1500, 10 elsewhere) of a sensible size.
    `as_published=True` gives the sum. Where w starts is not printed: it is the seed, `chain=True` starts from the
    previous member and keeps away from that one alone, as the public code does for classifiers. Escape has a constant
    rate and settling one that falls by a cosine to 0, either with a fresh optimiser. The penalty has no lower bound, so
    that only the small k2 limits it; `guard` ends it for a member, if asked, once the loss of a batch exceeds that.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.fit import Augment, Loss, Optimiser, Rows, fit


def fast_ensemble(
    seed: nn.Module,
    data: Rows,
    *,
    members: int,
    escape: int,
    settle: int,
    rng: torch.Generator,
    lam: float = 5.0,
    lr: float = 1e-3,
    batch: int = 128,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    optimiser: Optimiser = "adam",
    loss: Loss = F.cross_entropy,
    augment: Augment | None = None,
    chain: bool = False,
    guard: float | None = None,
    as_published: bool = False,
    on_member: Callable[[int], None] | None = None,
    device: torch.device | str = "cpu",
) -> list[nn.Module]:
    """N nets, of which the first is a copy of the trained `seed`, which itself stays as it was.

    `escape` and `settle` are the steps k2 and k3 of `batch` inputs; the other settings are those of `fit`, which makes
    them. After each net but the first: `on_member(nets so far)`.
    """
    if members < 1 or escape < 1 or settle < 1:
        raise AssayError(f"fast_ensemble got {members=}, {escape=}, {settle=}; it wants at least 1 of each.")
    if not 0 <= lam < math.inf:
        raise AssayError(f"lam={lam} is no weight for the distance; give a number of at least 0, such as 5.")
    if len(data) == 0:
        raise AssayError("fast_ensemble got a data set of 0 inputs; give it at least one.")

    def step(net: nn.Module, steps: int, push: _Push | None) -> None:
        fit(
            net,
            _some(data, steps * min(batch, len(data)), rng),
            epochs=1,
            lr=lr,
            rng=rng,
            batch=min(batch, len(data)),
            momentum=momentum,
            weight_decay=weight_decay,
            optimiser=optimiser,
            schedule="cosine" if push is None else "constant",
            loss=loss if push is None else push.loss,
            augment=augment,
            after_backward=None if push is None else push.after_backward,
            device=device,
        )

    nets = [copy.deepcopy(seed).to(device)]
    for _ in range(members - 1):
        net = copy.deepcopy(nets[-1] if chain else nets[0])
        step(net, escape, _Push(net, nets[-1:] if chain else nets, lam, loss, guard, as_published))
        step(net, settle, None)
        nets.append(net)
        if on_member is not None:
            on_member(len(nets))
    return nets


def penalty_gradient(
    weights: Sequence[Tensor], anchors: Sequence[Sequence[Tensor]], lam: float, *, as_published: bool = False
) -> list[Tensor]:
    """The gradient of -(lam / |A|) sum_a ||w - a||_1 / P, one tensor for each of `weights`; the sum if as_published."""
    size = 1 if as_published else sum(w.numel() for w in weights)
    scale = -lam / (len(anchors) * size)
    return [
        torch.stack([(w.detach() - a).sign_() for a in each]).sum(0).mul_(scale)
        for w, each in zip(weights, zip(*anchors, strict=True), strict=True)
    ]


class _Push:
    """The penalty in the two pieces that `fit` takes: the loss is watched, and its gradient added to the data's."""

    def __init__(
        self,
        net: nn.Module,
        anchors: Sequence[nn.Module],
        lam: float,
        loss: Loss,
        guard: float | None,
        as_published: bool,
    ) -> None:
        trained = [name for name, p in net.named_parameters() if p.requires_grad]
        self.weights = [net.get_parameter(name) for name in trained]
        self.anchors = [[each.get_parameter(name).detach() for name in trained] for each in anchors]
        self.lam, self.plain, self.guard, self.as_published = lam, loss, guard, as_published

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        cost = self.plain(out, y)
        if self.guard is not None and cost.item() > self.guard:
            self.lam = 0.0
        return cost

    def after_backward(self) -> None:
        if self.lam == 0:
            return
        push = penalty_gradient(self.weights, self.anchors, self.lam, as_published=self.as_published)
        for weight, gradient in zip(self.weights, push, strict=True):
            if weight.grad is not None:  # a weight that the data do not reach stays
                weight.grad.add_(gradient)


@dataclass(frozen=True)
class _Part:
    """Some rows of a data set, a row perhaps several times."""

    data: Rows
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: NDArray[Any]) -> tuple[Tensor | NDArray[Any], Tensor | NDArray[Any]]:
        return self.data.take(self.rows[index])


def _some(data: Rows, count: int, rng: torch.Generator) -> _Part:
    """`count` rows at random: all of them as often as that goes, the rest without repetition."""
    rounds = math.ceil(count / len(data))
    orders = [torch.randperm(len(data), generator=rng, device=rng.device) for _ in range(rounds)]
    return _Part(data, torch.cat(orders)[:count].cpu().numpy())
