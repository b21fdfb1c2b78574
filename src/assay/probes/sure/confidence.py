"""What is its confidence worth?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from torch import Tensor

from assay.errors import AssayError, SubjectError
from assay.finding import (
    Alarm,
    Bars,
    Beside,
    Better,
    Curve,
    Finding,
    Histogram,
    Line,
    Matrix,
    Measure,
    Table,
    bootstrap,
    share,
    wilson,
)
from assay.methods.uncertainty import brier, calibration_error, reliability, reliability_curve
from assay.methods.uncertainty.above_floor import AboveFloor, above_floor
from assay.methods.uncertainty.calibration import ESTIMATORS, Bins, CalibrationError, Estimator, Kind, Rule
from assay.methods.uncertainty.debiased import debiased_ece
from assay.methods.uncertainty.estimator_bench import called, choose
from assay.methods.uncertainty.maximum import maximum_error
from assay.methods.uncertainty.selective import RiskCoverage, best_area, guaranteed, risk_coverage
from assay.probe import Probe
from assay.probes._mistakes import mistakes
from assay.standard import Standard
from assay.tasks.task import unsaid

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

Floats = NDArray[np.float64]
RISKS = (0.01, 0.05)  # shares of wrong answers that people ask for
SMOOTH = 0.03  # bandwidth of the reliability curve, as in the paper's figure 1
POINTS, LEAST = 100, 0.05  # of a risk-coverage curve, and the coverage that it starts with
FEW_PER_CLASS = 100  # inputs below which sqrt(n) bins serve class-wise errors best, above it few
FEW_BINS = 10
DRAWS = 10_000  # bootstraps of all classes together, at least 100 and at most 1,000 of each


@dataclass(frozen=True)
class Confidence(Probe):
    """When it says 90 %, is it right nine times out of ten?

    The headline is the calibration error by `estimator`, less what chance adds to it, since no estimate of few inputs
    is 0. "best" is the one of five that comes nearest to the truth with these scores and as many inputs, where labels
    are drawn by known chances; the true labels have no say. `bins` is for all but the density estimator. A mistake is
    sure from the confidence `sure` on.

    Where an answer is no class, it is held to what its confidence is the probability of: of several labels that all
    are right, and each for itself; of a number with a spread that it is within its tolerance; of classes at many places
    that a place drawn at random is right.
    """

    estimator: Estimator | Literal["best"] = "best"
    bins: int = 15
    sure: float = 0.9

    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Posocco & Bonnefoy 2021 (estimators); Guo et al., ICML 2017, arXiv:1706.04599; Kumar et al., NeurIPS 2019, "
        "arXiv:1909.10155 (debiased); Naeini et al., AAAI 2015 (maximum); Murphy 1973 (Brier's parts); "
        "Geifman & El-Yaniv, NeurIPS 2017, arXiv:1705.08500 (when to answer)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.05),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "bins")
        if not 0 < self.sure < 1:
            raise AssayError(f"The setting sure={self.sure} of {self.name()!r} must lie between 0 and 1.")

    def why_not(self, subject: Subject) -> str | None:
        task = subject.task
        return super().why_not(subject) or (task.no_promise if task.promise is None else None)

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"])
        if "classes" not in subject.task.gives:
            return self._of_events(subject, run, index)
        logits, label = run.predict(subject, "test", index, "confidence")
        chance, rows = softmax(logits.astype(np.float64), axis=1), np.arange(len(index))
        k, said, sure = chance.shape[1], chance.argmax(1), chance.max(1)
        right = said == label
        gap = sure - right
        columns = {
            "brier": ((chance - np.eye(k)[label]) ** 2).sum(1),
            "surprise": -log_softmax(logits.astype(np.float64), axis=1)[rows, label],
            "spread": ((chance - chance.mean(0)) ** 2).sum(1),
            "sure mistake": (sure >= self.sure) & ~right,
        }
        errors = {e: self._error(chance, label, "confidence", e, run.seed) for e in ESTIMATORS}
        estimator, why = self._chosen(chance, run.seed)
        bins = min(self.bins, len(index))
        error = above_floor(chance, label, estimator=estimator, bins=bins, seed=run.seed)
        curve = risk_coverage(sure, right)
        leaning = "surer than it should be" if gap.mean() > 0 else "less sure than it could be"
        uniform = "always says 1/k for each class"
        measures = [
            Measure(
                name="calibration error",
                value=error.value,
                low=error.low,
                high=error.high,
                n=len(index),
                unit="%",
                better="lower",
                about=f"of the top score, less what chance adds, by {called(Rule(estimator, bins))}{why}",
                beside=(
                    Beside("a perfectly calibrated model", error.calibrated),
                    Beside("with what chance adds", error.estimate),
                    Beside("a perfectly calibrated model, with what chance adds", error.floor),
                    Beside("in equal bins, debiased as by Kumar et al.", debiased_ece(sure, right, bins=bins)),
                ),
            ),
            Measure.mean(
                "over-confidence",
                gap,
                better="neither",
                seed=run.seed,
                column="gap",
                about="mean confidence minus accuracy",
            ),
            self._maximum(sure, right, run.seed),
            *self._per_class(chance, label, run.seed),
            Measure.mean(
                "Brier score",
                columns["brier"],
                better="lower",
                seed=run.seed,
                column="brier",
                beside=(Beside(uniform, 1 - 1 / k),),
            ),
            Measure.mean(
                "negative log-likelihood",
                columns["surprise"],
                better="lower",
                seed=run.seed,
                column="surprise",
                unit="nats",
                beside=(Beside(uniform, float(np.log(k))),),
            ),
            Measure.mean(
                "sharpness",
                columns["spread"],
                better="neither",
                seed=run.seed,
                column="spread",
                about="mean squared distance of its probabilities from their mean; worth something if calibrated",
                beside=(Beside("always says the same", 0.0),),
            ),
            Measure.proportion(
                "sure mistakes",
                columns["sure mistake"],
                better="lower",
                column="sure mistake",
                about=f"wrong with a confidence of {100 * self.sure:g} % or more, of all inputs",
                beside=(Beside("a perfectly calibrated model", float((sure >= self.sure) @ (1 - sure) / len(sure))),),
            ),
            *_selective(sure, right, curve, run.seed),
        ]
        told = {"index": index, "label": label, "said": said, "confidence": sure, "right": right, "gap": gap}
        samples, wrong = Table("test", told | columns), columns["sure mistake"]
        return Finding(
            says=f"Its confidence is off by {100 * error.value:.1f} points on average ({100 * error.low:.1f} to "
            f"{100 * error.high:.1f}): {100 * error.estimate:.1f} are estimated, and chance alone would show "
            f"{100 * error.floor:.1f} at this sample size. The estimate is by {called(Rule(estimator, bins))}{why}. On "
            f"the whole it is {leaning}. If it may be wrong in {100 * RISKS[-1]:g} % of its answers, it can answer "
            f"{100 * curve.answerable(RISKS[-1]):.0f} %.",
            measures=tuple(measures),
            samples=samples,
            views=(
                self._reliability(sure, right, 1 / k, run.seed),
                _scores(sure, right),
                _risk(sure, right, curve),
                self._estimators(errors, len(index)),
                _parts(chance, label),
                *mistakes(
                    subject,
                    samples,
                    wrong,
                    run.budget.shown,
                    "Wrong, and sure of it",
                    f"{share(int(wrong.sum()), len(wrong))} of the inputs are such mistakes; the surest come first.",
                ),
            ),
            alarms=_alarms(error, label, [m.name for m in measures if "calibration error" in m.name]),
        )

    def _of_events(self, subject: Subject, run: Run, index: NDArray[np.int64]) -> Finding:
        """The same of a task without classes: an event for each input, with the probability that it is said to have."""
        task = subject.task
        rows = run.map(partial(_events, subject), subject, "test", index, "confidence")
        least = task.chance or 0.0
        sure = np.asarray(rows["sure"], dtype=np.float64).clip(least, 1)
        right = np.asarray(rows["right"], dtype=bool)
        gap, bins = sure - right, min(self.bins, len(index))
        columns = {"brier": gap**2, "sure mistake": (sure >= self.sure) & ~right}
        estimator, why = self._chosen(np.stack([1 - sure, sure], 1), run.seed)
        error = above_floor(sure, right, estimator=estimator, bins=bins, seed=run.seed)
        curve, held = risk_coverage(sure, right), float(right.mean())
        what = task.promise
        beside = [
            Beside("a perfectly calibrated model", error.calibrated),
            Beside("with what chance adds", error.estimate),
            Beside("a perfectly calibrated model, with what chance adds", error.floor),
            Beside("in equal bins, debiased as by Kumar et al.", debiased_ece(sure, right, bins=bins)),
        ]
        if "places sure" in rows:
            every = np.asarray(rows["places sure"], dtype=np.float64).clip(least, 1).ravel()
            several = debiased_ece(every, np.asarray(rows["places right"], dtype=bool).ravel(), bins=self.bins)
            beside.append(Beside(f"the same of {rows['places sure'].shape[1]} places of each input", several))
        measures = [
            Measure(
                name="calibration error",
                value=error.value,
                low=error.low,
                high=error.high,
                n=len(index),
                unit="%",
                better="lower",
                about=f"of the probability that {what}, less what chance adds, by {called(Rule(estimator, bins))}{why}",
                beside=tuple(beside),
            ),
            Measure.mean(
                "over-confidence",
                gap,
                better="neither",
                seed=run.seed,
                column="gap",
                about="mean confidence minus how often it comes true",
            ),
            self._maximum(sure, right, run.seed),
            Measure.mean(
                "Brier score",
                columns["brier"],
                better="lower",
                seed=run.seed,
                column="brier",
                about=f"mean squared difference of that probability from 1 where {what}, from 0 where not",
                beside=(Beside("always says how often that is so", held * (1 - held)),),
            ),
            Measure.proportion(
                "sure mistakes",
                columns["sure mistake"],
                better="lower",
                column="sure mistake",
                about=f"not so with a confidence of {100 * self.sure:g} % or more, of all inputs",
                beside=(Beside("a perfectly calibrated model", float((sure >= self.sure) @ (1 - sure) / len(sure))),),
            ),
            *_selective(sure, right, curve, run.seed),
        ]
        bars: tuple[Bars, ...] = ()
        if "each sure" in rows:
            worst, each = self._each_label(task.classes, rows["each sure"], rows["each right"], estimator, run.seed)
            measures.insert(3, worst)
            bars = (each,)
        return Finding(
            says=f"The probability that {what} is off by {100 * error.value:.1f} points on average "
            f"({100 * error.low:.1f} to {100 * error.high:.1f}): {100 * error.estimate:.1f} are estimated, and chance "
            f"alone would show {100 * error.floor:.1f} at this sample size. It is said to be {100 * sure.mean():.0f} % "
            f"on average, and that is so in {100 * held:.0f} %.",
            measures=tuple(measures),
            samples=Table("test", {"index": index, "confidence": sure, "right": right, "gap": gap} | columns),
            views=(
                self._reliability(sure, right, least, run.seed),
                _scores(sure, right),
                _risk(sure, right, curve),
                *bars,
            ),
            alarms=_few(error, len(index), [m.name for m in measures if "calibration error" in m.name]),
        )

    def _each_label(
        self, names: tuple[str, ...], sure: Floats, right: NDArray[np.bool_], estimator: Estimator, seed: int
    ) -> tuple[Measure, Bars]:  # n k, n k
        """Each label by itself."""
        bins = min(self.bins, len(sure))
        found = [
            above_floor(sure[:, k].astype(np.float64), right[:, k], estimator=estimator, bins=bins, seed=seed)
            for k in range(len(names))
        ]
        worst = max(range(len(names)), key=lambda k: found[k].value)
        measure = Measure(
            name="calibration error of the worst label",
            value=found[worst].value,
            low=found[worst].low,
            high=found[worst].high,
            n=len(sure),
            unit="%",
            better="lower",
            about=f"of the probability that {names[worst]!r} is right, said or not, less what chance adds: the largest "
            f"of {len(names)}",
            beside=(Beside("mean over the labels", float(np.mean([f.value for f in found]))),),
        )
        bars = Bars(
            name="labels",
            title="The calibration error of each label",
            y_label="calibration error",
            labels=names,
            values=tuple(f.value for f in found),
            low=tuple(f.low for f in found),
            high=tuple(f.high for f in found),
            says="Of the probability that it is right, said or not, less what chance adds.",
        )
        return measure, bars

    def _chosen(self, chance: Floats, seed: int) -> tuple[Estimator, str]:
        """The estimator of the headline, and why it is that one."""
        if self.estimator != "best":
            return self.estimator, ", as was asked"
        bins = min(self.bins, len(chance))
        trusts = choose(chance, rules=[Rule(e, bins) for e in ESTIMATORS], seed=seed)
        first, last = (float(np.median(t.absolute)) for t in (trusts[0], trusts[-1]))
        return trusts[0].rule.estimator, (
            f", the best of five with scores like these and {len(chance):,} inputs: 95 of 100 such estimates are "
            f"within {100 * first:.1f} points of the truth, those of the worst within {100 * last:.1f}"
        )

    def _error(
        self, chance: Floats, label: NDArray[np.int64], kind: Kind, estimator: Estimator, seed: int
    ) -> CalibrationError:
        n, k = chance.shape
        per_class: Bins = "sqrt" if n < FEW_PER_CLASS or kind == "top-label" else FEW_BINS
        return calibration_error(
            chance,
            label,
            kind=kind,
            estimator=estimator,
            bins=min(self.bins, n) if kind == "confidence" else per_class,
            draws=1000 if kind == "confidence" else min(1000, max(100, DRAWS // k)),
            seed=seed,
        )

    def _maximum(self, sure: Floats, right: NDArray[np.bool_], seed: int) -> Measure:
        bins = min(self.bins, len(sure))
        found = maximum_error(sure, right, bins=bins, seed=seed)
        return Measure(
            name="maximum calibration error",
            value=found.value,
            low=found.low,
            high=found.high,
            n=len(sure),
            unit="%",
            better="lower",
            about=f"in the worst of {bins} equal bins, from {found.bin / bins:.2f} to {(found.bin + 1) / bins:.2f}, "
            f"with its {found.inputs} inputs; the interval is for the largest true gap of a bin",
            beside=(Beside("a perfectly calibrated model", found.floor),),
        )

    def _per_class(self, chance: Floats, label: NDArray[np.int64], seed: int) -> list[Measure]:
        """The errors that one class cannot hide in another, by the estimator that is best for them."""
        n = len(label)
        within = self._error(chance, label, "top-label", "adaptive-convex", seed)
        top = _measure("top-label calibration error", within, n, "of the top score, within each class that it says")
        if len(np.unique(label)) == 1:
            return [Measure(name="class-wise calibration error", value=None, better="lower", unit="%", n=n), top]
        each = self._error(chance, label, "class-wise", "adaptive-convex", seed)
        return [_measure("class-wise calibration error", each, n, "of each class's own score, mean over classes"), top]

    def _reliability(self, sure: Floats, right: NDArray[np.bool_], least: float, seed: int) -> Curve:
        curve = reliability_curve(sure, right, bandwidth=SMOOTH, support=(least, 1.0), seed=seed)
        bins = reliability(sure, right, bins=self.bins)
        return Curve(
            name="reliability",
            title="How often it is right when it is this sure",
            x_label="confidence",
            y_label="accuracy",
            diagonal=True,
            unit_y=True,
            lines=(
                Line(
                    label="by kernel densities",
                    x=tuple(curve.score),
                    y=tuple(curve.median),
                    low=tuple(curve.low),
                    high=tuple(curve.high),
                ),
                Line(label=f"in {self.bins} equal bins", x=tuple(bins.confidence), y=tuple(bins.accuracy)),
            ),
            says="On the diagonal confidence is worth what it says; below it the model is over-confident. The band is "
            "that of 95 of 100 resamples.",
        )

    def _estimators(self, errors: dict[Estimator, CalibrationError], n: int) -> Matrix:
        """Every estimator's answer, in points."""
        return Matrix(
            name="estimators",
            title="The calibration error by each estimator, in points",
            row_label="estimator",
            column_label="",
            rows=ESTIMATORS,
            columns=("value", "low", "high", "if calibrated"),
            values=tuple(tuple(100 * v for v in (e.value, e.low, e.high, e.floor)) for e in errors.values()),
            says=f"With {min(self.bins, n)} bins, or Silverman's bandwidth. What chance adds is in them, and what it "
            "shows of a calibrated model stands beside. Where they disagree, which-estimator tells whom to trust.",
        )


def _events(subject: Subject, shard: Shard) -> dict[str, Tensor]:
    """For each input what is said to come true, with its probability, and whether it did."""
    out = subject.predict(shard.x).double()
    told = subject.task.kept(out, shard.y, shard.rng)
    sick = torch.nonzero(unsaid(out) | unsaid(told["sure"]))
    if len(sick):
        raise SubjectError(
            f"The model returned NaN or infinity for input {shard.index[int(sick[0])]}; check its weights and scaling."
        )
    return told


def _measure(name: str, error: CalibrationError, n: int, about: str) -> Measure:
    return Measure(
        name=name,
        value=error.value,
        low=error.low,
        high=error.high,
        n=n,
        unit="%",
        better="lower",
        about=about,
        beside=(Beside("a perfectly calibrated model", error.floor),),
    )


def _selective(sure: Floats, right: NDArray[np.bool_], curve: RiskCoverage, seed: int) -> list[Measure]:
    """The area under the curve, and the shares that can be answered."""

    def measure(
        of: Callable[[RiskCoverage], Floats], name: str, better: Better, unit: str, about: str, *beside: Beside
    ) -> Measure:
        low, high = bootstrap(lambda counts: of(risk_coverage(sure, right, counts=counts)), len(sure), seed=seed)
        value = float(of(curve))
        return Measure(
            name=name,
            value=value,
            low=min(low, value),
            high=max(high, value),
            n=len(sure),
            unit=unit,
            better=better,
            about=about,
            beside=beside,
        )

    area = measure(
        RiskCoverage.area,
        "risk-coverage area",
        "lower",
        "",
        "mean share of wrong answers, over all shares that it may answer, the surest first",
        Beside("the best order", best_area(right)),
        Beside("a random order", float((~right).mean())),
    )
    shares = [
        measure(
            partial(RiskCoverage.answerable, risk=risk),
            f"answerable at {100 * risk:g} % error",
            "higher",
            "%",
            f"share of the inputs, the surest, of which {100 * risk:g} % are wrong",
            Beside("promised with 95 % certainty", guaranteed(sure, right, risk=risk).coverage),
        )
        for risk in RISKS
    ]
    return [area, *shares]


def _scores(sure: Floats, right: NDArray[np.bool_]) -> Histogram:
    edges = np.linspace(0, 1, 21)
    return Histogram(
        name="scores",
        title="How sure it is",
        x_label="confidence",
        edges=tuple(edges),
        counts=tuple(
            (name, tuple(np.histogram(sure[of], edges)[0].astype(float)))
            for name, of in (("right", right), ("wrong", ~right))
        ),
    )


def _risk(sure: Floats, right: NDArray[np.bool_], curve: RiskCoverage) -> Curve:
    first = int(np.argmax(curve.coverage >= LEAST))
    at = np.unique(np.linspace(first, len(curve.risk) - 1, POINTS).round().astype(int))
    answered = np.rint(curve.coverage[at] * len(sure)).astype(int)
    bands = [wilson(round(r * n), int(n)) for r, n in zip(curve.risk[at], answered, strict=True)]
    wrong = int((~right).sum())
    best = np.maximum(0, answered - (len(right) - wrong)) / answered
    return Curve(
        name="risk",
        title="How often it is wrong, if it answers only when sure",
        x_label="share answered",
        y_label="share of answers wrong",
        lines=(
            Line(
                label="model",
                x=tuple(curve.coverage[at]),
                y=tuple(curve.risk[at]),
                low=tuple(b[0] for b in bands),
                high=tuple(b[1] for b in bands),
            ),
            Line(label="best order", x=tuple(curve.coverage[at]), y=tuple(best)),
        ),
        marks=tuple(Beside(f"{100 * r:g} % wrong", float(curve.answerable(r))) for r in RISKS),
        says="Bands are 95 % intervals. The best order has every mistake less sure than every right answer.",
    )


def _parts(chance: Floats, label: NDArray[np.int64]) -> Bars:
    parts = brier(chance, label)
    return Bars(
        name="brier",
        title="What the Brier score is made of",
        y_label="part of the score, summed over classes",
        labels=("Brier score", "reliability", "resolution", "uncertainty", "within bins"),
        values=tuple(parts),
        says="Score = reliability - resolution + uncertainty + within bins. Recalibration can take off reliability; "
        "resolution is how well it tells inputs apart.",
    )


def _few(error: AboveFloor, n: int, names: list[str]) -> tuple[Alarm, ...]:
    if not error.few:
        return ()
    says = (
        f"Only {n} inputs: no estimate of a calibration error can be trusted below 30, and a perfectly calibrated "
        f"model would show {error.floor:.3f} here."
    )
    return (Alarm(says, doubts=tuple(names)),)


def _alarms(error: AboveFloor, label: NDArray[np.int64], names: list[str]) -> tuple[Alarm, ...]:
    alarms = list(_few(error, len(label), names))
    if len(np.unique(label)) == 1:
        alarms.append(Alarm("All inputs have one label, so that there is no class-wise calibration error."))
    return tuple(alarms)


SHELVED = Confidence
