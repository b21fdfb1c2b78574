"""Wang et al. 2019 and 2020: neighbours that vote, fifteen between a bound and attacks, eleven under a metric."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.claim import Claim, Evidence, Held, Published
from assay.claims import wang2019 as alone
from assay.claims import wang2020 as metrics
from assay.claims.wang2019 import Name
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

VOTES, ELEVEN = 15, 11
INPUTS, ROUNDING = 100, 1e-6
ROWS = ("QP-verify", "QP-greedy", "Naive-10", "Naive-1", "Mean")
PRINTED: dict[Name, tuple[float, ...]] = {
    "Letter": (0.082, 0.156, 0.127, 0.152, 0.265),
    "Pendigits": (0.287, 0.396, 0.366, 0.415, 0.597),
    "MNIST": (1.395, 2.842, 2.862, 3.451, 4.560),
    "Fashion-MNIST": (1.051, 2.546, 2.394, 2.462, 3.738),
}
ASKED = 500
RADII = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
CERTIFIED: dict[metrics.Metric, tuple[float, ...]] = {
    "Euclid": (0.038, 0.134, 0.360, 0.618, 0.814, 0.975),
    "ARML": (0.034, 0.101, 0.276, 0.537, 0.760, 0.951),
}
Floats = NDArray[np.float64]


def _radii(name: Name, run: Run) -> Floats:
    """What each method finds for inputs that the vote gets right: methods x inputs; inf where nothing was found."""
    from sklearn.neighbors import KNeighborsClassifier

    from assay.methods.certify.nearest import attack, certified_radius

    x, y, z, c = alone._data(name)
    order = np.random.default_rng(run.seed).permutation(len(z))[: 2 * INPUTS]
    right = KNeighborsClassifier(VOTES, algorithm="brute").fit(x, y).predict(z[order]) == c[order]
    z, c = z[order][right][:INPUTS], c[order][right][:INPUTS]
    work: dict[str, Callable[[], Floats]] = {
        "QP-verify": lambda: certified_radius(x, y, z, c, VOTES),
        "QP-greedy": lambda: attack(x, y, z, c, VOTES).radius,
        "Naive-10": lambda: attack(x, y, z, c, VOTES, method="naive", top=10).radius,
        "Naive-1": lambda: attack(x, y, z, c, VOTES, method="naive", top=1).radius,
        "Mean": lambda: attack(x, y, z, c, VOTES, method="mean").radius,
    }
    found = []
    with run.progress(f"{len(ROWS)} methods on {name}", len(ROWS)) as tick:
        for row in ROWS:
            found.append(work[row]())
            tick(1)
    return np.array(found)


def between(name: Name, run: Run) -> Evidence:
    radii = _radii(name, run)  # methods inputs
    bound, attacks = radii[0], radii[1:]
    crossed = int((attacks < bound - ROUNDING).any(0).sum())
    share = np.isfinite(attacks).mean(1)
    mean, printed = float(bound.mean()), PRINTED[name][0]
    half = alone._half_width(bound) * 2**0.5  # both means are of as many inputs drawn at random
    near = abs(mean - printed) <= half
    verdict: Held = "holds" if near and not crossed and share[0] == 1 else "fails"
    broken = ", ".join(f"{row} {100 * s:.0f} %" for row, s in zip(ROWS[1:], share, strict=True))
    return Evidence(
        verdict=verdict,
        says=f"The mean certified radius of {len(bound)} inputs is {mean:.3f}, printed {printed:.3f} (two such "
        f"samples may differ by {half:.3f}); {crossed or 'no'} inputs were broken within it; broken are, of all: "
        f"{broken}.",
        measures=(
            *(alone._mean(row, each) for row, each in zip(ROWS, radii, strict=True)),
            *(
                Measure(name=f"share broken, {row}", value=float(s), better="neither", n=len(bound), unit="%")
                for row, s in zip(ROWS[1:], share, strict=True)
            ),
        ),
    )


def eleven(run: Run) -> Evidence:
    plain, learned = _eleven(run)
    errors, changes = metrics._against(RADII, "ARML", plain, learned)
    return Evidence(
        verdict=metrics.lowered(*changes[1:]),
        says=f"{metrics.SEEDS} trainings of ARML changed the certified error of {ELEVEN}-NN on MNIST by these many "
        f"points: {metrics._told(changes, RADII)}.",
        measures=(*errors, *(change.measure for change in changes)),
        gates=(
            metrics._gate(
                f"The certified error of {ELEVEN}-NN on MNIST at 0", "the Euclidean distance", [plain],
                CERTIFIED["Euclid"][0],
            ),
        ),
        seeds=metrics.SEEDS,
    )  # fmt: skip


def _eleven(run: Run) -> tuple[metrics.Under, list[metrics.Under]]:
    """Eleven neighbours under the Euclidean distance, and under the metric of each training."""
    from assay.methods.certify import nearest

    points = metrics._points("MNIST", run.seed)
    ask_x, ask_y = points.ask_x[:ASKED], points.ask_y[:ASKED]

    def under(factor: Floats | None) -> metrics.Under:
        radius = nearest.certified_radius(points.x, points.y, ask_x, ask_y, ELEVEN, factor=factor)
        return metrics.Under(metrics._right(points, factor, ELEVEN, run.device), radius)

    plain, learned = under(None), []
    with run.progress(f"ARML on MNIST, {ELEVEN} neighbours", metrics.SEEDS) as tick:
        for seed in metrics._seeds(run):
            learned.append(under(metrics._factor("MNIST", "ARML", points, seed, run.device)))
            tick(1)
    return plain, learned


def _claim(name: Name, minutes: float) -> Claim:
    return Claim(
        name=f"between-{name.lower()}",
        source=alone.SOURCE,
        says=f"The change that breaks {VOTES}-NN on {name} lies between the certified bound and the greedy attack, "
        "which breaks every input, with the mean bound of the table.",
        published=tuple(
            Published(f"mean l2, {row}", value, f"table 3.2, {name}, {row}")
            for row, value in zip(ROWS, PRINTED[name], strict=True)
        ),
        here=f"all training points, {INPUTS} random test points that {VOTES}-NN gets right, features in [0, 1]; "
        "broken: another label has strictly more votes; means of attacks are over the inputs they break; holds if no "
        "attack lies below the bound, greedy breaks all and the mean bound is print's within what two such samples "
        "may differ by. USPS and Satimage are not at hand",
        minutes=minutes,
        test=partial(between, name),
    )


SHELVED = (
    _claim("Letter", 1),
    _claim("Pendigits", 1),
    _claim("MNIST", 10),
    _claim("Fashion-MNIST", 10),
    Claim(
        name="eleven-mnist",
        source=metrics.SOURCE,
        says=f"ARML lowers the certified error of {ELEVEN}-NN on MNIST at every radius above 0, against the Euclidean "
        "distance.",
        published=tuple(
            Published(f"certified error at {r:g}, {metric}", CERTIFIED[metric][i], f"table 3.5, MNIST, {metric}", "%")
            for i, r in enumerate(RADII)
            for metric in CERTIFIED
        ),
        here=f"{metrics._trained('MNIST')}; {metrics.SEEDS} trainings: "
        f"{metrics.DRAWN.format('the batches and the neighbours')}; errors at 0, fewer than {(ELEVEN + 1) // 2} votes "
        f"for the label, of all test points, else certified radii of {ASKED} of the 10,000; lowers: the interval of "
        "the paired change, over trainings and test points, lies below 0, and each training does; "
        f"{metrics.GATED.format('the Euclidean distance')}; the empirical half of the table is not run",
        minutes=460,
        test=eleven,
        seeds=metrics.SEEDS,
    ),
)
