"""Which estimator of calibration error can be trusted here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import softmax

from assay.finding import Alarm, Bars, Beside, Curve, Finding, Line, Matrix, Measure
from assay.methods.uncertainty.calibration import ESTIMATORS, Rule
from assay.methods.uncertainty.estimator_bench import (
    REPORTED,
    RULES,
    Kind,
    Law,
    Trust,
    around,
    bench,
    called,
    mixtures,
    sets_of,
)
from assay.probe import Need, Probe

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

USUAL, DENSITY = Rule("legacy"), Rule("kde")
"""What people report, and what the paper advises."""
EVERY = (*RULES, *(rule for rule in REPORTED if rule not in RULES))
PER_CLASS = (Rule("adaptive-convex", "sqrt"), Rule("adaptive-convex", 10), USUAL)
"""What the paper advises class-wise, and what people report."""
TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0)
SIZES = (30, 100, 300, 1000, 3000, 10_000)
FEW = 100  # inputs below which no estimator is near the truth


@dataclass(frozen=True)
class WhichEstimator(Probe):
    """Which estimate of its calibration can be believed with this many inputs?

    Sets as large as the test data are drawn where the truth is known: with the model's own scores, the labels following
    them as they are, sharper or flatter (five temperatures), and from classifiers of Gaussian mixtures. Each estimator
    has the error that 95 of 100 sets stay within. `sets` are drawn at most, fewer where there are many inputs.
    """

    sets: int = 60

    in_quick: ClassVar[bool] = False
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = "Posocco & Bonnefoy, 'Estimating Expected Calibration Errors', 2021, sec. 5"

    def __post_init__(self) -> None:
        self.refuse_below(20, "sets")

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"])
        logits, _ = run.predict(subject, "test", index, "which estimator")
        n = len(logits)
        own = around(softmax(logits.astype(np.float64), axis=1), temperatures=TEMPERATURES)
        synthetic = list(mixtures(classes=(2, 7), dims=(5,), inputs=5000, seed=run.seed))
        here, there = (self._bench(laws, n, "confidence", EVERY, run) for laws in (own, synthetic))
        each = self._bench(own, n, "class-wise", PER_CLASS, run)
        best, usual, density = here[0], _of(here, USUAL), _of(here, DENSITY)
        reported = next(t for t in here if t.rule in REPORTED)  # what `confidence` chooses too: the first is the best
        return Finding(
            says=f"With {n:,} inputs and scores like these, {called(best.rule)}, comes nearest to the truth: 95 of 100 "
            f"answers are within {_points(best)} points of it, where the usual one ({called(USUAL)}) is within "
            f"{_points(usual)} and {called(DENSITY)}, within {_points(density)}. `confidence` reports by "
            f"{called(reported.rule)}, within {_points(reported)}. Class-wise, {called(each[0].rule)}, is within "
            f"{_points(each[0])}.",
            measures=(
                _measure("error of the best estimator", best, run.seed),
                _measure("error of the usual estimator", usual, run.seed),
                _measure("error of the density estimator", density, run.seed),
                _measure("error of the reported estimator", reported, run.seed),
                _measure("error of the best estimator, class-wise", each[0], run.seed),
            ),
            views=(_bars(here), _matrix(here, there), self._by_size(own, here, n, run)),
            alarms=_alarms(n, best, usual),
        )

    def _bench(self, laws: list[Law], n: int, kind: Kind, rules: tuple[Rule, ...], run: Run) -> list[Trust]:
        """With as many sets as the inputs, and class-wise the classes, leave room for."""
        columns = laws[0].chances.shape[1] if kind == "class-wise" else 1
        sets = sets_of(n, self.sets, columns)
        with run.progress(f"estimators, {kind}", len(laws)) as tick:

            def ticked() -> Iterator[Law]:
                for law in laws:
                    yield law
                    tick(1)

            return bench(ticked(), n, kind=kind, rules=rules, sets=sets, seed=run.seed)

    def _by_size(self, laws: list[Law], here: list[Trust], n: int, run: Run) -> Curve:
        """Each estimator with its own choice of bins or bandwidth, at the sizes up to n."""
        rules = tuple(Rule(e) if e == "kde" else Rule(e, "sqrt") for e in ESTIMATORS)
        found = {size: self._bench(laws, size, "confidence", rules, run) for size in SIZES if size < n} | {n: here}
        return Curve(
            name="sizes",
            title="How many inputs a calibration error needs",
            x_label="inputs",
            y_label="error that 95 of 100 answers stay within",
            lines=tuple(
                Line(
                    label=called(rule),
                    x=tuple(map(float, found)),
                    y=tuple(float(np.median(_of(trusts, rule).absolute)) for trusts in found.values()),
                )
                for rule in rules
            ),
            says="With the model's own scores, median over the five temperatures.",
        )


def _of(trusts: list[Trust], rule: Rule) -> Trust:
    return next(t for t in trusts if t.rule == rule)


def _points(trust: Trust) -> str:
    return f"{100 * np.median(trust.absolute):.1f}"


def _measure(name: str, trust: Trust, seed: int) -> Measure:
    return Measure.median(
        name,
        trust.absolute,
        better="lower",
        seed=seed,
        about=f"{called(trust.rule)}: 95 of 100 estimates are this near to the true calibration error, median",
        beside=(Beside("on average too high by", float(np.median(trust.bias))),),
    )


def _bars(trusts: list[Trust]) -> Bars:
    return Bars(
        name="estimators",
        title="How far off each estimator may be",
        y_label="error that 95 of 100 answers stay within",
        labels=tuple(called(t.rule) for t in trusts),
        values=tuple(float(np.median(t.absolute)) for t in trusts),
        low=tuple(float(t.absolute.min()) for t in trusts),
        high=tuple(float(t.absolute.max()) for t in trusts),
        says="With the model's own scores and as many inputs as here: the median over five temperatures, from the "
        "lowest to the highest.",
    )


def _matrix(here: list[Trust], there: list[Trust]) -> Matrix:
    return Matrix(
        name="laws",
        title="The error of each estimator, in points",
        row_label="estimator, bins",
        column_label="where the truth is known",
        rows=tuple(called(t.rule).removesuffix(" bins") for t in here),
        columns=(*("calibrated" if t == 1 else f"T = {t:g}" for t in TEMPERATURES), "mixtures"),
        values=tuple((*(100 * t.absolute), 100 * float(np.median(_of(there, t.rule).absolute))) for t in here),
        says="T: the model's own scores, and labels that follow them at that temperature; below 1 it is less sure than "
        "it could be, above too sure. Mixtures: classifiers of Gaussian mixtures, median.",
    )


def _alarms(n: int, best: Trust, usual: Trust) -> tuple[Alarm, ...]:
    if n >= FEW:
        return ()
    return (
        Alarm(
            f"Only {n} inputs: the best estimator may be off by {_points(best)} points, the usual one by "
            f"{_points(usual)}; ask with {FEW} or more before a calibration error is believed."
        ),
    )


SHELVED = WhichEstimator
