"""Whether the map of a cheap attack may stand in for the map that the theory speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.finding import Alarm, Beside, Better, Boxes, Exhibit, Finding, Gallery, Matrix, Measure, Panel, Table, share
from assay.methods.rank.agreement import LOCAL, PAIRS, WAYS, Way, agreement
from assay.methods.rank.maps import grey, overlay
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.subject import PairModel

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

EACH = 2  # pairs for each step of the budget
STEPS = 10  # of a walk, for each step of the budget
TIE = 0.5
BOXED = {"free": "without clipping", "clipped": "clipped to the bounds"}
NAMES: dict[Way, str] = {
    "b": "boundary, many steps",
    "s": "boundary, one step",
    "m": "mid-point, many steps",
    "m'": "mid-point, one step",
}
HEADLINE = "angle of many steps with one"
LOCALS = "maps that may be called local"
KINDS: dict[str, tuple[Better, Beside, str]] = {
    "angle": ("lower", Beside("a random change", 90.0), "of the two changes, in degrees"),
    "spearman": ("higher", Beside("a random map", 0.0), "Spearman's, over the pixels of the two maps, signs left out"),
    "straightness": ("higher", Beside("one step", 1.0), "length of the change over the length of the way"),
}
PRINT = {"angle b s": 14.0, "spearman b s": 0.75}
LETTERS = "b: boundary, s: boundary in one step, m: mid-point, m': mid-point in one step."
SAID = {
    "angle": "Without clipping the two of one step lie on a line: 0.",
    "spearman": "1: one order of the pixels; 0: unrelated. Pixels that clipping holds fast are alike in both maps, "
    "which raises it.",
    "drawn": "Here lengths count too: mid-points resemble one another, and boundaries do.",
}


@dataclass(frozen=True)
class MayOneMapStandIn(Probe):
    """May one map stand in for another?

    Four attacks on the first input of each pair: to the end of the range on the other side of the tie and to the tie
    itself, in many steps and in one along the first gradient. Of the many-step walk to the boundary, whose map is the
    one usually shown, the angle with the single step says whether it still tells of this input: above `limit` degrees
    its map may not be called local. Each is done without clipping, as in print, and clipped to the inputs' bounds.
    """

    pairs: int | None = None
    steps: int | None = None
    step: float = 0.5
    limit: float = LOCAL

    needs: ClassVar[tuple[Need, ...]] = ("order", "gradients")
    source: ClassVar[str] = (
        "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 5.3.4 and 5.3.6"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=LOCAL),)

    def __post_init__(self) -> None:
        self.refuse_below(2, "pairs")
        self.refuse_below(1, "steps")
        self.refuse_below(0, "step", "limit")

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"], self.pairs or run.budget.few(EACH * run.budget.steps))
        steps = self.steps or STEPS * run.budget.steps
        rows = run.map(partial(self._attack, subject, steps), subject, "test", index, "four attacks, twice")
        seen = _Seen(rows, self.limit, run.seed)
        return Finding(
            says=seen.says(),
            measures=seen.measures(),
            samples=Table("test", {"index": index, **seen.columns()}),
            views=(seen.boxes(), *seen.matrices(), *seen.gallery(subject, index, run.budget.shown)),
            alarms=seen.alarms(),
        )

    def _attack(self, subject: Subject, steps: int, shard: Shard) -> Mapping[str, Tensor]:
        """Angles, correlations, lengths and answers of four attacks, without clipping and with it."""
        model = subject.model
        assert isinstance(model, PairModel)
        a = shard.x[:, 0]
        with torch.no_grad():
            other = model.encode(shard.x[:, 1])
            target = (model.compare(model.encode(a), other) < TIE).to(a)

        def draw(x: Tensor) -> Tensor:
            with torch.no_grad():
                return model.decode(model.encode(x))

        told = {"a": a}
        for box in BOXED:
            found = agreement(
                lambda x: model.compare(model.encode(x), other),
                a,
                target=target,
                tie=TIE,
                steps=steps,
                step=self.step,
                box=None if box == "free" else (subject.inputs.low, subject.inputs.high),
                draw=draw if model.decoder is not None else None,
            )
            told |= {f"{box} {way}": end for way, end in found.ends.items()}
            told |= {f"{box} c {way}": c for way, c in found.c.items()}
            told |= {f"{box} length {way}": length for way, length in found.length.items()}
            for kind in ("angle", "spearman", "drawn"):
                told |= {f"{box} {kind} {p} {q}": v for (p, q), v in getattr(found, kind).items()}
            told |= {f"{box} straightness {way}": v for way, v in found.straightness.items()}
            told |= {f"{box} turned {way}": v for way, v in found.turned.items()}
            told[f"{box} found"] = found.found
        return told


class _Seen:
    """What four attacks did to every pair, and what follows."""

    def __init__(self, rows: Mapping[str, NDArray[Any]], limit: float, seed: int) -> None:
        self.rows, self.limit, self.seed = rows, limit, seed

    def finite(self, name: str) -> NDArray[np.float64]:
        """A column without the pairs where it has no meaning: an attack that did not move, a tie that was not found."""
        column = np.asarray(self.rows[name], dtype=np.float64)
        return column[np.isfinite(column)]

    def local(self, box: str) -> NDArray[np.bool_]:
        return np.asarray(self.rows[f"{box} angle b s"] <= self.limit)

    def says(self) -> str:
        angle = {name: self.finite(name) for name in ("free angle b s", "clipped angle b s", "free angle m m'")}
        if any(len(a) == 0 for a in angle.values()):
            return "No attack moved any input: there are no maps to compare."
        far, cut, near = (a.mean() for a in angle.values())
        free, clipped = (self.local(box) for box in BOXED)
        return (
            f"The walk to the boundary ends {far:.0f} degrees off the first gradient (clipped, {cut:.0f}): its map may "
            f"be called local for {share(int(free.sum()), len(free))} pairs (clipped, {int(clipped.sum())}). The walk "
            f"to the tie ends {near:.0f} degrees off."
        )

    def measures(self) -> tuple[Measure, ...]:
        """Each number without clipping and with it, the headline first."""
        return tuple(
            self._measure(name, column, box)
            for name, column in (
                (HEADLINE, "angle b s"),
                (LOCALS, "local"),
                ("rank correlation of many steps with one", "spearman b s"),
                ("angle of many steps with one, mid-point", "angle m m'"),
                ("rank correlation of many steps with one, mid-point", "spearman m m'"),
                ("rank correlation of boundary, many steps, with mid-point, one step", "spearman b m'"),
                ("straightness of the walk to the boundary", "straightness b"),
            )
            for box in BOXED
        )

    def _measure(self, name: str, column: str, box: str) -> Measure:
        name = name if box == "free" else f"{name}, clipped"
        if column == "local":
            about = f"share of the pairs with an angle of at most {self.limit:g} degrees"
            return Measure.proportion(name, self.local(box), better="higher", about=about, column=f"{box} local")
        values, (better, trivial, about) = self.finite(f"{box} {column}"), KINDS[column.split()[0]]
        if not len(values):
            return Measure(name=name, value=None, better=better, about=about)
        return Measure.mean(
            name,
            values,
            better=better,
            seed=self.seed,
            about=about,
            beside=(trivial, *([Beside("in print, faces", PRINT[column])] if column in PRINT else [])),
            column=f"{box} {column}",
        )

    def columns(self) -> dict[str, NDArray[Any]]:
        kept = ("angle", "spearman", "drawn", "straightness", "turned", "length", "c", "found")
        told = {k: v for k, v in self.rows.items() if len(parts := k.split()) > 1 and parts[1] in kept}
        return told | {f"{box} local": self.local(box) for box in BOXED}

    def boxes(self) -> Boxes:
        pairs = (("b", "s"), ("b", "m"), ("m", "m'"))
        return Boxes(
            name="angles",
            title="Angles between the changes of one input",
            x_label="two attacks",
            y_label="degrees",
            labels=tuple(f"{p} and {q}, {how}" for p, q in pairs for how in BOXED.values()),
            values=tuple(tuple(self.finite(f"{box} angle {p} {q}")) for p, q in pairs for box in BOXED),
            marks=(Beside("local up to here", self.limit), Beside("a random change", 90.0)),
            says=f"Lower is better. {LETTERS}",
        )

    def matrices(self) -> list[Matrix]:
        """What two ways have in common, in the mean."""
        kinds = {"angle": "Angle of two changes, degrees", "spearman": "Rank correlation of two maps"}
        if "free drawn b s" in self.rows:
            kinds["drawn"] = "Mean squared difference of what the model sees"
        return [
            Matrix(
                name=f"{kind}-{box}",
                title=f"{title}, {how}",
                row_label="attack",
                column_label="attack",
                rows=tuple(NAMES[w] for w in WAYS),
                columns=tuple(NAMES[w] for w in WAYS),
                values=tuple(tuple(self._cell(kind, box, p, q) for q in WAYS) for p in WAYS),
                says=SAID[kind],
            )
            for kind, title in kinds.items()
            for box, how in BOXED.items()
        ]

    def _cell(self, kind: str, box: str, p: Way, q: Way) -> float | None:
        if p == q:
            return 1.0 if kind == "spearman" else 0.0
        values = self.finite(f"{box} {kind} {p} {q}" if (p, q) in PAIRS else f"{box} {kind} {q} {p}")
        return float(values.mean()) if len(values) else None

    def alarms(self) -> tuple[Alarm, ...]:
        alarms = []
        for box, how in BOXED.items():
            lost = int((~self.rows[f"{box} found"].astype(bool)).sum())
            if lost:
                about = f"{share(lost, len(self.rows['a']))} pairs"
                alarms.append(
                    Alarm(f"For {about} the line of the first gradient never meets the tie, {how}; they are left out.")
                )
            if not len(self.finite(f"{box} angle b s")):
                alarms.append(Alarm(f"No walk to the boundary moved, {how}: the comparison has no gradient."))
        return tuple(alarms)

    def gallery(self, subject: Subject, index: NDArray[np.int64], shown: int) -> list[Gallery]:
        """The four maps of some pairs, from the smallest angle to the largest."""
        order = np.argsort(self.rows["free angle b s"], kind="stable")
        if not subject.inputs.is_picture:
            return []
        low, high = subject.inputs.low, subject.inputs.high
        exhibits = []
        for row in order[np.unique(np.linspace(0, len(order) - 1, num=min(shown, len(order)), dtype=int))]:
            a, where = torch.from_numpy(self.rows["a"][[row]]), int(index[row])
            panels = [Panel.of("first", f"The first of pair {where}", self.rows["a"][row], low=low, high=high)]
            for box, how in BOXED.items():
                for way in WAYS:
                    heat = grey(a, torch.from_numpy(self.rows[f"{box} {way}"][[row]]))
                    nowhere = ", no tie found" if way == "m'" and not self.rows[f"{box} found"][row] else ""
                    label = f"{NAMES[way]}, {how}{nowhere}"
                    image = overlay((a - low) / (high - low), heat)[0].numpy()
                    panels.append(Panel.of(label, f"Map of pair {where}: {label}", image))
            told = f"{self.rows['free angle b s'][row]:.0f} degrees, {'' if self.local('free')[row] else 'not '}local"
            exhibits.append(Exhibit(index=where, caption=told, panels=tuple(panels)))
        return [
            Gallery(
                name="maps",
                title="The maps of four attacks, from where they agree to where they do not",
                exhibits=tuple(exhibits),
                says="Green on red: where the input changed. Without clipping, both maps of one step are the same.",
            )
        ]


SHELVED = MayOneMapStandIn
