"""A residual network on CIFAR-10 that studies make smaller: its training, and what is asked of it before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Held
from assay.claims import _networks
from assay.claims import _over_seeds as over
from assay.claims import liu2021_ensembles as recipe
from assay.data.whole import Whole
from assay.finding import Measure
from assay.methods.train.recorded import fit_recorded, generator
from assay.methods.train.well_trained import Half, moved

BATCH, WEIGHT_DECAY = 256, 5e-4
SEVERITY = 3
RADIUS, STEPS = 1 / 255, 10  # of the attack; a network that nobody hardened holds at no larger one
Array = NDArray[np.float64]


def images(device: str) -> dict[str, Whole]:
    return _networks.images("CIFAR-10", device)


def per_epoch(device: str) -> int:
    """Steps of an epoch of `train`."""
    return max(1, len(images(device)["train"]) // BATCH)


def train(
    net: nn.Module,
    device: str,
    *,
    epochs: int,
    lr: float,
    seed: int,
    before: Callable[[], object] = lambda: None,
    beside: Callable[[], Tensor] | None = None,
    after: Callable[[], object] = lambda: None,
    on_epoch: Callable[[int], None] | None = None,
) -> None:
    """In place, one cycle of SGD on images that are moved and mirrored, in bf16 on a GPU; recorded there.

    Each step: `before`, the loss and `beside`, `after`, the update; none of these may ask the host.
    """
    data, half = images(device)["train"], Half(net)
    for p in net.parameters():
        if p.dim() == 4:
            p.data = p.data.to(memory_format=torch.channels_last)

    def cost(rows: Tensor) -> Tensor:
        before()
        x, y = moved(*data.rows(rows), generator(device))
        value = F.cross_entropy(half(x), y)
        if beside is not None:
            value = value + beside()
        after()
        return value

    fit_recorded(
        half, [p for p in net.parameters() if p.requires_grad], cost, len(data), epochs=epochs, batch=BATCH, lr=lr,
        seed=seed, device=device, weight_decay=WEIGHT_DECAY, on_epoch=on_epoch,
    )  # fmt: skip


def base(seed: int, device: str) -> nn.Module:
    """The network that is made smaller, in eval mode."""
    return _networks.network("CIFAR-10", _networks.resnet18, seed, device)


def wholes(seeds: Sequence[int], device: str) -> list[Array]:
    """Whether each test image is right, of the networks before they are made smaller."""
    return [right(base(seed, device), device) for seed in seeds]


@torch.no_grad()
def right(net: nn.Module, device: str) -> Array:  # -> n
    """Whether each test image is."""
    test = images(device)["test"]
    said = torch.cat([net(part).argmax(1) for part in torch.split(test.x, 1000)])
    found: Array = (said == test.y).double().cpu().numpy()
    return found


class Asked(NamedTuple):
    """What a network answers to some test images."""

    clean: recipe._Seen
    corrupted: Array  # n: the share of the corruptions under which it is right
    attacked: Array  # n: whether it is right clean and under attack


def ask(net: nn.Module, count: int, device: str) -> Asked:
    """Calibration on all test images; every corruption at a middle severity, and PGD, on the first `count`."""
    from assay.data.corruptions import CORRUPTIONS, corrupt
    from assay.methods.attack.pgd import pgd
    from assay.methods.uncertainty.calibration import calibration_error, equal_bins

    test = images(device)["test"]
    net = net.eval().requires_grad_(False)
    with torch.no_grad():
        said = torch.cat([net(part).log_softmax(1) for part in torch.split(test.x, 1000)]).double().cpu().numpy()
    y = test.y.cpu().numpy()
    sure, hit = np.exp(said.max(1)).clip(max=1.0), said.argmax(1) == y
    gap = np.where(np.arange(recipe.BINS)[:, None] == equal_bins(sure, recipe.BINS), hit - sure, 0.0)
    floor = calibration_error(sure, hit, bins=recipe.BINS, draws=recipe.FLOOR_DRAWS).floor
    x, label = test.x[:count], test.y[:count]
    rng = torch.Generator(device).manual_seed(0)
    spoilt = [net(corrupt(x, name, SEVERITY, rng=rng)).argmax(1) == label for name in CORRUPTIONS]
    worst = pgd(net, x, label, radius=RADIUS, steps=STEPS, rng=torch.Generator(device).manual_seed(0)).x
    held = (net(x).argmax(1) == label) & (net(worst).argmax(1) == label)
    return Asked(
        recipe._Seen(hit.astype(np.float64)[None], recipe._surprise(said, y)[None], gap, floor),
        torch.stack(spoilt).double().mean(0).cpu().numpy(),
        held.double().cpu().numpy(),
    )


class Kept(NamedTuple):
    """What became of trust, from before to after: above 0 is better, with each seed's own."""

    calibration: over.Gap
    shift: over.Gap
    attack: over.Gap

    @property
    def measures(self) -> tuple[Measure, ...]:
        return tuple(gap.measure for gap in self)

    @property
    def told(self) -> str:
        return (
            f"ECE {100 * -(self.calibration.measure.value or 0):+.1f}, accuracy under corruptions "
            f"{over.points(self.shift)}, under attack {over.points(self.attack)} points"
        )


def kept(what: str, before: Sequence[Asked], after: Sequence[Asked]) -> Kept:
    pairs = list(zip(before, after, strict=True))
    return Kept(
        recipe._ece_gap(f"ECE before less that {what}", [((1, a.clean), (-1, b.clean)) for a, b in pairs]),
        over.gap(
            f"accuracy under corruptions {what} less that before", [b.corrupted for _, b in pairs],
            [a.corrupted for a, _ in pairs],
        ),
        over.gap(
            f"accuracy under attack {what} less that before", [b.attacked for _, b in pairs],
            [a.attacked for a, _ in pairs],
        ),
    )  # fmt: skip


def same(near: float, *gaps: over.Gap) -> Held:
    """holds: every interval, and every seed, lies within `near` of 0. fails: one interval, with its seeds, beyond."""
    if all(
        -near < (gap.measure.low or 0.0) and (gap.measure.high or 0.0) < near and (np.abs(gap.seeds) < near).all()
        for gap in gaps
    ):
        return "holds"
    beyond = [
        ((gap.measure.low or 0.0) > near and (gap.seeds > near).all())
        or ((gap.measure.high or 0.0) < -near and (gap.seeds < -near).all())
        for gap in gaps
    ]
    return "fails" if any(beyond) else "cannot tell"


def no_worse(gaps: Kept) -> Held:
    """fails: one of the three is clearly worse; holds: none is worse by a point, clearly."""
    if any((gap.measure.high or 0.0) < 0 and (gap.seeds < 0).all() for gap in gaps):
        return "fails"
    return "holds" if all((gap.measure.low or 0.0) > -0.01 for gap in gaps) else "cannot tell"
