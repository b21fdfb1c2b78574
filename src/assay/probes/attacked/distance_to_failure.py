"""How much has to change before each input breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Beside,
    Curve,
    Exhibit,
    Finding,
    Gallery,
    Histogram,
    Line,
    Measure,
    Table,
    Witnesses,
    share,
)
from assay.methods.attack.aim import Truth, label_of, truth_of
from assay.methods.attack.attacked import Attacked, sparing
from assay.methods.attack.ball import Norm, distance
from assay.methods.attack.carlini_wagner import carlini_wagner
from assay.methods.attack.cells import masked, settled, smallest, stepping
from assay.methods.attack.chance import ASKED, MOST, answers, chance, mostly, nearer
from assay.methods.attack.hop_skip_jump import hop_skip_jump
from assay.methods.attack.magnitude_margin import magnitude_margin
from assay.methods.attack.minimal_norm import DUAL, minimal_norm
from assay.methods.attack.swift import searching
from assay.probe import Probe, in_each_norm
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

NORMS: tuple[Norm, ...] = ("linf", "l2", "l1", "l0")
BLIND: tuple[Norm, ...] = ("linf", "l2")
"""The norms that an attacker without gradients can search in here."""
EACH = 3  # inputs for each step of the budget: the search is run once per norm
ROUNDS = 5  # of Carlini and Wagner's search for the smallest c that breaks
CELLS = 10  # questions to the cells of a table, at each radius, for each step of the budget
QUESTIONS = 50  # for each step of the budget, where there are no gradients
LETTERS = {"linf": "l∞", "l2": "l2", "l1": "l1", "l0": "l0"}


@dataclass(frozen=True)
class DistanceToFailure(Probe):
    """How small a change breaks it, input by input?

    The size is the largest change of any value (l_inf), the Euclidean length (l2), the sum (l1), and the number of
    values that change (l0), in shares of the range. What the gradient at the input promises stands beside it.
    Of a random model it is the change after which most fresh answers are wrong; beside it stands the smaller one that
    does for an attacker who may ask again, on the way to the first. `attack` carlini-wagner searches so in
    l2, the other norms as ever; `c` are trade-offs for curves of its accuracy and its distortion, as c=0.01,0.1,1,10.

    Where the subject says what an input is, only what can change does: fixed columns never, whole numbers in whole
    steps. A category has no distance: it stays as it is, but in l0, where it counts as one value whatever its code.
    """

    steps: int | None = None
    inputs: int | None = None
    attack: Literal["minimal-norm", "carlini-wagner"] = "minimal-norm"
    c: tuple[float, ...] = ()

    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Pintor et al., NeurIPS 2021, arXiv:2102.12827 (the smallest change); Wang & Loog, CVPR 2022, arXiv:2203.12693 "
        "(to first order); Chen, Jordan & Wainwright, S&P 2020, arXiv:1904.02144 (without gradients)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.03),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "steps", "inputs")
        if any(not 0 <= c < float("inf") for c in self.c):
            raise AssayError(f"The setting c={self.c} of {self.name()!r} holds trade-offs, numbers of at least 0.")

    def ask(self, subject: Subject, run: Run) -> Finding:
        steps = self.steps or run.budget.steps
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(EACH * run.budget.steps))
        norms = NORMS if subject.differentiable else BLIND
        found = in_each_norm(norms, partial(self._search, subject, steps), subject, run, index, "smallest change")
        label = np.asarray(found["linf"]["label"], dtype=np.int64)
        size = {norm: np.asarray(rows["size"], dtype=np.float64) for norm, rows in found.items()}
        first = {n: np.asarray(found[n]["first"], dtype=np.float64) for n in norms if "first" in found[n]}
        measures = [self._median(subject, norm, size[norm], first.get(norm), run.seed) for norm in norms]
        ratio = np.asarray(found["linf"]["ratio"], dtype=np.float64) if "ratio" in found["linf"] else None
        rated = [_ratio(ratio, run.seed)] if ratio is not None else []
        rated += [_rank(norm, size[norm], first[norm], run.seed) for norm in norms if norm in first]
        measures += [m for m in rated if m.value is not None]
        again = {n: np.asarray(found[n]["again"], dtype=np.float64) for n in norms if "again" in found[n]}
        measures += [_asked_again(subject, norm, sizes, run.seed) for norm, sizes in again.items()]
        right = size["linf"] > 0
        witnesses = _witnesses(subject, run, found, index, label)
        typical = measures[0].value
        return Finding(
            says=(
                "For half of the inputs no change was found that breaks them."
                if typical is None
                else f"Half of the inputs break when each value may change by {subject.inputs.size(typical)}"
                f"{_only(subject, 'linf')}; {share(int((~right).sum()), len(right))} are wrong as they are."
            ),
            measures=tuple(measures),
            samples=Table(
                "test",
                {
                    "index": index,
                    **({"label": label} if "classes" in subject.task.gives else {}),
                    **{f"smallest {n}": np.where(np.isfinite(s), s, np.nan) for n, s in size.items()},
                    **{f"smallest {n}, asked again": np.where(np.isfinite(s), s, np.nan) for n, s in again.items()},
                    **({"ratio": np.where(np.isfinite(ratio), ratio, np.nan)} if ratio is not None else {}),
                    **{f"first order {n}": np.where(np.isfinite(f), f, np.nan) for n, f in first.items()},
                },
            ),
            views=(
                *(_curve(subject, norm, size[norm], first.get(norm)) for norm in norms),
                *([_histogram(ratio)] if ratio is not None and np.isfinite(ratio).any() else []),
                *self._against_c(subject, run, steps, index),
                *_pictures(subject, witnesses, index, size["linf"], run.budget.shown),
            ),
            alarms=(*_alarms(subject, size, measures), *_left_out(rated), *_sick(found, measures)),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _search(self, subject: Subject, steps: int, norm: Norm, shard: Shard) -> Mapping[str, Tensor]:
        """The smallest change found for each input: 0 where it is wrong already, infinity where there is none."""
        bounds = (subject.inputs.low, subject.inputs.high)
        draws, count = subject.draws, answers(subject.draws)
        truth, reach = truth_of(subject.task, shard.y), subject.reach(shard.x)
        clean = chance(subject.model, shard.x, truth, draws=draws)
        said, sick = clean.said, clean.sick
        size = torch.where(2 * clean.wrong > count, 0.0, torch.inf).double()
        changed, again = shard.x.clone(), size.clone()
        # halfway to a point lie no whole steps, and no codes
        anew = draws > 1 and (reach is None or not bool((reach.free & (reach.step > 0)).any()))
        if anew:
            fresh = chance(subject.model, shard.x, truth, draws=draws, count=MOST)
            again[mostly(fresh.wrong, MOST, ASKED)] = 0.0

        def search(rows: Tensor) -> Attacked:
            x, y, mask = shard.x[rows], truth[rows], masked(reach, rows)
            if not subject.differentiable:
                assert norm in BLIND
                return hop_skip_jump(
                    subject.predict,
                    x,
                    y,
                    norm="linf" if norm == "linf" else "l2",
                    queries=QUESTIONS * steps,
                    mask=mask,
                    random=draws > 1,
                    bounds=bounds,
                    rng=shard.rng,
                )
            model, _ = through = searching(subject.model, x, draws=draws)
            if norm == "l2" and self.attack == "carlini-wagner":
                return carlini_wagner(model, x, y, search=ROUNDS, steps=steps, mask=mask, eot=draws, bounds=bounds)
            return minimal_norm(
                model, x, y, norm=norm, steps=steps, mask=mask, eot=draws, bounds=bounds, precision=through.boundary
            )

        def in_cells(rows: Tensor) -> Attacked:
            assert reach is not None
            return smallest(
                subject.model, shard.x[rows], truth[rows], reach=reach.take(rows), norm=norm, steps=steps,
                queries=CELLS * steps, gradients=subject.differentiable, eot=draws, bounds=bounds, rng=shard.rng,
            )  # fmt: skip

        searches = [search]
        if reach is not None and bool(stepping(reach, norm, 0).any()):
            searches.append(in_cells)
        for each in searches:
            for rows, got in sparing(each, (size > 0).nonzero()[:, 0], sick):
                # what `in_cells` finds has whole steps, and codes that `settled` would cut off
                at, far = settled(reach if each is search else None, rows, got, shard.x[rows], norm)
                fresh = chance(subject.model, at, truth[rows], draws=draws)
                # what fresh answers confirm, and nothing else
                fell = (2 * fresh.wrong > count) & (far < size[rows])
                there = rows[fell]
                size[there], changed[there], said[there] = far[fell], at[fell], fresh.said[fell]
                if anew:
                    again[rows] = again[rows].minimum(self._again(subject, norm, shard.x[rows], at, truth[rows]))
        if anew:
            again = again.minimum(size)  # what breaks it at the first try does so at ten
        told = {"label": label_of(truth), "size": size, "changed": changed, "said": said, "sick": sick}
        told["fell"] = torch.isfinite(size) & (size > 0)
        if anew:
            told["again"] = again
        if subject.differentiable and norm in DUAL:
            first, ratio = torch.zeros_like(size), torch.full_like(size, torch.inf)
            lost = sick.clone()
            for rows, slant in sparing(
                lambda rows: magnitude_margin(
                    subject.model, shard.x[rows], truth[rows], norm=norm, mask=masked(reach, rows)
                ),
                torch.arange(len(size), device=size.device),
                lost,
            ):
                first[rows], ratio[rows] = slant.radius, slant.ratio
            told["first"], told["ratio"] = first, ratio
        return told

    def _again(self, subject: Subject, norm: Norm, x: Tensor, far: Tensor, y: Truth) -> Tensor:  # n *d, n *d, n -> n
        """How far it is to where one who may ask again wins; infinity where not even the point that was found will do.

        On the way there as many values change as at its end, so that in l0 only the end counts.
        """
        if norm == "l0":
            hits = chance(subject.model, far, y, draws=subject.draws, count=MOST).wrong
            won = mostly(hits, MOST, ASKED)
        else:
            far, won = nearer(subject.model, x, far, y, draws=subject.draws, asked=ASKED)
        size = distance(far, x, norm)
        return torch.where(won & (size > 0), size, torch.inf)  # the input itself was judged before

    def _against_c(self, subject: Subject, run: Run, steps: int, index: NDArray[np.int64]) -> tuple[Curve, ...]:
        """Accuracy and distortion of Carlini and Wagner's attack at each fixed c; of all inputs, broken or not."""
        if not self.c or not subject.differentiable:
            return ()
        draws, count, bounds = subject.draws, answers(subject.draws), (subject.inputs.low, subject.inputs.high)

        def attack(c: float, shard: Shard) -> Mapping[str, Tensor]:
            y, reach = truth_of(subject.task, shard.y), subject.reach(shard.x)
            size, wrong = torch.zeros(len(y), dtype=torch.float64), torch.full_like(label_of(y), count)
            sick = torch.zeros_like(wrong, dtype=torch.bool)
            for rows, got in sparing(
                lambda rows: carlini_wagner(
                    searching(subject.model, shard.x[rows], draws=draws).model,
                    shard.x[rows],
                    y[rows],
                    c=c,
                    steps=steps,
                    mask=masked(reach, rows),
                    eot=draws,
                    bounds=bounds,
                ),
                torch.arange(len(y), device=y.device),
                sick,
            ):
                clean = chance(subject.model, shard.x[rows], y[rows], draws=draws)
                at, far = settled(reach, rows, got, shard.x[rows], "l2")
                fresh = chance(subject.model, at, y[rows], draws=draws)
                # right only if right as it is and under attack
                wrong[rows] = torch.where(2 * clean.wrong > count, count, fresh.wrong)
                size[rows.cpu()] = far.cpu()
            return {"wrong": wrong, "size": size}

        rows = [run.map(partial(attack, c), subject, "test", index, f"Carlini and Wagner at c={c:g}") for c in self.c]
        right = [float(1 - r["wrong"].mean() / count) for r in rows]
        rms = [float(np.sqrt((r["size"] ** 2).mean())) for r in rows]
        x = tuple(self.c)
        return (
            Curve(
                name="c",
                title="Accuracy against Carlini and Wagner's c",
                x_label="c",
                y_label="accuracy",
                unit_y=True,
                lines=(Line(label="accuracy", x=x, y=tuple(right)),),
                says="One fixed trade-off for all inputs, without a search: a larger c breaks more and changes more.",
            ),
            Curve(
                name="c-distortion",
                title="Distortion against Carlini and Wagner's c",
                x_label="c",
                y_label=subject.inputs.axis("root mean square l2 change"),
                lines=(Line(label="distortion", x=x, y=tuple(rms)),),
            ),
        )

    def _median(
        self, subject: Subject, norm: Norm, size: NDArray[np.float64], first: NDArray[np.float64] | None, seed: int
    ) -> Measure:  # n, n
        """The median over all inputs; those that were wrong before count as 0."""
        beside = [Beside("to first order", float(np.median(first)))] if first is not None else []
        median = Measure.median(
            f"median smallest change, {norm}",
            size,
            better="higher",
            seed=seed,
            about=f"half of the inputs break at this {LETTERS[norm]} size or below{_only(subject, norm)}, by the best "
            "search found",
            beside=tuple(b for b in beside if np.isfinite(b.value)),
        )
        return median if norm == "l0" else replace(median, about=median.about + subject.inputs.aside(median.value))


def _only(subject: Subject, norm: Norm) -> str:
    """What may change how, where not every value may by any amount."""
    reach = subject.reach()
    if reach is None:
        return ""
    return reach.told(int((reach.free & reach.coded).sum()) if norm == "l0" else 0)


def _asked_again(subject: Subject, norm: Norm, size: NDArray[np.float64], seed: int) -> Measure:  # n
    """The median for the attacker who may ask again, of a random model."""
    median = Measure.median(
        f"median smallest change, {norm}, asked {ASKED} times",
        size,
        better="higher",
        seed=seed,
        about=f"half of the inputs are wrong at this {LETTERS[norm]} size or below in some of {ASKED} fresh answers, "
        "more often than not: whoever may try again needs only one",
    )
    return median if norm == "l0" else replace(median, about=median.about + subject.inputs.aside(median.value))


def _ratio(ratio: NDArray[np.float64], seed: int) -> Measure:
    """The median of R over the inputs that are right, as its definition assumes."""
    known = ratio[np.isfinite(ratio)]
    if not len(known):
        return Measure(name="median magnitude-margin ratio", value=None, n=0, better="lower", about="no input is right")
    return Measure.median(
        "median magnitude-margin ratio",
        known,
        better="lower",
        seed=seed,
        about="R: how fast the margin of the logits moves with an input value, over the margin; inputs that are right",
    )


def _histogram(ratio: NDArray[np.float64]) -> Histogram:
    known = ratio[np.isfinite(ratio)]
    counts, edges = np.histogram(known, bins=20, range=(0.0, float(np.quantile(known, 0.98)) or 1.0))
    return Histogram(
        name="ratio",
        title="Magnitude-margin ratio of the inputs that are right",
        x_label="R",
        edges=tuple(map(float, edges)),
        counts=(("inputs", tuple(map(float, counts))),),
        says="No attack is needed for it, and no scale of the logits changes it. Lower is more robust, to first order.",
    )


def _sick(found: Mapping[Norm, Mapping[str, NDArray[Any]]], measures: list[Measure]) -> tuple[Alarm, ...]:
    sick = np.any([rows["sick"] for rows in found.values()], axis=0)
    if not sick.any():
        return ()
    says = (
        f"For {share(int(sick.sum()), len(sick))} of the inputs the model's output or gradient is NaN, at the input or "
        "near it: NaN is no right answer; where only the gradient is NaN, the search found nothing."
    )
    return (Alarm(says, doubts=tuple(m.name for m in measures)),)


def _left_out(rated: list[Measure]) -> tuple[Alarm, ...]:
    """Why the estimates of first order are not rated, where too few inputs are right, and break, to do so."""
    blank = [m for m in rated if m.value is None]
    if not blank:
        return ()
    counts = "; ".join(f"{m.name} (of {m.n})" for m in blank)
    return (
        Alarm(
            f"Left out: {counts}. They are of inputs that are right; a rank correlation needs three that also break, "
            "not all at the same size."
        ),
    )


def _rank(norm: Norm, size: NDArray[np.float64], first: NDArray[np.float64], seed: int) -> Measure:
    """How well the first-order estimate orders the inputs that are right and broke."""

    from scipy.stats import spearmanr

    both = np.isfinite(size) & (size > 0) & np.isfinite(first)
    a, b = size[both], first[both]
    value = float(spearmanr(a, b).statistic) if len(a) > 2 and np.ptp(a) > 0 and np.ptp(b) > 0 else None
    return Measure(
        name=f"rank correlation with first order, {norm}",
        value=value,
        n=len(a),
        better="neither",
        about="Spearman's, between the smallest change found and the one that the gradient at the input promises",
        beside=(Beside("an estimate that knows nothing", 0.0),),
    )


def _curve(subject: Subject, norm: Norm, size: NDArray[np.float64], first: NDArray[np.float64] | None) -> Curve:
    finite = size[np.isfinite(size)]
    top = float(np.quantile(finite, 0.98)) if len(finite) else 0.0
    radii = np.linspace(0, top or 1.0, 41) if norm != "l0" else np.unique(np.linspace(0, top or 1.0, 41).round())
    lines = [Line.shares("smallest change found", radii, [(size > r).sum() for r in radii], len(size))]
    if first is not None:
        promised = tuple(float((first > r).mean()) for r in radii)
        lines.append(Line(label="to first order", x=tuple(map(float, radii)), y=promised))
    return Curve(
        name=norm,
        title=f"Inputs that still hold, against the size of the change ({LETTERS[norm]})",
        x_label="values changed" if norm == "l0" else subject.inputs.axis(f"{LETTERS[norm]} size"),
        y_label="accuracy",
        unit_y=True,
        lines=tuple(lines),
        says="The truth can only be lower than the first line: a search that fails proves nothing. The estimate to "
        "first order is no bound in either direction."
        if first is not None
        else "The truth can only be lower: a search that fails proves nothing.",
    )


def _alarms(subject: Subject, size: Mapping[Norm, NDArray[np.float64]], measures: list[Measure]) -> tuple[Alarm, ...]:
    alarms = []
    for (norm, sizes), measure in zip(size.items(), measures, strict=False):
        never = int(np.isinf(sizes).sum())
        reach = subject.reach()
        if never and reach is not None and not bool(reach.movable(codes=norm == "l0").any()):
            says = f"For {share(never, len(sizes))} of the inputs there is no {norm} change that could break them"
            alarms.append(Alarm(f"{says}: nothing of them may change by a size."))
        elif never:
            only = "; what cannot change, or by no size, was left as it is" if _only(subject, norm) else ""
            says = (
                f"For {share(never, len(sizes))} of the inputs no {norm} change of any size was found that breaks "
                f"them{only}; the search may be blind to something, ask is-the-number-real."
            )
            alarms.append(Alarm(says, doubts=(measure.name,)))
    if not subject.differentiable:
        says = "The model gives answers and no gradients: the search asked for labels only, and finds larger changes."
        alarms.append(Alarm(says, doubts=tuple(m.name for m in measures)))
    return tuple(alarms)


def _witnesses(
    subject: Subject,
    run: Run,
    found: Mapping[Norm, Mapping[str, NDArray[Any]]],
    index: NDArray[np.int64],
    label: NDArray[np.int64],
) -> Witnesses:
    rows = {norm: at["changed at"] for norm, at in found.items()}

    def join(column: str) -> NDArray[Any]:
        return np.concatenate([found[norm][column][at] for norm, at in rows.items()])

    where = np.concatenate(list(rows.values()))
    clean, target = (part.numpy() for part in subject.data["test"].take(index[where]))
    changed = np.concatenate([each["changed"] for each in found.values()]).astype(np.float32)
    classes = "classes" in subject.task.gives
    return Witnesses(
        split="test",
        index=index[where],
        clean=clean,
        changed=changed,
        label=label[where] if classes else target,
        said=join("said").astype(np.int64) if classes else subject.said(changed, run.device),
        norm=tuple(norm for norm, at in rows.items() for _ in at),
        radius=join("size"),
        how=("smallest change found",) * len(where),
        left_out=sum(int(at["fell"].sum()) for at in found.values()) - len(where),
    )


def _pictures(
    subject: Subject, w: Witnesses, index: NDArray[np.int64], size: NDArray[np.float64], shown: int
) -> tuple[Gallery, ...]:
    """Some inputs from the easiest to the hardest, each broken in every norm."""
    broke = np.flatnonzero(np.isfinite(size) & (size > 0) & np.isin(index, w.index))
    if not subject.inputs.is_picture or not len(broke):
        return ()
    order = broke[np.argsort(size[broke], kind="stable")]
    few = order[np.unique(np.linspace(0, len(order) - 1, num=min(max(1, shown // 2), len(order)), dtype=int))]
    exhibits = []
    for row in few:
        for i in np.flatnonzero(w.index == index[row]):
            count = w.norm[i] == "l0"
            far = (
                f"{w.radius[i]:.3g} (values)" if count else f"{subject.inputs.size(w.radius[i])} ({LETTERS[w.norm[i]]})"
            )
            exhibits.append(
                Exhibit.of(
                    int(w.index[i]),
                    f"{', said '.join(subject.in_words(w.label[i], w.said[i]))} after {far}",
                    w.clean[i],
                    w.changed[i],
                    low=subject.inputs.low,
                    high=subject.inputs.high,
                )
            )
    title = "The smallest change in each norm, from inputs that break easily to those that hold longest"
    return (Gallery(name="smallest", title=title, exhibits=tuple(exhibits)),)


SHELVED = DistanceToFailure
