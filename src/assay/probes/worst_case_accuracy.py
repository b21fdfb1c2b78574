"""How many inputs survive an attacker who sees everything that there is to see?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from assay.methods.attack.ensemble import ATTACKS, worst_case
from assay.methods.attack.masking import read_vitals, vital_signs
from assay.methods.attack.minimal_norm import minimal_norm
from assay.probe import PAIRS, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, ...] = ("linf", "l2")
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Where the curve is drawn, in budgets."""
HOW = (*ATTACKS, "minimal-norm, any size")
MEASURES = ("worst-case accuracy", "worst-case accuracy, l2")
BLIND_QUERIES = 25  # for each step of the budget, where there are no gradients


@dataclass(frozen=True)
class WorstCaseAccuracy(Probe):
    """Does it stay right when someone changes the input on purpose, by no more than the eye would miss?

    `radius` is the l_inf budget of the headline, `l2_radius` that of the l2 curve; both are in the input's own units.
    A search for the smallest change gives the curve; whoever still holds at the budget meets the ensemble of attacks.
    A model that gives answers only meets Square, which asks for no gradient.
    """

    radius: float = 8 / 255
    l2_radius: float = 0.5
    steps: int | None = None
    restarts: int | None = None

    tasks: ClassVar[tuple[str, ...]] = ("Classification", *PAIRS)
    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Croce & Hein, ICML 2020, arXiv:2003.01690 (the ensemble); Pintor et al., NeurIPS 2021, arXiv:2102.12827 (the "
        "smallest change); Madry et al., ICLR 2018, arXiv:1706.06083"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.4),)
    version: ClassVar[int] = 3

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius", "l2_radius")
        self.refuse_below(1, "steps", "restarts")

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"])
        found = {
            norm: run.map(
                partial(self._break, subject, run, norm), subject, "test", index, f"worst-case change, {norm}"
            )
            for norm in NORMS
        }
        label = np.asarray(found["linf"]["label"], dtype=np.int64)
        broke = {norm: np.asarray(rows["broke"], dtype=np.float64) for norm, rows in found.items()}  # n
        clean = broke["linf"] > 0
        held = {norm: broke[norm] > self._budget(norm) for norm in NORMS}
        witnesses = _witnesses(found, broke, index, label)
        commonest = Beside("always says the commonest class", float(np.bincount(label).max() / len(label)))
        beside = (commonest, Beside("clean accuracy", float(clean.mean())))
        steps = self.steps or run.budget.steps
        if subject.differentiable:
            attacks = f"margin PGD, APGD on cross-entropy and targeted on DLR, minimal norm, Square; {steps} steps each"
        else:
            attacks = f"Square with {BLIND_QUERIES * steps} questions"
        curves = [self._curve(norm, broke[norm]) for norm in NORMS] if subject.differentiable else []
        return Finding(
            says=f"An attacker who may change each value by {self.radius:.3g} leaves "
            f"{share(int(held['linf'].sum()), len(index))} right, of {100 * clean.mean():.0f} % on clean inputs.",
            measures=(
                Measure.proportion(
                    MEASURES[0],
                    held["linf"],
                    better="higher",
                    column="held linf",
                    about=f"right under every l_inf change of at most {self.radius:.4g} that was tried: {attacks}",
                    beside=beside,
                ),
                Measure.proportion(
                    MEASURES[1],
                    held["l2"],
                    better="higher",
                    column="held l2",
                    about=f"the same for l2 changes of at most {self.l2_radius:.4g}",
                    beside=beside,
                ),
            ),
            samples=Table(
                "test",
                {
                    "index": index,
                    "label": label,
                    "clean": clean,
                    "held linf": held["linf"],
                    "held l2": held["l2"],
                    **{f"smallest {n}": np.where(np.isfinite(broke[n]), broke[n], np.nan) for n in NORMS},
                },
            ),
            views=(
                *curves,
                _by_class(subject.task.classes, label, held["linf"]),
                *_pictures(subject, witnesses, run.budget.shown),
            ),
            alarms=self._alarms(subject, found, broke, steps),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _budget(self, norm: Norm) -> float:
        return self.radius if norm == "linf" else self.l2_radius

    def _break(self, subject: Subject, run: Run, norm: Norm, shard: Shard) -> Mapping[str, Tensor]:
        """The smallest change that breaks each input, and for those it leaves standing at the budget, the ensemble."""
        steps, radius = self.steps or run.budget.steps, self._budget(norm)
        bounds = (subject.inputs.low, subject.inputs.high)
        said = subject.predict(shard.x).argmax(1)
        broke = torch.where(said == shard.y, torch.inf, 0.0).double()  # a distance must come back equal to itself
        how = torch.where(said == shard.y, -1, 0)
        changed = shard.x.clone()

        def keep(rows: Tensor, x: Tensor, size: Tensor, by: Tensor) -> None:
            """What a fresh look at the subject confirms, and nothing else."""
            answer = subject.predict(x).argmax(1)
            fell = answer != shard.y[rows]
            there = rows[fell]
            changed[there], said[there], broke[there], how[there] = x[fell], answer[fell], size[fell], by[fell]

        rows = torch.isinf(broke).nonzero()[:, 0]
        if len(rows) and radius > 0 and subject.differentiable:
            x, y = shard.x[rows], shard.y[rows]
            small = minimal_norm(subject.model, x, y, norm=norm, steps=steps, eot=subject.draws, bounds=bounds)
            got = small.success.nonzero()[:, 0]
            keep(rows[got], small.x[got], small.distance[got], torch.full_like(got, len(HOW) - 1))
            rows = (broke > radius).nonzero()[:, 0]
        if len(rows) and radius > 0:
            worst = worst_case(
                subject.model,
                shard.x[rows],
                shard.y[rows],
                norm=norm,
                radius=radius,
                steps=steps,
                restarts=self.restarts or run.budget.restarts,
                targets=3 if steps < 50 else 9,
                queries=(10 if subject.differentiable else BLIND_QUERIES) * steps,
                gradients=subject.differentiable,
                eot=subject.draws,
                bounds=bounds,
                rng=shard.rng,
            )
            got = worst.success.nonzero()[:, 0]
            keep(rows[got], worst.x[got], worst.distance[got], worst.by[got])
        vitals = {}
        if norm == "linf" and subject.differentiable:
            vitals = vital_signs(subject.model, shard.x, shard.y, random=subject.draws > 1, bounds=bounds)
        return {"label": shard.y, "broke": broke, "x": shard.x, "changed": changed, "said": said, "how": how, **vitals}

    def _alarms(
        self,
        subject: Subject,
        found: Mapping[Norm, Mapping[str, NDArray[Any]]],
        broke: Mapping[Norm, NDArray[np.float64]],
        steps: int,
    ) -> tuple[Alarm, ...]:
        if not subject.differentiable:
            says = (
                f"The model gives answers and no gradients, so only Square was run, with {BLIND_QUERIES * steps} "
                "questions for each input; an attacker with the weights may break more."
            )
            return (Alarm(says, doubts=MEASURES),)
        signs = read_vitals(found["linf"])
        return (
            *(Alarm(s.says, doubts=MEASURES if s.open else ()) for s in signs),
            *(a for norm in NORMS for a in self._doubts(norm, found[norm], broke[norm])),
        )

    def _doubts(self, norm: Norm, rows: Mapping[str, NDArray[Any]], broke: NDArray[np.float64]) -> tuple[Alarm, ...]:
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
        if never and self._budget(norm) > 0:
            alarms.append(
                Alarm(
                    f"For {share(never, len(broke))} of the inputs no {norm} change of any size was found that breaks "
                    f"them; a search that cannot fail them at all may be blind.",
                    doubts=(measure,),
                )
            )
        return tuple(alarms)

    def _curve(self, norm: Norm, broke: NDArray[np.float64]) -> Curve:
        radii, n = (0.0, *(s * self._budget(norm) for s in SHARES)), len(broke)
        line = Line.shares("accuracy", radii, [(broke > r).sum() for r in radii], n)
        letter = "l∞" if norm == "linf" else "l2"
        return Curve(
            name=norm,
            title=f"Accuracy against the size of the change ({letter})",
            x_label=f"{letter} radius",
            y_label="accuracy",
            unit_y=True,
            lines=(line,),
            marks=(Beside("budget", self._budget(norm)),),
            says="The truth can only be lower than the curve: an attack that fails proves nothing.",
        )


def _witnesses(
    found: Mapping[Norm, Mapping[str, NDArray[Any]]],
    broke: Mapping[Norm, NDArray[np.float64]],
    index: NDArray[np.int64],
    label: NDArray[np.int64],
) -> Witnesses:
    """Per norm, each input that was right and broke, with the smallest change that was found."""
    rows = {norm: np.flatnonzero((broke[norm] > 0) & np.isfinite(broke[norm])) for norm in NORMS}

    def join(column: str) -> NDArray[Any]:
        return np.concatenate([found[norm][column][rows[norm]] for norm in NORMS])

    where = np.concatenate([rows[norm] for norm in NORMS])
    norms = tuple(norm for norm in NORMS for _ in rows[norm])
    return Witnesses(
        split="test",
        index=index[where],
        clean=join("x").astype(np.float32),
        changed=join("changed").astype(np.float32),
        label=label[where],
        said=join("said").astype(np.int64),
        norm=norms,
        radius=np.concatenate([broke[norm][rows[norm]] for norm in NORMS]),
        how=tuple(HOW[by] for by in join("how")),
    )


def _by_class(classes: tuple[str, ...], label: NDArray[np.int64], held: NDArray[np.bool_]) -> Bars:
    present = np.unique(label)
    bands = [wilson(int(held[label == c].sum()), int((label == c).sum())) for c in present]
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
    names = subject.task.classes
    linf = [i for i in range(len(w)) if w.norm[i] == "linf"] or list(range(len(w)))
    easiest = sorted(linf, key=lambda i: (w.radius[i], w.index[i]))
    spread = [easiest[i] for i in np.unique(np.linspace(0, len(easiest) - 1, num=min(shown, len(easiest)), dtype=int))]
    exhibits = tuple(
        Exhibit.of(
            int(w.index[i]),
            f"{names[w.label[i]]}, said {names[w.said[i]]} after a change of {w.radius[i]:.3g} ({w.norm[i]})",
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
