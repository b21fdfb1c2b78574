"""What is its confidence worth?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import log_softmax, softmax

from assay.finding import Alarm, Beside, Curve, Finding, Histogram, Line, Measure, Table, wilson
from assay.methods.uncertainty import calibration_error, reliability
from assay.probe import Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject


@dataclass(frozen=True)
class Confidence(Probe):
    """When it says 90 %, is it right nine times out of ten?"""

    bins: int = 15

    source: ClassVar[str] = "Guo et al., ICML 2017, arXiv:1706.04599"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.05),)

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"])
        logits, label = run.predict(subject, "test", index, "confidence")
        chance, rows = softmax(logits.astype(np.float64), axis=1), np.arange(len(index))
        sure, right = chance.max(1), logits.argmax(1) == label
        error = calibration_error(sure, right, bins=min(self.bins, len(index)), seed=run.seed)
        bands = reliability(sure, right, bins=self.bins)
        hits = np.rint(bands.accuracy * bands.inputs).astype(int)
        limits = [wilson(int(h), int(n)) for h, n in zip(hits, bands.inputs, strict=True)]
        truth = np.zeros_like(chance)
        truth[rows, label] = 1.0
        brier = ((chance - truth) ** 2).sum(1)
        k = len(subject.task.classes)
        surprise = -log_softmax(logits.astype(np.float64), axis=1)[rows, label]
        gap = sure - right
        leaning = "surer than it should be" if gap.mean() > 0 else "less sure than it could be"
        edges = np.linspace(0, 1, self.bins + 1)
        figure = Curve(
            name="reliability",
            title="How often it is right when it is this sure",
            x_label="confidence",
            y_label="accuracy",
            diagonal=True,
            unit_y=True,
            lines=(
                Line(
                    label="model",
                    x=tuple(bands.confidence),
                    y=tuple(bands.accuracy),
                    low=tuple(l for l, _ in limits),
                    high=tuple(h for _, h in limits),
                ),
            ),
            says="On the diagonal confidence is worth what it says; below it the model is over-confident.",
        )
        histogram = Histogram(
            name="scores",
            title="How sure it is",
            x_label="confidence",
            edges=tuple(edges),
            counts=(
                ("right", tuple(np.histogram(sure[right], edges)[0].astype(float))),
                ("wrong", tuple(np.histogram(sure[~right], edges)[0].astype(float))),
            ),
        )
        few = (Alarm(f"Only {len(index)} inputs: a perfectly calibrated model would show {error.floor:.3f} here."),)
        return Finding(
            says=f"Its confidence is off by {100 * error.value:.1f} points on average, where a perfectly calibrated "
            f"model would show {100 * error.floor:.1f} at this sample size; on the whole it is {leaning}.",
            measures=(
                Measure(
                    name="calibration error",
                    value=error.value,
                    low=error.low,
                    high=error.high,
                    n=len(index),
                    unit="%",
                    better="lower",
                    about=f"expected calibration error over {self.bins} equal-width bins",
                    beside=(Beside("a perfectly calibrated model", error.floor),),
                ),
                Measure.mean(
                    "over-confidence",
                    gap,
                    better="neither",
                    seed=run.seed,
                    column="gap",
                    about="mean confidence minus accuracy",
                ),
                Measure.mean(
                    "Brier score",
                    brier,
                    better="lower",
                    seed=run.seed,
                    column="brier",
                    beside=(Beside("always says 1/k for each class", 1 - 1 / k),),
                ),
                Measure.mean(
                    "negative log-likelihood",
                    surprise,
                    better="lower",
                    seed=run.seed,
                    column="surprise",
                    unit="nats",
                    beside=(Beside("always says 1/k for each class", float(np.log(k))),),
                ),
            ),
            samples=Table(
                "test",
                {
                    "index": index,
                    "label": label,
                    "confidence": sure,
                    "right": right,
                    "gap": gap,
                    "brier": brier,
                    "surprise": surprise,
                },
            ),
            views=(figure, histogram),
            alarms=few if error.few else (),
        )


SHELVED = Confidence
