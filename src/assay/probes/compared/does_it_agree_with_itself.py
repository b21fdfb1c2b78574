"""Whether a ranker agrees with itself when what it saw change is shown to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.finding import Alarm, Beside, Better, Boxes, Exhibit, Finding, Gallery, Measure, Panel, Table, share
from assay.methods.rank.perception import random_change
from assay.methods.rank.recycling import recycle
from assay.methods.rank.walk import walk
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.subject import PairModel

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

EACH = 5  # pairs for each step of the budget
STEPS = 10  # of a walk, for each step of the budget
TIE = 0.5
PERCEPTION = "perception follows"
DECISION = "decision follows, same direction"
RANDOM = "a random change of the same length"


@dataclass(frozen=True)
class DoesItAgreeWithItself(Probe):
    """Does it agree with itself?

    The first input of a pair is attacked, which changes what the model sees of it; that change is added to the clean
    input, and the model looks again. Does it see what it saw after the attack, and decide as it decided then? A random
    change of the same length stands beside it. With `clip` inputs stay within their bounds; the source lets them leave.
    """

    pairs: int | None = None
    steps: int | None = None
    step: float = 0.5
    clip: bool = True

    needs: ClassVar[tuple[Need, ...]] = ("order", "gradients")
    source: ClassVar[str] = (
        "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.6 and 5.3.7"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.5), Standard(measure=DECISION, at_least=0.8))

    def __post_init__(self) -> None:
        self.refuse_below(3, "pairs")
        self.refuse_below(1, "steps")
        self.refuse_below(0, "step")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and getattr(subject.model, "decoder", None) is None:
            return "it needs a decoder to draw what the model sees, and this model has none; fit_decoder trains one"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"], self.pairs or run.budget.few(EACH * run.budget.steps))
        steps = self.steps or STEPS * run.budget.steps
        rows = run.map(partial(self._recycle, subject, steps), subject, "test", index, "recycling what it saw")
        seen = _Seen(rows, run.seed)
        return Finding(
            says=seen.says(),
            measures=seen.measures(),
            samples=Table("test", {"index": index, **seen.columns()}),
            views=(*seen.boxes(), *seen.gallery(subject, index, run.budget.shown)),
            alarms=seen.alarms(),
        )

    def _recycle(self, subject: Subject, steps: int, shard: Shard) -> Mapping[str, Tensor]:
        model, box = subject.model, (subject.inputs.low, subject.inputs.high) if self.clip else None
        assert isinstance(model, PairModel)
        a, b = shard.x[:, 0], shard.x[:, 1]
        with torch.no_grad():
            other = model.encode(b)
            target = (model.compare(model.encode(a), other) < TIE).to(a)
        end = walk(
            lambda x: model.compare(model.encode(x), other), a, target=target, steps=steps, step=self.step, box=box
        )
        again = recycle(model, a, end.x, b, box=box)
        noise = random_change(a, (again.x - a).flatten(1).norm(dim=1), rng=shard.rng, box=box) - a
        blind = recycle(model, a, end.x, b, instead=noise, box=box)
        told = {"a": a, "attacked": end.x, "recycled": again.x, "b": b}
        told |= dict(zip(("h", "h'", "h''"), again.seen, strict=True))
        told |= dict(zip(("c", "c'", "c''"), again.c, strict=True))
        told |= {"length of attack": again.length[0], "length of recycled": again.length[1], "c random": blind.c[2]}
        for name, found in (("", again), ("random ", blind)):
            told |= {f"{name}perception": found.perception, f"{name}decision": found.decision}
            told |= {f"{name}cosine": found.cosine, f"{name}spearman": found.spearman}
        return told


class _Seen:
    """What the model saw and decided of every pair, and what follows; pairs that no attack moved are left out."""

    def __init__(self, rows: Mapping[str, NDArray[Any]], seed: int) -> None:
        self.rows, self.seed = rows, seed
        self.moved = np.isfinite(rows["decision"]) & np.isfinite(rows["cosine"])

    def of(self, name: str) -> NDArray[np.float64]:
        """A column of the pairs that moved; a random change that leaves what is seen as it was has cosine 0."""
        return np.nan_to_num(np.asarray(self.rows[name][self.moved], dtype=np.float64))

    def moves(self, name: str) -> NDArray[np.float64]:
        """How far the comparison went, along where the attack took it; below 0 the other way."""
        along = np.sign(self.of("c'") - self.of("c"))
        return np.asarray(along * (self.of(name) - self.of("c")))

    def measures(self) -> tuple[Measure, ...]:
        if not self.moved.any():
            return (
                Measure(name=PERCEPTION, value=None, better="higher"),
                Measure(name=DECISION, value=None, better="higher"),
            )
        same, blind = self.of("decision") > 0, float((self.of("random decision") > 0).mean())
        found = [
            self._mean(
                PERCEPTION, "perception", "higher", "cosine of what is seen to change by recycling and by attack"
            ),
            Measure.proportion(
                DECISION,
                same,
                better="higher",
                column="same direction",
                about="share of the pairs where recycling moves the comparison as the attack did",
                beside=(Beside(RANDOM, blind), Beside("a coin", 0.5)),
            ),
            Measure.median(
                "decision follows, how far",
                self.of("decision"),
                better="higher",
                seed=self.seed,
                about="the comparison's move after recycling over its move after the attack, with its sign",
                beside=(Beside(RANDOM, float(np.median(self.of("random decision")))),),
            ),
            *self._correlation(),
            self._mean("cosine of what is seen and the attack", "cosine", "neither", "of the two changes of the input"),
            self._mean("likeness of their maps", "spearman", "neither", "rank correlation, signs left out"),
        ]
        for what in ("attack", "recycled"):
            values = self.of(f"length of {what}")
            name = "length of the attack" if what == "attack" else "length of what is seen to change"
            found.append(Measure.median(name, values, better="neither", seed=self.seed, about="L2"))
        return tuple(found)

    def _mean(self, name: str, column: str, better: Better, about: str) -> Measure:
        beside = (Beside(RANDOM, float(self.of(f"random {column}").mean())),)
        values = self.of(column)
        return Measure.mean(name, values, better=better, seed=self.seed, about=about, beside=beside, column=column)

    def _correlation(self) -> list[Measure]:
        """Whether a pair that the attack moves further is moved further by recycling, too."""
        moves = {name: self.moves(name) for name in ("c'", "c''", "c random")}
        if len(moves["c'"]) < 3 or min(np.ptp(m) for m in moves.values()) == 0:
            return []
        value, blind = (float(np.corrcoef(moves["c'"], moves[name])[0, 1]) for name in ("c''", "c random"))
        return [
            Measure(
                name="correlation of the two moves",
                value=value,
                n=len(moves["c'"]),
                better="higher",
                about="Pearson's, of how far attack and recycling move the comparison, both along the attack's way",
                beside=(Beside(RANDOM, blind),),
            )
        ]

    def columns(self) -> dict[str, NDArray[Any]]:
        names = ("c", "c'", "c''", "c random", "perception", "decision", "cosine", "spearman")
        told = {name: self.rows[name] for name in (*names, "length of attack", "length of recycled")}
        return told | {"same direction": self.rows["decision"] > 0}

    def says(self) -> str:
        if not self.moved.any():
            return "No attack moved any input, so that there is nothing to recycle."
        same = int((self.of("decision") > 0).sum())
        cosine = {name: self.of(name).mean() for name in ("perception", "random perception", "cosine")}
        return (
            "When what it saw change is added to the input, the model sees that change again (cosine "
            f"{cosine['perception']:.2f}; {cosine['random perception']:.2f} for a random change), and the comparison "
            f"goes where the attack took it for {share(same, int(self.moved.sum()))} pairs, "
            f"{np.median(self.of('decision')):.2f} of the way. What is seen to change and the attack have a cosine of "
            f"{cosine['cosine']:.2f}."
        )

    def alarms(self) -> tuple[Alarm, ...]:
        lost = int((~self.moved).sum())
        says = (
            f"{share(lost, len(self.moved))} pairs are left out: the attack moved nothing there, or nothing was seen."
        )
        return (Alarm(says),) if lost else ()

    def boxes(self) -> list[Boxes]:
        if not self.moved.any():
            return []
        moves = [self.moves(name) for name in ("c'", "c''", "c random")]
        return [
            Boxes(
                name="moves",
                title="How far the comparison moves along the attack's way",
                x_label="what was done to the input",
                y_label="move of the comparison",
                labels=("attack", "recycled", "random change"),
                values=tuple(tuple(map(float, m)) for m in moves),
                marks=(Beside("stays", 0.0),),
                says="Below 0 the comparison goes the other way. The attack sends it across the tie, and any change "
                "that blurs an input draws it there: read what is recycled against the random change.",
            )
        ]

    def gallery(self, subject: Subject, index: NDArray[np.int64], shown: int) -> list[Gallery]:
        """Some pairs, from where the decision follows least to where it follows most."""
        rows = np.flatnonzero(self.moved)
        if not subject.inputs.is_picture or not len(rows):
            return []
        order = rows[np.argsort(self.rows["decision"][rows], kind="stable")]
        low, high = subject.inputs.low, subject.inputs.high
        names = {
            "first": "a", "seen": "h", "attacked": "attacked", "attacked, seen": "h'", "recycled": "recycled",
            "recycled, seen": "h''", "second": "b",
        }  # fmt: skip
        exhibits = []
        for row in order[np.unique(np.linspace(0, len(order) - 1, num=min(shown, len(order)), dtype=int))]:
            where, c = int(index[row]), [float(self.rows[name][row]) for name in ("c", "c'", "c''")]
            panels = [
                Panel.of(label, f"Pair {where}: {label}", self.rows[key][row], low=low, high=high)
                for label, key in names.items()
            ]
            told = "comparison {:.2f}, attacked {:.2f}, recycled {:.2f}".format(*c)
            exhibits.append(Exhibit(index=where, caption=told, panels=tuple(panels)))
        title = "What is seen before, after the attack, and after recycling; from least followed to most"
        return [Gallery(name="recycled", title=title, exhibits=tuple(exhibits))]


SHELVED = DoesItAgreeWithItself
