"""Lehmann & Ebner 2021: clusters of activations, layer by layer, against outliers and attacked inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.claims._networks import TRAINED, images, network
from assay.data.whole import Whole
from assay.errors import AssayError, MissingExtra
from assay.finding import Better, Measure

if TYPE_CHECKING:
    from assay.methods.uncertainty.activation_clusters import ActivationClusters, Clustering, Projection
    from assay.run import Run

SOURCE = (
    "Lehmann & Ebner, 'Layer-Wise Activation Cluster Analysis of CNNs to Detect Out-of-Distribution Samples', ICANN "
    "2021"
)
Name = Literal["MNIST", "CIFAR-10"]
Flat = Literal["umap", "pca", "lda"]
FLATS: tuple[Flat, ...] = ("umap", "pca", "lda")
CALLED: dict[Flat, str] = {"umap": "UMAP", "pca": "principal components", "lda": "discriminants"}
SEEDS: dict[Name, int] = {"MNIST": 5, "CIFAR-10": 3}
EPOCHS, BATCH = 6, 128  # of the network on MNIST, as printed
MAPS = (64, 128, 128)  # of the three convolutions
CLUSTERED = 60_000  # training images in the clusters, at most
TESTED = 10_000  # images of each set, at most
SLOW, ASKED = 3000, 1000  # training images in clusters on UMAP, and images of each set that are asked of them
COMPARED = 5_000  # training images whose silhouettes are compared, at most: t-SNE of all takes an hour
THRESHOLDS = (0.01, 0.05, 0.1)
BEST = 0.05
TWICE = 2.0  # false alarms that grow by this factor from 0.05 to 0.1 count as many more
LEAST: dict[Name, tuple[float, float]] = {
    "MNIST": (0.9904, 0.985),
    "CIFAR-10": (0.9247, 0.90),
}  # printed, and asked for
ALARMS = 0.10  # of test images, at t = 0.05, which are 5.4 % in print
SETS = ("test", "outliers", "FGSM", "BIM", "PGD", "PGD-DLR")
Array = NDArray[np.float64]


class _Net(NamedTuple):
    model: nn.Module
    layers: tuple[str, ...]
    data: dict[str, Whole]


def _half_as_wide() -> nn.Module:
    from assay.nn.resnet import ResNet18

    return ResNet18(width=32)


@cache  # both claims are about the same networks
def _net(name: Name, seed: int, device: str) -> _Net:
    from assay.methods.train.fit import fit

    data = images(name, device)
    if name == "CIFAR-10":
        layers = ("stem", *(f"stages.{i}" for i in range(4)), "features", "head")
        return _Net(network(name, _half_as_wide, seed, device), layers, data)
    a, b, c = MAPS
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = nn.Sequential(
            *(nn.Conv2d(1, a, 8, 2, 3), nn.ReLU()),  # n 1 28 28 -> n a 14 14
            *(nn.Conv2d(a, b, 6, 2), nn.ReLU()),  # -> n b 5 5
            *(nn.Conv2d(b, c, 5), nn.ReLU()),  # -> n c 1 1
            *(nn.Flatten(), nn.Linear(c, 10)),
        )
    fit(
        model, data["train"], epochs=EPOCHS, lr=1e-3, batch=BATCH, weight_decay=0.0, optimiser="adam",
        schedule="constant", device=device, rng=torch.Generator(device).manual_seed(seed),
    )  # fmt: skip
    return _Net(model.eval().requires_grad_(False), ("1", "3", "5", "7"), data)


@cache
def _clusters(name: Name, flat: Flat, seed: int, device: str) -> ActivationClusters | None:
    """None where the package of a projection is missing."""
    from assay.methods.uncertainty.activation_clusters import ActivationClusters

    net, rng = _net(name, seed, device), np.random.default_rng(seed)
    few = SLOW if flat == "umap" else CLUSTERED
    x, y = net.data["train"].x[:few], net.data["train"].y[:few]
    try:
        return ActivationClusters.fit(net.model, x, y, layers=net.layers, rng=rng, projection=flat)
    except MissingExtra:
        return None


@cache
def _sets(seed: int, device: str) -> dict[str, Tensor]:
    """MNIST's test images, other images, and the test images under the attacks of print; n 1 28 28 each."""
    from assay.data.strangers import far_outliers
    from assay.methods.attack import fgsm, pgd

    net = _net("MNIST", seed, device)
    x, y = net.data["test"].x[:TESTED], net.data["test"].y[:TESTED]
    rng = torch.Generator(device).manual_seed(seed)
    climb = partial(pgd, net.model, x, y, rng=rng, as_published=True)
    drawn = far_outliers((1, 28, 28), min(1000, TESTED), rng=torch.Generator().manual_seed(seed))
    return {
        "test": x,
        "outliers": images("Fashion-MNIST", device)["test"].x[: len(x)],
        "FGSM": fgsm(net.model, x, y, radius=0.25, as_published=True).x,
        "BIM": climb(radius=0.25, step=0.01, steps=100, random_start=False).x,
        "PGD": climb(radius=0.2, step=2 / 255, steps=40).x,
        "PGD-DLR": climb(radius=0.3, step=2 / 255, steps=40, loss="dlr").x,
        "glyphs": drawn["glyphs"].to(device),
        "uniform noise": drawn["uniform noise"].to(device),
    }


def _right(model: nn.Module, x: Tensor, y: Tensor) -> Array:  # n *d, n -> n
    with torch.no_grad():
        said = torch.cat([model(part).argmax(1) for part in torch.split(x, 1000)])
    right: Array = (said == y).double().cpu().numpy()
    return right


def _seeds(name: Name, run: Run) -> range:
    return range(run.seed, run.seed + SEEDS[name])


def _accuracies(name: Name, run: Run) -> list[Array]:
    nets = [_net(name, seed, run.device) for seed in _seeds(name, run)]
    return [_right(net.model, net.data["test"].x[:TESTED], net.data["test"].y[:TESTED]) for net in nets]


def _gate(name: Name, run: Run) -> Gate:
    printed, low = LEAST[name]
    return over.gate(f"The accuracy of the network on {name}", _accuracies(name, run), printed, low)


def _scores(flat: Flat, seed: int, device: str) -> dict[str, Tensor] | None:
    fitted = _clusters("MNIST", flat, seed, device)
    if fitted is None:
        return None
    most = ASKED if flat == "umap" else TESTED
    return {name: fitted.score(x[:most]).cpu() for name, x in _sets(seed, device).items()}


def detects(run: Run) -> Evidence:
    seeds = _seeds("MNIST", run)
    marks: dict[Flat, list[dict[str, Tensor]]] = {}
    with run.progress("clusters of MNIST's activations", len(FLATS) * len(seeds)) as tick:
        for flat in FLATS:
            found = []
            for seed in seeds:
                found.append(_scores(flat, seed, run.device))
                tick(1)
            there = [each for each in found if each is not None]
            if len(there) == len(found):
                marks[flat] = there
    judged: Flat = next(flat for flat in FLATS if flat in marks)  # print's own, or the other that print has
    rates = {
        flat: {name: _flagged(f"{name}, {flat}", [each[name] for each in of], BEST) for name in of[0]}
        for flat, of in marks.items()
    }
    ours = marks[judged]
    gaps = [
        over.gap(
            f"{name} less test, t = {BEST:g}, {CALLED[judged]}",
            [_flags(each[name], BEST) for each in ours],
            [_flags(each["test"], BEST) for each in ours],
        )
        for name in SETS[1:]
    ]
    y = _net("MNIST", run.seed, run.device).data["test"].y[:TESTED]
    left = {
        name: np.mean([_right(_net("MNIST", s, run.device).model, _sets(s, run.device)[name], y).mean() for s in seeds])
        for name in SETS
        if name != "outliers"
    }
    silhouette = {flat: _silhouette("MNIST", flat, run) for flat in marks}
    compared = _compared("MNIST", run)
    told = "; ".join(
        f"{CALLED[flat]} {', '.join(f'{100 * (m.value or 0):.1f} % of {n}' for n, m in of.items())}"
        for flat, of in rates.items()
    )
    others: list[Flat] = [flat for flat in marks if flat != judged]
    return Evidence(
        verdict=over.above(0.0, *gaps),
        gates=(
            _gate("MNIST", run),
            Gate(
                what=f"The share of test images flagged at t = {BEST:g}",
                values=tuple(float(_flags(each["test"], BEST).mean()) for each in ours),
                printed=0.054,
                low=0.0,
                high=ALARMS,
            ),
        ),
        seeds=len(seeds),
        says=f"At t = {BEST:g} clusters flag, on {told}. Judged are those on {CALLED[judged]}. Test accuracy "
        f"{100 * left['test']:.2f} %, under "
        + ", ".join(f"{name} {100 * left[name]:.2f}" for name in SETS[2:])
        + ". Median silhouettes: "
        + ", ".join(f"{way} {'not measured' if v is None else f'{v:.3f}'}" for way, v in compared.items())
        + "".join(f", {CALLED[flat]} {v:.3f}" for flat, v in silhouette.items() if flat != "umap")
        + ".",
        measures=(
            *(_flagged(f"{name}, t = {t:g}", [each[name] for each in ours], t) for t in THRESHOLDS for name in SETS),
            Measure(name="median silhouette, principal components", value=silhouette["pca"], better="neither"),
            *(Measure(name=f"median silhouette, {name}", value=v, better="neither") for name, v in compared.items()),
            Measure(name="median silhouette, discriminants", value=silhouette["lda"], better="neither"),
            *(gap.measure for gap in gaps),
            *(
                _flagged(f"{name}, t = {t:g}, {CALLED[flat]}", [each[name] for each in marks[flat]], t)
                for flat in others
                for t in THRESHOLDS
                for name in SETS
            ),
            *(
                _flagged(f"{name}, t = {BEST:g}", [each[name] for each in ours], BEST)
                for name in ("glyphs", "uniform noise")
            ),
            *(_area(f"AUROC of the score, {name}", ours[0], name) for name in ours[0] if name != "test"),
        ),
    )


def false_alarms(run: Run) -> Evidence:
    names: tuple[Name, ...] = ("MNIST", "CIFAR-10")
    flats: tuple[Flat, ...] = ("pca", "lda")
    rates: dict[tuple[Name, Flat, float], Measure] = {}
    alone: dict[tuple[Name, Flat], Measure] = {}
    rise: dict[tuple[Name, Flat], Array] = {}  # of each seed: alarms at 0.1 over those at 0.05
    with run.progress("clusters of both data sets", len(flats) * sum(SEEDS.values())) as tick:
        for name in names:
            for flat in flats:
                scores, single = [], []
                for seed in _seeds(name, run):
                    net, fitted = _net(name, seed, run.device), _clusters(name, flat, seed, run.device)
                    assert fitted is not None  # neither needs a package
                    parts = [fitted.fractions(x).cpu() for x in torch.split(net.data["test"].x[:TESTED], 1000)]
                    fractions = torch.cat(parts, 1)  # l n c
                    scores.append(fractions.amin(0).amax(1))
                    single.append((fractions.amax(2) <= THRESHOLDS[-1]).any(0).double().numpy())
                    tick(1)
                called = f"{name}{'' if flat == 'pca' else ', discriminants'}"
                for t in THRESHOLDS:
                    rates[name, flat, t] = _flagged(f"test, t = {t:g}, {called}", scores, t)
                alone[name, flat] = over.mean(
                    f"no class above t = {THRESHOLDS[-1]:g} at a single layer, {called}", single, "%", "lower"
                ).measure
                low, high = (np.array([_flags(score, t).mean() for score in scores]) for t in THRESHOLDS[1:])
                rise[name, flat] = high / np.maximum(low, 1e-9)
    mnist, cifar = rise["MNIST", "pca"], rise["CIFAR-10", "pca"]
    verdict: Held = "cannot tell"
    if cifar.min() > TWICE > mnist.max():
        verdict = "holds"
    elif mnist.min() > cifar.max():  # where only a factor of ours parts the two, nothing can be told
        verdict = "fails"

    def told(name: Name, flat: Flat) -> str:
        return " / ".join(f"{100 * (rates[name, flat, t].value or 0):.1f}" for t in THRESHOLDS)

    return Evidence(
        verdict=verdict,
        gates=tuple(_gate(name, run) for name in names),
        seeds=min(SEEDS.values()),
        says=f"At t = {' / '.join(f'{t:g}' for t in THRESHOLDS)} false alarms are, in %: "
        + "; ".join(f"{n} {told(n, 'pca')} on principal components, {told(n, 'lda')} on discriminants" for n in names)
        + f". From 0.05 to 0.1 they grow {mnist.mean():.1f} times on MNIST ({mnist.min():.1f} to {mnist.max():.1f} in "
        f"the seeds) and {cifar.mean():.1f} times on CIFAR-10 ({cifar.min():.1f} to {cifar.max():.1f}). A cluster in "
        "which ten classes are equally mixed has no class above 0.1, so t must stay below one over the number of "
        "classes at early layers.",
        measures=(
            *(rates[name, "pca", t] for name in names for t in THRESHOLDS),
            *(rates[name, "lda", t] for name in names for t in THRESHOLDS),
            *alone.values(),
            *(over.accuracy(f"accuracy, {name}", _accuracies(name, run)) for name in names),
        ),
    )


def _flags(score: Tensor, t: float) -> Array:  # n -> n
    """Whether the published rule flags it: score <= t."""
    found: Array = (score <= t).double().numpy()
    return found


def _flagged(name: str, scores: Sequence[Tensor], t: float) -> Measure:
    """The share that is flagged, over networks and images."""
    better: Better = "lower" if name.startswith("test") else "higher"
    return over.mean(name, [_flags(score, t) for score in scores], "%", better).measure


def _area(name: str, marks: dict[str, Tensor], of: str) -> Measure:
    from assay.methods.uncertainty.detection import auroc, auroc_interval

    low, high = auroc_interval(marks["test"], marks[of])
    return Measure(name=name, value=auroc(marks["test"], marks[of]), low=low, high=high, better="higher")


def _silhouette(name: Name, flat: Flat, run: Run) -> float:
    fitted = _clusters(name, flat, run.seed, run.device)
    assert fitted is not None  # whoever asks has looked
    return float(np.median([layer.silhouette for layer in fitted.layers]))


def _compared(name: Name, run: Run) -> dict[str, float | None]:
    """The median silhouette of each way to the plane and of each clustering.

    None where a package is missing, or where DBSCAN finds no two clusters.
    """
    from assay.methods.uncertainty.activation_clusters import ActivationClusters

    net = _net(name, run.seed, run.device)
    x, y = net.data["train"].x[:COMPARED], net.data["train"].y[:COMPARED]
    ways: dict[str, tuple[Projection, Clustering]] = {
        "UMAP": ("umap", "kmeans"),
        "t-SNE": ("tsne", "kmeans"),
        "UMAP and DBSCAN": ("umap", "dbscan"),
    }
    found: dict[str, float | None] = {}
    with run.progress(f"silhouettes of {name}'s activations", len(ways)) as tick:
        for way, (projection, clustering) in ways.items():
            rng = np.random.default_rng(run.seed)
            try:
                fitted = ActivationClusters.fit(
                    net.model, x, y, layers=net.layers, rng=rng, projection=projection, clustering=clustering
                )
                found[way] = float(np.median([layer.silhouette for layer in fitted.layers]))
            except AssayError:
                found[way] = None
            tick(1)
    return found


TABLE_TWO: dict[str, tuple[float, float, float]] = {
    "test": (3.6, 5.4, 5.94),
    "outliers": (81.11, 86.89, 86.97),
    "FGSM": (72.29, 80.01, 80.67),
    "BIM": (75.52, 81.50, 81.54),
    "PGD": (81.70, 86.61, 86.74),
    "PGD-DLR": (77.46, 83.46, 83.67),
}
FALSE_ALARMS: dict[Name, tuple[float, float, float]] = {"MNIST": (3.6, 5.4, 5.94), "CIFAR-10": (4.24, 19.62, 63.69)}
PROJECTED = (
    f"on UMAP as in print where its package is there ({SLOW:,} training images and {ASKED:,} of each set), else on two "
    "principal components, which print has too; linear discriminants, which it has not, beside them; k from 2 to 20"
)
MNIST_NET = (
    f"MNIST, three convolutions ({', '.join(map(str, MAPS))} maps; sizes 8, 6, 5, not in print) and a linear layer, "
    f"{EPOCHS} epochs of Adam, {SEEDS['MNIST']} seeds"
)

SHELVED = (
    Claim(
        name="detection",
        source=SOURCE,
        says="Clusters of activations flag natural outliers and attacked inputs at a higher rate than test inputs.",
        published=(
            *(
                Published(
                    f"{name}, t = {t:g}",
                    round(TABLE_TWO[name][i] / 100, 4),
                    f"table 2, MNIST, {'OOD (KMNIST)' if name == 'outliers' else name}, t = {t:g}",
                    "%",
                )
                for i, t in enumerate(THRESHOLDS)
                for name in SETS
            ),
            Published("median silhouette, principal components", 0.423, "table 1, MNIST, PCA"),
            Published("median silhouette, UMAP", 0.733, "table 1, MNIST, UMAP and k-means"),
            Published("median silhouette, t-SNE", 0.432, "table 1, MNIST, t-SNE"),
            Published("median silhouette, UMAP and DBSCAN", 0.699, "table 1, MNIST, DBSCAN"),
        ),
        here=f"{MNIST_NET}; all training images, all test images; Fashion-MNIST in place of KMNIST; the attacks with "
        f"the printed settings; {PROJECTED}; t-SNE and DBSCAN, for their silhouettes alone, on {COMPARED:,} training "
        f"images of the first seed; holds if at t = {BEST:g} each set is flagged more often than test images, over "
        "seeds and images and in every seed; `cannot tell` unless the network is right on at least "
        f"{100 * LEAST['MNIST'][1]:g} % (printed: 99.04) and at most {100 * ALARMS:g} % of test images are flagged "
        "(printed: 5.4) in every seed",
        minutes=60,
        test=detects,
        seeds=SEEDS["MNIST"],
    ),
    Claim(
        name="false-alarms",
        source=SOURCE,
        says="From t = 0.05 to 0.1 the false alarms hardly rise on MNIST and several times on CIFAR-10.",
        published=tuple(
            Published(
                f"test, t = {t:g}, {name}", round(FALSE_ALARMS[name][i] / 100, 4), f"table 2, {name}, Testset", "%"
            )
            for name in FALSE_ALARMS
            for i, t in enumerate(THRESHOLDS)
        ),
        here=f"{MNIST_NET}; CIFAR-10, ResNet-18 of width 32 in place of Fixup-ResNet-20, {TRAINED}, "
        f"{SEEDS['CIFAR-10']} seeds; on two principal components, as print also has, with discriminants beside them "
        f"(its UMAP of all images takes hours); holds if in every seed the alarms grow by less than {TWICE:g} on "
        "MNIST and by more on CIFAR-10, fails if they grow more on MNIST; `cannot tell` unless the networks are "
        f"right on at least {100 * LEAST['MNIST'][1]:g} % (printed: 99.04) and {100 * LEAST['CIFAR-10'][1]:g} % "
        "(printed: 92.47)",
        minutes=400,
        test=false_alarms,
        seeds=SEEDS["CIFAR-10"],
    ),
)
