"""What the number of a comparison is worth, beyond which of the two is higher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from assay.finding import Alarm, Beside, Better, Curve, Finding, Histogram, Line, Measure, Table
from assay.methods.rank.order import BINS, Calibration, calibration, mean_interval
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.tasks import Ranking

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

Floats = NDArray[np.float64]
FEW = 30  # pairs below which no estimate of a calibration gap is worth much
HEADLINE, ERROR, SHARP, LEAN = "calibration gap", "mean absolute error", "sharpness", "exaggeration"


@dataclass(frozen=True)
class IsTheComparisonCalibrated(Probe):
    """When it says that one is higher by so much, is it, on average?

    The right comparison of a pair is a number t, 0.5 for equal values and 0 or 1 for the two ends of the range. Among
    pairs with the same answer c, the mean of t should be c. Bins hold as many pairs each. What a perfectly calibrated
    comparison would show stands beside the gap, since no estimate from few pairs is 0. Intervals know that pairs share
    inputs.
    """

    bins: int = BINS

    needs: ClassVar[tuple[Need, ...]] = ("order",)
    source: ClassVar[str] = (
        "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 3.1 (the target); "
        "Posocco & Bonnefoy 2021 (bins, interval and floor)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.03),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "bins")

    def ask(self, subject: Subject, run: Run) -> Finding:
        pairs, task = subject.pairs["test"], subject.task
        index = run.pick(pairs)
        with torch.no_grad():
            rows = run.map(lambda s: {"c": subject.model(s.x).double()}, subject, "test", index, "comparisons")
        c = np.asarray(rows["c"], dtype=np.float64)
        assert isinstance(task, Ranking)  # the only one that it is for
        t = task.target(pairs.gaps[index])
        who = pairs.pairs[index]
        found = calibration(c, t, who, bins=self.bins, seed=run.seed)
        columns = {"wrong": np.abs(c - t), "sharp": np.abs(c - 0.5), "lean": np.sign(c - 0.5) * (c - t)}
        truth = float(np.abs(t - 0.5).mean())
        span = 2 * (task.high - task.low)
        measures = (
            Measure(
                name=HEADLINE,
                value=found.gap,
                low=found.low,
                high=found.high,
                n=len(c),
                better="lower",
                about=f"mean over {len(c)} pairs of |E[t | c] - c|; 0.01 is {0.01 * span:.3g} in the values",
                beside=(
                    Beside("a perfectly calibrated comparison", found.floor),
                    Beside("always 0.5", abs(float(t.mean()) - 0.5)),
                ),
            ),
            _mean(
                ERROR,
                columns["wrong"],
                who,
                better="lower",
                column="wrong",
                about=f"of the comparison from the right one; {columns['wrong'].mean() * span:.3g} in the values",
                beside=(Beside("always 0.5", truth),),
            ),
            _mean(
                SHARP,
                columns["sharp"],
                who,
                better="neither",
                column="sharp",
                about="mean of |c - 0.5|; worth something if calibrated",
                beside=(Beside("the right comparisons", truth), Beside("always 0.5", 0.0)),
            ),
            _mean(
                LEAN,
                columns["lean"],
                who,
                better="neither",
                column="lean",
                about="mean by which an answer lies farther from 0.5 than the truth, on its own side",
                beside=(Beside("a perfectly calibrated comparison", 0.0),),
            ),
        )
        _, _, gain = mean_interval(columns["wrong"] - np.abs(t - 0.5), who)
        lean = measures[-1]
        way = (
            "It makes differences larger than they are"
            if (lean.low or 0) > 0
            else "It makes differences smaller than they are"
            if (lean.high or 0) < 0
            else "It leans neither way"
        )
        return Finding(
            says=f"Its number is off by {found.gap:.3f} on average, where a perfectly calibrated one would show "
            f"{found.floor:.3f}. {way}. A single answer is off by {columns['wrong'].mean():.3f}, and always saying "
            f"0.5 by {truth:.3f}.",
            measures=measures,
            samples=Table("test", {"index": index, "comparison": c, "right comparison": t, **columns}),
            views=(_reliability(found), _spread(c, t)),
            alarms=_alarms(len(c), gain, found),
        )


def _mean(
    name: str,
    values: Floats,
    pairs: NDArray[np.int64],
    *,
    better: Better,
    column: str,
    about: str,
    beside: tuple[Beside, ...],
) -> Measure:
    value, low, high = mean_interval(values, pairs)
    return Measure(
        name=name,
        value=value,
        low=low,
        high=high,
        n=len(values),
        better=better,
        column=column,
        about=about,
        beside=beside,
    )


def _reliability(found: Calibration) -> Curve:
    return Curve(
        name="reliability",
        title="What is true on average where it gives an answer",
        x_label="comparison",
        y_label="mean of the right comparison",
        diagonal=True,
        lines=(
            Line(
                label="pairs, as many in each bin",
                x=tuple(map(float, found.c)),
                y=tuple(map(float, found.t)),
                low=tuple(map(float, found.t_low)),
                high=tuple(map(float, found.t_high)),
            ),
        ),
        says="On the diagonal its numbers can be taken as they are; flatter, and it exaggerates. Bands are 95 % "
        "intervals of the mean.",
    )


def _spread(c: Floats, t: Floats) -> Histogram:
    edges = np.linspace(0, 1, 20)  # an odd number of bins: ties stand in the middle of one
    return Histogram(
        name="spread",
        title="How far apart it puts the two",
        x_label="comparison",
        edges=tuple(edges),
        counts=tuple((name, tuple(np.histogram(v, edges)[0].astype(float))) for name, v in (("said", c), ("true", t))),
    )


def _alarms(n: int, gain: float, found: Calibration) -> tuple[Alarm, ...]:
    alarms = []
    if n < FEW:
        says = f"Only {n} pairs: a perfectly calibrated comparison would show {found.floor:.3f} here; give 30 or more."
        alarms.append(Alarm(says, doubts=(HEADLINE,)))
    if gain >= 0:
        says = "It is not clearly nearer to the truth than always saying 0.5, which is calibrated and says nothing."
        alarms.append(Alarm(says, doubts=(HEADLINE, ERROR)))
    return tuple(alarms)


SHELVED = IsTheComparisonCalibrated
