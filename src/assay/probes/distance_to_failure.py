"""How much has to change before each input breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from assay.finding import (
    Alarm,
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
)
from assay.methods.attack.ball import Norm
from assay.methods.attack.hop_skip_jump import hop_skip_jump
from assay.methods.attack.magnitude_margin import magnitude_margin
from assay.methods.attack.minimal_norm import DUAL, minimal_norm
from assay.probe import PAIRS, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

NORMS: tuple[Norm, ...] = ("linf", "l2", "l1", "l0")
BLIND: tuple[Norm, ...] = ("linf", "l2")
"""The norms that an attacker without gradients can search in here."""
EACH = 3  # inputs for each step of the budget: the search is run once per norm
QUESTIONS = 50  # for each step of the budget, where there are no gradients
LETTERS = {"linf": "l∞", "l2": "l2", "l1": "l1", "l0": "l0"}


@dataclass(frozen=True)
class DistanceToFailure(Probe):
    """How small a change breaks it, input by input?

    The size is the largest change of any value (l_inf), the Euclidean length (l2), the sum (l1), and the number of
    values that change (l0), in the input's own units. What the gradient at the input promises stands beside it.
    """

    steps: int | None = None
    inputs: int | None = None

    tasks: ClassVar[tuple[str, ...]] = ("Classification", *PAIRS)
    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Pintor et al., NeurIPS 2021, arXiv:2102.12827 (the smallest change); Wang & Loog, CVPR 2022, arXiv:2203.12693 "
        "(to first order); Chen, Jordan & Wainwright, S&P 2020, arXiv:1904.02144 (without gradients)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.03),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "steps", "inputs")

    def ask(self, subject: Subject, run: Run) -> Finding:
        steps = self.steps or run.budget.steps
        index = run.pick(subject.data["test"], self.inputs or EACH * run.budget.steps)
        norms = NORMS if subject.differentiable else BLIND
        found = {
            norm: run.map(
                partial(self._search, subject, norm, steps), subject, "test", index, f"smallest change, {norm}"
            )
            for norm in norms
        }
        label = np.asarray(found["linf"]["label"], dtype=np.int64)
        size = {norm: np.asarray(rows["size"], dtype=np.float64) for norm, rows in found.items()}
        first = {n: np.asarray(found[n]["first"], dtype=np.float64) for n in norms if "first" in found[n]}
        measures = [self._median(norm, size[norm], first.get(norm), run.seed) for norm in norms]
        measures += [_rank(norm, size[norm], first[norm], run.seed) for norm in norms if norm in first]
        right = size["linf"] > 0
        witnesses = _witnesses(found, size, index, label)
        typical = measures[0].value
        return Finding(
            says=(
                "For half of the inputs no change was found that breaks them."
                if typical is None
                else f"Half of the inputs break when each value may change by {typical:.3g}; "
                f"{share(int((~right).sum()), len(right))} are wrong as they are."
            ),
            measures=tuple(measures),
            samples=Table(
                "test",
                {
                    "index": index,
                    "label": label,
                    **{f"smallest {n}": np.where(np.isfinite(s), s, np.nan) for n, s in size.items()},
                    **{f"first order {n}": np.where(np.isfinite(f), f, np.nan) for n, f in first.items()},
                },
            ),
            views=(
                *(_curve(norm, size[norm], first.get(norm)) for norm in norms),
                *_pictures(subject, witnesses, index, size["linf"], run.budget.shown),
            ),
            alarms=_alarms(subject, size, measures),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _search(self, subject: Subject, norm: Norm, steps: int, shard: Shard) -> Mapping[str, Tensor]:
        """The smallest change found for each input: 0 where it is wrong already, infinity where there is none."""
        bounds = (subject.inputs.low, subject.inputs.high)
        said = subject.predict(shard.x).argmax(1)
        size = torch.where(said == shard.y, torch.inf, 0.0).double()
        changed = shard.x.clone()
        rows = (size > 0).nonzero()[:, 0]
        if len(rows):
            x, y = shard.x[rows], shard.y[rows]
            if subject.differentiable:
                got = minimal_norm(subject.model, x, y, norm=norm, steps=steps, eot=subject.draws, bounds=bounds)
            else:
                assert norm in BLIND
                got = hop_skip_jump(
                    subject.predict,
                    x,
                    y,
                    norm="linf" if norm == "linf" else "l2",
                    queries=QUESTIONS * steps,
                    bounds=bounds,
                    rng=shard.rng,
                )
            answer = subject.predict(got.x).argmax(1)  # what a fresh look confirms, and nothing else
            fell = answer != y
            there = rows[fell]
            size[there], changed[there], said[there] = got.distance[fell], got.x[fell], answer[fell]
        told = {"label": shard.y, "size": size, "x": shard.x, "changed": changed, "said": said}
        if subject.differentiable and norm in DUAL:
            told["first"] = magnitude_margin(subject.model, shard.x, shard.y, norm=norm).radius
        return told

    def _median(
        self, norm: Norm, size: NDArray[np.float64], first: NDArray[np.float64] | None, seed: int
    ) -> Measure:  # n, n
        """The median over all inputs; those that were wrong before count as 0."""
        beside = [Beside("to first order", float(np.median(first)))] if first is not None else []
        return Measure.median(
            f"median smallest change, {norm}",
            size,
            better="higher",
            seed=seed,
            about=f"half of the inputs break at this {LETTERS[norm]} size or below, by the best search found",
            beside=tuple(b for b in beside if np.isfinite(b.value)),
        )


def _rank(norm: Norm, size: NDArray[np.float64], first: NDArray[np.float64], seed: int) -> Measure:
    """How well the first-order estimate orders the inputs that are right and broke."""
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


def _curve(norm: Norm, size: NDArray[np.float64], first: NDArray[np.float64] | None) -> Curve:
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
        x_label="values changed" if norm == "l0" else f"{LETTERS[norm]} size",
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
        if never:
            says = (
                f"For {share(never, len(sizes))} of the inputs no {norm} change of any size was found that breaks "
                "them; the search may be blind to something, ask is-the-number-real."
            )
            alarms.append(Alarm(says, doubts=(measure.name,)))
    if not subject.differentiable:
        says = "The model gives answers and no gradients: the search asked for labels only, and finds larger changes."
        alarms.append(Alarm(says, doubts=tuple(m.name for m in measures)))
    return tuple(alarms)


def _witnesses(
    found: Mapping[Norm, Mapping[str, NDArray[Any]]],
    size: Mapping[Norm, NDArray[np.float64]],
    index: NDArray[np.int64],
    label: NDArray[np.int64],
) -> Witnesses:
    rows = {norm: np.flatnonzero(np.isfinite(s) & (s > 0)) for norm, s in size.items()}

    def join(column: str) -> NDArray[Any]:
        return np.concatenate([found[norm][column][at] for norm, at in rows.items()])

    where = np.concatenate(list(rows.values()))
    return Witnesses(
        split="test",
        index=index[where],
        clean=join("x").astype(np.float32),
        changed=join("changed").astype(np.float32),
        label=label[where],
        said=join("said").astype(np.int64),
        norm=tuple(norm for norm, at in rows.items() for _ in at),
        radius=join("size"),
        how=("smallest change found",) * len(where),
    )


def _pictures(
    subject: Subject, w: Witnesses, index: NDArray[np.int64], size: NDArray[np.float64], shown: int
) -> tuple[Gallery, ...]:
    """Some inputs from the easiest to the hardest, each broken in every norm."""
    broke = np.flatnonzero(np.isfinite(size) & (size > 0))
    if not subject.inputs.is_picture or not len(broke):
        return ()
    order = broke[np.argsort(size[broke], kind="stable")]
    few = order[np.unique(np.linspace(0, len(order) - 1, num=min(max(1, shown // 2), len(order)), dtype=int))]
    names = subject.task.classes
    exhibits = []
    for row in few:
        for i in np.flatnonzero(w.index == index[row]):
            unit = "values" if w.norm[i] == "l0" else LETTERS[w.norm[i]]
            exhibits.append(
                Exhibit.of(
                    int(w.index[i]),
                    f"{names[w.label[i]]}, said {names[w.said[i]]} after {w.radius[i]:.3g} ({unit})",
                    w.clean[i],
                    w.changed[i],
                    low=subject.inputs.low,
                    high=subject.inputs.high,
                )
            )
    title = "The smallest change in each norm, from inputs that break easily to those that hold longest"
    return (Gallery(name="smallest", title=title, exhibits=tuple(exhibits)),)


SHELVED = DistanceToFailure
