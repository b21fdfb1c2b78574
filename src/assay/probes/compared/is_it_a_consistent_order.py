"""Whether answers about pairs fit together: swapped, with themselves, and among three."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import (
    Beside,
    Curve,
    Exhibit,
    Finding,
    Gallery,
    Histogram,
    Line,
    Measure,
    Panel,
    Table,
    View,
    bootstrap,
    wilson,
)
from assay.methods.rank.order import (
    Triples,
    chains,
    compare_all,
    mean_interval,
    right_order,
    survives_swap,
    swap_gap,
    triangles,
    worth,
)
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.subject import PairModel
from assay.tasks import Ranking, Similarity

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

Floats = NDArray[np.float64]
FIRST = 60  # inputs whose triples are asked about, and one more for each step of the budget
GROUPS = 10  # of gaps between values, where there are more
SURVIVE, TRIPLES, ERROR = "answers that survive a swap", "broken triples", "mean absolute error"
SWAP, ITSELF = "gap of a swap", "gap with itself"


@dataclass(frozen=True)
class IsItAConsistentOrder(Probe):
    """Do its answers about pairs fit together?

    A comparison should turn round when the two change places, call an input equal to itself, and put A over C where it
    puts A over B and B over C; a distance should be symmetric, 0 from an input to itself, and no longer than the way
    round. Nothing in a tail that takes both embeddings makes it so. `inputs` are those whose triples are asked about.
    """

    inputs: int | None = None

    needs: ClassVar[tuple[Need, ...]] = ("comparison",)
    source: ClassVar[str] = (
        "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 3.1 (the comparison)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (
        Standard(at_least=0.95),
        Standard(measure=SWAP, at_most=0.05),
        Standard(measure=ITSELF, at_most=0.05),
        Standard(measure=TRIPLES, at_most=0.05),
    )

    def __post_init__(self) -> None:
        self.refuse_below(3, "inputs")

    def ask(self, subject: Subject, run: Run) -> Finding:
        pairs = subject.pairs["test"]
        index = run.pick(pairs)
        rows = run.map(partial(_both_ways, subject), subject, "test", index, "both ways round")
        forth, back, own = (np.asarray(rows[name], dtype=np.float64) for name in ("forth", "back", "own"))
        chosen = np.random.default_rng(run.seed).permutation(len(pairs.singles))
        wanted = self.inputs or FIRST + run.budget.steps
        chosen = np.sort(chosen[: wanted if run.budget.inputs is None else min(wanted, run.budget.inputs)])
        if len(chosen) < 3:
            raise AssayError(f"Triples need 3 inputs, and there are {len(chosen)}; give more, or a larger --inputs.")
        model, task = subject.model, subject.task
        assert isinstance(model, PairModel)
        assert isinstance(task, Ranking | Similarity)
        x = pairs.singles.take(chosen)[0].to(run.device)
        with torch.no_grad():
            table = compare_all(model.compare, model.encode(x)).double().cpu().numpy()  # k k
        told = _Told(task, forth, back, own, pairs.gaps[index], pairs.labels[index], pairs.pairs[index], table)
        columns = {"index": index, "first": pairs.pairs[index, 0], "second": pairs.pairs[index, 1], **told.columns()}
        return Finding(
            says=told.says(),
            measures=told.measures(run.seed),
            samples=Table("test", columns),
            views=(
                *told.views(),
                *_gallery(subject, x.cpu().numpy(), chosen, told.triples, table, run.budget.shown),
            ),
        )


def _both_ways(subject: Subject, shard: Shard) -> Mapping[str, Tensor]:
    model = subject.model
    assert isinstance(model, PairModel)
    with torch.no_grad():
        first, second = model.encode(shard.x[:, 0]), model.encode(shard.x[:, 1])
        return {
            "forth": model.compare(first, second).double(),
            "back": model.compare(second, first).double(),
            "own": model.compare(first, first).double(),
        }


class _Told:
    """What was answered, and what follows; distances are in thresholds."""

    def __init__(
        self,
        task: Ranking | Similarity,
        forth: Floats,
        back: Floats,
        own: Floats,
        gaps: Floats,
        labels: NDArray[np.int64],
        who: NDArray[np.int64],
        table: Floats,
    ) -> None:  # n, n, n, n, n, n 2, k k
        self.task, self.gaps, self.labels, self.who = task, gaps, labels, who
        self.ranks = isinstance(task, Ranking)
        unit = 1.0 if self.ranks else task.tie
        self.forth, self.back, self.own = forth / unit, back / unit, own / unit
        self.triples: Triples = chains(table) if self.ranks else triangles(table)
        self.k = len(table)
        self.ordered = gaps != 0 if self.ranks else np.ones(len(gaps), dtype=bool)
        if not self.ordered.any():
            raise AssayError(f"All {len(gaps)} pairs have equal values, so that none has an order; give others.")

    @property
    def survives(self) -> NDArray[np.bool_]:  # n
        if self.ranks:
            return survives_swap(self.forth, self.back)
        return np.asarray((self.forth < 1) == (self.back < 1))

    @property
    def right(self) -> NDArray[np.bool_]:  # n; what has no order counts as wrong and is left out by `ordered`
        if not self.ranks:
            return np.asarray((self.forth < 1) == (self.labels == 1))
        right = np.zeros(len(self.gaps), dtype=bool)
        right[self.ordered] = right_order(self.forth[self.ordered], self.gaps[self.ordered])
        return right

    @property
    def swap(self) -> Floats:
        return swap_gap(self.forth, self.back, total=1.0 if self.ranks else None)

    @property
    def itself(self) -> Floats:
        return np.abs(self.own - (0.5 if self.ranks else 0.0))

    @property
    def wrong(self) -> Floats:
        assert isinstance(self.task, Ranking)
        return np.abs(self.forth - self.task.target(self.gaps))

    def columns(self) -> dict[str, NDArray[Any]]:
        return {
            "answer": self.forth,
            "swapped": self.back,
            SWAP: self.swap,
            ITSELF: self.itself,
            **({"gap of the values": self.gaps, ERROR: self.wrong} if self.ranks else {"label": self.labels}),
        }

    def measures(self, seed: int) -> tuple[Measure, ...]:
        constant = "always 0.5" if self.ranks else "always the same distance"
        trivial: tuple[Beside, ...]
        if self.ranks:
            trivial = (Beside(constant, 0.0), Beside("a coin", 0.5))
            first = float((self.gaps[self.ordered] > 0).mean())
            right = self._share(
                "order accuracy",
                self.right[self.ordered],
                about="of the pairs whose values differ, a comparison of at least 0.5 counting for the first",
                beside=(Beside(constant, first),),
            )
        else:
            trivial = (Beside(constant, 1.0),)
            same = float(self.labels.mean())
            right = self._share(
                "accuracy",
                self.right[self.ordered],
                about="below the threshold where both are the same, at or above it where they differ",
                beside=(Beside("the more frequent answer", max(same, 1 - same)),),
            )
        found = [
            self._share(
                SURVIVE,
                self.survives[self.ordered],
                about="the answer about B and A is that about A and B"
                + (", turned round; of the pairs whose values differ" if self.ranks else ""),
                beside=trivial,
            ),
            right,
            self._mean(
                SWAP,
                self.swap,
                about="mean of |c(A,B) + c(B,A) - 1|" if self.ranks else "mean of |d(A,B) - d(B,A)|",
                beside=(Beside(constant, 0.0),),
            ),
            self._mean(
                ITSELF,
                self.itself,
                about="mean of |c(A,A) - 0.5|" if self.ranks else "mean of d(A,A)",
                beside=(Beside(constant, 0.0),) if self.ranks else (),
            ),
            self._triples(seed),
        ]
        if isinstance(self.task, Ranking):
            constant_error = float(np.abs(self.task.target(self.gaps) - 0.5).mean())
            found.append(
                self._mean(
                    ERROR,
                    self.wrong,
                    about="between the comparison and the right one",
                    beside=(Beside(constant, constant_error),),
                )
            )
        return tuple(found)

    def _share(self, name: str, hits: NDArray[np.bool_], *, about: str, beside: tuple[Beside, ...]) -> Measure:
        """Wilson's interval, for as many independent pairs as these are worth."""
        n = worth(hits, self.who[self.ordered])
        low, high = wilson(round(float(hits.mean()) * n), max(1, round(n)))
        value = float(hits.mean())
        return Measure(
            name=name,
            value=value,
            low=min(low, value),
            high=max(high, value),
            n=len(hits),
            unit="%",
            better="higher",
            about=about,
            beside=beside,
        )

    def _mean(self, name: str, values: Floats, *, about: str, beside: tuple[Beside, ...]) -> Measure:
        value, low, high = mean_interval(values, self.who)
        return Measure(
            name=name,
            value=value,
            low=low,
            high=high,
            n=len(values),
            unit="" if self.ranks else "thresholds",
            better="lower",
            column=name,
            about=about,
            beside=beside,
        )

    def _triples(self, seed: int) -> Measure:
        """Inputs are resampled, as triples share them; where none is broken, few inputs may be part of such a one."""
        value = float(self.triples.share())
        low, high = bootstrap(self.triples.share, self.k, seed=seed) if value else (0.0, wilson(0, self.k)[1])
        asked = int(self.triples.asked.sum())
        return Measure(
            name=TRIPLES,
            value=value,
            low=min(low, value),
            high=max(high, value),
            n=self.k,
            unit="%",
            better="lower",
            about=f"of the {asked:,} triples among {self.k} inputs with A over B and B over C, A not over C"
            if self.ranks
            else f"of the {asked:,} triples among {self.k} inputs, d(A,C) above d(A,B) + d(B,C)",
            beside=(Beside("a coin for each pair", 0.5),) if self.ranks else (Beside("a Euclidean distance", 0.0),),
        )

    def says(self) -> str:
        held, right = self.survives[self.ordered].mean(), self.right[self.ordered].mean()
        stay = "turn round with them" if self.ranks else "stay the same"
        rule = "puts A over B and B over C but not A over C" if self.ranks else "finds the way round shorter"
        return (
            f"When the two of a pair change places, {100 * held:.1f} % of its answers {stay}; {100 * right:.1f} % are "
            f"right. In {100 * float(self.triples.share()):.2g} % of the triples it {rule}."
        )

    def views(self) -> tuple[View, ...]:
        gap = self.forth + self.back - 1 if self.ranks else self.forth - self.back
        reach = float(np.abs(gap).max()) or 1.0
        edges = np.linspace(-reach, reach, 22)
        swaps = Histogram(
            name="swaps",
            title="How far an answer is from that about the swapped pair",
            x_label="c(A,B) + c(B,A) - 1" if self.ranks else "d(A,B) - d(B,A), in thresholds",
            edges=tuple(edges),
            counts=(("pairs", tuple(np.histogram(gap, edges)[0].astype(float))),),
            says="Consistent answers are at 0.",
        )
        return (self._by_gap(), swaps) if self.ranks else (swaps,)

    def _by_gap(self) -> Curve:
        size, right, held = np.abs(self.gaps[self.ordered]), self.right[self.ordered], self.survives[self.ordered]
        if len(np.unique(size)) > GROUPS:
            at = np.searchsorted(np.unique(np.quantile(size, np.arange(1, GROUPS) / GROUPS)), size)
        else:
            at = np.unique(size, return_inverse=True)[1]
        groups = [at == g for g in np.unique(at)]
        x = tuple(float(size[g].mean()) for g in groups)

        def line(label: str, hits: NDArray[np.bool_]) -> Line:
            bands = [wilson(int(hits[g].sum()), int(g.sum())) for g in groups]
            return Line(
                label=label,
                x=x,
                y=tuple(float(hits[g].mean()) for g in groups),
                low=tuple(b[0] for b in bands),
                high=tuple(b[1] for b in bands),
            )

        return Curve(
            name="by-gap",
            title="How often it is right, and keeps its answer, against how far the values are apart",
            x_label="difference of the two values",
            y_label="share of pairs",
            unit_y=True,
            lines=(line("right order", right), line("survives a swap", held)),
            says="Bands are 95 % intervals. Inputs of nearly equal values are the hard ones.",
        )


def _gallery(
    subject: Subject, x: NDArray[Any], chosen: NDArray[np.int64], triples: Triples, table: Floats, shown: int
) -> tuple[Gallery, ...]:
    worst = triples.worst(shown)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or not len(worst):
        return ()
    bounds = {"low": subject.inputs.low, "high": subject.inputs.high}
    letter = "c" if isinstance(subject.task, Ranking) else "d"
    exhibits = []
    for triple in worst:
        a, b, c = (int(v) for v in triple)
        says = (
            f"{letter}(A,B) = {table[a, b]:.3f}, {letter}(B,C) = {table[b, c]:.3f}, {letter}(A,C) = {table[a, c]:.3f}"
        )
        panels = tuple(
            Panel.of(name, f"Input {chosen[i]}, {name} of a broken triple", x[i], **bounds)
            for name, i in zip("ABC", (a, b, c), strict=True)
        )
        exhibits.append(Exhibit(index=int(chosen[a]), caption=says, panels=panels))
    return (Gallery(name="triples", title="Three inputs that it puts in no order", exhibits=tuple(exhibits)),)


SHELVED = IsItAConsistentOrder
