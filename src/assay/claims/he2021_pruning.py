"""He, Huang, Liang, Liang & Yang 2021: blended pruning criteria, what accuracy right after pruning tells, agreement."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Held, Published
from assay.claims import _over_seeds as over
from assay.claims import liu2021_ensembles as recipe
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._networks import HELD_OUT, TRAINED, network, vgg16
from assay.data.whole import Whole, whole
from assay.finding import Measure, bootstrap
from assay.methods.compress.criteria import CRITERIA, Criterion
from assay.methods.train.recorded import fit_recorded, generator
from assay.methods.train.well_trained import Half, moved

if TYPE_CHECKING:
    from assay.methods.compress.agreement import Clusters
    from assay.methods.compress.surgery import Edge
    from assay.run import Run

SOURCE = "He, Huang, Liang, Liang & Yang, 'Blending Pruning Criteria for Convolutional Neural Networks', ICANN 2021"
Way = Criterion | Literal["blended", "unpruned"]
WAYS: tuple[Way, ...] = (*CRITERIA, "blended")
SEEDS, BATCH, WEIGHT_DECAY = 3, 512, 5e-4
TUNED, TUNED_LR, EARLY = 4, 0.02, 2  # epochs of the fine-tuning and its rate; those after which accuracy is told early
HALVED = (0, 7, 8, 9, 10, 11, 12)  # layers of VGG16 that lose half their filters, by the configuration print names
SAMPLE = 1024  # training images that criteria look at
CLUSTERS, GENES, ITERATIONS, TOP = 3, 6, 3, 2
SHORT = 10_000  # training images of the one epoch before a gene is judged
RADIUS, STEPS, ATTACKED, NOISE = 1 / 255, 10, 1000, 2  # of the attack; severity of the noise
NO_MORE = 0.01  # lost beyond accuracy, that still counts as nothing
FILTERS, ENTRIES, TIMES = (64, 128, 256, 512), 64 * 9, 20  # of layers at random, and how often they are drawn
NORMED: tuple[Criterion, ...] = ("l1", "l2", "fpgm", "fermat")
Array = NDArray[np.float64]


@cache
def _data(device: str) -> dict[str, Whole]:
    from assay.data.beyond import cifar10

    splits = whole(cifar10(), device)
    train, test = splits["train"], splits["test"]
    held = min(HELD_OUT, len(train) // 3)
    return {
        "train": Whole(train.x[:-held], train.y[:-held]),
        "held out": Whole(train.x[-held:], train.y[-held:]),
        "test": test,
    }


def _trained(seed: int, device: str) -> nn.Module:
    """VGG16 before it is pruned."""
    return network("CIFAR-10", vgg16, seed, device, held_out=HELD_OUT)


class _Parts(NamedTuple):
    """What every way to prune one network starts from."""

    edges: tuple[Edge, ...]
    counts: tuple[int, ...]  # filters that each layer keeps
    scores: tuple[Tensor, ...]  # of each layer: criteria x filters, in [0, 1]
    clusters: tuple[Clusters, ...]


@cache
def _parts(seed: int, device: str) -> _Parts:
    from assay.methods.compress.agreement import clusters, matrix
    from assay.methods.compress.criteria import scaled, scores
    from assay.methods.compress.surgery import edges

    net, train = _trained(seed, device), _data(device)["train"]
    found = edges(copy.deepcopy(net).cpu(), train.x[:2].cpu())  # proved in full precision
    told = scores(net, found, train.x[:SAMPLE], train.y[:SAMPLE])
    each = tuple(scaled(told[edge.name]).cpu() for edge in found)
    return _Parts(
        found,
        tuple(-(-edge.size // 2) if place in HALVED else edge.size for place, edge in enumerate(found)),
        each,
        tuple(clusters(matrix(some.numpy()), CLUSTERS, seed=seed) for some in each),
    )


def _pruned(seed: int, device: str, keep: dict[str, Tensor]) -> nn.Module:
    from assay.methods.compress.surgery import cut

    return cut(_trained(seed, device), _parts(seed, device).edges, keep).requires_grad_(True)


class _Seen(NamedTuple):
    """One way to prune one network: whether each test image is right at three times, and the network at the end."""

    at_once: Array  # n
    early: Array  # n, after EARLY epochs
    end: Array  # n
    held_out: float  # accuracy at the end
    net: nn.Module


def _tuned(net: nn.Module, seed: int, device: str) -> _Seen:
    data = _data(device)
    train, test = data["train"], data["test"]
    for p in net.parameters():
        if p.dim() == 4:
            p.data = p.data.to(memory_format=torch.channels_last)
    at_once = _right(net, test)
    early: list[Array] = []

    def told(epoch: int) -> None:
        if epoch == min(EARLY, TUNED):
            early.append(_right(net, test))

    def loss(rows: Tensor) -> Tensor:
        x, y = moved(*train.rows(rows), generator(device))
        return F.cross_entropy(net(x), y)

    fit_recorded(
        net, list(net.parameters()), loss, len(train), epochs=TUNED, batch=BATCH, lr=TUNED_LR,
        weight_decay=WEIGHT_DECAY, seed=seed, device=device, on_epoch=told,
    )  # fmt: skip
    end, held = _right(net, test), float(_right(net, data["held out"]).mean())
    return _Seen(at_once, early[0], end, held, net.eval().requires_grad_(False))


@torch.no_grad()
def _right(net: nn.Module, rows: Whole) -> Array:  # -> n
    net.eval()
    said = torch.cat([net(part).argmax(1) for part in torch.split(rows.x, 2500)])
    right: Array = (said == rows.y).double().cpu().numpy()
    return right


@cache
def _seen(way: Way, seed: int, device: str) -> _Seen:
    from assay.methods.compress.criteria import kept

    if way == "unpruned":  # trained on as long as the others
        return _tuned(copy.deepcopy(_trained(seed, device)).requires_grad_(True), seed, device)
    if way == "blended":
        return _best_genes(seed, device)[0]
    place = CRITERIA.index(way)
    parts = _parts(seed, device)
    each = zip(parts.edges, parts.scores, parts.counts, strict=True)
    keep = {edge.name: kept(score[place], count) for edge, score, count in each}
    return _tuned(_pruned(seed, device, keep), seed, device)


@cache
def _best_genes(seed: int, device: str) -> tuple[_Seen, ...]:
    """The best genes of an evolution, fully fine-tuned, best on held-out images first."""
    from assay.methods.compress.blend import blend

    parts = _parts(seed, device)
    names = [edge.name for edge in parts.edges]
    seen: dict[nn.Module, _Seen] = {}

    def full(net: nn.Module) -> float:
        seen[net] = _tuned(net, seed, device)
        return seen[net].held_out

    found = blend(
        dict(zip(names, parts.scores, strict=True)), dict(zip(names, parts.counts, strict=True)), parts.clusters,
        make=lambda keep: _pruned(seed, device, keep), short=lambda net: _short(net, seed, device), full=full, top=TOP,
        size=GENES, iterations=ITERATIONS, rng=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return tuple(seen[each.model] for each in found.candidates)


def _short(net: nn.Module, seed: int, device: str) -> float:
    """Held-out accuracy after one epoch on some of the training images."""
    from assay.methods.train.fit import fit

    train = _data(device)["train"]
    fit(
        Half(net), Whole(train.x[:SHORT], train.y[:SHORT]), epochs=1, lr=TUNED_LR, batch=BATCH,
        schedule="one-cycle", weight_decay=WEIGHT_DECAY, augment=moved,
        rng=torch.Generator(device).manual_seed(seed), device=device,
    )  # fmt: skip
    return float(_right(net, _data(device)["held out"]).mean())


def _all(ways: Sequence[Way], run: Run) -> dict[Way, list[_Seen]]:
    seen: dict[Way, list[_Seen]] = {way: [] for way in ways}
    with run.progress("pruning and fine-tuning", len(ways) * SEEDS) as tick:
        for seed in range(run.seed, run.seed + SEEDS):
            for way in ways:
                seen[way].append(_seen(way, seed, run.device))
                tick(1)
    return seen


def _gap(name: str, ours: Sequence[Array], others: Sequence[Array]) -> over.Gap:
    return over.mean(name, [(a - b)[None] for a, b in zip(ours, others, strict=True)], "%")


def _accuracy(name: str, values: Sequence[Array]) -> Measure:
    return over.mean(name, [each[None] for each in values], "%").measure


def blended_over_single(run: Run) -> Evidence:
    ways: tuple[Way, ...] = ("unpruned", *WAYS)
    seen = _all(ways, run)
    ours = [s.end for s in seen["blended"]]
    gaps = {way: _gap(f"accuracy, blended less {way}", ours, [s.end for s in seen[way]]) for way in CRITERIA}
    closest = min(gaps, key=lambda way: gaps[way].measure.value or 0.0)
    mean = _gap(
        "accuracy, blended less the mean of the twelve", ours,
        [np.mean([seen[way][s].end for way in CRITERIA], axis=0) for s in range(SEEDS)],
    )  # fmt: skip
    clear = [way for way in CRITERIA if over.above(0.0, gaps[way]) == "holds"]
    behind = [way for way in CRITERIA if over.above(0.0, gaps[way]) == "fails"]
    return elsewhere(
        over.above(0.0, *gaps.values()),
        f"After fine-tuning the blended criterion is {_points(mean)} points ahead of the mean of twelve single ones "
        f"(interval {_interval(mean)}) and {_points(gaps[closest])} of the best of them on the test images, {closest} "
        f"({_interval(gaps[closest])}); clearly ahead of {len(clear)} of them, clearly behind {len(behind)}.",
        (
            *(_accuracy(f"accuracy, {way}", [s.end for s in seen[way]]) for way in ways),
            *(_accuracy(f"accuracy right after pruning, {way}", [s.at_once for s in seen[way]]) for way in WAYS),
            mean.measure,
            *(gap.measure for gap in gaps.values()),
        ),
        seeds=SEEDS,
    )


def _seeds(run: Run) -> range:
    return range(run.seed, run.seed + SEEDS)


def _points(gap: over.Gap) -> str:
    return f"{100 * (gap.measure.value or 0.0):+.2f}"


def _interval(gap: over.Gap) -> str:
    return f"{100 * (gap.measure.low or 0.0):+.2f} to {100 * (gap.measure.high or 0.0):+.2f}"


def explained(before: Array, end: Array, counts: Array) -> Array:  # seeds m, seeds m, draws m -> draws
    """R^2 of two accuracies of m networks a seed, deviations from the seed's mean, under resampling weights."""

    def centred(v: Array) -> Array:  # draws seeds m
        mean = counts @ v.T / counts.sum(1, keepdims=True)  # draws seeds
        deviations: Array = v[None] - mean[..., None]
        return deviations

    x, y = centred(before), centred(end)
    weights = counts[:, None]
    both, xx, yy = ((weights * p).sum((1, 2)) for p in (x * y, x * x, y * y))
    spread = xx * yy
    found: Array = np.where(spread > 0, both**2 / np.where(spread > 0, spread, 1.0), 0.0)
    return found


def early_accuracy(run: Run) -> Evidence:
    """R^2 between accuracy at the end and right after pruning, and after a little fine-tuning."""
    seen = _all(CRITERIA, run)
    points = [
        [*(seen[way][s] for way in CRITERIA), *_best_genes(seed, run.device)] for s, seed in enumerate(_seeds(run))
    ]
    least = min(len(some) for some in points)  # genes that are alike are one
    at_once, early, end = (
        np.array([[float(getattr(each, when).mean()) for each in some[:least]] for some in points])
        for when in ("at_once", "early", "end")
    )

    def measured(name: str, statistic: Callable[[Array], Array]) -> Measure:
        value = float(statistic(np.ones((1, least)))[0])
        low, high = bootstrap(statistic, least, seed=0)
        return Measure(
            name=name, value=value, low=min(low, value), high=max(high, value), n=least * SEEDS, better="neither"
        )

    first = measured("R^2 of accuracy right after pruning and at the end", lambda c: explained(at_once, end, c))
    later = measured(f"R^2 of accuracy after {EARLY} epochs and at the end", lambda c: explained(early, end, c))
    gain = measured(f"R^2 gained by {EARLY} epochs", lambda c: explained(early, end, c) - explained(at_once, end, c))
    held: Held = "cannot tell"
    if (gain.low or 0.0) > 0:
        held = "holds"
    elif (gain.high or 0.0) < 0:
        held = "fails"
    return elsewhere(
        held,
        f"Over {least} pruned networks in each of {SEEDS} seeds, accuracy right after pruning explains "
        f"{100 * (first.value or 0):.0f} % of the variance of accuracy at the end ({100 * (first.low or 0):.0f} to "
        f"{100 * (first.high or 0):.0f}), after {EARLY} epochs of fine-tuning {100 * (later.value or 0):.0f} % "
        f"({100 * (later.low or 0):.0f} to {100 * (later.high or 0):.0f}); accuracies run from "
        f"{100 * at_once.min():.1f} to {100 * at_once.max():.1f} % at once and from {100 * end.min():.1f} to "
        f"{100 * end.max():.1f} % at the end.",
        (first, later, gain),
        seeds=SEEDS,
    )


def on_random_filters(run: Run) -> Evidence:
    """Rank agreement of criteria on independent Gaussian filters, where there is nothing to agree about."""
    from assay.methods.compress import criteria
    from assay.methods.compress.agreement import SAME, matrix

    rng = torch.Generator().manual_seed(run.seed)
    pairs = list(itertools.combinations(range(len(NORMED)), 2))
    measures: list[Measure] = []
    four: list[Measure] = []
    with run.progress("drawing filters", len(FILTERS) * TIMES) as tick:
        for many in FILTERS:
            found = []
            for _ in range(TIMES):
                w = torch.randn(many, ENTRIES, generator=rng)
                beta = torch.randn(many, generator=rng).abs()
                each = [criteria.OF_WEIGHTS[name](w) for name in NORMED]
                found.append(matrix(torch.stack([*each, beta]).numpy()))
                tick(1)
            rho = np.stack(found)
            for p, q in pairs:
                name = f"Spearman of {NORMED[p]} and {NORMED[q]}, {many} filters"
                four.append(Measure.mean(name, rho[:, p, q], better="neither", seed=0))
            beta_too = f"Spearman of l1 and bn-beta, {many} filters"
            measures.append(Measure.mean(beta_too, rho[:, 0, -1], better="neither", seed=0))
    measures = [*four, *measures]
    held: Held = "cannot tell"
    if all((m.low or 0.0) > SAME for m in four):
        held = "holds"
    elif any((m.high or 0.0) < SAME for m in four):
        held = "fails"
    by_name = {m.name: m.value or 0.0 for m in measures}
    few, most = FILTERS[0], FILTERS[-1]
    return Evidence(
        verdict=held,
        says=f"Of independent Gaussian filters with {ENTRIES} weights, l1 and l2 rank "
        f"{by_name[f'Spearman of l1 and l2, {few} filters']:.3f} alike for {few} filters and "
        f"{by_name[f'Spearman of l1 and l2, {most} filters']:.3f} for {most}, fpgm and l2 "
        f"{by_name[f'Spearman of l2 and fpgm, {few} filters']:.3f} and "
        f"{by_name[f'Spearman of l2 and fpgm, {most} filters']:.3f}; l1 and a random beta "
        f"{by_name[f'Spearman of l1 and bn-beta, {most} filters']:+.3f}. Above {SAME:g} print takes two criteria for "
        "the same.",
        measures=tuple(measures),
    )


def on_trained_filters(run: Run) -> Evidence:
    """In how many layers of a trained network the four agree, and how far the others do."""
    from assay.methods.compress.agreement import SAME, matrix

    shares, rhos = [], []
    for seed in _seeds(run):
        rho = np.stack([matrix(each.numpy()) for each in _parts(seed, run.device).scores])  # l i i
        four = [CRITERIA.index(name) for name in NORMED]
        shares.append((rho[:, four][:, :, four] > SAME).all((1, 2)))
        rhos.append(rho)
    every = np.stack(rhos)  # s l i i
    agreed = Measure.proportion("layers in which the four agree", np.concatenate(shares), better="neither")
    others = [i for i, name in enumerate(CRITERIA) if name not in NORMED]
    first = every[:, 0, CRITERIA.index("taylor-bn-gamma")]
    apart = Measure.mean(
        "Spearman of two criteria, one at least of the other eight",
        np.concatenate([every[:, :, i, j].ravel() for i in others for j in range(len(CRITERIA)) if j != i]),
        better="neither", seed=0,
    )  # fmt: skip
    negative = Measure.mean(
        "Spearman of taylor-bn-gamma and another one, first layer",
        np.delete(first, CRITERIA.index("taylor-bn-gamma"), axis=1).ravel(), better="neither", seed=0,
    )  # fmt: skip
    held: Held = "cannot tell"
    if (agreed.low or 0.0) > 0.5:
        held = "holds"
    elif (agreed.high or 0.0) < 0.5:
        held = "fails"
    return elsewhere(
        held,
        f"l1, l2, fpgm and fermat agree with one another above {SAME:g} in {100 * (agreed.value or 0):.0f} % of the "
        f"layers of {SEEDS} networks; two criteria of which one is none of these rank {apart.value or 0:+.2f} alike on "
        f"average, taylor-bn-gamma and another one in the first layer {negative.value or 0:+.2f}.",
        (agreed, apart, negative),
        seeds=SEEDS,
    )


def beyond_accuracy(run: Run) -> Evidence:
    """Calibration, noise and a small attack: what print does not measure."""
    ways: tuple[Way, ...] = (*CRITERIA, "unpruned", "blended")
    seen = _all(ways, run)
    single = max(CRITERIA, key=lambda way: float(np.mean([s.held_out for s in seen[way]])))
    asked: tuple[Way, ...] = ("unpruned", single, "blended")
    told = {way: [_asked(s.net, run.device) for s in seen[way]] for way in asked}
    measures: list[Measure] = []
    for way in asked:
        measures += [
            _accuracy(f"accuracy, {way}", [t.clean.right[0] for t in told[way]]),
            recipe._ece_gap(f"ECE, {way}", [[(1.0, t.clean)] for t in told[way]]).measure,
            _accuracy(f"accuracy under noise, {way}", [t.noisy for t in told[way]]),
            _accuracy(f"accuracy under attack, {way}", [t.attacked for t in told[way]]),
        ]
    base = told["unpruned"]
    lost: dict[tuple[Way, str], over.Gap] = {}
    for way in asked[1:]:
        ours = told[way]
        lost[way, "ECE"] = recipe._ece_gap(
            f"ECE, {way} less unpruned", [[(1.0, a.clean), (-1.0, b.clean)] for a, b in zip(ours, base, strict=True)]
        )
        for what in ("noise", "attack"):
            field = "noisy" if what == "noise" else "attacked"
            lost[way, what] = _gap(
                f"accuracy under {what}, unpruned less {way}",
                [getattr(t, field) for t in base], [getattr(t, field) for t in ours],
            )  # fmt: skip
    mine = [gap for (way, _), gap in lost.items() if way == "blended"]
    held: Held = "cannot tell"
    if all((gap.measure.high or 0.0) < NO_MORE for gap in mine):
        held = "holds"
    elif any((gap.measure.low or 0.0) > NO_MORE and (gap.seeds > NO_MORE).all() for gap in mine):
        held = "fails"
    says = "; ".join(
        f"{way}: ECE {_points(lost[way, 'ECE'])}, accuracy under noise {_less(lost[way, 'noise'])}, under attack "
        f"{_less(lost[way, 'attack'])}"
        for way in asked[1:]
    )
    return Evidence(
        verdict=held,
        says=f"In points, against the unpruned network that was trained on as long: {says}.",
        measures=(*measures, *(gap.measure for gap in lost.values())),
        seeds=SEEDS,
    )


def _less(gap: over.Gap) -> str:
    return f"{-100 * (gap.measure.value or 0.0):+.2f}"


class _Asked(NamedTuple):
    clean: recipe._Seen
    noisy: Array  # n
    attacked: Array  # n


def _asked(net: nn.Module, device: str) -> _Asked:
    from assay.data.corruptions import corrupt
    from assay.methods.attack import pgd
    from assay.methods.uncertainty.calibration import calibration_error, equal_bins

    test = _data(device)["test"]
    with torch.no_grad():
        said = torch.cat([net(part).double().log_softmax(1) for part in torch.split(test.x, 2500)]).cpu().numpy()
    y = test.y.cpu().numpy()
    confidence, right = np.exp(said.max(1)).clip(max=1.0), said.argmax(1) == y
    which = np.arange(recipe.BINS)[:, None] == equal_bins(confidence, recipe.BINS)
    floor = calibration_error(confidence, right, bins=recipe.BINS, draws=recipe.FLOOR_DRAWS).floor
    rng = torch.Generator(device).manual_seed(0)
    noisy = Whole(corrupt(test.x, "gaussian-noise", NOISE, rng=rng), test.y)
    x, labels = test.x[:ATTACKED], test.y[:ATTACKED]
    fell = pgd(net, x, labels, radius=RADIUS, steps=STEPS, rng=rng).success
    return _Asked(
        recipe._Seen(
            right[None].astype(np.float64), recipe._surprise(said, y)[None],
            np.where(which, right - confidence, 0.0), floor,
        ),
        _right(net, noisy),
        1 - fell.double().cpu().numpy(),
    )  # fmt: skip


HERE = (
    f"VGG16 with batch normalisation on CIFAR-10 (print: CIFAR-100) less {HELD_OUT:,} images, {TRAINED}, {SEEDS} "
    "seeds; layers 1 and 8 to 13 lose half their filters (the "
    f"configuration that print names), at once, physically; {TUNED} epochs of fine-tuning (print 40), the same start, "
    f"order and schedule for all; scores from {SAMPLE:,} training images"
)
SEARCH = (
    f"; the blend: {CLUSTERS} clusters a layer, {GENES} genes, {ITERATIONS} iterations (print 20 and 50), judged by "
    f"{HELD_OUT:,} held-out images after one epoch on {SHORT:,} training images (print 3 epochs); the best {TOP} "
    "are fine-tuned, the better one on held-out images is it"
)
TABLE_1: dict[str, float] = {
    "unpruned": 0.7222, "l1": 0.7129, "l2": 0.7132, "fpgm": 0.7137, "fermat": 0.7139, "bn-gamma": 0.7126,
    "bn-beta": 0.7145, "apoz": 0.7091, "entropy": 0.7109, "taylor-l1": 0.7035, "taylor-l2": 0.7119,
    "taylor-bn-gamma": 0.7119, "taylor-bn-beta": 0.7116, "blended": 0.7168,
}  # fmt: skip
AT_ONCE: dict[str, float] = {
    "l1": 0.1576, "l2": 0.1624, "fpgm": 0.1591, "fermat": 0.1539, "bn-gamma": 0.1587, "bn-beta": 0.0692, "apoz": 0.0569,
    "entropy": 0.1180, "taylor-l1": 0.0129, "taylor-l2": 0.1619, "taylor-bn-gamma": 0.0746, "taylor-bn-beta": 0.0710,
    "blended": 0.1667,
}  # fmt: skip
SHELVED = (
    Claim(
        name="blended-over-single",
        source=SOURCE,
        says="Pruned by an evolved blend of criteria, a fine-tuned network is right more often than by any single one.",
        published=(
            *(Published(f"accuracy, {way}", value, "table 1, CIFAR-100, VGG16", "%") for way, value in TABLE_1.items()),
            *(
                Published(f"accuracy right after pruning, {way}", value, "table 1, CIFAR-100, VGG16", "%")
                for way, value in AT_ONCE.items()
            ),
        ),
        here=f"{HERE}{SEARCH}; the unpruned network is trained on as long; {RULE}",
        minutes=120,
        test=blended_over_single,
        seeds=SEEDS,
    ),
    Claim(
        name="early-accuracy",
        source=SOURCE,
        says="Accuracy right after pruning tells little of accuracy after fine-tuning; after two epochs it tells more.",
        published=(),
        here=f"{HERE}{SEARCH}; R^2 over the twelve criteria and the best genes, deviations from the mean of a seed, "
        f"with an interval over the networks (printed: fig. 3, no numbers in the text); {RULE}",
        minutes=120,
        test=early_accuracy,
        seeds=SEEDS,
    ),
    Claim(
        name="four-agree",
        source=SOURCE,
        says="L1-Norm, L2-Norm, FPGM and Fermat rank the filters of a trained network alike in most layers.",
        published=(),
        here=f"{HERE}; Spearman above 0.8 for all pairs of the four (printed: fig. 1, no numbers in the text); {RULE}",
        minutes=15,
        test=on_trained_filters,
        seeds=SEEDS,
    ),
    Claim(
        name="four-agree-on-random-filters",
        source=SOURCE,
        says="L1-Norm, L2-Norm, FPGM and Fermat rank filters alike before anything is learnt: that they agree is no "
        "finding about trained networks. Print does not say so.",
        published=(),
        here=f"independent Gaussian filters of {ENTRIES} weights, {TIMES} layers of "
        f"{', '.join(map(str, FILTERS))} filters each, intervals over the layers; the average of every "
        "pair must lie above 0.8, where print takes two criteria for the same",
        minutes=1,
        test=on_random_filters,
        ours=True,
    ),
    Claim(
        name="beyond-accuracy",
        source=SOURCE,
        says="A network pruned by a blended criterion keeps its calibration, and its accuracy under noise and under a "
        "small attack; print does not say so, and does not measure it.",
        published=(),
        here=f"{HERE}{SEARCH}; against the unpruned network that is trained on as long; ECE of {recipe.BINS} bins, "
        f"Gaussian noise of severity {NOISE}, PGD of {STEPS} steps at 1/255 on {ATTACKED:,} images; kept: a point at "
        "most is lost, the whole interval",
        minutes=120,
        test=beyond_accuracy,
        seeds=SEEDS,
        ours=True,
    ),
)
