"""Wang, Li, Khademi & van Gemert 2019: attention and adaptation for places across domains, on generated ones."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.claim import Claim, Evidence, Held, Published
from assay.claims._elsewhere import RULE, elsewhere
from assay.data.textured_places import Texture
from assay.data.whole import Whole
from assay.finding import Measure
from assay.nn.vlad import VARIANTS, PlaceNet, Variant

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = "Wang, Li, Khademi & van Gemert, 'Attention-Aware Age-Agnostic Visual Place Recognition', ICCV Workshops 2019"
Task = Literal["S->S", "S->T"]
TASKS: tuple[Task, ...] = ("S->T", "S->S")
NAMES: dict[Variant, str] = {"vlad": "VLAD", "a1": "A1-VLAD", "ours": "ours"}
AT = (1, 5, 10, 20)
SEEDS = 5
BEFORE: Texture = "grain"  # what the encoder learns to see on, of the two domains neither
SOURCE_TEXTURE: Texture = "stripes"
TARGET_TEXTURE: Texture = "checks"
SEEN, SEEN_PLACES, SEEN_EPOCHS = 6400, 50, 12
LEARNT, LEARNT_PLACES = 800, 100
GALLERY, QUERIES, ASKED_PLACES = 400, 400, 80
STEPS, TUPLES, LR = 300, 4, 2e-3
DRAWN, REFRESH = 100, 200
DRAWS = 1000  # of the bootstrap
Key = tuple[Variant, Task, bool]  # whether it is adapted
PRINTED: dict[Key, tuple[float, ...]] = {
    ("vlad", "S->T", False): (0.010, 0.019, 0.019, 0.058),
    ("a1", "S->T", False): (0.010, 0.048, 0.106, 0.154),
    ("ours", "S->T", False): (0.019, 0.058, 0.115, 0.202),
    ("vlad", "S->S", False): (0.884, 0.969, 0.978, 0.985),
    ("a1", "S->S", False): (0.882, 0.965, 0.980, 0.988),
    ("ours", "S->S", False): (0.913, 0.975, 0.982, 0.990),
    ("vlad", "S->T", True): (0.010, 0.048, 0.077, 0.164),
    ("a1", "S->T", True): (0.010, 0.077, 0.106, 0.144),
    ("ours", "S->T", True): (0.058, 0.135, 0.173, 0.279),
}
Array = NDArray[np.float64]


class Found(NamedTuple):
    """Of one network: the rank of the first image of its place for each query, and where it attended."""

    rank: dict[Task, NDArray[np.int64]]  # n each, from 1
    on: dict[Task, Array]  # n: mean attention of what lies on the object, over that of what does not
    total: dict[str, Array]  # n: all attention of queries of the target, and of backgrounds alone


@cache
def _encoder(seed: int, device: str) -> PlaceNet:
    """An encoder that learnt to see by naming the places of a city before other backgrounds, as print's on ImageNet."""
    from assay.data.textured_places import domain
    from assay.methods.train.fit import fit

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = PlaceNet()
        classifier = net.classifier(SEEN_PLACES)
    data = domain(10 * seed, SEEN, BEFORE, places=SEEN_PLACES, of=3 * seed)
    seen = Whole(torch.as_tensor(data.x, device=device), torch.as_tensor(data.labels, device=device))
    fit(
        classifier, seen, epochs=SEEN_EPOCHS, lr=4e-3, batch=64, optimiser="adam", device=device,
        rng=torch.Generator(device).manual_seed(seed),
    )  # fmt: skip
    return net


@cache  # all claims are about the same networks
def _trained(variant: Variant, adapted: bool, seed: int, device: str) -> PlaceNet:
    from assay.data.textured_places import domain
    from assay.methods.shift.places import fit_places

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = PlaceNet(variant=variant).to(device)
    net.features.load_state_dict(_encoder(seed, device).features.state_dict())
    source, target = (
        domain(10 * seed + 1 + k, LEARNT, texture, places=LEARNT_PLACES, of=3 * seed + 1)
        for k, texture in enumerate((SOURCE_TEXTURE, TARGET_TEXTURE))
    )
    x, rng = torch.as_tensor(source.x, device=device), torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        net.vlad.start(net.features(x[:200]), rng)
    fit_places(
        net, x, torch.as_tensor(source.geo, device=device),
        torch.as_tensor(target.x, device=device) if adapted else None,
        steps=STEPS, tuples=TUPLES, lr=LR, drawn=DRAWN, refresh=REFRESH, rng=rng,
    )  # fmt: skip
    return net.eval().requires_grad_(False)


@cache
def _found(variant: Variant, adapted: bool, seed: int, device: str) -> Found:
    """On the gallery and the queries of a city that no training saw."""
    from assay.data.textured_places import domain, outliers
    from assay.methods.shift.places import describe

    net = _trained(variant, adapted, seed, device)
    city = 3 * seed + 2
    gallery = domain(10 * seed + 3, GALLERY, SOURCE_TEXTURE, places=ASKED_PLACES, of=city)
    held, place = describe(net, torch.as_tensor(gallery.x, device=device)), torch.as_tensor(gallery.labels)
    rank: dict[Task, NDArray[np.int64]] = {}
    on: dict[Task, Array] = {}
    total: dict[str, Array] = {}
    asked: dict[Task, tuple[int, Texture]] = {"S->S": (4, SOURCE_TEXTURE), "S->T": (5, TARGET_TEXTURE)}
    for task, (draw, texture) in asked.items():
        data = domain(10 * seed + draw, QUERIES, texture, places=ASKED_PLACES, of=city)
        x = torch.as_tensor(data.x, device=device)
        order = torch.cdist(describe(net, x), held).argsort(dim=1, stable=True).cpu()
        right = place[order] == torch.as_tensor(data.labels)[:, None]
        rank[task] = 1 + right.int().argmax(1).numpy()
        weight = net.attention(x).cpu()
        on[task] = _on_object(weight, torch.as_tensor(data.mask))
        if task == "S->T":
            total["places"] = weight.sum((1, 2)).double().numpy()
            alone = torch.as_tensor(outliers(10 * seed + 6, QUERIES, texture), device=device)
            total["backgrounds"] = net.attention(alone).cpu().sum((1, 2)).double().numpy()
    return Found(rank, on, total)


def _on_object(weight: Tensor, mask: Tensor) -> Array:  # n h w, n 4h 4w -> n
    """Mean attention where at least half of what lies under a place of the map is the object, over that elsewhere."""
    inside = torch.nn.functional.avg_pool2d(mask[:, None].float(), mask.shape[1] // weight.shape[1])[:, 0] >= 0.5
    sums = [(weight * part).sum((1, 2)).double() / part.sum((1, 2)) for part in (inside, ~inside)]
    found: Array = (sums[0] / sums[1]).numpy()
    return found


def _all(run: Run) -> dict[tuple[Variant, bool], list[Found]]:
    found: dict[tuple[Variant, bool], list[Found]] = {}
    with run.progress("training networks of places", 2 * len(VARIANTS) * SEEDS) as tick:
        for variant, adapted in product(VARIANTS, (False, True)):
            for seed in range(run.seed, run.seed + SEEDS):
                found.setdefault((variant, adapted), []).append(_found(variant, adapted, seed, run.device))
                tick(1)
    return found


def _mean(name: str, values: Array, *, seed: int, unit: str = "%") -> Measure:  # s n
    """With a bootstrap over seeds, and over the queries of each: every seed has its own cities and weights."""
    rng = np.random.default_rng(seed)
    s, n = values.shape
    drawn = []
    for _ in range(DRAWS):
        net = rng.integers(0, s, (s, 1))
        drawn.append(values[net, rng.integers(0, n, (s, n))].mean())
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Measure(
        name=name, value=float(values.mean()), low=float(low), high=float(high), better="higher", n=values.size,
        unit=unit,
    )  # fmt: skip


def _hits(found: list[Found], task: Task, k: int) -> Array:  # -> s n
    return np.stack([f.rank[task] <= k for f in found]).astype(np.float64)


def _told(variant: Variant, task: Task, adapted: bool) -> str:
    return f"{NAMES[variant]}, {task}{', adapted' if adapted else ''}"


def _recall(found: dict[tuple[Variant, bool], list[Found]], seed: int, *keys: Key) -> list[Measure]:
    return [
        _mean(f"recall at {k}, {_told(*key)}", _hits(found[key[0], key[2]], key[1], k), seed=seed)
        for key in keys
        for k in AT
    ]


def _held(*gaps: Measure) -> Held:
    """holds: every interval lies above 0. fails: one lies below."""
    if all((gap.low or 0.0) > 0 for gap in gaps):
        return "holds"
    return "fails" if any((gap.high or 0.0) < 0 for gap in gaps) else "cannot tell"


def _points(gap: Measure) -> str:
    return f"{100 * (gap.value or 0):+.1f} ({100 * (gap.low or 0):+.1f} to {100 * (gap.high or 0):+.1f})"


def attention_first(run: Run) -> Evidence:
    found = _all(run)
    pairs: tuple[tuple[Variant, Variant], ...] = (("ours", "a1"), ("ours", "vlad"), ("a1", "vlad"))
    gaps: dict[tuple[Variant, Variant], list[Measure]] = {}
    for (one, other), task, adapted in product(pairs, TASKS, (False, True)):
        ahead = _hits(found[one, adapted], task, 1) - _hits(found[other, adapted], task, 1)
        name = f"recall at 1 of {NAMES[one]} less that of {_told(other, task, adapted)}"
        gaps.setdefault((one, other), []).append(_mean(name, ahead, seed=run.seed))
    every = [gap for of in gaps.values() for gap in of]
    told = "; ".join(
        f"{NAMES[one]} ahead of {NAMES[other]} by "
        + ", ".join(
            f"{_points(gap)} {task}{', adapted' if adapted else ''}"
            for gap, (task, adapted) in zip(of, product(TASKS, (False, True)), strict=True)
        )
        for (one, other), of in gaps.items()
    )
    rest: list[Key] = [(variant, "S->S", True) for variant in VARIANTS]
    return elsewhere(
        _held(*every),
        f"Points of recall at 1: {told}.",
        (*_recall(found, run.seed, *PRINTED, *rest), *every),
        seeds=SEEDS,
    )


def adaptation_helps(run: Run) -> Evidence:
    found = _all(run)
    gaps = {
        (variant, k): _mean(
            f"recall at {k} that adaptation adds, {NAMES[variant]}, S->T",
            _hits(found[variant, True], "S->T", k) - _hits(found[variant, False], "S->T", k),
            seed=run.seed,
        )
        for variant in VARIANTS
        for k in (AT[-1], 1)
    }
    at_home = [
        _mean(
            f"recall at 1 that adaptation adds, {NAMES[variant]}, S->S",
            _hits(found[variant, True], "S->S", 1) - _hits(found[variant, False], "S->S", 1),
            seed=run.seed,
        )
        for variant in VARIANTS
    ]
    told = ", ".join(f"{NAMES[v]} {_points(gaps[v, AT[-1]])}" for v in VARIANTS)
    first = ", ".join(f"{NAMES[v]} {_points(gaps[v, 1])}" for v in VARIANTS)
    keys: list[Key] = [(v, "S->T", adapted) for v in VARIANTS for adapted in (False, True)]
    return elsewhere(
        _held(gaps["vlad", AT[-1]], gaps["ours", AT[-1]]),
        f"Points of recall at {AT[-1]} from the target that adaptation adds: {told}; at 1: {first}.",
        (*_recall(found, run.seed, *keys), *gaps.values(), *at_home),
        seeds=SEEDS,
    )


def harder_across(run: Run) -> Evidence:
    found = _all(run)
    drops = [
        _mean(
            f"recall at 1 lost from S->S to S->T, {NAMES[v]}{', adapted' if adapted else ''}",
            _hits(found[v, adapted], "S->S", 1) - _hits(found[v, adapted], "S->T", 1),
            seed=run.seed,
        )
        for v, adapted in product(VARIANTS, (False, True))
    ]
    told = ", ".join(
        f"{NAMES[v]}{' adapted' if adapted else ''} {_points(drop)}"
        for drop, (v, adapted) in zip(drops, product(VARIANTS, (False, True)), strict=True)
    )
    return elsewhere(
        _held(*drops),
        f"Points of recall at 1 that a query from the target loses: {told}.",
        (*_recall(found, run.seed, *(key for key in PRINTED if not key[2])), *drops),
        seeds=SEEDS,
    )


def looks_at_places(run: Run) -> Evidence:
    found, measures, judged = _all(run), [], []
    for variant, adapted in product(VARIANTS[1:], (False, True)):
        nets = found[variant, adapted]
        named = f"{NAMES[variant]}{', adapted' if adapted else ''}"
        on = [
            _mean(f"log attention on the object over elsewhere, {named}, {task}", values, seed=run.seed, unit="")
            for task, values in ((task, np.log(np.stack([f.on[task] for f in nets]))) for task in TASKS)
        ]
        ahead = np.stack([np.log(f.total["places"]) - np.log(f.total["backgrounds"]) for f in nets])
        more = _mean(f"log total attention of places over backgrounds, {named}", ahead, seed=run.seed, unit="")
        measures += [*on, more]
        judged += [*on, more] if variant == "ours" else []
    told = ", ".join(f"{np.exp(m.value or 0):.2f}" for m in measures)
    return elsewhere(
        _held(*judged),
        "Attention on the object over that elsewhere, for a query of the target and one of the source, and all "
        "attention of a place over that of a background alone, for A1-VLAD, A1-VLAD adapted, ours and ours adapted in "
        f"this order: {told}.",
        measures,
        seeds=SEEDS,
    )


HERE = (
    f"generated images of 32 x 32, a place's object before {SOURCE_TEXTURE} (source) or {TARGET_TEXTURE} (target) in "
    f"the place of Mapillary and Beeldbank; an encoder of three convolutions that learnt to name {SEEN_PLACES} other "
    f"places before {BEFORE} (print: AlexNet on ImageNet), 8 clusters (print: 64), {STEPS} steps of {TUPLES} tuples of "
    f"12 images, Adam at {LR:g}, the 10 hardest of {DRAWN} negatives, margin 0.1, MK-MMD on whole maps with the weight "
    f"0.99; {LEARNT} images of {LEARNT_PLACES} places to learn from, {QUERIES} queries of each domain against "
    f"{GALLERY} of {ASKED_PLACES} places of another city; {SEEDS} seeds, the same start for all variants, with an "
    f"attention of 1 everywhere; lengths and rates were chosen on the city of the first seed; "
    f"intervals from a bootstrap over seeds and queries; {RULE}"
)


def _published(*keys: Key) -> tuple[Published, ...]:
    return tuple(
        Published(
            f"recall at {k}, {_told(*key)}",
            value,
            f"table of recalls, {'with' if key[2] else 'without'} adaptation",
            "%",
        )
        for key in keys
        for k, value in zip(AT, PRINTED[key], strict=True)
    )


SHELVED = (
    Claim(
        name="attention-in-both-streams",
        source=SOURCE,
        says="Attention on residuals and on descriptors finds more places than attention on residuals alone, and that "
        "more than none, in the same domain and across domains, with adaptation and without.",
        published=_published(*PRINTED),
        here=f"{HERE}. Print's table has A1-VLAD level with VLAD on the source, and one query of 104 is a point",
        minutes=12,
        test=attention_first,
        seeds=SEEDS,
    ),
    Claim(
        name="adaptation",
        source=SOURCE,
        says="Adapted by MK-MMD, VLAD and attention in both streams find more places for queries of the target domain.",
        published=_published(*((v, "S->T", adapted) for v in VARIANTS for adapted in (False, True))),
        here=f"{HERE}. Judged at {AT[-1]}, where print's gains are; A1-VLAD, which gains nothing in print, is beside",
        minutes=12,
        test=adaptation_helps,
        seeds=SEEDS,
    ),
    Claim(
        name="harder-across-domains",
        source=SOURCE,
        says="A query of another domain finds its place far less often than one of the gallery's own.",
        published=_published(*(key for key in PRINTED if not key[2])),
        here=HERE,
        minutes=12,
        test=harder_across,
        seeds=SEEDS,
    ),
    Claim(
        name="looks-at-places",
        source=SOURCE,
        says="Trained by the ranking loss alone, attention lies on what tells the place rather than on the background, "
        "and images of no place get less of it.",
        published=(),
        here=f"{HERE}. Print shows pictures; here the object is known. Mean attention on the object over that on the "
        "background, and all attention of queries over that of backgrounds alone, as logarithms",
        minutes=12,
        test=looks_at_places,
        seeds=SEEDS,
    ),
)
