"""Sets of classes in place of one answer: how often they hold the true class, and how large they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.corruptions import CORRUPTIONS, corrupt
from assay.data.held_out import Part, held_out
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Finding, Histogram, Matrix, Measure, Table, View, wilson
from assay.methods.uncertainty.conformal import (
    Conformal,
    ScoreName,
    fit_conformal,
    inputs_needed,
    scores,
    worst_interval,
)
from assay.nn.with_sets import WithSets
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

SCORES: tuple[ScoreName, ...] = ("lac", "aps", "raps")
RULES = (*(name.upper() for name in SCORES), *(f"{name.upper()} per class" for name in SCORES))
NAMED = 8  # classes in an alarm
KINDS = ("gaussian-noise", "gaussian-blur", "fog", "jpeg", "translation")  # one of each family
FEW = 30  # inputs below which neither a threshold nor a coverage says much
DRAWS = 1000  # of what even coverage would show of its worst class
Rows = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class HowOftenIsTheSetRight(Probe):
    """When it gives a set of classes, is the true one in it as often as promised?

    Its own sets are those that it was fitted with (the remedy `conformal`), or else the plain ones: the likeliest
    classes until their probabilities sum to 1 - `alpha`. Beside them stand conformal sets by three scores, once with a
    threshold for all classes together and once with one for each class, which keeps the promise in each. Thresholds
    come from the split 'calibration', else 'validation', else from a fixed half of 'test'; what is asked about is then
    the other half. The promise is for all inputs together and for inputs like those of the fit: a single class, or
    shifted inputs (some corruptions at `severity`, and the user's own splits), may be covered less.
    """

    alpha: float = 0.1
    corruptions: tuple[str, ...] = KINDS
    severity: int = 3

    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Sadinle, Lei & Wasserman, JASA 2019, arXiv:1609.00451 (LAC); Romano, Sesia & Candes, NeurIPS 2020, "
        "arXiv:2006.02544 (APS); Angelopoulos et al., ICLR 2021, arXiv:2009.14193 (RAPS); Vovk, ACML 2012, "
        "arXiv:1209.2673 (per class)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(measure="promise missed by", at_most=0.05),)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise AssayError(f"alpha={self.alpha} is the share of misses allowed; give a number between 0 and 1.")
        strange = [name for name in self.corruptions if name not in CORRUPTIONS]
        if strange:
            raise AssayError(f"corruptions={','.join(strange)!r} are not known; choose from {', '.join(CORRUPTIONS)}.")
        if self.severity not in range(1, 6):
            raise AssayError(f"severity={self.severity} is not one of 1, 2, 3, 4, 5; 1 is the mildest.")

    def ask(self, subject: Subject, run: Run) -> Finding:
        own = subject.model if isinstance(subject.model, WithSets) else None
        promise = 1 - (own.alpha if own else self.alpha)
        rules, fitted, rare = self._fit(subject, run)
        part = held_out(subject.data)
        index = part.ask[run.pick(Part(subject.data["test"], part.ask))]
        kinds = self.corruptions if subject.inputs.is_image else ()
        work = partial(self._sets, subject, own, rules)
        rows = run.map(partial(work, kinds), subject, "test", index, "sets of classes")
        held, size = rows["held"].astype(bool), rows["size"]  # n r 1+c
        label = np.asarray(rows["label"], dtype=np.int64)
        shifts = {}
        for split in (name for name, domain in subject.domains().items() if domain.labelled):
            chosen = run.pick(subject.data[split])
            shifts[split] = run.map(partial(work, ()), subject, split, chosen, f"sets on {split}")
        whose = f"its own sets ({own.rule})" if own else "plain sets: the likeliest classes until they sum to it"
        covered = Measure.proportion(
            "coverage",
            held[:, 0, 0],
            better="neither",
            column="held",
            about=f"share of sets with the true class, where {100 * promise:g} % is promised; {whose}",
            beside=(Beside("promised", promise), Beside("always gives every class", 1.0)),
        )
        measures = [
            covered,
            _missed(covered, promise),
            Measure.mean(
                "mean set size",
                size[:, 0, 0],
                better="neither",
                seed=run.seed,
                unit="classes",
                column="size",
                about=f"smaller is better at equal coverage; {100 * (size[:, 0, 0] == 0).mean():.1f} % of the sets are "
                f"empty",
                beside=(Beside("always gives every class", float(len(subject.task.classes))),),
            ),
            _worst_class(subject, "coverage of the worst class", held[:, 0, 0], label, run.seed),
            *(
                _worst_class(subject, f"coverage of the worst class, {rule}", held[:, r, 0], label, run.seed)
                for r, rule in enumerate(RULES, 1)
                if rule in ("LAC", "LAC per class")
            ),
        ]
        columns = {"index": index, "label": label, "held": held[:, 0, 0], "size": size[:, 0, 0]}
        if kinds:
            columns["held under shift"] = held[:, 0, 1:].mean(1)
            measures.append(
                Measure.mean(
                    "coverage under shift",
                    held[:, 0, 1:].mean(1),
                    better="higher",
                    seed=run.seed,
                    unit="%",
                    column="held under shift",
                    about=f"mean over {', '.join(map(_spelled, kinds))} at severity {self.severity}; nothing is "
                    f"promised there",
                )
            )
        for split, row in shifts.items():
            hit = row["held"][:, 0, 0]
            measures.append(Measure.proportion(f"coverage on {split}", hit, better="higher", about=whose))
        for r, rule in enumerate(RULES, 1):
            columns[f"held {rule}"], columns[f"size {rule}"] = held[:, r, 0], size[:, r, 0]
            about = f"conformal sets for {100 * (1 - self.alpha):g} %, fitted on {fitted} inputs of {part.split!r}"
            measures += [
                Measure.proportion(
                    f"coverage, {rule}", held[:, r, 0], better="neither", column=f"held {rule}", about=about
                ),
                Measure.mean(
                    f"mean set size, {rule}",
                    size[:, r, 0],
                    better="lower",
                    seed=run.seed,
                    unit="classes",
                    column=f"size {rule}",
                    about=about,
                ),
            ]
        return Finding(
            says=f"{'Its own' if own else 'Plain'} sets promise the true class in {100 * promise:g} % of cases and "
            f"hold it in {100 * held[:, 0, 0].mean():.1f} %, with {size[:, 0, 0].mean():.2f} classes on average; "
            f"conformal sets (LAC) hold it in {100 * held[:, 1, 0].mean():.1f} %, with {size[:, 1, 0].mean():.2f}. "
            f"Of the class that is covered least they hold {100 * _least(held[:, 1, 0], label):.1f} %, and fitted per "
            f"class {100 * _least(held[:, 1 + len(SCORES), 0], label):.1f} %, with "
            f"{size[:, 1 + len(SCORES), 0].mean():.2f} classes on average.",
            measures=tuple(measures),
            samples=Table("test", columns),
            views=self._figures(subject, own is not None, held, size, label, kinds, shifts, promise),
            alarms=self._alarms(own, fitted, len(index), rare),
        )

    def _fit(self, subject: Subject, run: Run) -> tuple[list[Conformal], int, list[str]]:
        """Conformal rules by each score, for all classes and for each; on how many inputs, and of what too few.

        As many as the budget asks about, and the same at each look of an audit with a time limit.
        """
        part = held_out(subject.data)
        index = part.fit[run.pick(Part(subject.data[part.split], part.fit), bounded=False)]
        logits, labels = run.predict(subject, part.split, index, "held-out inputs")
        chance, truth = torch.from_numpy(logits).double().softmax(1), torch.from_numpy(labels)
        rng = torch.Generator().manual_seed(run.seed)
        rules = [
            fit_conformal(chance, truth, alpha=self.alpha, score=name, per_class=each, rng=rng)
            for each in (False, True)
            for name in SCORES
        ]
        counts = np.bincount(labels, minlength=chance.shape[1])
        needed = inputs_needed(self.alpha)
        return rules, len(index), [c for c, n in zip(subject.task.classes, counts, strict=True) if n < needed]

    def _sets(
        self, subject: Subject, own: WithSets | None, rules: list[Conformal], kinds: tuple[str, ...], shard: Shard
    ) -> Mapping[str, Tensor]:
        """Whether the sets of each rule hold the label, and how large they are: as it is, then by corruption."""
        low, high = subject.inputs.low, subject.inputs.high
        # A stream of its own: what the other rules and corruptions draw is then the same before and after a fit.
        luck = torch.Generator(shard.rng.device).manual_seed(shard.rng.initial_seed())
        held, size = [], []
        for kind in ("", *kinds):
            x = corrupt(shard.x, kind, self.severity, rng=shard.rng, low=low, high=high) if kind else shard.x
            p = subject.predict(x).double().softmax(1)  # n k
            plain = scores(p, p.new_zeros(len(p)), "aps", 0, 0) < 1 - self.alpha
            sets = [plain if own is None else own.sets_of(p, rng=luck)]
            sets += [rule.sets(p, rng=shard.rng) for rule in rules]
            every = torch.stack(sets, 1)  # n r k
            held.append(every.gather(2, shard.y[:, None, None].expand(-1, len(sets), 1))[..., 0])
            size.append(every.sum(2))
        return {"label": shard.y, "held": torch.stack(held, 2), "size": torch.stack(size, 2)}

    def _figures(
        self,
        subject: Subject,
        fitted: bool,
        held: NDArray[np.bool_],
        size: NDArray[np.generic],
        label: NDArray[np.int64],
        kinds: tuple[str, ...],
        shifts: Mapping[str, Rows],
        promise: float,
    ) -> tuple[View, ...]:
        rules = ("its own" if fitted else "plain", *RULES)
        places = ("as it is", *map(_spelled, kinds), *shifts)
        tables = []
        for inside, column in ((held, "held"), (size, "size")):
            means = inside.mean(0)  # r 1+c
            tables.append(np.column_stack([means, *(np.asarray(row[column]).mean(0)[:, 0] for row in shifts.values())]))
        classes = np.unique(label)
        hits = [held[label == c, 0, 0] for c in classes]
        limits = [wilson(int(h.sum()), len(h)) for h in hits]
        each = 1 + RULES.index("LAC per class")
        mine = [held[label == c, each, 0] for c in classes]
        ends = [wilson(int(h.sum()), len(h)) for h in mine]
        names = tuple(subject.task.classes[c] for c in classes)
        largest = int(size[:, :, 0].max())
        return (
            Bars(
                name="classes",
                title="Coverage of each class",
                y_label="coverage",
                labels=names,
                values=tuple(float(h.mean()) for h in hits),
                low=tuple(low for low, _ in limits),
                high=tuple(high for _, high in limits),
                unit_y=True,
                marks=(Beside("promised", promise),),
                says=f"Of {'its own' if fitted else 'plain'} sets. The promise is for all classes together.",
            ),
            Bars(
                name="classes-by-class",
                title="Coverage of each class, with a threshold for each",
                y_label="coverage",
                labels=names,
                values=tuple(float(h.mean()) for h in mine),
                low=tuple(low for low, _ in ends),
                high=tuple(high for _, high in ends),
                unit_y=True,
                marks=(Beside("promised", 1 - self.alpha),),
                says="Of LAC per class, whose promise is for each class by itself.",
            ),
            *(
                Matrix(
                    name=name,
                    title=title,
                    row_label="sets",
                    column_label="class",
                    rows=rules,
                    columns=names,
                    values=tuple(zip(*(inside[label == c, :, 0].mean(0).tolist() for c in classes), strict=True)),
                )
                for name, title, inside in (
                    ("class-coverage", "Coverage of each class by each kind of sets", held),
                    ("class-sizes", "Mean size of the sets of each class", size),
                )
            ),
            *(
                Matrix(
                    name=name,
                    title=title,
                    row_label="sets",
                    column_label="inputs",
                    rows=rules,
                    columns=places,
                    values=tuple(map(tuple, table.tolist())),
                    says=f"Corruptions are at severity {self.severity}." if kinds else "",
                )
                for name, title, table in zip(
                    ("coverage", "sizes"),
                    ("Coverage where inputs are as they were and where they shift", "Mean size of the sets"),
                    tables,
                    strict=True,
                )
            ),
            Histogram(
                name="how-large",
                title="How many classes a set holds",
                x_label="classes in the set",
                edges=tuple(np.arange(largest + 2) - 0.5),
                counts=tuple(
                    (rule, tuple(np.bincount(size[:, r, 0].astype(int), minlength=largest + 1).astype(float)))
                    for r, rule in enumerate(rules)
                ),
            ),
        )

    def _alarms(self, own: WithSets | None, fitted: int, asked: int, rare: list[str]) -> tuple[Alarm, ...]:
        alarms = []
        if rare:
            few = ", ".join(rare[:NAMED]) + (f" and {len(rare) - NAMED} more" if len(rare) > NAMED else "")
            says = (
                f"Fewer than {inputs_needed(self.alpha)} held-out inputs of {few}: per class, nothing less "
                f"than being in every set promises {100 * (1 - self.alpha):g} %, and there they are; hold out more."
            )
            alarms.append(Alarm(says))
        for count, what in ((fitted, "to fit thresholds on"), (asked, "to ask about")):
            if count < FEW:
                alarms.append(
                    Alarm(
                        f"Only {count} inputs {what}: coverage may be far from what it is on average over such draws."
                    )
                )
        if own is not None and own.alpha != self.alpha:
            alarms.append(
                Alarm(
                    f"Its own sets promise {100 * (1 - own.alpha):g} % and are judged by that; the others are made for "
                    f"{100 * (1 - self.alpha):g} %. Set alpha={own.alpha:g} to compare them."
                )
            )
        return tuple(alarms)


def _missed(covered: Measure, promise: float) -> Measure:
    """By how much coverage falls short; more than was promised misses nothing, it only costs larger sets."""
    value, low, high = (max(0.0, promise - (c or 0.0)) for c in (covered.value, covered.high, covered.low))
    return Measure(
        name="promise missed by",
        value=value,
        low=low,
        high=high,
        n=covered.n,
        unit="%",
        better="lower",
        about="what is promised minus coverage, or 0 where it covers more",
    )


def _least(held: NDArray[np.bool_], label: NDArray[np.int64]) -> float:
    return min(float(held[label == c].mean()) for c in np.unique(label))


def _worst_class(subject: Subject, name: str, held: NDArray[np.bool_], label: NDArray[np.int64], seed: int) -> Measure:
    """The class whose sets hold it least often; the lowest of many is low by chance too.

    Therefore the interval is that of the least coverage, whichever class has it, and what chance shows stands beside.
    """
    inputs = np.bincount(label)
    classes = np.flatnonzero(inputs)
    hits = np.bincount(label, weights=held)[classes].astype(int)
    inputs = inputs[classes]
    worst = int((hits / inputs).argmin())
    low, high = worst_interval(hits.tolist(), inputs.tolist())
    even = np.random.default_rng(seed).binomial(inputs, held.mean(), size=(DRAWS, len(inputs))) / inputs
    return Measure(
        name=name,
        value=float(hits[worst] / inputs[worst]),
        low=low,
        high=high,
        n=int(inputs[worst]),
        unit="%",
        better="higher",
        about=f"sets of inputs that are {subject.task.classes[classes[worst]]!r}; the lowest of {len(classes)} classes",
        beside=(Beside("if all classes were covered alike", float(even.min(1).mean())),),
    )


def _spelled(kind: str) -> str:
    return kind.replace("-", " ")


SHELVED = HowOftenIsTheSetRight
