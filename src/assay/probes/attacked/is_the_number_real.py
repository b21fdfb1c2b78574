"""Whether a robust accuracy can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Curve, Finding, Line, Measure, Table, Witnesses, share, wilson
from assay.methods.attack.aim import label_of, truth_of
from assay.methods.attack.as_printed import STEP, STEPS
from assay.methods.attack.average_sample import class_means
from assay.methods.attack.masking import ATTACKS, GAP, MISLED, examine, go_through, read
from assay.methods.attack.through import FITTED, Still, Way, carries_gradient, class_axis, ways_through
from assay.methods.attack.transfer import Kind, answering_substitute, learn_substitute, small_substitute
from assay.probe import Need, Probe
from assay.run import batch_of
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Data, Subject

EACH = 3  # inputs for each step of the budget: every one of them meets a dozen attacks
TAUGHT = 4  # inputs for each of those, to teach a substitute and to take class means of
STRAY = 0.1  # how far from its inputs a substitute asks
DISTILLED = 1000  # inputs whose whole answers a copy is taught, and as many around them
HEADLINE = "robustness that was not real"
OWN_LOSS, GOOD_OR_BAD = "the model's own cross-entropy", "the cross-entropy of good against bad, by the task's margin"


@dataclass(frozen=True)
class IsTheNumberReal(Probe):
    """Is its robustness real, or do attacks fail on it for bad reasons?

    `radius` is the l_inf budget, a share of the range. The attack that libraries run meets others that ought to
    agree with it; where one breaks more, the lower accuracy counts and an alarm says why. `ladder` are numbers of steps
    and `eot` numbers of draws in a gradient for curves that should level off, as ladder=3,10,30,100,300,1000.

    Where an answer is no class, the attacks are on the margin of its task: whether it is good enough. The step between
    class means is left out, and the substitute learns whole answers.

    Where gradients mislead, or there is noise, other gradients are followed: those of smooth stand-ins for the layers
    that mislead, of a copy that was taught the answers, of the net without its noise, of many more draws. The lowest
    accuracy counts, with the name of what broke it. Of a random model the attack as papers print it stands beside: one
    draw a step, a fixed step, the last point.
    """

    radius: float = 8 / 255
    steps: int | None = None
    inputs: int | None = None
    ladder: tuple[int, ...] = ()
    eot: tuple[int, ...] = ()

    goes_through: ClassVar[bool] = True
    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Athalye, Carlini & Wagner, ICML 2018, arXiv:1802.00420; Carlini et al. 2019, arXiv:1902.06705; Wang, TU Delft "
        "2024 (dissertation), sec. 5.4.2"
    )
    needs: ClassVar[tuple[Need, ...]] = ("gradients",)
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.1),)

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius")
        self.refuse_beyond_the_range("radius")
        self.refuse_below(1, "steps", "inputs")
        if any(k < 1 for k in (*self.ladder, *self.eot)):
            raise AssayError(f"The settings ladder and eot of {self.name()!r} hold numbers of at least 1.")

    def ask(self, subject: Subject, run: Run) -> Finding:
        steps = self.steps or run.budget.steps
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(EACH * run.budget.steps))
        few = subject.data["test"].take(index[:FITTED])[0].to(run.device)
        if not carries_gradient(subject.model, few[:2]):
            subject = replace(subject, model=Still(subject.model), layers={})
        means, substitute = self._taught(subject, run, TAUGHT * len(index))
        rows = run.map(
            partial(self._examine, subject, steps, means, substitute), subject, "test", index, "is the number real",
            few={"worst": "fell"},
        )  # fmt: skip
        classes = "classes" in subject.task.gives
        only = "" if (reach := subject.reach()) is None else reach.told()
        by = np.asarray(rows["by"], dtype=np.int64)
        signs = (
            read(
                by,
                rows["any size"],
                rows,
                steps=steps,
                draws=subject.draws,
                classes=classes,
                limited=bool(only),
            )
            if self.radius > 0
            else ()
        )
        named = {sign.name for sign in signs}
        undeclared = subject.draws == 1 and "dice" in named  # what one draw finds of it is luck
        misled = bool(named & MISLED)
        ways = self._ways(subject, run, few, misled=misled) if self.radius > 0 and not undeclared else ()
        got_through: tuple[Alarm, ...] = ()
        if ways:
            more = run.map(
                partial(self._go_through, subject, steps, ways), subject, "test", index, "attacks that go through",
                few={"worst": "fell"},
            )  # fmt: skip
            got_through = _got_through(ways, rows, more)
            rows = _joined(rows, more)
        by, label = np.asarray(rows["by"], dtype=np.int64), np.asarray(rows["label"], dtype=np.int64)
        fell, found = rows["worst at"], int(rows.pop("fell").sum())
        columns = {name: column for name, column in rows.items() if name.startswith("held ") or column.dtype == bool}
        usual, held = columns["held usual"], columns.pop("held all")
        lost = usual.astype(np.float64) - held
        clean, target = (part.numpy() for part in subject.data["test"].take(index[fell]))
        changed = rows["worst"].astype(np.float32)
        witnesses = Witnesses(
            split="test",
            index=index[fell],
            clean=clean,
            changed=changed,
            label=label[fell] if classes else target,
            said=np.asarray(rows["said"], dtype=np.int64)[fell] if classes else subject.said(changed, run.device),
            norm=("linf",) * len(fell),
            radius=np.full(len(fell), self.radius),
            how=tuple(ATTACKS[int(k)] for k in rows["via"][fell]),
            left_out=found - len(fell),
        )
        n = len(index)
        return Finding(
            says=f"Of the inputs, {_part(usual, n)} hold against "
            f"{'the attack that libraries run' if classes else 'PGD on whether the answer is good enough'}; "
            f"{_part(lost, n)} of all fall to another one of the same size"
            + (f". Signs of trouble: {', '.join(s.name for s in signs)}." if signs else "; all agree."),
            measures=(
                Measure.chance(
                    HEADLINE,
                    lost,
                    better="lower",
                    seed=run.seed,
                    column="not real",
                    about=f"right under PGD on {OWN_LOSS if classes else GOOD_OR_BAD}, {steps} steps within l_inf "
                    f"{subject.inputs.size(self.radius, 4)}{only}, but broken by another attack of that size",
                    beside=(Beside("attacks that agree", 0.0),),
                ),
                Measure.chance(
                    "accuracy, the usual attack",
                    usual,
                    better="higher",
                    seed=run.seed,
                    column="held usual",
                    about="as libraries do" if classes else f"PGD on {GOOD_OR_BAD}",
                ),
                Measure.chance(
                    "accuracy, all attacks",
                    held,
                    better="higher",
                    seed=run.seed,
                    column="held all",
                    about="the number to believe",
                ),
                *_as_printed(columns, run.seed),
            ),
            samples=Table(
                "test",
                {
                    "index": index,
                    **({"label": label} if classes else {}),
                    "not real": lost if held.dtype != bool else lost > 0,
                    "held all": held,
                    "broken by": np.array([ATTACKS[k] if k >= 0 else "" for k in by]),
                    **columns,
                },
            ),
            views=(_side_by_side(columns, held, by), *self._levels(columns, steps, subject.draws)),
            alarms=(
                *(Alarm(s.says, doubts=(HEADLINE, "accuracy, all attacks") if s.open else ()) for s in signs),
                *got_through,
                *_not_a_number(columns["sick"]),
            ),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _levels(self, columns: Mapping[str, np.ndarray], steps: int, draws: int) -> tuple[Curve, ...]:
        """The margin attack over its steps, and over the draws in its gradient: flat tails are wanted."""
        known = {1: "1 step", max(2, steps // 4): "few steps", steps: "margin"}
        known |= {k: f"{k} steps" for k in self.ladder}
        levels = [("steps", "steps of the attack", known)]
        if self.eot:
            levels.append(("eot", "draws in a gradient", {draws: "margin"} | {k: f"{k} draws" for k in self.eot}))
        return tuple(
            Curve(
                name=name,
                title=f"Accuracy against the {what}",
                x_label=what,
                y_label="accuracy",
                unit_y=True,
                lines=(
                    Line(
                        label="accuracy",
                        x=tuple(float(k) for k in sorted(at)),
                        y=tuple(float(columns[f"held {at[k]}"].mean()) for k in sorted(at)),
                    ),
                ),
                says="PGD on the margin, on all inputs. A number is worth quoting where the tail is flat.",
            )
            for name, what, at in levels
        )

    def _ways(self, subject: Subject, run: Run, few: Tensor, *, misled: bool) -> tuple[Way, ...]:  # k *d
        def teach() -> nn.Module:
            split = "train" if "train" in subject.data else "test"
            rows = run.rows(subject, split, run.pick(subject.data[split], DISTILLED), "inputs to copy it from")
            return self._student(subject, run, rows, answers=True, reach=self.radius, about="distilling a copy")

        return ways_through(
            subject.model,
            few,
            radius=self.radius,
            draws=subject.draws,
            bounds=(subject.inputs.low, subject.inputs.high),
            reach=subject.reach(few),
            classes=class_axis(subject.task),
            misled=misled,
            teach=teach,
        )

    def _go_through(self, subject: Subject, steps: int, ways: tuple[Way, ...], shard: Shard) -> Mapping[str, Tensor]:
        found = go_through(
            subject.model,
            shard.x,
            truth_of(subject.task, shard.y),
            ways=ways,
            radius=self.radius,
            steps=steps,
            draws=subject.draws,
            reach=subject.reach(shard.x),
            bounds=(subject.inputs.low, subject.inputs.high),
            rng=shard.rng,
        )
        return {
            "worst": found.worst,
            "fell": (found.held < 0.5) & (found.via > 0),
            "said": found.said,
            "via": found.via,
            "wrong": found.wrong,
            "held all": found.held,
            "sick": found.sick,
            **found.columns,
        }

    def _taught(self, subject: Subject, run: Run, count: int) -> tuple[Tensor | None, nn.Module]:
        """The class means, where every class is there, and a substitute that learned the subject's answers."""
        split = "train" if "train" in subject.data else "test"
        index, classes = run.pick(subject.data[split], count), len(subject.task.classes)
        rows = run.rows(subject, split, index, "inputs to learn from")
        answers = "classes" not in subject.task.gives
        learned = self._student(subject, run, rows, answers=answers, reach=STRAY, about="teaching a substitute")
        if answers or len(np.unique(rows.labels)) < classes:
            return None, learned
        batch = batch_of(subject.inputs.shape)
        return class_means(rows, classes=classes, batch=batch).to(run.device), learned

    def _student(self, subject: Subject, run: Run, rows: Data, *, answers: bool, reach: float, about: str) -> nn.Module:
        """A small net that learned what the subject says at these inputs and around them: its classes or `answers`."""
        bounds, rng, shape = (subject.inputs.low, subject.inputs.high), run.rng(), subject.inputs.shape
        if "classes" in subject.task.gives:
            kind: Kind = "cnn" if subject.inputs.is_image else "mlp"
            student = small_substitute(kind, shape, len(subject.task.classes), bounds=bounds, rng=rng)
        else:
            one = subject.predict(rows.take(np.arange(1))[0].to(run.device))
            student = answering_substitute(shape, tuple(one.shape[1:]), bounds=bounds, rng=rng)
        with run.progress(about, 1) as tick:
            learned = learn_substitute(
                subject.predict,
                rows,
                substitute=student,
                rounds=1,
                reach=reach,
                bounds=bounds,
                device=run.device,
                answers=answers,
                rng=rng,
            )
            tick(1)
        return learned.model

    def _examine(
        self, subject: Subject, steps: int, means: Tensor | None, substitute: nn.Module, shard: Shard
    ) -> Mapping[str, Tensor]:
        y = truth_of(subject.task, shard.y)
        found = examine(
            subject.model,
            shard.x,
            y,
            radius=self.radius,
            steps=steps,
            queries=10 * steps,
            means=means,
            substitute=substitute,
            draws=subject.draws,
            ladder=self.ladder,
            eots=self.eot,
            reach=subject.reach(shard.x),
            bounds=(subject.inputs.low, subject.inputs.high),
            rng=shard.rng,
        )
        return {
            "label": label_of(y),
            "worst": found.worst,
            # of a random model, in most answers
            "fell": (found.held < 0.5) & (found.columns["held none"] >= 0.5),
            "said": found.said,
            "by": found.by,
            "via": found.via,
            "sick": found.sick,
            "held all": found.held,
            "any size": found.any_size,
            "wrong": found.wrong,
            **found.columns,
        }


def _joined(rows: Mapping[str, np.ndarray], more: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What was found of each input, with what the ways through found where they did worse.

    Which point is worse was settled by the answers that chose it; what counts are answers drawn after that.
    """
    lower = more["wrong"] > rows["wrong"]
    both = {name: np.where(lower, more[name], rows[name]) for name in ("held all", "said", "via", "wrong")}
    old, new = ~lower[rows["worst at"]], lower[more["worst at"]]
    at = np.concatenate([rows["worst at"][old], more["worst at"][new]])
    order = np.argsort(at)
    return {
        **rows,
        **{name: column for name, column in more.items() if name.startswith("held ")},
        **both,
        "by": np.where((rows["by"] == -1) & lower & more["fell"], more["via"], rows["by"]),
        "fell": np.where(lower, more["fell"], rows["fell"]),
        "sick": rows["sick"] | more["sick"],
        "worst": np.concatenate([rows["worst"][old], more["worst"][new]])[order],
        "worst at": at[order],
    }


def _got_through(
    ways: tuple[Way, ...], rows: Mapping[str, np.ndarray], more: Mapping[str, np.ndarray]
) -> tuple[Alarm, ...]:
    """Where gradients mislead and what that hid; by which way, of those that are lower, most of it was found."""
    before, after = (100 * float(each["held all"].mean()) for each in (rows, _joined(rows, more)))
    gaps = [way for way in ways if way.own and way.about and way.name == ways[0].name == "straight-through"]
    alarms = [
        Alarm(
            f"Gradients mislead here: {way.about}. With smooth stand-ins in the backward pass the attack leaves "
            f"{100 * more[f'held {way.name}'].mean():.1f} % right."
        )
        for way in gaps
    ]
    if before - after > 100 * GAP:
        best = min(ways, key=lambda way: float(more[f"held {way.name}"].mean()))
        alarms.append(
            Alarm(
                f"Attacks that go through leave {after:.1f} % right where all others leave {before:.1f} %; what breaks "
                f"most is {best.name}: {best.about}. The lowest number counts."
            )
        )
    return tuple(alarms)


def _as_printed(columns: Mapping[str, np.ndarray], seed: int) -> tuple[Measure, ...]:
    if "held as printed" not in columns:
        return ()
    return (
        Measure.chance(
            "accuracy, the attack as printed",
            columns["held as printed"],
            better="higher",
            seed=seed,
            column="held as printed",
            about=f"as papers on random nets attack them: one draw a step, {STEPS} steps of {STEP:g}, the last point; "
            "what it has above the others was never robustness",
        ),
    )


def _part(chances: np.ndarray, n: int) -> str:
    """How many of n; of a random model, their mean chance."""
    if np.isin(chances, (0, 1)).all():
        return share(int(chances.sum()), n)
    return f"{max(0.0, 100 * chances.mean()):.0f} %"  # an estimate of a difference of chances may fall below 0


def _not_a_number(sick: np.ndarray) -> tuple[Alarm, ...]:
    if not sick.any():
        return ()
    says = (
        f"For {share(int(sick.sum()), len(sick))} of the inputs the model's output or gradient is NaN, at the input or "
        "near it: NaN is no right answer; where only the gradient is NaN, no attack that needs it was run."
    )
    return (Alarm(says, doubts=(HEADLINE, "accuracy, all attacks")),)


def _side_by_side(columns: Mapping[str, np.ndarray], held: np.ndarray, by: np.ndarray) -> Bars:
    """The accuracy under each attack alone where it met all inputs, else after it and all before it."""
    names, hits = [], []
    for k, name in enumerate(ATTACKS):
        alone = columns.get(f"held {name}")
        if alone is not None:
            names.append("clean" if name == "none" else name)
            hits.append(float(alone.sum()))
        elif name in ("more steps", "restarts", "square"):
            names.append(f"+ {name}")
            hits.append(float(((by == -1) | (by > k)).sum()))
    if "held as printed" in columns:
        names.append("as printed")
        hits.append(float(columns["held as printed"].sum()))
    names.append("all")
    hits.append(float(held.sum()))
    bands = [wilson(round(h), len(by)) for h in hits]
    return Bars(
        name="side-by-side",
        title="The same budget, by each attack",
        y_label="accuracy",
        labels=tuple(names),
        values=tuple(h / len(by) for h in hits),
        low=tuple(b[0] for b in bands),
        high=tuple(b[1] for b in bands),
        unit_y=True,
        says="A + means: on what the attacks before it left standing. Where a blind attack is lower than one that sees "
        "gradients, or more steps are higher than fewer, the gradients mislead.",
    )


SHELVED = IsTheNumberReal
