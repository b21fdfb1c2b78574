"""Krysinska et al. 2021: typical inputs first, and whether what is gained is the order's or that of more updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from assay.claim import Claim, Evidence, Held, Published
from assay.claims._elsewhere import RULE, elsewhere
from assay.finding import Measure
from assay.methods.train.curriculum import Schedule, Scheduler
from assay.methods.train.typicality import Curriculum

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = (
    "Krysinska, Morzy & Kajdanowicz, 'Curriculum Learning Revisited: Incremental Batch Learning with Instance "
    "Typicality Ranking', ICANN 2021"
)
CURRICULA: tuple[Curriculum, ...] = ("degree", "entropy", "degree-adjusted")
REPEATING: tuple[Scheduler, ...] = ("ordered", "batch-repetition", "repeat-until-remember")
SPLITS, HELD_OUT = 30, 0.33
EPOCHS, LR = 50, 1e-3
TOY, FLIPPED = 500, 0.1  # inputs of the two Gaussian classes, and the share of wrong labels among those trained on
APART = 0.27  # each feature of either class from their middle: four in five are right at best
SETS = ("breast cancer", "iris", "two Gaussians", "wine")
PART = 0.5  # of the gain: an order that explains less is not the factor
Array = NDArray[np.float64]


class _Split(NamedTuple):
    """A data set parted in many ways: s n d, s n, s m d, s m."""

    x: Tensor
    y: Tensor
    new: Tensor
    truth: Tensor


def _split(name: str, seed: int) -> _Split:
    """Random parts, the features scaled by each training part."""
    from sklearn.datasets import load_breast_cancer, load_iris, load_wine

    rng = np.random.default_rng(seed)
    if name == "two Gaussians":
        y = np.arange(TOY) % 2
        x = rng.normal(size=(TOY, 10)) + APART * (2 * y - 1)[:, None]
    else:
        x, y = {"breast cancer": load_breast_cancer, "iris": load_iris, "wine": load_wine}[name](return_X_y=True)
    held = round(HELD_OUT * len(y))
    parts = [rng.permutation(len(y)) for _ in range(SPLITS)]
    train, test = (np.stack([p[s] for p in parts]) for s in (slice(held, None), slice(held)))
    labels = y[train]
    if name == "two Gaussians":
        labels = np.where(rng.random(labels.shape) < FLIPPED, 1 - labels, labels)
    middle, spread = x[train].mean(1, keepdims=True), x[train].std(1, keepdims=True) + 1e-9
    scaled = ((x[which] - middle) / spread for which in (train, test))
    shown, new = (torch.as_tensor(part, dtype=torch.float32) for part in scaled)
    return _Split(shown, torch.as_tensor(labels), new, torch.as_tensor(y[test]))


def _ranked(split: _Split, by: Curriculum, classes: int, seed: int) -> Tensor:  # -> s n
    """The most typical first, in each part by itself."""
    from assay.methods.train.typicality import neighbours, typicality, unit_rows

    rng = torch.Generator().manual_seed(seed)
    orders = []
    for x, y in zip(split.x, split.y, strict=True):
        orders.append(typicality(neighbours(unit_rows(x), y, classes), y).ranked(by, rng))
    return torch.stack(orders)


def logistic(
    x: Tensor, y: Tensor, batches: Iterator[Tensor], start: Tensor, *, lr: float = LR
) -> tuple[Tensor, Tensor]:  # s n d, s n, each s b, s d k -> s d k, s k
    """s logistic regressions side by side, by Adam from these weights, each on its own batch of each step.

    By hand, because fit trains one net at a time: 65,000 steps of 120 nets are minutes here and hours there.
    """
    hot = F.one_hot(y, start.shape[2]).to(x)
    rows = torch.cat([x, torch.ones_like(x[..., :1])], 2)  # the last feature is the bias
    w = torch.cat([start, torch.zeros_like(start[:, :1])], 1)
    mean, square = torch.zeros_like(w), torch.zeros_like(w)
    which = torch.arange(len(x), device=x.device)[:, None]
    for t, index in enumerate(batches, 1):
        seen, truth = rows[which, index], hot[which, index]  # s b d+1, s b k
        slope = seen.transpose(1, 2) @ ((seen @ w).softmax(2) - truth) / index.shape[1]
        mean.lerp_(slope, 0.1)
        square.lerp_(slope * slope, 0.001)
        w.addcdiv_(mean, (square / (1 - 0.999**t)).sqrt_().add_(1e-8), value=-lr / (1 - 0.9**t))
    return w[:, :-1], w[:, -1]


def _batches(orders: Tensor, schedule: Schedule, random: int, seed: int) -> Iterator[Tensor]:  # s n, each s b
    """Of all epochs; the orders of the last `random` rows are new each epoch."""
    rng = torch.Generator(orders.device).manual_seed(seed)
    n, orders = orders.shape[1], orders.clone()
    places = schedule.batches(torch.arange(n, device=orders.device))
    for _ in range(EPOCHS):
        orders[-random:] = torch.rand(random, n, generator=rng, device=orders.device).argsort(1)
        for at in places:
            yield orders[:, at]


@cache  # all claims are about the same trainings
def _accuracies(scheduler: Scheduler, data: str, seed: int, device: str) -> Array:
    """On held-out inputs: splits x (the three curricula, and a random order with as many updates)."""
    split = _split(data, seed)
    classes = int(split.truth.max()) + 1
    orders = [_ranked(split, by, classes, seed) for by in CURRICULA]
    orders.append(orders[0])  # a place for the random ones
    arms = len(orders)
    x, y, new, truth = (part.to(device).repeat(arms, *[1] * (part.ndim - 1)) for part in split)
    stream = _batches(torch.cat(orders).to(device), Schedule(scheduler), len(split.y), seed)
    wide = (
        6 / (x.shape[2] + classes)
    ) ** 0.5  # as Glorot and Bengio (2010) begin, and Keras, with which print was made
    rng = torch.Generator().manual_seed(seed)
    start = wide * (2 * torch.rand(len(split.y), x.shape[2], classes, generator=rng) - 1)
    w, b = logistic(x, y, stream, start.repeat(arms, 1, 1).to(device))
    right = ((new @ w + b[:, None]).argmax(2) == truth).double().mean(1)
    found: Array = right.reshape(arms, -1).T.cpu().numpy()
    return found


def _all(run: Run) -> dict[Scheduler, Array]:
    """Each splits x data sets x four arms; the last arm of mini-batch is the printed baseline."""
    schedulers: tuple[Scheduler, ...] = ("mini-batch", *REPEATING)
    found: dict[Scheduler, Array] = {}
    with run.progress("training logistic regressions", len(schedulers) * len(SETS)) as tick:
        for scheduler in schedulers:
            parts = []
            for name in SETS:
                parts.append(_accuracies(scheduler, name, run.seed, run.device))
                tick(1)
            found[scheduler] = np.stack(parts, 1)
    return found


def _gain(name: str, ours: Array, others: Array) -> Measure:  # s sets
    """The mean over data sets and splits; splits overlap, so that the interval is that of Nadeau and Bengio (2003)."""
    gain = (ours - others).mean(1)
    wider = 1 / len(gain) + HELD_OUT / (1 - HELD_OUT)
    half = float(student.ppf(0.975, len(gain) - 1)) * float(np.sqrt(wider * gain.var(ddof=1)))
    mean = float(gain.mean())
    return Measure(
        name=name, value=mean, low=mean - half, high=mean + half, better="higher", n=int(ours.size), unit="%"
    )


def _wins(name: str, ours: Array, others: Array) -> Measure:
    """Of the runs that one of them wins."""
    decided = (ours != others).ravel()
    return (
        Measure.proportion(name, (ours > others).ravel()[decided], better="higher")
        if decided.any()
        else Measure(name=name, value=0.5, better="higher", n=0, unit="%")
    )


def _points(measure: Measure) -> str:
    return f"{100 * (measure.value or 0):+.1f} ({100 * (measure.low or 0):+.1f} to {100 * (measure.high or 0):+.1f})"


def _both(found: dict[Scheduler, Array], scheduler: Scheduler) -> tuple[Measure, Measure]:
    """What the curricula gain over the printed baseline, and over as many updates in random order."""
    ordered = found[scheduler][:, :, :3].mean(2)
    return (
        _gain(f"gain over the baseline, {scheduler}", ordered, found["mini-batch"][:, :, 3]),
        _gain(f"gain over equal updates, {scheduler}", ordered, found[scheduler][:, :, 3]),
    )


def repeating(run: Run) -> Evidence:
    found = _all(run)
    gains = [_both(found, scheduler)[0] for scheduler in REPEATING]
    if all((gain.low or 0) > 0 for gain in gains):
        held: Held = "holds"
    else:
        held = "fails" if any((gain.high or 0) < 0 for gain in gains) else "cannot tell"
    told = ", ".join(f"{_points(gain)} with {name}" for name, gain in zip(REPEATING, gains, strict=True))
    base = found["mini-batch"][:, :, 3]
    wins = [_wins(f"wins of degree over the baseline, {s}", found[s][:, :, 0], base) for s in REPEATING]
    return elsewhere(
        held,
        says=f"Points of accuracy that the curricula gain over random batches of 32: {told}.",
        measures=(*wins, *gains),
    )


def order_is_the_factor(run: Run) -> Evidence:
    found = _all(run)
    pairs = [_both(found, scheduler) for scheduler in REPEATING]
    if all((order.low or 0) > 0 for _, order in pairs):
        held: Held = "holds"
    elif all((order.high or 0) < max(0.0, PART * (whole.value or 0)) for whole, order in pairs):
        held = "fails"
    else:
        held = "cannot tell"
    told = "; ".join(
        f"{name}: {_points(whole)} over the baseline, {_points(order)} over as many updates in random order"
        for name, (whole, order) in zip(REPEATING, pairs, strict=True)
    )
    return elsewhere(
        held,
        says=f"Points of accuracy that the curricula gain: {told}.",
        measures=tuple(measure for pair in pairs for measure in pair),
    )


def order_alone(run: Run) -> Evidence:
    from assay.methods.uncertainty.friedman import friedman

    found = _all(run)["mini-batch"]
    gains = [_gain(f"gain of {by} over the baseline", found[:, :, i], found[:, :, 3]) for i, by in enumerate(CURRICULA)]
    wins = [_wins(f"wins of {by} over the baseline", found[:, :, i], found[:, :, 3]) for i, by in enumerate(CURRICULA)]
    chance = friedman(np.roll(found, 1, axis=2).reshape(-1, 4))
    if all((gain.high or 0) < 0 for gain in gains[:2]):
        held: Held = "holds"
    else:
        held = "fails" if any((gain.low or 0) > 0 for gain in gains) else "cannot tell"
    told = ", ".join(f"{_points(gain)} by {by}" for by, gain in zip(CURRICULA, gains, strict=True))
    return elsewhere(
        held,
        says=f"Points of accuracy that an order gains with the same batches of 32: {told}; Friedman's test over all "
        f"{found.shape[0] * found.shape[1]} runs gives p = {chance:.2g}.",
        measures=(
            *wins,
            Measure(name="p of Friedman's test, mini-batch", value=chance, better="neither", n=found[..., 0].size),
            *gains,
        ),
    )


def _share(ours: int, theirs: int) -> float:
    return ours / (ours + theirs)


def _printed(what: str, tables: Sequence[tuple[str, int, int, str]]) -> tuple[Published, ...]:
    return tuple(
        Published(
            f"wins of {name}, of the runs that one of the two wins", _share(ours, theirs), what, "%", f"wins of {here}"
        )
        for name, ours, theirs, here in tables
    )


HERE = (
    "logistic regression from small random weights on breast cancer, iris and wine of scikit-learn and on two Gaussian "
    f"classes in 10 dimensions with {100 * FLIPPED:.0f} % of the training labels flipped; {SPLITS} random parts of "
    f"67/33, {EPOCHS} epochs of Adam at {LR:g}, similarity by the cosine of scaled features; intervals widened for "
    "parts that overlap (Nadeau & Bengio 2003); print has nine sets of the UCI repository, of which only breast cancer "
    f"is among these, with 5 of its features there: {RULE}"
)
SHELVED = (
    Claim(
        name="repeating-beats-baseline",
        source=SOURCE,
        says="Ordered gradient descent, batch repetition and repeat-until-remember with a curriculum are more accurate "
        "than random batches of 32.",
        published=(
            *_printed(
                "table 5, B against A",
                [("OGD with degree over the baseline", 173, 89, "degree over the baseline, ordered")],
            ),
            *_printed(
                "table 6, B against A",
                [("BR with degree over the baseline", 163, 99, "degree over the baseline, batch-repetition")],
            ),
            *_printed(
                "table 7, B against A",
                [("RuR with degree over the baseline", 196, 66, "degree over the baseline, repeat-until-remember")],
            ),
        ),
        here=f"{HERE}; holds if the mean of the three curricula is ahead with each scheduler",
        minutes=5,
        test=repeating,
    ),
    Claim(
        name="order-is-the-factor",
        source=SOURCE,
        says="Of ordered gradient descent and of batch repetition against the baseline, the order of the instances is "
        "what improves the model.",
        published=(),
        here=f"{HERE}; each scheduler beside itself with an order that is new each epoch, at equal updates, which "
        f"print lacks; holds if the order is ahead of that with each scheduler, fails if it explains less than "
        f"{100 * PART:.0f} % of the gain over the baseline with each",
        minutes=5,
        test=order_is_the_factor,
    ),
    Claim(
        name="order-alone-hurts",
        source=SOURCE,
        says="With the same batches of 32, an order of typicality makes the model less accurate than random ones.",
        published=(
            *_printed(
                "table 4, against A",
                [
                    ("mini-batch with degree over the baseline", 95, 163, "degree over the baseline"),
                    ("mini-batch with entropy over the baseline", 98, 163, "entropy over the baseline"),
                    (
                        "mini-batch with degree-adjusted entropy over the baseline",
                        110,
                        150,
                        "degree-adjusted over the baseline",
                    ),
                ],
            ),
            Published("p of Friedman's test, mini-batch", 3.78e-6, "sec. 6, text"),
        ),
        here=f"{HERE}; holds if degree and entropy are behind (print: the third not significantly)",
        minutes=5,
        test=order_alone,
    ),
)
