"""Does it treat groups of people alike, and equals equally?

Groups are what the subject's attributes say, each by itself and all of them crossed. Every gap is the largest of many
pairs of groups, which is above 0 by chance alone: its interval is that of the largest, and beside it stands what random
groups of the same sizes show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from assay.attribute import shown_in
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Better, Finding, Measure, Table, View, bootstrap, share, wilson
from assay.inputs import Row
from assay.methods.attack.cells import cells, masked, settled, stepping
from assay.methods.attack.ensemble import worst_case
from assay.methods.attack.swift import searching
from assay.methods.fair.entropy import everyone_positive, from_error
from assay.methods.fair.groups import (
    ALPHA,
    DRAWS,
    LEAST,
    Floats,
    Tally,
    chance_gaps,
    counted,
    crossed,
    entropy_parts,
    lowest,
    p_value,
    rates,
    ratio,
    widest,
    widest_means,
)
from assay.methods.uncertainty.above_floor import above_floor
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.tasks import Forecast, Regression

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run, Shard
    from assay.subject import Subject

TIMES = 4  # as many inputs as other questions have: groups are parts of them, and one pass is cheap
MOST_BARS = 16  # groups in one picture
NO_BIAS = "no bias, by chance alone"
ODDS, PARITY = "equalised odds difference", "demographic parity difference"


@dataclass(frozen=True)
class IsItFair(Probe):
    """Does it treat groups of people alike?

    `favourable` names the class that is good to get; of two classes the second unless given, of several each in turn.
    The headline is the largest gap between two groups of an attribute, in true or in false positives. A group counts
    where at least 30 inputs stand behind its rate. Of a task with numbers it is the largest gap in how often an answer
    is good enough, and beside it stand the gaps in how far off it is.

    Where an attribute is also a column that the model reads, that column alone is changed: an answer that changes with
    it treats equals unequally. Domains of the subject are asked about too. With `hard`, which any budget but quick
    sets, so are everyday changes at `severity`, and an attacker with the l_inf `radius`, a share of the range.
    """

    favourable: str | None = None
    hard: bool | None = None
    severity: int = 3
    radius: float = 8 / 255

    needs: ClassVar[tuple[Need, ...]] = ("attributes",)
    takes_missing: ClassVar[bool] = True
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.1),)
    source: ClassVar[str] = (
        "Hardt, Price & Srebro, NeurIPS 2016, arXiv:1610.02413 (equalised odds); Feldman et al., KDD 2015, "
        "arXiv:1412.3756 (demographic parity); Speicher et al., KDD 2018, arXiv:1807.00787, and Zhang et al., ICANN "
        "2021 (generalised entropy); Newcombe, Stat. Med. 1998 (intervals of a difference)"
    )

    def __post_init__(self) -> None:
        self.refuse_below(1, "severity")
        self.refuse_below(0, "radius")
        self.refuse_beyond_the_range("radius")
        if self.severity > 5:
            raise AssayError(f"The setting severity={self.severity} of {self.name()!r} must be from 1 to 5.")

    def why_not(self, subject: Subject) -> str | None:
        gives = subject.task.gives
        if "classes" not in gives and "numbers" not in gives:
            return f"it compares classes or numbers between groups, and the subject's task is {subject.task.name()}"
        return super().why_not(subject)

    def ask(self, subject: Subject, run: Run) -> Finding:
        samples = run.budget.samples
        index = run.pick(subject.data["test"], None if samples is None else TIMES * samples)
        parts = _partitions(subject, "test", index)
        if "classes" not in subject.task.gives:
            if self.favourable is not None:
                raise AssayError(
                    f"The setting favourable={self.favourable!r} of {self.name()!r} names a class, and this task has "
                    "none; leave it out."
                )
            return _of_numbers(subject, run, index, parts)
        logits, label = run.predict(subject, "test", index, "fairness")
        asked = _Asked(subject.task.classes, self._classes(subject), softmax(logits.astype(np.float64), 1), label)
        seen = [_Seen.of(part, asked, run.seed) for part in parts]
        single = [each for each in seen if not each.part.crossed]
        head = _odds(ODDS, single)
        measures = [head]
        for each in seen:
            measures += each.measures(asked, alone=len(single) == 1)
        flips = [m for part in parts if not part.crossed and (m := _flipped(subject, run, index, part)) is not None]
        entropy, gamed = _entropies(asked, parts[-1], run.seed)
        measures += [*flips, *entropy, *self._elsewhere(subject, run, asked)]
        empty = None
        if run.budget.name != "quick" if self.hard is None else self.hard:
            empty = subject.empty_cell("test")
            measures += self._changed(subject, run, index, parts, asked)
            measures += self._attacked(subject, run, index, parts) if empty is None else []
        for part in parts:
            measures += [] if part.crossed else _calibrated(asked, part, run.seed)
        columns = {"index": index, "label": asked.label, "said": asked.said, "right": asked.said == asked.label}
        return Finding(
            says=_sentence(head, seen, flips),
            measures=tuple(measures),
            samples=Table("test", columns | _codes(parts)),
            views=tuple(view for each in seen for view in each.views(asked)),
            alarms=(*_small(seen, asked), *_blind(single), *_unmeasured(measures), *gamed, *_unattacked(empty)),
        )

    def _classes(self, subject: Subject) -> tuple[int, ...]:
        """The classes that are looked at: the one that was named, the second of two, or each in turn."""
        names = subject.task.classes
        if self.favourable is None:
            return (1,) if len(names) == 2 else tuple(range(len(names)))
        if self.favourable not in names:
            raise AssayError(
                f"The setting favourable={self.favourable!r} of {self.name()!r} is no class; choose from "
                f"{', '.join(names)}."
            )
        return (names.index(self.favourable),)

    def _elsewhere(self, subject: Subject, run: Run, asked: _Asked) -> list[Measure]:
        """The gap in each domain with labels in which something is known of the people."""
        found = []
        for name, domain in subject.domains().items():
            if not domain.labelled or not any(name in each.codes for each in subject.attributes.values()):
                continue
            index = run.pick(domain.data)
            logits, label = run.predict(subject, name, index, f"fairness in {name}")
            there = replace(asked, chance=softmax(logits.astype(np.float64), 1), label=label)
            seen = [_Seen.of(part, there, run.seed) for part in _partitions(subject, name, index) if not part.crossed]
            found.append(_odds(f"{ODDS} in {name}", seen))
        return found

    def _changed(
        self, subject: Subject, run: Run, index: NDArray[np.int64], parts: Sequence[_Part], asked: _Asked
    ) -> list[Measure]:
        """The gap after everyday changes: the largest of them."""
        changes = {} if subject.tokens else subject.everyday()
        if not changes:
            return []

        def work(shard: Shard) -> Mapping[str, Tensor]:
            after = (change(shard.x, self.severity, shard.rng) for change in changes.values())
            return {"said": torch.stack([subject.predict(x).argmax(1) for x in after], 1)}

        said = run.map(work, subject, "test", index, "fairness under everyday change")["said"]
        looked = []
        for j, name in enumerate(changes):
            for part in parts:
                if not part.crossed:
                    found = rates(part.table(replace(asked, answers=said[:, j])), asked.classes)
                    after = f"after {name.replace('-', ' ').replace('_', ' ')}"
                    looked += [
                        _Looked(part, found.true_positive, f"true positives {after}"),
                        _Looked(part, found.false_positive, f"false positives {after}"),
                    ]
        about = f"the same after each of {len(changes)} everyday changes at severity {self.severity}, the largest"
        return [_gap(f"{ODDS} under everyday change", looked, about)]

    def _attacked(self, subject: Subject, run: Run, index: NDArray[np.int64], parts: Sequence[_Part]) -> list[Measure]:
        """How many of each group an attacker leaves right."""
        if not subject.differentiable or subject.tokens or subject.draws > 1 or self.radius == 0:
            return []
        near, dear = subject.in_shares(), run.budget.dear or len(index)
        few = index[:: max(1, -(-len(index) // dear))]
        here = np.searchsorted(index, few)
        work = partial(_withstood, near, self.radius, run.budget.steps)
        held = np.asarray(run.map(work, near, "test", few, "fairness under attack")["held"], dtype=bool)
        looked = [
            _Looked(some, some.tally(held))
            for some in (replace(part, codes=part.codes[here]) for part in parts if not part.crossed)
        ]
        size = f"every l_inf change of at most {self.radius:.3g} of the range that was tried"
        return [
            _gap("accuracy difference under attack", looked, f"in the share that stays right under {size}"),
            *_worst("worst group under attack", looked, f"share that stays right under {size}", float(held.mean())),
        ]


@dataclass(frozen=True)
class _Asked:
    """What the model said, and what is true."""

    names: tuple[str, ...]
    classes: tuple[int, ...]
    chance: Floats  # n k
    label: NDArray[np.int64]  # n
    answers: NDArray[np.int64] | None = None  # n, where they are not those of `chance`

    @property
    def said(self) -> NDArray[np.int64]:  # n
        return self.chance.argmax(1) if self.answers is None else self.answers

    @property
    def favourable(self) -> str | None:
        return self.names[self.classes[0]] if len(self.classes) == 1 else None


@dataclass(frozen=True)
class _Part:
    """One way to part people into groups."""

    name: str
    labels: tuple[str, ...]
    codes: NDArray[np.int64]  # n
    crossed: bool = False

    def told(self, group: int) -> str:
        return self.labels[group] if self.crossed else f"{self.name}={self.labels[group]}"

    def table(self, asked: _Asked) -> Floats:  # -> g k k
        return counted(self.codes, asked.label, asked.said, sizes=(len(self.labels), len(asked.names)))

    def tally(self, held: NDArray[np.bool_]) -> Tally:  # n -> 1 g
        """How many of each group have something."""
        known, size = self.codes >= 0, len(self.labels)
        hits, total = (np.bincount(self.codes[known & of], minlength=size) for of in (held, np.ones_like(held)))
        return Tally(hits[None].astype(np.float64), total[None].astype(np.float64))


class _Looked(NamedTuple):
    """One place where a gap was looked for."""

    part: _Part
    tally: Tally  # c g
    told: str = ""


class _Seen(NamedTuple):
    """One way to part people, and what there is to see of it."""

    part: _Part
    selection: Tally
    accuracy: Tally
    true_positive: Tally
    false_positive: Tally
    odds_null: Floats  # draws
    parity_null: Floats  # draws

    @classmethod
    def of(cls, part: _Part, asked: _Asked, seed: int) -> _Seen:
        table, rng = part.table(asked), np.random.default_rng(seed)
        seen = rates(table, asked.classes)
        return cls(part, *seen, *chance_gaps(table, asked.classes, DRAWS, rng))

    @property
    def odds(self) -> tuple[_Looked, ...]:
        """Where to look for gaps in the odds; nowhere, where one of both has no two groups."""
        both = (self.true_positive, self.false_positive)
        if not all((tally.enough().sum(-1) >= 2).any() for tally in both):
            return ()
        return tuple(
            _Looked(self.part, tally, f"{name} positives") for tally, name in zip(both, ("true", "false"), strict=True)
        )

    def measures(self, asked: _Asked, alone: bool) -> list[Measure]:
        """Its gaps, but for the headline where it is the only attribute."""
        name, pair = self.part.name, "largest difference between two groups in"
        found = [] if alone and not self.part.crossed else [_odds(f"{ODDS}, {name}", [self])]
        if asked.favourable is not None:
            found.append(
                _gap(
                    f"equal opportunity difference, {name}",
                    [_Looked(self.part, self.true_positive)],
                    f"{pair} how often those are told {asked.favourable!r} for whom it is true",
                )
            )
        told = "a class" if asked.favourable is None else repr(asked.favourable)
        parity = _gap(
            f"{PARITY}, {name}", [_Looked(self.part, self.selection)], f"{pair} how often they are told {told}"
        )
        found.append(_beside(parity, self.parity_null))
        if asked.favourable is not None:
            found.append(self._ratio(asked.favourable))
        looked = [_Looked(self.part, self.accuracy)]
        found.append(_gap(f"accuracy difference, {name}", looked, f"{pair} how often it is right"))
        everyone = float(self.accuracy.hits.sum() / max(1.0, self.accuracy.total.sum()))
        return [*found, *_worst(f"worst group, {name}", looked, "accuracy", everyone)]

    def _ratio(self, favourable: str) -> Measure:
        name = f"demographic parity ratio, {self.part.name}"
        about = (
            f"smallest share of a group that is told {favourable!r} over the largest; four fifths is a rule of thumb"
        )
        found, n = ratio(self.selection), int(self.selection.total.sum())
        if found is None:
            return Measure(name=name, value=None, better="higher", about=about)
        value, low, high = found
        return Measure(name=name, value=value, low=low, high=high, n=n, unit="%", better="higher", about=about)

    def views(self, asked: _Asked) -> list[View]:
        said = asked.favourable
        shown = [(f"How often it is right, by {self.part.name}", self.accuracy)]
        if said is not None:
            shown = [
                (f"How often {said!r} is said, by {self.part.name}", self.selection),
                *shown,
                (f"How often {said!r} is said where it is true, by {self.part.name}", self.true_positive),
                (f"How often {said!r} is said where it is not, by {self.part.name}", self.false_positive),
            ]
        return [bars for title, tally in shown for bars in _bars(self.part, title, tally)]


def _partitions(subject: Subject, split: str, index: NDArray[np.int64]) -> list[_Part]:
    """The attributes of a split, and last all of them crossed where there are several."""
    known = [each for each in subject.attributes.values() if split in each.codes]
    parts = [_Part(each.name, each.values, each.codes[split][index]) for each in known]
    if len(parts) < 2:
        return parts
    codes = crossed([part.codes for part in parts], [len(part.labels) for part in parts])
    there, places = np.unique(codes[codes >= 0], return_inverse=True)
    if len(there) < 2:
        return parts
    at = np.stack(np.unravel_index(there, [len(part.labels) for part in parts]), 1)  # g a
    labels = tuple(", ".join(part.labels[k] for part, k in zip(parts, row, strict=True)) for row in at.tolist())
    few = np.full(len(codes), -1, dtype=np.int64)
    few[codes >= 0] = places.reshape(-1)
    return [*parts, _Part(" x ".join(part.name for part in parts), labels, few, crossed=True)]


def _gap(name: str, looked: Sequence[_Looked], about: str) -> Measure:
    """The largest difference between two groups of all that was looked at, with an interval of the largest."""
    gap = widest([each.tally for each in looked]) if looked else None
    if gap is None:
        return Measure(name=name, value=None, unit="%", better="lower", about=about)
    part, tally, told = looked[gap.of]
    return Measure(
        name=name,
        value=gap.value,
        low=gap.low,
        high=gap.high,
        n=int(tally.total[0].sum()),
        unit="%",
        better="lower",
        about=f"{about}: {part.told(gap.above)} above {part.told(gap.below)}{f' in {told}' if told else ''}; "
        "interval of the largest gap",
    )


def _odds(name: str, seen: Sequence[_Seen]) -> Measure:
    """The largest gap in true or false positives, of the attributes that have two groups with enough of both."""
    able = [each for each in seen if each.odds]
    about = "largest difference between two groups of an attribute in true positives or in false positives"
    measure = _gap(name, [looked for each in able for looked in each.odds], about)
    return _beside(measure, np.max([each.odds_null for each in able], 0), len(able)) if able else measure


def _beside(measure: Measure, null: Floats, times: int = 1) -> Measure:
    """What random groups of these sizes show, and how likely they are to show as much; of `times` attributes."""
    if measure.value is None or not np.isfinite(null).all():
        return measure
    p = min(1.0, times * p_value(null, measure.value))
    told = f"random groups of these sizes show as much with a probability of {p:.2g}"
    return replace(measure, about=f"{measure.about}; {told}", beside=(Beside(NO_BIAS, float(null.mean())),))


def _worst(name: str, looked: Sequence[_Looked], about: str, everyone: float) -> list[Measure]:
    """The group of the lowest rate of all that was looked at."""
    alpha = ALPHA / max(1, len(looked))  # each of them has to hold for the lowest of all to lie in it
    found = [(each, worst) for each in looked if (worst := lowest(each.tally, alpha=alpha)) is not None]
    if not found:
        return [Measure(name=name, value=None, unit="%", better="higher", about=about)]
    each, worst = min(found, key=lambda pair: pair[1].value)
    return [
        Measure(
            name=name,
            value=worst.value,
            low=min(low.low for _, low in found),
            high=min(low.high for _, low in found),
            n=int(each.tally.total[0, worst.group]),
            unit="%",
            better="higher",
            about=f"{about} for {each.part.told(worst.group)}; interval of the lowest of all groups",
            beside=(Beside("everyone", everyone),),
        )
    ]


def _bars(part: _Part, title: str, tally: Tally) -> list[Bars]:
    able = np.flatnonzero(tally.enough()[0])
    shown = able[:MOST_BARS]
    if len(shown) < 2:
        return []
    bands = [wilson(int(tally.hits[0, g]), int(tally.total[0, g])) for g in shown]
    left = [part.labels[g] for g in np.flatnonzero(~tally.enough()[0])]
    few = f" Left out, with fewer than {LEAST}: {', '.join(left[:8])}." if left else ""
    if len(able) > MOST_BARS:
        few = f" Of {len(able)} groups the first {MOST_BARS} are drawn, {len(able) - MOST_BARS} are not.{few}"
    return [
        Bars(
            name=title.lower().replace("'", ""),
            title=title,
            y_label="share",
            labels=tuple(part.labels[g] for g in shown),
            values=tuple((tally.hits[0, shown] / tally.total[0, shown]).tolist()),
            low=tuple(band[0] for band in bands),
            high=tuple(band[1] for band in bands),
            unit_y=True,
            marks=(Beside("everyone", float(tally.hits[0].sum() / max(1.0, tally.total[0].sum()))),),
            says=f"Whiskers are 95 % intervals, each group by itself.{few}",
        )
    ]


def _flipped(subject: Subject, run: Run, index: NDArray[np.int64], part: _Part) -> Measure | None:
    """Answers that change when the attribute's column alone does, where it is a column that the model reads."""
    shown = shown_in(subject.attributes[part.name], subject.kind.columns) if isinstance(subject.kind, Row) else None
    if shown is None or subject.draws > 1:  # two answers of a random model differ by themselves
        return None
    places = torch.tensor(shown.places)

    def work(shard: Shard) -> Mapping[str, Tensor]:
        before = subject.predict(shard.x).argmax(1)
        other = torch.zeros_like(before, dtype=torch.bool)
        for state in shown.states:
            x = shard.x.clone()
            x[:, places] = x.new_tensor(state)
            other |= subject.predict(x).argmax(1) != before
        return {"other": other}

    other = run.map(work, subject, "test", index, f"another {part.name}")["other"].astype(bool)
    return Measure.proportion(
        f"answers that hang on {part.name}",
        other,
        better="lower",
        about=f"share of inputs whose answer is another when the column {part.name!r} alone holds another value",
    )


def _calibrated(asked: _Asked, part: _Part, seed: int) -> list[Measure]:
    """The calibration error of each group, beside what a calibrated model of its size shows."""
    found = []
    for group, label in enumerate(part.labels):
        rows = part.codes == group
        name = f"calibration error, {part.name}={label}"
        if rows.sum() < LEAST:
            found.append(Measure(name=name, value=None, unit="%", better="lower", n=int(rows.sum())))
            continue
        if asked.favourable is not None:
            said, true = asked.chance[rows, asked.classes[0]], asked.label[rows] == asked.classes[0]
            what = f"of the probability of {asked.favourable!r}"
        else:
            said, true, what = asked.chance[rows].max(1), (asked.said == asked.label)[rows], "of the top score"
        error = above_floor(said.clip(0, 1), true, bins=min(15, int(rows.sum())), support=(0.0, 1.0), seed=seed)
        found.append(
            Measure(
                name=name,
                value=error.value,
                low=error.low,
                high=error.high,
                n=int(rows.sum()),
                unit="%",
                better="lower",
                about=f"{what}, less what chance adds, in 15 bins",
                beside=(
                    Beside("a perfectly calibrated model of this size", error.calibrated),
                    Beside("with what chance adds", error.estimate),
                    Beside("a perfectly calibrated model, with what chance adds", error.floor),
                ),
            )
        )
    return found


def _entropies(asked: _Asked, part: _Part, seed: int) -> tuple[list[Measure], list[Alarm]]:
    """Generalised entropy within and between the groups of `part`, the mean error beside it, and how it is gamed."""
    known = part.codes >= 0
    if asked.favourable is None or known.sum() < LEAST:
        return [], []
    true = (asked.label[known] == asked.classes[0]).astype(np.float64)
    error = asked.chance[known, asked.classes[0]] - true
    b, groups, n = error + 1, part.codes[known], int(known.sum())
    rng = np.random.default_rng(seed)
    random = np.array([entropy_parts(b, rng.permutation(groups), np.ones((1, n)))[1][0] for _ in range(100)])
    m, squares, base = float(error.mean()), float((error**2).mean()), float(true.mean())
    whole, most = from_error(squares, m), everyone_positive(base)
    tie = (
        f"within and between add up to (MSE - m^2) / (2 (1 + m)^2) = {whole:.4f} with MSE = {squares:.4f} and the mean "
        f"error m = {m:+.4f}, whatever the groups"
    )

    def measure(name: str, of: Callable[[Floats], Floats], about: str, *beside: Beside, better: Better) -> Measure:
        value = float(of(np.ones((1, n)))[0])
        low, high = bootstrap(of, n, seed=seed)
        return Measure(
            name=name,
            value=value,
            low=min(low, value),
            high=max(high, value),
            n=n,
            better=better,
            about=about,
            beside=beside,
        )

    names = ("individual unfairness", "group unfairness")
    measures = [
        measure(
            names[0],
            lambda w: entropy_parts(b, groups, w)[0],
            f"generalised entropy (alpha 2) of the benefit score - label + 1 within groups of {part.name}; {tie}",
            Beside(f"{asked.favourable!r} to everyone, within and between", most),
            better="lower",
        ),
        measure(
            names[1],
            lambda w: entropy_parts(b, groups, w)[1],
            f"the same between groups of {part.name}",
            Beside(NO_BIAS, float(random.mean())),
            better="lower",
        ),
        measure(
            "mean error",
            lambda w: w @ error / w.sum(1),
            f"mean probability of {asked.favourable!r} less how often it is true; entropies fall where it rises",
            better="neither",
        ),
    ]
    alarms, mean = [], measures[-1]
    if mean.low is not None and mean.low > 0:
        alarms.append(
            Alarm(
                f"It says {asked.favourable!r} more often than is true (mean error {m:+.3f}), which lowers the "
                f"entropies and mends nothing: without it they would add up to {(squares - m * m) / 2:.4f}, not "
                f"{whole:.4f}.",
                doubts=names,
            )
        )
    if most < whole:
        alarms.append(
            Alarm(
                f"A model that says {asked.favourable!r} to everyone would have entropies of {most:.4f} in all, this "
                f"one has {whole:.4f}: a lower one is not a fairer one. They hang on the squared error alone, once the "
                "mean error is known.",
                doubts=names,
            )
        )
    return measures, alarms


def _withstood(near: Subject, radius: float, steps: int, shard: Shard) -> Mapping[str, Tensor]:
    """Whether an input stays right under the attacks, of what may change of it; whole numbers move in whole steps."""
    bounds, reach = (near.inputs.low, near.inputs.high), near.reach(shard.x)
    held = near.predict(shard.x).argmax(1) == shard.y
    rows = held.nonzero()[:, 0]
    if len(rows):
        model, precision = searching(near.model, shard.x[rows], draws=near.draws)
        found = worst_case(
            model, shard.x[rows], shard.y[rows], radius=radius, steps=steps, targets=3, queries=10 * steps,
            mask=masked(reach, rows), bounds=bounds, precision=precision, rng=shard.rng,
        )  # fmt: skip
        at, far = settled(reach, rows, found, shard.x[rows], "linf")
        held[rows] = (near.predict(at).argmax(1) == shard.y[rows]) | (far > radius * (1 + 1e-6))
        rows = held.nonzero()[:, 0]
    if reach is not None and len(rows) and bool(stepping(reach, "linf", 0).any()):
        stepped = cells(
            near.model, shard.x[rows], shard.y[rows], reach=reach.take(rows), radius=radius, steps=steps,
            queries=25 * steps, bounds=bounds, rng=shard.rng,
        )  # fmt: skip
        held[rows] &= ~stepped.success
    return {"held": held}


def _small(seen: Sequence[_Seen], asked: _Asked) -> list[Alarm]:
    """Groups that are left out of a rate, and why; nobody can say that those of an attribute are treated alike."""
    alarms: list[Alarm] = []
    for each in seen:
        size, doubts = each.accuracy.total[0], () if each.part.crossed else (ODDS,)
        few = [f"{each.part.told(g)} ({int(size[g])})" for g in np.flatnonzero(size < LEAST).tolist()]
        if few:
            alarms.append(
                Alarm(f"Too few to tell anything about, under {LEAST} inputs: {', '.join(few[:8])}.", doubts=doubts)
            )
        for tally, words in ((each.true_positive, "has the label"), (each.false_positive, "has another label than")):
            for c, total in zip(asked.classes, tally.total, strict=True):
                lacks = np.flatnonzero((total < LEAST) & (size >= LEAST)).tolist()
                some = [f"{int(total[g])} of {each.part.told(g)}" for g in lacks]
                if some:
                    what = f"{words.replace('has', 'have')} {asked.names[c]!r}"
                    says = f"Only {', '.join(some[:8])} {what}: a rate of fewer than {LEAST} is not told."
                    alarms.append(Alarm(says, doubts=doubts))
    return alarms


def _blind(seen: Sequence[_Seen]) -> list[Alarm]:
    """A model that tells nobody apart has no gap in the odds, and is not fair for it."""
    both = [
        Tally(
            *(np.stack(pair, -1).reshape(-1, 2) for pair in zip(each.true_positive, each.false_positive, strict=True))
        )
        for each in seen
    ]  # a class of a group a row: true positives against false ones
    gap = widest(both)
    if gap is None or gap.low > 0:
        return []
    return [
        Alarm(
            "In no group are true positives clearly more or fewer than false ones: it does not tell people apart, and "
            "who says the same to everybody has no gap.",
            doubts=(ODDS,),
        )
    ]


def _codes(parts: Sequence[_Part]) -> dict[str, NDArray[np.int64]]:
    """The columns of the samples that say who is in which group; an attribute may be called as another column is."""
    return {f"group: {part.name}": part.codes for part in parts if not part.crossed}


def _unattacked(empty: str | None) -> list[Alarm]:
    """Where a cell is empty; None where nothing was left out for it."""
    if empty is None:
        return []
    return [Alarm(f"Nobody was attacked: an attack computes with inputs, and some have empty cells, in {empty}.")]


def _unmeasured(measures: Sequence[Measure]) -> list[Alarm]:
    blank = [measure.name for measure in measures if measure.value is None]
    if not blank:
        return []
    return [
        Alarm(
            f"Not measured, because no two groups have {LEAST} inputs behind the rate: {', '.join(blank[:6])}"
            f"{' and more' if len(blank) > 6 else ''}; ask about more inputs, or join groups.",
            # the headline leaves out an attribute of which nothing can be told, and must not pass for it
            doubts=(ODDS,) if any(name.startswith(f"{ODDS}, ") and " x " not in name for name in blank) else (),
        )
    ]


def _sentence(head: Measure, seen: Sequence[_Seen], flips: Sequence[Measure]) -> str:
    if head.value is None:
        return f"Nothing can be told of groups: no two of them have {LEAST} inputs with each label."
    pair = head.about.partition(": ")[2].partition(";")[0]
    says = f"The largest gap between two groups is {100 * head.value:.0f} points ({pair})"
    chance = head.beside[0].value if head.beside else 0.0
    says += f", where random groups show {100 * chance:.0f}. "
    crossed_ones = [each for each in seen if each.part.crossed]
    found = _worst("", [_Looked(each.part, each.accuracy) for each in crossed_ones or seen], "", 0.0)[0]
    if found.value is not None:
        says += f"It is right least often {found.about.strip().partition(';')[0]}: {100 * found.value:.0f} %."
    for flip in flips:
        if flip.value is not None and flip.n is not None:
            hang = flip.name.removeprefix("answers that hang on ")
            says += (
                f" {share(round(flip.value * flip.n), flip.n)} of the answers are others if {hang} alone is changed."
            )
    return says


def _of_numbers(subject: Subject, run: Run, index: NDArray[np.int64], parts: Sequence[_Part]) -> Finding:
    """The same of a task with numbers: how often an answer is good enough, and how far off it is, by group."""
    task = subject.task
    assert isinstance(task, Regression | Forecast)
    numbers = task.numbers()
    scale = torch.tensor(numbers.tolerance, dtype=torch.float64)

    def work(shard: Shard) -> Mapping[str, Tensor]:
        out = task.checked(subject.predict(shard.x), len(shard.x))
        said = numbers.answer(out.reshape(len(out), *out.shape[1:2], -1) if numbers.wide else out.reshape(len(out), -1))
        off = (said.double() - shard.y.reshape(said.shape).double()) / scale.to(said.device)
        return {"right": task.right(out, shard.y), "off": off.mean(1), "far": off.abs().mean(1)}

    rows = run.map(work, subject, "test", index, "fairness")
    right = np.asarray(rows["right"], dtype=bool)
    single = [part for part in parts if not part.crossed]
    head = _gap(
        "accuracy difference",
        [_Looked(part, part.tally(right)) for part in single],
        "largest difference between two groups of an attribute in how often an answer is good enough",
    )
    measures, views = [head], []
    for part in parts:
        looked = [_Looked(part, part.tally(right))]
        if part.crossed or len(single) > 1:
            measures.append(_gap(f"accuracy difference, {part.name}", looked, "largest difference between two groups"))
        measures += _worst(f"worst group, {part.name}", looked, "share of answers good enough", float(right.mean()))
        for key, name, what in (
            ("far", "error difference", "mean absolute error"),
            ("off", "difference of leanings", "mean error, above 0 where too much is said"),
        ):
            about = f"largest difference between two groups in the {what}, in tolerances"
            measure = Measure(name=f"{name}, {part.name}", value=None, better="lower", about=about)
            if (gap := widest_means([rows[key]], [part.codes])) is not None:
                about += f": {part.told(gap.above)} above {part.told(gap.below)}"
                n = int((part.codes >= 0).sum())
                measure = replace(measure, value=gap.value, low=gap.low, high=gap.high, n=n, about=about)
            measures.append(measure)
        views += _bars(part, f"How often it is good enough, by {part.name}", looked[0].tally)
    alarms = []
    for part in parts:
        sizes = np.bincount(part.codes[part.codes >= 0], minlength=len(part.labels)).tolist()
        if few := [f"{part.told(g)} ({n})" for g, n in enumerate(sizes) if n < LEAST]:
            says = f"Too few to tell anything about, under {LEAST} inputs: {', '.join(few[:8])}."
            alarms.append(Alarm(says, doubts=() if part.crossed else (head.name,)))
    if head.value is None:
        says = f"Nothing can be told of groups: no two of them have {LEAST} inputs."
    else:
        pair = head.about.partition(": ")[2].partition(";")[0]
        says = f"The largest gap between two groups is {100 * head.value:.0f} points ({pair})."
    columns = {"index": index, "right": right, "error": rows["off"]}
    return Finding(
        says=says,
        measures=tuple(measures),
        samples=Table("test", columns | _codes(parts)),
        views=tuple(views),
        alarms=(*alarms, *_unmeasured(measures)),
    )


SHELVED = IsItFair
