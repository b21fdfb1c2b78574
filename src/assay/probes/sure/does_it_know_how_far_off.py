"""Is what it says of the spread of its numbers true?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Beside,
    Curve,
    Finding,
    Histogram,
    Line,
    Matrix,
    Measure,
    Table,
    View,
    share,
    wilson,
)
from assay.methods.uncertainty.crps import (
    crps_normal,
    crps_of_targets,
    crps_point,
    crps_quantiles,
    floor_normal,
    floor_quantiles,
)
from assay.methods.uncertainty.intervals import LEVELS, by_chance, covered, interval_score, knows_nothing, width
from assay.methods.uncertainty.pit import Pit, pit_histogram, pit_normal, pit_quantiles
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.tasks import Forecast, Regression

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

Floats = NDArray[np.float64]
FEW = 30  # inputs below which a coverage says little
GRID = tuple(round(0.05 * i, 2) for i in range(1, 20))  # levels of the curve where a spread gives any
BINS = 20  # of the histograms
SHOWN = 12  # numbers that get a row of their own


@dataclass(frozen=True)
class DoesItKnowHowFarOff(Probe):
    """When it says that a number lies between two others nine times out of ten, does it?

    The headline is how far the share of targets inside its central intervals is from `level`, mean over the numbers of
    an answer. Coverage is cheap for intervals that are wide enough: beside it stand their width, as a share of the
    interval that the targets have without any input, and the CRPS, which rewards both, with what a calibrated model of
    the same spreads would show: above that it is off or too sure, below it less sure than it could be. Of quantiles
    the level is judged that they give and that is nearest.
    """

    level: float = 0.9

    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Gneiting & Raftery, JASA 2007, doi:10.1198/016214506000001437 (CRPS, interval score); Gneiting, Balabdaoui & "
        "Raftery, JRSS B 2007, doi:10.1111/j.1467-9868.2007.00587.x (sharpness subject to calibration, PIT)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.05),)

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise AssayError(f"level={self.level:g} is what an interval promises; give a number between 0 and 1.")

    def ask(self, subject: Subject, run: Run) -> Finding:
        if not isinstance(subject.task, Regression | Forecast):
            raise AssayError(f"{subject.task.name()} tells of no numbers; it is asked of Regression and Forecast.")
        task = subject.task.numbers()
        index = run.pick(subject.data["test"])
        out, targets = run.predict(subject, "test", index, "stated spreads")
        n, d = len(index), len(task.names)
        rows = torch.from_numpy(out).double().reshape(n, task.wide or 1, d)
        y = torch.from_numpy(targets).double().reshape(n, d)
        level = self.level if task.spread else min(task.shares, key=lambda s: abs(s - self.level))
        known = LEVELS if task.spread else task.shares
        inside = {s: covered(_between(task, rows, s), y) for s in sorted({*known, level})}
        scale = y.new_ones(1) if d == 1 else y.new_tensor(task.tolerance)
        unit = (*task.units, "")[0] if d == 1 else ""
        counted = "" if d == 1 else "; each number in units of its tolerance, mean over the numbers"
        own, blank = _between(task, rows, level), knows_nothing(y, level)
        wide, nothing = width(own), width(blank)
        score, floor, trivial, pit = _scores(task, rows, y)
        every = (y.new_zeros(n, d) + blank[0], y.new_zeros(n, d) + blank[1])
        columns = {
            "covered": inside[level].double().mean(1).numpy(),
            "width": (wide / scale).mean(1).numpy(),
            "CRPS": (score / scale).mean(1).numpy(),
            "floor": (floor / scale).mean(1).numpy(),
            "interval score": (interval_score(own, y, level) / scale).mean(1).numpy(),
            "error": (crps_point(task.answer(rows), y) / scale).mean(1).numpy(),
        }
        flat = [name for name, w in zip(task.names, nothing.tolist(), strict=True) if not w > 0]
        if not flat:
            columns["relative width"] = (wide / nothing).mean(1).numpy()
        error = _error(inside[level], level)
        measures = [
            error,
            *(
                Measure.chance(
                    f"coverage at {100 * s:g} %",
                    inside[s].double().mean(1).numpy(),
                    better="neither",
                    seed=run.seed,
                    column="covered" if s == level else None,
                    about=f"share of targets inside the intervals that promise {100 * s:g} %",
                    beside=(Beside("promised", s),),
                )
                for s in inside
            ),
            _relative(columns, level, run.seed, n),
            Measure.mean(
                "width",
                columns["width"],
                better="neither",
                seed=run.seed,
                unit=unit,
                column="width",
                about=f"mean width of its {100 * level:g} % intervals{counted}",
                beside=(Beside("the targets' own interval", float((nothing / scale).mean())),),
            ),
            Measure.mean(
                "CRPS",
                columns["CRPS"],
                better="lower",
                seed=run.seed,
                unit=unit,
                column="CRPS",
                about=("of a normal" if task.spread else f"pinball losses at its {len(task.quantiles)} levels, summed")
                + counted,
                beside=(
                    Beside("a calibrated model of the same spreads", float(columns["floor"].mean())),
                    Beside("the targets' own distribution", float((trivial / scale).mean())),
                    Beside("its answers without a spread", float(columns["error"].mean())),
                ),
            ),
            Measure.mean(
                "interval score",
                columns["interval score"],
                better="lower",
                seed=run.seed,
                unit=unit,
                column="interval score",
                about=f"of its {100 * level:g} % intervals: width, and {2 / (1 - level):g} times the miss{counted}",
                beside=(Beside("the targets' own interval", float((interval_score(every, y, level) / scale).mean())),),
            ),
        ]
        hit = float(inside[level].double().mean())
        leaning = "too narrow" if hit < level else "wider than they need be"
        if d > 1:
            leaning = f"off by {100 * (error.value or 0):.1f} points of each number, on average"
        return Finding(
            says=f"Its {100 * level:g} % intervals hold {100 * hit:.1f} % of the targets"
            + (f", {leaning}" if error.low else ", which chance alone may show of honest ones")
            + (
                f", and are {100 * columns['relative width'].mean():.0f} % as wide as knowing nothing"
                if not flat
                else ""
            )
            + f". Its CRPS is {columns['CRPS'].mean():.3g}; a calibrated model of the same spreads would show "
            f"{columns['floor'].mean():.3g}, and the targets' own distribution {float((trivial / scale).mean()):.3g}.",
            measures=tuple(measures),
            samples=Table("test", {"index": index, **columns}),
            views=self._figures(task, rows, y, level, inside[level], wide / scale, score, pit, unit),
            alarms=self._alarms(task, rows, level, n, flat),
        )

    def _figures(
        self,
        task: Regression,
        rows: Tensor,
        y: Tensor,
        level: float,
        held: Tensor,
        wide: Tensor,
        score: Tensor,
        pit: Pit,
        unit: str,
    ) -> tuple[View, ...]:
        n, d = y.shape
        grid = GRID if task.spread else task.shares
        curve = torch.stack([covered(_between(task, rows, s), y).double().mean(0) for s in grid])  # s d
        lines = (
            [Line.shares(name, grid, (n * curve[:, j]).round().int().tolist(), n) for j, name in enumerate(task.names)]
            if d <= 4
            else [_together(grid, curve.mean(1).tolist(), n)]
        )
        narrow, most = wide.flatten().numpy(), float(wide.max()) or 1.0
        edges, groups = np.linspace(0, most, BINS + 1), held.flatten().numpy()
        views: list[View] = [
            Curve(
                name="reliability",
                title="How often its intervals hold the target",
                x_label="promised",
                y_label="held",
                lines=tuple(lines),
                diagonal=True,
                unit_y=True,
                says="On the diagonal intervals keep what they promise; below it they are too narrow. Bands are 95 % "
                "intervals.",
            ),
            Histogram(
                name="levels",
                title="At which level of its own distribution the target came",
                x_label="level (probability integral transform)",
                edges=tuple(np.linspace(0, 1, BINS + 1)),
                counts=(("targets", tuple(pit_histogram(pit, BINS).tolist())),),
                says="Flat where its distributions are right on average; high at both ends where they are too narrow, "
                "in the middle where they are too wide, at one end where its answers lie to one side."
                + ("" if task.spread else " Quantiles tell only which two of them it came between: it counts evenly."),
            ),
            Histogram(
                name="widths",
                title=f"How wide its {100 * level:g} % intervals are",
                x_label=f"width{', ' + unit if unit else ''}" if d == 1 else "width, in units of the tolerance",
                edges=tuple(edges),
                counts=tuple(
                    (name, tuple(np.histogram(narrow[of], edges)[0].astype(float)))
                    for name, of in (("held the target", groups), ("missed it", ~groups))
                ),
            ),
        ]
        if d > 1:
            values = torch.stack(
                [held.double().mean(0), wide.mean(0), (score / y.new_tensor(task.tolerance)).mean(0)], 1
            )
            views.append(
                Matrix(
                    name="numbers",
                    title="Each number by itself",
                    row_label="number",
                    column_label="",
                    rows=task.names[:SHOWN],
                    columns=(f"held at {100 * level:g} %", "width", "CRPS"),
                    values=tuple(map(tuple, values[:SHOWN].tolist())),
                    says="Widths and scores are in units of each number's tolerance."
                    + (f" The first {SHOWN} of {d}." if d > SHOWN else ""),
                )
            )
        return tuple(views)

    def _alarms(self, task: Regression, rows: Tensor, level: float, n: int, flat: list[str]) -> tuple[Alarm, ...]:
        alarms = []
        if n < FEW:
            alarms.append(Alarm(f"Only {n} inputs: a coverage of so few says little; give more.", ("coverage error",)))
        if level != self.level:
            alarms.append(
                Alarm(f"Its quantiles give no {100 * self.level:g} % interval; the one of {100 * level:g} % is judged.")
            )
        if flat:
            alarms.append(
                Alarm(f"The targets of {flat[0]!r} are as good as constant: no width can be told as a share of theirs.")
            )
        if task.spread and (still := int((rows[:, 1] == 0).any(1).sum())):
            alarms.append(Alarm(f"It states a spread of 0 for {share(still, n)} inputs: no error at all is expected."))
        if task.quantiles and (crossed := int((rows.diff(dim=1) < 0).any(1).any(1).sum())):
            alarms.append(
                Alarm(f"Its quantiles cross in {share(crossed, n)} inputs: a higher level has a lower number.")
            )
        return tuple(alarms)


def _between(task: Regression, rows: Tensor, level: float) -> tuple[Tensor, Tensor]:  # n w d -> n d, n d
    between = task.between(rows, level)
    assert between is not None  # levels are those that it knows of
    return between


def _scores(task: Regression, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Pit]:
    """CRPS (n d), its floor (n d), that of the targets' own distribution (d), and the levels that the targets had."""
    if task.spread:
        mean, sd = rows.unbind(1)
        return crps_normal(mean, sd, y), floor_normal(sd), crps_of_targets(y), pit_normal(mean, sd, y)
    own = torch.from_numpy(np.quantile(y.numpy(), task.quantiles, axis=0)).expand(rows.shape)
    return (
        crps_quantiles(rows, task.quantiles, y),
        floor_quantiles(rows, task.quantiles),
        crps_quantiles(own, task.quantiles, y).mean(0),
        pit_quantiles(rows, task.quantiles, y),
    )


def _error(held: Tensor, level: float) -> Measure:  # n d
    """|covered - level|, mean over the numbers; the ends are means of those of each number's own Wilson interval.

    Numbers of one answer go together, so that no interval may count them as if they were so many more inputs.
    """
    n = len(held)
    shares = held.double().mean(0).tolist()
    ends = [wilson(round(n * c), n) for c in shares]
    low = [max(0.0, a - level, level - b) for a, b in ends]
    high = [max(level - a, b - level) for a, b in ends]
    return Measure(
        name="coverage error",
        value=float(np.mean([abs(c - level) for c in shares])),
        low=float(np.mean(low)),
        high=float(np.mean(high)),
        n=n,
        unit="%",
        better="lower",
        about=f"how far the share of targets inside its {100 * level:g} % intervals is from that"
        + (f", mean over {len(shares)} numbers" if len(shares) > 1 else ""),
        beside=(Beside("a perfectly calibrated model, by chance", by_chance(n, level)),),
    )


def _relative(columns: Mapping[str, Floats], level: float, seed: int, n: int) -> Measure:
    name, about = "relative width", f"width of its {100 * level:g} % intervals, of the targets' own central interval"
    if name not in columns:
        return Measure(name=name, value=None, better="neither", unit="%", n=n, about=about)
    return Measure.mean(
        name,
        columns[name],
        better="neither",
        seed=seed,
        unit="%",
        column=name,
        about=f"{about}; narrower is better at equal coverage",
        beside=(Beside("knows nothing", 1.0),),
    )


def _together(grid: tuple[float, ...], held: list[float], n: int) -> Line:
    """All numbers together; the band is as wide as if those of one answer were held or missed at once."""
    ends = [wilson(round(n * c), n) for c in held]
    return Line(
        label="all numbers",
        x=grid,
        y=tuple(held),
        low=tuple(min(a, c) for (a, _), c in zip(ends, held, strict=True)),
        high=tuple(max(b, c) for (_, b), c in zip(ends, held, strict=True)),
    )


SHELVED = DoesItKnowHowFarOff
