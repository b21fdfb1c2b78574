"""Lehmann & Ebner 2021: clusters of activations, layer by layer, against outliers and attacked inputs."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Held, Published
from assay.data.whole import Whole, whole
from assay.errors import AssayError
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.methods.uncertainty.activation_clusters import ActivationClusters, Clustering, Projection
    from assay.run import Run

SOURCE = (
    "Lehmann & Ebner, 'Layer-Wise Activation Cluster Analysis of CNNs to Detect Out-of-Distribution Samples', ICANN "
    "2021"
)
Name = Literal["MNIST", "CIFAR-10"]
Flat = Literal["lda", "pca"]
FLATS: tuple[Flat, ...] = ("lda", "pca")
EPOCHS: dict[Name, int] = {"MNIST": 6, "CIFAR-10": 10}
BATCH: dict[Name, int] = {"MNIST": 128, "CIFAR-10": 512}
MAPS = (64, 128, 128)  # of the three convolutions
WIDTH = 16  # of the residual network
CLUSTERED = 60_000  # training images in the clusters, at most
TESTED = 10_000  # images of each set, at most
COMPARED = 5_000  # training images whose silhouettes are compared, at most: t-SNE of all takes an hour
THRESHOLDS = (0.01, 0.05, 0.1)
BEST = 0.05
TWICE = 2.0  # false alarms that grow by this factor from 0.05 to 0.1 count as many more
SETS = ("test", "outliers", "FGSM", "BIM", "PGD", "PGD-DLR")


class _Net(NamedTuple):
    model: nn.Module
    layers: tuple[str, ...]
    data: dict[str, Whole]


@cache  # both claims are about the same networks
def _net(name: Name, seed: int, device: str) -> _Net:
    from assay.data.beyond import cifar10, mnist
    from assay.methods.train.fit import fit
    from assay.nn.resnet import ResNet18

    data = whole(mnist() if name == "MNIST" else cifar10(), device)
    a, b, c = MAPS
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: nn.Module = ResNet18(width=WIDTH)
        if name == "MNIST":
            model = nn.Sequential(
                *(nn.Conv2d(1, a, 8, 2, 3), nn.ReLU()),  # n 1 28 28 -> n a 14 14
                *(nn.Conv2d(a, b, 6, 2), nn.ReLU()),  # -> n b 5 5
                *(nn.Conv2d(b, c, 5), nn.ReLU()),  # -> n c 1 1
                *(nn.Flatten(), nn.Linear(c, 10)),
            )
    adam = name == "MNIST"
    fit(
        model,
        data["train"],
        epochs=EPOCHS[name],
        lr=1e-3 if adam else 0.1,
        batch=BATCH[name],
        weight_decay=0.0 if adam else 5e-4,
        optimiser="adam" if adam else "sgd",
        schedule="constant" if adam else "cosine",
        augment=None if adam else _mirrored,
        device=device,
        rng=torch.Generator(device).manual_seed(seed),
    )
    layers = ("1", "3", "5", "7") if adam else ("stem", *(f"stages.{i}" for i in range(4)), "features", "head")
    return _Net(model.eval().requires_grad_(False), layers, data)


def _mirrored(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    turned = torch.rand(len(x), 1, 1, 1, device=x.device, generator=rng) < 0.5
    return torch.where(turned, x.flip(3), x), y


@cache
def _clusters(name: Name, flat: Flat, seed: int, device: str) -> ActivationClusters:
    from assay.methods.uncertainty.activation_clusters import ActivationClusters

    net, rng = _net(name, seed, device), np.random.default_rng(seed)
    x, y = net.data["train"].x[:CLUSTERED], net.data["train"].y[:CLUSTERED]
    return ActivationClusters.fit(net.model, x, y, layers=net.layers, rng=rng, projection=flat)


@cache
def _sets(seed: int, device: str) -> dict[str, Tensor]:
    """MNIST's test images, other images, and the test images under the attacks of print; n 1 28 28 each."""
    from assay.data.beyond import fashion_mnist
    from assay.data.strangers import far_outliers
    from assay.methods.attack import fgsm, pgd

    net = _net("MNIST", seed, device)
    x, y = net.data["test"].x[:TESTED], net.data["test"].y[:TESTED]
    rng = torch.Generator(device).manual_seed(seed)
    climb = partial(pgd, net.model, x, y, rng=rng, as_published=True)
    drawn = far_outliers((1, 28, 28), min(1000, TESTED), rng=torch.Generator().manual_seed(seed))
    return {
        "test": x,
        "outliers": fashion_mnist()["test"].take(np.arange(len(x)))[0].to(device),
        "FGSM": fgsm(net.model, x, y, radius=0.25, as_published=True).x,
        "BIM": climb(radius=0.25, step=0.01, steps=100, random_start=False).x,
        "PGD": climb(radius=0.2, step=2 / 255, steps=40).x,
        "PGD-DLR": climb(radius=0.3, step=2 / 255, steps=40, loss="dlr").x,
        "glyphs": drawn["glyphs"].to(device),
        "uniform noise": drawn["uniform noise"].to(device),
    }


def _right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:  # n *d, n -> n
    with torch.no_grad():
        return torch.cat([model(part).argmax(1) for part in torch.split(x, 1000)]) == y


def detects(run: Run) -> Evidence:
    net, sets = _net("MNIST", run.seed, run.device), _sets(run.seed, run.device)
    marks: dict[Flat, dict[str, Tensor]] = {}
    with run.progress("clusters of MNIST's activations", len(FLATS)) as tick:
        for flat in FLATS:
            fitted = _clusters("MNIST", flat, run.seed, run.device)
            marks[flat] = {name: fitted.score(x).cpu() for name, x in sets.items()}
            tick(1)
    rates = {flat: {name: _flagged(f"{name}, {flat}", of, BEST) for name, of in marks[flat].items()} for flat in FLATS}
    y = net.data["test"].y[:TESTED]
    left = {name: float(_right(net.model, sets[name], y).double().mean()) for name in SETS if name != "outliers"}
    silhouette = {flat: _silhouette("MNIST", flat, run) for flat in FLATS}
    compared = _compared("MNIST", run)
    told = {flat: ", ".join(f"{100 * (m.value or 0):.1f} % of {n}" for n, m in rates[flat].items()) for flat in FLATS}
    return Evidence(
        verdict=_all(*(_above(rates["lda"][name], rates["lda"]["test"]) for name in SETS[1:])),
        says=f"At t = {BEST:g} clusters on two linear discriminants flag {told['lda']}; those on two principal "
        f"components {told['pca']}. Test accuracy {100 * left['test']:.2f} %, under "
        + ", ".join(f"{name} {100 * left[name]:.2f}" for name in SETS[2:])
        + ". Print projects with UMAP, where discriminants stand here, and has KMNIST, where Fashion-MNIST does. "
        "Median silhouettes: "
        + ", ".join(f"{way} {'not measured' if v is None else f'{v:.3f}'}" for way, v in compared.items())
        + f", principal components {silhouette['pca']:.3f}, discriminants {silhouette['lda']:.3f}.",
        measures=(
            *(_flagged(f"{name}, t = {t:g}", marks["lda"][name], t) for t in THRESHOLDS for name in SETS),
            Measure(name="median silhouette, principal components", value=silhouette["pca"], better="neither"),
            *(Measure(name=f"median silhouette, {name}", value=v, better="neither") for name, v in compared.items()),
            Measure(name="median silhouette, discriminants", value=silhouette["lda"], better="neither"),
            *(
                _flagged(f"{name}, t = {t:g}, principal components", marks["pca"][name], t)
                for t in THRESHOLDS
                for name in SETS
            ),
            *(_flagged(f"{name}, t = {BEST:g}", marks["lda"][name], BEST) for name in ("glyphs", "uniform noise")),
            *(_area(f"AUROC of the score, {name}", marks["lda"], name) for name in marks["lda"] if name != "test"),
        ),
    )


def false_alarms(run: Run) -> Evidence:
    names: tuple[Name, ...] = ("MNIST", "CIFAR-10")
    rates: dict[tuple[Name, Flat, float], Measure] = {}
    alone: dict[tuple[Name, Flat], Measure] = {}
    right: dict[Name, Measure] = {}
    with run.progress("clusters of both data sets", len(names) * len(FLATS)) as tick:
        for name in names:
            net = _net(name, run.seed, run.device)
            x, y = net.data["test"].x[:TESTED], net.data["test"].y[:TESTED]
            hits = _right(net.model, x, y).cpu().numpy()
            right[name] = Measure.proportion(f"accuracy, {name}", hits, better="higher")
            for flat in FLATS:
                parts = [
                    _clusters(name, flat, run.seed, run.device).fractions(part).cpu() for part in torch.split(x, 1000)
                ]
                fractions = torch.cat(parts, 1)  # l n c
                score = fractions.amin(0).amax(1)
                called = f"{name}{'' if flat == 'lda' else ', principal components'}"
                for t in THRESHOLDS:
                    rates[name, flat, t] = _flagged(f"test, t = {t:g}, {called}", score, t)
                flat_layer = (fractions.amax(2) <= THRESHOLDS[-1]).any(0)
                alone[name, flat] = Measure.proportion(
                    f"no class above t = {THRESHOLDS[-1]:g} at a single layer, {called}", flat_layer, better="lower"
                )
                tick(1)
    jump = {n: _grows(rates[n, "lda", BEST], rates[n, "lda", THRESHOLDS[-1]]) for n in names}
    verdict: Held = "cannot tell"
    if jump["CIFAR-10"] == "holds" and jump["MNIST"] == "fails":
        verdict = "holds"
    elif jump["CIFAR-10"] == "fails" or jump["MNIST"] == "holds":
        verdict = "fails"

    def told(name: Name, flat: Flat) -> str:
        return " / ".join(f"{100 * (rates[name, flat, t].value or 0):.1f}" for t in THRESHOLDS)

    return Evidence(
        verdict=verdict,
        says=f"At t = {' / '.join(f'{t:g}' for t in THRESHOLDS)} false alarms are, in %: "
        + "; ".join(f"{n} {told(n, 'lda')} on discriminants, {told(n, 'pca')} on principal components" for n in names)
        + ". A cluster in which ten classes are equally mixed has no class above 0.1, so t must stay below one over "
        "the number of classes at early layers.",
        measures=(
            *(rates[name, "lda", t] for name in names for t in THRESHOLDS),
            *(rates[name, "pca", t] for name in names for t in THRESHOLDS),
            *alone.values(),
            *right.values(),
        ),
    )


def _flagged(name: str, score: Tensor, t: float) -> Measure:
    """The share that the published rule flags: score <= t."""
    return Measure.proportion(name, score <= t, better="lower" if name.startswith("test") else "higher")


def _area(name: str, marks: dict[str, Tensor], of: str) -> Measure:
    from assay.methods.uncertainty.detection import auroc, auroc_interval

    low, high = auroc_interval(marks["test"], marks[of])
    return Measure(name=name, value=auroc(marks["test"], marks[of]), low=low, high=high, better="higher")


def _silhouette(name: Name, flat: Flat, run: Run) -> float:
    return float(np.median([layer.silhouette for layer in _clusters(name, flat, run.seed, run.device).layers]))


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


def _ends(m: Measure) -> tuple[float, float]:
    assert m.low is not None  # proportions have both
    assert m.high is not None
    return m.low, m.high


def _above(this: Measure, that: Measure, times: float = 1.0) -> Held:
    """Whether the whole interval of one lies above `times` that of the other, or below."""
    if _ends(this)[0] > times * _ends(that)[1]:
        return "holds"
    return "fails" if _ends(this)[1] < times * _ends(that)[0] else "cannot tell"


def _grows(before: Measure, after: Measure) -> Held:
    return _above(after, before, TWICE)


def _all(*each: Held) -> Held:
    if "fails" in each:
        return "fails"
    return "holds" if set(each) == {"holds"} else "cannot tell"


TABLE_TWO: dict[str, tuple[float, float, float]] = {
    "test": (3.6, 5.4, 5.94),
    "outliers": (81.11, 86.89, 86.97),
    "FGSM": (72.29, 80.01, 80.67),
    "BIM": (75.52, 81.50, 81.54),
    "PGD": (81.70, 86.61, 86.74),
    "PGD-DLR": (77.46, 83.46, 83.67),
}
FALSE_ALARMS: dict[Name, tuple[float, float, float]] = {"MNIST": (3.6, 5.4, 5.94), "CIFAR-10": (4.24, 19.62, 63.69)}
STAND_IN = (
    "two linear discriminants of 50 principal components in place of UMAP, which needs a package of its own, and two "
    "principal components (also in print) beside them; k from 2 to 20"
)
MNIST_NET = (
    f"MNIST, three convolutions ({', '.join(map(str, MAPS))} maps; sizes 8, 6, 5, not in print) and a linear layer, "
    f"{EPOCHS['MNIST']} epochs of Adam"
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
        f"the printed settings; {STAND_IN}; UMAP, t-SNE and DBSCAN, for their silhouettes alone, on {COMPARED:,} "
        f"training images; held: at t = {BEST:g} every interval lies above that of test images",
        minutes=30,
        test=detects,
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
        here=f"{MNIST_NET}; CIFAR-10, a residual network of eighteen layers and width {WIDTH} with "
        f"{EPOCHS['CIFAR-10']} epochs in place of Fixup-ResNet-20 with 200; {STAND_IN}; several times: by a factor of "
        f"{TWICE:g}, as intervals",
        minutes=45,
        test=false_alarms,
    ),
)
