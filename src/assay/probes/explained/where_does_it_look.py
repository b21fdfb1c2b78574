"""Where a model looks, by several maps side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor

from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Exhibit, Finding, Gallery, Matrix, Measure, Panel, Table, share
from assay.methods.explain.faithfulness import importance
from assay.methods.explain.greedy import PICKING, Criterion, greedy_maps, refuse_strange
from assay.methods.explain.groups import Parts, cut, misfit, spread
from assay.methods.explain.maps import METHODS, explain, methods_for, missed, parts_of
from assay.methods.explain.spoken import emptied, number, passes, spoken_of
from assay.methods.explain.subset_robustness import Search
from assay.methods.explain.twins import map_distance
from assay.probe import Need, Probe

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

MAPS = ("gradient", "integrated-gradients", "smoothgrad", "gradcam", "occlusion", "kernel-shap", "rise")
BLIND = ("edges", "random")
"""Maps that never see the model, to read the agreement of the others against."""
ASKS_ONLY = ("occlusion", "lime", "kernel-shap", "rise", *BLIND)
"""Maps that need no gradients."""
EACH = {
    "integrated-gradients": 2, "expected-gradients": 5, "smoothgrad": 1, "lime": 10, "kernel-shap": 10, "rise": 10
}  # fmt: skip
"""Points or sets of features that a map of one input takes, for each step of the budget."""
GREEDY = "greedy-as"
ABOUT = {**METHODS, GREEDY: "the parts whose change, together with others, changes the answer"}
BACKGROUND = 32  # examples that expected gradients start from
MISS = 0.1  # of the score's change (of its values, where that is near 0): what a map that should add up may miss
MOST = 24  # parts of an input that is no image, for its maps to be shown
HEADLINE = "agreement between the maps"
FURTHER = (
    "Whether a map is faithful is judged by is-the-map-faithful, whether it needs the model by "
    "does-the-map-need-the-model."
)


@dataclass(frozen=True)
class WhereDoesItLook(Probe):
    """Where does it look?

    Each map says how much every part of an input (a patch, a word, a column, a stretch of time) speaks for the class
    that is answered, or for the number of the answer that its task names. Agreement is Spearman's rank correlation
    between two maps of one input, over its parts, the sign left out. Maps that agree may be wrong together; of maps
    that do not agree, at most one is right. `methods` may name "greedy-as" too, of a classifier, which picks parts by
    the criterion (s-r or s-r-bar); `parts` cuts images into pixels or, each image for itself, into superpixels.
    """

    methods: tuple[str, ...] = MAPS
    inputs: int | None = None
    criterion: Criterion = "s-r"
    parts: Parts | None = None

    in_quick: ClassVar[bool] = False
    needs: ClassVar[tuple[Need, ...]] = ("focus",)
    source: ClassVar[str] = (
        "Krishna et al. 2022, arXiv:2202.01602 (agreement); Sundararajan, Taly & Yan, ICML 2017, arXiv:1703.01365 "
        "(completeness)"
    )

    def __post_init__(self) -> None:
        self.refuse_below(1, "inputs")
        known = [*(m for m in METHODS if m not in BLIND), GREEDY]
        refuse_strange(self.name(), self.criterion, self.parts)
        if len(set(self.methods) & set(known)) < max(2, len(self.methods)):
            raise AssayError(
                f"The setting methods={','.join(self.methods)} of {self.name()!r} must name two or more of "
                f"{', '.join(known)}, none twice."
            )

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and self.parts is not None and (why := misfit(self.parts, subject.inputs.shape)):
            return why
        if reason is None and len(self._maps(subject)) < 2:
            return f"two maps are needed to compare, and of {', '.join(self.methods)} this model admits fewer"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        test = subject.data["test"]
        drawn = run.pick(test, self.inputs or run.budget.few(run.budget.steps // 2))
        lots = {"random": drawn, **_chosen(subject, run)}
        every = np.concatenate(list(lots.values()))
        names = (*self._maps(subject), *(b for b in BLIND if b == "random" or subject.inputs.is_image))
        background = subject.data.get("train", test)
        start = background.take(run.pick(background, BACKGROUND))[0].to(run.device)
        rows = run.map(partial(self._look, subject, names, start, run.budget.steps), subject, "test", every, "maps")
        seen = _Seen(subject, names[: len(self._maps(subject))], names, every, rows)
        few = np.arange(len(drawn))  # the random ones come first, and only they are measured
        headline = seen.between()[few]
        agree = {m: seen.with_others(m)[few] for m in names}
        blind = {b: float(agree[b].mean()) for b in names if b in BLIND}
        beside = tuple(Beside("an edge detector" if b == "edges" else "a random map", v) for b, v in blind.items())
        measures = (
            Measure.mean(
                HEADLINE,
                headline,
                better="higher",
                seed=run.seed,
                column="agreement",
                about="Spearman's rank correlation over the parts of an input, mean over pairs of maps; 1 if all rank "
                "them alike",
                beside=beside,
            ),
            *(
                Measure.mean(
                    f"agreement of {m} with the others",
                    agree[m],
                    better="higher",
                    seed=run.seed,
                    column=m,
                    about=ABOUT[m],
                    beside=beside,
                )
                for m in seen.maps
            ),
        )
        return Finding(
            says=self._says(seen, headline, agree, blind),
            measures=measures,
            samples=Table(
                "test",
                {
                    "index": drawn,
                    **{name: column[few] for name, column in seen.told.items()},
                    "agreement": headline,
                    **agree,
                    **{f"{m} misses": miss[few] for m, miss in seen.miss.items()},
                    **{k: v[few] for k, v in rows.items() if k.startswith(f"{GREEDY}, ")},
                    **{f"{m} misses, in units of the score": rows[f"gap {m}"][few] for m in seen.miss},
                },
            ),
            views=(_matrix(seen, few), _bars(measures[1:], beside), *_shown(seen, lots, run.budget.shown)),
            alarms=(*_incomplete(seen), *_cheap(headline, blind)),
        )

    def _maps(self, subject: Subject) -> tuple[str, ...]:
        """Those of the methods that this model and its inputs admit."""
        model = passes(subject.model, subject.draws, subject.task)
        admitted = methods_for(model, torch.empty(1, *subject.inputs.shape))
        if "classes" in subject.task.gives:  # it looks for the least change to another class
            admitted = (*admitted, GREEDY)
        return tuple(m for m in self.methods if m in admitted and (subject.differentiable or m in ASKS_ONLY))

    def _look(
        self, subject: Subject, names: Sequence[str], start: Tensor, steps: int, shard: Shard
    ) -> Mapping[str, Tensor]:
        """The maps of a shard, and for those that promise to add up, how much of the promise they miss."""
        low, high = subject.inputs.low, subject.inputs.high
        if self.parts == "superpixels" and len(shard.x) > 1:  # each image has its own
            each = [replace(shard, x=shard.x[i : i + 1], y=shard.y[i : i + 1]) for i in range(len(shard.x))]
            told_each = [self._look(subject, names, start, steps, one) for one in each]
            return {k: _joined([one[k] for one in told_each]) for k in told_each[0]}
        if self.parts is None:
            groups, _ = parts_of(subject.kind, subject.task, shard.x[0])
        else:
            groups = cut(shard.x[0], self.parts, low=low, high=high)
        said, model = subject.predict(shard.x), passes(subject.model, subject.draws, subject.task)
        target = spoken_of(subject.task, said)
        told = {"label": shard.y, "out": said, "number": number(said, target), "x": shard.x}
        for m in names:
            if m == GREEDY:
                search = Search(
                    steps=min(PICKING.steps, max(1, steps // 2)), halvings=PICKING.halvings, bounds=(low, high)
                )
                ranked = greedy_maps(model, shard.x, groups, criterion=self.criterion, search=search, rng=shard.rng)
                told[f"parts {m}"] = ranked.scores.to(shard.x.dtype)
                told[f"map {m}"] = torch.stack(
                    [spread(told[f"parts {m}"][i : i + 1], groups)[0] for i in range(len(shard.x))]
                )
                told[f"{m}, values capped"], told[f"{m}, seeds agree"] = ranked.capped, ranked.stable
                continue
            found = explain(
                model,
                shard.x,
                target,
                m,
                baseline=emptied(subject.task, subject.inputs.shape, (low, high), start, tokens=subject.tokens),
                background=start,
                groups=None if m == "rise" else groups,
                samples=EACH[m] * steps if m in EACH else None,
                rng=shard.rng,
            )
            told[f"map {m}"] = found.values
            told[f"parts {m}"] = importance(found.values, groups)
            if (lost := missed(found)) is not None:
                told[f"miss {m}"], told[f"gap {m}"] = lost.share, lost.gap
        return told

    def _says(
        self,
        seen: _Seen,
        headline: NDArray[np.float64],
        agree: Mapping[str, NDArray[np.float64]],
        blind: Mapping[str, float],
    ) -> str:
        alone = [m for m in seen.maps if agree[m].mean() <= seen.chance / len(headline) ** 0.5]
        left_out = [m for m in (*self.methods, "edges") if m not in seen.names]
        parts = [
            f"Two maps of one input agree by {headline.mean():.2f} (1: one order of its parts, 0: unrelated), over "
            f"{len(headline)} random inputs and {len(seen.maps)} maps"
        ]
        if "edges" in blind:
            parts[0] += f"; an edge detector, which never saw the model, agrees with them by {blind['edges']:.2f}"
        if alone:
            parts.append(f"No nearer to the others than chance: {', '.join(alone)}")
        if left_out:
            parts.append(f"Left out, as this model or its inputs do not admit them: {', '.join(left_out)}")
        return ". ".join(parts) + "."


def _joined(rows: Sequence[Tensor]) -> Tensor:
    """Rows of images that have not equally many parts: those that an image lacks count 0: 1 k each -> n most."""
    most = max(row.shape[1] for row in rows) if rows[0].ndim == 2 else 0
    return torch.cat([F.pad(row, (0, most - row.shape[1])) if most else row for row in rows])


def _chosen(subject: Subject, run: Run) -> dict[str, NDArray[np.int64]]:
    """The inputs that one would want to see: answers that are wrong and sure, and answers that are hardly any.

    Of what is no class, those with the least margin, and the least sure where answers say so."""
    index, half = run.pick(subject.data["test"]), max(1, run.budget.shown // 2)
    logits, label = run.predict(subject, "test", index, "where does it look")
    if "classes" not in subject.task.gives:
        out, target = torch.from_numpy(logits), torch.from_numpy(label)
        margin, sure = subject.task.margin(out, target), subject.task.confidence(out)
        worst = index[margin.argsort(stable=True)[:half].numpy()]
        least = {} if sure is None else {"least sure": index[sure.argsort(stable=True)[:half].numpy()]}
        return {"worst answers": worst, **least}
    chance = softmax(logits.astype(np.float64), axis=1)
    order = np.argsort(-chance.max(1), kind="stable")
    wrong = order[chance.argmax(1)[order] != label[order]]
    return {"surest mistakes": index[wrong[:half]], "least sure": index[order[::-1][:half]]}


class _Seen:
    """What was seen: the maps of every input, how each is ranked by its parts, and what that is worth."""

    def __init__(
        self,
        subject: Subject,
        maps: tuple[str, ...],
        names: tuple[str, ...],
        index: NDArray[np.int64],
        rows: Mapping[str, NDArray[Any]],
    ) -> None:
        from scipy.stats import norm

        self.subject, self.maps, self.names, self.index, self.rows = subject, maps, names, index, rows
        self.told: dict[str, NDArray[Any]] = {"explained number": rows["number"]}
        """What was said of each input, one number each."""
        if "classes" in subject.task.gives:
            chance = torch.from_numpy(rows["out"]).double().softmax(1).numpy()
            label = np.asarray(rows["label"], dtype=np.int64)
            self.told = {"label": label, "said": chance.argmax(1), "confidence": chance.max(1)}
        self.miss = {m: rows[f"miss {m}"] for m in maps if f"miss {m}" in rows}
        parts = [torch.from_numpy(rows[f"parts {m}"])[:, None].double() for m in names]  # n 1 k each
        agree = torch.stack([torch.stack([1 - map_distance(a, b, "spearman") for b in parts]) for a in parts])
        self.agree: NDArray[np.float64] = agree.numpy()  # names names n
        self.chance = float(norm.ppf(0.95)) / np.sqrt(max(1, parts[0].shape[2] - 1))
        """What unrelated rankings stay below, 95 times in 100."""

    def between(self) -> NDArray[np.float64]:
        """The mean over pairs of maps, blind ones left out: n."""
        a, b = np.triu_indices(len(self.maps), 1)
        mean: NDArray[np.float64] = self.agree[a, b].mean(0)
        return mean

    def with_others(self, name: str) -> NDArray[np.float64]:
        """The mean over the other maps, blind ones left out: n."""
        others = [k for k, m in enumerate(self.maps) if m != name]
        mean: NDArray[np.float64] = self.agree[self.names.index(name), others].mean(0)
        return mean

    def verdict(self, name: str, row: int) -> str:
        """What can be said here about one map of one input."""
        near = float(self.with_others(name)[row])
        says = f"agrees {near:.2f}" if near > self.chance else f"stands alone {near:.2f}"
        if name in self.miss:
            lost = float(self.miss[name][row])
            says += ", adds up" if lost <= MISS else f", misses {100 * lost:.0f} %"
        return says

    def parts(self, row: int, count: int) -> tuple[str, ...]:
        """What the parts of an input are called."""
        names = parts_of(self.subject.kind, self.subject.task, torch.from_numpy(self.rows["x"][row]))[1]
        return names if len(names) == count else tuple(str(k) for k in range(count))

    def heading(self, row: int) -> str:
        task, told = self.subject.task, {name: column[row] for name, column in self.told.items()}
        if "said" not in told:
            out = torch.from_numpy(self.rows["out"][row])
            return f"{task.words(out)}; explained is {task.focus(out[None]).says[0]}, {told['explained number']:.4g}"
        right = "" if told["said"] == told["label"] else f", truly {task.classes[told['label']]}"
        return f"{task.classes[told['said']]} ({told['confidence']:.2f}){right}"


def _matrix(seen: _Seen, few: NDArray[np.int64]) -> Matrix:
    mean = seen.agree[:, :, few].mean(2)
    return Matrix(
        name="agreement",
        title="How far two maps of one input agree",
        row_label="map",
        column_label="map",
        rows=seen.names,
        columns=seen.names,
        values=tuple(tuple(float(v) for v in row) for row in mean),
        says="Spearman's rank correlation over the parts of an input, mean over the random inputs: 1 is one order, "
        "0 unrelated. Edges and random never see the model: what agrees with them gains nothing by it.",
    )


def _bars(measures: Sequence[Measure], marks: tuple[Beside, ...]) -> Bars:
    return Bars(
        name="others",
        title="How far each map agrees with the others",
        y_label="rank correlation",
        labels=tuple(m.column or m.name for m in measures),
        values=tuple(m.value or 0.0 for m in measures),
        low=tuple(m.low or 0.0 for m in measures),
        high=tuple(m.high or 0.0 for m in measures),
        marks=marks,
        says=f"Higher is more agreement, which is no proof: maps can be wrong together. {FURTHER}",
    )


def _shown(seen: _Seen, lots: Mapping[str, NDArray[np.int64]], most: int) -> tuple[Gallery | Matrix, ...]:
    """The maps of some inputs, each with its verdict: as pictures, or as a table where there are none to show."""
    views: list[Gallery | Matrix] = []
    start = 0
    for lot, index in lots.items():
        few = range(start, start + min(len(index), max(1, most // 2)))
        start += len(index)
        if seen.subject.inputs.is_image and few:
            views.append(
                Gallery(
                    name=lot.replace(" ", "-"),
                    title=f"Maps of inputs: {lot}",
                    exhibits=tuple(_exhibit(seen, row) for row in few),
                    says="Red speaks for the answer, blue against it, each map scaled to its 99th percentile. Below "
                    "each: its mean rank correlation with the other maps of this input, and whether its values add up "
                    f"to the score where the method promises it. {FURTHER}",
                )
            )
        elif seen.rows[f"parts {seen.maps[0]}"].shape[1] <= MOST:
            views += [_table(seen, lot, row) for row in few[:1]]
    return tuple(views)


def _exhibit(seen: _Seen, row: int) -> Exhibit:
    where, space = int(seen.index[row]), seen.subject.inputs
    panels = [Panel.of("input", f"Input {where}", seen.rows["x"][row], low=space.low, high=space.high)]
    for m in seen.maps:
        verdict = seen.verdict(m, row)
        heat = seen.rows[f"map {m}"][row].sum(0)
        panels.append(Panel.of(f"{m}: {verdict}", f"{m} of input {where}: {verdict}", _coloured(heat)))
    return Exhibit(
        index=where, caption=f"{seen.heading(row)}; judged further by is-the-map-faithful", panels=tuple(panels)
    )


def _coloured(heat: NDArray[np.float32]) -> NDArray[np.float64]:  # h w -> 3 h w
    """Red above zero and blue below, white at zero; a map without negative values starts at its smallest."""
    heat = heat - heat.min() if heat.min() >= 0 else heat
    top = float(np.quantile(np.abs(heat), 0.99)) or float(np.abs(heat).max()) or 1.0
    depth = np.clip(heat / top, -1, 1).astype(np.float64)
    return 1 - np.stack([np.maximum(-depth, 0), np.abs(depth), np.maximum(depth, 0)])


def _table(seen: _Seen, lot: str, row: int) -> Matrix:
    parts = [seen.rows[f"parts {m}"][row] for m in seen.maps]
    return Matrix(
        name=lot.replace(" ", "-"),
        title=f"Maps of input {int(seen.index[row])} ({lot}): {seen.heading(row)}",
        row_label="map",
        column_label="part of the input",
        rows=seen.maps,
        columns=seen.parts(row, len(parts[0])),
        values=tuple(tuple(float(v) for v in p / (np.abs(p).sum() or 1.0)) for p in parts),
        says="Each part's share of the map, sign left out. "
        + "; ".join(f"{m}: {seen.verdict(m, row)}" for m in seen.maps)
        + f". {FURTHER}",
    )


def _incomplete(seen: _Seen) -> list[Alarm]:
    """Maps that promise to add up to the score and do not."""
    return [
        Alarm(
            f"The values of {m} should add up to what the score gains over the empty input, and miss more than "
            f"{100 * MISS:.0f} % of it on {share(int((miss > MISS).sum()), len(miss))} of the inputs shown: it takes "
            "more points, or the score is too rough to be integrated, which a tampered network can be.",
            doubts=(HEADLINE, f"agreement of {m} with the others"),
        )
        for m, miss in seen.miss.items()
        if (miss > MISS).any()
    ]


def _cheap(headline: NDArray[np.float64], blind: Mapping[str, float]) -> list[Alarm]:
    if "edges" not in blind or blind["edges"] < headline.mean():
        return []
    return [
        Alarm(
            f"An edge detector agrees with the maps ({blind['edges']:.2f}) as well as they do with one another "
            f"({headline.mean():.2f}): their agreement may come from the input alone.",
            doubts=(HEADLINE,),
        )
    ]


SHELVED = WhereDoesItLook
