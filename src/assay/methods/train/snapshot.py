r"""Snapshot ensemble: one training whose learning rate falls to zero and jumps back, once for each member.

    lr(t) = lr_0 / 2 (cos(pi ((t-1) mod C) / C) + 1),   t = 1 .. T,   C = T / M

The weights at the end of each cycle, where the rate has come down, are a member; the last is the end of the training.

Source: Huang et al., ICLR 2017, arXiv:1704.00109, eq. 2; Liu, "Building Trustworthy Machine Learning Models", UCLA
    2021, sec. 5.2.
Departs from print: C = ceil(T/M) gives fewer than M cycles for some T, or a last one that is cut off while its rate is
    high. Here a cycle is a whole number of epochs, and the first epochs mod M of them have one more than the others.
    The public code of the latter source (xuanqing94/BNNBench) saves at the first step of each cycle, so that its
    first member is untrained and the last cycle is in none; this is not offered. Momentum starts afresh with the rate.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from assay.errors import AssayError
from assay.methods.train.fit import Augment, Loss, Optimiser, Rows, anew, fit


def fit_snapshots(
    model: nn.Module,
    data: Rows,
    *,
    members: int,
    epochs: int,
    lr: float,
    rng: torch.Generator,
    batch: int = 128,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    optimiser: Optimiser = "sgd",
    loss: Loss = F.cross_entropy,
    augment: Augment | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
    device: torch.device | str = "cpu",
) -> list[nn.Module]:
    """Train a fresh copy of `model` for `epochs` in all; return its weights at the end of each of `members` cycles.

    The settings are those of `fit`, which trains each cycle. `model` itself stays as it was.
    """
    if members < 1:
        raise AssayError(f"fit_snapshots got members={members}; it wants at least 1.")
    if epochs < members:
        raise AssayError(
            f"{epochs} epochs have no room for {members} cycles; train for at least {members}, or take fewer snapshots."
        )
    net = anew(model, rng)
    snapshots: list[nn.Module] = []
    for cycle in range(members):
        fit(
            net,
            data,
            epochs=epochs // members + (cycle < epochs % members),
            lr=lr,
            rng=rng,
            batch=batch,
            momentum=momentum,
            weight_decay=weight_decay,
            optimiser=optimiser,
            loss=loss,
            augment=augment,
            on_epoch=on_epoch,
            device=device,
        )
        snapshots.append(copy.deepcopy(net))
    return snapshots
