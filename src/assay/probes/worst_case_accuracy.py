"""How many inputs survive an attacker who sees gradients?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import Beside, Curve, Exhibit, Finding, Gallery, Line, Measure, Table, Witnesses, share, wilson
from assay.methods.attack import pgd
from assay.probe import Need, Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, ...] = ("linf", "l2")
SHARES = (0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class WorstCaseAccuracy(Probe):
    """Does it stay right when someone changes the input on purpose, by no more than the eye would miss?

    `radius` is the l_inf budget of the headline, `l2_radius` that of the l2 curve; both are in the input's own units.
    """

    radius: float = 8 / 255
    l2_radius: float = 0.5
    steps: int | None = None
    restarts: int | None = None

    source: ClassVar[str] = "Madry et al., ICLR 2018, arXiv:1706.06083; Carlini & Wagner, S&P 2017, arXiv:1608.04644"
    needs: ClassVar[tuple[Need, ...]] = ("gradients",)
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.4),)

    def __post_init__(self) -> None:
        for name in ("radius", "l2_radius"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise AssayError(
                    f"{name}={getattr(self, name)} is not a budget; give a number of at least 0, such as 8/255."
                )

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"])
        found = {
            norm: run.map(
                partial(self._break, subject, run, norm),
                subject,
                "test",
                index,
                f"worst-case change, {norm}",
            )
            for norm in NORMS
        }
        label = np.asarray(found["linf"]["label"], dtype=np.int64)
        broke = {
            norm: np.asarray(rows["broke"], dtype=np.float64) for norm, rows in found.items()
        }  # n: smallest radius
        clean = broke["linf"] > 0
        held = {norm: broke[norm] > self._radii(norm)[SHARES.index(1.0)] for norm in NORMS}
        witnesses = _witnesses(found, broke, index, label)
        commonest = Beside("always says the commonest class", float(np.bincount(label).max() / len(label)))
        beside = (commonest, Beside("clean accuracy", float(clean.mean())))
        steps, restarts = self._effort(run)
        return Finding(
            says=f"An attacker who may change each value by {self.radius:.3g} leaves "
            f"{share(int(held['linf'].sum()), len(index))} right, of {100 * clean.mean():.0f} % on clean inputs.",
            measures=(
                Measure.proportion(
                    "worst-case accuracy",
                    held["linf"],
                    better="higher",
                    column="held linf",
                    about=f"right under every l_inf change of at most {self.radius:.4g} that was tried: PGD "
                    f"on cross-entropy and on the margin, {steps} steps from {restarts} random start(s) each",
                    beside=beside,
                ),
                Measure.proportion(
                    "worst-case accuracy, l2",
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
                    **{f"broke at {norm}": np.where(np.isfinite(broke[norm]), broke[norm], np.nan) for norm in NORMS},
                },
            ),
            views=(
                *(self._curve(norm, broke[norm]) for norm in NORMS),
                *_pictures(subject, witnesses, run.budget.shown),
            ),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _radii(self, norm: Norm) -> tuple[float, ...]:
        return tuple(share * (self.radius if norm == "linf" else self.l2_radius) for share in SHARES)

    def _effort(self, run: Run) -> tuple[int, int]:
        return self.steps or run.budget.steps, self.restarts or run.budget.restarts

    def _break(self, subject: Subject, run: Run, norm: Norm, shard: Shard) -> Mapping[str, Tensor]:
        """The smallest radius of the curve at which each input breaks; what broke in a small ball leaves the larger."""
        steps, restarts = self._effort(run)
        said = subject.predict(shard.x).argmax(1)
        broke = torch.where(said == shard.y, torch.inf, 0.0).double()  # a radius must come back equal to itself
        changed = shard.x.clone()
        for radius in self._radii(norm):
            for loss in ("margin", "ce"):
                alive = torch.nonzero(torch.isinf(broke)).flatten()
                if radius == 0 or not len(alive):
                    continue
                attacked = pgd(
                    subject.model,
                    shard.x[alive],
                    shard.y[alive],
                    norm=norm,
                    radius=radius,
                    steps=steps,
                    restarts=restarts,
                    loss=loss,
                    eot=subject.draws,
                    bounds=(subject.inputs.low, subject.inputs.high),
                    rng=shard.rng,
                )
                answer = subject.predict(attacked.x).argmax(1)
                fell = answer != shard.y[alive]
                changed[alive[fell]], said[alive[fell]] = attacked.x[fell], answer[fell]
                broke[alive[fell]] = radius
        return {"label": shard.y, "broke": broke, "x": shard.x, "changed": changed, "said": said}

    def _curve(self, norm: Norm, broke: NDArray[np.float64]) -> Curve:
        radii, n = (0.0, *self._radii(norm)), len(broke)
        hits = [int((broke > r).sum()) for r in radii]
        bands = [wilson(h, n) for h in hits]
        line = Line(
            label="accuracy",
            x=radii,
            y=tuple(h / n for h in hits),
            low=tuple(b[0] for b in bands),
            high=tuple(b[1] for b in bands),
        )
        letter = "l∞" if norm == "linf" else "l2"
        return Curve(
            name=norm,
            title=f"Accuracy against the size of the change ({letter})",
            x_label=f"{letter} radius",
            y_label="accuracy",
            unit_y=True,
            lines=(line,),
            marks=(Beside("budget", self._radii(norm)[SHARES.index(1.0)]),),
            says="The curve can only be lower than shown: an attack that fails proves nothing.",
        )


def _witnesses(
    found: Mapping[Norm, Mapping[str, NDArray[np.generic]]],
    broke: Mapping[Norm, NDArray[np.float64]],
    index: NDArray[np.int64],
    label: NDArray[np.int64],
) -> Witnesses:
    """Per norm, each input that was right and broke, at the smallest radius that broke it."""
    rows = {norm: np.flatnonzero((broke[norm] > 0) & np.isfinite(broke[norm])) for norm in NORMS}

    def join(column: str) -> NDArray[np.generic]:
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
        how=tuple(f"pgd {norm}" for norm in norms),
    )


def _pictures(subject: Subject, w: Witnesses, shown: int) -> tuple[Gallery, ...]:
    if not subject.inputs.is_image or not len(w):
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
