"""Yin et al. 2021: LocalNorm, under the three noises of print, beside what costs and knows as much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.data.multiplicative_noise import Form, Noise
from assay.data.whole import Whole, whole
from assay.methods.train.recorded import fit_net
from assay.methods.train.well_trained import Half, inside, moved

if TYPE_CHECKING:
    from assay.nn.local_norm import LocalNormed
    from assay.run import Run

SOURCE = (
    "Yin, Scholte & Bohte, 'LocalNorm: Robust Image Classification Through Dynamically Regularized Normalization', "
    "ICANN 2021, doi:10.1007/978-3-030-86380-7_20"
)
Way = Literal[
    "BN", "dynamic BN", "LN-Single", "LN-Single-Vote", "LN-Single-Vote ROT90", "LN-Batch", "LN-Voting", "BN nets",
    "dynamic BN nets",
]  # fmt: skip
SEEDS, WIDTH, EPOCHS, BATCH, LR, WEIGHT_DECAY = 5, 32, 12, 128, 0.1, 5e-4
GROUPS = 8
IMAGES = 2000
FORMS: tuple[Form, ...] = ("coded", "printed")  # the figures in print are the code's
LEVELS: Mapping[Noise, tuple[float, ...]] = {"AGN": (0.5, 1.0, 2.0), "APN": (0.1, 0.5, 1.0), "MBN": (0.1, 0.3, 0.5)}
JUDGED: Mapping[Noise, float] = {"AGN": 1.0, "APN": 0.5, "MBN": 0.5}
NEAR = 0.02  # of accuracy: curves that "overlap"
LEAST = 0.86  # of accuracy: what BN must reach
Array = NDArray[np.float64]
Set = tuple[Noise, Form, float] | None  # None: as they are


@cache
def _data(device: str) -> dict[str, Whole]:
    from assay.data.beyond import cifar10

    return whole(cifar10(), device)


@cache
def _net(local: bool, seed: int, device: str) -> nn.Module:
    """VGG16 with batch normalisation or with LocalNorm, from the same start; in full precision and eval mode."""
    from assay.nn.local_norm import with_local_norm
    from assay.nn.vgg import Vgg16

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        plain: nn.Module = Vgg16(width=WIDTH).to(device)
    half = Half(with_local_norm(plain, GROUPS) if local else plain)
    fit_net(
        half, _data(device)["train"], epochs=EPOCHS, batch=BATCH, lr=LR, weight_decay=WEIGHT_DECAY,
        augment=moved, seed=seed, device=device,
    )  # fmt: skip
    return inside(half).eval().requires_grad_(False)


def _local(seed: int, device: str) -> LocalNormed:
    from assay.nn.local_norm import LocalNormed

    net = _net(True, seed, device)
    assert isinstance(net, LocalNormed)
    return net


@cache
def _images(of: Set, device: str) -> Tensor:  # -> n 3 h w
    from assay.data.multiplicative_noise import spoil

    x = _data(device)["test"].x[:IMAGES]
    if of is None:
        return x
    noise, form, sigma = of
    return spoil(x, noise, sigma, torch.Generator(device).manual_seed(0), form=form)


@cache
def _right(way: Way, of: Set, seed: int, device: str, by_class: bool = False) -> Array:  # -> n
    """How often each image is right, from 0 to 1; `by_class` puts images of one class into one batch."""
    from assay.nn.local_norm import majority, with_local_norm

    x, y = _images(of, device), _data(device)["test"].y[:IMAGES]
    order = y.argsort(stable=True) if by_class else torch.arange(len(y), device=y.device)
    rng = torch.Generator(device).manual_seed(seed)
    size = BATCH
    if way in ("BN", "dynamic BN", "BN nets", "dynamic BN nets"):
        seeds = range(seed, seed + GROUPS) if way.endswith("nets") else (seed,)
        nets = [_net(False, each, device) for each in seeds]
        if way.startswith("dynamic"):
            nets = [with_local_norm(net, 1, "batch") for net in nets]
        parts = [torch.stack([net(x[rows]) for net in nets]) for rows in torch.split(order, size)]
    else:
        local = _local(seed, device)
        if way == "LN-Batch":
            asked = local.asked("batch")
        elif way == "LN-Voting":
            asked, size = local.asked("voting"), BATCH // GROUPS
        else:
            asked = local.asked("single-vote", rotations=3 if way.endswith("ROT90") else 0)
        parts = [asked.members(x[rows]) for rows in torch.split(order, size)]
    each = torch.cat(parts, 1)[:, order.argsort()]  # m n c
    if way == "LN-Single":  # the mean over the group that is drawn
        right = (each.argmax(-1) == y).double().mean(0)
    else:
        right = (majority(each, rng) == y).double()
    found: Array = right.cpu().numpy()
    return found


def _all(ways: Sequence[Way], sets: Sequence[Set], run: Run) -> dict[tuple[Way, Set], list[Array]]:
    seen: dict[tuple[Way, Set], list[Array]] = {}
    with run.progress("training and asking networks", len(ways) * len(sets) * SEEDS) as tick:
        for way in ways:
            for of in sets:
                for seed in range(run.seed, run.seed + SEEDS):
                    at = run.seed if way.endswith("nets") else seed  # one ensemble for all seeds
                    seen.setdefault((way, of), []).append(_right(way, of, at, run.device))
                    tick(1)
    return seen


def _gate(clean: Sequence[Array]) -> Gate:
    return over.gate("The clean accuracy of BN", clean, 0.8883, LEAST)


def _told(of: Set) -> str:
    return "clean" if of is None else f"{of[0]} {of[2]:g}, as {of[1]}"


def clean(run: Run) -> Evidence:
    ways: tuple[Way, ...] = ("BN", "dynamic BN", "LN-Single", "LN-Batch", "LN-Voting")
    seen = _all(ways, (None,), run)
    company: tuple[Way, ...] = ("dynamic BN", "LN-Batch", "LN-Voting")
    seeds = range(run.seed, run.seed + SEEDS)
    sorted_ = {way: [_right(way, None, seed, run.device, True) for seed in seeds] for way in company}
    gaps = [over.gap(f"accuracy of {way} less that of BN", seen[way, None], seen["BN", None]) for way in company[1:]]
    leak = ", ".join(f"{way} {100 * np.mean(sorted_[way]):.1f}" for way in company)
    return over.evidence(
        over.above(0.0, *gaps),
        f"On clean images LN-Batch is {over.points(gaps[0])} points of accuracy ahead of BN and LN-Voting "
        f"{over.points(gaps[1])}. In batches sorted by class, in percent: {leak}.",
        (_gate(seen["BN", None]),),
        *(over.accuracy(f"accuracy, {way}", seen[way, None]) for way in ways),
        *(gap.measure for gap in gaps),
        *(over.accuracy(f"accuracy, {way}, batches sorted by class", sorted_[way]) for way in company),
    )


def under_noise(run: Run) -> Evidence:
    ways: tuple[Way, ...] = ("BN", "dynamic BN", "LN-Batch", "LN-Voting")
    sets: list[Set] = [(noise, form, s) for form in FORMS for noise, levels in LEVELS.items() for s in levels]
    seen = _all(ways, (None, *sets), run)
    pairs: tuple[tuple[Way, Way], ...] = (("LN-Voting", "dynamic BN"), ("LN-Voting", "BN"))
    gaps = {
        of: [over.gap(f"accuracy of {a} less that of {b}, {_told(of)}", seen[a, of], seen[b, of]) for a, b in pairs]
        for of in _judged_sets()
    }
    told = "; ".join(f"{_told(of)}: {over.points(a)} and {over.points(b)}" for of, (a, b) in gaps.items())
    printed: Set = ("AGN", FORMS[0], JUDGED["AGN"])
    first: list[tuple[Way, Set]] = [("BN", printed), ("LN-Voting", printed)]
    rest = [(way, of) for of in sets for way in ways if (way, of) not in first]
    return over.evidence(
        over.above(0.0, *(gap for each in gaps.values() for gap in each)),
        f"Points of accuracy by which LN-Voting is ahead of dynamic BN and of BN: {told}.",
        (_gate(seen["BN", None]),),
        *(over.accuracy(f"accuracy, {way}, {_told(of)}", seen[way, of]) for way, of in (*first, *rest)),
        *(gap.measure for each in gaps.values() for gap in each),
    )


def _judged_sets() -> list[Set]:
    return [(noise, form, JUDGED[noise]) for form in FORMS for noise in JUDGED]


def at_equal_cost(run: Run) -> Evidence:
    ways: tuple[Way, ...] = ("LN-Voting", "BN nets", "dynamic BN nets")
    sets: list[Set] = [None, *_judged_sets()]
    seen = _all(ways, sets, run)
    bn = _all(("BN",), (None,), run)
    gaps = {
        of: [
            over.gap(
                f"accuracy of LN-Voting less that of {GROUPS} {way}, {_told(of)}", seen["LN-Voting", of], seen[way, of]
            )
            for way in ways[1:]
        ]
        for of in sets
    }
    told = "; ".join(f"{_told(of)}: {over.points(a)} and {over.points(b)}" for of, (a, b) in gaps.items())
    return over.evidence(
        over.above(0.0, *(gap for of, each in gaps.items() if of is not None for gap in each)),
        f"Points of accuracy by which LN-Voting, {GROUPS} passes, is ahead of the vote of {GROUPS} nets with batch "
        f"normalisation, and of the same nets on the statistics of the test batch: {told}.",
        (_gate(bn["BN", None]),),
        *(over.accuracy(f"accuracy, {way}, {_told(of)}", seen[way, of]) for of in sets for way in ways),
        *(gap.measure for each in gaps.values() for gap in each),
    )


def rotations(run: Run) -> Evidence:
    ways: tuple[Way, ...] = ("LN-Single-Vote", "LN-Single-Vote ROT90", "LN-Batch")
    sets: list[Set] = [None, *(("AGN", form, JUDGED["AGN"]) for form in FORMS)]
    seen = _all(ways, sets, run)
    bn = _all(("BN",), (None,), run)
    gaps = [
        over.gap(f"accuracy of ROT90 less that of LN-Batch, {_told(of)}", seen[ways[1], of], seen[ways[2], of])
        for of in sets
    ]
    lifts = [over.gap(f"accuracy that ROT90 gives, {_told(of)}", seen[ways[1], of], seen[ways[0], of]) for of in sets]
    held: Held = over.above(-NEAR, *gaps)
    told = "; ".join(
        f"{_told(of)} {over.points(lift)} points to {over.points(gap)} of LN-Batch"
        for of, lift, gap in zip(sets, lifts, gaps, strict=True)
    )
    return over.evidence(
        held,
        f"Rotated copies lift the answers to images alone: {told}.",
        (_gate(bn["BN", None]),),
        *(over.accuracy(f"accuracy, {way}, {_told(of)}", seen[way, of]) for of in sets for way in ways),
        *(gap.measure for gap in (*gaps, *lifts)),
    )


HERE = (
    f"VGG16 of width {WIDTH}, convolution, normalisation, ReLU (printed: VGG19 of width 64 with ReLU before the "
    f"normalisation, 250 epochs), on CIFAR-10, {EPOCHS} epochs of SGD (one cycle up to {LR:g}, batches of {BATCH} in "
    f"{GROUPS} groups, images moved and mirrored), {SEEDS} seeds, the first {IMAGES:,} test images in their order; "
    f"dynamic BN in batches of {BATCH}, LN-Voting of {BATCH // GROUPS}, votes by majority; noise as printed and as "
    f"coded; `cannot tell` unless BN has a clean accuracy of at least {100 * LEAST:g} % in every seed (printed: 88.83)"
)


SHELVED = (
    Claim(
        name="rotations",
        source=SOURCE,
        says="With rotated copies for its statistics an image alone is answered as accurately as in a batch.",
        published=(),
        here=f"{HERE}; three rotations by a quarter; at most {100 * NEAR:g} points below LN-Batch count as the same",
        minutes=240,
        test=rotations,
        seeds=SEEDS,
    ),
    Claim(
        name="clean",
        source=SOURCE,
        says="On clean images LN-Batch and LN-Voting are more accurate than batch normalisation.",
        published=(
            Published("accuracy, BN", 0.8883, "table 1, CIFAR10-VGG", "%"),
            Published("accuracy, dynamic BN", 0.8764, "table 1, CIFAR10-VGG", "%"),
            Published("accuracy, LN-Single", 0.6588, "table 1, CIFAR10-VGG", "%"),
            Published("accuracy, LN-Batch", 0.9207, "table 1, CIFAR10-VGG", "%"),
            Published("accuracy, LN-Voting", 0.9529, "table 1, CIFAR10-VGG", "%"),
        ),
        here=HERE + "; beside it batches sorted by class, which print does not have",
        minutes=240,
        test=clean,
        seeds=SEEDS,
    ),
    Claim(
        name="noise",
        source=SOURCE,
        says="Under Gaussian, Poisson and Bernoulli noise LN-Voting is more accurate than batch normalisation, with "
        "the statistics of training and with those of the test batch.",
        published=(
            Published("accuracy, BN, AGN 1, as coded", 0.29, "sec. 5, CIFAR10, and fig. 6a", "%"),
            Published("accuracy, LN-Voting, AGN 1, as coded", 0.83, "sec. 5, CIFAR10, and fig. 6a", "%"),
        ),
        here=HERE,
        minutes=260,
        test=under_noise,
        seeds=SEEDS,
    ),
    Claim(
        name="equal-cost",
        source=SOURCE,
        says="What LN-Voting gains under noise is its own: it is ahead of as many nets with batch normalisation as it "
        "takes passes, also where these take the statistics of the test batch.",
        published=(),
        here=f"{HERE}. The {GROUPS} nets are one ensemble for all seeds; print compares with single nets only",
        minutes=430,
        test=at_equal_cost,
        seeds=SEEDS,
        ours=True,
    ),
)
