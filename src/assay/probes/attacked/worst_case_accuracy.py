"""How many inputs survive an attacker who sees everything that there is to see?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    Table,
    Witnesses,
    share,
    wilson,
)
from assay.methods.attack.aim import label_of, truth_of
from assay.methods.attack.attacked import Attacked, sparing
from assay.methods.attack.ball import wide
from assay.methods.attack.cells import cells, in_range, left, masked, settled, size, stepping
from assay.methods.attack.chance import TALLY, answers, chance, interval, sizes, threats
from assay.methods.attack.ensemble import ATTACKS, WorstCase, worst_case
from assay.methods.attack.masking import read_vitals, vital_signs
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd
from assay.methods.attack.swift import Through, searching
from assay.methods.attack.through import FITTED, THROUGH, Still, Way, carries_gradient, class_axis, ways_through
from assay.probe import Probe, in_each_norm
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.inputs import Reach
    from assay.run import Run, Shard
    from assay.subject import Subject

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, ...] = ("linf", "l2")
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Where the curve is drawn, in budgets."""
HOW = (*ATTACKS, "minimal-norm, any size", "cells", *THROUGH)
MEASURES = ("worst-case accuracy", "worst-case accuracy, l2")
CLIMB = 4  # draws to a gradient of a random model: steps average too, and what counts is judged on all draws
FEWER = 4  # times fewer inputs of a random model, where each answer takes many passes
LEAST = 40  # queries of Square to a random model, each of which takes as many passes as an answer
BLIND_QUERIES = 25  # for each step of the budget, where there are no gradients


@dataclass(frozen=True)
class WorstCaseAccuracy(Probe):
    """Does it stay right when someone changes the input on purpose, by no more than the eye would miss?

    `radius` is the l_inf budget of the headline, `l2_radius` that of the l2 curve; both are shares of the range.
    A search for the smallest change gives the curve; whoever still holds at the budget meets the ensemble of attacks.
    A model that gives answers only meets Square, which asks for no gradient. A random model counts with the chance
    that a fresh answer is right, input by input; beside it stand a single pass, and an attacker who may ask again.

    Where the subject says what an input is, only what can change does: fixed columns never, whole numbers in whole
    steps. A category has no distance: beside a change of that size, at most `cells` categories take any of their codes.
    """

    radius: float = 8 / 255
    l2_radius: float = 0.5
    steps: int | None = None
    restarts: int | None = None
    cells: int = 1

    goes_through: ClassVar[bool] = True
    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Croce & Hein, ICML 2020, arXiv:2003.01690 (the ensemble); Pintor et al., NeurIPS 2021, arXiv:2102.12827 (the "
        "smallest change); Madry et al., ICLR 2018, arXiv:1706.06083"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.4),)

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius", "l2_radius", "cells")
        self.refuse_beyond_the_range("radius")
        self.refuse_below(1, "steps", "restarts")

    def ask(self, subject: Subject, run: Run) -> Finding:
        dear = run.budget.dear
        index = run.pick(subject.data["test"], dear if subject.draws == 1 or dear is None else max(1, dear // FEWER))
        subject, ways = self._ways(subject, run, index)
        work = partial(self._break, subject, run, ways)
        found = in_each_norm(NORMS, work, subject, run, index, "worst-case change")
        reach = subject.reach()
        only = "" if reach is None else reach.told(self.cells)
        classes = "classes" in subject.task.gives
        label = np.asarray(found["linf"]["label"], dtype=np.int64)
        broke = {norm: np.asarray(rows["broke"], dtype=np.float64) for norm, rows in found.items()}  # n
        count = answers(subject.draws)
        held: dict[Norm, NDArray[Any]] = {
            norm: self._held(found[norm], norm, count, self._budget(norm)) for norm in NORMS
        }
        clean: NDArray[Any] = 1 - found["linf"]["clean wrong"] / count
        if count == 1:
            clean, held = clean > 0, {norm: h > 0 for norm, h in held.items()}
        witnesses = _witnesses(subject, run, found, index, label, f"+{self.cells}" if self._codes(reach) else "")
        if classes:
            trivial = Beside("always says the commonest class", float(np.bincount(label).max() / len(label)))
        else:
            trivial = Beside(*subject.trivially_right("test", index))
        beside = (trivial, Beside("clean accuracy", float(clean.mean())))
        steps = self.steps or run.budget.steps
        if subject.differentiable:
            attacks = f"margin PGD, APGD on cross-entropy and targeted on DLR, minimal norm, Square; {steps} steps each"
        else:
            attacks = f"Square with {BLIND_QUERIES * steps} questions"
        if self._steps_in(reach, "linf"):
            attacks += "; a beam over the values of whole numbers and categories"
        curves = [self._curve(subject, norm, found[norm], count) for norm in NORMS] if subject.differentiable else []
        right = share(int(held["linf"].sum()), len(index)) if count == 1 else f"{100 * held['linf'].mean():.0f} %"
        return Finding(
            says=f"An attacker who may change each value by {subject.inputs.size(self.radius)}{only}"
            f"{',' if only else ''} leaves {right} right, of {100 * clean.mean():.0f} % on clean inputs.",
            measures=(
                Measure.chance(
                    MEASURES[0],
                    held["linf"],
                    better="higher",
                    seed=run.seed,
                    column="held linf",
                    about=f"right under every l_inf change of at most {subject.inputs.size(self.radius, 4)}{only} that "
                    f"was tried: {attacks}",
                    beside=beside,
                ),
                Measure.chance(
                    MEASURES[1],
                    held["l2"],
                    better="higher",
                    seed=run.seed,
                    column="held l2",
                    about=f"the same for l2 changes of at most {subject.inputs.size(self.l2_radius, 4)}{only}",
                    beside=beside,
                ),
                *self._threats(subject, found["linf"], run.seed),
            ),
            samples=Table(
                "test",
                {
                    "index": index,
                    **({"label": label} if classes else {}),
                    "clean": clean,
                    "held linf": held["linf"],
                    "held l2": held["l2"],
                    **_chances(found, count, subject.draws),
                    **{f"smallest {n}": np.where(np.isfinite(broke[n]), broke[n], np.nan) for n in NORMS},
                },
            ),
            views=(
                *curves,
                *_over_draws(subject.draws, found["linf"]),
                *([_by_class(subject.task.classes, label, held["linf"])] if classes else []),
                *_pictures(subject, witnesses, run.budget.shown),
            ),
            alarms=(*_misled(ways, found["linf"], self.radius), *self._alarms(subject, found, broke, steps)),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _budget(self, norm: Norm) -> float:
        return self.radius if norm == "linf" else self.l2_radius

    def _steps_in(self, reach: Reach | None, norm: Norm) -> bool:
        """Whether something moves in steps, or may take another code."""
        return reach is not None and bool(stepping(reach, norm, self.cells).any())

    def _codes(self, reach: Reach | None) -> bool:
        """Whether categories may take other codes."""
        return reach is not None and self.cells > 0 and bool((reach.free & reach.coded).any())

    def _ways(self, subject: Subject, run: Run, index: NDArray[np.int64]) -> tuple[Subject, tuple[Way, ...]]:
        """The subject as attacks can climb it, and whose gradients they follow where its own mislead or are random."""
        if not subject.differentiable or self.radius == 0:
            return subject, ()
        few = subject.data["test"].take(index[:FITTED])[0].to(run.device)
        if not carries_gradient(subject.model, few[:2]):
            subject = replace(subject, model=Still(subject.model), layers={})
        bounds = (subject.inputs.low, subject.inputs.high)
        with run.progress("whether its gradients lead", 1) as tick:
            ways = ways_through(
                subject.model, few, radius=self.radius, draws=subject.draws, bounds=bounds, reach=subject.reach(few),
                classes=class_axis(subject.task),
            )  # fmt: skip
            tick(1)
        return subject, tuple(way for way in ways if way.name in ("straight-through", "mean network"))

    def _break(
        self, subject: Subject, run: Run, ways: tuple[Way, ...], norm: Norm, shard: Shard
    ) -> Mapping[str, Tensor]:
        """The smallest change that breaks each input, and for those it leaves standing at the budget, the ensemble.

        What counts is what fresh answers say of a point after it was chosen. A random model's input is attacked until
        all of them are wrong; the smallest change is one at which most are.
        """
        steps, radius = self.steps or run.budget.steps, self._budget(norm)
        bounds, draws, count = (subject.inputs.low, subject.inputs.high), subject.draws, answers(subject.draws)
        y, reach, climb = truth_of(subject.task, shard.y), subject.reach(shard.x), min(draws, CLIMB)
        through = Through(subject.model, "float32")
        if subject.differentiable and not ways:  # gradients that mislead are followed as they are
            through = searching(subject.model, shard.x, draws=draws)

        def wrong_at(rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            """Of a random model TALLY answers choose between points, in units of the `count` that count them."""
            got = chance(subject.model, x, y[rows], draws=draws, count=None if count == 1 else TALLY)
            return got.wrong if count == 1 else (got.wrong * count) // TALLY, got.said

        first = chance(subject.model, shard.x, y, draws=draws)
        said, sick, clean = first.said, first.sick, first.wrong
        right = 2 * clean <= count
        broke = torch.where(right, torch.inf, 0.0).double()  # a distance must come back equal to itself
        how = torch.where(right, -1, 0)
        small, wrong = clean.clone(), clean.clone()  # n: wrong answers at the smallest change, and at the worst point
        worst_size = torch.zeros_like(broke)  # n: of the worst point, which is the input until a change does worse
        changed, worst, via = shard.x.clone(), shard.x.clone(), how.clone()

        def keep(rows: Tensor, x: Tensor, far: Tensor, by: Tensor) -> None:
            """What fresh answers confirm, and nothing else."""
            if not len(rows):  # many a model cannot be asked about no input: x.view(len(x), -1)
                return
            hits, answer = wrong_at(rows, x)
            fell = 2 * hits > count
            there = rows[fell & (far < broke[rows])]
            mine = fell & (far < broke[rows])
            changed[there], said[there], broke[there], how[there] = x[mine], answer[mine], far[mine], by[mine]
            small[there] = hits[mine]
            more = (far <= radius * (1 + 1e-6)) & (hits > wrong[rows])
            there = rows[more]
            worst[there], wrong[there], worst_size[there], via[there] = x[more], hits[more], far[more], by[more]

        def smallest(rows: Tensor, by: Through = through) -> Attacked:
            return minimal_norm(
                by.model, shard.x[rows], y[rows], norm=norm, steps=steps, mask=masked(reach, rows), eot=draws,
                climb=climb, bounds=bounds, precision=by.boundary,
            )  # fmt: skip

        def transferred(rows: Tensor, way: Way) -> Attacked:
            return pgd(
                way.model, shard.x[rows], y[rows], norm=norm, radius=radius, steps=steps, loss="margin", leave=False,
                mask=masked(reach, rows), bounds=bounds, rng=shard.rng,
            )  # fmt: skip

        def ensemble(
            rows: Tensor,
            base: Tensor = shard.x,
            room: float | Tensor = radius,
            free: Tensor | None = None,
            by: Through = through,
        ) -> WorstCase:
            return worst_case(
                by.model,
                base[rows],
                y[rows],
                norm=norm,
                radius=room[rows] if isinstance(room, Tensor) else room,
                steps=steps,
                restarts=self.restarts or run.budget.restarts,
                targets=1 if draws > 1 else 3 if steps < 50 else 9,
                queries=max(LEAST, 10 * steps // draws) if subject.differentiable else BLIND_QUERIES * steps,
                gradients=subject.differentiable,
                shrunk=subject.differentiable,
                mask=masked(reach, rows) if free is None else free[rows],
                eot=draws,
                climb=climb,
                bounds=bounds,
                precision=by.precision,
                rng=shard.rng,
            )

        def in_cells(rows: Tensor, radius: float = radius) -> Attacked:
            assert reach is not None
            return cells(
                subject.model, shard.x[rows], y[rows], reach=reach.take(rows), norm=norm, radius=radius,
                codes=self.cells, steps=steps, queries=BLIND_QUERIES * steps, gradients=subject.differentiable,
                eot=draws, bounds=bounds, rng=shard.rng,
            )  # fmt: skip

        def hit(found: WorstCase) -> Tensor:
            return (found.success if count == 1 else found.distance > 0).nonzero()[:, 0]

        for way in ways if radius > 0 else ():
            by_way = (
                partial(transferred, way=way) if not way.own else partial(smallest, by=Through(way.model, "float32"))
            )
            for rows, found in sparing(by_way, right.nonzero()[:, 0], sick):
                at, far = settled(reach, rows, found, shard.x[rows], norm)
                keep(rows, at, far, torch.full_like(rows, HOW.index(way.name)))
            all_of_it = partial(ensemble, by=Through(way.model, "float32"))
            for rows, most in sparing(all_of_it, ((wrong < count) & way.own).nonzero()[:, 0], sick):
                got = hit(most)
                at, far = settled(reach, rows, most, shard.x[rows], norm)
                keep(rows[got], at[got], far[got], torch.full_like(got, HOW.index(way.name)))
        if radius > 0 and subject.differentiable:
            for rows, found in sparing(smallest, right.nonzero()[:, 0], sick):
                got = found.success.nonzero()[:, 0]
                by = torch.full_like(got, HOW.index("minimal-norm, any size"))
                at, far = settled(reach, rows, found, shard.x[rows], norm)
                keep(rows[got], at[got], far[got], by)
        if radius > 0:
            for rows, most in sparing(ensemble, (wrong < count).nonzero()[:, 0], sick):
                got = hit(most)
                at, far = settled(reach, rows, most, shard.x[rows], norm)
                keep(rows[got], at[got], far[got], most.by[got])
        if reach is not None and self._steps_in(reach, norm):
            base, room = shard.x.clone(), shard.x.new_full((len(shard.x),), radius)
            if self._codes(reach):  # a category alone
                for rows, found in sparing(partial(in_cells, radius=0.0), (broke > 0).nonzero()[:, 0], sick):
                    got = found.success.nonzero()[:, 0]
                    keep(rows[got], found.x[got], found.distance[got], torch.full_like(got, HOW.index("cells")))
            for rows, found in sparing(in_cells, (wrong < count).nonzero()[:, 0], sick):
                got = found.success.nonzero()[:, 0]
                keep(rows[got], found.x[got], found.distance[got], torch.full_like(got, HOW.index("cells")))
                base[rows] = torch.where(reach.take(rows).smooth, shard.x[rows], found.x)
                room[rows] = left(norm, room[rows], size(base[rows], shard.x[rows], norm, reach.coded).to(room))
            free = reach.smooth.expand(shard.x.shape)
            numbers = partial(ensemble, base=base, room=room, free=free)  # from the worst setting of the others
            still = (wrong < count) & free.flatten(1).any(1) & (room > 0)
            for rows, most in sparing(numbers, still.nonzero()[:, 0], sick):
                got = hit(most)
                at = in_range(reach, rows, most.x, shard.x[rows])[got]
                keep(rows[got], at, size(at, shard.x[rows[got]], norm, reach.coded), most.by[got])
        told = {}
        if count > 1:
            # few answers chose the smallest change, and these count it
            rows = (right & torch.isfinite(broke)).nonzero()[:, 0]
            if len(rows):
                fresh = chance(subject.model, changed[rows], y[rows], draws=draws)
                small[rows], said[rows] = fresh.wrong, fresh.said
            # the answers above chose the point; these count it
            last = chance(subject.model, worst, y, draws=draws)
            wrong, sick = last.wrong, sick | last.sick
            told["by size"] = last.by_size
            inside = (worst_size <= radius * (1 + 1e-6)) & (2 * wrong > count) & right
            changed, said = torch.where(wide(inside, worst), worst, changed), torch.where(inside, last.said, said)
            told["at"], how = torch.where(inside, worst_size, broke), torch.where(inside, via, how)
            right = right & (inside | (2 * small > count))  # what most answers deny is no witness
        at = told.get("at", broke)
        vitals = {}
        if norm == "linf" and subject.differentiable:
            vitals = vital_signs(subject.model, shard.x, y, random=draws > 1, reach=reach, bounds=bounds)
        return {
            "label": label_of(y),
            "clean wrong": clean,
            "broke": broke,
            "at": at,
            "small wrong": small,
            "size": worst_size,
            "wrong": wrong,
            "changed": changed,
            "fell": right & torch.isfinite(at) & (changed != shard.x).flatten(1).any(1),
            "said": said,
            "how": how,
            "sick": sick,
            **told,
            **vitals,
        }

    def _held(self, rows: Mapping[str, NDArray[Any]], norm: Norm, count: int, radius: float) -> NDArray[np.float64]:
        """The chance to be right against changes of at most `radius`, at the point that was found for it: n.

        From its size on the worst point within the budget counts; below that, and beyond the budget, the smallest
        change that breaks the input; else the input as it is.
        """
        small, size = rows["broke"], rows["size"]
        near = (radius >= small) & ((radius < size) | (small > self._budget(norm) * (1 + 1e-6)))
        at_worst = np.where(radius >= size * (1 - 1e-6), rows["wrong"], rows["clean wrong"])
        return np.asarray(1 - np.where(near, rows["small wrong"], at_worst) / count)

    def _threats(self, subject: Subject, rows: Mapping[str, NDArray[Any]], seed: int) -> tuple[Measure, ...]:
        """Against a random model: a single pass instead of the mean of many, and an attacker who may ask again."""
        if subject.draws == 1:
            return ()
        count, passes = answers(subject.draws), subject.draws * answers(subject.draws)
        again, clean = threats(rows["wrong"], count)[1], threats(rows["clean wrong"], count)[1]
        return (
            Measure.chance(
                "worst-case accuracy, a single draw",
                1 - rows["by size"][:, 0] / passes,
                better="higher",
                seed=seed,
                column="held single",
                about=f"the same points, answered by one pass instead of the mean of {subject.draws}",
            ),
            Measure.chance(
                f"{MEASURES[0]}{again.name}",
                again.right,
                better="higher",
                seed=seed,
                column="held again",
                about=f"the same points, right {again.times}",
                beside=(Beside(f"clean inputs{again.name}", float(clean.right.mean())),),
            ),
        )

    def _alarms(
        self,
        subject: Subject,
        found: Mapping[Norm, Mapping[str, NDArray[Any]]],
        broke: Mapping[Norm, NDArray[np.float64]],
        steps: int,
    ) -> tuple[Alarm, ...]:
        if not subject.differentiable:
            beam = " and a beam over cells" if self._steps_in(subject.reach(), "linf") else ""
            says = (
                f"The model gives answers and no gradients, so only Square{beam} was run, with {BLIND_QUERIES * steps} "
                "questions for each input; an attacker with the weights may break more."
            )
            return (Alarm(says, doubts=MEASURES),)
        signs = read_vitals(found["linf"])
        sick = int((found["linf"]["sick"] | found["l2"]["sick"]).sum())
        return (
            *([Alarm(_not_a_number(sick, len(broke["linf"])), doubts=MEASURES)] if sick else []),
            *(Alarm(s.says, doubts=MEASURES if s.open else ()) for s in signs),
            *(a for norm in NORMS for a in self._doubts(subject, norm, found[norm], broke[norm])),
        )

    def _doubts(
        self, subject: Subject, norm: Norm, rows: Mapping[str, NDArray[Any]], broke: NDArray[np.float64]
    ) -> tuple[Alarm, ...]:
        """Signs that gradients mislead: a blind attack beats those that see, or no change at all breaks an input."""
        measure = MEASURES[NORMS.index(norm)]
        blind, never = int((rows["how"] == HOW.index("square")).sum()), int(np.isinf(broke).sum())
        alarms = []
        if blind:
            alarms.append(
                Alarm(
                    f"Square, which sees no gradients, broke {share(blind, len(broke))} of the inputs in {norm} that "
                    f"held against every attack that sees them; the gradients may be masked.",
                    doubts=(measure,),
                )
            )
        reach = subject.reach()
        # where nothing can change, an input holds for good
        if never and self._budget(norm) > 0 and (reach is None or bool(reach.movable(codes=self.cells > 0).any())):
            alarms.append(
                Alarm(
                    f"For {share(never, len(broke))} of the inputs no {norm} change of any size was found that breaks "
                    f"them; a search that cannot fail them at all may be blind.",
                    doubts=(measure,),
                )
            )
        return tuple(alarms)

    def _curve(self, subject: Subject, norm: Norm, rows: Mapping[str, NDArray[Any]], count: int) -> Curve:
        # beyond the budget nobody searched the values of whole numbers and categories
        shares = [s for s in SHARES if s <= 1 or not self._steps_in(subject.reach(), norm)]
        radii, n = (0.0, *(s * self._budget(norm) for s in shares)), len(rows["broke"])
        held = [self._held(rows, norm, count, r) for r in radii]
        if count == 1:
            line = Line.shares("accuracy", radii, [int(h.sum()) for h in held], n)
        else:
            line = Line(label="accuracy", x=radii, y=tuple(float(h.mean()) for h in held))
        letter = "l∞" if norm == "linf" else "l2"
        return Curve(
            name=norm,
            title=f"Accuracy against the size of the change ({letter})",
            x_label=subject.inputs.axis(f"{letter} radius"),
            y_label="accuracy",
            unit_y=True,
            lines=(line,),
            marks=(Beside("budget", self._budget(norm)),),
            says="The truth can only be lower than the curve: an attack that fails proves nothing."
            + (" At 0 stands what categories alone break." if self._codes(subject.reach()) else ""),
        )


def _witnesses(
    subject: Subject,
    run: Run,
    found: Mapping[Norm, Mapping[str, NDArray[Any]]],
    index: NDArray[np.int64],
    label: NDArray[np.int64],
    codes: str,
) -> Witnesses:
    """Per norm, each input that was right and broke, with the smallest change that was found.

    Of a random model, with the worst point within the budget where most answers there are wrong.
    """
    rows = {norm: at["changed at"] for norm, at in found.items()}

    def join(column: str) -> NDArray[Any]:
        return np.concatenate([found[norm][column][rows[norm]] for norm in NORMS])

    where = np.concatenate([rows[norm] for norm in NORMS])
    norms = tuple(norm + codes for norm in NORMS for _ in rows[norm])
    clean, target = (part.numpy() for part in subject.data["test"].take(index[where]))
    changed = np.concatenate([found[norm]["changed"] for norm in NORMS]).astype(np.float32)
    classes = "classes" in subject.task.gives
    return Witnesses(
        split="test",
        index=index[where],
        clean=clean,
        changed=changed,
        label=label[where] if classes else target,
        said=join("said").astype(np.int64) if classes else subject.said(changed, run.device),
        norm=norms,
        radius=join("at"),
        how=tuple(HOW[by] for by in join("how")),
        left_out=sum(int(at["fell"].sum()) for at in found.values()) - len(where),
    )


def _chances(found: Mapping[Norm, Mapping[str, NDArray[Any]]], count: int, draws: int) -> dict[str, NDArray[Any]]:
    """Of a random model: each input's chance of a wrong answer under attack with its interval, and the threats."""
    if count == 1:
        return {}
    rows = found["linf"]
    low, high = interval(rows["wrong"], count)
    return {
        "chance wrong": rows["wrong"] / count,
        "chance wrong, low": low,
        "chance wrong, high": high,
        "held single": 1 - rows["by size"][:, 0] / (count * draws),
        "held again": threats(rows["wrong"], count)[1].right,
    }


def _over_draws(draws: int, rows: Mapping[str, NDArray[Any]]) -> tuple[Curve, ...]:
    """Of a random model: does the number settle as more passes go to an answer?"""
    if draws == 1:
        return ()
    total, widths = draws * answers(draws), sizes(draws)
    y = [float(1 - rows["by size"][:, s].mean() / (total // w)) for s, w in enumerate(widths)]
    return (
        Curve(
            name="draws",
            title="Worst-case accuracy against the passes that go to an answer (l∞)",
            x_label="passes",
            y_label="accuracy",
            unit_y=True,
            lines=(Line(label="accuracy", x=tuple(map(float, widths)), y=tuple(y)),),
            marks=(Beside("draws", float(draws)),),
            says="On fresh draws, at points made against the mean of as many as the mark says. Where the line has not "
            "levelled off there, another number of draws is another model.",
        ),
    )


def _misled(ways: tuple[Way, ...], rows: Mapping[str, NDArray[Any]], radius: float) -> tuple[Alarm, ...]:
    """Where gradients mislead, and how many inputs fell to those of stand-ins within the budget."""
    by, inside = np.asarray(rows["how"]), rows["at"] <= radius * (1 + 1e-6)
    return tuple(
        Alarm(
            f"Gradients mislead here: {way.about}. The attacks are run with smooth stand-ins in the backward pass too, "
            f"by which {share(int((inside & (by == HOW.index(way.name))).sum()), len(by))} of the inputs fell within "
            "the budget (l_inf)."
        )
        for way in ways
        if way.own
    )


def _not_a_number(sick: int, n: int) -> str:
    return (
        f"For {share(sick, n)} of the inputs the model's output or gradient is NaN, at the input or near it: NaN is no "
        "right answer and counts as wrong; where only the gradient is NaN, the search had to leave the input as it was."
    )


def _by_class(classes: tuple[str, ...], label: NDArray[np.int64], held: NDArray[Any]) -> Bars:
    present = np.unique(label)
    bands = [wilson(round(float(held[label == c].sum())), int((label == c).sum())) for c in present]
    return Bars(
        name="by-class",
        title="Worst-case accuracy of each class (l∞)",
        y_label="accuracy",
        labels=tuple(classes[c] for c in present),
        values=tuple(float(held[label == c].mean()) for c in present),
        low=tuple(low for low, _ in bands),
        high=tuple(high for _, high in bands),
        unit_y=True,
    )


def _pictures(subject: Subject, w: Witnesses, shown: int) -> tuple[Gallery, ...]:
    if not subject.inputs.is_picture or not len(w):
        return ()
    linf = [i for i in range(len(w)) if w.norm[i] == "linf"] or list(range(len(w)))
    easiest = sorted(linf, key=lambda i: (w.radius[i], w.index[i]))
    spread = [easiest[i] for i in np.unique(np.linspace(0, len(easiest) - 1, num=min(shown, len(easiest)), dtype=int))]
    exhibits = tuple(
        Exhibit.of(
            int(w.index[i]),
            ", said ".join(subject.in_words(w.label[i], w.said[i]))
            + f" after a change of {subject.inputs.size(w.radius[i])} ({w.norm[i]})",
            w.clean[i],
            w.changed[i],
            low=subject.inputs.low,
            high=subject.inputs.high,
        )
        for i in spread
    )
    return (
        Gallery(name="broken", title="Inputs that broke, from the smallest change to the largest", exhibits=exhibits),
    )


SHELVED = WorstCaseAccuracy
