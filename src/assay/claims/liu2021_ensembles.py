"""Liu 2021: ensembles, what the cheap ones keep of the naive one's gain, on clean and on corrupted images."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.claims._networks import HELD_OUT, NARROW, SHORTER, narrow, narrow_vgg16, started
from assay.data.whole import Whole, whole
from assay.finding import Beside, Measure
from assay.methods.train.well_trained import Half, changed, inside

if TYPE_CHECKING:
    from assay.nn.members import Members
    from assay.run import Run

SOURCE = (
    "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021 (dissertation), sec. 5.4-5.5, with its public "
    "code, xuanqing94/BNNBench"
)
Method = Literal["single", "naive", "batch", "snapshot", "FastEnsemble", "MC-dropout"]
PRINTED: tuple[Method, ...] = ("single", "naive", "batch", "snapshot", "FastEnsemble")
METHODS: tuple[Method, ...] = (*PRINTED, "MC-dropout")
CHEAP: tuple[Method, ...] = ("batch", "snapshot", "MC-dropout")  # what FastEnsemble competes with
Images = Literal["clean", "corrupted"]
IMAGES: tuple[Images, ...] = ("clean", "corrupted")
SEEDS, MEMBERS = 3, 5
SHARE, FAST_LR = 0.06, 1e-3  # of a training for each further member, and the rate of its Adam
LAMBDAS = (5.0, 200.0, 5000.0)  # the printed one and larger; that with the least NLL on held-out images is taken
LEAST = 0.90  # of accuracy: what the single net must reach
RATE, DRAWS = 0.1, 15  # of the dropout
CORRUPTED = 500  # test images under every corruption at every severity
BINS = 10  # of the ECE, as in the public code
FLOOR_DRAWS = 100
MUCH = 0.5  # of a gain
Array = NDArray[np.float64]


class _Images(NamedTuple):
    train: Whole
    held_out: Whole
    clean: Whole
    corrupted: Whole  # the same test images again and again: settings x images


@cache
def _data(device: str) -> _Images:
    from assay.data.beyond import cifar10
    from assay.data.corruptions import CORRUPTIONS, corrupt

    splits = whole(cifar10(), device)
    train, test = splits["train"], splits["test"]
    held = min(HELD_OUT, len(train) // 3)
    rng = torch.Generator(device).manual_seed(0)
    some, labels = test.x[:CORRUPTED], test.y[:CORRUPTED]
    spoilt = [corrupt(some, name, severity, rng=rng) for name in CORRUPTIONS for severity in range(1, 6)]
    return _Images(
        Whole(train.x[:-held], train.y[:-held]),
        Whole(train.x[-held:], train.y[-held:]),
        test,
        Whole(torch.cat(spoilt), labels.repeat(len(spoilt))),
    )


class _Made(NamedTuple):
    model: Members
    seconds: float  # of its training


@cache  # all claims are about the same networks
def _made(method: Method, seed: int, device: str) -> _Made:
    from assay.methods.train.fit import fit, reset
    from assay.methods.train.snapshot import fit_snapshots
    from assay.nn.batch_ensemble import as_batch_ensemble
    from assay.nn.mc_dropout import with_dropout
    from assay.nn.members import Ensemble

    if method == "single":
        return _Made(Ensemble([_seed_net(seed, device)]).eval(), _member_seconds(seed, device))
    if method == "FastEnsemble":
        return _fast(seed, device, _lam(seed, device))
    if method == "naive":
        nets = [narrow(MEMBERS * seed + i, device) for i in range(MEMBERS)]
        return _Made(Ensemble(nets).eval(), MEMBERS * _member_seconds(seed, device))
    rng = torch.Generator(device).manual_seed(seed)
    plain = started(narrow_vgg16, MEMBERS * seed).to(device)
    recipe: dict[str, Any] = {
        "epochs": SHORTER.epochs, "lr": SHORTER.lr, "batch": SHORTER.batch, "weight_decay": SHORTER.weight_decay,
        "augment": changed(SHORTER), "rng": rng, "device": device,
    }  # fmt: skip
    train = _data(device).train
    start = time.perf_counter()
    model: Members
    if method == "snapshot":
        halves = fit_snapshots(Half(plain), train, members=MEMBERS, **recipe)
        model = Ensemble([inside(half) for half in halves])
    else:
        fresh = reset(plain, rng)
        model = (
            as_batch_ensemble(fresh, MEMBERS, rng) if method == "batch" else with_dropout(fresh, rate=RATE, draws=DRAWS)
        )
        fit(Half(model), train, schedule="one-cycle", **recipe)
    return _Made(model.eval().requires_grad_(False), time.perf_counter() - start)


@cache
def _member_seconds(seed: int, device: str) -> float:
    """Of a training as FastEnsemble's further members are trained: an epoch, times the epochs. Members may be kept."""
    from assay.methods.train.fit import fit

    start = time.perf_counter()
    fit(
        Half(started(narrow_vgg16, seed).to(device)), _data(device).train, epochs=1, lr=SHORTER.lr,
        batch=SHORTER.batch, augment=changed(SHORTER), rng=torch.Generator(device).manual_seed(seed), device=device,
    )  # fmt: skip
    return SHORTER.epochs * (time.perf_counter() - start)


def _seed_net(seed: int, device: str) -> nn.Module:
    """The first of the naive ensemble: it is the single net, and where FastEnsemble starts."""
    return narrow(MEMBERS * seed, device)


@cache
def _fast(seed: int, device: str, lam: float) -> _Made:
    """FastEnsemble, with the seconds of its further members alone."""
    from assay.methods.train.fast_ensemble import fast_ensemble
    from assay.nn.members import Ensemble

    train = _data(device).train
    steps = max(1, round(SHARE * SHORTER.epochs * math.ceil(len(train) / SHORTER.batch) / 2))
    start = time.perf_counter()
    nets = fast_ensemble(
        Half(copy.deepcopy(_seed_net(seed, device)).requires_grad_(True)),
        train,
        members=MEMBERS,
        escape=steps,
        settle=steps,
        lam=lam,
        lr=FAST_LR,
        batch=SHORTER.batch,
        augment=changed(SHORTER),
        rng=torch.Generator(device).manual_seed(seed),
        device=device,
    )
    model = Ensemble([inside(half) for half in nets])
    return _Made(model.eval().requires_grad_(False), time.perf_counter() - start)


@cache
def _lam(seed: int, device: str) -> float:
    """The lambda with the least NLL on held-out training images."""
    held = _data(device).held_out
    y = held.y.cpu().numpy()
    scores = [_surprise(_said(_fast(seed, device, lam).model, held.x), y).mean() for lam in LAMBDAS]
    return LAMBDAS[int(np.argmin(scores))]


@torch.no_grad()
def _said(model: Members, x: Tensor, average: Literal["probabilities", "logits"] = "probabilities") -> Array:
    """The log of the mean probability, or of that of the mean logits; n *d -> n c.

    The draws of a random model come from a seed of their own.
    """
    from assay.nn.members import log_mean

    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(0)
        each = (model.members(part).double() for part in torch.split(x, 2000))
        parts = [log_mean(z) if average == "probabilities" else z.mean(0).log_softmax(-1) for z in each]
    said: Array = torch.cat(parts).cpu().numpy()
    return said


def _surprise(said: Array, y: NDArray[np.int64]) -> Array:  # n c, n -> n
    return -said[np.arange(len(y)), y]


class _Seen(NamedTuple):
    """What one predictor says of one set of images; a column is one image, however often it was corrupted."""

    right: Array  # k n
    surprise: Array  # k n: -log p_y
    gap: Array  # b n: by bin of the ECE, the sum over k of right - confidence
    floor: float  # the ECE that it would show if it were calibrated

    @property
    def size(self) -> int:
        return self.right.size

    @property
    def ece(self) -> float:
        return float(np.abs(self.gap.sum(1)).sum() / self.size)


@cache
def _seen(method: Method, images: Images, seed: int, device: str) -> _Seen:
    from assay.methods.uncertainty.calibration import calibration_error, equal_bins

    data = _data(device).clean if images == "clean" else _data(device).corrupted
    said, y = _said(_made(method, seed, device).model, data.x), data.y.cpu().numpy()
    confidence, right = np.exp(said.max(1)).clip(max=1.0), said.argmax(1) == y
    times = 1 if images == "clean" else len(y) // min(CORRUPTED, len(_data(device).clean))
    bin_of = equal_bins(confidence, BINS)
    gap = np.where(np.arange(BINS)[:, None] == bin_of, right - confidence, 0.0)  # b kn
    floor = calibration_error(confidence, right, bins=BINS, draws=FLOOR_DRAWS).floor
    return _Seen(
        right.astype(np.float64).reshape(times, -1),
        _surprise(said, y).reshape(times, -1),
        gap.reshape(BINS, times, -1).sum(1),
        floor,
    )


def _ece_gap(name: str, pairs: Sequence[Sequence[tuple[float, _Seen]]]) -> over.Gap:
    """The mean over seeds of sum_i c_i ECE_i, with an interval over the images; `pairs`: for each seed the (c_i, i)."""
    n = pairs[0][0][1].right.shape[1]

    def each(counts: Array) -> Array:  # draws n -> seeds draws
        return np.stack(
            [sum(c * np.abs(counts @ s.gap.T).sum(1) / s.size for c, s in seed) for seed in pairs]  # type: ignore[misc]
        )

    seeds = each(np.ones((1, n)))[:, 0]
    low, high = over.resampled(each, n)
    value = float(seeds.mean())
    low, high = min(value, 2 * value - high), max(value, 2 * value - low)  # basic: a resample's ECE is too large
    return over.Gap(Measure(name=name, value=value, low=low, high=high, better="higher", n=n), seeds)


def _gate(single: Sequence[_Seen]) -> Gate:
    """On clean images: the corruptions are not those of CIFAR-10-C."""
    return over.gate("The accuracy of the single net", [s.right for s in single], TABLE["clean"]["single"][0], LEAST)


def keeps_the_gain(images: Images, run: Run) -> Evidence:
    seeds = range(run.seed, run.seed + SEEDS)
    with run.progress("training ensembles", 3 * SEEDS) as tick:
        seen: dict[Method, list[_Seen]] = {}
        for method in ("naive", "single", "FastEnsemble"):
            seen[method] = []
            for seed in seeds:
                seen[method].append(_seen(method, images, seed, run.device))
                tick(1)
    single, naive, fast = seen["single"], seen["naive"], seen["FastEnsemble"]
    trios = list(zip(single, naive, fast, strict=True))
    nll = {
        name: over.mean(f"NLL gain, {name}", [s.surprise - o.surprise for s, o in zip(single, other, strict=True)])
        for name, other in (("naive", naive), ("FastEnsemble", fast))
    }
    ece = {
        name: _ece_gap(f"ECE gain, {name}", [((1, s), (-1, o)) for s, o in zip(single, other, strict=True)])
        for name, other in (("naive", naive), ("FastEnsemble", fast))
    }
    right = {
        name: over.mean(f"accuracy gain, {name}", [o.right - s.right for s, o in zip(single, other, strict=True)], "%")
        for name, other in (("naive", naive), ("FastEnsemble", fast))
    }
    kept = (
        over.mean(
            f"NLL gain of FastEnsemble less {MUCH:g} of the naive one",
            [(1 - MUCH) * s.surprise + MUCH * n.surprise - f.surprise for s, n, f in trios],
        ),
        _ece_gap(
            f"ECE gain of FastEnsemble less {MUCH:g} of the naive one",
            [((1 - MUCH, s), (MUCH, n), (-1, f)) for s, n, f in trios],
        ),
    )
    share = np.mean([
        _made("FastEnsemble", seed, run.device).seconds
        / (MEMBERS - 1)
        / _made("single", seed, run.device).seconds
        for seed in seeds
    ])  # fmt: skip
    lams = " and ".join(f"{_lam(seed, run.device):g}" for seed in seeds)
    to_keep = over.above(0.0, nll["naive"], ece["naive"])
    some = over.above(0.0, nll["FastEnsemble"], ece["FastEnsemble"], right["FastEnsemble"])
    much = over.by_ours(over.above(0.0, *kept))  # how much is much, print does not say
    verdict: Held = "cannot tell"
    if to_keep == "holds":
        verdict = "fails" if some == "fails" else much if some == "holds" else "cannot tell"

    def part(gains: dict[str, over.Gap]) -> str:
        ours, theirs = (gains[name].measure.value or 0.0 for name in ("FastEnsemble", "naive"))
        return f"{ours:+.4f} of {theirs:+.4f}"

    return Evidence(
        verdict=verdict,
        gates=(_gate([_seen("single", "clean", seed, run.device) for seed in seeds]),),
        seeds=SEEDS,
        says=f"On {images} images, with lambda {lams}, FastEnsemble has a gain over the single net of "
        f"{part(nll)} in NLL, {part(ece)} in ECE and {part(right)} in accuracy, where the second number is the naive "
        f"ensemble's. A member took {100 * share:.1f} % of the time of a training."
        + ("" if to_keep == "holds" else " The naive ensemble itself has no sure gain in both NLL and ECE to keep."),
        measures=(
            *(gains[name].measure for name in ("naive", "FastEnsemble") for gains in (right, nll, ece)),
            Measure(name="time of a member, of a training", value=float(share), better="lower", n=SEEDS, unit="%"),
            *(gap.measure for gap in kept),
        ),
    )


def closest_to_naive(run: Run) -> Evidence:
    seeds = range(run.seed, run.seed + SEEDS)
    seen: dict[tuple[Method, Images], list[_Seen]] = {}
    with run.progress("training ensembles", len(METHODS) * SEEDS) as tick:
        for method in METHODS:
            for seed in seeds:
                for images in IMAGES:
                    seen.setdefault((method, images), []).append(_seen(method, images, seed, run.device))
                tick(1)

    def ahead(images: Images, other: Method) -> over.Gap:
        pairs = zip(seen["FastEnsemble", images], seen[other, images], strict=True)
        return over.mean(
            f"accuracy of FastEnsemble less that of {other}, {images}", [f.right - o.right for f, o in pairs], "%"
        )

    gaps = {(images, other): ahead(images, other) for images in IMAGES for other in CHEAP}
    told = "; ".join(
        f"{images}: " + ", ".join(f"{other} {100 * (gaps[images, other].measure.value or 0.0):+.2f}" for other in CHEAP)
        for images in IMAGES
    )
    lowest = " and ".join(
        f"{min(METHODS, key=lambda m: np.mean([s.ece for s in seen[m, images]]))} on {images} images"
        for images in IMAGES
    )
    return Evidence(
        verdict=over.above(0.0, *gaps.values()),
        gates=(_gate(seen["single", "clean"]),),
        seeds=SEEDS,
        says=f"Points of accuracy by which FastEnsemble is ahead of the other cheap ensembles: {told}. The lowest ECE "
        f"({BINS} bins) has {lowest}.",
        measures=(
            *(m for images in IMAGES for method in PRINTED for m in _row(method, images, seen[method, images])),
            *(m for images in IMAGES for m in _row("MC-dropout", images, seen["MC-dropout", images])),
            *(gap.measure for gap in gaps.values()),
        ),
    )


def by_severity(run: Run) -> Evidence:
    """One table: accuracy, NLL and ECE of each method, clean and at each severity, with the spread over the seeds."""
    from assay.methods.uncertainty import ece

    seeds = range(run.seed, run.seed + SEEDS)
    places = ("clean", *(f"severity {s}" for s in range(1, 6)))
    rows: list[tuple[str, Method, Literal["probabilities", "logits"]]] = [(m, m, "probabilities") for m in METHODS]
    rows.insert(2, ("naive by logits", "naive", "logits"))
    lost: dict[tuple[str, str], list[Array]] = {}  # of each seed: -log p_y of each image, mean over corruptions
    measures = []
    with run.progress("asking at each severity", len(rows) * SEEDS) as tick:
        for name, method, average in rows:
            found: dict[str, list[tuple[float, float, float]]] = {place: [] for place in places}
            for seed in seeds:
                model = _made(method, seed, run.device).model
                for place, x, y in _at_severities(run.device):
                    said = _said(model, x, average)
                    surprise = _surprise(said, y)
                    p = np.exp(said)
                    error = ece(p / p.sum(1)[:, None], y, bins=BINS)
                    found[place].append((float((said.argmax(1) == y).mean()), float(surprise.mean()), error))
                    total = len(_data(run.device).clean)
                    images = total if place == "clean" else min(CORRUPTED, total)
                    lost.setdefault((name, place), []).append(surprise.reshape(-1, images))
                tick(1)
            for place in places:
                each = np.array(found[place])  # seeds 3
                for of, quantity in enumerate(("accuracy", "NLL", "ECE")):
                    spread = Beside("standard deviation over the seeds", float(each[:, of].std(ddof=min(1, SEEDS - 1))))
                    measures.append(
                        Measure(
                            name=f"{quantity}, {name}, {place}",
                            value=float(each[:, of].mean()),
                            better="higher" if quantity == "accuracy" else "lower",
                            n=len(seeds),
                            unit="%" if quantity == "accuracy" else "",
                            beside=(spread,),
                        )
                    )
    gaps = [
        over.mean(
            f"NLL gain, naive, {place}",
            [a - b for a, b in zip(lost["single", place], lost["naive", place], strict=True)],
        )
        for place in places
    ]
    told = ", ".join(f"{place} {gap.measure.value or 0.0:+.3f}" for place, gap in zip(places, gaps, strict=True))
    return Evidence(
        verdict=over.above(0.0, *gaps),
        gates=(_gate([_seen("single", "clean", seed, run.device) for seed in seeds]),),
        seeds=SEEDS,
        says=f"The NLL of the naive ensemble is below that of a single net by: {told}.",
        measures=(*(gap.measure for gap in gaps), *measures),
    )


def _at_severities(device: str) -> Iterator[tuple[str, Tensor, NDArray[np.int64]]]:
    """Clean images, and those of each severity under every corruption, with their labels."""
    data = _data(device)
    yield "clean", data.clean.x, data.clean.y.cpu().numpy()
    images = min(CORRUPTED, len(data.clean))
    x = data.corrupted.x.view(-1, 5, images, *data.corrupted.x.shape[1:])  # kinds severities images
    y = data.corrupted.y.view(-1, 5, images)
    for s in range(5):
        yield f"severity {s + 1}", x[:, s].flatten(0, 1), y[:, s].flatten().cpu().numpy()


def _row(method: Method, images: Images, seen: Sequence[_Seen]) -> tuple[Measure, Measure, Measure]:
    """Accuracy, NLL and ECE, means over the seeds."""
    name = f"{images}, {method}"
    floor = Beside("calibrated", float(np.mean([s.floor for s in seen])))
    accuracy = over.mean(f"accuracy, {name}", [s.right for s in seen], "%").measure
    surprise = over.mean(f"NLL, {name}", [s.surprise for s in seen]).measure
    error = _ece_gap(f"ECE, {name}", [((1.0, s),) for s in seen]).measure
    return accuracy, replace(surprise, better="lower"), replace(error, better="lower", beside=(floor,))


NETS = (
    f"{NARROW} (printed: VGG16, 200 epochs of AdamW), {MEMBERS} members, {SEEDS} seeds; FastEnsemble: {100 * SHARE:g} "
    f"% of a training for each further member, half to escape and half to settle, Adam at {FAST_LR:g}, the lambda of "
    f"{', '.join(f'{lam:g}' for lam in LAMBDAS)} with the least NLL on {HELD_OUT:,} held-out training images; "
    f"corrupted: the first {CORRUPTED} test images under each of Assay's 16 corruptions at each of 5 severities, "
    f"which are not CIFAR-10-C's; probabilities are averaged, ECE in {BINS} bins; intervals over the seeds and the "
    "images, and every seed must agree; `cannot tell` unless the single net has a clean accuracy of at least "
    f"{100 * LEAST:g} % in every seed (printed: 92.89)"
)
TABLE: dict[Images, dict[Method, tuple[float, float, float]]] = {
    "clean": {
        "single": (0.9289, 0.492, 0.058),
        "naive": (0.9464, 0.306, 0.041),
        "batch": (0.9279, 0.566, 0.061),
        "snapshot": (0.9362, 0.375, 0.049),
        "FastEnsemble": (0.9324, 0.308, 0.047),
    },
    "corrupted": {
        "single": (0.8684, 0.980, 0.110),
        "naive": (0.8921, 0.671, 0.084),
        "batch": (0.8591, 1.180, 0.121),
        "snapshot": (0.8700, 0.810, 0.102),
        "FastEnsemble": (0.8738, 0.623, 0.089),
    },
}
ROW = {"clean": "table 5.2, CIFAR10", "corrupted": "table 5.2, CIFAR10-C"}


def _gain(images: Images, method: Method) -> tuple[Published, Published, Published]:
    """Printed accuracy, NLL and ECE against those of the single net, higher is better."""
    (a, b, c), (x, y, z) = TABLE[images]["single"], TABLE[images][method]
    where = f"{ROW[images]}, difference of the columns Single and {'Ours' if method == 'FastEnsemble' else 'Naive'}"
    return (
        Published(f"accuracy gain, {method}", round(x - a, 4), where, "%"),
        Published(f"NLL gain, {method}", round(b - y, 3), where),
        Published(f"ECE gain, {method}", round(c - z, 3), where),
    )


def _printed(images: Images) -> tuple[Published, ...]:
    names = (("accuracy", "%"), ("NLL", ""), ("ECE", ""))
    return tuple(
        Published(f"{name}, {images}, {method}", value, f"{ROW[images]}, {method}", unit)
        for method, row in TABLE[images].items()
        for (name, unit), value in zip(names, row, strict=True)
    )


SHELVED = (
    *(
        Claim(
            name=f"keeps-the-gain-{images}",
            source=SOURCE,
            says="At 3 to 8 % of a training for each member, FastEnsemble keeps much of the calibration gain of a "
            f"naive ensemble and part of its accuracy gain, on {images} images.",
            published=(*_gain(images, "naive"), *_gain(images, "FastEnsemble")),
            here=f"{NETS}; holds if at least {MUCH:g} of the gain in NLL and in ECE is kept and more than none of that "
            "in accuracy, fails if nothing of one is: how much is much, print does not say; `cannot tell` unless the "
            "naive ensemble itself gains in both",
            minutes=1500,
            test=partial(keeps_the_gain, images),
            seeds=SEEDS,
        )
        for images in IMAGES
    ),
    Claim(
        name="closest-to-naive",
        source=SOURCE,
        says="Of the cheap ensembles FastEnsemble is the closest to the naive one in accuracy.",
        published=tuple(p for images in IMAGES for p in _printed(images)),
        here=f"{NETS}; batch ensemble with vectors from N(1, 0.2^2), MC-dropout (not in the printed table) with rate "
        f"{RATE:g} and {DRAWS} passes, both trained as long as the single net; holds if FastEnsemble is more accurate "
        "than each of the others on clean and on corrupted images. In print it is not on CIFAR-10, where snapshot has "
        "93.62 %",
        minutes=2500,
        test=closest_to_naive,
        seeds=SEEDS,
    ),
    Claim(
        name="gain-at-every-severity",
        source=SOURCE,
        says="The naive ensemble has a lower NLL than a single net, clean and at every severity of corruption.",
        published=(),
        here=f"{NETS}; accuracy, NLL and ECE of every method, clean and at each severity, with the standard deviation "
        "over the seeds (the dissertation shows boxes, Fig. 5.6, and no numbers); naive by logits: the same nets with "
        "their logits averaged, as in the public code",
        minutes=2500,
        test=by_severity,
        seeds=SEEDS,
    ),
)
