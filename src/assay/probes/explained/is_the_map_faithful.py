"""Whether what a map ranks first is what the answer hangs on."""

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
from assay.finding import CONFIDENCE, Alarm, Bars, Beside, Curve, Finding, Line, Matrix, Measure, Table, share
from assay.methods.explain import groups as grouping
from assay.methods.explain.faithfulness import BETTER, NUMBERS, Removal, area, importance, removal_curve, top
from assay.methods.explain.greedy import PICKING, Criterion, greedy_maps, refuse_strange
from assay.methods.explain.groups import Parts, misfit
from assay.methods.explain.maps import METHODS, explain, methods_for, parts_of
from assay.methods.explain.spoken import emptied, number, passes, spoken_of
from assay.methods.explain.subset_robustness import CAP, Search, capped, subset_robustness, usual_cap
from assay.probe import Need, Probe

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

MAPS = ("gradient", "integrated-gradients", "smoothgrad", "gradcam", "occlusion", "kernel-shap")
GREEDY = "greedy-as"
FEWEST = 4  # parts, for a ranking to mean something
CELLS = 4  # patches on either side of an image
SHARES = (0.125, 0.25, 0.5)  # of the parts, where the attack is run
ALL_SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)  # where parts come in or go out
EACH = {"integrated-gradients": 2, "expected-gradients": 5, "smoothgrad": 1}
"""Points that a map of one input takes, for each step of the budget."""
BACKGROUND = 32  # examples that expected gradients start from
ROBUST: tuple[Criterion, ...] = ("s-r-bar", "s-r")
REMOVED: tuple[Removal, ...] = ("insertion", "deletion")
CRITERIA: tuple[Criterion | Removal, ...] = (*ROBUST, *REMOVED)
"""Of a classifier, by the first two of which a map is judged; a number is judged by NUMBERS."""
CALLED: dict[Criterion | Removal, str] = {
    "s-r-bar": "the rest attacked",
    "s-r": "the top attacked",
    "insertion": "insertion",
    "deletion": "deletion",
    "kept": "the top kept",
    "gone": "the top gone",
}
SHORT = {"s-r-bar": "S_r-bar", "s-r": "S_r"}
TELLS: dict[Criterion | Removal, str] = {
    "s-r-bar": "Robustness-S_r-bar: the least l2 change that breaks the answer while the map's top parts stand still; "
    "higher is better",
    "s-r": "Robustness-S_r: the least l2 change that breaks the answer where only the map's top parts may change; "
    "lower is better",
    "insertion": "The probability of the answer while its top parts come in and the others are 0; higher is better",
    "deletion": "The probability of the answer while its top parts become 0; lower is better",
    "kept": "How far the number is from what it was with only the map's top parts there, in its own units; lower is "
    "better",
    "gone": "How far the number moves when the map's top parts go, in its own units; higher is better",
}
HEADLINE = "maps that beat a random one"
Says = Literal["better than random", "not better than random", "cannot tell"]


@dataclass(frozen=True)
class IsTheMapFaithful(Probe):
    """Is the map faithful?

    A map ranks the parts of an input (patches, words, columns). If its top parts matter, an attacker who may change
    only them needs little, and one who may change only the others needs much. Areas under both curves, over the share
    of the parts that counts as top, stand beside what random rankings get from the same inputs.

    Of an answer that is no class, its task names one number, and areas are under two other curves: how far that number
    moves when the top parts are taken out, and how far it is from what it was with only them there, in its own units.

    `methods` may name "greedy-as" too, of a classifier, which picks parts by the criterion (s-r or s-r-bar) itself.
    `parts` cuts inputs otherwise than into patches, words or columns: into pixels, or into each image's own
    superpixels.
    """

    methods: tuple[str, ...] = MAPS
    inputs: int | None = None
    steps: int | None = None
    criterion: Criterion = "s-r"
    parts: Parts | None = None

    in_quick: ClassVar[bool] = False
    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021 (dissertation), sec. 7.1.2; Petsiuk, Das & "
        "Saenko, BMVC 2018, arXiv:1806.07421 (insertion, deletion)"
    )
    needs: ClassVar[tuple[Need, ...]] = ("focus", "gradients")

    def __post_init__(self) -> None:
        self.refuse_below(1, "steps")
        self.refuse_below(2, "inputs")
        known = [*(m for m in METHODS if m != "random"), GREEDY]
        refuse_strange(self.name(), self.criterion, self.parts)
        if len(set(self.methods) & set(known)) < max(1, len(self.methods)):
            raise AssayError(
                f"The setting methods={','.join(self.methods)} of {self.name()!r} must name some of "
                f"{', '.join(known)}, none twice."
            )

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and self.parts is not None and (why := misfit(self.parts, subject.inputs.shape)):
            return why
        if reason is None and self.parts is None and (count := _count(subject)) < FEWEST:
            return f"it ranks the parts of an input, at least {FEWEST}, and an input here has {count}"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        test, budget = subject.data["test"], run.budget
        index = run.pick(test, self.inputs or budget.few(4 + budget.steps // 5))
        if len(index) < 2:
            raise AssayError("Maps are compared with chance over inputs, two at least, and here is one; give it more.")
        background = subject.data.get("train", test)
        start = background.take(run.pick(background, BACKGROUND))[0].to(run.device)
        space, model = subject.inputs, passes(subject.model, subject.draws, subject.task)
        bounds = (space.low, space.high)
        search = Search(steps=self.steps or max(1, budget.steps // 2), rivals=min(2, budget.restarts), bounds=bounds)
        maps = [
            m
            for m in self.methods
            if (m == GREEDY and "classes" in subject.task.gives)
            or m in methods_for(model, torch.empty(1, *space.shape))
        ]
        chances = [f"random {k}" for k in range(1 + budget.restarts)]
        names = [*maps, *chances]
        if self.parts == "superpixels":  # each input has its own
            work = partial(_try_each, subject, names, start, budget.steps, search, self.criterion)
        else:
            groups = _groups(subject, self.parts, start[0])
            work = partial(_try, subject, names, start, budget.steps, search, self.criterion, groups)
        trial = _Trial(maps, chances, run.map(work, subject, "test", index, "is the map faithful"), run.seed)
        first, second = judges = trial.judges
        verdicts = {m: _both(trial.verdict(m, first), trial.verdict(m, second)) for m in maps}
        measures = (
            _headline(trial, verdicts),
            *(trial.measure(m, c) for c in judges for m in maps),
        )
        by = "attacks on and off the parts" if judges == ROBUST else "taking out, and keeping alone, the parts"
        left_out = [m for m in self.methods if m not in maps]
        return Finding(
            says=". ".join(f"{says[0].upper()}{says[1:]}: {', '.join(who)}" for says, who in _sorted(verdicts).items())
            + f". Judged on {len(index)} inputs by {by} that each map ranks first."
            + (f" Left out, as this model or its inputs do not admit them: {', '.join(left_out)}." if left_out else ""),
            measures=measures,
            samples=Table(
                "test",
                {
                    "index": index,
                    **{name: trial.rows[name] for name in ("label", "explained number") if name in trial.rows},
                    **{f"{m}, {CALLED[c]}": trial.area(m, c) for c in trial.criteria for m in (*maps, "random")},
                    **{name: rows for name, rows in trial.rows.items() if name.startswith(f"{GREEDY}, ")},
                },
            ),
            views=(
                *(trial.curve(c) for c in judges),
                *(trial.bars(c) for c in trial.criteria),
                trial.matrix(),
            ),
            alarms=trial.alarms([m.name for m in measures]),
        )


def _count(subject: Subject) -> int:
    return grouping.count(_groups(subject, None, torch.zeros(subject.inputs.shape)))


def _groups(subject: Subject, parts: Parts | None, x: Tensor) -> Tensor:  # *d -> *d
    return parts_of(subject.kind, subject.task, x, CELLS)[0] if parts is None else grouping.cut(x, parts)


def _try_each(
    subject: Subject,
    names: list[str],
    start: Tensor,
    steps: int,
    search: Search,
    criterion: Criterion,
    shard: Shard,
) -> Mapping[str, Tensor]:
    """The same with each image cut into its own superpixels, one after the other."""
    told: list[Mapping[str, Tensor]] = []
    for i, x in enumerate(shard.x):
        cut = grouping.cut(x, "superpixels", low=subject.inputs.low, high=subject.inputs.high)
        if grouping.count(cut) < 2 * FEWEST:
            raise AssayError(f"Image {int(shard.index[i])} has only {grouping.count(cut)} superpixels; take patches.")
        one = replace(shard, x=shard.x[i : i + 1], y=shard.y[i : i + 1], index=shard.index[i : i + 1])
        told.append(_try(subject, names, start, steps, search, criterion, cut, one))
    return {name: torch.cat([each[name] for each in told]) for name in told[0]}


def _try(
    subject: Subject,
    names: list[str],
    start: Tensor,
    steps: int,
    search: Search,
    criterion: Criterion,
    parts: Tensor,
    shard: Shard,
) -> Mapping[str, Tensor]:
    """The curves of every ranking, maps and chance, for the inputs of a shard."""
    task, space = subject.task, subject.inputs
    model = passes(subject.model, subject.draws, task)
    blank = emptied(task, space.shape, (space.low, space.high), start, tokens=subject.tokens)
    said = subject.predict(shard.x)
    target = spoken_of(task, said)
    k = grouping.count(parts)
    counts = sorted({max(1, round(s * k)) for s in SHARES})
    scores, sets = {}, []
    behind: dict[str, Tensor] = {}
    for name in names:
        if name.startswith("random"):
            scores[name] = torch.rand(len(shard.x), k, generator=shard.rng, device=shard.rng.device)
        elif name == GREEDY:
            picking = replace(search, steps=min(search.steps, PICKING.steps), halvings=PICKING.halvings)
            ranked = greedy_maps(model, shard.x, parts, criterion=criterion, search=picking, rng=shard.rng)
            scores[name] = ranked.scores
            behind = {f"{GREEDY}, values capped": ranked.capped, f"{GREEDY}, seeds agree": ranked.stable}
        else:
            found = explain(
                model,
                shard.x,
                target,
                name,
                baseline=blank,
                background=start,
                groups=parts,
                samples=EACH[name] * steps if name in EACH else None,
                rng=shard.rng,
            )
            scores[name] = importance(found.values, parts)
        sets += [top(scores[name], count) for count in counts]
    n, r = len(shard.x), len(names)
    told = dict(behind)
    if "classes" not in task.gives:
        told["explained number"] = number(said, target)
        for kind in NUMBERS:
            for name in names:
                moved = removal_curve(
                    model, shard.x, scores[name], kind=kind, groups=parts, reference=blank, target=target,
                    shares=ALL_SHARES,
                )  # fmt: skip
                told["percent"] = moved.percent.expand(n, -1)
                told[f"curve {name} {kind}"], told[f"area {name} {kind}"] = moved.value, moved.area()
        return told
    # All rankings in one call: they share the nearest rivals, the change with all parts free, and what is found.
    on = torch.stack(sets, 1)  # n r*s k
    value = subset_robustness(
        model, shard.x, torch.cat([~on, on, torch.ones_like(on[:, :1])], 1), groups=parts, search=search
    )
    size, hit = capped(value[:, :-1], usual_cap(shard.x, value[:, -1], search))
    told |= {"label": shard.y, "capped": hit, "percent": torch.tensor([[100 * c / k for c in counts]]).expand(n, -1)}
    for c, half in zip(ROBUST, size.view(n, 2, r, -1).unbind(1), strict=True):
        for name, curve in zip(names, half.unbind(1), strict=True):
            told[f"curve {name} {c}"] = curve
            told[f"area {name} {c}"] = area(told["percent"][0], curve)
    for kind in REMOVED:
        for name in names:
            curves = removal_curve(
                model, shard.x, scores[name], kind=kind, groups=parts, reference=blank, shares=ALL_SHARES
            )
            told[f"area {name} {kind}"] = curves.area()
    return told


class _Trial:
    """Every ranking's curves, and how they compare with chance."""

    def __init__(self, maps: list[str], chances: list[str], rows: Mapping[str, NDArray[Any]], seed: int) -> None:
        self.maps, self.chances, self.rows, self.seed = maps, chances, rows, seed
        numbers = "explained number" in rows
        self.criteria: tuple[Criterion | Removal, ...] = NUMBERS if numbers else CRITERIA
        self.judges: tuple[Criterion | Removal, ...] = NUMBERS if numbers else ROBUST
        """Those by which a map is judged."""

    def of(self, what: Literal["curve", "area"], name: str, criterion: str) -> NDArray[np.float64]:  # -> n s or n
        """A ranking's rows; those of chance are means over its draws."""
        names = self.chances if name == "random" else [name]
        mean: NDArray[np.float64] = np.stack([self.rows[f"{what} {k} {criterion}"] for k in names]).mean(0)
        return mean

    def area(self, name: str, criterion: str) -> NDArray[np.float64]:  # -> n
        return self.of("area", name, criterion)

    def gain(self, name: str, criterion: Criterion | Removal) -> tuple[float, float, float]:
        """How much better than chance, over inputs: the mean log ratio of the areas and its interval, above 0 better.

        Ratios, because the distance to the boundary, and the areas with it, differ tenfold from input to input.
        """
        ratio = np.log(
            np.maximum(self.area(name, criterion), 1e-12) / np.maximum(self.area("random", criterion), 1e-12)
        )
        return _student(ratio if BETTER[criterion] == "higher" else -ratio)

    def verdict(self, name: str, criterion: Criterion | Removal) -> Says:
        _, low, high = self.gain(name, criterion)
        return "better than random" if low > 0 else "not better than random" if high <= 0 else "cannot tell"

    def measure(self, name: str, criterion: Criterion | Removal) -> Measure:
        gain, least, most = (100 * (np.exp(g) - 1) for g in self.gain(name, criterion))
        beside = [Beside("random rankings", float(self.area("random", criterion).mean()))]
        if name != "gradient" and "gradient" in self.maps:
            beside.append(Beside("the gradient", float(self.area("gradient", criterion).mean())))
        called = f"{name}, {CALLED[criterion]}"
        return Measure.mean(
            called,
            self.area(name, criterion),
            better=BETTER[criterion],
            seed=self.seed,
            column=called,
            about=f"{TELLS[criterion]}. {self.verdict(name, criterion).capitalize()}: paired over inputs, the area is "
            f"better by {gain:+.0f} % ({least:+.0f} to {most:+.0f})",
            beside=tuple(beside),
        )

    def curve(self, criterion: Criterion | Removal) -> Curve:
        x = tuple(map(float, self.rows["percent"].mean(0)))  # superpixels are not equally many in all images
        lines = []
        for name in (*self.maps, "random"):
            bands = [_student(column) for column in self.of("curve", name, criterion).T]
            lines.append(
                Line(
                    label=name,
                    x=x,
                    y=tuple(b[0] for b in bands),
                    low=tuple(b[1] for b in bands) if name == "random" else None,
                    high=tuple(b[2] for b in bands) if name == "random" else None,
                )
            )
        return Curve(
            name=criterion.replace("_", "-"),
            title=f"The least change that breaks the answer, {CALLED[criterion]}"
            if criterion in ROBUST
            else f"How far the number moves, {CALLED[criterion]}",
            x_label="parts that count as the map's top, %",
            y_label="l2 size" if criterion in ROBUST else "change of the number",
            lines=tuple(lines),
            says=f"{TELLS[criterion]}; the line to beat is random, with its 95 % band over inputs."
            + (" An attack bounds the least change from above." if criterion in ROBUST else ""),
        )

    def bars(self, criterion: Criterion | Removal) -> Bars:
        gains = [[100 * (float(np.exp(g)) - 1) for g in self.gain(m, criterion)] for m in self.maps]
        verdicts = ", ".join(f"{m}: {self.verdict(m, criterion)}" for m in self.maps)
        return Bars(
            name=f"gain-{criterion.replace('_', '-')}",
            title=f"Better than random rankings by, {CALLED[criterion]}",
            y_label="gain in area, %",
            labels=tuple(self.maps),
            values=tuple(g[0] for g in gains),
            low=tuple(g[1] for g in gains),
            high=tuple(g[2] for g in gains),
            marks=(Beside("a random map", 0.0),),
            says=f"{TELLS[criterion]}; here above 0 is better for all. {verdicts}.",
        )

    def matrix(self) -> Matrix:
        arrow = {"higher": "↑", "lower": "↓"}
        names = (*self.maps, "random")
        return Matrix(
            name="areas",
            title=f"Areas under the {'four' if len(self.criteria) == len(CRITERIA) else 'two'} curves",
            row_label="map",
            column_label="higher (↑) or lower (↓) is better",
            rows=names,
            columns=tuple(f"{SHORT.get(c, c)} {arrow[BETTER[c]]}" for c in self.criteria),
            values=tuple(tuple(float(self.area(m, c).mean()) for c in self.criteria) for m in names),
            says="The last row is what random rankings get. "
            + (
                "Insertion and deletion set parts to 0, so that parts which are 0 already cannot matter to them; the "
                "attacks need no such value."
                if self.judges == ROBUST
                else "Parts that go become 0 in an image or a text, else the mean of some inputs."
            ),
        )

    def alarms(self, doubted: list[str]) -> tuple[Alarm, ...]:
        hit = self.rows["capped"].ravel() if "capped" in self.rows else np.zeros(0)
        alarms = []
        if len(hit) and hit.mean() > 0.1:
            alarms.append(
                Alarm(
                    f"For {share(int(hit.sum()), len(hit))} of the attacks no change was found that is shorter than "
                    f"{CAP:g} times the one with all parts free; they count as that long, which blurs the areas.",
                    doubts=tuple(doubted),
                )
            )
        return tuple(alarms)


def _student(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean and Student's interval: with so few inputs a bootstrap would be too sure."""

    from scipy.stats import t as student

    mean, error = float(values.mean()), float(values.std(ddof=1)) / len(values) ** 0.5
    reach = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return mean, mean - reach, mean + reach


def _both(off: Says, on: Says) -> Says:
    """Better if both attacks say so, not better if one does."""
    if off == on == "better than random":
        return off
    return "not better than random" if "not better than random" in (off, on) else "cannot tell"


def _sorted(verdicts: Mapping[str, Says]) -> dict[Says, list[str]]:
    told: tuple[Says, ...] = ("better than random", "not better than random", "cannot tell")
    return {says: who for says in told if (who := [m for m, v in verdicts.items() if v == says])}


def _headline(trial: _Trial, verdicts: Mapping[str, Says]) -> Measure:
    """The share of maps; the interval goes from those shown to beat chance to those not shown to fail it."""
    ahead = [all(trial.gain(m, c)[0] > 0 for c in trial.judges) for m in trial.maps]
    told = list(verdicts.values())
    return Measure(
        name=HEADLINE,
        value=float(np.mean(ahead)),
        low=float(np.mean([v == "better than random" for v in told])),
        high=float(np.mean([v != "not better than random" for v in told])),
        n=len(told),
        unit="%",
        better="higher",
        about=f"by both {'attacks' if trial.judges == ROBUST else 'curves'}; the interval goes from the maps that "
        "surely do to those that may",
        beside=(Beside("random rankings", 0.0),),
    )


SHELVED = IsTheMapFaithful
