"""What it will score where nobody has labels, and how well that is foretold where somebody has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.domain import LEAST, Domain
from assay.errors import SubjectError
from assay.finding import Alarm, Bars, Beside, Finding, Matrix, Measure, Table, View, share
from assay.methods.shift.accuracy_estimates import (
    RULES,
    Answers,
    Estimate,
    Estimator,
    Home,
    Shift,
    Weighted,
    other_shares,
    weighted_accuracy,
)
from assay.methods.shift.importance_weights import too_few
from assay.methods.shift.label_conflict import Conflict, label_conflict
from assay.methods.shift.principal import principal
from assay.methods.shift.relabelled import Relabelled, least_sure, relabelled, surely
from assay.probe import Need, Probe
from assay.run import HELD_BYTES
from assay.standard import Standard
from assay.tasks.places import Places

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

SEVERITIES = (1, 3, 5)  # of each everyday change: kinds of change tell more than steps between them
WEIGHTED = "importance weighted"
MEASURED = "measured"
PAIRED, DIRECTIONS = 500, 16  # inputs and principal directions in which labels of like inputs are compared
CONFLICT = 0.01  # chance of an alarm where there is no conflict, half for each of two tests
MISSES = 0.1  # of labelled domains outside their intervals, above which the intervals are not believed
UNSEEN = "Whether like inputs have other labels there cannot be seen without labels; then no such number holds."


class Told(NamedTuple):
    """What was found of one domain; `measured` is whether each answer is right, where it has labels."""

    name: str
    n: int
    estimates: Mapping[str, Estimate]
    weighted: Weighted | None
    hollow: bool
    """Whether a few inputs carry the weights."""
    measured: NDArray[np.bool_] | None
    conflict: str


class Meant(NamedTuple):
    """What its answers mean at home: the labels, how sure each answer has to be, and both after everyday changes."""

    labels: NDArray[np.int64]  # n
    least: NDArray[np.float64]  # k
    everyday: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]  # of n, n


@dataclass(frozen=True)
class WhatWillItScoreThere(Probe):
    """How often will it be right on a domain without labels?

    Accuracy is told from its answers there by average confidence, by the difference of confidences, by thresholded
    confidence (ATC), by how many classes it still tells apart (dispersity), and by importance weights over the answers.
    What an estimate is worth is found on its own test inputs after everyday changes, of which one kind at a time is
    left out; the one that errs least there is told, with an interval that holds how much it erred. Domains with labels
    are predicted as if they had none, and the prediction is held against what they measure.
    """

    needs: ClassVar[tuple[Need, ...]] = ("domains",)
    source: ClassVar[str] = (
        "Guillory et al., ICCV 2021, arXiv:2107.03315 (difference of confidences); Garg et al., ICLR 2022, "
        "arXiv:2201.04234 (ATC); Deng et al., ICML 2023, arXiv:2302.01094 (dispersity)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.7),)

    def why_not(self, subject: Subject) -> str | None:
        if (reason := super().why_not(subject)) is not None:
            return reason
        if subject.task.promise is None:
            return subject.task.no_promise
        if isinstance(subject.task, Places):
            return "its confidence is of one place of many, and what is to be told is whether a whole answer is right"
        return None

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"])
        home, shifts, meant = _calibrated(subject, run, index)
        estimator = Estimator(home, shifts)
        told = [_told(subject, run, domain, index, estimator, meant) for domain in subject.domains().values()]
        few = [t.name for t in told if t.n < LEAST]
        chosen = estimator.chosen
        enough = [t for t in told if t.n >= LEAST and chosen in t.estimates]
        measures = [self._measure(t, estimator) for t in _in_order(enough, chosen)]
        judged = [t for t in enough if t.measured is not None and not t.conflict]
        off, held = _judged(judged, chosen)
        if off:
            measures.append(_error(off, held, estimator))
        if not measures:
            measures = [Measure(name="predicted accuracy", value=None, better="higher")]
        columns = {"index": index, "confidence": home.answers.sure, "right": home.right}
        return Finding(
            says=_says(_in_order(enough, chosen), chosen, home.accuracy, off, held),
            measures=tuple(measures),
            samples=Table("test", columns if meant is None else {**columns, "label": meant.labels}),
            views=_views(enough, estimator, run.budget.shown),
            alarms=_alarms(told, few, estimator, bool(shifts), judged, held),
        )

    def _measure(self, t: Told, estimator: Estimator) -> Measure:
        chosen = estimator.chosen
        assert chosen is not None
        found = t.estimates[chosen]
        beside = [Beside("at home, measured", estimator.home.accuracy)]
        if t.measured is not None:
            beside.append(Beside("measured there", float(t.measured.mean())))
        return Measure(
            name=f"predicted accuracy on {t.name}",
            value=found.value,
            low=found.low,
            high=found.high,
            unit="%",  # no n: its width is of what shifts do to the estimate, and more inputs would not mend that
            better="higher",
            about=f"of {t.n:,} inputs without their labels, by {chosen}"
            + (
                ""
                if found.error is None
                else f", which errs least on everyday changes left out ({_points(found.error)} points)"
            )
            + ("; no label conflict assumed" if t.measured is None else ""),
            beside=tuple(beside),
        )


def _calibrated(subject: Subject, run: Run, index: NDArray[np.int64]) -> tuple[Home, list[Shift], Meant | None]:
    """The test inputs as they are and after every everyday change, each also with the classes in other shares."""
    changes = subject.everyday() if not subject.tokens else {}
    strata = subject.task.strata(np.asarray(subject.data["test"].labels)[index])
    rng = np.random.default_rng(run.seed)
    (clean,) = _asked(subject, run, "test", index, None)
    home, shifts = Home(*clean), []
    chance = home.answers.chance
    least, everyday = None if chance is None else least_sure(chance), []
    for name in changes:
        for answers, right in _asked(subject, run, "test", index, name):
            if least is not None and answers.chance is not None:
                everyday.append((surely(answers.chance, least), strata))
            shifts.append(home.shift(name, answers, right))
            if len(np.unique(strata)) > 1:
                shifts.append(home.shift(name, answers, right, other_shares(strata, rng)))
    return home, shifts, None if least is None else Meant(strata, least, everyday)


def _asked(
    subject: Subject, run: Run, split: str, index: NDArray[np.int64], change: str | None, labelled: bool = True
) -> list[tuple[Answers, NDArray[np.bool_]]]:
    """Answers, and which are right, for each severity of a change, or as they are; all wrong where nobody knows."""
    about = f"answers on {split}" if change is None else f"answers after {change.replace('-', ' ')}"
    rows = run.map(partial(_answer, subject, change, labelled), subject, split, index, about)
    sure, right = np.asarray(rows["sure"], dtype=np.float64), rows["right"].astype(bool)  # n s
    chance = np.asarray(rows["chance"], dtype=np.float64) if "chance" in rows else None  # n s k
    return [
        (Answers.of(sure[:, s], None if chance is None else chance[:, s]), right[:, s]) for s in range(sure.shape[1])
    ]


def _answer(subject: Subject, change: str | None, labelled: bool, shard: Shard) -> Mapping[str, Tensor]:
    task, rows = subject.task, []
    for severity in (0,) if change is None else SEVERITIES:
        x = shard.x if change is None else subject.everyday()[change](shard.x, severity, shard.rng)
        out = subject.predict(x)
        if not bool(out.isfinite().all()):
            after = "as it is" if change is None else f"after {change} {severity}"
            raise SubjectError(
                f"The model returned NaN or infinity for an input {after}; check its weights and its scaling."
            )
        chance = out.double().softmax(1) if "classes" in task.gives else None  # n k
        sure = task.confidence(out) if chance is None else chance.amax(1)
        assert sure is not None  # why_not saw to it
        right = task.right(out, shard.y) if labelled else torch.zeros(len(out), dtype=torch.bool, device=out.device)
        rows.append((sure.double().clamp(0, 1), right, *(() if chance is None else (chance,))))
    columns = [torch.stack(each, 1) for each in zip(*rows, strict=True)]
    return dict(zip(("sure", "right", "chance"), columns, strict=False))


def _told(
    subject: Subject, run: Run, domain: Domain, index: NDArray[np.int64], estimator: Estimator, meant: Meant | None
) -> Told:
    """One domain, asked about without its labels; they are looked at afterwards, where it has some."""
    there = run.pick(domain.data)
    if len(domain.data) < LEAST:
        return Told(domain.name, len(domain.data), {}, None, False, None, "")
    ((answers, right),) = _asked(subject.everywhere(), run, domain.name, there, None, domain.labelled)
    weights = estimator.home.weights(answers)
    conflict = ""
    if domain.labelled and meant is not None:
        conflict = _by_answers(subject, domain, there, answers, meant) or _by_inputs(
            subject, run, domain.name, index, there
        )
    return Told(
        name=domain.name,
        n=len(there),
        estimates=estimator.estimate(answers),
        weighted=None if weights is None else weighted_accuracy(estimator.home.right, weights),
        hollow=weights is not None and too_few(torch.from_numpy(weights)) is not None,
        measured=right if domain.labelled else None,
        conflict=conflict,
    )


def _by_answers(subject: Subject, domain: Domain, there: NDArray[np.int64], answers: Answers, meant: Meant) -> str:
    """The sentence of the alarm where what it surely calls one class has another's label there, or nothing."""
    assert answers.chance is not None
    labels = subject.task.strata(np.asarray(domain.data.labels)[there])
    found = relabelled_there(surely(answers.chance, meant.least), labels, len(meant.least), meant.everyday)
    if found is None:
        return ""
    said, label = (repr(subject.task.classes[each]) for each in (found.said, found.label))
    kept = f"of those labelled {said} {share(*found.kept)}" if found.kept[1] else f"nothing is labelled {said} there"
    return (
        f"Of inputs labelled {label} on {domain.name!r} it calls {share(*found.called)} {said}, as surely as at home, "
        f"and {kept} (p = {found.p_value:.1g}): a label conflict, which no estimate without labels can see."
    )


def relabelled_there(
    said: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: int,
    everyday: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> Relabelled | None:  # n, n
    """A label conflict that is no chance, told by sure answers; None where there is none to see."""
    tested = relabelled(said, labels, classes=classes, everyday=everyday)
    return tested if tested is not None and tested.p_value <= CONFLICT / 2 else None


def _by_inputs(subject: Subject, run: Run, name: str, index: NDArray[np.int64], there: NDArray[np.int64]) -> str:
    """The sentence of the alarm where like inputs have other labels there than at home, whatever it says of them."""
    if subject.tokens:
        return ""
    most = min(PAIRED, HELD_BYTES // (8 * math.prod(subject.inputs.shape)))
    if most <= LEAST:
        return ""
    rng = np.random.default_rng(run.seed)
    found = []
    for split, rows in (("test", index), (name, there)):
        some = np.sort(rng.permutation(rows)[:most])
        each = run.map(lambda s: {"x": s.x.flatten(1), "y": s.y}, subject, split, some, f"inputs of {split}")
        found.append((torch.from_numpy(each["x"]).double(), torch.from_numpy(each["y"]).long()))
    (x, y), (x_there, y_there) = found
    low, span = (edge.flatten() for edge in subject.inputs.edges())
    x, x_there = ((each - low) / span.clamp_min(1e-30) for each in (x, x_there))
    rng_of = torch.Generator().manual_seed(run.seed)
    tested = conflict_between(x, y, x_there, y_there, classes=len(subject.task.classes), rng=rng_of)
    if tested is None:
        return ""
    return (
        f"Like inputs have other labels on {name!r} than at home (p = {tested.p_value:.3f} over {tested.pairs} pairs "
        "of near inputs): a label conflict, which no estimate without labels can see."
    )


def conflict_between(
    x: Tensor, y: Tensor, x_there: Tensor, y_there: Tensor, *, classes: int, rng: torch.Generator
) -> Conflict | None:  # n *d, n, m *d, m
    """A label conflict that is no chance, sought in home's principal directions; None where there is none to see."""
    onto = principal([x], DIRECTIONS)
    tested = label_conflict(onto(x), y, onto(x_there), y_there, classes=classes, rng=rng)
    return tested if tested is not None and tested.p_value <= CONFLICT / 2 and tested.low > 0 else None


def _in_order(told: Sequence[Told], chosen: str | None) -> list[Told]:
    """What nobody has measured first, the lowest prediction before all."""
    return [] if chosen is None else sorted(told, key=lambda t: (t.measured is not None, t.estimates[chosen].value))


def _judged(told: Sequence[Told], chosen: str | None) -> tuple[list[float], list[bool]]:
    """By how much each prediction missed what was measured, and whether its interval holds it."""
    off, held = [], []
    for t in told:
        assert chosen is not None
        assert t.measured is not None
        truth, found = float(t.measured.mean()), t.estimates[chosen]
        off.append(abs(found.value - truth))
        held.append(found.low <= truth <= found.high)
    return off, held


def _points(number: float) -> str:
    return f"{100 * number:.1f}"


def _error(off: Sequence[float], held: Sequence[bool], estimator: Estimator) -> Measure:
    worth = estimator.error.get(estimator.chosen or "")
    return Measure(
        name="error of the prediction",
        value=float(np.mean(off)),
        n=len(off),
        unit="%",
        better="lower",
        about="mean absolute difference of predicted and measured accuracy over domains with labels, but for those "
        f"whose labels conflict with home's; intervals held the measured one on {share(sum(held), len(held))}",
        beside=() if worth is None else (Beside("on everyday changes left out", worth),),
    )


def _says(told: Sequence[Told], chosen: str | None, home: float, off: Sequence[float], held: Sequence[bool]) -> str:
    if chosen is None or not told:
        return "Nothing can be told of its accuracy on these domains without labels; the alarms say why."
    first = told[0]
    found = first.estimates[chosen]
    says = (
        f"On {first.name!r} it will probably be right on {100 * found.value:.0f} % of the inputs "
        f"({100 * found.low:.0f} to {100 * found.high:.0f} %), and at home it is on {100 * home:.0f} %. "
    )
    if off:
        says += (
            f"Where labels are known such predictions are off by {_points(float(np.mean(off)))} points, and their "
            f"intervals hold the truth on {share(sum(held), len(held))}. "
        )
    return says + (UNSEEN if first.measured is None else "")


def _views(told: Sequence[Told], estimator: Estimator, shown: int) -> tuple[View, ...]:
    views: list[View] = []
    chosen = estimator.chosen
    if not told or chosen is None:
        return ()
    names = [*(name for name in RULES if any(name in t.estimates for t in told)), WEIGHTED, MEASURED]
    tables = []
    for t in told:
        each = {name: (found.value, found.low, found.high) for name, found in t.estimates.items()}
        if t.weighted is not None:
            each[WEIGHTED] = t.weighted[:3]
        if t.measured is not None:
            found = Measure.proportion(MEASURED, t.measured, better="higher")
            each[MEASURED] = (found.value or 0.0, found.low or 0.0, found.high or 0.0)
        tables.append(each)
    views.append(
        Matrix(
            name="estimates",
            title="Accuracy on each domain, by each estimate",
            row_label="domain",
            column_label="estimate",
            rows=tuple(t.name for t in told),
            columns=tuple(names),
            values=tuple(tuple(each[name][0] if name in each else None for name in names) for each in tables),
            says=f"The prediction is that of {chosen}.",
        )
    )
    for t, each in list(zip(told, tables, strict=True))[:shown]:
        there = [name for name in names if name in each]
        views.append(
            Bars(
                name=f"estimates on {t.name}",
                title=f"Accuracy on {t.name}, by each estimate",
                y_label="accuracy",
                labels=tuple(there),
                values=tuple(each[name][0] for name in there),
                low=tuple(each[name][1] for name in there),
                high=tuple(each[name][2] for name in there),
                unit_y=True,
                marks=(Beside("at home", estimator.home.accuracy),),
                says="Intervals hold how much each estimate erred on everyday changes; that of importance weights, and "
                "that of what was measured, hold what chance does to a sample.",
            )
        )
    if estimator.error:
        views.append(
            Bars(
                name="worth",
                title="What each estimate is worth",
                y_label="mean absolute error",
                labels=tuple(estimator.error),
                values=tuple(estimator.error.values()),
                says="On test inputs after everyday changes and with classes in other shares, each kind of change left "
                "out of the fit in turn.",
            )
        )
    return tuple(views)


def _alarms(
    told: Sequence[Told],
    few: Sequence[str],
    estimator: Estimator,
    changed: bool,
    judged: Sequence[Told],
    held: Sequence[bool],
) -> tuple[Alarm, ...]:
    every = tuple(f"predicted accuracy on {t.name}" for t in told)
    alarms = []
    if few:
        alarms.append(Alarm(f"Fewer than {LEAST} inputs in {', '.join(few)}: nothing is said about them."))
    still = estimator.home.still
    if still:
        alarms.append(
            Alarm(
                f"What it says of its confidence does not differ between inputs: {', '.join(still)} can tell nothing.",
                doubts=every if estimator.chosen is None else (),
            )
        )
    if not changed:
        alarms.append(
            Alarm(
                "Nobody says what happens to such inputs every day, so that no estimate could be tried: the intervals "
                "hold what chance does to a sample, and not how shifts differ.",
                doubts=every,
            )
        )
    hollow = [t.name for t in told if t.hollow]
    if hollow:
        alarms.append(
            Alarm(
                f"The importance weights of {', '.join(hollow)} rest on a handful of test inputs; what is said by them "
                "there is worth little."
            )
        )
    alarms += [Alarm(t.conflict, doubts=(f"predicted accuracy on {t.name}",)) for t in told if t.conflict]
    missed = [t.name for t, fine in zip(judged, held, strict=True) if not fine]
    if len(missed) > MISSES * len(judged):
        alarms.append(
            Alarm(
                f"What was measured on {', '.join(missed)} lies outside the predicted interval: such predictions do "
                "not hold for every domain of this subject.",
                doubts=every,
            )
        )
    return tuple(alarms)


SHELVED = WhatWillItScoreThere
