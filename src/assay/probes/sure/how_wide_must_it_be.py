"""Intervals around its numbers that keep a promise whatever the model says, and how wide they have to be."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.held_out import Part, held_out
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Finding, Histogram, Measure, Table, View, wilson
from assay.methods.uncertainty.conformal import inputs_needed
from assay.methods.uncertainty.intervals import (
    covered,
    fit_widening,
    kept_by_luck,
    knows_nothing,
    widen,
    widening_limits,
    width,
)
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.tasks import Forecast, Regression

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

FEW = 30  # inputs below which neither a width nor a coverage says much
BINS = 20
PARTS = ("narrowest third", "middle third", "widest third")


class Rule(NamedTuple):
    """What is widened: the ends to start from, and the unit of each input."""

    name: str
    between: tuple[Tensor, Tensor]  # n d, n d
    unit: Tensor | None = None  # n d


class Kept(NamedTuple):
    """What became of it on the inputs asked about."""

    name: str
    held: Tensor  # n d of bool
    wide: Tensor  # n d
    low: Tensor  # n d: as wide as they may be with endless held-out inputs, at the least
    high: Tensor  # n d: and at the most


@dataclass(frozen=True)
class HowWideMustItBe(Probe):
    """How wide must an interval around its numbers be to hold the truth nine times out of ten?

    Split-conformal intervals need nothing of the model but its numbers: their width is what held-out inputs ask for.
    Where the model states a spread, or quantiles, they are wide where it says so; the headline is theirs. They miss a
    share `alpha` of all targets, of each number by itself. Held-out inputs are the split 'calibration', else
    'validation', else a fixed half of 'test'; what is asked about is then the other half. The promise is for inputs
    like those: of a group of them, such as those with narrow intervals, more may be missed.
    """

    alpha: float = 0.1

    needs: ClassVar[tuple[Need, ...]] = ("numbers",)
    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Lei et al., JASA 2018, arXiv:1604.04173 (split, normalised); Romano, Patterson & Candes, NeurIPS 2019, "
        "arXiv:1905.03222 (CQR); Vovk, ACML 2012, arXiv:1209.2673 (what is kept)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=1.0),)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise AssayError(f"alpha={self.alpha:g} is the share of misses allowed; give a number between 0 and 1.")

    def ask(self, subject: Subject, run: Run) -> Finding:
        if not isinstance(subject.task, Regression | Forecast):
            raise AssayError(f"{subject.task.name()} tells of no numbers; it is asked of Regression and Forecast.")
        task, part = subject.task.numbers(), held_out(subject.data)
        fit = part.fit[run.pick(Part(subject.data[part.split], part.fit), bounded=False)]
        ask = part.ask[run.pick(Part(subject.data["test"], part.ask))]
        if len(fit) < (needed := inputs_needed(self.alpha)):
            raise AssayError(
                f"{len(fit)} held-out inputs of {part.split!r} are too few to promise {100 * (1 - self.alpha):g} %; "
                f"hold out at least {needed}, or set a larger alpha."
            )
        before, known = self._rules(task, *run.predict(subject, part.split, fit, "held-out inputs"))
        now, y = self._rules(task, *run.predict(subject, "test", ask, "conformal intervals"))
        rules = []
        for old, new in zip(before, now, strict=True):
            q = fit_widening(old.between, known, alpha=self.alpha, unit=old.unit)
            between = widen(new.between, q, new.unit)
            ends = widening_limits(old.between, known, alpha=self.alpha, unit=old.unit)
            low, high = (width(widen(new.between, end, new.unit)) for end in ends)
            rules.append(Kept(new.name, covered(between, y), width(between), low, high))
        own, one = rules[0], len(task.names) == 1
        nothing = width(knows_nothing(y, 1 - self.alpha))  # d
        scale = y.new_ones(1) if one else y.new_tensor(task.tolerance)
        flat = [name for name, w in zip(task.names, nothing.tolist(), strict=True) if not w > 0]
        luck = kept_by_luck(len(fit), len(ask), self.alpha)
        columns: dict[str, NDArray[Any]] = {"index": ask}
        measures = []
        for rule in rules:
            of = "" if rule is own else f", {rule.name}"
            columns[f"held{of}"] = rule.held.double().mean(1).numpy()
            about = f"conformal intervals by {rule.name}, fitted on {len(fit)} inputs of {part.split!r}"
            kept = Measure.chance(
                f"coverage kept{of}",
                columns[f"held{of}"],
                better="neither",
                seed=run.seed,
                column=f"held{of}",
                about=f"{about}; 95 of 100 draws of as many keep {100 * luck[0]:.1f} to {100 * luck[1]:.1f} %",
                beside=(Beside("promised", 1 - self.alpha),),
            )
            share_of = _size(
                f"relative width{of}", rule, None if flat else nothing, columns, run.seed,
                "%", f"{about}; of the targets' own central interval", Beside("knows nothing", 1.0),
            )  # fmt: skip
            measures += [share_of, kept]
        measures.append(
            _size(
                "width", own, scale, columns, run.seed, (*task.units, "")[0] if one else "",
                f"by {own.name}{'' if one else '; each number in units of its tolerance'}",
                Beside("knows nothing", float((nothing / scale).mean())),
            )
        )  # fmt: skip
        told = measures[0].value
        return Finding(
            says=f"To hold the target in {100 * (1 - self.alpha):g} % of cases its intervals must be "
            + ("endless" if not own.wide.isfinite().all() else f"{float((own.wide / scale).mean()):.3g} wide")
            + (f", {100 * told:.0f} % of what it takes without any input" if told is not None else "")
            + f"; on inputs that they were not fitted on they hold {100 * float(own.held.double().mean()):.1f} %. They "
            f"are by {own.name}.",
            measures=tuple(measures),
            samples=Table("test", columns),
            views=self._figures(rules, scale, one),
            alarms=_alarms(len(fit), len(ask), flat, rules),
        )

    def _rules(self, task: Regression, out: NDArray[Any], targets: NDArray[Any]) -> tuple[list[Rule], Tensor]:
        """What can be widened, the one that says most of an input first, and the targets (n d)."""
        n, d = len(out), len(task.names)
        rows = torch.from_numpy(out).double().reshape(n, task.wide or 1, d)
        answer = task.answer(rows)
        rules = [Rule("absolute residuals", (answer, answer))]
        if task.spread:
            rules.insert(0, Rule("residuals in units of its spread", (answer, answer), rows[:, 1]))
        if task.shares:
            nearest = min(task.shares, key=lambda s: abs(s - (1 - self.alpha)))
            between = task.between(rows, nearest)
            assert between is not None  # a share that it knows of
            rules.insert(0, Rule(f"its {100 * nearest:g} % quantiles (CQR)", between))
        return rules, torch.from_numpy(targets).double().reshape(n, d)

    def _figures(self, rules: list[Kept], scale: Tensor, one: bool) -> tuple[View, ...]:
        held = [float(rule.held.double().mean()) for rule in rules]
        ends = [wilson(round(len(rule.held) * c), len(rule.held)) for rule, c in zip(rules, held, strict=True)]
        views: list[View] = [
            Bars(
                name="kept",
                title="What coverage they keep",
                y_label="coverage",
                labels=tuple(rule.name for rule in rules),
                values=tuple(held),
                low=tuple(min(a, c) for (a, _), c in zip(ends, held, strict=True)),
                high=tuple(max(b, c) for (_, b), c in zip(ends, held, strict=True)),
                unit_y=True,
                marks=(Beside("promised", 1 - self.alpha),),
            )
        ]
        finite = [rule for rule in rules if rule.wide.isfinite().all()]
        if finite:
            most = max(float((rule.wide / scale).max()) for rule in finite) or 1.0
            edges = np.linspace(0, most, BINS + 1)
            views.append(
                Histogram(
                    name="widths",
                    title="How wide they are",
                    x_label="width" if one else "width, in units of the tolerance",
                    edges=tuple(edges),
                    counts=tuple(
                        (rule.name, tuple(np.histogram((rule.wide / scale).numpy(), edges)[0].astype(float)))
                        for rule in finite
                    ),
                )
            )
        if one and len(rules) > 1 and len(rules[0].wide) >= len(PARTS):
            order = rules[0].wide[:, 0].argsort(stable=True)
            thirds = [rules[0].held[part, 0] for part in order.tensor_split(len(PARTS))]
            bands = [wilson(int(third.sum()), len(third)) for third in thirds]
            views.append(
                Bars(
                    name="thirds",
                    title="What coverage they keep where they are narrow and where they are wide",
                    y_label="coverage",
                    labels=PARTS,
                    values=tuple(float(third.double().mean()) for third in thirds),
                    low=tuple(a for a, _ in bands),
                    high=tuple(b for _, b in bands),
                    unit_y=True,
                    marks=(Beside("promised for all together", 1 - self.alpha),),
                    says=f"Intervals by {rules[0].name}. Alike where the model knows which inputs are hard.",
                )
            )
        return tuple(views)


def _size(
    name: str,
    rule: Kept,
    by: Tensor | None,
    columns: dict[str, NDArray[Any]],
    seed: int,
    unit: str,
    about: str,
    beside: Beside,
) -> Measure:  # by: d or 1
    """The mean width, and its column; not measured where it is endless or has nothing to be a share of.

    Its interval holds what the inputs asked about vary by, and what the draw of the held-out ones does: the same width
    for all is not known exactly because of that.
    """
    if by is None or not bool(rule.wide.isfinite().all()):
        return Measure(name=name, value=None, better="lower", unit=unit, about=about)
    columns[name] = (rule.wide / by).mean(1).numpy()
    mean = Measure.mean(
        name, columns[name], better="lower", seed=seed, unit=unit, column=name, about=about, beside=(beside,)
    )
    assert mean.value is not None  # these two say what Measure.mean always gives
    assert mean.low is not None
    least, most = (float((end / by).mean()) for end in (rule.low, rule.high))
    high = None if not np.isfinite(most) else max(most, mean.high or 0.0, mean.value)
    return dataclasses.replace(mean, low=min(least, mean.low, mean.value), high=high)


def _alarms(fitted: int, asked: int, flat: list[str], rules: list[Kept]) -> tuple[Alarm, ...]:
    alarms = []
    if not rules[0].high.isfinite().all():
        alarms.append(
            Alarm(
                f"With {fitted} held-out inputs nothing tells how wide the intervals may have to be at the most; hold "
                "out more.",
                ("relative width", "width"),
            )
        )
    for count, what in ((fitted, "to fit widths on"), (asked, "to ask about")):
        if count < FEW:
            alarms.append(
                Alarm(f"Only {count} inputs {what}: another draw may ask for quite another width; give more.")
            )
    if flat:
        alarms.append(
            Alarm(f"The targets of {flat[0]!r} are as good as constant: no width can be told as a share of theirs.")
        )
    alarms += [
        Alarm(f"Intervals by {name} are endless: it states a spread of 0 where it is wrong, and too often.")
        for name in (rule.name for rule in rules if not rule.wide.isfinite().all())
    ]
    return tuple(alarms)


SHELVED = HowWideMustItBe
