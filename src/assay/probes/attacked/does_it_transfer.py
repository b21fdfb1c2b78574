"""What an attacker can do who sees answers and no gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Bars,
    Beside,
    Exhibit,
    Finding,
    Gallery,
    Matrix,
    Measure,
    Table,
    Witnesses,
    share,
    wilson,
)
from assay.methods.attack.affinity import Cell, affinity, cross
from assay.methods.attack.aim import Truth, label_of, truth_of
from assay.methods.attack.attacked import Attacked, Model, sparing
from assay.methods.attack.cells import masked, settled
from assay.methods.attack.chance import TALLY, Threat, answers, chance, threats
from assay.methods.attack.pgd import pgd
from assay.methods.attack.swift import searching
from assay.methods.attack.transfer import Kind, answering_substitute, learn_substitute, small_substitute
from assay.probe import Probe, undisturbed
from assay.standard import Standard
from assay.tasks.task import unsaid

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Data, Subject

SHARE = 0.3  # of the budget's inputs, because each of them is attacked on every model
SEEDS = 4  # training inputs whose labels a substitute starts from, for each input that is attacked
SIGNS_BYTES = 2**28  # the most that is held of what it makes of them, a quarter of a byte a value
ALIKE = 0.7  # a substitute that agrees less often says little about the model
ITSELF = "this model"


@dataclass(frozen=True)
class DoesItTransfer(Probe):
    """Do attacks made on another model break it?

    The others are small substitutes that learn from its answers alone. `radius` is the l_inf budget, a share of the
    range. `others` are further models of yours for the same inputs and classes (names of `assay subjects`, model.pt2,
    subject.py:build), opened as the subject is: each is attacked too, and shown the examples of all. Of a
    random model the example counts that it was wrong about more often, by its chance to be right in fresh answers;
    beside it stands an attacker who may ask again. Where an answer is no class, one substitute learns whole answers,
    and attacks are on the margin of the task: whether the answer is good enough.
    """

    radius: float = 8 / 255
    steps: int | None = None
    others: tuple[str, ...] = ()

    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Papernot et al., ASIACCS 2017, arXiv:1602.02697 (substitutes); Liu et al., ICLR 2019, arXiv:1810.01279 "
        "(affinity)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.5),)

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius")
        self.refuse_beyond_the_range("radius")
        self.refuse_below(1, "steps")

    def depends_on(self, run: Run) -> tuple[str, ...]:
        others = map(run.further, self.others)
        return tuple(f"{other.fingerprint()} {other.behaviour()}" for other in others)

    def ask(self, subject: Subject, run: Run) -> Finding:
        further = {name: _fitting(name, run.further(name), subject) for name in self.others}
        with ExitStack() as stack:
            for other in further.values():
                stack.enter_context(undisturbed(other.model, run))
            return self._ask(subject, further, run)

    def _ask(self, subject: Subject, further: Mapping[str, Subject], run: Run) -> Finding:
        wanted = None if run.budget.samples is None else math.ceil(SHARE * run.budget.samples)
        index = run.pick(subject.data["test"], wanted)
        if "train" in subject.data:
            room = max(1, SIGNS_BYTES * 4 // math.prod(subject.inputs.shape))
            split, seeds = "train", run.pick(subject.data["train"], min(SEEDS * len(index), room))
        else:
            split, seeds, index = "test", index[::2], index[1::2]
            if not len(index):
                raise AssayError("One test input cannot serve both the substitutes and the test; give a train split.")
        others = _substitutes(subject, run, split, seeds)
        own = {ITSELF: subject, **further}
        models: dict[str, Model] = {**{name: each.model for name, each in own.items()}, **others}
        sources = [name for name in models if name not in own or own[name].differentiable]
        rows = run.map(
            lambda shard: self._cross(own, run, models, sources, shard), subject, "test", index, "transfer",
            few={"changed": "broke"},
        )  # fmt: skip
        label, classes = np.asarray(rows["label"], dtype=np.int64), "classes" in subject.task.gives
        clean, held = rows["clean"].T, rows["held"].transpose(1, 2, 0)  # m n, s m n
        cells = affinity(list(models), clean, held, sources=sources, seed=run.seed)
        on_it = dict(zip(sources, held[:, 0], strict=True))  # by source, n: right on its examples
        count = answers(subject.draws)
        kept: NDArray[Any] = np.all([on_it[name] for name in others], axis=0)
        alone = {ITSELF: on_it[ITSELF]} if ITSELF in on_it else {}  # n: right on examples of its own
        if count > 1:
            kept = threats(rows["wrong"], count)[0].right
            alone = {name: threats(rows["own wrong"], count)[0].right for name in alone}
        strongest = min(others, key=lambda name: on_it[name].mean())
        agreed = dict(zip(others, rows["agreed"].T, strict=True))
        likest = max(others, key=lambda name: agreed[name].mean())
        beside = [
            Beside("always says the commonest class", float(np.bincount(label).max() / len(label)))
            if classes
            else Beside(*subject.trivially_right("test", index)),
            Beside("clean accuracy", float(clean[0].mean())),
            Beside("random noise of the same size", float(rows["noise"].mean())),
        ]
        measures = [
            Measure.chance(
                "transfer accuracy",
                kept,
                better="higher",
                seed=run.seed,
                column="held transfer",
                about=f"right on the examples of every substitute, made by PGD with {self._steps(run)} steps within "
                f"l_inf {subject.inputs.size(self.radius, 4)}",
            )
        ]
        if alone:
            beside.append(Beside("the same attack on its own gradients", float(alone[ITSELF].mean())))
            measures.append(
                Measure.chance(
                    "white-box accuracy",
                    alone[ITSELF],
                    better="higher",
                    seed=run.seed,
                    column="held own",
                    about="right on examples that the same attack makes on its own gradients",
                )
            )
        measures[0] = replace(measures[0], beside=tuple(beside))
        given = [name for name in further if name in on_it]
        measures += [
            Measure.proportion(
                f"error, made on {name}",
                ~on_it[name],
                better="lower",
                column=f"error {name}",
                about="wrong on examples that the same attack makes on that model",
                beside=(
                    Beside("clean error", float(1 - clean[0].mean())),
                    *([Beside("its own examples", float(1 - on_it[ITSELF].mean()))] if ITSELF in on_it else []),
                ),
            )
            for name in given
        ]
        cell = cells[strongest, ITSELF]
        measures += [
            Measure(
                name="affinity",
                value=cell.rho.value if cell.rho else None,
                low=cell.rho.low if cell.rho else None,
                high=cell.rho.high if cell.rho else None,
                n=len(index),
                better="lower",
                about=f"what the examples of {strongest} cost it, as a share of what its own cost it; above 1 its "
                f"gradients mislead an attacker",
                beside=(Beside("its own examples", 1.0),),
            ),
            Measure.proportion(
                "substitute agreement",
                agreed[likest],
                better="neither",
                about=f"clean inputs on which {likest} gives the model's answer; it was taught with {2 * len(seeds)} "
                f"labels, half of them of inputs from {split!r} and half of inputs of its own making"
                if classes
                else f"clean inputs on which the answer of {likest} will do exactly where the model's does; it was "
                f"taught with {2 * len(seeds)} answers, half of them to inputs from {split!r} and half to inputs of "
                "its own making",
            ),
        ]
        held_by = share(int(kept.sum()), len(kept)) if count == 1 else f"{100 * kept.mean():.0f} %"
        again = _again(rows, count) if count > 1 else {}
        measures += [
            Measure.chance(
                f"{name}{threat.name}",
                threat.right,
                better="higher",
                seed=run.seed,
                column=f"{column} again",
                about=f"the same examples, right {threat.times}",
                beside=(Beside(f"clean inputs{threat.name}", float(again["clean"][1].right.mean())),),
            )
            for column, (name, threat) in again.items()
            if column != "clean"
        ]
        witnesses = self._witnesses(subject, run, rows, index, label, list(others))
        return Finding(
            says=f"Examples made on models that know only its answers leave {held_by} right, "
            f"of {100 * clean[0].mean():.0f} % on clean inputs"
            + (f" and {100 * alone[ITSELF].mean():.0f} % on examples of its own." if alone else "."),
            measures=tuple(measures),
            samples=Table(
                "test",
                {
                    "index": index,
                    **({"label": label} if classes else {}),
                    "clean": clean[0],
                    "held transfer": kept,
                    **({"held own": alone[ITSELF]} if alone else {}),
                    **{f"{column} again": threat.right for column, (_, threat) in again.items()},
                    **{f"held {name}": on_it[name] for name in others},
                    **{f"error {name}": ~on_it[name] for name in given},
                },
            ),
            views=(
                _matrix(list(models), sources, cells),
                *_errors(list(own), sources, clean, held),
                _bars({"clean": clean[0], "random noise": rows["noise"], **on_it}),
                *_pictures(subject, witnesses, run.budget.shown),
            ),
            alarms=(
                *_alarms(cells, on_it, list(others), given, strongest, float(agreed[likest].mean())),
                *_sick(rows["sick"], [m.name for m in measures]),
            ),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _steps(self, run: Run) -> int:
        return self.steps or run.budget.steps

    def _cross(
        self, own: Mapping[str, Subject], run: Run, models: Mapping[str, Model], sources: list[str], shard: Shard
    ) -> Mapping[str, Tensor]:
        subject, draws = own[ITSELF], {name: each.draws for name, each in own.items()}
        x, y = shard.x, truth_of(subject.task, shard.y)
        bounds = (subject.inputs.low, subject.inputs.high)
        seed = int(torch.randint(2**62, (), generator=shard.rng, device=shard.rng.device))

        passes = {id(each.model): each.draws for each in own.values()}
        sick = torch.zeros(len(x), dtype=torch.bool, device=x.device)

        reach = subject.reach(x)

        def attack(model: Model, x: Tensor, y: Truth) -> Attacked:
            draws = passes.get(id(model), 1)

            def search(rows: Tensor) -> Attacked:
                through, precision = searching(model, x[rows], draws=draws)
                return pgd(
                    through,
                    x[rows],
                    y[rows],
                    radius=self.radius,
                    steps=self._steps(run),
                    mask=masked(reach, rows),
                    eot=draws,
                    bounds=bounds,
                    leave=False,  # an example that stops at its source's boundary does not travel
                    precision=precision,
                    rng=torch.Generator(x.device).manual_seed(seed),  # every source starts from the same points
                )

            # an input whose NaN stops the search stays as it is
            made = Attacked(
                x.clone(), torch.zeros_like(sick), x.new_zeros(len(x), dtype=torch.float64), x.new_zeros(0, len(x))
            )
            for rows, got in sparing(search, torch.arange(len(x), device=x.device), sick):
                made.x[rows], made.distance[rows] = settled(reach, rows, got, x[rows], "linf")
                made.success[rows] = got.success
            return made

        found = cross(models, x, y, attack=attack, sources=sources, draws=draws, lost=True)
        for at in (x, *found.x):
            sick |= unsaid(subject.predict(at))
        others = [name for name in models if name not in own]
        fell = ~found.held[-len(others) :, 0]  # o n: broken by each substitute, which come last
        how, made = fell.int().argmax(0), found.x[-len(others) :]  # n: the first that broke it; o n *d
        right, broke = found.clean[0], fell.any(0)
        told = {}
        if subject.draws > 1:  # one lucky answer says nothing: fresh ones choose the example, and others count it
            tally = [chance(subject.single, at, y, draws=subject.draws, count=TALLY).wrong for at in made]
            how = torch.stack(tally).argmax(0)
            told["clean wrong"] = chance(subject.single, x, y, draws=subject.draws).wrong
            right, broke = 2 * told["clean wrong"] <= answers(subject.draws), torch.ones_like(broke)
            if ITSELF in sources:
                at = found.x[sources.index(ITSELF)]
                told["own wrong"] = chance(subject.single, at, y, draws=subject.draws).wrong
        changed = made[how, torch.arange(len(x), device=x.device)]
        fresh = chance(subject.single, changed, y, draws=subject.draws)
        if subject.draws > 1:
            told["wrong"] = fresh.wrong
        noisy = (x + self.radius * torch.randn(x.shape, generator=shard.rng, device=x.device).sign()).clamp(*bounds)
        if isinstance(y, Tensor):
            answer = subject.predict(x).argmax(1)
            with torch.no_grad():
                agreed = torch.stack([models[name](x).argmax(1) == answer for name in others], 1)  # n o
        else:
            agreed = (found.clean[-len(others) :] == found.clean[0]).T
        return {
            "label": label_of(y),
            "clean": found.clean.T,
            "held": found.held.permute(2, 0, 1),
            "noise": subject.task.right(subject.predict(noisy if reach is None else reach.settled(noisy, x)), shard.y),
            "agreed": agreed,
            "changed": changed,
            "said": fresh.said,
            # of a random model, in most fresh answers
            "broke": right & broke & (2 * fresh.wrong > answers(subject.draws)),
            "how": how,
            "sick": sick,
            **told,
        }

    def _witnesses(
        self,
        subject: Subject,
        run: Run,
        rows: Mapping[str, NDArray[Any]],
        index: NDArray[np.int64],
        label: NDArray[np.int64],
        others: list[str],
    ) -> Witnesses:
        broke, classes = rows["changed at"], "classes" in subject.task.gives
        clean, target = (part.numpy() for part in subject.data["test"].take(index[broke]))
        changed = rows["changed"].astype(np.float32)
        return Witnesses(
            split="test",
            index=index[broke],
            clean=clean,
            changed=changed,
            label=label[broke] if classes else target,
            said=rows["said"][broke].astype(np.int64) if classes else subject.said(changed, run.device),
            norm=("linf",) * len(broke),
            radius=np.full(len(broke), self.radius),
            how=tuple(f"made on {others[int(h)]}" for h in rows["how"][broke]),
            left_out=int(rows["broke"].sum()) - len(broke),
        )


def _fitting(name: str, other: Subject, subject: Subject) -> Subject:
    """Another model in the shares that the subject is asked in, if it is for the same inputs and classes."""
    natural = subject.inputs.natural or subject.inputs
    if other.task != subject.task and not (other.task.classes and subject.task.classes):
        theirs, ours = (s.task.name() for s in (other, subject))
        unlike = f"{ours} with other settings" if theirs == ours else theirs
        raise AssayError(f"The model {name!r} is for {unlike}, and {subject.name!r} for {ours}; give one for the same.")
    if other.task != subject.task:
        theirs, ours = (f"{len(s.task.classes)} ({', '.join(s.task.classes[:4])}, ...)" for s in (other, subject))
        what = type(other.task).__name__ if type(other.task) is not type(subject.task) else f"classes {theirs}"
        raise AssayError(f"The model {name!r} is for {what}, and {subject.name!r} for {ours}; give one for the same.")
    if other.inputs != natural:
        theirs, ours = (f"{s.shape} between {s.low:g} and {s.high:g}" for s in (other.inputs, natural))
        each = " (features have ranges of their own)" if theirs == ours else ""
        raise AssayError(
            f"The model {name!r} takes inputs {theirs}, and {subject.name!r} {ours}{each}; give one for the same."
        )
    return other.in_shares()


def _again(rows: Mapping[str, NDArray[Any]], count: int) -> dict[str, tuple[str, Threat]]:
    """Of a random model, by column: the measure, and how it fares against an attacker who may ask again."""
    found = {"held transfer": ("transfer accuracy", "wrong"), "clean": ("clean accuracy", "clean wrong")}
    if "own wrong" in rows:
        found["held own"] = ("white-box accuracy", "own wrong")
    return {column: (name, threats(rows[wrong], count)[1]) for column, (name, wrong) in found.items()}


def _sick(sick: NDArray[np.generic], names: list[str]) -> tuple[Alarm, ...]:
    if not sick.any():
        return ()
    says = (
        f"For {share(int(sick.sum()), len(sick))} of the inputs the output or the gradient of a model is NaN, at the "
        "input or near it: NaN is no right answer; where only a gradient is NaN, that model's example is the input."
    )
    return (Alarm(says, doubts=tuple(names)),)


def _substitutes(subject: Subject, run: Run, split: str, seeds: NDArray[np.int64]) -> dict[str, nn.Module]:
    x = run.rows(subject, split, seeds, "inputs for the substitutes")
    bounds, kinds = (subject.inputs.low, subject.inputs.high), list[Kind](["mlp"])
    if "classes" not in subject.task.gives:
        return _answering(subject, run, x)
    if subject.inputs.is_image:
        kinds.insert(0, "cnn")
    learned, rng = {}, run.rng()
    with run.progress("teaching substitutes", len(kinds)) as tick:
        for kind in kinds:
            student = small_substitute(kind, subject.inputs.shape, len(subject.task.classes), bounds=bounds, rng=rng)
            learned[f"substitute {kind.upper()}"] = learn_substitute(
                subject.predict, x, substitute=student, rounds=1, epochs=6, bounds=bounds, device=run.device, rng=rng
            ).model
            tick(1)
    return learned


def _answering(subject: Subject, run: Run, x: Data) -> dict[str, nn.Module]:
    """One substitute that learns answers that are no classes."""
    bounds, rng = (subject.inputs.low, subject.inputs.high), run.rng()
    one = subject.predict(x.take(np.arange(1))[0].to(run.device))
    student = answering_substitute(subject.inputs.shape, tuple(one.shape[1:]), bounds=bounds, rng=rng)
    with run.progress("teaching a substitute", 1) as tick:
        learned = learn_substitute(
            subject.predict, x, substitute=student, rounds=1, bounds=bounds, device=run.device, answers=True, rng=rng
        )
        tick(1)
    return {"a substitute": learned.model}


def _alarms(
    cells: Mapping[tuple[str, str], Cell],
    on_it: Mapping[str, NDArray[np.bool_]],
    others: list[str],
    given: list[str],
    strongest: str,
    agreement: float,
) -> tuple[Alarm, ...]:
    alarms = []
    for name in (*others, *given):
        gap = cells[name, ITSELF].gap
        if gap is not None and gap.low > 0:
            rho = cells[name, ITSELF].rho
            alarms.append(
                Alarm(
                    f"Examples made on {name}{', which knows only its answers,' if name in others else ''} leave "
                    f"{100 * on_it[name].mean():.0f} % right where its own gradients leave "
                    f"{100 * on_it[ITSELF].mean():.0f} %"
                    + (f" (affinity {rho.value:.2f}, above 1)" if rho else "")
                    + ": its gradients mislead an attacker, so what it survives with them proves little.",
                    doubts=("white-box accuracy",),
                )
            )
    if cells[strongest, ITSELF].rho is None:
        alarms.append(Alarm(f"There is no affinity: {cells[strongest, ITSELF].why}."))
    if agreement < ALIKE:
        alarms.append(
            Alarm(
                f"The best substitute agrees with it on only {100 * agreement:.0f} % of the inputs; one that knows it "
                "better may break it more often.",
                doubts=("transfer accuracy", "affinity"),
            )
        )
    if len(on_it[strongest]) < 30:
        alarms.append(Alarm(f"Only {len(on_it[strongest])} inputs were asked about; under 30, intervals are wide."))
    return tuple(alarms)


def _matrix(names: list[str], sources: list[str], cells: Mapping[tuple[str, str], Cell]) -> Matrix:
    def value(a: str, b: str) -> float | None:
        rho = cells[a, b].rho
        return rho.value if rho else None

    return Matrix(
        name="affinity",
        title="How well examples made on one model hurt another",
        row_label="made on",
        column_label="shown to",
        rows=tuple(sources),
        columns=tuple(names),
        values=tuple(tuple(value(a, b) for b in names) for a in sources),
        says="1 is as much as a model's own examples hurt it, 0 not at all; above 1 its own gradients are misleading. "
        "A cell is empty where a model's own examples cost it nothing that can be told from 0.",
    )


def _errors(
    own: list[str], sources: list[str], clean: NDArray[np.bool_], held: NDArray[np.bool_]
) -> tuple[Matrix, ...]:  # m n, s m n
    """The error of each model of the user's on examples made on each of them, which come first among all models."""
    rows = [(name, held[s]) for s, name in enumerate(sources) if name in own]
    if len(own) < 2:
        return ()
    return (
        Matrix(
            name="transfer",
            title="Error of each model on examples made on each",
            row_label="made on",
            column_label="shown to",
            rows=("no change", *(name for name, _ in rows)),
            columns=tuple(own),
            values=tuple(
                tuple(float(1 - of[m].mean()) for m in range(len(own))) for of in (clean, *(h for _, h in rows))
            ),
            says="Shares of the inputs that are wrong. Where a row says the same twice, the one model may stand in for "
            "the other in an attack; a column that is highest off its own row has gradients that mislead.",
        ),
    )


def _bars(right: Mapping[str, NDArray[np.generic]]) -> Bars:
    bands = [wilson(int(hits.sum()), len(hits)) for hits in right.values()]
    return Bars(
        name="accuracy",
        title="Its accuracy on examples made on each model",
        y_label="accuracy",
        labels=tuple(name if name in ("clean", "random noise") else f"made on {name}" for name in right),
        values=tuple(float(hits.mean()) for hits in right.values()),
        low=tuple(b[0] for b in bands),
        high=tuple(b[1] for b in bands),
        unit_y=True,
        says="Examples of another model that do no more than random noise of the same size do not transfer.",
    )


def _pictures(subject: Subject, w: Witnesses, shown: int) -> tuple[Gallery, ...]:
    if not subject.inputs.is_image or not len(w):
        return ()
    exhibits = tuple(
        Exhibit.of(
            int(w.index[i]),
            ", said ".join(subject.in_words(w.label[i], w.said[i])) + f", {w.how[i]}",
            w.clean[i],
            w.changed[i],
            low=subject.inputs.low,
            high=subject.inputs.high,
        )
        for i in np.unique(np.linspace(0, len(w) - 1, num=min(shown, len(w)), dtype=int))
    )
    return (Gallery(name="broken", title="Inputs that broke by way of another model", exhibits=exhibits),)


SHELVED = DoesItTransfer
