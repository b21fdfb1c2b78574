"""Wang, Liu, Yi, Zhou & Hsieh 2019: the exact robustness of nearest-neighbour classifiers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from assay.claim import Claim, Evidence, Held, Published
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = (
    "Wang, Liu, Yi, Zhou & Hsieh, 'Evaluating the Robustness of Nearest Neighbor Classifiers: A Primal-Dual "
    "Perspective', 2019; tables as numbered in the thesis 'Building Trustworthy Machine Learning Models'"
)
Name = Literal["Letter", "Pendigits", "MNIST", "Fashion-MNIST"]
TRAIN = {"Letter": 15_000, "Pendigits": 7494}  # of the tables; the images come split
INPUTS = 100
ROWS = ("QP-verify", "QP-exact", "QP-top-10", "QP-top-1", "Naive-1", "Naive-10", "Mean", "Substitute")
LADDER = 5  # of them lie in this order on every input
ROUNDING = 1e-7
PRINTED: dict[Name, tuple[float, ...]] = {
    "Letter": (0.098, 0.100, 0.100, 0.104, 0.116, 0.110, 0.264, 0.267),
    "Pendigits": (0.264, 0.278, 0.279, 0.284, 0.318, 0.306, 0.588, 0.678),
    "MNIST": (1.451, 1.530, 1.530, 1.560, 1.923, 1.848, 4.560, 1.791),
    "Fashion-MNIST": (1.029, 1.077, 1.077, 1.090, 1.410, 1.377, 4.066, 1.267),
}
Arrays = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]


@lru_cache(maxsize=1)
def _data(name: Name) -> Arrays:
    """Training and test points n d with their labels; a table is scaled so that its training part fills [0, 1]."""
    from assay.data.beyond import fashion_mnist, mnist, tabular

    if name in TRAIN:
        table = tabular(name.lower())
        x, n = table.x.astype(np.float64), TRAIN[name]
        low, high = x[:n].min(0), x[:n].max(0)
        x = (x - low) / (high - low)
        return x[:n], table.y[:n], x[n:], table.y[n:]
    splits = mnist() if name == "MNIST" else fashion_mnist()
    train, test = (splits[part].take(np.arange(len(splits[part]))) for part in ("train", "test"))
    return (
        train[0].flatten(1).double().numpy(),
        train[1].numpy(),
        test[0].flatten(1).double().numpy(),
        test[1].numpy(),
    )


def _radii(name: Name, run: Run) -> NDArray[np.float64]:
    """What each method finds for inputs that 1-NN gets right: methods x inputs; inf where an attack found nothing."""
    from sklearn.neighbors import KNeighborsClassifier

    from assay.methods.certify.nearest import attack, certified_radius, exact_radius

    x, y, z, c = _data(name)
    order = np.random.default_rng(run.seed).permutation(len(z))[: 2 * INPUTS]
    right = KNeighborsClassifier(1, algorithm="brute").fit(x, y).predict(z[order]) == c[order]
    z, c = z[order][right][:INPUTS], c[order][right][:INPUTS]
    box = min(z.min(), 0.0), max(z.max(), 1.0)  # [0, 1], but for the few test points beyond the range of a table
    work: dict[str, Callable[[], NDArray[np.float64]]] = {
        "QP-verify": lambda: certified_radius(x, y, z, c, 1),
        "QP-exact": lambda: exact_radius(x, y, z, c).radius,
        "QP-top-10": lambda: attack(x, y, z, c, top=10).radius,
        "QP-top-1": lambda: attack(x, y, z, c, top=1).radius,
        "Naive-1": lambda: attack(x, y, z, c, method="naive", top=1).radius,
        "Naive-10": lambda: attack(x, y, z, c, method="naive", top=10).radius,
        "Mean": lambda: attack(x, y, z, c, method="mean").radius,
        "Substitute": lambda: attack(x, y, z, c, method="substitute", box=box).radius,
    }
    found = []
    with run.progress(f"{len(ROWS)} methods on {name}", len(ROWS)) as tick:
        for row in ROWS:
            found.append(work[row]())
            tick(1)
    return np.array(found)


def the_table(name: Name, run: Run) -> Evidence:
    radii = _radii(name, run)  # methods inputs
    broken = int((radii[: LADDER - 1] > radii[1:LADDER] + ROUNDING).any(0).sum())
    exact = radii[ROWS.index("QP-exact")]
    beaten = int((radii[LADDER:] < exact - ROUNDING).any(0).sum())
    mean, printed = float(exact.mean()), PRINTED[name][ROWS.index("QP-exact")]
    # Both means are of as many inputs drawn at random: the gap between them is uncertain by the root of two draws.
    half = _half_width(exact) * 2**0.5
    near = abs(mean - printed) <= half
    verdict: Held = "holds" if near and not broken and not beaten else "fails"
    ladder = "on every input" if not broken else f"on all but {broken} inputs"
    return Evidence(
        verdict=verdict,
        says=f"The mean exact radius of {radii.shape[1]} inputs is {mean:.3f}, printed {printed:.3f} (two such samples "
        f"may differ by {half:.3f}); QP-verify <= exact <= QP-top-10 <= QP-top-1 <= Naive-1 {ladder}; "
        f"{beaten or 'no'} inputs were broken within the exact radius.",
        measures=tuple(_mean(row, found) for row, found in zip(ROWS, radii, strict=True)),
    )


def _half_width(values: NDArray[np.float64]) -> float:
    return float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def _mean(row: str, found: NDArray[np.float64]) -> Measure:
    """The mean over the inputs that the method broke, with Student's interval."""
    done = found[np.isfinite(found)]
    if len(done) < 2:
        return Measure(name=f"mean l2, {row}", value=None, better="neither", n=len(done))
    half, mean = _half_width(done), float(done.mean())
    return Measure(name=f"mean l2, {row}", value=mean, low=mean - half, high=mean + half, better="neither", n=len(done))


def _claim(name: Name, minutes: float) -> Claim:
    points = f"{TRAIN[name]:,} training points" if name in TRAIN else "60,000 training images"
    return Claim(
        name=f"exact-radius-{name.lower()}",
        source=SOURCE,
        says=f"The exact minimal l2 change that breaks 1-NN on {name} lies between the closed-form bound and every "
        "attack, QP-verify <= QP-exact <= QP-top-10 <= QP-top-1 <= Naive-1, with the mean of the table.",
        published=tuple(
            Published(f"mean l2, {row}", value, f"table 3.1, {name}, {row}")
            for row, value in zip(ROWS, PRINTED[name], strict=True)
        ),
        here=f"{points}, {INPUTS} random test points that 1-NN gets right, features in [0, 1] (of Substitute also the "
        "changed inputs); means of attacks are over the inputs they break",
        minutes=minutes,
        test=partial(the_table, name),
    )


SHELVED = (_claim("Letter", 0.2), _claim("Pendigits", 0.2), _claim("MNIST", 1.5), _claim("Fashion-MNIST", 1.5))
