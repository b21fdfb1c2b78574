"""Bhowmick, D'Souza & Raghavan 2021: LipBaB, the exact Lipschitz constant of a ReLU network."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from assay.claim import Claim, Evidence, Held, Published
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.methods.certify.lipschitz import Lipschitz
    from assay.run import Run

SOURCE = "Bhowmick, D'Souza & Raghavan, 'LipBaB: Computing Exact Lipschitz Constant of ReLU Networks', ICANN 2021"
NORMS = (1.0, 2.0, math.inf)
GAPS = (2.0, 1.5)  # factors between the two bounds at which the search may stop
HIDDEN = ((15, 10), (20, 15, 10), (30, 30, 30))
SIDE = 0.1  # the synthetic networks are looked at on [0, SIDE]^10
PRINTED = 2e-3  # the table rounds up in the third decimal, and the weights are rounded to five
SECONDS = 300.0  # for each constant: five times the printed time on the largest network

# The authors' network of the Iris data, from their public repository, rounded to five decimals; rows are neurons.
IRIS: tuple[tuple[list[list[float]], list[float]], ...] = (
    (
        [
            [0.86831, 0.74008, -1.10975, -1.14848],
            [0.62604, -1.09089, 1.2406, 0.40736],
            [0.30344, 0.57072, 0.30196, -0.32013],
            [0.09398, 0.09757, -0.53379, -0.17551],
            [-0.00118, 0.0, -0.00052, 0.0],
        ],
        [1.29824, -0.93007, -0.33023, -0.28423, -0.07174],
    ),
    (
        [
            [1.05346, -0.1776, 0.37185, -0.53762, 0.0],
            [-0.00014, -0.28475, -0.15774, 0.0, 0.0],
            [0.0, -0.25509, -0.27295, -0.00981, 0.0],
            [0.69743, 1.34545, 0.31398, 0.57614, 0.0],
            [-1.22996, 0.98276, -0.22709, -0.32675, -0.00026],
        ],
        [0.70116, 0.35824, 0.64091, 0.5706, -0.34342],
    ),
    (
        [
            [0.6747, -0.0232, -0.00083, -0.70197, 0.13236],
            [-0.59594, -0.00005, 0.00382, 0.322, -0.63784],
            [-0.51601, 0.0, 0.0, -0.25399, 1.43632],
        ],
        [0.45714, -0.41182, -0.90855],
    ),
)


@dataclass(frozen=True)
class _Found:
    constant: Lipschitz
    seconds: float

    @property
    def columns(self) -> tuple[float, float, float]:
        return self.constant.first, self.constant.upper, self.seconds


COLUMNS = (("first bound", ""), ("exact constant", ""), ("time of the exact constant", "s"))  # of _Found


def sequential(params: Sequence[tuple[Sequence[Sequence[float]], Sequence[float]]]) -> nn.Sequential:
    """Linear layers of these weights (out in) and biases, in float64, with a ReLU between each two."""
    modules: list[nn.Module] = []
    for weight, bias in params:
        linear = nn.Linear(len(weight[0]), len(weight)).double()
        linear.weight.data, linear.bias.data = torch.tensor(weight).double(), torch.tensor(bias).double()
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1]).requires_grad_(False)


def synthetic(hidden: tuple[int, ...], seed: int) -> nn.Sequential:
    """scikit-learn's MLPClassifier on 1,000 points of make_classification, 10 features and 3 classes."""
    from sklearn.datasets import make_classification
    from sklearn.neural_network import MLPClassifier

    x, y = make_classification(1000, 10, n_informative=6, n_classes=3, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it ends at its 200 epochs, and says so
        fitted = MLPClassifier(hidden, random_state=seed).fit(x, y)
    return sequential([(w.T.tolist(), b.tolist()) for w, b in zip(fitted.coefs_, fitted.intercepts_, strict=True)])


def _found(net: nn.Module, side: float, p: float) -> _Found:
    from assay.methods.certify.lipschitz import lipschitz

    start = time.perf_counter()
    constant = lipschitz(net, (0.0, side), p=p, seconds=SECONDS)
    return _Found(constant, time.perf_counter() - start)


def iris_constants(run: Run) -> Evidence:
    net = sequential(IRIS)
    found = [_found(net, 1.0, p) for p in NORMS]
    values = [*(f.constant.first for f in found), *(f.constant.upper for f in found)]
    gap = max(abs(v - printed.value) for v, printed in zip(values, IRIS_PRINTED, strict=True))
    same = gap <= PRINTED and all(f.constant.exact for f in found)
    return Evidence(
        verdict="holds" if same else "fails",
        says=f"First bounds and exact constants lie within {gap:.2g} of the printed ones, after "
        f"{', '.join(str(f.constant.nodes) for f in found)} nodes for p = 1, 2 and inf.",
        measures=tuple(
            Measure(name=printed.what, value=v, better="lower") for v, printed in zip(values, IRIS_PRINTED, strict=True)
        ),
    )


def iris_approximations(run: Run) -> Evidence:
    from assay.methods.certify.lipschitz import lipschitz

    net = sequential(IRIS)
    found = [lipschitz(net, (0.0, 1.0), p=p, gap=gap, seconds=SECONDS) for gap in GAPS for p in NORMS]
    off = max(abs(f.upper - printed.value) for f, printed in zip(found, IRIS_NEAR, strict=True))
    return Evidence(
        verdict="holds" if off <= PRINTED else "cannot tell",  # another order of search stops elsewhere, and rightly
        says=f"Stopped at a factor of {' and of '.join(f'{gap:g}' for gap in GAPS)} the bounds lie within {off:.2g} "
        f"of the printed ones, after {', '.join(str(f.nodes) for f in found)} nodes.",
        measures=tuple(
            Measure(name=printed.what, value=f.upper, better="lower")
            for f, printed in zip(found, IRIS_NEAR, strict=True)
        ),
    )


def exact_below_first(run: Run) -> Evidence:
    found: dict[tuple[int, ...], list[_Found]] = {}
    with run.progress(f"{len(HIDDEN) * len(NORMS)} constants", len(HIDDEN) * len(NORMS)) as tick:
        for hidden in HIDDEN:
            net = synthetic(hidden, run.seed)
            found[hidden] = []
            for p in NORMS:
                found[hidden].append(_found(net, SIDE, p))
                tick(1)
    every = [f for row in found.values() for f in row]
    ratios = [f.constant.first / f.constant.upper for f in every]
    verdict: Held = "cannot tell"
    if all(f.constant.exact for f in every):
        verdict = "holds" if min(ratios) > 1 else "fails"
    return Evidence(
        verdict=verdict,
        says=f"First bounds are {min(ratios):.2f} to {max(ratios):.2f} times the exact constants; "
        f"{sum(f.constant.exact for f in every)} of {len(every)} were reached within {SECONDS:g} s each, the slowest "
        f"after {max(f.seconds for f in every):.2g} s.",
        measures=tuple(
            Measure(name=f"{what}, {_named(hidden)}, p = {p:g}", value=f.columns[i], better="lower", unit=unit)
            for i, (what, unit) in enumerate(COLUMNS)
            for hidden, row in found.items()
            for p, f in zip(NORMS, row, strict=True)
        ),
    )


def _named(hidden: tuple[int, ...]) -> str:
    return f"({', '.join(str(h) for h in (10, *hidden, 3))})"


def _printed(what: str, network: str, values: Sequence[float], column: str, unit: str = "") -> tuple[Published, ...]:
    return tuple(
        Published(f"{what}, p = {p:g}", value, f"table 1, {network}, p = {p:g}, {column}", unit)
        for p, value in zip(NORMS, values, strict=True)
    )


IRIS_PRINTED = (
    *_printed("first bound", "Iris_Network", (8.776, 8.810, 14.663), "first estimation"),
    *_printed("exact constant", "Iris_Network", (5.959, 6.772, 12.606), "exact"),
)
IRIS_NEAR = tuple(
    printed
    for gap in GAPS
    for printed in _printed(
        f"{gap:g}-approximation", "Iris_Network", (6.874, 7.098, 12.606), f"{gap:g}-approximation, value"
    )
)
# first estimation, exact, exact time; each for p = 1, 2, inf
SYNTHETIC_PRINTED = {
    (15, 10): ((15.105, 13.019, 25.243), (10.413, 9.531, 16.275), (0.25, 0.28, 0.27)),
    (20, 15, 10): ((101.705, 101.940, 182.988), (48.049, 40.057, 72.286), (3.08, 3.35, 2.97)),
    (30, 30, 30): ((131.727, 139.808, 272.416), (19.370, 19.463, 39.111), (56.00, 78.88, 59.98)),
}

SHELVED = (
    Claim(
        name="iris-constants",
        source=SOURCE,
        says="On [0, 1]^4 the authors' Iris network has these first bounds and exact Lipschitz constants.",
        published=IRIS_PRINTED,
        here=f"the authors' weights, rounded to five decimals; equal means within {PRINTED:g}",
        minutes=0.1,
        test=iris_constants,
    ),
    Claim(
        name="iris-approximations",
        source=SOURCE,
        says="On [0, 1]^4 the authors' Iris network has these bounds where the search stops at a factor of 2 or of "
        "1.5.",
        published=IRIS_NEAR,
        here=f"the authors' weights, rounded to five decimals; equal means within {PRINTED:g}; the order in which "
        "print's search branches is its own, and the bound at which it stops hangs on it: holds if equal, else "
        "`cannot tell`",
        minutes=0.1,
        test=iris_approximations,
    ),
    Claim(
        name="exact-below-first",
        source=SOURCE,
        says="Exact constants of networks of up to 90 hidden neurons are reached within minutes, and lie "
        "below the first bound.",
        published=tuple(
            printed
            for i, ((what, unit), column) in enumerate(
                zip(COLUMNS, ("first estimation", "exact, value", "exact, time"), strict=True)
            )
            for n, hidden in enumerate(HIDDEN)
            for printed in _printed(
                f"{what} of print's {_named(hidden)}", f"SD_Network{n + 1}", SYNTHETIC_PRINTED[hidden][i], column, unit
            )
        ),
        here="networks of the same sizes trained here by MLPClassifier on 1,000 points of make_classification, whose "
        f"constants are other numbers than those printed; [0, {SIDE:g}]^10; {SECONDS:g} s for each constant",
        minutes=1,
        test=exact_below_first,
    ),
)
