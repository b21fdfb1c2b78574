"""Qiu et al. 2021: filters that fade whichever they are, noise in their place, and what fading is worth."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.claims import _smaller as smaller
from assay.claims import liu2021_ensembles as recipe
from assay.claims._networks import TRAINED
from assay.claims._smaller import base, images
from assay.finding import Measure, bootstrap

if TYPE_CHECKING:
    from assay.run import Run

__all__ = ["SHELVED", "base", "images"]

SOURCE = (
    "Qiu, Gu & Zhang, 'BFRIFP: Brain Functional Reorganization Inspired Filter Pruning', ICANN 2021, "
    "doi:10.1007/978-3-030-86380-7"
)
Arm = Literal["last", "lowest-l1", "highest-l1", "quiet", "unfrozen", "at once", "scratch"]
CHOICES: tuple[Arm, ...] = ("last", "lowest-l1", "highest-l1")
SEEDS, AGAIN = 3, 24
LR = 0.02  # print's 0.01 of batches of 128, for twice as many
SHARE = 0.5  # of the filters of each layer
LAMBDA_E = 2.0  # print's; fades over the first 4.8 epochs
LEAST, LEAST_FADED = 0.92, 0.902  # of accuracy: what the whole network must reach, and the one whose filters faded
NEAR = 0.005  # of accuracy: what counts as no difference
TRUSTED = 1000  # test images that are corrupted and attacked
Array = NDArray[np.float64]


class _Small(NamedTuple):
    net: nn.Module
    right: Array  # n
    nearer: Array  # layers: distance of kept and gone filters at the end, of that at the start
    facing: float  # norm of the weights that read what fades at the end of the fading, of that at the start


@cache
def _small(arm: Arm, seed: int, device: str) -> _Small:
    """The network with half of its filters gone, after the same epochs in every arm."""
    from assay.methods.compress import fading as method
    from assay.methods.compress.surgery import cut, edges
    from assay.methods.train.fit import reset

    whole = copy.deepcopy(base(seed, device)).requires_grad_(True)
    x = images(device)["train"].x[:2]
    found = edges(whole, x)
    by: method.Choice = arm if arm == "lowest-l1" or arm == "highest-l1" else "last"
    gone = {edge.name: method.faded(method.strength(whole, edge), SHARE, by) for edge in found}
    keep = {name: ~each for name, each in gone.items()}
    begun, faces = copy.deepcopy(whole), [method.facing(whole, found, gone)]
    if arm in ("at once", "scratch"):
        net = cut(whole, found, keep)
        if arm == "scratch":
            net = reset(net, torch.Generator().manual_seed(seed))
        smaller.train(net, device, epochs=AGAIN, lr=LR, seed=seed)
        faces *= 2
    else:
        steps = smaller.per_epoch(device)
        fading = method.Fading(
            whole, method.plan(whole, found, gone, x), per_epoch=steps, pace=method.Pace(lambda_e=LAMBDA_E),
            fires=arm != "quiet", freezes=arm != "unfrozen",
        )  # fmt: skip
        dead = fading.pace.length(fading.layers)

        def on_epoch(epoch: int) -> None:
            if len(faces) == 1 and epoch >= dead:
                faces.append(method.facing(whole, found, gone))

        smaller.train(
            fading, device, epochs=AGAIN, lr=LR, seed=seed, before=fading.hold, after=lambda: fading.steps.add_(1),
            on_epoch=on_epoch,
        )  # fmt: skip
        net = cut(fading.faded_out(), found, keep)
    net = net.eval()
    return _Small(
        net, smaller.right(net, device), np.array(method.nearer(begun, net, found, gone)), faces[-1] / faces[0]
    )


@cache
def _asked(arm: Arm | Literal["whole"], seed: int, device: str) -> smaller.Asked:
    net = base(seed, device) if arm == "whole" else _small(arm, seed, device).net
    return smaller.ask(copy.deepcopy(net), TRUSTED, device)


def _all(arms: Sequence[Arm], run: Run) -> dict[Arm, list[_Small]]:
    with run.progress("training networks whose filters fade", (1 + len(arms)) * SEEDS) as tick:
        for seed in range(run.seed, run.seed + SEEDS):
            base(seed, run.device)
            tick(1)
        found: dict[Arm, list[_Small]] = {}
        for arm in arms:
            for seed in range(run.seed, run.seed + SEEDS):
                found.setdefault(arm, []).append(_small(arm, seed, run.device))
                tick(1)
    return found


def _whole(run: Run) -> list[Array]:
    return smaller.wholes(range(run.seed, run.seed + SEEDS), run.device)


def _gates(whole: Sequence[Array], faded: Sequence[_Small]) -> tuple[Gate, Gate]:
    """What is said of fading supposes that it went as well as in print, in fewer epochs."""
    return (
        over.gate("The accuracy of the whole network", whole, 0.9326, LEAST),
        over.gate("The accuracy after fading", [s.right for s in faded], 0.9119, LEAST_FADED),
    )


def _gap(name: str, ours: Sequence[_Small], others: Sequence[_Small]) -> over.Gap:
    return over.gap(name, [s.right for s in ours], [s.right for s in others])


def _accuracies(found: Mapping[Arm, Sequence[_Small]], whole: Sequence[Array]) -> list[Measure]:
    return [
        over.accuracy("accuracy, whole", whole),
        *(over.accuracy(f"accuracy, {arm}", [s.right for s in each]) for arm, each in found.items()),
    ]


def choice(run: Run) -> Evidence:
    found, whole = _all(CHOICES, run), _whole(run)
    pairs = tuple(itertools.combinations(CHOICES, 2))
    gaps = [_gap(f"accuracy, {a} less {b}", found[a], found[b]) for a, b in pairs]
    told = ", ".join(f"{a} less {b} {over.points(gap)}" for (a, b), gap in zip(pairs, gaps, strict=True))
    return over.evidence(
        smaller.same(NEAR, *gaps),
        f"Points of accuracy by which filters fade: {told}.",
        _gates(whole, found["last"]),
        *_accuracies(found, whole),
        *(gap.measure for gap in gaps),
    )


def firing(run: Run) -> Evidence:
    found, whole = _all(("quiet", "last"), run), _whole(run)
    gap = _gap("accuracy, with random firing less without", found["last"], found["quiet"])
    return over.evidence(
        over.above(0.0, gap),
        f"Noise in the place of dead filters gives {over.points(gap)} points of accuracy.",
        _gates(whole, found["last"]),
        *_accuracies(found, whole)[1:],
        *_accuracies(found, whole)[:1],
        gap.measure,
    )


def reorganises(run: Run) -> Evidence:
    arms: tuple[Arm, ...] = ("last", "at once", "scratch", "unfrozen")
    found, whole = _all(arms, run), _whole(run)
    gaps = {arm: _gap(f"accuracy, faded less {arm}", found["last"], found[arm]) for arm in arms[1:]}
    faces = {arm: float(np.mean([s.facing for s in found[arm]])) for arm in (arms[0], arms[-1])}
    return over.evidence(
        over.above(0.0, gaps["at once"], gaps["scratch"]),
        f"Fading is {over.points(gaps['at once'])} points of accuracy ahead of removing the same filters at once "
        f"before the same epochs, {over.points(gaps['scratch'])} ahead of the small network from scratch in as "
        f"many, and {over.points(gaps['unfrozen'])} ahead of fading filters that go on learning. When all are "
        f"dead, weights that read what fades have {faces['last']:.2f} of their norm where that is frozen, "
        f"{faces['unfrozen']:.2f} where it is not.",
        _gates(whole, found["last"]),
        *_accuracies(found, whole),
        *(gap.measure for gap in gaps.values()),
        *(
            Measure(name=f"norm of what reads the faded, of the start, {arm}", value=value, better="neither", n=SEEDS)
            for arm, value in faces.items()
        ),
    )


def transfer(run: Run) -> Evidence:
    found, whole = _all(("last", "at once"), run), _whole(run)
    # of a layer that training left at zero there is no distance: seeds may have other layers, the arms of one may not
    faded, once = ([s.nearer for s in each] for each in found.values())
    each = [b - a for a, b in zip(faded, once, strict=True)]  # seeds: layers
    joined = np.concatenate(each)
    value = float(joined.mean())
    low, high = bootstrap(lambda counts: counts @ joined / len(joined), len(joined), seed=0)
    gap = over.Gap(
        Measure(
            name="distance kept of gone filters, removed at once less faded", value=value, low=min(low, value),
            high=max(high, value), better="higher", n=len(joined),
        ),
        np.array([one.mean() for one in each]),
    )  # fmt: skip
    falls = all(one.mean() < 1 for one in faded)
    told = {"faded": np.concatenate(faded), "at once": np.concatenate(once)}
    held: Held = over.above(0.0, gap) if falls else "fails"
    return over.evidence(
        held,
        f"From start to end the distance of kept and gone filters comes to {told['faded'].mean():.3f} of itself where "
        f"they fade, and to {told['at once'].mean():.3f} where the gone ones were removed before and could teach "
        "nothing; what the two have in common is that kept filters change size.",
        _gates(whole, found["last"]),
        *(
            Measure(name=f"W2 of kept and gone filters, of the start, {arm}", value=float(of.mean()), better="lower",
                    n=of.size)
            for arm, of in told.items()
        ),
        gap.measure,
    )  # fmt: skip


def trust(run: Run) -> Evidence:
    found, whole = _all(("last", "at once"), run), _whole(run)
    seeds = range(run.seed, run.seed + SEEDS)
    before = [_asked("whole", seed, run.device) for seed in seeds]
    after = {arm: [_asked(arm, seed, run.device) for seed in seeds] for arm in found}
    faded = smaller.kept("after fading", before, after["last"])
    once = smaller.kept("after removal at once", before, after["at once"])
    points = {
        arm: over.gap(f"accuracy, {arm} less whole", [s.right for s in each], whole) for arm, each in found.items()
    }
    return over.evidence(
        smaller.no_worse(faded),
        f"With half of its filters faded: accuracy {over.points(points['last'])} points, {faded.told}. Removed at "
        f"once: accuracy {over.points(points['at once'])} points, {once.told}.",
        _gates(whole, found["last"]),
        *(gap.measure for gap in points.values()),
        *faded.measures,
        *once.measures,
    )


HERE = (
    f"ResNet-18 (printed: ResNet-56) on CIFAR-10, {TRAINED}; then {AGAIN} epochs (printed: 100) at a rate of up to "
    f"{LR:g} in batches of {smaller.BATCH} (printed: 0.01 and 128) in which {100 * SHARE:.0f} % of the "
    f"filters of each layer fade, residual streams with them, lambda_e = {LAMBDA_E:g} and "
    f"lambda_l = 5 as printed; {SEEDS} seeds, the same order of images in all arms; `cannot tell` unless the whole "
    f"network has an accuracy of at least {100 * LEAST:g} % in every seed (printed: 93.26) and the one whose "
    f"last filters faded of {100 * LEAST_FADED:g} % (printed: 91.19)"
)
TABLE_3 = "table 3, ResNet-56 on CIFAR-10"
SHELVED = (
    Claim(
        name="choice-does-not-matter",
        source=SOURCE,
        says="Which filters fade does not matter: any are as good as those with the smallest or the largest weights.",
        published=(
            Published("accuracy, whole", 0.9326, TABLE_3, "%"),
            Published("accuracy, last", 0.9119, TABLE_3, "%"),
        ),
        here=f"{HERE}; print has the last filters alone; less than {100 * NEAR:g} points of accuracy between any two "
        "count as the same",
        minutes=600,
        test=choice,
        seeds=SEEDS,
    ),
    Claim(
        name="random-firing-helps",
        source=SOURCE,
        says="Noise in the place of filters that have faded makes what is left of the network more accurate.",
        published=(
            Published("accuracy, quiet", 0.9111, f"{TABLE_3}, BFRIFP", "%"),
            Published("accuracy, last", 0.9119, f"{TABLE_3}, BFRIFP+RFPN", "%"),
        ),
        here=HERE,
        minutes=500,
        test=firing,
        seeds=SEEDS,
    ),
    Claim(
        name="fading-beats-removal",
        source=SOURCE,
        says="Filters that fade, frozen, leave a more accurate network than the same filters removed at once before "
        "the same training, or than the small network trained from scratch.",
        published=(
            Published("accuracy, whole", 0.9326, TABLE_3, "%"),
            Published("accuracy, last", 0.9119, TABLE_3, "%"),
        ),
        here=f"{HERE}; print has no such baseline, but networks pruned by others (HRank 90.72 %, random 90.55 %)",
        minutes=700,
        test=reorganises,
        seeds=SEEDS,
    ),
    Claim(
        name="kept-filters-come-nearer",
        source=SOURCE,
        says="While filters fade, the kept ones move towards them: what the faded knew is handed over.",
        published=(),
        here=f"{HERE}; 2-Wasserstein distance over the inputs that are left, the mean over all convolutions (printed: "
        "fig. 4, one layer, no numbers); holds if it falls, and further than where the filters were removed before",
        minutes=500,
        test=transfer,
        seeds=SEEDS,
    ),
    Claim(
        name="trust",
        source=SOURCE,
        says="A network of which half the filters faded is as well calibrated, as steady under corruptions and as hard "
        "to attack as it was.",
        published=(),
        here=f"{HERE}; print asks for accuracy alone; ECE of {recipe.BINS} bins on all test images; every corruption "
        f"at severity {smaller.SEVERITY} and PGD of {smaller.STEPS} steps within 1/255 on {TRUSTED:,} of them; fails "
        "if one of the three is clearly worse, holds if none is by a point",
        minutes=500,
        test=trust,
        seeds=SEEDS,
        ours=True,
    ),
)
