r"""A trainer of translators that know how sure they are: nets of one recipe, each from its own random start.

    mean(x) = (1/M) sum_m f_m(x),    spread(x) = standard deviation of f_1(x) .. f_M(x), pixel by pixel

Each member lowers the mean absolute error with AdamW (beta_1 = 0.5) at a rate that stays for the first half of its
steps and falls to 0 in a straight line after; images are turned over and round, input and target alike.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021, sec. 6, with the settings of its public code
    (xuanqing94/BNNBench): L1, AdamW, betas (0.5, 0.999), constant and then linearly falling. What it calls Bayesian is
    an anchor term whose weight is 0, so that it is a plain ensemble (Lakshminarayanan et al., NeurIPS 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss, mse_loss

from assay.errors import AssayError
from assay.methods.train.fit import Loss, Rows, fit, reset
from assay.nn.translator import Translator

Distance = Literal["l1", "l2"]
DISTANCES: dict[Distance, Loss] = {"l1": l1_loss, "l2": mse_loss}
BETA = 0.5  # Adam's beta_1
LOOKED_AT = 64  # targets whose mean a net begins with


class Taught(NamedTuple):
    net: nn.Module
    losses: tuple[float, ...]  # the mean of each epoch


def fit_translators(
    model: Translator,
    data: Rows,
    *,
    members: int,
    epochs: int,
    lr: float,
    seed: int,
    batch: int = 8,
    weight_decay: float = 1e-5,
    distance: Distance = "l1",
    turned: bool = True,
    on_epoch: Callable[[int, int, float], None] = lambda member, epoch, loss: None,
    device: torch.device | str = "cpu",
    keep: Path | None = None,
    keep_key: str = "",
) -> list[Taught]:
    """`members` trained nets like `model`, which stays as it was; member k is the same whatever their number.

    After each epoch: `on_epoch(member, epochs done, mean loss)`, members from 0. `keep` and `keep_key` are `fit`'s: a
    training that was stopped goes on where it was, member by member.
    """
    if members < 1:
        raise AssayError(f"fit_translators got members={members}; it wants at least 1.")
    if distance not in get_args(Distance):
        raise AssayError(f"There is no distance {distance!r}; choose {' or '.join(get_args(Distance))}.")
    first = torch.as_tensor(data.take(np.arange(min(LOOKED_AT, len(data))))[1])
    taught = []
    for member in range(members):
        rng = torch.Generator().manual_seed((seed << 8) + member)
        net = reset(model, rng)
        assert isinstance(net, Translator)
        net.begin(first)
        curve = fit(
            net, data, epochs=epochs, lr=lr, rng=rng, batch=batch, momentum=BETA, weight_decay=weight_decay,
            optimiser="adamw", schedule="late-fall", loss=DISTANCES[distance], augment=turned_over if turned else None,
            on_epoch=lambda epoch, mean, member=member: on_epoch(member, epoch, mean),  # type: ignore[misc]
            device=device, keep=keep, keep_key=f"{keep_key} member {member} {distance} {turned}" if keep else "",
        )  # fmt: skip
        taught.append(Taught(net.eval(), curve.epochs))
    return taught


def turned_over(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n c h w, n k h w
    """Each image mirrored or not in either direction and, where it is square, along its diagonal; its target alike."""
    square = x.shape[-1] == x.shape[-2]
    chosen = torch.rand(3, len(x), 1, 1, 1, generator=rng, device=rng.device).to(x.device) < 0.5
    for side, flip in zip((-1, -2), chosen, strict=False):
        x, y = (torch.where(flip, image.flip(side), image) for image in (x, y))
    if square:
        x, y = (torch.where(chosen[2], image.transpose(-1, -2), image) for image in (x, y))
    return x, y
