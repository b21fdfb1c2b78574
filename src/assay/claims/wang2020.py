"""Wang, Liu, Yi, Jiang & Hsieh 2020: metrics under which nearest neighbours are provably robust."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from assay.claim import Claim, Evidence, Held, Published
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = "Wang, Liu, Yi, Jiang & Hsieh, 'Provably Robust Metric Learning', NeurIPS 2020, arXiv:2006.07024"
Name = Literal["Pendigits", "MNIST", "Fashion-MNIST"]
Metric = Literal["Euclid", "NCA", "ARML"]
Floats = NDArray[np.float64]


class Size(NamedTuple):
    """How much of a data set is used, and how ARML is trained on it."""

    train: int
    test: int
    epochs: int
    batch: int


SIZES: dict[Name, Size] = {
    "Pendigits": Size(train=7494, test=1000, epochs=1000, batch=7494),
    "MNIST": Size(train=10_000, test=1000, epochs=100, batch=2000),
    "Fashion-MNIST": Size(train=10_000, test=1000, epochs=100, batch=2000),
}
NCA_POINTS, NCA_ASKED, NCA_STEPS = 2000, 3000, 30  # its cost grows with the square of the points
WRITTEN_FIRST = 7494  # of the points of Pendigits are for training
KEPT = 0.01  # a certified error that rises by less is kept

RADII: dict[Name, tuple[float, ...]] = {
    "Pendigits": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    "MNIST": (0.0, 0.5, 1.0, 1.5, 2.0, 2.5),
    "Fashion-MNIST": (0.0, 0.5, 1.0, 1.5, 2.0, 2.5),
}
PRINTED: dict[tuple[Name, Metric], tuple[float, ...]] = {
    ("Pendigits", "Euclid"): (0.032, 0.119, 0.347, 0.606, 0.829, 0.969),
    ("Pendigits", "NCA"): (0.034, 0.202, 0.586, 0.911, 0.997, 1.000),
    ("Pendigits", "ARML"): (0.028, 0.115, 0.344, 0.598, 0.823, 0.967),
    ("MNIST", "Euclid"): (0.033, 0.112, 0.274, 0.521, 0.788, 0.945),
    ("MNIST", "NCA"): (0.025, 0.140, 0.452, 0.839, 0.977, 1.000),
    ("MNIST", "ARML"): (0.024, 0.089, 0.222, 0.455, 0.757, 0.924),
    ("Fashion-MNIST", "Euclid"): (0.145, 0.381, 0.606, 0.790, 0.879, 0.943),
    ("Fashion-MNIST", "NCA"): (0.116, 0.538, 0.834, 0.950, 0.998, 1.000),
    ("Fashion-MNIST", "ARML"): (0.127, 0.348, 0.568, 0.763, 0.859, 0.928),
}


class Points(NamedTuple):
    """Labelled points on the scale [0, 1], as rows."""

    x: NDArray[np.float32]  # n d
    y: NDArray[np.int64]  # n
    ask_x: NDArray[np.float32]  # m d
    ask_y: NDArray[np.int64]  # m


def _points(name: Name, seed: int, train: int, test: int) -> Points:
    """So many of the training points and of the test points, drawn by the seed."""
    from assay.data import beyond

    rng = np.random.default_rng(seed)
    if name == "Pendigits":  # in one piece: first the training points, then those of other writers
        table = beyond.tabular("pendigits")
        own = rng.permutation(WRITTEN_FIRST)[:train]
        ask = WRITTEN_FIRST + rng.permutation(len(table.y) - WRITTEN_FIRST)[:test]
        x = (table.x - table.x.min(0)) / np.ptp(table.x, axis=0)
        return Points(x[own], table.y[own], x[ask], table.y[ask])
    data = beyond.mnist() if name == "MNIST" else beyond.fashion_mnist()
    taken = []
    for split, count in (("train", train), ("test", test)):
        part_x, part_y = data[split].take(np.sort(rng.permutation(len(data[split]))[:count]))
        taken += [part_x.flatten(1).numpy(), part_y.numpy()]
    return Points(*taken)


def _factor(name: Name, metric: Metric, points: Points, run: Run, tick: Callable[[int], None]) -> Floats:
    """G of the metric G'G: r d."""
    if metric == "Euclid":
        return np.eye(points.x.shape[1])
    if metric == "NCA":
        from sklearn.neighbors import NeighborhoodComponentsAnalysis

        nca = NeighborhoodComponentsAnalysis(init="identity", max_iter=NCA_STEPS, random_state=run.seed)
        return np.asarray(nca.fit(points.x, points.y).components_, dtype=np.float64)
    from assay.methods.train.arml import arml

    learned = arml(
        torch.tensor(points.x, device=run.device),
        torch.tensor(points.y, device=run.device),
        rng=run.rng(),
        epochs=SIZES[name].epochs,
        batch=SIZES[name].batch,
        on_epoch=lambda epoch, loss: tick(1),
    )
    return learned.factor.double().cpu().numpy()


def _radii(points: Points, factor: Floats) -> Floats:
    """The exact radius of 1-NN for each point asked about: m. Zero: misclassified."""
    from assay.methods.certify import nearest

    return nearest.exact_radius(points.x, points.y, points.ask_x, points.ask_y, factor=factor).radius


def lower_certified_error(name: Name, run: Run) -> Evidence:
    size = SIZES[name]
    points = _points(name, run.seed, size.train, size.test)
    with run.progress(f"learning a metric for {name}", size.epochs) as tick:
        plain, learned = (_radii(points, _factor(name, m, points, run, tick)) for m in ("Euclid", "ARML"))
    errors, changes = _against(name, {"Euclid": plain, "ARML": learned}, run.seed)
    verdict: Held = "cannot tell"
    if any(low > KEPT for low, _ in map(_between, changes)):
        verdict = "fails"
    elif all(high <= KEPT for _, high in map(_between, changes)):
        verdict = "holds"
    told = ", ".join(f"{100 * (m.value or 0):+.1f} at {r:g}" for m, r in zip(changes, RADII[name], strict=True))
    return Evidence(
        verdict=verdict,
        says=f"On {len(plain)} test points of {name} ARML changed the certified error of 1-NN by these many points: "
        f"{told}; the mean radius went from {plain.mean():.4f} to {learned.mean():.4f}.",
        measures=(*errors, *changes),
    )


def better_and_weaker(name: Name, run: Run) -> Evidence:
    """NCA beside Euclid, on as many training points as NCA can take."""
    points = _points(name, run.seed, NCA_POINTS, NCA_ASKED)
    with run.progress(f"NCA on {name}", 1) as tick:
        plain, learned = (_radii(points, _factor(name, m, points, run, tick)) for m in ("Euclid", "NCA"))
        tick(1)
    errors, changes = _against(name, {"Euclid": plain, "NCA": learned}, run.seed)
    (clean_low, clean_high), *others = map(_between, changes)
    verdict: Held = "cannot tell"
    if clean_high < 0 and any(low > KEPT for low, _ in others):
        verdict = "holds"
    elif clean_low >= 0 or all(high <= KEPT for _, high in others):
        verdict = "fails"
    worst = max(changes[1:], key=lambda m: m.value or 0)
    return Evidence(
        verdict=verdict,
        says=f"With {len(points.y)} training points of {name} NCA changed the clean error of 1-NN by "
        f"{100 * (changes[0].value or 0):+.1f} points, and its certified error by up to "
        f"{100 * (worst.value or 0):+.1f} ({worst.name}).",
        measures=(*errors, *changes),
    )


def _against(name: Name, radii: dict[Metric, Floats], seed: int) -> tuple[list[Measure], list[Measure]]:
    """The certified error at each printed radius under either metric, and the paired changes."""
    (first, before), (second, after) = radii.items()
    errors = [
        Measure.proportion(_what(r, metric), values <= r, better="lower")
        for r in RADII[name]
        for metric, values in ((first, before), (second, after))
    ]
    changes = [
        Measure.mean(
            f"change of the certified error at {r:g}",
            (after <= r).astype(np.float64) - (before <= r),
            better="lower",
            seed=seed,
            unit="%",
        )
        for r in RADII[name]
    ]
    return errors, changes


def _what(r: float, metric: Metric) -> str:
    return f"certified error at {r:g}, {metric}"


def _between(m: Measure) -> tuple[float, float]:
    assert m.low is not None  # Measure.mean gives both
    assert m.high is not None
    return m.low, m.high


def _published(name: Name, metrics: tuple[Metric, Metric]) -> tuple[Published, ...]:
    return tuple(
        Published(_what(r, metric), PRINTED[name, metric][i], f"table 1 (thesis: 3.4), {name}, {metric}", "%")
        for i, r in enumerate(RADII[name])
        for metric in metrics
    )


def _arml(name: Name, minutes: float, learned: str) -> Claim:
    return Claim(
        name=f"certified-error-{name.lower()}",
        source=SOURCE,
        says=f"ARML keeps or lowers the certified error of 1-NN on {name} at every radius, against the Euclidean "
        "distance.",
        published=_published(name, ("Euclid", "ARML")),
        here=f"{learned}; exact radii of {SIZES[name].test} test points; kept: it rises by less than "
        f"{100 * KEPT:g} points at every radius, by the whole of the paired interval",
        minutes=minutes,
        test=partial(lower_certified_error, name),
    )


def _nca(name: Name, minutes: float) -> Claim:
    return Claim(
        name=f"clean-against-certified-{name.lower()}",
        source=SOURCE,
        says=f"A metric that lowers the clean error of 1-NN can raise its certified error: NCA on {name}.",
        published=_published(name, ("Euclid", "NCA")),
        here=f"{NCA_POINTS} training images, scikit-learn's NCA from the identity in {NCA_STEPS} steps of L-BFGS; "
        f"exact radii of {NCA_ASKED} test images",
        minutes=minutes,
        test=partial(better_and_weaker, name),
    )


def _images(size: Size) -> str:
    return (
        f"{size.train:,} of the 60,000 training images, {size.epochs} epochs in batches of {size.batch} (printed: all, "
        "1000 steps)"
    )


SHELVED = (
    _arml("Pendigits", 3, f"all {SIZES['Pendigits'].train} training points, {SIZES['Pendigits'].epochs} steps"),
    _arml("MNIST", 12, _images(SIZES["MNIST"])),
    _arml("Fashion-MNIST", 12, _images(SIZES["Fashion-MNIST"])),
    _nca("MNIST", 3),
    _nca("Fashion-MNIST", 3),
)
