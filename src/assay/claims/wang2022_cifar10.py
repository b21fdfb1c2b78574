"""Wang & Loog 2022: softRmax on CIFAR-10, with networks that are as accurate as those in print."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from assay.claim import Claim, Evidence, Gate, Published
from assay.claims import _over_seeds as over
from assay.claims import wang2022 as digits
from assay.claims._kept import ROOMS, kept
from assay.claims._networks import HELD_OUT, images, started
from assay.claims.wang2022 import HEADS, Array, Head
from assay.data.whole import Whole
from assay.methods.train.well_trained import Half

if TYPE_CHECKING:
    from assay.run import Run

SEEDS, BATCH, LR, WEIGHT_DECAY, WIDTH = 5, 256, 5e-3, 5e-6, 64  # but for the seeds as printed
MOST = 40  # epochs
CLEAN: dict[Head, float] = {"softmax": 0.8031, "softRmax": 0.8028}  # as printed
NEAR = 0.02  # of accuracy


def _vgg16() -> nn.Module:
    from assay.nn.vgg import Vgg16

    return Vgg16(width=WIDTH)


@cache  # both claims are about the same networks
def _trained(head: Head, seed: int, device: str) -> nn.Module:
    """VGG16, from the start and in the order of batches that the seed names; gives z."""
    data = images("CIFAR-10", device)["train"]
    held = min(HELD_OUT, len(data) // 3)
    learn, watch = (Whole(data.x[rows], data.y[rows]) for rows in (slice(held, None), slice(held)))
    net = started(_vgg16, seed).to(device)
    told = (head, seed, BATCH, LR, WEIGHT_DECAY, WIDTH, MOST)
    weights = kept(
        lambda: _until_printed(net, head, learn, watch, seed, device).state_dict(), __name__, told, device,
        (learn, watch), ("claims", *ROOMS),
    )  # fmt: skip
    net.load_state_dict(weights)
    return net.eval().requires_grad_(False)


def _until_printed(net: nn.Module, head: Head, learn: Whole, watch: Whole, seed: int, device: str) -> nn.Module:
    """Trained until as many of the held-out images are right as print has of the test images."""
    from assay.methods.train.fit import fit

    rng = torch.Generator(device).manual_seed(seed)
    for _ in range(MOST):
        fit(
            digits._headed(Half(net), head), learn, epochs=1, lr=LR, batch=BATCH, weight_decay=WEIGHT_DECAY,
            schedule="constant", device=device, rng=rng,
        )  # fmt: skip
        if float(digits._hits(net.eval(), watch).mean()) >= CLEAN[head]:
            break
    return net


def _seen(run: Run, look: digits.Look) -> dict[Head, Array]:
    """What `look` sees in each network: head -> seeds numbers images."""
    with run.progress(f"training {2 * SEEDS} networks", 2 * SEEDS) as tick:

        def one(head: Head, seed: int) -> Array:
            net = _trained(head, seed, run.device)
            tick(1)
            return look(net, head, images("CIFAR-10", run.device), seed)

        return {head: np.stack([one(head, seed) for seed in range(run.seed, run.seed + SEEDS)]) for head in HEADS}


def _gates(seen: dict[Head, Array]) -> tuple[Gate, ...]:
    return tuple(
        over.gate(f"The clean accuracy with {head}", list(seen[head][:, 0]), printed, printed - NEAR, printed + NEAR)
        for head, printed in CLEAN.items()
    )


def defends(run: Run) -> Evidence:
    seen = _seen(run, digits._as_printed)
    return digits.defence(seen, _gates(seen))


def own_loss_tells(run: Run) -> Evidence:
    return digits.own_loss(_seen(run, digits._by_loss), _gates(_seen(run, digits._as_printed)))


TRAINED = (
    f"VGG16 with batch normalisation on CIFAR-10 less {HELD_OUT:,} held-out training images, SGD at {LR:g} in batches "
    f"of {BATCH}, no augmentation, as printed, until the held-out accuracy is print's (its epochs are not printed; "
    f"{MOST} at most), either head, {SEEDS} paired seeds; intervals over seeds and images, and every seed must agree; "
    f"`cannot tell` unless the clean accuracies are within {100 * NEAR:g} points of print's (80.31 and 80.28 %) in "
    f"every seed, on the first {digits.ATTACKED:,} test images, which are attacked"
)
TABLE_ONE = (
    ("clean", 80.31, 80.28),
    ("FGSM 0.1", 17.62, 49.93),
    ("FGSM 0.3", 13.95, 41.03),
    ("BIM 0.1", 10.39, 44.25),
    ("BIM 0.3", 4.83, 18.11),
)

SHELVED = (
    Claim(
        name="defence",
        source=digits.SOURCE,
        says="On CIFAR-10 softRmax in place of softmax makes a network much more robust to FGSM and BIM.",
        published=tuple(
            Published(f"{what}, {head}", digits._share(value), f"table 5.1, CIFAR-10, {what}", "%")
            for what, *values in TABLE_ONE
            for head, value in zip(HEADS, values, strict=True)
        ),
        here=f"{TRAINED}; BIM of {digits.BIM_STEPS} steps of radius/{digits.BIM_STEPS}, clipped to [0, 1]",
        minutes=600,
        test=defends,
        seeds=SEEDS,
    ),
    Claim(
        name="own-loss",
        source=digits.SOURCE,
        says="On CIFAR-10 the robustness of softRmax under attacks on its own loss does not come from gradient "
        "obfuscation.",
        published=tuple(
            Published(
                f"own loss, {what.split()[1]}, {head}",
                digits._share(value),
                f"table 5.1, CIFAR-10, {what}, 10 steps",
                "%",
            )
            for what, *values in TABLE_ONE[3:]
            for head, value in zip(HEADS, values, strict=True)
        ),
        here=f"{TRAINED}; BIM of {digits.STEPS} steps of radius/{digits.STEPS}, on the network's own cross-entropy and "
        f"on the margin of z, clipped to [0, 1]; holds if at {digits.RADII[-1]:g} the margin leaves more than "
        f"{digits.KEPT:g} times what the own loss leaves, else `cannot tell`, for how much print does not say",
        minutes=700,
        test=own_loss_tells,
        seeds=SEEDS,
    ),
)
