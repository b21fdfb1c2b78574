"""Which training labels look wrong, and would a wrong one be found?

The finder knows no truth. What it is worth is measured on labels that are flipped on purpose, in copies of the training
labels that no model ever saw; what is counted as looking wrong is what looks as wrong as most of those. Copies of an
input vouch for each other's label, right or wrong: they have one voice, are flipped together and share the judgement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Bars,
    Beside,
    Finding,
    Gallery,
    Measure,
    Table,
    View,
    share,
    wilson,
)
from assay.inputs.reach import Reach
from assay.methods.train.copies import voices
from assay.methods.train.label_noise import Planted, left_out_margin, likest, plant
from assay.methods.train.typicality import comparable, counted, nearest_rows, typicality, unit_rows
from assay.methods.uncertainty.detection import auroc, auroc_interval
from assay.probe import Need, Probe
from assay.probes._on_show import on_show
from assay.run import HELD_BYTES
from assay.standard import Standard

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run
    from assay.subject import Subject

TIMES = 4  # as many training inputs as other questions have: no model is asked of most
MOST = 10_000  # inputs, which are all compared with each other
COPIES, SHARE = 10, 0.05  # of the labels, to set the limit and as many to measure; flipped in each
BLUNT = 0.75  # of the area: below it flips look like ordinary inputs, because classes overlap or half of them are wrong
CLEAR = 0.8  # of the nearest inputs: a label that so many share stands where no other label does
FEW = 100  # training inputs
Finder = Literal["typicality", "left-out"]
WORDS: dict[Finder, str] = {"typicality": "typicality", "left-out": "a linear classifier that left it out"}


@dataclass(frozen=True)
class WhichLabelsLookWrong(Probe):
    """Which of the training labels look wrong?

    A label looks wrong where an input is like inputs of another class: by its `nearest` neighbours (typicality), or by
    a linear classifier that left it out (left-out). How wrong is wrong enough is set by labels that are flipped on
    purpose: so that at least `find` of them are found. Where classes overlap, labels look wrong that are not; those
    that none of the nearest inputs has are the least that count. Where many of one class are labelled as another, each
    has company and does not look wrong; those that are no clear majority of the nearest are the most that count.
    Whether one is wrong only someone who looks can say.
    """

    by: Finder = "typicality"
    nearest: int = 10
    find: float = 0.7

    needs: ClassVar[tuple[Need, ...]] = ("classes", "train")
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.05),)
    source: ClassVar[str] = (
        "Krysinska, Morzy & Kajdanowicz, ICANN 2021 (typicality); Northcutt, Jiang & Chuang, JAIR 2021, "
        "arXiv:1911.00068 (labels left out)"
    )

    def __post_init__(self) -> None:
        self.refuse_below(1, "nearest")
        self.refuse_below(0.05, "find")
        if self.find > 0.99:
            raise AssayError(f"The setting find={self.find:g} of {self.name()!r} must be a share of at most 0.99.")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and subject.tokens:
            return "it compares inputs by their values, and an input here is a row of words by number"
        if reason is None and len(np.unique(np.asarray(subject.data["train"].labels))) < 2:
            return "all training labels are of one class, and there is no other that one could be"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        rows = _rows(subject, run)
        first, of = rows["first"], rows["of"]  # of each different input its first copy, and for each input which it is
        y, u, k = torch.as_tensor(rows["y"][first], device=run.device), rows["u"], len(subject.task.classes)
        near = min(self.nearest, len(y) - 1)
        places, rng = nearest_rows(u, near), run.rng()
        counts = counted(places, y, k)
        times = min(COPIES, len(y) // (2 * max(1, round(SHARE * len(y)))))
        random, alike = plant(y, 2 * times, SHARE, rng), plant(y, times, SHARE, rng, likest(counts, y))
        plants = (Planted(*(p[:times] for p in random)), Planted(*(p[times:] for p in random)), alike)
        labels = torch.cat([y[None], *(p.labels for p in plants)])
        # one labelling after the other: all at once are copies x inputs x classes
        seen = torch.stack([typicality(counted(places, each, k), each).degree_adjusted for each in labels])
        scores: dict[Finder, Tensor] = {"typicality": seen, "left-out": left_out_margin(u, labels, k)}
        found = {by: _Trial.of(each.double().cpu(), plants, self.find) for by, each in scores.items()}
        ours = found[self.by]
        (rival,) = (by for by in found if by != self.by)
        suspect = (ours.given <= ours.limit)[of]
        other = counts.scatter(1, y[:, None], -1).argmax(1).cpu().numpy()[of]
        own = counts.gather(1, y[:, None])[:, 0].cpu().numpy()[of]
        alone, mixed = suspect & (own == 0), suspect | (own < CLEAR * near)
        lonely = Measure.proportion(
            "labels that none near shares",
            alone,
            better="lower",
            column="alone",
            about=f"share of training labels that look wrong and that none of the {near} nearest inputs has; where "
            "classes overlap some have it",
        )
        looks = Measure.proportion(
            "labels that look wrong",
            suspect,
            better="lower",
            column="suspect",
            about=f"share of training labels that look as wrong as the {100 * self.find:.0f} % of planted flips that "
            "are found, wrong ones or hard ones; the low end is that of the labels that none near shares, the high "
            "end that of the labels among others",
        )
        unclear = Measure.proportion(
            "labels among others",
            mixed,
            better="lower",
            column="among others",
            about=f"share of training labels that fewer than {100 * CLEAR:.0f} % of the {near} nearest inputs have, or "
            "that look wrong; where many of one class are labelled as another, wrong ones have company and only this "
            "shows it; where classes overlap many have it",
        )
        table = Table(
            "train",
            {
                "index": rows["index"],
                "label": rows["y"],
                "said": rows["said"],
                "most alike": other,
                "score": ours.given[of],
                "suspect": suspect,
                "alone": alone,
                "among others": mixed,
            },
        )
        looks, lonely, unclear = (_as_of(m, len(y)) for m in (looks, lonely, unclear))
        # no number of inputs tells wrong labels from classes that overlap: the gap between the two stays
        looks = replace(looks, low=lonely.low, high=unclear.high, n=None)
        alarms = ours.alarms(len(y), looks.name, found[rival], rival)
        if ours.is_blunt:
            looks = replace(looks, value=None, low=None, high=None)
        measures = [looks, lonely, unclear, ours.area, ours.recall("planted flips found"), ours.precision]
        if k > 2:
            measures.append(ours.recall("flips to a look-alike class found", alike=True))
        measures.append(replace(found[rival].area, name=f"{ours.area.name}, {WORDS[rival]}"))
        doubted = first[suspect[first]]
        if len(doubted):
            measures.append(
                Measure.proportion(
                    "suspects that the model contradicts",
                    (rows["said"] != rows["y"])[doubted],
                    better="neither",
                    about="share of the labels that look wrong for which the model says another class; it was trained "
                    "on them, and may have learnt a wrong one by heart",
                )
            )
        return Finding(
            says=self._sentence(ours, suspect, alone, mixed, len(y)),
            measures=tuple(measures),
            samples=table,
            views=(*_drawn(found, k), *_suspects(subject, table, doubted, counts.cpu().numpy()[of], run.budget.shown)),
            alarms=alarms,
        )

    def _sentence(
        self,
        ours: _Trial,
        suspect: NDArray[np.bool_],
        alone: NDArray[np.bool_],
        mixed: NDArray[np.bool_],
        different: int,
    ) -> str:  # n, n, n
        if ours.is_blunt:
            return "Labels that were flipped on purpose cannot be told from the others here, and so no wrong one can."
        held = ours.recall("").value or 0.0
        copied = len(suspect) - different
        told = f" {share(copied, len(suspect))} are copies of others, and have one voice with them." if copied else ""
        return (
            f"{share(int(suspect.sum()), len(suspect))} of the training labels look wrong, {int(alone.sum())} of them "
            f"to every input near, by a measure that finds {100 * held:.0f} % of planted flips. "
            f"{share(int(mixed.sum()), len(mixed))} stand among others, as they do where many of one class are wrong."
            + told
        )


class _Trial(NamedTuple):
    """What a finder is worth, on flips that had no part in setting its limit."""

    given: NDArray[np.float64]  # n: the scores of the labels as they are, the lower the likelier wrong
    flips: NDArray[np.float64]  # m: of labels flipped at random
    alike: NDArray[np.float64]  # m: of labels flipped to the class that theirs is most like
    ordinary: NDArray[np.float64]  # of the labels that were not flipped, beside the flips
    limit: float

    @classmethod
    def of(cls, scores: Tensor, plants: tuple[Planted, Planted, Planted], find: float) -> _Trial:  # 1+3r n
        r = len(plants[0].labels)
        parts = [scores[1 + i * r : 1 + (i + 1) * r] for i in range(3)]
        flipped = [p.flipped.cpu() for p in plants]
        first, flips, alike = (part[at].numpy() for part, at in zip(parts, flipped, strict=True))
        limit = float(np.sort(first)[math.ceil(find * len(first)) - 1])
        return cls(scores[0].numpy(), flips, alike, parts[1][0][~flipped[1][0]].numpy(), limit)

    @property
    def is_blunt(self) -> bool:
        return (self.area.low or 0.0) <= BLUNT

    @property
    def area(self) -> Measure:
        low, high = auroc_interval(self.ordinary, self.flips)
        return Measure(
            name="planted flips told from the others",
            value=auroc(self.ordinary, self.flips),
            low=low,
            high=high,
            n=len(self.flips),
            better="higher",
            about=f"chance that a flipped label looks more wrong than another (AUROC), {100 * SHARE:.0f} % of the "
            "labels being flipped to a random class",
            beside=(Beside("chance", 0.5),),
        )

    def recall(self, name: str, *, alike: bool = False) -> Measure:
        return Measure.proportion(
            name,
            (self.alike if alike else self.flips) <= self.limit,
            better="higher",
            about="share of labels flipped "
            + ("to the class that theirs is most like" if alike else "to a random class")
            + " that look wrong; they had no part in setting the limit",
            beside=(Beside("of labels left as they were", float((self.ordinary <= self.limit).mean())),),
        )

    @property
    def precision(self) -> Measure:
        """From the shares of flips and of others that are found, so that it is that of SHARE flipped labels."""
        hit, miss = (np.asarray(each <= self.limit) for each in (self.flips, self.ordinary))
        (hit_low, hit_high), (miss_low, miss_high) = (wilson(int(each.sum()), len(each)) for each in (hit, miss))

        def of(hits: float, misses: float) -> float:
            right = SHARE * hits
            return right / (right + (1 - SHARE) * misses) if right + misses > 0 else 0.0

        return Measure(
            name="planted flips among those found",
            value=of(float(hit.mean()), float(miss.mean())),
            low=of(hit_low, miss_high),
            high=of(hit_high, miss_low),
            n=len(hit) + len(miss),
            unit="%",
            better="higher",
            about=f"precision where {100 * SHARE:.0f} % of labels are flipped; others that look wrong count as false "
            "alarms, and some of them may be wrong",
            beside=(Beside("chance", SHARE),),
        )

    def alarms(self, n: int, doubted: str, other: _Trial, called: Finder) -> tuple[Alarm, ...]:
        found = []
        if (self.area.low or 0.0) <= 0.5:
            found.append(
                Alarm("Planted flips are found no better than by chance: no wrong label would be.", (doubted,))
            )
        elif self.is_blunt:
            says = (
                f"A flipped label looks more wrong than another in only {100 * (self.area.value or 0.0):.0f} % of cases"
            )
            found.append(
                Alarm(f"{says}: classes overlap, or very many labels are wrong, which looks the same.", (doubted,))
            )
        elif (self.recall("").low or 0.0) < 0.5:
            found.append(
                Alarm("It may find fewer than half of the wrong labels: few that look wrong say little.", (doubted,))
            )
        if (other.area.low or 0.0) > (self.area.high or 1.0):
            found.append(
                Alarm(
                    f"{WORDS[called].capitalize()} tells planted flips better ({other.area.value:.3f} against "
                    f"{self.area.value:.3f}); have its list with --set by={called}."
                )
            )
        if n < FEW:
            found.append(
                Alarm(
                    f"There are only {n} different training inputs to compare; under {FEW}, hardly anything is certain."
                )
            )
        return tuple(found)


def _as_of(measure: Measure, different: int) -> Measure:
    """With an interval no narrower than that of so many different inputs: copies tell nothing anew."""
    low, high = wilson(round((measure.value or 0.0) * different), different)
    return replace(measure, low=min(low, measure.low or 0.0), high=max(high, measure.high or 0.0))


def _rows(subject: Subject, run: Run) -> dict[str, Any]:
    """Training inputs with their labels, places and what the model says; `u` of the different ones, of length 1."""
    data = subject.data["train"]
    reach = subject.kind.reach if subject.kind is not None else None
    choices = reach.choices if isinstance(reach, Reach) else None
    width = comparable(data.take(np.arange(1))[0], choices).shape[1]
    most = min(MOST, max(2, HELD_BYTES // max(4 * width, 8 * len(subject.task.classes))))
    wanted = len(data) if run.budget.samples is None else TIMES * run.budget.samples
    index = run.pick(data, min(wanted, most))
    picture = subject.inputs.is_picture
    rows: dict[str, Any] = run.map(
        lambda shard: {
            "x": comparable(shard.x, choices),
            "y": shard.y,
            "said": subject.predict(shard.x).argmax(-1),
            **({} if picture else {"cells": shard.x.flatten(1)}),
        },
        subject,
        "train",
        index,
        "training inputs and their labels",
    )
    x, y = torch.as_tensor(rows["x"], device=run.device), np.asarray(rows["y"], dtype=np.int64)
    cells = x if picture else torch.as_tensor(rows["cells"], device=run.device)
    different = voices(cells, torch.as_tensor(y, device=run.device), columns=not picture)
    first, of = (part.cpu().numpy() for part in different)
    u = unit_rows(x[different.first])
    return {"u": u, "index": index, "y": y, "said": rows["said"], "first": first, "of": of}


def _drawn(found: dict[Finder, _Trial], k: int) -> tuple[View, ...]:
    bars = []
    for by, trial in found.items():
        kinds = (("random", False), ("look-alike", True)) if k > 2 else (("other", False),)
        bars += [(f"{by}, {kind}", trial.recall("", alike=alike)) for kind, alike in kinds]
    ours = next(iter(found.values()))
    return (
        Bars(
            name="found",
            title="Planted flips that are found",
            y_label="share found",
            labels=tuple(label for label, _ in bars),
            values=tuple(m.value or 0.0 for _, m in bars),
            low=tuple(m.low or 0.0 for _, m in bars),
            high=tuple(m.high or 0.0 for _, m in bars),
            unit_y=True,
            marks=(Beside("of labels left as they were, by typicality", float((ours.ordinary <= ours.limit).mean())),),
            says="Each finder has its limit from other flips to a random class. Flips to the class that is most alike, "
            "which people confuse too, are harder to find.",
        ),
    )


def _suspects(
    subject: Subject, table: Table, rows: NDArray[np.int64], counts: NDArray[Any], most: int
) -> tuple[Gallery, ...]:  # m, n k
    """Those of `rows` that look most wrong, to look at; of a row its first cells."""
    told: dict[str, NDArray[Any]] = dict(table.columns)
    rows = rows[np.argsort(told["score"][rows], kind="stable")][:most]
    if not len(rows):
        return ()
    names, near = subject.task.classes, int(counts[0].sum())
    x = subject.data["train"].take(told["index"][rows])[0]
    exhibits = []
    for i, one in zip(rows, x, strict=True):
        other = int(told["most alike"][i])
        caption = (
            f"{names[told['label'][i]]}, says its label; {int(counts[i, other])} of its {near} nearest are "
            f"{names[other]}; the model says {names[told['said'][i]]}"
        )
        exhibits.append(on_show(subject, subject.data["train"], int(told["index"][i]), one, caption))
    return (
        Gallery(
            name="suspects",
            title="The labels that look most wrong",
            exhibits=tuple(exhibits),
            says="Numbers are places in the training data. Wrong labels and rare inputs look alike here: look.",
        ),
    )


SHELVED = WhichLabelsLookWrong
