"""How much has to change before a comparison ends in a tie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.held_out import Part
from assay.finding import Alarm, Beside, Curve, Exhibit, Finding, Gallery, Line, Measure, Table, share
from assay.methods.rank.perception import random_change
from assay.methods.rank.walk import Score, sensitive, to_tie, walk
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.subject import PairModel
from assay.tasks import Ranking, Similarity

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

EACH = 6  # pairs for each step of the budget
WITHIN = 8  # steps of the walk in which a straight way would be gone
BLIND = 0.1  # share of pairs without a tie, above which the median is in doubt
HEADLINE = "median distance to a tie"


@dataclass(frozen=True)
class HowFarToATie(Probe):
    """How far is each pair from a tie, where its order turns?

    One of the two inputs changes and the other stays; the distance is the length (L2) of the change over the length of
    the input that changes, the smaller for either. It is sought along the first gradient (one step) and along a walk
    that asks for the gradient again and again (many steps); both bound the truth from above. A pair whose order is
    wrong as it is counts as 0. Pairs with equal values, where a tie is right, are not asked about.
    """

    steps: int | None = None
    pairs: int | None = None
    directions: int = 20
    clip: bool = True
    """Changed inputs stay within their bounds; the thesis lets them go."""

    needs: ClassVar[tuple[Need, ...]] = ("comparison", "gradients")
    source: ClassVar[str] = (
        "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.4 (mid-point "
        "attacks) and 4.5 (in one step)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.03),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "steps", "pairs", "directions")

    def ask(self, subject: Subject, run: Run) -> Finding:
        pairs = subject.pairs["test"]
        index = run.pick(Part(pairs, np.arange(pairs.untied)), self.pairs or run.budget.few(EACH * run.budget.steps))
        rows = run.map(
            partial(self._search, subject, self.steps or run.budget.steps), subject, "test", index, "the nearest ties"
        )
        ties = _Ties(rows, np.abs(pairs.gaps[index]) if isinstance(subject.task, Ranking) else None)
        measures = ties.measures(run.seed)
        return Finding(
            says=ties.says(measures[0].value),
            measures=measures,
            samples=Table("test", {"index": index, **ties.columns()}),
            views=(ties.curve(), *ties.gallery(subject, index, run.budget.shown)),
            alarms=ties.alarms(),
        )

    def _search(self, subject: Subject, steps: int, shard: Shard) -> Mapping[str, Tensor]:
        """The tie nearest to each pair; both inputs of all pairs are searched from at once."""
        model, task = subject.model, subject.task
        assert isinstance(model, PairModel)
        assert isinstance(task, Ranking | Similarity)
        box = (subject.inputs.low, subject.inputs.high) if self.clip else None
        score, x = _either(model, shard.x), shard.x.transpose(0, 1).flatten(0, 1)  # firsts, then seconds: 2n *d
        size = x.flatten(1).norm(dim=1).clamp_min(1e-12)
        with torch.no_grad():
            c = score(x)
        one = to_tie(score, x, at=task.tie, box=box)
        guess = torch.where(one.found, one.distance, (c - task.tie).abs() / one.slope).nan_to_num(posinf=0)
        along = walk(score, x, target=task.tie, steps=steps, step=(guess / WITHIN).clamp_min(1e-12), unit=True, box=box)
        rest = to_tie(score, along.x, at=task.tie, box=box)
        many = torch.where(rest.found, (rest.x - x).flatten(1).norm(dim=1), torch.inf)
        distance = torch.stack([one.distance / size, many / size], 1).view(2, len(shard.x), 2)  # which, n, how
        best = distance.amin(2).argmin(0)  # n: which input is the nearer to a tie
        mine = best * len(shard.x) + torch.arange(len(shard.x), device=x.device)
        nearer = torch.where((many < one.distance).view(-1, *[1] * (x.dim() - 1)), rest.x, one.x)
        length = torch.minimum(one.distance, many).nan_to_num(posinf=0)
        turned = torch.zeros_like(c)
        with torch.no_grad():
            for _ in range(self.directions):
                other = score(random_change(x, length, rng=shard.rng, box=box))
                turned += (other - task.tie).sign() != (c - task.tie).sign()  # a tie counts, as in the search
        return {
            "c": c[: len(shard.x)],
            "right": task.right(subject.predict(shard.x), shard.y),
            "which": best,
            "one": distance[..., 0].amin(0),
            "many": distance[..., 1].amin(0),
            "random": turned[mine] / self.directions,
            "sensitive": sensitive(score, nearer)[mine].flatten(1).double().mean(1),
            "x": shard.x,
            "tie": nearer[mine],
        }


def _either(model: PairModel, pairs: Tensor) -> Score:  # n 2 *d
    """How 2n inputs compare: the first n with the seconds of the pairs, the others with the firsts, in their order."""
    n = len(pairs)
    with torch.no_grad():
        first, second = (model.encode(pairs[:, k]) for k in (0, 1))

    def score(x: Tensor) -> Tensor:  # 2n *d -> 2n
        e = model.encode(x)
        return model.compare(torch.cat([e[:n], first]), torch.cat([second, e[n:]]))

    return score


class _Ties:
    """How far each pair is from a tie, and what follows."""

    def __init__(self, rows: Mapping[str, NDArray[Any]], gap: NDArray[np.float64] | None) -> None:
        self.rows, self.gap = rows, gap
        self.one, self.many = (np.asarray(rows[how], dtype=np.float64) for how in ("one", "many"))
        self.distance, self.right = np.minimum(self.one, self.many), np.asarray(rows["right"], dtype=bool)
        self.found = np.isfinite(self.distance)

    def measures(self, seed: int) -> tuple[Measure, ...]:
        from scipy.stats import spearmanr

        def judged(distance: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.where(self.right, distance, 0.0)

        halves = {
            how: Measure.median(how, judged(d), better="higher", seed=seed).value
            for how, d in (("in one step", self.one), ("in many steps", self.many))
        }
        both = np.isfinite(self.one) & np.isfinite(self.many) & (self.many > 0)
        some = self.found & (self.distance > 0)
        measures = [
            Measure.median(
                HEADLINE,
                judged(self.distance),
                better="higher",
                seed=seed,
                about="length of the change over that of the input; half of the pairs turn at this size or below",
                beside=tuple(Beside(how, value) for how, value in halves.items() if value is not None),
            ),
            Measure.proportion(
                "pairs with a tie",
                self.found,
                better="neither",
                about="where the search came to one",
                column="tie found",
            ),
        ]
        if some.any():
            measures.append(
                Measure.mean(
                    "random changes of that length that turn the answer",
                    np.asarray(self.rows["random"], dtype=np.float64)[some],
                    better="lower",
                    seed=seed,
                    unit="%",
                    about="directions drawn at random, as long as the way to the tie, pair by pair",
                    beside=(Beside("the way to the tie", 1.0),),
                )
            )
            measures.append(
                Measure.mean(
                    "values that a tie is sensitive to",
                    np.asarray(self.rows["sensitive"], dtype=np.float64)[some],
                    better="neither",
                    seed=seed,
                    unit="%",
                    about="whose gradient is not 0 there; a heuristic, and not the fewest that turn the answer",
                )
            )
        if both.any():
            measures.append(
                Measure.median(
                    "one step over many",
                    self.one[both] / self.many[both],
                    better="neither",
                    seed=seed,
                    about="how much farther the tie is along the first gradient than along the walk",
                    beside=(Beside("a model without bends", 1.0),),
                )
            )
        if self.gap is not None and some.sum() > 2 and np.ptp(self.gap[some]) > 0 and np.ptp(self.distance[some]) > 0:
            measures.append(
                Measure(
                    name="rank correlation with the true gap",
                    value=float(spearmanr(self.distance[some], self.gap[some]).statistic),
                    n=int(some.sum()),
                    better="higher",
                    about="Spearman's: are pairs whose values lie farther apart farther from a tie?",
                    beside=(Beside("an order by chance", 0.0),),
                )
            )
        return tuple(measures)

    def says(self, middle: float | None) -> str:
        wrong = f"{share(int((~self.right).sum()), len(self.right))} are in the wrong order as they are"
        if middle is None:
            return f"For half of the pairs no tie was found; {wrong}."
        change = f"{100 * middle:.2g} % of its length"
        return f"Half of the pairs come to a tie when one of the two inputs changes by {change}; {wrong}."

    def columns(self) -> dict[str, NDArray[Any]]:
        def told(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.where(np.isfinite(values), values, np.nan)

        return {
            "answer": np.asarray(self.rows["c"], dtype=np.float64),
            "right": self.right,
            **({"true gap": self.gap} if self.gap is not None else {}),
            "tie found": self.found,
            "distance": told(self.distance),
            "in one step": told(self.one),
            "in many steps": told(self.many),
            "changed": np.array(["first", "second"])[np.asarray(self.rows["which"], dtype=int)],
            "turned at random": np.asarray(self.rows["random"], dtype=np.float64),
        }

    def curve(self) -> Curve:
        finite = self.distance[self.found]
        far = np.linspace(0, (float(np.quantile(finite, 0.98)) if len(finite) else 0.0) or 1.0, 41)
        held = {
            label: Line.shares(label, far, [(self.right & (d > r)).sum() for r in far], len(d))
            for label, d in (("nearest", self.distance), ("in one step", self.one), ("in many steps", self.many))
        }
        return Curve(
            name="distances",
            title="Pairs that keep the right order, against the size of the change",
            x_label="length of the change, as a share of the input's",
            y_label="pairs",
            unit_y=True,
            lines=tuple(held.values()),
            says="The truth can only be lower: both searches find a tie, not always the nearest.",
        )

    def gallery(self, subject: Subject, index: NDArray[np.int64], shown: int) -> tuple[Gallery, ...]:
        """The pairs nearest to a tie among those in the right order."""
        few = np.flatnonzero(self.found & self.right & (self.distance > 0))
        few = few[np.argsort(self.distance[few], kind="stable")][:shown]
        if not subject.inputs.is_picture or not len(few):
            return ()
        exhibits = []
        for row in few:
            pair, which = self.rows["x"][row], int(self.rows["which"][row])
            changed = pair.copy()
            changed[which] = self.rows["tie"][row]
            caption = (
                f"says {self.rows['c'][row]:.2f}; a tie when the {'second' if which else 'first'} changes by "
                f"{100 * self.distance[row]:.2g} % of its length"
            )
            low, high = subject.inputs.low, subject.inputs.high
            exhibits.append(Exhibit.of(int(index[row]), caption, pair, changed, low=low, high=high))
        return (Gallery(name="nearest", title="The nearest ties", exhibits=tuple(exhibits)),)

    def alarms(self) -> tuple[Alarm, ...]:
        never = int((~self.found).sum())
        if not never:
            return ()
        says = (
            f"For {share(never, len(self.found))} of the pairs no tie was found in one step or in many: the model is "
            "flat there, or the tie lies beyond the bounds. They count as farther than all others."
        )
        return (Alarm(says, doubts=(HEADLINE,) if never > BLIND * len(self.found) else ()),)


SHELVED = HowFarToATie
