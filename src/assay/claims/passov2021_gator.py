"""Passov et al. 2021: gates that learn which channels a price is not worth paying for, by FLOPs, memory or seconds."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.claims import _smaller as smaller
from assay.claims import liu2021_ensembles as recipe
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._networks import TRAINED
from assay.claims._smaller import base, images
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.methods.compress.gates import Gates
    from assay.run import Run

__all__ = ["SHELVED", "base", "images"]

SOURCE = (
    "Passov, David & Netanyahu, 'Gator: Customizable Channel Pruning of Neural Networks with Gating', ICANN 2021, "
    "doi:10.1007/978-3-030-86380-7"
)
Priced = Literal["flops", "memory", "latency"]
SEEDS = 3
ALPHA = 1.0  # print's for FLOPs
GATING, AGAIN = 6, 4  # epochs with gates, and of what is left
LR = 0.05  # of both
FAST = 1 / 6  # of the steps with gates: after so many a gate that nobody needs is closed, were the rate always LR
LEAST = 0.92  # of accuracy: what the whole network must reach
NEAR = 0.01  # of accuracy: what counts as nearly equal
TIMED = 2048  # images of a batch: fewer pass a small network on a GPU in the time it takes to start it
TRUSTED = 1000  # test images that are corrupted and attacked
Array = NDArray[np.float64]


class Gated(nn.Module):
    """A network with gates on it, whose nudges are trained beside its weights."""

    def __init__(self, net: nn.Module, gates: Gates) -> None:
        super().__init__()
        self.net, self.nudge = net, gates.nudge

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def gate(net: nn.Module, gates: Gates, device: str, *, epochs: int, lr: float, seed: int) -> None:
    """Train a network and the gates that are on it, in place."""
    smaller.train(
        Gated(net, gates), device, epochs=epochs, lr=lr, seed=seed, before=lambda: gates.nudged(lr),
        beside=lambda: gates.alpha * gates.cost(),
    )  # fmt: skip
    gates.nudged(lr)


def tuned(net: nn.Module, device: str, *, epochs: int, lr: float, seed: int) -> nn.Module:
    """A network that was cut, its normalisations measured anew and trained on; in eval mode."""
    from assay.methods.compress.gates import remeasure

    x = images(device)["train"].x
    remeasure(net, torch.split(x[: 20 * smaller.BATCH], smaller.BATCH))
    weights = list(net.parameters())
    slopes = torch.autograd.grad(net(x[:2]).sum(), weights, allow_unused=True)
    for weight, slope in zip(weights, slopes, strict=True):
        weight.requires_grad_(slope is not None)  # what is left of a block that is gone takes none
    smaller.train(net, device, epochs=epochs, lr=lr, seed=seed)
    return net.eval()


class _Small(NamedTuple):
    net: nn.Module
    right: Array  # n
    left: Mapping[Priced, float]  # of FLOPs, memory and seconds


@cache
def _small(priced: Priced, seed: int, device: str) -> _Small:
    """What is left of the network at the same alpha, whatever is priced."""
    from assay.methods.compress.bill import bill, seconds
    from assay.methods.compress.gates import Gates, gate_lr, may_vanish
    from assay.methods.compress.price import cost
    from assay.methods.compress.surgery import cut, edges

    whole = base(seed, device)
    net, test = copy.deepcopy(whole).requires_grad_(True), images(device)["test"].x
    found, x = edges(net, test[:2]), test[:TIMED]
    counted = seconds(net, found, x, device) if priced == "latency" else bill(net, found, test[:1], priced)
    steps = max(1, round(FAST * GATING * smaller.per_epoch(device)))
    gates = Gates(
        found, counted.to(device), alpha=ALPHA, lr=gate_lr(steps, ALPHA), may_vanish=may_vanish(net, found, test[:2])
    )
    with gates.on(net):
        gate(net, gates, device, epochs=GATING, lr=LR, seed=seed)
    gates.round_off()
    net = tuned(cut(net, found, gates.keep()), device, epochs=AGAIN, lr=LR, seed=seed)
    kinds: tuple[Priced, ...] = ("flops", "memory", "latency")
    left = {kind: cost(kind, net, x, device) / cost(kind, whole, x, device) for kind in kinds}
    return _Small(net, smaller.right(net, device), left)


@cache
def _asked(priced: Priced | None, seed: int, device: str) -> smaller.Asked:
    net = base(seed, device) if priced is None else _small(priced, seed, device).net
    return smaller.ask(copy.deepcopy(net), TRUSTED, device)


def _all(prices: Sequence[Priced], run: Run) -> dict[Priced, list[_Small]]:
    found: dict[Priced, list[_Small]] = {}
    with run.progress("training networks with gates", (1 + len(prices)) * SEEDS) as tick:
        for seed in range(run.seed, run.seed + SEEDS):
            base(seed, run.device)
            tick(1)
        for priced in prices:
            for seed in range(run.seed, run.seed + SEEDS):
                found.setdefault(priced, []).append(_small(priced, seed, run.device))
                tick(1)
    return found


def _whole(run: Run) -> list[Array]:
    return smaller.wholes(range(run.seed, run.seed + SEEDS), run.device)


def _gate(whole: Sequence[Array]) -> Gate:
    return over.gate("The accuracy of the whole network", whole, 0.9363, LEAST)


WORDS: dict[Priced, str] = {"flops": "FLOPs", "memory": "memory", "latency": "latency"}


def _of_seeds(name: str, each: Sequence[float], unit: str = "%") -> over.Gap:
    values = np.array(each)
    return over.Gap(Measure.mean(name, values, better="higher", seed=0, unit=unit), values)


def _removed(what: Priced, priced: Priced, found: Mapping[Priced, Sequence[_Small]]) -> Measure:
    return _of_seeds(
        f"{WORDS[what]} removed, {WORDS[priced]} priced", [1 - each.left[what] for each in found[priced]]
    ).measure  # fmt: skip


def _ahead(what: Priced, other: Priced, found: Mapping[Priced, Sequence[_Small]]) -> over.Gap:
    """How much more of something goes where it is what is priced."""
    return _of_seeds(
        f"{WORDS[what]} left, {WORDS[other]} priced less {WORDS[what]} priced",
        [b.left[what] - a.left[what] for a, b in zip(found[what], found[other], strict=True)],
    )  # fmt: skip


def _equal(found: Mapping[Priced, Sequence[_Small]], held: Held, says: str) -> tuple[Held, str, over.Gap]:
    """Only of networks that are nearly as accurate can it be said which is smaller."""
    one, other = found
    gap = over.gap(
        f"accuracy, {WORDS[one]} priced less {WORDS[other]} priced",
        [each.right for each in found[one]],
        [each.right for each in found[other]],
    )
    says = f"{says} {WORDS[one]} priced are {over.points(gap)} points of accuracy ahead of {WORDS[other]} priced."
    near = smaller.same(NEAR, gap)
    if near == "holds":
        return held, says, gap
    why = "That is not nearly equal." if near == "fails" else "Whether that is nearly equal cannot be told."
    return "cannot tell", f"{says} {why}", gap


def _accuracies(found: Mapping[Priced, Sequence[_Small]], whole: Sequence[Array]) -> list[Measure]:
    return [
        over.accuracy("accuracy, whole", whole),
        *(over.accuracy(f"accuracy, {WORDS[p]} priced", [s.right for s in each]) for p, each in found.items()),
    ]


def _percent(measure: Measure) -> str:
    return f"{100 * (measure.value or 0.0):.0f} %"


def own_best(run: Run) -> Evidence:
    found, whole = _all(("flops", "memory"), run), _whole(run)
    gaps = (_ahead("flops", "memory", found), _ahead("memory", "flops", found))
    removed = [_removed(what, priced, found) for priced in found for what in found]
    held, says, points = _equal(
        found,
        over.above(0.0, *gaps),
        f"At the same alpha, of FLOPs {_percent(removed[0])} go where they are priced and {_percent(removed[2])} where "
        f"memory is, of memory {_percent(removed[3])} where it is priced and {_percent(removed[1])} where FLOPs are.",
    )
    return over.evidence(
        held,
        says,
        (_gate(whole),),
        *removed,
        *_accuracies(found, whole),
        points.measure,
        *(gap.measure for gap in gaps),
    )


def memory_stays(run: Run) -> Evidence:
    found, whole = _all(("flops", "memory"), run), _whole(run)
    removed = [_removed(what, priced, found) for priced in found for what in found]
    by_flops = _of_seeds(
        "FLOPs removed less memory removed, FLOPs priced", [s.left["memory"] - s.left["flops"] for s in found["flops"]]
    )
    by_memory = _of_seeds(
        "memory removed less FLOPs removed, memory priced",
        [s.left["flops"] - s.left["memory"] for s in found["memory"]],
    )
    return over.evidence(
        over.above(0.0, by_flops, by_memory),
        f"Priced by FLOPs, {_percent(removed[0])} of FLOPs and {_percent(removed[1])} of memory go; priced by memory "
        f"{_percent(removed[2])} and {_percent(removed[3])}.",
        (_gate(whole),),
        *removed,
        by_flops.measure,
        by_memory.measure,
        *_accuracies(found, whole),
    )


def seconds_best(run: Run) -> Evidence:
    found, whole = _all(("latency", "flops"), run), _whole(run)
    faster = {
        p: _of_seeds(f"speed-up, {WORDS[p]} priced", [1 / s.left["latency"] for s in found[p]], "") for p in found
    }
    gap = _of_seeds(
        "speed-up, latency priced less FLOPs priced",
        [1 / a.left["latency"] - 1 / b.left["latency"] for a, b in zip(found["latency"], found["flops"], strict=True)],
        "",
    )
    more = _ahead("flops", "latency", found)
    removed = [_removed("flops", priced, found) for priced in found]
    held, says, points = _equal(
        found,
        over.above(0.0, gap, more),
        f"At the same alpha an answer to {TIMED:,} images is {faster['latency'].measure.value:.2f} times as fast where "
        f"seconds are priced and {faster['flops'].measure.value:.2f} times where FLOPs are; of FLOPs "
        f"{_percent(removed[0])} and {_percent(removed[1])} go.",
    )
    return elsewhere(
        held,
        says,
        (
            *(each.measure for each in faster.values()),
            *removed,
            *_accuracies(found, whole),
            *(each.measure for each in (gap, more, points)),
        ),
        (_gate(whole),),
        SEEDS,
    )


def trust(run: Run) -> Evidence:
    prices: tuple[Priced, ...] = ("flops", "memory")
    found, whole = _all(prices, run), _whole(run)
    seeds = range(run.seed, run.seed + SEEDS)
    before = [_asked(None, seed, run.device) for seed in seeds]
    kept = {
        p: smaller.kept(f"after {WORDS[p]} priced", before, [_asked(p, seed, run.device) for seed in seeds])
        for p in prices
    }
    points = {
        p: over.gap(f"accuracy, {WORDS[p]} priced less whole", [s.right for s in found[p]], whole) for p in prices
    }
    verdicts = [smaller.no_worse(each) for each in kept.values()]
    held: Held = next((v for v in ("fails", "cannot tell") if v in verdicts), "holds")  # type: ignore[assignment]
    told = "; ".join(
        f"priced by {WORDS[p]}, with {100 * np.mean([s.left[p] for s in found[p]]):.0f} % of it left: accuracy "
        f"{over.points(points[p])} points, {kept[p].told}"
        for p in prices
    )
    return over.evidence(
        held,
        f"From the whole network: {told}.",
        (_gate(whole),),
        *(gap.measure for gap in points.values()),
        *(measure for each in kept.values() for measure in each.measures),
    )


HERE = (
    f"ResNet-18 (printed: ResNet-56) on CIFAR-10, {TRAINED}; then {GATING} epochs with gates (printed: 90) and "
    f"{AGAIN} without (printed: 30) at a rate of up to "
    f"{LR:g}, alpha = {ALPHA:g} whatever is priced; {SEEDS} seeds"
)
UNLESS = f"unless the whole network has an accuracy of at least {100 * LEAST:g} % in every seed (printed: 93.63)"
GATED = f"; `cannot tell` {UNLESS}"
EQUAL = f", and the two are clearly less than {100 * NEAR:g} point of accuracy apart"
TABLE_2, TABLE_4 = "table 2, ResNet-50 on ImageNet, alpha 0.5", "table 4, ResNet-56 on CIFAR-10"
PRINTED = (
    Published("FLOPs removed, FLOPs priced", 0.4339, f"{TABLE_4}, flops 1", "%"),
    Published("memory removed, FLOPs priced", 0.3350, f"{TABLE_4}, flops 1", "%"),
    Published("FLOPs removed, memory priced", 0.3321, f"{TABLE_4}, memory 0.25", "%"),
    Published("memory removed, memory priced", 0.4270, f"{TABLE_4}, memory 0.25", "%"),
)
SHELVED = (
    Claim(
        name="own-price-best",
        source=SOURCE,
        says="Gates that price FLOPs leave the fewest FLOPs, and gates that price memory the least memory, at nearly "
        "equal accuracy.",
        published=(
            *PRINTED,
            Published("accuracy, whole", 0.9363, TABLE_4, "%"),
            Published("accuracy, FLOPs priced", 0.9358, f"{TABLE_4}, flops 1", "%"),
            Published("accuracy, memory priced", 0.9366, f"{TABLE_4}, memory 0.25", "%"),
        ),
        here=f"{HERE}{GATED}{EQUAL}",
        minutes=600,
        test=own_best,
        seeds=SEEDS,
    ),
    Claim(
        name="memory-stays",
        source=SOURCE,
        says="Where FLOPs are priced much of them goes and less of memory, where memory is priced more of memory.",
        published=PRINTED,
        here=f"{HERE}{GATED}",
        minutes=600,
        test=memory_stays,
        seeds=SEEDS,
    ),
    Claim(
        name="seconds-are-not-flops",
        source=SOURCE,
        says="Gates that price seconds measured on the device make the network faster than gates that price FLOPs, "
        "which remove more of these, at nearly equal accuracy.",
        published=(
            Published("speed-up, latency priced", 1.647, TABLE_2),
            Published("speed-up, FLOPs priced", 1.442, TABLE_2),
            Published("FLOPs removed, latency priced", 0.4827, TABLE_2, "%"),
            Published("FLOPs removed, FLOPs priced", 0.4991, TABLE_2, "%"),
        ),
        here=f"{HERE}; seconds are those of {TIMED:,} images on this device (printed: 32 of 224 x 224 on a GTX 1080 "
        f"Ti); {RULE}; nor is anything told of these {UNLESS}{EQUAL}",
        minutes=600,
        test=seconds_best,
        seeds=SEEDS,
    ),
    Claim(
        name="trust",
        source=SOURCE,
        says="A network that gates made smaller is as well calibrated, as steady under corruptions and as hard to "
        "attack as it was.",
        published=(),
        here=f"{HERE}{GATED}; print asks for accuracy alone; ECE of {recipe.BINS} bins on all test images; every "
        f"corruption at severity {smaller.SEVERITY} and PGD of {smaller.STEPS} steps within 1/255 on {TRUSTED:,} of "
        "them; fails if one of the three is clearly worse, holds if none is by a point",
        minutes=600,
        test=trust,
        seeds=SEEDS,
        ours=True,
    ),
)
