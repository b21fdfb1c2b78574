"""Is one and the same change enough for most inputs?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Bars,
    Beside,
    Curve,
    Exhibit,
    Finding,
    Gallery,
    Line,
    Measure,
    Panel,
    Table,
    Witnesses,
    share,
    wilson,
)
from assay.methods.attack.aim import Aim, Truth, label_of, truth_of
from assay.methods.attack.chance import answers, chance, threats
from assay.methods.attack.universal import Universal, random_signs, under, universal
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Data, Subject

SHARES = (1.0, 2.0, 4.0)
"""Where the curve is drawn, in budgets."""
MOST_CLASSES = 20  # a change towards each class is made up to here
MADE_ON = 2000  # inputs, at most
FEWEST = 100  # inputs to make it on, below which it may know them too well
HEADLINE = "error under one change"
NO = -1  # in place of a class: the output is NaN


@dataclass(frozen=True)
class OneChangeForAll(Probe):
    """Is there one change that breaks it on most inputs?

    `radius` is the l_inf size of the change, a share of the range; the curve shows twice and four times as much.
    The change is made on training data and judged on test data that it has never met. Of a random model each input
    counts with its chance of a wrong answer; beside it stands an attacker who may ask again.
    """

    radius: float = 8 / 255
    steps: int | None = None
    batch: int | None = None

    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Moosavi-Dezfooli et al., CVPR 2017, arXiv:1610.08401; Shafahi et al., arXiv:1811.11304; "
        "Co, Martinez Rego & Lupu, ICANN 2021"
    )
    needs: ClassVar[tuple[Need, ...]] = ("gradients",)
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.3),)

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius")
        self.refuse_beyond_the_range("radius")
        self.refuse_below(1, "steps", "batch")

    def ask(self, subject: Subject, run: Run) -> Finding:
        split, makers, index = self._halves(subject, run)
        x = run.rows(subject, split, makers, "inputs to make the change on")
        y = truth_of(subject.task, torch.as_tensor(x.labels, device=run.device))
        k = len(subject.task.classes) if isinstance(y, Tensor) else 0  # only of classes one can be chosen
        towards = tuple(range(k)) if k <= MOST_CLASSES else ()
        with run.progress("making one change for all", len(SHARES) + len(towards)) as tick:
            changes, aimed, lost = [], [], torch.zeros(len(y), dtype=torch.bool, device=y.device)
            for radius in self._radii():
                made = self._make(subject, run, x, y, radius, None)
                changes.append(made.delta)
                lost |= made.lost
                tick(1)
            for c in towards:
                made = self._make(subject, run, x, y, self.radius, c)
                aimed.append(made.delta)
                lost |= made.lost
                tick(1)
        rows = run.map(
            partial(self._judge, subject, changes, aimed), subject, "test", index, "under one change",
            few={"changed": "fell"},
        )  # fmt: skip
        told = self._tell(subject, run, split, makers, index, [c.cpu().numpy() for c in (*changes, *aimed)], rows)
        names = tuple(m.name for m in told.measures)
        return replace(told, alarms=(*told.alarms, *_not_a_number(int(lost.sum()), len(lost), rows["sick"], names)))

    def _radii(self) -> tuple[float, ...]:
        return tuple(share * self.radius for share in SHARES)

    def _effort(self, run: Run) -> tuple[int, int]:
        steps = self.steps or run.budget.steps
        return steps, self.batch or steps

    def _halves(self, subject: Subject, run: Run) -> tuple[str, NDArray[np.int64], NDArray[np.int64]]:
        """The split and the inputs to make the change on, and the test inputs to judge it on, which are others."""
        index = run.pick(subject.data["test"])
        if "train" in subject.data:
            steps, batch = self._effort(run)
            made_on = run.pick(subject.data["train"], min(MADE_ON, steps * batch), bounded=False)
            return "train", made_on, index
        strata = subject.task.strata(np.asarray(subject.data["test"].labels)[index])
        by_class = index[np.argsort(strata, kind="stable")]
        makers, judges = np.sort(by_class[::2][:MADE_ON]), np.sort(by_class[1::2])
        if not len(judges):
            raise AssayError(
                "One test input cannot serve both to make a change and to judge it; give more, or a train split."
            )
        return "test", makers, judges

    def _make(self, subject: Subject, run: Run, x: Data, y: Truth, radius: float, target: int | None) -> Universal:
        """One change; towards a class, where there are many to make, with less effort."""
        steps, batch = self._effort(run)
        return universal(
            subject.model,
            x,
            y,
            radius=radius,
            target=target,
            steps=steps if target is None else math.ceil(steps / 2),
            batch=batch,
            restarts=run.budget.restarts if target is None else 1,
            mask=None if (reach := subject.reach()) is None else reach.mask,
            eot=subject.draws,
            bounds=(subject.inputs.low, subject.inputs.high),
            rng=run.rng(),
            lost=True,
        )

    def _judge(
        self, subject: Subject, changes: list[Tensor], aimed: list[Tensor], shard: Shard
    ) -> Mapping[str, Tensor]:
        """What the model says to each input as it is, under each change, and under noise of the same sizes.

        Of a task without classes 1 is what is good enough and 0 what is not.
        """
        bounds = (subject.inputs.low, subject.inputs.high)
        truth = truth_of(subject.task, shard.y)
        y, reach = label_of(truth), subject.reach(shard.x)
        sick = torch.zeros_like(y, dtype=torch.bool)

        def at(change: Tensor) -> Tensor:  # *d or n *d -> n *d
            """The inputs under a change, which moves only what can change."""
            moved = under(shard.x, change, bounds=bounds)
            return moved if reach is None else reach.settled(moved, shard.x)

        def says(change: Tensor) -> Tensor:
            """The answer: n; NO where it is NaN, which is no class."""
            out = subject.predict(at(change))
            out = truth.read(out) if isinstance(truth, Aim) else out
            none = out.isnan().any(1)
            sick.logical_or_(none)
            return torch.where(none, NO, out.argmax(1))

        told = {}
        if subject.draws == 1:
            clean = says(torch.zeros_like(shard.x[0]))
            said = torch.stack([says(change) for change in changes], 1)  # n r
            right, fell = clean == y, said != y[:, None]  # n, n r
        else:  # an input of a random model is right, or broken, if it is so in most fresh answers
            first, *fresh = (
                chance(subject.single, at(change), truth, draws=subject.draws)
                for change in (torch.zeros_like(shard.x[0]), *changes)
            )
            clean, said = first.said, torch.stack([each.said for each in fresh], 1)
            told = {"clean wrong": first.wrong, "wrong": torch.stack([each.wrong for each in fresh], 1)}
            right, fell = (2 * wrong > answers(subject.draws) for wrong in told.values())
            right = ~right
            for each in (first, *fresh):
                sick.logical_or_(each.sick)
        noise = [random_signs(shard.x, radius=radius, rng=shard.rng) for radius in self._radii()]
        noisy = torch.stack([says(change) for change in noise], 1)  # n r
        sent = [says(change) == c for c, change in enumerate(aimed)]
        smallest = fell.int().argmax(1)  # the smallest change that breaks it, 0 where none does
        return {
            "label": y,
            "clean": clean,
            "said": said,
            "noisy": noisy,
            "sent": torch.stack(sent, 1) if sent else torch.zeros(len(shard.x), 0, dtype=torch.bool),  # n k
            "first": smallest,
            "sick": sick,
            "changed": at(torch.stack(changes)[smallest]),
            "fell": fell.any(1) & right,
            **told,
        }

    def _tell(
        self,
        subject: Subject,
        run: Run,
        split: str,
        makers: NDArray[np.int64],
        index: NDArray[np.int64],
        changes: list[NDArray[np.float32]],
        rows: Mapping[str, NDArray[Any]],
    ) -> Finding:
        classes, label = "classes" in subject.task.gives, rows["label"].astype(np.int64)
        count, noise = answers(subject.draws), rows["noisy"] != label[:, None]  # n r
        wrong: NDArray[Any] = rows["said"] != label[:, None]  # n r, and n: whether it is wrong, or how often
        clean_wrong: NDArray[Any] = rows["clean"] != label
        if count > 1:
            wrong, clean_wrong = rows["wrong"] / count, rows["clean wrong"] / count
        if classes:
            trivial = Beside("always says the commonest class", float(1 - np.bincount(label).max() / len(label)))
        else:
            says, right = subject.trivially_right("test", index)
            trivial = Beside(says, 1 - right)
        beside = (
            Beside("clean error", float(clean_wrong.mean())),
            Beside("random noise of the same size", float(noise[:, 0].mean())),
            trivial,
        )
        broke = np.where(rows["fell"], np.array(self._radii())[rows["first"]], np.nan)  # n
        witnesses = _witnesses(subject, run, rows, index, label, broke)
        others = label[:, None] != np.arange(
            rows["sent"].shape[1]
        )  # n k: only what is not of a class can be sent there
        steps, batch = self._effort(run)
        only = "" if (reach := subject.reach()) is None else reach.told()
        often = share(int(wrong[:, 0].sum()), len(index)) if count == 1 else f"{100 * wrong[:, 0].mean():.0f} %"
        table = {
            "index": index,
            **({"label": label, "said": rows["said"][:, 0]} if classes else {}),
            "clean error": clean_wrong,
            "error": wrong[:, 0],
            "noise error": noise[:, 0],
            "beyond noise": wrong[:, 0].astype(float) - noise[:, 0],
            "broke at": broke,
        }
        measures = [
            Measure.chance(
                HEADLINE,
                wrong[:, 0],
                better="lower",
                seed=run.seed,
                column="error",
                about=f"wrong under one l_inf change of at most {subject.inputs.size(self.radius, 4)}{only}, the same "
                f"for every input, made on {len(makers)} inputs of {split!r} in {steps} steps of {batch}, best of "
                f"{run.budget.restarts}",
                beside=beside,
            ),
            Measure.mean(
                "beyond noise",
                table["beyond noise"],
                better="lower",
                seed=run.seed,
                unit="%",
                column="beyond noise",
                about="that error minus the error under random signs of the same size, input by input",
            ),
        ]
        if count > 1:
            again, clean_again = (threats(at, count)[1] for at in (rows["wrong"][:, 0], rows["clean wrong"]))
            table["error again"] = 1 - again.right
            measures.append(
                Measure.chance(
                    f"{HEADLINE}{again.name}",
                    table["error again"],
                    better="lower",
                    seed=run.seed,
                    column="error again",
                    about=f"under the same change, not right {again.times}",
                    beside=(Beside(f"clean inputs{again.name}", float(1 - clean_again.right.mean())),),
                )
            )
        views: list[Curve | Bars | Gallery] = [self._curve(subject, clean_wrong, wrong, noise)]
        if others.size:
            table["sent"] = (rows["sent"] & others).sum(1) / others.sum(1)
            measures.append(
                Measure.mean(
                    "sent to a chosen class",
                    table["sent"],
                    better="lower",
                    seed=run.seed,
                    unit="%",
                    column="sent",
                    about="of the inputs that are not of a class, the share that one change towards it sends there; "
                    "mean over the classes",
                    beside=(Beside("without any change", float(clean_wrong.mean() / (others.shape[1] - 1))),),
                )
            )
            views.append(_targets(subject, rows["sent"], others))
        return Finding(
            says=f"One change of at most {subject.inputs.size(self.radius)}{only}, the same for every input, makes it "
            f"wrong on {often}; random noise of that size on "
            f"{100 * noise[:, 0].mean():.0f} %, no change at all on {100 * clean_wrong.mean():.0f} %.",
            measures=tuple(measures),
            samples=Table("test", table),
            views=(*views, *self._pictures(subject, run.budget.shown, index, changes, rows, wrong, witnesses)),
            alarms=self._doubts(split, len(makers), wrong, noise),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _doubts(self, split: str, makers: int, wrong: NDArray[Any], noise: NDArray[np.bool_]) -> tuple[Alarm, ...]:
        alarms = []
        if split == "test":
            alarms.append(
                Alarm(
                    f"There is no training data: the change was made on {makers} of the test inputs and judged on the "
                    f"other {len(wrong)}."
                )
            )
        if makers < FEWEST:
            alarms.append(
                Alarm(
                    f"The change was made on {makers} inputs only; made on more of them it may break more.", (HEADLINE,)
                )
            )
        found, chance = wrong[:, -1].mean(), noise[:, -1].mean()
        if self.radius > 0 and found <= chance < 0.5:
            alarms.append(
                Alarm(
                    f"Even at {SHARES[-1]:g} times the budget the change does no more than random noise "
                    f"({100 * found:.1f} % against {100 * chance:.1f} %): its gradients may mislead the search.",
                    (HEADLINE,),
                )
            )
        return tuple(alarms)

    def _curve(self, subject: Subject, clean: NDArray[Any], wrong: NDArray[Any], noise: NDArray[np.bool_]) -> Curve:
        def line(label: str, columns: NDArray[Any]) -> Line:
            radii = (0.0, *self._radii())
            if clean.dtype == bool:
                return Line.shares(label, radii, [clean.sum(), *columns.sum(0)], len(clean))
            return Line(label=label, x=radii, y=(float(clean.mean()), *columns.mean(0).tolist()))

        return Curve(
            name="size",
            title="Error against the size of the change",
            x_label=subject.inputs.axis("l∞ radius"),
            y_label="error",
            unit_y=True,
            lines=(line("one change for all", wrong), line("random noise of the same size", noise)),
            marks=(Beside("budget", self.radius),),
            says="The upper line can only be higher than shown: a search that fails proves nothing.",
        )

    def _pictures(
        self,
        subject: Subject,
        shown: int,
        index: NDArray[np.int64],
        changes: list[NDArray[np.float32]],
        rows: Mapping[str, NDArray[Any]],
        wrong: NDArray[Any],
        w: Witnesses,
    ) -> tuple[Gallery, ...]:
        if not subject.inputs.is_image or self.radius == 0:
            return ()
        names, low, high = subject.task.classes, subject.inputs.low, subject.inputs.high
        size = subject.inputs.size
        radii = (*self._radii(), *(self.radius for _ in changes[len(SHARES) :]))
        titles = [
            f"at most {size(r)}: wrong on {100 * e:.0f} %" for r, e in zip(self._radii(), wrong.mean(0), strict=True)
        ]
        titles += [f"at most {size(self.radius)}, towards {names[c]}" for c in range(len(changes) - len(SHARES))]
        example = subject.data["test"].take(index[:1])[0].numpy()[0]
        themselves = tuple(
            Exhibit(
                index=int(index[0]),
                caption=title,
                panels=(
                    Panel.of("the change", f"The change of {title}, grey where there is none", delta, low=-r, high=r),
                    Panel.of("with it", f"Input {index[0]} with that change", np.clip(example + delta, low, high),
                             low=low, high=high),
                ),
            )
            for title, r, delta in list(zip(titles, radii, changes, strict=True))[: max(shown, len(SHARES))]
        )  # fmt: skip
        galleries = [Gallery(name="changes", title="The changes themselves", exhibits=themselves)]
        if len(w):
            easiest = sorted(range(len(w)), key=lambda i: (w.radius[i], w.index[i]))[:shown]
            broken = tuple(
                Exhibit.of(
                    int(w.index[i]),
                    ", said ".join(subject.in_words(w.label[i], w.said[i]))
                    + f" under the change of {size(w.radius[i])}",
                    w.clean[i],
                    w.changed[i],
                    low=low,
                    high=high,
                )
                for i in easiest
            )
            galleries.append(Gallery(name="broken", title="Inputs that it broke", exhibits=broken))
        return tuple(galleries)


def _not_a_number(lost: int, makers: int, sick: NDArray[np.bool_], names: tuple[str, ...]) -> tuple[Alarm, ...]:  # n
    alarms = []
    if lost:
        alarms.append(
            Alarm(
                f"For {share(lost, makers)} of the inputs that the change is made on, the model's output or gradient "
                "is NaN on the way: they say nothing there of where to go, and made with them it may break more.",
                doubts=names,
            )
        )
    if sick.any():
        alarms.append(
            Alarm(
                f"For {share(int(sick.sum()), len(sick))} of the test inputs the model's output is NaN, as they are, "
                "under the change or under noise: NaN is no right answer and counts as wrong.",
                doubts=names,
            )
        )
    return tuple(alarms)


def _targets(subject: Subject, sent: NDArray[np.bool_], others: NDArray[np.bool_]) -> Bars:
    hits, counts = (sent & others).sum(0), others.sum(0)
    seen = np.flatnonzero(counts)
    bands = [wilson(int(hits[c]), int(counts[c])) for c in seen]
    return Bars(
        name="targets",
        title="Inputs that one change sends to a chosen class",
        y_label="share of the inputs that are not of it",
        labels=tuple(subject.task.classes[c] for c in seen),
        values=tuple(float(hits[c] / counts[c]) for c in seen),
        low=tuple(b[0] for b in bands),
        high=tuple(b[1] for b in bands),
        unit_y=True,
        says="One change for each class, made to send everything there.",
    )


def _witnesses(
    subject: Subject,
    run: Run,
    rows: Mapping[str, NDArray[Any]],
    index: NDArray[np.int64],
    label: NDArray[np.int64],
    broke: NDArray[np.float64],
) -> Witnesses:
    """Each input that was right and broke, under the smallest change of the curve that broke it."""
    fell = rows["changed at"]
    said = rows["said"][fell, rows["first"][fell]].astype(np.int64)
    said = np.where(said == NO, label[fell] == 0, said)  # of no answer, as chance.py: the first class that is wrong
    clean, target = (part.numpy() for part in subject.data["test"].take(index[fell]))
    changed, classes = rows["changed"].astype(np.float32), "classes" in subject.task.gives
    return Witnesses(
        split="test",
        index=index[fell],
        clean=clean,
        changed=changed,
        label=label[fell] if classes else target,
        said=said if classes else subject.said(changed, run.device),
        norm=("linf",) * len(fell),
        radius=broke[fell],
        how=("one change for all",) * len(fell),
        left_out=int(rows["fell"].sum()) - len(fell),
    )


SHELVED = OneChangeForAll
