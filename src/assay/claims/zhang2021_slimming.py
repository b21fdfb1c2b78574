"""Zhang et al. 2021: Pruned-YOLO's score, soft mask and falling price one by one, over rounds of removal."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from assay.claim import Claim, Evidence, Held
from assay.claims import _over_seeds as over
from assay.claims import _smaller as smaller
from assay.claims import liu2021_ensembles as recipe
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._networks import TRAINED
from assay.claims._smaller import base, images
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.methods.compress.slimming import Score, Slimming, SoftMask
    from assay.run import Run

__all__ = ["SHELVED", "base", "images"]

SOURCE = (
    "Zhang, Wang, Zhao & Su, 'Pruned-YOLO: Learning Efficient Object Detector Using Model Pruning', ICANN 2021, "
    "doi:10.1007/978-3-030-86380-7"
)
Arm = Literal["slimming", "+R", "+R+S", "+R+S+C"]
Size = Literal["channels", "parameters", "FLOPs"]
SIZES: tuple[Size, ...] = ("channels", "parameters", "FLOPs")
ARMS: tuple[Arm, ...] = ("slimming", "+R", "+R+S", "+R+S+C")
SEEDS = 3
ROUNDS, RATE, AGAIN, LR = 3, 0.4, 4, 0.1  # of each round: channels that go, epochs after, the rate
MOST = 1e-3  # of the price on scales
LEAST = 0.92  # of accuracy: what the whole network must reach
APART = 0.05  # of FLOPs and of parameters, by which two networks may differ that are said to be of one size
TRUSTED = 1000
Array = NDArray[np.float64]


class _Rounds(NamedTuple):
    """After each round."""

    right: list[Array]  # n each; the first before anything went
    nets: list[nn.Module]
    sizes: Mapping[Size, Sequence[int]]  # channels: of all layers that are ranked
    flat: dict[Score, float]  # of the first: spread over layers of a layer's mean score, of their mean
    near_zero: float  # the share of scales below 0.01, of the first

    def left(self, what: Size, at: int = -1) -> float:
        return self.sizes[what][at] / self.sizes[what][0]


def _how(arm: Arm) -> tuple[Score, float, SoftMask]:
    """The score, the end of the price, the soft mask."""
    return "gamma" if arm == "slimming" else "sum", 0.0 if "C" in arm else 1.0, "paper" if "S" in arm else "off"


def _priced(net: nn.Module, end: float, way: SoftMask, seed: int, device: str) -> Slimming:
    """Train it in place."""
    from assay.methods.compress.slimming import Slimming

    slim = Slimming(net, per_epoch=smaller.per_epoch(device), epochs=AGAIN, most=MOST, end=end, way=way)
    smaller.train(
        slim, device, epochs=AGAIN, lr=LR, seed=seed, beside=slim.penalty, after=lambda: slim.steps.add_(1),
        on_epoch=lambda epoch: slim.mask_between_epochs(),
    )  # fmt: skip
    return slim


@cache
def _rounds(arm: Arm, seed: int, device: str) -> _Rounds:
    """Trainings under a price with removals between, as many and as long in every arm."""
    from assay.methods.compress import slimming as method
    from assay.methods.compress.price import flops, parameters
    from assay.methods.compress.surgery import cut, edges

    score, end, way = _how(arm)
    net = copy.deepcopy(base(seed, device)).requires_grad_(True)
    x = images(device)["train"].x[:2]
    right, nets, channels, flat, small = [], [], [], {}, 0.0
    for done in range(ROUNDS + 1):
        slim = _priced(net, end, way, seed + 1000 * done, device)
        net = net.eval()
        nets.append(copy.deepcopy(net))
        right.append(smaller.right(net, device))
        found = edges(net, x)
        ranked = method.writers(net, found, x, score)
        channels.append(sum(len(w.worth) for some in ranked.values() for w in some))
        if done == 0:
            scores: tuple[Score, ...] = ("gamma", "sum", "mean")
            flat = {by: _spread([w.worth.mean().item() for some in method.writers(net, found, x, by).values()
                                 for w in some]) for by in scores}  # fmt: skip
            small = method.near_zero(slim.norms)
        if done < ROUNDS:
            gone = method.lowest(ranked, RATE)
            net = cut(net, found, {name: ~each for name, each in gone.items()})
    sizes: dict[Size, list[int]] = {
        "channels": channels,
        "parameters": [parameters(each) for each in nets],
        "FLOPs": [flops(each, x) for each in nets],
    }
    return _Rounds(right, nets, sizes, flat, small)


def _spread(means: Sequence[float]) -> float:
    return float(np.std(means) / np.mean(means))


@cache
def _asked(which: Literal["whole", "first", "last"], seed: int, device: str) -> smaller.Asked:
    """The network before, with a price on it and nothing gone, and after all rounds."""
    net = base(seed, device)
    if which != "whole":
        net = _rounds(ARMS[-1], seed, device).nets[0 if which == "first" else -1]
    return smaller.ask(copy.deepcopy(net), TRUSTED, device)


def _all(arms: Sequence[Arm], run: Run) -> dict[Arm, list[_Rounds]]:
    with run.progress("training networks whose scales are priced", (1 + len(arms)) * SEEDS) as tick:
        for seed in range(run.seed, run.seed + SEEDS):
            base(seed, run.device)
            tick(1)
        found: dict[Arm, list[_Rounds]] = {}
        for arm in arms:
            for seed in range(run.seed, run.seed + SEEDS):
                found.setdefault(arm, []).append(_rounds(arm, seed, run.device))
                tick(1)
    return found


def _judged(held: Held, says: str, run: Run, *measures: Measure) -> Evidence:
    """On other data than print's, and not even that where the whole network is weak."""
    whole = smaller.wholes(range(run.seed, run.seed + SEEDS), run.device)
    gate = over.gate("The accuracy of the whole network", whole, None, LEAST)
    return elsewhere(held, says, (over.accuracy("accuracy, whole", whole), *measures), (gate,), SEEDS)


def _gap(a: Arm, b: Arm, at: int, found: dict[Arm, list[_Rounds]]) -> over.Gap:
    return over.gap(
        f"accuracy, {a} less {b}, round {at}", [s.right[at] for s in found[a]], [s.right[at] for s in found[b]]
    )


def _rows(found: dict[Arm, list[_Rounds]]) -> list[Measure]:
    rows = []
    for arm, each in found.items():
        for at in range(ROUNDS + 1):
            rows.append(over.accuracy(f"accuracy, {arm}, round {at}", [s.right[at] for s in each]))
            for what in SIZES:
                share = float(np.mean([s.left(what, at) for s in each]))
                rows.append(Measure(name=f"{what}, {arm}, round {at}", value=share, better="lower", n=SEEDS, unit="%"))
    return rows


def _of_one_size(
    held: Held, says: str, pairs: Sequence[tuple[Arm, Arm]], rounds: Sequence[int], found: dict[Arm, list[_Rounds]]
) -> tuple[Held, str]:
    """Only of networks that cost the same can it be said which way to them is better."""
    apart = []
    for (a, b), at, what in itertools.product(pairs, rounds, SIZES[1:]):
        counts = [(s.sizes[what][at], t.sizes[what][at]) for s, t in zip(found[a], found[b], strict=True)]
        most = max(max(pair) / min(pair) - 1 for pair in counts)
        if most > APART:
            apart.append(f"{a} and {b} by {100 * most:.0f} % of {what} after round {at}")
    if not apart:
        return held, says
    return "cannot tell", f"{says} The arms are not of one size: in a seed {', '.join(apart)}."


def one_by_one(run: Run) -> Evidence:
    found = _all(ARMS, run)
    steps = list(zip(ARMS[1:], ARMS[:-1], strict=True))
    gaps = {pair: [_gap(*pair, at, found) for at in range(1, ROUNDS + 1)] for pair in steps}
    told = "; ".join(f"{a} over {b} {', '.join(over.points(gap) for gap in each)}" for (a, b), each in gaps.items())
    left = {
        what: ", ".join(f"{arm} {100 * float(np.mean([s.left(what) for s in found[arm]])):.1f} %" for arm in ARMS)
        for what in SIZES
    }
    held, says = _of_one_size(
        over.above(0.0, *(each[-1] for each in gaps.values())),
        f"Points of accuracy after rounds 1 to {ROUNDS}: {told}. Left at the end are, of the channels, "
        f"{left['channels']}; of the parameters, {left['parameters']}; of FLOPs, {left['FLOPs']}. "
        f"Scales below 0.01 before the first removal: "
        f"{', '.join(f'{arm} {100 * float(np.mean([s.near_zero for s in found[arm]])):.0f} %' for arm in ARMS)}.",
        steps,
        (ROUNDS,),
        found,
    )
    return _judged(
        held,
        says,
        run,
        *_rows(found),
        *(gap.measure for each in gaps.values() for gap in each),
    )


def grows(run: Run) -> Evidence:
    found = _all((ARMS[0], ARMS[-1]), run)
    first, last = (_gap(ARMS[-1], ARMS[0], at, found) for at in (1, ROUNDS))
    each = [
        (s.right[ROUNDS] - t.right[ROUNDS]) - (s.right[1] - t.right[1])
        for s, t in zip(found[ARMS[-1]], found[ARMS[0]], strict=True)
    ]
    more = over.mean("gain of all three, last round less first", [e[None] for e in each], "%")
    held, says = _of_one_size(
        over.above(0.0, last, more),
        f"All three together gain {over.points(first)} points of accuracy after the first round and "
        f"{over.points(last)} after round {ROUNDS}.",
        [(ARMS[-1], ARMS[0])],
        (1, ROUNDS),
        found,
    )
    return _judged(
        held,
        says,
        run,
        first.measure,
        last.measure,
        more.measure,
    )


def flatter(run: Run) -> Evidence:
    found = _all((ARMS[0],), run)[ARMS[0]]
    each = {by: np.array([s.flat[by] for s in found]) for by in found[0].flat}
    measures = [
        Measure(name=f"spread of layer means, {by}", value=float(of.mean()), low=float(of.min()), high=float(of.max()),
                better="lower", n=SEEDS)
        for by, of in each.items()
    ]  # fmt: skip
    below = each["sum"] < each["gamma"]
    told = ", ".join(f"{by} {of.mean():.2f}" for by, of in each.items())
    return _judged(
        "holds" if below.all() else "fails" if not below.any() else "cannot tell",
        f"Spread over layers of a layer's mean score, of its mean over them: {told} (`mean` is the public code's).",
        run,
        *measures,
    )


def trust(run: Run) -> Evidence:
    found = _all(ARMS[-1:], run)[ARMS[-1]]
    seeds = range(run.seed, run.seed + SEEDS)
    before = [_asked("whole", seed, run.device) for seed in seeds]
    first = smaller.kept("under a price alone", before, [_asked("first", seed, run.device) for seed in seeds])
    last = smaller.kept("after all rounds", before, [_asked("last", seed, run.device) for seed in seeds])
    whole = [each.clean.right[0] for each in before]
    points = [
        over.gap(f"accuracy {words} less that before", [s.right[at] for s in found], whole)
        for at, words in ((0, "under a price alone"), (ROUNDS, "after all rounds"))
    ]
    share = float(np.mean([s.left("parameters") for s in found]))
    return _judged(
        smaller.no_worse(last),
        f"With {100 * share:.1f} % of its parameters left: accuracy {over.points(points[1])} points, {last.told}. "
        f"Under the price alone, with all of them: accuracy {over.points(points[0])} points, {first.told}.",
        run,
        *(gap.measure for gap in points),
        *last.measures,
        *first.measures,
    )


HERE = (
    f"ResNet-18 on CIFAR-10 (printed: YOLOv5 on VisDrone), {TRAINED}; then {AGAIN} epochs under a price of up to "
    f"{MOST:g} on the scales, and {ROUNDS} times "
    f"a removal of {100 * RATE:.0f} % of all channels with as many epochs after (printed: four of 50 %, 100 epochs); "
    f"R: the score with the kernel, S: the soft mask, C: the price falls as a cosine instead of staying; {SEEDS} "
    f"seeds, equal epochs in all arms; channels that are added go as one set; {RULE}"
)
MATCHED = (
    f"; nothing is told where two networks that are compared differ by more than {100 * APART:g} % of parameters or of "
    "FLOPs in a seed"
)
SHELVED = (
    Claim(
        name="score-mask-cosine",
        source=SOURCE,
        says="The score with the kernel's weight, the soft mask and the falling price each make the network that is "
        "left more accurate, the later the round the more.",
        published=(),
        here=f"{HERE}; printed: fig. 3, no numbers; holds if each step is ahead after the last round{MATCHED}",
        minutes=900,
        test=one_by_one,
        seeds=SEEDS,
    ),
    Claim(
        name="gain-grows-with-rounds",
        source=SOURCE,
        says="What score, soft mask and falling price gain together is small after the first round and grows with "
        "rounds.",
        published=(),
        here=f"{HERE}; printed: fig. 3, no numbers; holds if they are ahead after the last round, and by more than "
        f"after the first{MATCHED}",
        minutes=600,
        test=grows,
        seeds=SEEDS,
    ),
    Claim(
        name="flatter-scores",
        source=SOURCE,
        says="Scores with the kernel's weight are more even over layers than scales alone.",
        published=(),
        here=f"{HERE}; printed: fig. 4, no numbers; with a sum over the kernel, as printed, and with the public code's "
        "mean beside it; holds if the sum's are more even in every seed",
        minutes=400,
        test=flatter,
        seeds=SEEDS,
    ),
    Claim(
        name="trust",
        source=SOURCE,
        says="A network that was slimmed in rounds is as well calibrated, as steady under corruptions and as hard to "
        "attack as it was.",
        published=(),
        here=f"{HERE}; print asks for average precision alone; ECE of {recipe.BINS} bins on all test images; every "
        f"corruption at severity {smaller.SEVERITY} and PGD of {smaller.STEPS} steps within 1/255 on {TRUSTED:,} of "
        "them; fails if one of the three is clearly worse, holds if none is by a point",
        minutes=500,
        test=trust,
        seeds=SEEDS,
        ours=True,
    ),
)
