"""Li, Zhou, Zhou & Wang 2021: superclass heads on early stages (MMF), and how mild mistakes are under fixed trees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from assay.claim import Claim, Evidence, Published
from assay.claims import _over_seeds as over
from assay.claims._elsewhere import RULE, elsewhere
from assay.data.whole import Whole, whole
from assay.methods.train.well_trained import Half, moved

if TYPE_CHECKING:
    from assay.data.label_tree import LabelTree
    from assay.methods.train.fit import Loss
    from assay.run import Run

SOURCE = (
    "Li, Zhou, Zhou & Wang, 'MMF: Multi-task Multi-structure Fusion for Hierarchical Image Classification', ICANN 2021"
)
Arm = Literal["flat", "A", "S", "A&S", "A&S late"]
SINGLE: tuple[Arm, ...] = ("A", "S")
EPOCHS, BATCH, LR, WEIGHT_DECAY = 8, 512, 0.2, 5e-4
SEEDS, WIDTH = 5, 32
WEIGHTS: dict[Arm, float] = {"flat": 0.0, "A": 0.1, "S": 0.1, "A&S": 0.15, "A&S late": 0.15}
GROUPS = 3  # of the visual tree
LOOKED_AT = 5000  # training images that it is found from
SEMANTIC = """{
  "craft": ["airplane", "ship"], "road vehicles": ["automobile", "truck"], "pets": ["cat", "dog"],
  "hoofed animals": ["deer", "horse"], "small animals": ["bird", "frog"]
}"""
EARLY, LATE = "body.4", "body.16"  # of Vgg16: the end of its second stage and of its last
Array = NDArray[np.float64]


@cache
def _data(device: str) -> dict[str, Whole]:
    from assay.data.beyond import cifar10

    return whole(cifar10(), device)


@cache
def _names() -> tuple[str, ...]:
    from assay.data.beyond import cifar10

    names = cifar10()["test"].classes
    assert names is not None
    return tuple(names)


@cache
def _trees(device: str, seed: int) -> tuple[LabelTree, LabelTree]:
    """The visual tree and the semantic one; the first is found by a network that no study is about, and then fixed."""
    from assay.data.label_tree import read_tree
    from assay.methods.right.visual_tree import visual_tree
    from assay.methods.uncertainty.activations import features

    net, train = _fitted("flat", seed + SEEDS, device), _data(device)["train"]
    seen = features(net, train.x[:LOOKED_AT], "head", entering=True)
    names = _names()
    return visual_tree(seen, train.y[:LOOKED_AT], names, groups=GROUPS), read_tree(SEMANTIC, names)


@cache  # all studies are about the same networks
def _fitted(arm: Arm, seed: int, device: str, first: int = 0) -> nn.Module:
    """VGG16, with the heads of its arm while it trains; `first` is the study's own seed, which names the trees."""
    from assay.methods.train.fit import fit
    from assay.methods.train.mmf import Mmf, WithHeads
    from assay.nn.vgg import Vgg16

    train = _data(device)["train"]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = Vgg16(width=WIDTH).to(device)
    model: nn.Module = net
    loss: Loss = F.cross_entropy
    heads = None
    if arm != "flat":
        visual, semantic = _trees(device, first)
        chosen = {"A": [visual], "S": [semantic]}.get(arm, [visual, semantic])
        losses = Mmf([torch.from_numpy(tree.group_of()).to(device) for tree in chosen], [WEIGHTS[arm]] * len(chosen))
        stage = LATE if arm == "A&S late" else EARLY
        model = heads = WithHeads(net, stage, losses.sizes, train.x[:2], rng=torch.Generator().manual_seed(seed))
        loss = losses.loss
    fit(
        Half(model), train, epochs=EPOCHS, lr=LR, batch=BATCH, weight_decay=WEIGHT_DECAY, schedule="one-cycle",
        augment=moved, loss=loss, rng=torch.Generator(device).manual_seed(seed), device=device,
    )  # fmt: skip
    if heads is not None:
        heads.close()
    return net.eval().requires_grad_(False)


class _Seen(NamedTuple):
    """Of each test image, under both trees, whatever the network was trained with."""

    right: Array  # n
    lca: Array  # n, averaged over the trees
    severe: Array  # n: height of a mistake over that of a wrong class at random, 0 where it is right


@cache
def _seen(arm: Arm, seed: int, device: str, first: int) -> _Seen:
    from assay.methods.right.tree_measures import random_mistakes, tree_measures

    net, test = _fitted(arm, seed, device, 0 if arm == "flat" else first), _data(device)["test"]
    with torch.no_grad():
        said = torch.cat([net(part).argmax(1) for part in torch.split(test.x, 1000)]).cpu().numpy()
    true, trees = test.y.cpu().numpy(), _trees(device, first)
    cost = tree_measures(trees, said, true)
    return _Seen((said == true).astype(np.float64), cost.lca, cost.lca / random_mistakes(trees, true).lca)


def _all(arms: Sequence[Arm], run: Run) -> dict[Arm, list[_Seen]]:
    with run.progress("training networks with heads for label trees", len(arms) * SEEDS) as tick:
        seen: dict[Arm, list[_Seen]] = {arm: [] for arm in arms}
        for arm in arms:
            for seed in range(run.seed, run.seed + SEEDS):
                seen[arm].append(_seen(arm, seed, run.device, run.seed))
                tick(1)
    return seen


def _gain(what: str, ours: Sequence[Array], theirs: Sequence[Array], unit: str = "") -> over.Gap:
    return over.mean(what, [(b - a)[None] for a, b in zip(ours, theirs, strict=True)], unit)


def _severity(seen: Sequence[_Seen]) -> Array:
    """Of a mistake, of one at random, for each seed."""
    return np.array([s.severe.sum() / (1 - s.right).sum() for s in seen])


def _milder(name: str, ours: Sequence[_Seen], theirs: Sequence[_Seen]) -> over.Gap:
    """How much milder a mistake of ours is, with an interval over the images: a ratio of means in each."""
    from assay.finding import Measure, bootstrap

    def each(counts: Array) -> Array:  # draws n -> seeds draws
        def of(s: _Seen) -> Array:
            mean: Array = (counts @ s.severe) / (counts @ (1 - s.right)).clip(1e-12)
            return mean

        return np.stack([of(b) - of(a) for a, b in zip(ours, theirs, strict=True)])

    n = len(ours[0].right)
    seeds = each(np.ones((1, n)))[:, 0]
    low, high = bootstrap(lambda counts: each(counts).mean(0), n, seed=0, draws=300)
    value = float(seeds.mean())
    measure = Measure(name=name, value=value, low=min(low, value), high=max(high, value), better="higher", n=n)
    return over.Gap(measure, seeds)


def _means(seen: dict[Arm, list[_Seen]]) -> list[over.Gap]:
    """LCA and accuracy of each arm."""
    return [
        gap
        for arm, some in seen.items()
        for gap in (
            over.mean(f"LCA, {arm}", [s.lca[None] for s in some]),
            over.mean(f"accuracy, {arm}", [s.right[None] for s in some], "%"),
        )
    ]


def milder(run: Run) -> Evidence:
    seen = _all(("flat", "A&S"), run)
    flat, ours = seen["flat"], seen["A&S"]
    lca = _gain("LCA, flat less A&S", [s.lca for s in ours], [s.lca for s in flat])
    mistakes = _milder("severity of a mistake, of one at random, flat less A&S", ours, flat)
    right = over.mean(
        "accuracy, A&S less flat", [(a.right - b.right)[None] for a, b in zip(ours, flat, strict=True)], "%"
    )
    return elsewhere(
        over.above(0.0, lca),
        says=f"Under the same two trees LCA falls by {lca.measure.value or 0:+.4f} with heads for both, accuracy "
        f"changes by {100 * (right.measure.value or 0):+.2f} points, and a mistake is {_severity(flat).mean():.3f} "
        f"times as severe as one at random without them and {_severity(ours).mean():.3f} times with them (difference "
        f"{mistakes.measure.low or 0:+.3f} to {mistakes.measure.high or 0:+.3f}); what LCA gains beyond that is "
        "accuracy.",
        measures=(*(gap.measure for gap in _means(seen)), lca.measure, right.measure, mistakes.measure),
        seeds=SEEDS,
    )


def milder_mistakes(run: Run) -> Evidence:
    arms: tuple[Arm, ...] = ("flat", "A", "S", "A&S")
    seen = _all(arms, run)
    gaps = [
        _milder(f"severity of a mistake, of one at random, flat less {arm}", seen[arm], seen["flat"])
        for arm in arms[1:]
    ]
    told = ", ".join(f"{arm} {_severity(seen[arm]).mean():.3f}" for arm in arms)
    return elsewhere(
        over.above(0.0, *gaps),
        says=f"A mistake is so many times as severe as a wrong class at random: {told}.",
        measures=tuple(gap.measure for gap in gaps),
        seeds=SEEDS,
    )


def any_single_tree(run: Run) -> Evidence:
    seen = _all(("flat", *SINGLE), run)
    flat = seen["flat"]
    gaps = [
        gap
        for arm in SINGLE
        for gap in (
            over.mean(
                f"accuracy, {arm} less flat",
                [(a.right - b.right)[None] for a, b in zip(seen[arm], flat, strict=True)],
                "%",
            ),
            _gain(f"LCA, flat less {arm}", [s.lca for s in seen[arm]], [s.lca for s in flat]),
        )
    ]
    told = ", ".join(f"{gap.measure.name} {gap.measure.value or 0:+.4f}" for gap in gaps)
    return elsewhere(
        over.above(0.0, *gaps),
        says=f"Over {SEEDS} seeds, under the same two trees: {told}.",
        measures=(*(gap.measure for gap in _means(seen)), *(gap.measure for gap in gaps)),
        seeds=SEEDS,
    )


def several_beat_one(run: Run) -> Evidence:
    seen = _all((*SINGLE, "A&S"), run)
    gaps = [_gain(f"LCA, {arm} less A&S", [s.lca for s in seen["A&S"]], [s.lca for s in seen[arm]]) for arm in SINGLE]
    told = ", ".join(f"{gap.measure.name} {gap.measure.value or 0:+.4f}" for gap in gaps)
    return elsewhere(
        over.above(0.0, *gaps),
        says=f"Over {SEEDS} seeds, under the same two trees: {told}.",
        measures=(*(gap.measure for gap in _means(seen)), *(gap.measure for gap in gaps)),
        seeds=SEEDS,
    )


def early_beats_late(run: Run) -> Evidence:
    seen = _all(("A&S", "A&S late"), run)
    early, late = seen["A&S"], seen["A&S late"]
    right = over.mean(
        "accuracy, early less late", [(a.right - b.right)[None] for a, b in zip(early, late, strict=True)], "%"
    )
    lca = _gain("LCA, late less early", [s.lca for s in early], [s.lca for s in late])
    return elsewhere(
        over.above(0.0, right, lca),
        says=f"Heads on {EARLY} instead of {LATE} change accuracy by {100 * (right.measure.value or 0):+.2f} points "
        f"and LCA by {-(lca.measure.value or 0):+.4f}.",
        measures=(*(gap.measure for gap in _means(seen)), right.measure, lca.measure),
        seeds=SEEDS,
    )


HERE = (
    f"VGG16 of width {WIDTH} with batch normalisation on CIFAR-10 (print: CIFAR-100), {EPOCHS} epochs of SGD with one "
    f"cycle, shifts and mirrored images, {SEEDS} seeds, the same start and order for all; tree S has five groups of "
    f"two classes (craft, road vehicles, pets, hoofed and small animals), tree A {GROUPS} groups found by spectral "
    "clustering of the features of one more flat network; every network is scored under both trees, where "
    "print scores each under its own; lambda 0.1 for one tree and 0.15 for each of two, as in print; "
    f"{RULE}"
)
TABLE_2: dict[Arm, tuple[str, float, float]] = {  # LCA and accuracy
    "flat": ("w/o H", 0.4995, 0.7220),
    "A": ("H_A", 0.4507, 0.7327),
    "S": ("H_S", 0.4590, 0.7325),
    "A&S": ("H_A&S", 0.4563, 0.7337),
}


def _printed(*arms: Arm) -> tuple[Published, ...]:
    return tuple(
        Published(f"{what}, {arm}", value, f"table 2, CIFAR100, VGG16, {row}", unit)
        for arm in arms
        for row, *values in (TABLE_2[arm],)
        for (what, unit), value in zip((("LCA", ""), ("accuracy", "%")), values, strict=True)
    )


SHELVED = (
    Claim(
        name="milder-under-fixed-trees",
        source=SOURCE,
        says="Heads for several label trees lower the mean height of the common ancestor (LCA) of a flat network.",
        published=_printed("flat", "A&S"),
        here=f"{HERE}; severity beside it: how high a mistake alone reaches, of a wrong class at random, which does "
        "not fall when mistakes only become fewer",
        minutes=300,
        test=milder,
        seeds=SEEDS,
    ),
    Claim(
        name="milder-mistakes",
        source=SOURCE,
        says="Those mistakes that a network with heads for label trees still makes are milder than a flat network's.",
        published=(),
        here=f"{HERE}; print has no number for mistakes alone",
        minutes=600,
        test=milder_mistakes,
        seeds=SEEDS,
        ours=True,
    ),
    Claim(
        name="any-single-tree",
        source=SOURCE,
        says="With any single label tree a network is right more often than the flat one, and its mistakes are milder.",
        published=_printed("flat", "A", "S"),
        here=HERE,
        minutes=450,
        test=any_single_tree,
        seeds=SEEDS,
    ),
    Claim(
        name="several-beat-one",
        source=SOURCE,
        says="Several label trees together make mistakes milder than any one of them.",
        published=_printed("A", "S", "A&S"),
        here=f"{HERE}; in print itself A alone has a lower LCA than both, under its own tree",
        minutes=450,
        test=several_beat_one,
        seeds=SEEDS,
    ),
    Claim(
        name="early-beats-late",
        source=SOURCE,
        says="Heads for label trees do better on an early stage than on a late one.",
        published=(),
        here=f"{HERE}; heads for both trees after the second stage and after the last (printed: fig. 4a, no numbers)",
        minutes=300,
        test=early_beats_late,
        seeds=SEEDS,
    ),
)
