"""What did it forget? A model that was pruned, quantised or exported, against the one that it was made from.

Both answer the same inputs, one pass each. Accuracy can stay as it was while answers change: as many are learnt by luck
as are forgotten, and those forgotten gather in a few classes and groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.finding import (
    Alarm,
    Bars,
    Better,
    Exhibit,
    Finding,
    Gallery,
    Measure,
    Table,
    View,
    bootstrap,
    paired_difference,
    share,
)
from assay.methods.compress.forgetting import (
    LEAST,
    Worst,
    exemplars,
    mcnemar,
    miscalibration,
    shares,
    worst_share,
)
from assay.methods.uncertainty.exact import ALPHA, exact
from assay.probe import Need, Probe, undisturbed

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run, Shard
    from assay.subject import Subject

TIMES = 5  # as many inputs as other questions look at: two passes are cheap, and answers change seldom
BARS = 30  # classes that are drawn, those that changed most
NAMED = 8  # small groups that an alarm names
CHURN, FORGOTTEN, LEARNT, CHANCE = "churn", "forgotten", "learnt", "p of McNemar's test"
GAINED, SURER, MISCALIBRATED = "accuracy gained", "confidence gained", "calibration error gained"
WORST = {part: (f"worst {part} churn", f"worst {part} loss") for part in ("class", "group")}
SHARES = (CHURN, FORGOTTEN, GAINED, *WORST["class"], *WORST["group"], SURER, MISCALIBRATED)
"""What it measures that can be too much, in points of a share."""
NO_HARM = (LEARNT, CHANCE)
"""What it measures and nobody can limit: what is learnt alone makes nothing worse, and a chance is no harm."""


@dataclass(frozen=True)
class WhatDidItForget(Probe):
    """Which inputs does it answer otherwise than the model that it was made from, and who pays for it?"""

    needs: ClassVar[tuple[Need, ...]] = ("original",)
    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Hooker et al. 2019, arXiv:1911.05248 (exemplars that compression picks out); McNemar, Psychometrika 1947; "
        "Clopper & Pearson, Biometrika 1934; Bonett & Price, J. Educ. Behav. Stat. 2012"
    )

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is not None or subject.original is None:
            return reason
        unlike = subject.original.unlike(subject)
        return None if unlike is None else f"what it was made from, {subject.original.name!r}, {unlike}"

    def ask(self, subject: Subject, run: Run) -> Finding:
        assert subject.original is not None  # why_not saw to it
        wanted = None if run.budget.samples is None else TIMES * run.budget.samples
        index = run.pick(subject.data["test"], wanted)
        with undisturbed(subject.original.model, run):
            asked = _Asked.of(subject, subject.original, run, index)
            views = (*asked.bars(), *asked.gallery(run))
        measures = [*asked.answers(), *asked.worst(), *asked.trust(run.seed)]
        return Finding(
            says=asked.sentence(),
            measures=tuple(measures),
            samples=Table("test", {"index": index, **asked.columns}),
            views=views,
            alarms=tuple(asked.alarms(measures)),
        )


class _Part(NamedTuple):
    """A way to part the inputs: by class, or by what is known of the people behind them."""

    name: str
    labels: tuple[str, ...]
    codes: NDArray[np.int64]  # n, -1 where it is not known

    def loss(self, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> Worst | None:  # n, n
        """The part that lost most accuracy, net, of those with enough inputs."""
        count = np.bincount(self.codes[self.codes >= 0], minlength=len(self.labels))
        told = np.flatnonzero(count >= LEAST)
        if not len(told):
            return None
        found = []
        for g in told:
            rows = self.codes == g
            change = paired_difference(
                before[rows].astype(np.float64), after[rows].astype(np.float64), confidence=1 - ALPHA / len(told)
            )
            found.append([-each for each in change])
        value, high, low = np.array(found).T
        at = int(value.argmax())
        return Worst(int(told[at]), float(value[at]), float(low.max()), float(high.max()), int(count[told[at]]))


@dataclass(frozen=True)
class _Asked:
    """The answers of both to the same inputs, one row each."""

    subject: Subject
    original: Subject
    index: NDArray[np.int64]  # n
    rows: Mapping[str, NDArray[Any]]
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: Subject, original: Subject, run: Run, index: NDArray[np.int64]) -> _Asked:
        both = {"": subject, " before": original}

        def work(shard: Shard) -> Mapping[str, Tensor]:
            read: dict[str, Tensor] = {"y": shard.y} if "classes" in subject.task.gives else {}
            for when, each in both.items():
                out = each.task.checked(each.predict(shard.x), len(shard.x))
                read |= {f"right{when}": each.task.right(out, shard.y), f"score{when}": each.task.score(out, shard.y)}
                if "classes" in each.task.gives:
                    read[f"said{when}"] = out.argmax(1)
                sure = each.task.confidence(out)
                if sure is not None:
                    read[f"confidence{when}"] = sure
            return read

        rows = run.map(work, subject, "test", index, "answers of both")
        made = cls(subject, original, index, rows)
        made.columns.update(made._columns())
        return made

    def _columns(self) -> dict[str, NDArray[Any]]:
        now, was = self.right
        told: dict[str, NDArray[Any]] = {"label": self.rows["y"]} if "y" in self.rows else {}
        told |= {name: column for name, column in self.rows.items() if name != "y"}
        told |= {"changed": self.changed, "forgotten": was & ~now, "learnt": now & ~was}
        if self.sure is not None:
            told["more confident"] = self.sure[0] - self.sure[1]
        return told

    @property
    def right(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:  # n, n: now and before
        return self.rows["right"].astype(bool), self.rows["right before"].astype(bool)

    @property
    def sure(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:  # n, n
        """How sure both are, where both say so."""
        if "confidence" not in self.rows or "confidence before" not in self.rows:
            return None
        return self.rows["confidence"].astype(np.float64), self.rows["confidence before"].astype(np.float64)

    @property
    def changed(self) -> NDArray[np.bool_]:  # n
        if "said" in self.rows:
            return exemplars(self.rows["said before"][None], self.rows["said"][None])
        now, was = self.right
        return np.asarray(now != was)

    @property
    def parts(self) -> tuple[_Part | None, _Part | None]:
        """By class, and by all that is known of the people, each attribute's groups after the other's."""
        classes = None
        if "y" in self.rows:
            classes = _Part("class", self.subject.task.classes, self.rows["y"].astype(np.int64))
        known = [each for each in self.subject.attributes.values() if "test" in each.codes]
        if not known:
            return classes, None
        labels = tuple(f"{each.name} {value}" for each in known for value in each.values)
        starts = np.cumsum([0, *(len(each.values) for each in known)])
        codes = [each.codes["test"][self.index] for each in known]
        laid = [np.where(c >= 0, c + start, -1) for c, start in zip(codes, starts, strict=False)]
        return classes, _Part("group", labels, np.concatenate(laid))

    def _repeated(self, part: _Part, column: NDArray[np.bool_]) -> NDArray[np.bool_]:  # n -> a n
        return np.tile(column, len(part.codes) // len(column))

    def answers(self) -> list[Measure]:
        """How many answers changed, and which way."""
        now, was = self.right
        forgot, learnt = was & ~now, now & ~was
        p = mcnemar(int(forgot.sum()), int(learnt.sum()))
        what = (
            "share of answers that changed; with one model on each side these are the exemplars that compression picks "
            "out"
            if "said" in self.rows
            else "share of inputs whose answer is good enough of one of the two alone"
        )
        difference, low, high = paired_difference(was.astype(np.float64), now.astype(np.float64))
        made = [
            _exactly(CHURN, self.changed, "lower", what, "changed"),
            _exactly(FORGOTTEN, forgot, "lower", "share of inputs that were right and are wrong now", "forgotten"),
            _exactly(LEARNT, learnt, "higher", "share of inputs that were wrong and are right now", "learnt"),
            Measure(
                name=GAINED,
                value=difference,
                low=low,
                high=high,
                n=len(now),
                unit="%",
                better="higher",
                about="learnt less forgotten, paired",
            ),
            Measure(
                name=CHANCE,
                value=p,
                n=int(forgot.sum() + learnt.sum()),
                better="neither",
                about="the chance of as lopsided a count of forgotten and learnt, were both as likely",
            ),
        ]
        if "said" in self.rows:
            return made
        score, before = (self.rows[name].astype(np.float64) for name in ("score", "score before"))
        value, low, high = paired_difference(before, score)
        return [
            *made,
            Measure(
                name=score_gained(self.subject.task.headline),
                value=value,
                low=low,
                high=high,
                n=len(score),
                better="higher",
                about="mean score less that before, paired",
            ),
        ]

    def worst(self) -> list[Measure]:
        """The class and the group that changed most, and those that lost most."""
        now, was = self.right
        what = "answers that changed" if "said" in self.rows else "answers good enough of one of the two alone"
        made = []
        for part in self.parts:
            if part is None:
                continue
            churn = worst_share(self._repeated(part, self.changed), part.codes, len(part.labels))
            loss = part.loss(self._repeated(part, was), self._repeated(part, now))
            about = f"of the {part.name}{'es' if part.name == 'class' else 's'} with at least {LEAST} inputs"
            for name, found, of in zip(WORST[part.name], (churn, loss), (what, "accuracy lost"), strict=True):
                made.append(_of_worst(name, found, part, f"{of}, the most {about}"))
        return made

    def trust(self, seed: int) -> list[Measure]:
        """What became of its confidence, and of what that is worth."""
        if self.sure is None:
            return []
        (now, was), (sure, before) = self.right, self.sure
        more = sure - before
        made = [
            Measure.mean(
                SURER,
                more,
                better="neither",
                seed=seed,
                unit="%",
                column="more confident",
                about="mean confidence less that before",
            )
        ]
        if self.subject.task.promise is None:
            return made
        n, after, first = len(sure), miscalibration(sure, now), miscalibration(before, was)

        def gap(counts: NDArray[np.float64]) -> NDArray[np.float64]:  # draws n -> draws
            return np.asarray((np.abs(counts @ after).sum(1) - np.abs(counts @ first).sum(1)) / n)

        value = float(gap(np.ones((1, n)))[0])
        low, high = bootstrap(gap, n, seed=seed)
        return [
            *made,
            Measure(
                name=MISCALIBRATED,
                value=value,
                low=min(low, value),
                high=max(high, value),
                n=n,
                unit="%",
                better="lower",
                about="calibration error (ECE, equal bins) less that before, resampled in pairs",
            ),
        ]

    def sentence(self) -> str:
        now, was = self.right
        forgot, learnt = int((was & ~now).sum()), int((now & ~was).sum())
        counted, name = share(int(self.changed.sum()), len(now)), self.original.name
        first = (
            f"It answers {counted} of the inputs otherwise than {name!r}"
            if "said" in self.rows
            else f"Of {counted} of the inputs it or {name!r} alone gives an answer that is good enough"
        )  # where there are no classes, any answer may differ a little
        said = (
            f"{first}: {forgot} that were right are wrong now, {learnt} the other way round "
            f"(McNemar's p = {mcnemar(forgot, learnt):.2g})."
        )
        for part in self.parts:
            worst = None if part is None else part.loss(self._repeated(part, was), self._repeated(part, now))
            if part is not None and worst is not None and worst.value > 0:
                said += (
                    f" The {part.name} that lost most is {part.labels[worst.group]!r}, {100 * worst.value:.1f} points."
                )
        return said

    def bars(self) -> list[View]:
        made: list[View] = []
        what = "Answers that changed" if "said" in self.rows else "Answers good enough of one of the two alone"
        for part in self.parts:
            if part is None:
                continue
            each = shares(self._repeated(part, self.changed), part.codes, len(part.labels))
            told = np.flatnonzero(each.enough)
            told = np.sort(told[np.argsort(-each.rate[told], kind="stable")][:BARS])
            if not len(told):
                continue
            most = f" The {BARS} that changed most." if len(told) < int(each.enough.sum()) else ""
            made.append(
                Bars(
                    name=f"churn by {part.name}",
                    title=f"{what}, by {part.name}",
                    y_label="share that changed" if "said" in self.rows else "share good enough of one alone",
                    labels=tuple(part.labels[g] for g in told),
                    values=tuple(each.rate[told].tolist()),
                    low=tuple(each.low[told].tolist()),
                    high=tuple(each.high[told].tolist()),
                    says=f"Bars are exact 95 % intervals, each by itself.{most}",
                )
            )
        return made

    def gallery(self, run: Run) -> tuple[Gallery, ...]:
        """What it forgot, the inputs first that it is surest to answer wrongly; where it is not sure, the worst."""
        forgot = np.flatnonzero(self.columns["forgotten"])
        if not self.subject.inputs.is_picture or not len(forgot):
            return ()
        order = -self.sure[0][forgot] if self.sure is not None else self.rows["score"][forgot]
        shown = self.index[forgot[np.argsort(order, kind="stable")][: run.budget.shown]]
        x, target = self.subject.data["test"].take(shown)
        task = self.subject.task
        now, was = (each.predict(x.to(run.device)).cpu() for each in (self.subject, self.original))
        exhibits = tuple(
            Exhibit.of(
                int(shown[i]),
                f"{task.told(target[i])}: said {task.words(was[i])}; now says {task.words(now[i])}",
                x[i].numpy(),
                low=self.subject.inputs.low,
                high=self.subject.inputs.high,
            )
            for i in range(len(x))
        )
        first = "those that it is surest of" if self.sure is not None else "those with the lowest score"
        says = f"{len(forgot)} inputs were right and are wrong now; {first} come first."
        return (Gallery(name="forgotten", title="What it forgot", exhibits=exhibits, says=says),)

    def alarms(self, measures: Sequence[Measure]) -> list[Alarm]:
        made = []
        if len(self.index) < LEAST:
            made.append(Alarm(f"Only {len(self.index)} inputs were asked about; under {LEAST}, intervals are wide."))
        if max(self.subject.draws, self.original.draws) > 1:
            made.append(
                Alarm("One of the two is random: part of what changed would change, too, were it asked once more.")
            )
        for part in self.parts:
            if part is None:
                continue
            count = np.bincount(part.codes[part.codes >= 0], minlength=len(part.labels))
            few = [f"{part.labels[g]} ({count[g]})" for g in np.flatnonzero((count > 0) & (count < LEAST))]
            if few:
                more = f" and {len(few) - NAMED} more" if len(few) > NAMED else ""
                blank = tuple(m.name for m in measures if m.value is None and m.name.startswith(f"worst {part.name}"))
                made.append(
                    Alarm(
                        f"Too few to tell anything about, under {LEAST} inputs: {', '.join(few[:NAMED])}{more}.",
                        doubts=blank,
                    )
                )
        return made


def score_gained(headline: str) -> str:
    """The name of what became of the score of a task without classes; a plain number."""
    return f"{headline} gained"


def _exactly(name: str, held: NDArray[np.bool_], better: Better, about: str, column: str) -> Measure:  # n
    low, high = exact(int(held.sum()), len(held))
    return Measure(
        name=name,
        value=float(held.mean()),
        low=float(low),
        high=float(high),
        n=len(held),
        unit="%",
        better=better,
        about=about,
        column=column,
    )


def _of_worst(name: str, worst: Worst | None, part: _Part, about: str) -> Measure:
    if worst is None:
        return Measure(name=name, value=None, unit="%", better="lower", about=about)
    return Measure(
        name=name,
        value=worst.value,
        low=worst.low,
        high=worst.high,
        n=worst.n,
        unit="%",
        better="lower",
        about=f"{about}: {part.labels[worst.group]}",
    )


SHELVED = WhatDidItForget
