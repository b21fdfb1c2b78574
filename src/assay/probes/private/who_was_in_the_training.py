"""Whether members of the training set can be told: by how sure the model is of them, and with shadow models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Curve, Finding, Gallery, Histogram, Line, Measure, Table, View, share
from assay.inputs.reach import Reach
from assay.methods.private.lira import halves, lira
from assay.methods.private.membership import LEVEL, Rate, best_threshold, label_confidence, roc, scores, tpr_at_fpr
from assay.methods.private.shadows import Pool, Recipe, Shadows, seconds_of, shadows
from assay.methods.shift.points import coded, on_one_scale
from assay.methods.shift.two_samples import classifier_auc, prior_gap
from assay.methods.train.typicality import comparable
from assay.methods.uncertainty.detection import auroc, auroc_interval
from assay.probe import Need, Probe
from assay.probes._leaks import seen_in_training
from assay.probes._on_show import on_show
from assay.run import HELD_BYTES
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

MOST = 10_000  # inputs of each split
TIMES = 4  # as many inputs as other questions have: each takes one pass, and rare false alarms need many
SHADOWS = {"quick": 0, "standard": 16, "full": 64}
FEW = 30  # members, and others
COMPARED = 500  # of each, to see whether members could be told without the model
ALIKE = 0.05  # of right answers: shadows that are further off are other models
RATES = (0.01, 0.001)
HEADLINE = (
    *(f"members told at {100 * r:g} % false alarms" for r in RATES),
    "members told from others",
    "balanced accuracy",
)
WORDS = {
    "loss": "by its loss",
    "maximum": "by its highest probability",
    "entropy": "by its entropy",
    "modified entropy": "by its modified entropy",
    "LiRA": "by shadow models, trained with and without it",
    "LiRA, offline": "by shadow models, trained without it",
}


@dataclass(frozen=True)
class WhoWasInTheTraining(Probe):
    """Can it be told who was in the training set?

    Training inputs are members, test inputs are not. Whoever tells them apart by how sure the model is of the label has
    learnt something about people whom the model was only to learn from. How many members are told is counted where one
    other in a hundred, or in a thousand, is taken for a member: an attacker who is sure of a few does more harm than
    one who is a little right about all.

    `shadows` models of the same architecture are trained on random halves of members and others, and what each input
    does to them is held against what the model says (LiRA); left out, none in a quick audit, 16 in a standard one, 64
    in a full one, if they take no more than `minutes`. They are trained for `epochs` at the rate `lr` by Adam; the
    nearer to how the model was trained, the more they tell. Every attack is a floor: a better one may tell more.

    The strongest attack counts, so that poor shadows buy nothing. Where members could be told without the model, by
    their inputs or their classes, nothing is said of it: what is told may be the shift.
    """

    shadows: int | None = None
    epochs: int | None = None
    lr: float = 1e-3
    batch: int = 128
    minutes: float = 15.0

    needs: ClassVar[tuple[Need, ...]] = ("classes", "train")
    in_quick: ClassVar[bool] = False
    source: ClassVar[str] = (
        "Carlini et al., S&P 2022, arXiv:2112.03570 (LiRA, few false positives); Yeom et al., CSF 2018, "
        "arXiv:1709.01604; Song & Mittal, USENIX Security 2021, arXiv:2003.10595"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.05),)

    def __post_init__(self) -> None:
        self.refuse_below(0, "shadows", "minutes")
        self.refuse_below(1, "epochs", "batch")
        if self.shadows is not None and (self.shadows % 2 or self.shadows == 2):
            raise AssayError(
                f"The setting shadows={self.shadows} of {self.name()!r} must be 0 or an even number of at least 4: "
                "each input is in half of them."
            )
        if not 0 < self.lr < 1:
            raise AssayError(f"The setting lr={self.lr} of {self.name()!r} must lie between 0 and 1, such as 0.001.")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None:
            sizes = {split: len(subject.data[split]) for split in ("train", "test")}
            if min(sizes.values()) < FEW:
                return (
                    f"it needs {FEW} members and as many others at least, and there are {sizes['train']} training and "
                    f"{sizes['test']} test inputs"
                )
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        asked = _Asked.of(subject, run)
        blind, alarms = _blind(subject, run, asked)
        shift = next((a.says for a in alarms if a.doubts), None)
        found = {name: _Attack(name, *asked.parted(each)) for name, each in asked.scores.items()}
        wanted = SHADOWS.get(run.budget.name, 0) if self.shadows is None else self.shadows
        cast, why = self._cast(subject, run, asked, wanted)
        if cast is not None:
            inside, said = cast
            both = lira(torch.as_tensor(asked.confidence), said.confidence, inside)
            found = {
                "LiRA": _Attack("LiRA", *asked.parted(both.online)),
                "LiRA, offline": _Attack("LiRA, offline", *asked.parted(both.offline)),
            } | found
            alarms += _unlike(asked, inside, said)
        ours = _strongest(found.values())
        headline = _measures(tuple(found.values()), run.seed)
        if shift is not None:
            headline = [replace(m, value=None, low=None, high=None) for m in headline]
        measures = [*headline, blind, asked.gap, *(m for attack in found.values() for m in attack.measures())]
        alarms += ours.too_few(asked)
        if cast is None:
            alarms.append(Alarm(f"It was told by confidence alone, a weak attack: {why}.", HEADLINE))
        told = ours.rate(RATES[0]) if shift is None else None
        table = Table(
            "train",
            {
                "index": asked.index["train"],
                "label": asked.y[asked.member],
                "said": asked.said[asked.member],
                "score": ours.members,
                "told": np.zeros(len(ours.members), dtype=bool) if told is None else ours.members > told.threshold,
                **{name: attack.members for name, attack in found.items()},
            },
        )
        return Finding(
            says=_sentence(ours) if shift is None else f"Who was in the training cannot be told apart here. {shift}",
            measures=tuple(measures),
            samples=table,
            views=(*_drawn(found, ours), *_exposed(subject, table, ours, run.budget.shown)),
            alarms=tuple(alarms),
        )

    def _cast(
        self, subject: Subject, run: Run, asked: _Asked, wanted: int
    ) -> tuple[tuple[torch.Tensor, Shadows] | None, str]:
        """Who was in which shadow and what they say; or why there are none."""
        if wanted == 0:
            return None, "with shadow models more may be told (--set shadows=16)"
        if not subject.differentiable:
            return None, "shadow models are trained, and this model gives answers only"
        room = 4 * len(asked.y) * math.prod(subject.inputs.shape)
        if room > HELD_BYTES:
            most = HELD_BYTES // (4 * math.prod(subject.inputs.shape))
            return (
                None,
                f"shadow models learn inputs from memory, where {most:,} fit and {len(asked.y):,} are asked about",
            )
        pool = Pool(
            torch.cat([subject.data[split].take(asked.index[split])[0] for split in ("train", "test")]),
            torch.as_tensor(asked.y),
        )
        recipe = Recipe(self.epochs, self.lr, self.batch)
        allowed = 60 * self.minutes if run.budget.seconds is None else min(60 * self.minutes, run.budget.seconds)
        try:
            each = seconds_of(subject.model, pool, recipe, device=run.device)
            if wanted * each > allowed:
                fit = int(allowed // each) // 2 * 2
                other = f"; {fit} would fit (--set shadows={fit})" if fit >= 4 else ""
                return None, (
                    f"{wanted} shadow models would take about {_long(wanted * each)}, and {_long(allowed)} are allowed "
                    f"(--set minutes={math.ceil(wanted * each / 60)} allows them{other})"
                )
            inside = halves(len(pool), wanted, torch.Generator().manual_seed(run.seed))
            with run.progress(f"training {wanted} shadow models", wanted) as tick:
                said = shadows(
                    subject.model, pool, inside, recipe, seed=run.seed + 1, device=run.device, done=partial(tick, 1),
                    predict=lambda shadow, x: replace(subject, model=shadow).predict(x),
                )  # fmt: skip
        except AssayError as e:
            return None, f"no shadow model could be trained ({str(e).rstrip('.')})"
        return (inside, said), ""


@dataclass(frozen=True)
class _Asked:
    """Members first, then others: what the model says of them."""

    index: dict[str, NDArray[np.int64]]
    y: NDArray[np.int64]  # n
    said: NDArray[np.int64]  # n
    member: NDArray[np.bool_]  # n
    confidence: NDArray[np.float64]  # n
    scores: Mapping[str, NDArray[np.float64]]  # n each
    leaked: int

    @classmethod
    def of(cls, subject: Subject, run: Run) -> _Asked:
        most = MOST if run.budget.samples is None else min(MOST, TIMES * run.budget.samples)
        index = {split: run.pick(subject.data[split], most) for split in ("train", "test")}
        leaked = seen_in_training(subject, run, {"test": index["test"]})["test"]
        index["test"] = np.setdiff1d(index["test"], leaked)  # members too, whatever split they stand in
        if len(index["test"]) < FEW:
            raise AssayError(
                f"{len(leaked)} of the test inputs stand in the training data, and {len(index['test'])} are left who "
                f"were not in it; give at least {FEW} others."
            )
        rows = [run.predict(subject, split, index[split], f"answers to {split} inputs") for split in ("train", "test")]
        z, y = (torch.as_tensor(np.concatenate(each)) for each in zip(*rows, strict=True))
        y = y.long()
        return cls(
            index,
            y.numpy(),
            z.argmax(1).numpy(),
            np.arange(len(y)) < len(index["train"]),
            label_confidence(z, y).numpy(),
            {name: each.numpy() for name, each in scores(z, y).items()},
            len(leaked),
        )

    def parted(self, score: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return score[self.member], score[~self.member]

    @property
    def gap(self) -> Measure:
        hits = self.said == self.y
        return Measure.contrast(
            "right on members less right on others",
            [(1.0, hits[self.member]), (-1.0, hits[~self.member])],
            better="lower",
            about="what a model has learnt by heart: whoever takes every right answer for a member's gains half of "
            "this over guessing",
        )


class _Attack(NamedTuple):
    """One way to tell members, higher scores for members."""

    name: str
    members: NDArray[np.float64]  # n
    others: NDArray[np.float64]  # m

    def rate(self, fpr: float, level: float = LEVEL) -> Rate | None:
        return tpr_at_fpr(self.members, self.others, fpr, level=level)

    def area(self, level: float = LEVEL) -> tuple[float, float, float]:
        """The AUROC, its low and its high end."""
        return (auroc(self.members, self.others), *auroc_interval(self.members, self.others, level=level))

    def measures(self) -> list[Measure]:
        return [*(_told((self,), r, f", {self.name}") for r in RATES), _area((self,), f", {self.name}")]

    def too_few(self, asked: _Asked) -> list[Alarm]:
        found = []
        for fpr in RATES:
            least = round(1 / fpr)
            if self.rate(fpr) is None:
                found.append(
                    Alarm(
                        f"At {100 * fpr:g} % false alarms nothing was measured: that takes at least {least:,} inputs "
                        f"that were not in the training, and there are {len(self.others):,}."
                    )
                )
        if asked.leaked:
            found.append(
                Alarm(
                    f"{share(asked.leaked, asked.leaked + len(self.others))} of the test inputs stand in the training "
                    "data: they are members, and were left out."
                )
            )
        return found


def _strongest(attacks: Iterable[_Attack]) -> _Attack:
    """The one that tells most members at the larger rate of false alarms; where none has a rate, by its AUROC."""

    def told(attack: _Attack) -> tuple[float, float]:
        rate = attack.rate(RATES[0])
        return (0.0 if rate is None else rate.value), auroc(attack.members, attack.others)

    return max(attacks, key=told)


def _most(
    usual: Sequence[tuple[float, float, float]], surer: Sequence[tuple[float, float, float]]
) -> tuple[float, float, float]:
    """The largest of k rates (value, low, high) with its interval, from those at 95 % and at 1 - 5 %/k.

    The largest of k low ends would be too high too often, so that each gets a k-th of what may go wrong. The rate that
    is truly largest is one, and the largest high end is no less than its own.
    """
    return max(v for v, _, _ in usual), max(low for _, low, _ in surer), max(high for _, _, high in usual)


def _told(attacks: Sequence[_Attack], fpr: float, of: str = "") -> Measure:
    surer = 1 - (1 - LEVEL) / len(attacks)
    usual, sure = ([rate[:3] for a in attacks if (rate := a.rate(fpr, each))] for each in (LEVEL, surer))
    value, low, high = _most(usual, sure) if usual else (None, None, None)
    return Measure(
        name=f"members told at {100 * fpr:g} % false alarms{of}", value=value, low=low, high=high,
        n=len(attacks[0].members), unit="%", better="lower",
        about=f"share of training inputs that are told {_by(attacks, fpr)} where {100 * fpr:g} % of test inputs are "
        "taken for members",
        beside=(Beside("guessing", fpr),),
    )  # fmt: skip


def _area(attacks: Sequence[_Attack], of: str = "") -> Measure:
    surer = 1 - (1 - LEVEL) / len(attacks)
    value, low, high = _most([a.area() for a in attacks], [a.area(surer) for a in attacks])
    return Measure(
        name=f"members told from others{of}", value=value, low=low, high=high, n=len(attacks[0].members),
        better="lower", about=f"chance that a member looks more like one than another input, {_by(attacks)} (AUROC)",
        beside=(Beside("guessing", 0.5),),
    )  # fmt: skip


def _by(attacks: Sequence[_Attack], fpr: float | None = None) -> str:
    """How the strongest of them tells, at a rate of false alarms or over all of them."""
    if len(attacks) == 1:
        return WORDS[attacks[0].name]

    def most(attack: _Attack) -> float:
        rate = None if fpr is None else attack.rate(fpr)
        return auroc(attack.members, attack.others) if rate is None else rate.value

    return f"{WORDS[max(attacks, key=most).name]}, the strongest of {len(attacks)} attacks"


def _measures(attacks: Sequence[_Attack], seed: int) -> list[Measure]:
    """The strongest attack's. Attack and threshold for the balanced accuracy are taken on one half, judged on another.

    The halves are the same for every attack.
    """
    order = [np.random.default_rng(seed).permutation(len(each)) for each in attacks[0][1:]]
    cuts = [[np.array_split(each[o], 2) for each, o in zip(a[1:], order, strict=True)] for a in attacks]
    limits = [best_threshold(ins[0], outs[0]) for ins, outs in cuts]
    gained = [
        float((ins[0] > limit).mean() + (outs[0] <= limit).mean())
        for (ins, outs), limit in zip(cuts, limits, strict=True)
    ]
    best = int(np.argmax(gained))
    (ins, outs), limit = cuts[best], limits[best]
    balanced = Measure.contrast(
        "balanced accuracy",
        [(0.5, ins[1] > limit), (0.5, outs[1] <= limit)],
        better="lower",
        about=f"how often it is told {WORDS[attacks[best].name]} whether an input was in the training, members and "
        "others being as common; attack and threshold were taken on other inputs",
        beside=(Beside("guessing", 0.5),),
    )
    return [*(_told(attacks, r) for r in RATES), _area(attacks), balanced]


def _blind(subject: Subject, run: Run, asked: _Asked) -> tuple[Measure, list[Alarm]]:
    """Whether members could be told without the model: then what is told with it may be no secret of its own."""
    name = "told from others without the model"
    about = (
        "chance that a member looks more like one than another input to a classifier that sees the inputs and never "
        "the model (AUROC)"
    )
    k = len(subject.task.classes)
    counts = [np.bincount(asked.y[part], minlength=k) for part in (asked.member, ~asked.member)]
    classes = prior_gap(*counts, rng=np.random.default_rng(run.seed))
    alarms = []
    if classes.p_value < 0.01:
        alarms.append(
            Alarm(
                f"Classes are not as common among members as among others (p = {classes.p_value:.2g}): what tells them "
                "apart may be the class.",
                HEADLINE,
            )
        )
    if subject.tokens:
        alarms.append(Alarm("Whether texts of both kinds differ was not looked at: no distance lies between words."))
        return Measure(name=name, value=None, better="neither", about=about), alarms
    reach = None if subject.kind is None else subject.kind.reach
    choices = reach.choices if isinstance(reach, Reach) else None
    rng, rows = np.random.default_rng(run.seed), []
    for split in ("train", "test"):
        index = asked.index[split]
        some = np.sort(rng.permutation(index)[:COMPARED])
        rows.append(comparable(subject.data[split].take(some)[0].float(), choices))
    middle = torch.cat(rows).nanmean(0).nan_to_num(0.0)
    members, others = (torch.where(each.isfinite(), each, middle) for each in rows)
    if not subject.inputs.is_picture:
        members, others = on_one_scale(members, others, None if choices is None else coded(choices))
    seen = classifier_auc(members, others, rng=torch.Generator().manual_seed(run.seed))
    if seen.low > 0.5:
        alarms.append(
            Alarm(
                f"Training and test inputs differ: a classifier that never saw the model tells them apart (AUROC "
                f"{seen.value:.2f}), so that what was told may be the shift and no secret of the model.",
                HEADLINE,
            )
        )
    measure = Measure(
        name=name, value=seen.value, low=seen.low, high=seen.high, n=sum(map(len, rows)), better="neither", about=about,
        beside=(Beside("guessing", 0.5),),
    )  # fmt: skip
    return measure, alarms


def _unlike(asked: _Asked, inside: torch.Tensor, said: Shadows) -> list[Alarm]:
    """Shadows that answer better or worse than the model what neither has learnt, or have learnt less by heart."""
    learnt, theirs = (float(said.right[rows].double().mean()) for rows in (inside, ~inside))
    right = asked.said == asked.y
    known, ours = float(right[asked.member].mean()), float(right[~asked.member].mean())
    mend = "better shadows may tell more; set epochs, lr and batch to what the model was trained with."
    found = []
    if abs(theirs - ours) > ALIKE:
        found.append(
            f"The shadow models are right on {100 * theirs:.0f} % of what they have not learnt, the model on "
            f"{100 * ours:.0f} %: they are other models, and {mend}"
        )
    if (known - ours) - (learnt - theirs) > ALIKE:
        found.append(
            f"The shadow models are right on {100 * (learnt - theirs):.0f} points more of what they have learnt than "
            f"of what they have not, the model on {100 * (known - ours):.0f}: they know less by heart, and {mend}"
        )
    return [Alarm(each, HEADLINE) for each in found]


def _sentence(ours: _Attack) -> str:
    words = []
    for fpr in RATES:
        rate = ours.rate(fpr)
        if rate is not None:
            words.append(f"{100 * rate.value:.2g} % of them where {100 * fpr:g} % of others are taken for members")
    area = auroc(ours.members, ours.others)
    head = (
        f"Of {len(ours.members):,} training inputs and {len(ours.others):,} others, members are told {WORDS[ours.name]}"
    )
    return f"{head}: {'; '.join(words) or 'there are too few others to say how many'} (AUROC {area:.2f}, guessing 0.5)."


def _long(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _drawn(found: Mapping[str, _Attack], ours: _Attack) -> tuple[View, ...]:
    views: list[View] = []
    bars = [(name, rate) for name, attack in found.items() if (rate := attack.rate(RATES[0])) is not None]
    if bars:
        views.append(
            Bars(
                name="told",
                title="Members told where 1 % of others are taken for members",
                y_label="share of members",
                labels=tuple(name for name, _ in bars),
                values=tuple(rate.value for _, rate in bars),
                low=tuple(rate.low for _, rate in bars),
                high=tuple(rate.high for _, rate in bars),
                marks=(Beside("guessing", RATES[0]),),
                says="One bar for each attack. An interval holds what is not known of the threshold and of the rate.",
            )
        )
    at = np.linspace(0, 0.1, 51)
    lines = []
    for name, attack in found.items():
        false, true = roc(attack.members, attack.others)
        told = true[np.searchsorted(false, at, side="right") - 1]
        lines.append(Line(label=name, x=tuple(at.tolist()), y=tuple(told.tolist())))
    views.append(
        Curve(
            name="few-false-alarms",
            title="Members told, at few false alarms",
            x_label="others taken for members",
            y_label="members told",
            lines=tuple(lines),
            diagonal=True,
            says="On the dotted line members are told no better than by guessing.",
        )
    )
    both = np.concatenate([ours.members, ours.others])
    low, high = np.quantile(both, [0.005, 0.995])
    edges = np.linspace(low, high if high > low else low + 1, 31)
    shares = [
        (name, tuple((np.histogram(np.clip(each, edges[0], edges[-1]), edges)[0] / len(each)).tolist()))
        for name, each in (("members", ours.members), ("others", ours.others))
    ]
    views.append(
        Histogram(
            name="scores",
            title=f"How members and others score, {WORDS[ours.name]}",
            x_label="score, higher for members",
            edges=tuple(edges.tolist()),
            counts=tuple(shares),
            says="Shares of each; the outermost hundredth is counted in the outermost bars.",
        )
    )
    return tuple(views)


def _exposed(subject: Subject, table: Table, ours: _Attack, most: int) -> tuple[Gallery, ...]:
    """The members that are told most surely, to look at."""
    told: dict[str, NDArray[Any]] = dict(table.columns)
    rows = np.flatnonzero(told["told"])
    rows = rows[np.argsort(-told["score"][rows], kind="stable")][:most]
    if not len(rows):
        return ()
    names, data = subject.task.classes, subject.data["train"]
    x = data.take(told["index"][rows])[0]
    above = [float((ours.others >= told["score"][i]).mean()) for i in rows]
    exhibits = tuple(
        on_show(
            subject,
            data,
            int(told["index"][i]),
            one,
            f"{names[told['label'][i]]}, says its label, the model says {names[told['said'][i]]}; "
            + (f"{100 * share_above:.2g} % of others score as high" if share_above else "no other scores as high"),
        )
        for i, one, share_above in zip(rows, x, above, strict=True)
    )
    return (
        Gallery(
            name="exposed",
            title="The members that are told most surely",
            exhibits=exhibits,
            says="Numbers are places in the training data. Rare inputs and wrong labels are what is learnt by heart.",
        ),
    )


SHELVED = WhoWasInTheTraining
