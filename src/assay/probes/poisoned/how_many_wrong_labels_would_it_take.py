"""How many wrong training labels would it take to spoil it, where an enemy chooses them, and where chance does?

The features stay as they are, and the last layer is learnt anew from the changed labels: a convex loss to its minimum,
so that the labels and not a seed decide. Half of the test inputs are those that an enemy aims at, the others judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.finding import Alarm, Beside, Curve, Exhibit, Finding, Gallery, Line, Measure, Table, bootstrap
from assay.methods.poison.head import fit_heads
from assay.methods.poison.influence import SHARP, influence, pull_of_head
from assay.methods.poison.most_harmful import by_chance, enemies
from assay.methods.poison.moved_targets import moves, ridge_matrix
from assay.methods.poison.rounds import Chosen, in_rounds, wrong_slope
from assay.methods.poison.trial import Inputs, Trial, borne, first_over
from assay.probe import Need, Probe
from assay.probes._features import Seen
from assay.probes._on_show import on_show
from assay.standard import Standard
from assay.tasks import Regression

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

POINTS, TRIED = 12, 5  # numbers of flips that are tried; the largest is one label of five
SIZES = 24  # of changes of targets
LOST, HALF, GROWN = 0.1, 0.5, 0.5  # of all inputs; of the accuracy that there was; more of the error
USUAL = 0.03  # of the labels: as many as are wrong on average in well-known data sets (Northcutt et al., 2021)
FEW, JUDGES = 10, 30  # labels of a class, inputs that judge
RIDGES = (1e-2, 1e-3, 1e-4, 1e-5)  # of which a smaller one than that told may make as good a layer
TENTH = 0.1  # of the tolerance: a smaller error counts as that, for half of nothing is nothing
BELOW = 0.02  # that a layer learnt anew may be worse than the model
CLASSES = ("10 points are lost", "accuracy halves")
HEADLINES = (*(f"wrong labels before {words}" for words in CLASSES), "change of targets before the error grows by half")
Knows = Literal["estimated", "true"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HowManyWrongLabelsWouldItTake(Probe):
    """How many wrong training labels would it take to spoil it?

    The most harmful labels are found by their influence on the last layer and by label propagation on the model's own
    features; the most central ones and random ones stand beside. Each set of wrong labels is learnt by the last layer,
    `ridge` its regularisation, and judged by test inputs that no enemy saw. An enemy aims at the other half of them and
    knows the training data; of the labels aimed at it knows the `true` ones, or has them `estimated` by the layer as it
    was. `flips` is the most that are tried, a fifth of the labels if left out. The features stay as right labels made
    them, and a better enemy may exist: a number found here is one that suffices, not the least. Where targets are
    numbers they are moved instead, by the exact worst change of a given size.
    """

    flips: int | None = None
    knows: Knows = "estimated"
    ridge: float = 1e-3
    gamma: float | None = None
    draws: int = 5

    needs: ClassVar[tuple[Need, ...]] = ("train",)
    in_quick: ClassVar[bool] = False
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=USUAL),)
    source: ClassVar[str] = (
        "Liu, UCLA 2021, ch. 1, and Liu et al., NeurIPS 2019 (label propagation); Koh and Liang, ICML 2017, "
        "arXiv:1703.04730 (influence)"
    )

    def __post_init__(self) -> None:
        self.refuse_below(1, "flips", "draws")
        for name in ("ridge", "gamma"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise AssayError(f"The setting {name}={value} of {self.name()!r} must be a number above 0.")

    def why_not(self, subject: Subject) -> str | None:
        lacks = super().why_not(subject)
        if lacks is not None:
            return lacks
        classes = "classes" in subject.task.gives
        if not classes and not isinstance(subject.task, Regression):
            return f"it changes labels that are classes or numbers, and the subject's task is {subject.task.name()}"
        if subject.draws > 1:
            return "it learns from features that are the same each time, and this model is random"
        if subject.tokens and "head" not in subject.layers:
            return "it needs a last linear layer, whose inputs are features, and the model has none that is a module"
        labels = np.asarray(subject.data["train"].labels)
        if classes and len(np.unique(labels)) < 2:
            return "all training labels are of one class, and there is no other that one could be changed to"
        if classes and self.flips is not None and self.flips > len(labels):
            return f"it is to change {self.flips} training labels, and there are {len(labels)}; set fewer flips"
        return None

    def ask(self, subject: Subject, run: Run) -> Finding:
        seen = Seen.of(subject, run)
        if isinstance(subject.task, Regression):
            return self._moved(subject, seen, run)
        return self._flipped(subject, seen, run)

    def _flipped(self, subject: Subject, seen: Seen, run: Run) -> Finding:
        given, names = seen.inputs, subject.task.classes
        n, k = len(given.y), len(names)
        most = max(1, n // TRIED) if self.flips is None else min(self.flips, n)
        usual = min(most, max(1, round(USUAL * n)))
        counts = sorted({*np.geomspace(1, most, POINTS).round().astype(int).tolist(), usual})
        layer = fit_heads(given.x, given.y[None], k, ridge=self.ridge)[0]
        believed = given.aimed_y if self.knows == "true" else (given.aimed @ layer).argmax(1)
        trial = Trial(given, k, layer, believed, ridge=self.ridge)
        chance = {f"draw {i}": c for i, c in enumerate(by_chance(given.y, most, self.draws, run.rng()))}
        limits = dict(zip(CLASSES, (LOST, HALF * float(trial.clean.mean())), strict=True))
        with run.progress("layers learnt from wrong labels", 2) as tick:
            chosen, missing = enemies(
                given.x, given.y, k, given.aimed, believed, ridge=self.ridge, gamma=self.gamma, counts=counts
            )
            tick(1)
            for name, each in (chosen | chance).items():
                trial.learn(name, each, counts)
            for limit in limits.values():
                trial.look_closer(chosen, limit)
            tick(1)
        worst = trial.worst(chosen, usual)
        tried, lost = trial.by_the_worst(chosen)
        by_draws = np.mean([[trial.lost(name, at).mean() for at in counts] for name in chance], axis=0)
        measures = [
            self._borne(name, tried, lost, limit, n, Beside("where chance chooses", float(held) / n), run.seed)
            for name, limit in zip(HEADLINES, limits.values(), strict=False)
            for held in [borne(counts, by_draws, limit)]
        ]
        rows = {
            "the worst labels": trial.lost(worst, usual),
            **{f"labels by {name}": trial.lost(name, usual) for name in chosen},
            "random labels": np.mean([trial.lost(name, usual) for name in chance], axis=0),
            "the worst labels, where aimed at": trial.aimed_clean.astype(float) - trial.aimed[worst, usual],
        }
        about = f"share right before less share right after {usual:,} of {n:,} training labels were changed"
        measures += [
            Measure.mean(f"accuracy lost to {words}", values, better="lower", seed=run.seed, unit="%", about=about)
            for words, values in rows.items()
        ]
        measures.append(_learnt_anew(trial.clean, seen.right))
        first = {words: first_over(tried, lost.mean(1), limit) for words, limit in limits.items()}
        costs = {words: 100 * float(rows[words].mean()) for words in ("the worst labels", "random labels")}
        says = (
            f"It takes {_enough(first['10 points are lost'], most, n)} to cost 10 points and "
            f"{_enough(first['accuracy halves'], most, n)} to halve its accuracy, where an enemy chooses them. "
            f"{usual:,} of them, {100 * usual / n:.1f} %, cost {costs['the worst labels']:.1f} points of "
            f"{100 * trial.clean.mean():.0f} then, and {costs['random labels']:.1f} where chance chooses."
        )
        return _sure_enough(
            Finding(
                says=says,
                measures=tuple(measures),
                samples=_table(seen, trial, chosen),
                views=(_curve(trial, chosen, tuple(chance)), *_harmful(subject, seen, chosen[worst], run.budget.shown)),
                alarms=(
                    *_few(given.y, names),
                    *_worse(trial.clean, seen.right),
                    *_nothing_to_lose(trial.clean, (given.judges_y == given.y.mode().values).cpu().numpy()),
                    *self._by_ridge(seen, trial, chosen, counts[: counts.index(usual) + 1]),
                    *_no_graph(missing),
                ),
            ),
            len(trial.clean),
        )

    def _by_ridge(
        self, seen: Seen, trial: Trial, chosen: dict[str, Chosen], counts: Sequence[int]
    ) -> list[Alarm]:  # fmt: skip
        """Doubt where a smaller ridge makes as good a layer, and the last of the counts costs that one too much."""
        given, at = seen.inputs, counts[-1]
        rounds = counts[:: -max(1, len(counts) // 3)][::-1]  # few: they are dear
        if trial.lost(trial.worst(chosen, at), at).mean() >= LOST:
            return []  # it is told without
        for ridge in (each for each in RIDGES if each < self.ridge):
            try:
                layer = fit_heads(given.x, given.y[None], trial.classes, ridge=ridge, start=trial.layer)[0]
                other = Trial(given, trial.classes, layer, trial.believed, ridge=ridge)
                if other.clean.mean() < min(trial.clean.mean(), seen.right.mean()):
                    continue
                pull = pull_of_head(given.x, trial.classes, given.aimed, trial.believed, ridge=ridge)
                tried = {**chosen, "influence": in_rounds(given.y, pull, rounds)}
                for name, each in tried.items():
                    other.learn(name, each, [at])
            except AssayError:  # so small a ridge leaves no layer
                break
            cost = float(other.lost(other.worst(tried, at), at).mean())
            if cost >= LOST:
                return [
                    Alarm(
                        f"With ridge={ridge:g} the last layer is as right, on {100 * other.clean.mean():.1f} %, and "
                        f"{100 * cost:.1f} points go to {at:,} wrong label{'s'[: at - 1]}: how many it takes "
                        "hangs on the ridge.",
                        HEADLINES[:1],
                    )
                ]
        return []

    def _borne(
        self, name: str, tried: Sequence[float], lost: Floats, limit: float, n: float, chance: Beside, seed: int
    ) -> Measure:  # k, k j
        """The share that is borne before `limit` is lost, with its interval by drawing those that judge anew."""
        judges = lost.shape[1]
        value = float(borne(tried, lost.mean(1), limit))
        low, high = bootstrap(lambda weights: borne(tried, weights @ lost.T / judges, limit), judges, seed=seed)
        about = f"the most of {n:,} training labels, as the worst of the enemies chooses them, that may be wrong"
        if value == tried[-1]:
            about += "; more were not tried, and it takes more"
        if high >= tried[-1]:  # what was not tried may be borne
            high = max(n, high)
        return Measure(
            name=name,
            value=value / n,
            low=min(value, low) / n,
            high=max(value, high) / n,
            n=None if value == tried[-1] else judges,  # more inputs that judge would not settle it, more flips would
            unit="%",
            better="higher",
            about=f"{about}; judged by {judges:,} inputs that no enemy saw",
            beside=(Beside("the most that was tried", tried[-1] / n), chance),
        )

    def _moved(self, subject: Subject, seen: Seen, run: Run) -> Finding:
        """Of targets that are numbers, the first of them where an input has several, in units of their spread."""
        task, given = subject.task, seen.inputs
        assert isinstance(task, Regression)
        columns = [part.double().reshape(len(part), -1)[:, 0] for part in (given.y, given.aimed_y, given.judges_y)]
        middle, spread = float(columns[0].mean()), float(columns[0].std(correction=0))
        if not spread > 0:
            raise AssayError(f"All training targets are {middle:g}; there is nothing that could be learnt from them.")
        y, aimed_y, truth = (np.asarray(((part - middle) / spread).cpu().numpy()) for part in columns)
        sizes = sorted({*np.geomspace(0.005, 1.0, SIZES).tolist(), USUAL})
        rng = np.random.default_rng(run.seed)
        with run.progress("layers learnt from moved targets", 1) as tick:
            found = moves(
                given.x, y, given.aimed, aimed_y, sizes,
                known=self.knows == "true", ridge=self.ridge, gamma=self.gamma, draws=self.draws, rng=rng,
            )  # fmt: skip
            tick(1)
        by_aimed, by_judges = (ridge_matrix(given.x, part, self.ridge) for part in (given.aimed, given.judges))
        believed = aimed_y if self.knows == "true" else by_aimed @ y

        def errors(matrix: Floats, change: Floats, right: Floats) -> Floats:  # m n, r n, m -> r m
            return np.asarray(((y + change) @ matrix.T - right) ** 2)

        clean = errors(by_judges, np.zeros((1, len(y))), truth)[0]
        fooled = {name: errors(by_aimed, change, believed).mean(1) for name, change in found.chosen.items()}
        who = [list(fooled)[k] for k in np.stack(list(fooled.values())).argmax(0)]
        squared = {name: errors(by_judges, change, truth) for name, change in found.chosen.items()}
        worst = np.stack([squared[name][i] for i, name in enumerate(who)])  # r j
        chance = np.stack([errors(by_judges, change, truth) for change in found.by_chance])  # draws r j
        # e >= (1 + GROWN)^2 e_0 in means is e - (1 + GROWN)^2 e_0 >= 0, of whatever judges are drawn
        floor = (TENTH * task.tolerance[0] / spread) ** 2
        small = clean.mean() < floor
        allowed = (1 + GROWN) ** 2 * (np.full_like(clean, floor) if small else clean)
        over = worst - allowed
        held = float(borne(sizes, chance.mean((0, 2)) - allowed.mean(), 0.0))
        main = self._borne(HEADLINES[2], sizes, over, 0.0, 1, Beside("where chance chooses", held), run.seed)
        grows = f"{100 * (main.value or 0.0):.1f} %" + (" and more" if main.value == sizes[-1] else "")
        at = sizes.index(USUAL)
        rows = {"the worst change": worst[at], **{f"a change by {name}": each[at] for name, each in squared.items()}}
        rows["a random change"] = chance[:, at].mean(0)
        about = f"in root mean square, after a change of the targets by {100 * USUAL:.0f} % of their spread"
        measures = [
            replace(
                main,
                about="root mean square over the targets, of their standard deviation, as the worst of the enemies "
                f"moves them; judged by {len(clean):,} inputs that no enemy saw"
                + ("; the error, under a tenth of the tolerance, counts as that" if small else ""),
            ),
            *(_growth(f"growth of the error by {words}", each, clean, about, run.seed) for words, each in rows.items()),
        ]  # fmt: skip
        within = _within(by_judges, given, task.tolerance)
        measures.append(_learnt_anew(within, seen.right))
        return _sure_enough(
            Finding(
                says=f"A change of the training targets by {grows} of their spread, as an enemy chooses it, is borne "
                f"before the error {'comes to 0.15 of the tolerance' if small else 'grows by half'}. One of "
                f"{100 * USUAL:.0f} % makes it grow by {100 * (measures[1].value or 0.0):.1f} %, a random one by "
                f"{100 * (measures[-2].value or 0.0):.1f} %.",
                measures=tuple(measures),
                samples=_moved_table(seen, columns[0].cpu().numpy(), spread * found.chosen[who[at]][at]),
                views=(_growing(sizes, squared, chance, clean, worst),),
                alarms=(*_worse(within, seen.right), *_no_graph(found.missing)),
            ),
            len(clean),
        )


def _enough(first: int | None, most: int, n: int) -> str:
    if first is None:
        return f"more than {most:,} of {n:,} training labels"
    return f"{first:,} of {n:,} training labels ({100 * first / n:.1f} %)"


def _within(by_judges: Floats, given: Inputs, tolerance: Sequence[float]) -> NDArray[np.bool_]:  # j n -> j
    """Whether a layer learnt anew is within the tolerance of every target, as the model has to be."""
    y, truth = (np.asarray(part.double().reshape(len(part), -1).cpu().numpy()) for part in (given.y, given.judges_y))
    middle = y.mean(0)  # the layer is linear in the targets, so that their scale is no matter
    return np.asarray((np.abs(by_judges @ (y - middle) + middle - truth) < np.asarray(tolerance)).all(1))


def _growth(name: str, after: Floats, before: Floats, about: str, seed: int) -> Measure:  # j, j
    def of(weights: Floats) -> Floats:  # r j -> r
        return np.asarray(np.sqrt((weights @ after) / np.maximum(weights @ before, 1e-300)) - 1)

    value = float(of(np.ones((1, len(after))))[0])
    low, high = bootstrap(of, len(after), seed=seed)
    return Measure(
        name=name, value=value, low=min(low, value), high=max(high, value), n=len(after), unit="%", better="lower",
        about=about,
    )  # fmt: skip


def _learnt_anew(right: NDArray[np.bool_], own: NDArray[np.bool_]) -> Measure:  # j, j
    return Measure.proportion(
        "right answers of the layer learnt anew",
        right,
        better="higher",
        about="of a last layer learnt from the training data as they are, on the features of the model",
        beside=(Beside("of the model itself", float(own.mean())),),
    )


def _worse(right: NDArray[np.bool_], own: NDArray[np.bool_]) -> list[Alarm]:  # j, j
    """A layer that does not reach the model tells of itself."""
    gap = own.astype(float) - right
    least, _ = bootstrap(lambda weights: weights @ gap / len(gap), len(gap), seed=0)
    if least <= BELOW:
        return []
    return [
        Alarm(
            f"The last layer learnt anew is right on {100 * right.mean():.0f} % of the inputs that judge, the model on "
            f"{100 * own.mean():.0f} %: the numbers are of that layer and not of the model. Another ridge may bring it "
            "nearer.",
            HEADLINES,
        )
    ]


def _nothing_to_lose(right: NDArray[np.bool_], commonest: NDArray[np.bool_]) -> list[Alarm]:  # j, j
    """Labels cannot cost 10 points where there are none beyond those of one answer to everything."""
    gap = right.astype(float) - commonest
    least, _ = bootstrap(lambda weights: weights @ gap / len(gap), len(gap), seed=0)
    if least > LOST:
        return []
    return [
        Alarm(
            f"The last layer is right on {100 * right.mean():.0f} % of the inputs that judge, the commonest class on "
            f"{100 * commonest.mean():.0f} %: wrong labels have not surely {100 * LOST:.0f} points to take.",
            HEADLINES,
        )
    ]


def _few(labels: torch.Tensor, names: Sequence[str]) -> list[Alarm]:  # n
    count = torch.bincount(labels, minlength=len(names)).tolist()
    few = [f"{name} {c}" for name, c in zip(names, count, strict=True) if c < FEW]
    if not few:
        return []
    told = ", ".join(few[:5]) + (", ..." if len(few) > 5 else "")
    return [Alarm(f"Classes with fewer than {FEW} training labels among those looked at are spoiled by few: {told}.")]


def _no_graph(missing: str) -> list[Alarm]:
    return [Alarm(f"Label propagation had no graph, and those who use it were left out: {missing}")] if missing else []


def _sure_enough(finding: Finding, judges: int) -> Finding:
    """A finding whose headlines are not told where too few inputs judge."""
    if judges >= JUDGES:
        return finding
    told = Alarm(f"Only {judges} inputs judge; under {JUDGES} nothing is told of how many labels it takes.", HEADLINES)
    blank = tuple(
        replace(m, value=None, low=None, high=None) if m.name in HEADLINES else m for m in finding.measures
    )  # fmt: skip
    return replace(finding, measures=blank, alarms=(*finding.alarms, told), says=told.says)


def _table(seen: Seen, trial: Trial, chosen: dict[str, Chosen]) -> Table:
    """Of each training input what its label would harm most as, and when each enemy would take it (0: never)."""
    x, y, aimed, layer = seen.inputs.x, seen.inputs.y, seen.inputs.aimed, trial.layer
    pull = influence(x, layer, aimed, wrong_slope(aimed @ layer, trial.believed, SHARP), ridge=trial.ridge)
    harm = (pull - pull.gather(1, y[:, None])).scatter(1, y[:, None], -torch.inf).max(1)
    columns: dict[str, NDArray[Any]] = {
        "index": seen.places,
        "label": y.cpu().numpy(),
        "worst as": harm.indices.cpu().numpy(),
        "harm": harm.values.cpu().numpy(),
    }
    for name, each in chosen.items():
        rank = np.zeros(len(y), dtype=np.int64)
        rank[each.places.cpu().numpy()] = np.arange(1, len(each.places) + 1)
        columns[f"rank by {name}"] = rank
    return Table("train", columns)


def _moved_table(seen: Seen, targets: Floats, change: Floats) -> Table:  # n, n
    return Table("train", {"index": seen.places, "target": targets, "moved by": change})


def _curve(trial: Trial, chosen: dict[str, Chosen], draws: Sequence[str]) -> Curve:
    judges, start = len(trial.clean), int(trial.clean.sum())
    lines = []
    for name in chosen:
        counts = trial.counts([name])
        lines.append(Line.shares(name, (0, *counts), (start, *(trial.right[name, k].sum() for k in counts)), judges))
    counts, base = trial.counts(draws), start / judges
    drawn = np.array([[trial.right[name, k].mean() for k in counts] for name in draws])  # draws k
    lines.append(
        Line(
            label="random",
            x=tuple(map(float, (0, *counts))),
            y=(base, *drawn.mean(0).tolist()),
            low=(base, *drawn.min(0).tolist()),
            high=(base, *drawn.max(0).tolist()),
        )
    )
    counts = trial.counts(chosen)
    aimed = [float(trial.aimed[trial.worst(chosen, k), k].mean()) for k in counts]
    lines.append(
        Line(
            label="worst, where aimed at",
            x=tuple(map(float, (0, *counts))),
            y=(float(trial.aimed_clean.mean()), *aimed),
        )
    )
    return Curve(
        name="accuracy-against-flips",
        title="Accuracy against wrong training labels",
        x_label="wrong labels",
        y_label="right answers",
        lines=tuple(lines),
        unit_y=True,
        says="On inputs that no enemy saw, but for the last line. Bands are what so few inputs leave open; of random "
        "labels, from the best to the worst draw.",
    )


def _growing(sizes: Sequence[float], squared: dict[str, Floats], chance: Floats, clean: Floats, worst: Floats) -> Curve:
    base, x = float(np.sqrt(clean.mean())), (0.0, *sizes)
    lines = [Line(label=name, x=x, y=(base, *np.sqrt(each.mean(1)).tolist())) for name, each in squared.items()]
    drawn = np.sqrt(chance.mean(2))  # draws r
    lines.append(
        Line(
            label="random",
            x=x,
            y=(base, *drawn.mean(0).tolist()),
            low=(base, *drawn.min(0).tolist()),
            high=(base, *drawn.max(0).tolist()),
        )
    )
    return Curve(
        name="error-against-moves",
        title="Error against the size of a change of the training targets",
        x_label="change, in standard deviations of the targets",
        y_label="root mean square error, in the same",
        lines=tuple(lines),
        says="On inputs that no enemy saw.",
    )


def _harmful(subject: Subject, seen: Seen, chosen: Chosen, most: int) -> tuple[Gallery, ...]:
    names, rows = subject.task.classes, chosen.places[:most].cpu().numpy()
    x = subject.data["train"].take(seen.places[rows])[0]
    exhibits: list[Exhibit] = []
    for row, to, one in zip(rows, chosen.to[:most].tolist(), x, strict=True):
        caption = f"{names[int(seen.inputs.y[row])]}, says its label; most harmful as {names[to]}"
        exhibits.append(on_show(subject, subject.data["train"], int(seen.places[row]), one, caption))
    return (
        Gallery(
            name="harmful",
            title="The labels to look at twice",
            exhibits=tuple(exhibits),
            says="Those whose change would do most harm, the worst first; numbers are places in the training data. "
            "They are not said to be wrong now.",
        ),
    )


SHELVED = HowManyWrongLabelsWouldItTake
