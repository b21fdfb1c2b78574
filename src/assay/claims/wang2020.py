"""Wang, Liu, Yi, Jiang & Hsieh 2020: metrics under which nearest neighbours are provably robust."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.claims._kept import kept
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = "Wang, Liu, Yi, Jiang & Hsieh, 'Provably Robust Metric Learning', NeurIPS 2020, arXiv:2006.07024"
Name = Literal["Pendigits", "MNIST", "Fashion-MNIST"]
Learned = Literal["NCA", "ARML"]
Metric = Literal["Euclid", Learned]
Floats = NDArray[np.float64]


class Size(NamedTuple):
    """Of how many test points exact radii are taken, and how ARML is trained on all training points."""

    asked: int
    epochs: int
    batch: int


SEEDS = 5
SIZES: dict[Name, Size] = {
    "Pendigits": Size(asked=3498, epochs=1000, batch=7494),
    "MNIST": Size(asked=1000, epochs=50, batch=6000),
    "Fashion-MNIST": Size(asked=1000, epochs=50, batch=6000),
}
NCA_ASKED, NCA_STEPS, NCA_BATCH, NCA_RATE = 500, 200, 2000, 1e-3
NOTHING = 1e-20  # a chance below it is 0: numbers below 1e-38 make a product of matrices ten times as slow
WRITTEN_FIRST = 7494  # of the points of Pendigits are for training
TOGETHER = 2**24  # distances that are held at a time
PRINT_ASKED = 1000  # test points of print, by the authors' code
NORMAL = 1.96

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
    """Labelled points on the scale [0, 1], as rows: all that there are, test points in an order drawn by the seed."""

    x: NDArray[np.float32]  # n d
    y: NDArray[np.int64]  # n
    ask_x: NDArray[np.float32]  # m d
    ask_y: NDArray[np.int64]  # m


class Under(NamedTuple):
    """What K-NN does under one metric: does a test point have its majority, and how far is one from losing it?"""

    right: Floats  # m, of all test points
    radius: Floats  # of those that are asked about; 0: lost already

    def errors(self, radius: float) -> Floats:
        """1 where no certificate reaches beyond the radius; at 0 of all test points."""
        return 1 - self.right if radius == 0 else (self.radius <= radius).astype(np.float64)


def _points(name: Name, seed: int) -> Points:
    from assay.data import beyond

    if name == "Pendigits":  # in one piece: first the training points, then those of other writers
        table = beyond.tabular("pendigits")
        x = (table.x - table.x.min(0)) / np.ptp(table.x, axis=0)
        own, others = slice(WRITTEN_FIRST), slice(WRITTEN_FIRST, None)
        points = Points(x[own], table.y[own], x[others], table.y[others])
    else:
        data = beyond.mnist() if name == "MNIST" else beyond.fashion_mnist()
        taken = []
        for split in ("train", "test"):
            part_x, part_y = data[split].take(np.arange(len(data[split])))
            taken += [part_x.flatten(1).numpy(), part_y.numpy()]
        points = Points(*taken)
    order = np.random.default_rng(seed).permutation(len(points.ask_y))
    return points._replace(ask_x=points.ask_x[order], ask_y=points.ask_y[order])


def _seeds(run: Run) -> range:
    return range(run.seed, run.seed + SEEDS)


def _factor(name: Name, metric: Learned, points: Points, seed: int, device: str) -> Floats:
    """G of the metric G'G, learnt by one training from all training points: d d."""
    x, y = torch.tensor(points.x, device=device), torch.tensor(points.y, device=device)
    rng = torch.Generator(device).manual_seed(seed)

    def learn() -> dict[str, Tensor]:
        from assay.methods.train.arml import arml

        if metric == "NCA":
            return {"factor": _nca(x, y, rng)}
        return {"factor": arml(x, y, rng=rng, epochs=SIZES[name].epochs, batch=SIZES[name].batch).factor}

    settings = SIZES[name][1:] if metric == "ARML" else (NCA_STEPS, NCA_BATCH, NCA_RATE)
    made = kept(learn, __name__, (name, metric, settings, seed), device, (x, y))
    return made["factor"].double().cpu().numpy()


def _nca(x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:  # n d, n -> d d
    """NCA in batches: Adam climbs the mean chance that a neighbour drawn from the batch is of the point's own class.

        p_ij = softmax_j(-a_ij), j != i,   a_ij = |G x_i - G x_j|^2,   p_i = sum_{j: y_j = y_i} p_ij
        dp_i / da_ij = p_ij (p_i - [y_j = y_i])

    Source: Goldberger et al., NIPS 2004. There it is one batch, whose cost grows with the square of the points.
    """
    factor = torch.eye(x.shape[1], device=x.device)
    climb = torch.optim.Adam([factor], lr=NCA_RATE)
    for _ in range(NCA_STEPS):
        rows = torch.randperm(len(x), generator=rng, device=x.device)[:NCA_BATCH]
        here, same = x[rows], (y[rows, None] == y[rows]).to(x)
        z = here @ factor.T
        size = z.square().sum(1)
        away = size[:, None] + size - 2 * z @ z.T  # b b
        chance = (-away.fill_diagonal_(torch.inf)).softmax(1)
        chance[chance < NOTHING] = 0
        pull = chance * (same - (chance * same).sum(1, keepdim=True))
        pull += pull.T.clone()
        factor.grad = 2 / len(rows) * (pull.sum(1, keepdim=True) * z - pull @ z).T @ here
        climb.step()
    return factor


def _right(points: Points, factor: Floats | None, votes: int, device: str) -> Floats:
    """1 where most of the nearest training points, so many have votes, are of the test point's class: m."""
    x, ask = (torch.tensor(part, device=device) for part in (points.x, points.ask_x))
    y, ask_y = (torch.tensor(part, device=device) for part in (points.y, points.ask_y))
    if factor is not None:
        turn = torch.tensor(factor, dtype=x.dtype, device=device).T
        x, ask = x @ turn, ask @ turn
    size, found = x.square().sum(1), []
    for part, label in zip(*(torch.split(whole, max(1, TOGETHER // len(x))) for whole in (ask, ask_y)), strict=True):
        near = (size - 2 * part @ x.T).topk(votes, largest=False).indices
        found.append((y[near] == label[:, None]).sum(1) > votes // 2)
    right: Floats = torch.cat(found).double().cpu().numpy()
    return right


def _radii(points: Points, factor: Floats | None, asked: int) -> Floats:
    """The exact radius of 1-NN for the first test points. Zero: misclassified."""
    from assay.methods.certify import nearest

    ask_x, ask_y = points.ask_x[:asked], points.ask_y[:asked]
    return nearest.exact_radius(points.x, points.y, ask_x, ask_y, factor=factor).radius


def _found(name: Name, metric: Learned, asked: int, run: Run) -> tuple[Under, list[Under]]:
    """1-NN under the Euclidean distance, and under the metric of each training; the test points are the same."""
    points = _points(name, run.seed)

    def under(factor: Floats | None) -> Under:
        return Under(_right(points, factor, 1, run.device), _radii(points, factor, asked))

    plain, learned = under(None), []
    with run.progress(f"{metric} on {name}", SEEDS) as tick:
        for seed in _seeds(run):
            learned.append(under(_factor(name, metric, points, seed, run.device)))
            tick(1)
    return plain, learned


def lower_certified_error(name: Name, run: Run) -> Evidence:
    plain, learned = _found(name, "ARML", SIZES[name].asked, run)
    errors, changes = _against(RADII[name], "ARML", plain, learned)
    before, after = (np.mean([u.radius.mean() for u in of]) for of in ([plain], learned))
    return Evidence(
        verdict=lowered(*changes[1:]),  # print speaks of the radii; that ARML is best without an attack it does not say
        says=f"{SEEDS} trainings of ARML changed the certified error of 1-NN on {name} by these many points: "
        f"{_told(changes, RADII[name])}; the mean radius went from {before:.4f} to {after:.4f}.",
        measures=(*errors, *(change.measure for change in changes)),
        gates=(_gate(f"The error of 1-NN on {name}", "the Euclidean distance", [plain], PRINTED[name, "Euclid"][0]),),
        seeds=SEEDS,
    )


def better_and_weaker(name: Name, run: Run) -> Evidence:
    plain, learned = _found(name, "NCA", NCA_ASKED, run)
    errors, (clean, *others) = _against(RADII[name], "NCA", plain, learned)
    better, risen = lowered(clean), [over.above(0.0, change) for change in others]
    verdict: Held = "cannot tell"
    if better == "holds" and "holds" in risen:
        verdict = "holds"
    elif better == "fails" or all(held == "fails" for held in risen):
        verdict = "fails"
    worst = max((change.measure for change in others), key=lambda m: m.value or 0)
    return Evidence(
        verdict=verdict,
        says=f"{SEEDS} trainings of NCA changed the error of 1-NN on {name} without an attack by {over.points(clean)} "
        f"points, and its certified error by up to {100 * (worst.value or 0):+.1f} ({worst.name}).",
        measures=(*errors, clean.measure, *(change.measure for change in others)),
        gates=(
            _gate(f"The error of 1-NN on {name}", "the Euclidean distance", [plain], PRINTED[name, "Euclid"][0]),
            _gate(f"The error of 1-NN on {name}", "NCA", learned, PRINTED[name, "NCA"][0]),
        ),
        seeds=SEEDS,
    )


def lowered(*changes: over.Gap) -> Held:
    """holds: every change lies below 0, by its interval and in each training. fails: one lies above."""
    if all(change.high < 0 and (change.seeds < 0).all() for change in changes):
        return "holds"
    return "fails" if any(over.above(0.0, change) == "holds" for change in changes) else "cannot tell"


def _against(
    radii: tuple[float, ...], metric: Learned, plain: Under, learned: list[Under]
) -> tuple[list[Measure], list[over.Gap]]:
    """The certified error at each radius under either metric, and the changes, paired by test point."""
    errors, changes = [], []
    for r in radii:
        before, after = plain.errors(r), [under.errors(r) for under in learned]
        errors.append(Measure.proportion(_what(r, "Euclid"), before > 0, better="lower"))
        errors.append(over.mean(_what(r, metric), after, "%", "lower").measure)
        changes.append(over.mean(f"change of the certified error at {r:g}", [a - before for a in after], "%", "lower"))
    return errors, changes


def _gate(what: str, metric: str, under: list[Under], printed: float) -> Gate:
    """Of all test points, as near print as two samples of one population are: those here, and the 1000 of print."""
    half = NORMAL * (printed * (1 - printed) * (1 / PRINT_ASKED + 1 / len(under[0].right))) ** 0.5
    low, high = round(printed - half, 4), round(printed + half, 4)
    return over.gate(f"{what} under {metric}", [u.errors(0) for u in under], printed, low, high)


def _what(r: float, metric: Metric) -> str:
    return f"certified error at {r:g}, {metric}"


def _told(changes: list[over.Gap], radii: tuple[float, ...]) -> str:
    return ", ".join(f"{over.points(change)} at {r:g}" for change, r in zip(changes, radii, strict=True))


def _published(name: Name, metrics: tuple[Metric, Metric]) -> tuple[Published, ...]:
    return tuple(
        Published(_what(r, metric), PRINTED[name, metric][i], f"table 1 (thesis: 3.4), {name}, {metric}", "%")
        for i, r in enumerate(RADII[name])
        for metric in metrics
    )


def _trained(name: Name) -> str:
    """How ARML is trained here."""
    size = SIZES[name]
    if name == "Pendigits":
        return f"all {WRITTEN_FIRST:,} training points, {size.epochs:,} steps of all of them"
    steps = size.epochs * 60_000 // size.batch
    return (
        f"all 60,000 training images, {steps} steps of batches of {size.batch:,} (the authors' code: 1000 steps of all)"
    )


DRAWN = "a seed draws {} of its training; the test points are the same for all"
GATED = (
    "gate: the error of {} on all test points lies within what sampling allows (95 %) of print's, which is of "
    f"{PRINT_ASKED:,} by the authors' code"
)


def _about_arml(name: Name, minutes: float) -> Claim:
    which = f"all {SIZES[name].asked:,}" if name == "Pendigits" else f"{SIZES[name].asked:,} of the 10,000"
    drawn = "the neighbours" if name == "Pendigits" else "the batches and the neighbours"
    return Claim(
        name=f"certified-error-{name.lower()}",
        source=SOURCE,
        says=f"ARML lowers the certified error of 1-NN on {name} at every radius above 0, against the Euclidean "
        "distance.",
        published=_published(name, ("Euclid", "ARML")),
        here=f"{_trained(name)}; {SEEDS} trainings: {DRAWN.format(drawn)}; errors at 0 of all test points, else exact "
        f"radii of {which}; lowers: the interval of the paired change, over trainings and test points, lies below 0, "
        f"and each training does; {GATED.format('the Euclidean distance')}",
        minutes=minutes,
        test=partial(lower_certified_error, name),
        seeds=SEEDS,
    )


def _about_nca(name: Name, minutes: float) -> Claim:
    return Claim(
        name=f"clean-against-certified-{name.lower()}",
        source=SOURCE,
        says=f"A metric that lowers the clean error of 1-NN can raise its certified error: NCA on {name}.",
        published=_published(name, ("Euclid", "NCA")),
        here=f"all 60,000 training images; NCA from the identity, {NCA_STEPS} steps of Adam on batches of "
        f"{NCA_BATCH:,}, since its cost grows with the square of the points (how print trained it is not said); "
        f"{SEEDS} trainings: {DRAWN.format('the batches')}; errors at 0 of all 10,000 test images, else exact radii "
        f"of {NCA_ASKED}; {GATED.format('the Euclidean distance, and of NCA in each training,')}",
        minutes=minutes,
        test=partial(better_and_weaker, name),
        seeds=SEEDS,
    )


SHELVED = (
    _about_arml("Pendigits", 10),
    _about_arml("MNIST", 450),
    _about_arml("Fashion-MNIST", 450),
    _about_nca("MNIST", 15),
    _about_nca("Fashion-MNIST", 15),
)
