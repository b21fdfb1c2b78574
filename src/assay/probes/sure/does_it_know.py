"""Whether it notices inputs that it was not made for, and its own mistakes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.held_out import Part
from assay.data.quilts import quilts
from assay.data.strangers import Far, Made, Making, far_kinds, is_image, mixed_values, near_kinds
from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Bars,
    Beside,
    Curve,
    Exhibit,
    Finding,
    Gallery,
    Line,
    Matrix,
    Measure,
    Panel,
    Table,
    bootstrap,
    share,
)
from assay.methods.attack.aim import truth_of
from assay.methods.attack.cells import masked, settled
from assay.methods.attack.pgd import pgd
from assay.methods.attack.swift import searching
from assay.methods.uncertainty.activation_clusters import ActivationClusters, Clustering, Projection
from assay.methods.uncertainty.activations import Seen, shown
from assay.methods.uncertainty.deep_distances import DeepDistances
from assay.methods.uncertainty.deep_neighbours import DeepNeighbours
from assay.methods.uncertainty.detection import auroc, auroc_interval, detection_rate, threshold_at
from assay.methods.uncertainty.disagreement import mean_probability, mutual_information, spread
from assay.methods.uncertainty.outliers import (
    Energy,
    Mahalanobis,
    MaxSoftmax,
    Neighbours,
    Odin,
    OutlierScore,
    SoftRmaxTail,
    Vim,
)
from assay.methods.uncertainty.selective import best_area, risk_coverage
from assay.nn.inner import inner_points
from assay.nn.members import Members
from assay.nn.softrmax import SoftRmax
from assay.nn.student_head import StudentHead
from assay.probe import Probe
from assay.run import batch_of
from assay.standard import Standard
from assay.tasks import Forecast, Regression, Task

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Data, Subject

EACH, TAUGHT, ATTACKED = 4, 60, 3  # outliers of each kind, training inputs and attacked ones, for each budget step
CLUSTERED = 600  # training inputs that are clustered, at each of so many layers, of so many numbers an input:
LAYERS, WIDE = 3, 2**15
HELD_OUT = 10  # classes that are held out, one at a time
FEW = 30  # outliers below which there is an alarm
ACCEPT = 0.95  # of ordinary inputs that pass, where the share of outliers that pass is counted
NEAR, FAR, YOURS, BROKEN = "near outliers", "far outliers", "your outliers", "attacked inputs"
OWN = "its confidence"
MISTAKES = "its own mistakes"
LEADS = (OWN, "deep distances", "nearest neighbours")  # the first of them that can be had makes the headline
POINTS = 100  # of a risk-coverage curve
LEVEL = "mean value"  # of an input: a score that needs no model
Scores = dict[str, dict[str, NDArray[np.float64]]]  # of each score, for each set of inputs: n


@dataclass(frozen=True)
class DoesItKnow(Probe):
    """Does it know what it does not know?

    Ordinary test inputs meet strangers: near ones, made of parts of test inputs; far ones, which share nothing with
    them; the split `outliers`, where there is one; and inputs that an attack within l_inf `radius` changed. A score is
    good if ordinary inputs have more of it. The first measure takes the confidence, of a classifier the largest softmax
    probability: it is what everyone has who has the model, it needs no data and no choice, and so the number can be
    compared between models and before and after a cure. The near outliers make it, because far ones can be kept away
    by looking at their values alone, without the model. Other scores stand beside it; which of them is best is known
    only after the fact.

    Where an answer is no class, the confidence is what its task says of it, or minus the width of its quantiles; where
    the answer says nothing, the distance of its activations to those of training leads. Scores that read a number for
    each class are left out, and whether it knows its own mistakes is asked here too: by the task's own word for an
    answer that is good enough.

    `projection` and `clustering` are those of the activation clusters: print has "umap" (pip install 'assay[clusters]')
    and "kmeans".
    """

    radius: float = 8 / 255
    outliers: int | None = None
    taught: int | None = None
    projection: Projection = "lda"
    clustering: Clustering = "kmeans"

    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Hendrycks & Gimpel, ICLR 2017, arXiv:1610.02136; the other scores: methods/uncertainty/outliers.py; Lehmann & "
        "Ebner, ICANN 2021 (activation clusters); Papernot & McDaniel 2018, arXiv:1803.04765 (deep k-NN); Wang, TU "
        "Delft 2024 (dissertation), sec. 8.2 (softRmax)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.8),)

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius")
        self.refuse_beyond_the_range("radius")
        self.refuse_below(2, "outliers", "taught")

    def why_not(self, subject: Subject) -> str | None:
        task = subject.task
        if {"classes", "comparison"} & set(task.gives) or "train" in subject.data:
            return super().why_not(subject)
        some = task.trivial(np.asarray(subject.data["test"].labels)).out[None]
        if _sure(task, some) is None:
            return (
                "its answers do not say how sure they are, and without training data (a split 'train') nothing says "
                "what it has seen"
            )
        return super().why_not(subject)

    def ask(self, subject: Subject, run: Run) -> Finding:
        test, classes = subject.data["test"], "classes" in subject.task.gives
        index = run.pick(test)
        groups = self._strangers(subject, run, index)
        broken, tried = self._attacked(subject, run)
        if len(broken):
            groups[BROKEN] = {"by PGD": broken}
        kinds = {f"{g}, {kind}": data for g, members in groups.items() for kind, data in members.items()}
        bench = _Bench(
            replace(subject, data={**subject.data, **kinds}),
            run,
            self.taught or TAUGHT * run.budget.steps,
            self.projection,
            self.clustering,
        )
        rows = {
            name: run.pick(data) if name.startswith(YOURS) else np.arange(len(data)) for name, data in kinds.items()
        }
        scores = bench.scores({"test": index, **rows})
        pooled = {
            s: {"test": of["test"], **{g: np.concatenate([of[f"{g}, {k}"] for k in groups[g]]) for g in groups}}
            for s, of in scores.items()
        }
        lead = next((name for name in LEADS if name in pooled), None)
        if lead is None:
            why = "; ".join(f"{name}: {why}" for name, why in bench.left_out.items())
            raise AssayError(f"No score can be had of this model. Left out, {why}")
        own = pooled[lead]
        trivial = bench.trivial(groups)
        measures = [
            m
            for g in groups
            for m in (
                _area(f"AUROC, {g}", own, g, lead, bare=trivial[g]),
                _passes(f"FPR at 95 %, {g}", own, g, lead),
            )
        ]
        right = None if classes else np.asarray(bench.seen["test"]["right"], dtype=bool)
        if right is not None:
            measures += _mistakes({s: of["test"] for s, of in scores.items()}, right, lead, run.seed)
        held_out = bench.held_out() if classes else {}
        measures += [
            Measure.mean(
                f"AUROC, held-out class{'' if s == OWN else f', {s}'}",
                of,
                better="higher",
                seed=run.seed,
                about=f"a class at a time is left out of the answers and of what is fitted, mean of {len(of)}; the "
                "layers have learned it, so expect less of a class that is new to them",
                beside=(Beside("a coin", 0.5),),
            )
            for s, of in held_out.items()
        ]
        others = [s for s in pooled if s != lead]
        measures += [
            _area(f"AUROC, {g}, {s}", pooled[s], g, s, bare=trivial[g]) for g in groups if g != BROKEN for s in others
        ]
        best = max(pooled, key=lambda s: auroc(pooled[s]["test"], pooled[s][NEAR]))
        surest = _surest(scores[lead], run.budget.shown)
        near, far, top = (m.value or 0.0 for m in (measures[0], _area("", own, FAR), _area("", pooled[best], NEAR)))
        return Finding(
            says=("An ordinary input has the higher confidence in " if lead == OWN else _silent(lead))
            + f"{100 * near:.0f} of 100 pairs with a near outlier and in {100 * far:.0f} with a far one, where a coin "
            "makes 50. "
            + (
                "No other score does better on near outliers."
                if best == lead
                else f"{best[0].upper()}{best[1:]} is the best score on near outliers, with {100 * top:.0f}."
            ),
            measures=tuple(measures),
            samples=Table(
                "test",
                {
                    "index": index,
                    **({"label": np.asarray(test.labels)[index]} if right is None else {"right": right}),
                    **{s: of["test"] for s, of in scores.items()},
                    "flagged": own["test"] <= threshold_at(own["test"], accept=ACCEPT),
                },
            ),
            views=(
                *(_bars(g, pooled, tuple(groups[g]), subject.inputs.aside(self.radius)) for g in groups),
                _by_kind(scores[lead], lead),
                _passing(pooled, tuple(groups)),
                *(_detection(g, pooled) for g in (NEAR, FAR, YOURS) if g in groups),
                *bench.published_rule(pooled),
                *bench.causes(groups),
                *(() if right is None else _risk(own["test"], right, lead)),
                *_pictures(subject, kinds, rows, bench.said(surest)),
            ),
            alarms=(
                *self._alarms(subject, run, groups, tried, len(broken), [m.name for m in measures]),
                *_never_wrong(right),
                *bench.alarms(),
            ),
        )

    def _strangers(self, subject: Subject, run: Run, index: NDArray[np.int64]) -> dict[str, dict[str, Data]]:
        """Each group of outliers by kind."""
        each, rng = self.outliers or EACH * run.budget.steps, torch.Generator().manual_seed(run.seed)
        test = subject.data["test"]
        unused = np.setdiff1d(np.arange(len(test)), index)
        base = unused if len(unused) >= each else np.arange(len(test))
        parents = base[torch.randperm(len(base), generator=rng)[:each].numpy()]
        shape, bounds = subject.inputs.shape, (subject.inputs.low, subject.inputs.high)

        def far(make: Far, rows: NDArray[np.int64], *, rng: torch.Generator) -> Tensor:
            return make(len(rows), rng=rng)

        few, block = Part(test, parents), batch_of(shape)
        near = near_kinds(few, shape) if "classes" in subject.task.gives else _patched(few, shape)
        made = {
            k: Made(partial(far, m), each, block=block, rng=rng) for k, m in far_kinds(shape, bounds=bounds).items()
        }
        if not subject.task.classes or set(subject.task.classes) & set("0123456789"):
            made.pop("digits", None)  # they may be what it was made for
        groups: dict[str, dict[str, Data]] = {
            NEAR: {k: Made(of, len(parents), block=block, rng=rng) for k, of in near.items()},
            FAR: dict(made),
        }
        if "outliers" in subject.data:
            groups[YOURS] = {"as given": subject.data["outliers"]}
        return groups

    def _attacked(self, subject: Subject, run: Run) -> tuple[Arrays, int]:
        """Inputs that were right before the attack and wrong after, and how many were tried."""
        if not subject.differentiable:
            return Arrays(np.zeros((0, *subject.inputs.shape), dtype=np.float32), np.zeros(0, dtype=np.int64)), 0
        index = run.pick(subject.data["test"], ATTACKED * run.budget.steps)
        steps = -(-run.budget.steps // 2)  # noticing is asked about, not the last input that can be broken
        rows = run.map(
            partial(self._attack, subject, steps), subject, "test", index, "attacked inputs",
            few={"x": "fell"},
        )  # fmt: skip
        return Arrays(rows["x"], np.zeros(len(rows["x"]), dtype=np.int64)), int(rows["right"].sum())

    def _attack(self, subject: Subject, steps: int, shard: Shard) -> Mapping[str, Tensor]:
        reach, everyone = subject.reach(shard.x), torch.arange(len(shard.x), device=shard.x.device)
        model, precision = searching(subject.model, shard.x, draws=subject.draws)
        found = pgd(
            model,
            shard.x,
            truth_of(subject.task, shard.y),
            radius=self.radius,
            steps=steps,
            mask=masked(reach, everyone),
            eot=subject.draws,
            bounds=(subject.inputs.low, subject.inputs.high),
            precision=precision,
            rng=shard.rng,
        )
        right = subject.task.right(subject.predict(shard.x), shard.y)
        at, _ = settled(reach, everyone, found, shard.x, "linf")
        fell = right & ~subject.task.right(subject.predict(at), shard.y)
        return {"x": at, "right": right, "fell": fell}

    def _alarms(
        self,
        subject: Subject,
        run: Run,
        groups: Mapping[str, Mapping[str, Data]],
        tried: int,
        broke: int,
        names: list[str],
    ) -> list[Alarm]:
        alarms = []

        def about(group: str) -> tuple[str, ...]:
            return tuple(name for name in names if group in name)

        for group, kinds in groups.items():
            count = sum(len(data) for data in kinds.values())
            if count < FEW and group != BROKEN:
                says = f"Only {count} {group} were asked about; under {FEW}, intervals are wide."
                alarms.append(Alarm(says, doubts=about(group)))
        if not subject.differentiable:
            also = ", ODIN is left out" if "classes" in subject.task.gives else ""
            alarms.append(Alarm(f"The model gives no gradients: attacked inputs were not made{also}."))
        elif broke < FEW:
            says = f"The attack broke {share(broke, tried)} inputs: too few to say how well such inputs are noticed."
            alarms.append(Alarm(says, doubts=about(BROKEN)))
        if YOURS in groups:
            alarms += _leaks(subject, run, about(YOURS))
        return alarms


class _Bench:
    """Everything that can be scored of a model, with what it was fitted on."""

    def __init__(self, subject: Subject, run: Run, taught: int, projection: Projection, clustering: Clustering) -> None:
        self.subject, self.run, self.projection, self.clustering = subject, run, projection, clustering
        self.left_out: dict[str, str] = {}
        self.classes = "classes" in subject.task.gives
        one = subject.data["test"].take(np.arange(1))[0].to(run.device)
        tails = [n for n, m in subject.model.named_modules() if self.classes and isinstance(m, SoftRmax | StudentHead)]
        self.tail = self._usable(one, tails[0], "softRmax tail") if len(tails) == 1 else None
        self.head = self._usable(one, subject.layers.get("head"), "scores of features")
        self.points = [name for name in (self.head, self.tail) if name is not None]
        if not self.classes:
            self.left_out["energy, ODIN, Mahalanobis, ViM, activation clusters and deep k-NN"] = (
                f"they read a number or a label for each class, and the task is {subject.task.name()}"
            )
        elif subject.draws > 1:
            self.left_out["ODIN"] = (
                "it steps up the gradient of one pass, and this model answers by several random ones"
            )
        self.seen: dict[str, dict[str, NDArray[Any]]] = {}
        self.clusters: ActivationClusters | None = None
        self.neighbours: DeepNeighbours | None = None
        self.distances: DeepDistances | None = None
        self.train: tuple[Seen, Tensor] | None = None
        if "train" in subject.data:
            index = run.pick(subject.data["train"], taught, bounded=False)
            if self.classes or self.head is not None:
                rows = run.map(self._look, subject, "train", index, "what training inputs look like")
                self.train = self._as_seen(rows), torch.as_tensor(rows["label"], device=run.device)
                self.seen["train"] = rows
            self._cluster(one, index)

    def _usable(self, one: Tensor, name: str | None, what: str) -> str | None:
        """The module, if what enters it can be caught."""
        if name is None:
            self.left_out[what] = "no linear layer was found; name one as layers['head']"
            return None
        try:
            shown(self.subject.model, one, (name,), entering=True)
        except AssayError as e:
            self.left_out[what] = str(e)
            return None
        return name

    def _cluster(self, one: Tensor, index: NDArray[np.int64]) -> None:
        """Clusters and neighbours at some layers from the first to the last, those left out that are very wide."""
        model = self.subject.model
        names = [n for n, m in inner_points(model) if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Linear)]
        some = (
            [names[i] for i in np.unique(np.linspace(0, len(names) - 1, LAYERS).round().astype(int))] if names else []
        )
        few = np.random.default_rng(self.run.seed).permutation(index)[:CLUSTERED]
        x, y = (part.to(self.run.device) for part in self.subject.data["train"].take(np.sort(few)))
        try:
            values = {name: shown(model, one, (name,))[1][name].numel() for name in some}
        except AssayError as e:
            self.left_out["activation clusters and deep k-NN" if self.classes else "deep distances"] = str(e)
            return
        layers = [name for name in some if values[name] <= WIDE]
        if not self.classes:
            layers = [name for name in layers if values[name] > 1]  # one value by itself has no direction
            if some and not layers:
                self.left_out["deep distances"] = f"no layer has from 2 to {WIDE} values for an input"
                return
            try:
                rng = np.random.default_rng(self.run.seed)
                self.distances = DeepDistances.fit(model, x, layers=layers, rng=rng, k=_k(len(x)))
            except AssayError as e:
                self.left_out["deep distances"] = str(e)
            return
        try:
            self.clusters = ActivationClusters.fit(
                model,
                x,
                y,
                layers=layers,
                rng=np.random.default_rng(self.run.seed),
                projection=self.projection,
                clustering=self.clustering,
            )
        except ValueError as e:  # of ours, and of scikit-learn's where activations leave it nothing to work on
            self.left_out["activation clusters"] = str(e).splitlines()[0]
        try:
            rng = np.random.default_rng(self.run.seed)
            self.neighbours = DeepNeighbours.fit(model, x, y, layers=layers, rng=rng, k=_k(len(x)))
        except AssayError as e:
            self.left_out["deep k-NN"] = str(e)

    def _look(self, shard: Shard) -> dict[str, Tensor]:
        """One forward pass: the answers, what enters the head, and what enters a softRmax."""
        logits, inner = shown(self.subject.model, shard.x, self.points, entering=True)
        told = {"label": shard.y}
        if self.classes:
            told["logits"] = logits if self.subject.draws == 1 else self.subject.predict(shard.x)
        if self.head is not None:
            told["features"] = inner[self.head].flatten(1)
        if self.tail is not None:
            told["z"] = inner[self.tail]
        return told

    def _score(self, shard: Shard, *, judged: bool) -> dict[str, Tensor]:
        """The same, the scores that need the model itself, and where it is to be `judged` whether it was right."""
        told, model = self._look(shard), self.subject.model
        told[LEVEL] = shard.x.flatten(1).double().mean(1)
        if not self.classes:
            return told | self._without_classes(shard, judged=judged)
        if self.subject.differentiable and self.subject.draws == 1:
            told["ODIN"] = Odin(model).score(Seen(shard.x, told["logits"], told["logits"]))
        if self.clusters is not None:
            told["activation clusters"] = self.clusters.score(shard.x)
        if self.neighbours is not None:
            told["deep k-NN"] = self.neighbours.score(shard.x)
        if isinstance(model, Members):
            with torch.no_grad():
                z = model.members(shard.x)  # m n c
            said = mean_probability(z).argmax(1, keepdim=True)
            told["mutual information"] = -mutual_information(z)
            told["spread"] = -spread(z).gather(1, said)[:, 0]
        return told

    def _without_classes(self, shard: Shard, *, judged: bool) -> dict[str, Tensor]:
        """How sure an answer that is no class is, how far its activations are, and whether it will do."""
        told, out = {}, self.subject.predict(shard.x)
        if (sure := _sure(self.subject.task, out.double())) is not None:
            told[OWN] = sure
        if self.distances is not None:
            told["deep distances"] = self.distances.score(shard.x)
        if judged:
            told["right"] = self.subject.task.right(out, shard.y)
        return told

    def scores(self, splits: Mapping[str, NDArray[np.int64]]) -> Scores:
        """Every score that can be had, of every set, high where an input is familiar."""
        self.rows = splits
        for split, index in splits.items():
            work = partial(self._score, judged=split == "test")
            self.seen[split] = self.run.map(work, self.subject, split, index, f"scores, {split}")
        made: Scores = {}
        whole = [] if not self.classes and self.head is None else splits
        seen = {split: self._as_seen(self.seen[split]) for split in whole}
        if self.classes:
            made[OWN] = {split: _numbers(MaxSoftmax().score(s)) for split, s in seen.items()}
        for name, fit in self._makers().items():
            try:
                score = fit()
                made[name] = {split: _numbers(score.score(s)) for split, s in seen.items()}
            except AssayError as e:
                self.left_out[name] = str(e)
        if self.tail is not None:
            tail = self._softrmax_tail()
            made["softRmax tail"] = {
                split: _numbers(tail.score(self._as_seen(self.seen[split], "z"))) for split in seen
            }
        for name in (*LEADS[:2], "ODIN", "activation clusters", "deep k-NN", "mutual information", "spread"):
            if name in self.seen["test"]:
                made[name] = {split: np.asarray(self.seen[split][name], dtype=np.float64) for split in splits}
        return made

    def trivial(self, groups: Mapping[str, Mapping[str, Data]]) -> dict[str, float]:
        """The area of a score that needs no model: how far the mean of an input's values is from the usual."""
        inside = np.asarray(self.seen["test"][LEVEL])
        usual = float(np.median(inside))
        found = {}
        for group, kinds in groups.items():
            outside = np.concatenate([self.seen[f"{group}, {kind}"][LEVEL] for kind in kinds])
            found[group] = auroc(-np.abs(inside - usual), -np.abs(outside - usual))
        return found

    def _makers(self) -> dict[str, Callable[[], OutlierScore]]:
        makers: dict[str, Callable[[], OutlierScore]] = {"energy": Energy} if self.classes else {}
        if self.train is None or self.head is None:
            return makers
        train, y = self.train
        if not self.classes:
            return {"nearest neighbours": partial(Neighbours.fit, train, y, k=_k(len(y)))}
        head = self.subject.model.get_submodule(self.head)
        makers["Mahalanobis"] = partial(Mahalanobis.fit, train, y)
        makers["nearest neighbours"] = partial(Neighbours.fit, train, y, k=_k(len(y)))
        if isinstance(head, nn.Linear):
            makers["ViM"] = partial(Vim.fit, train, y, head=head)
        return makers

    def _softrmax_tail(self) -> SoftRmaxTail:
        assert self.tail is not None
        head = self.subject.model.get_submodule(self.tail)
        rows = self._as_seen(self.seen.get("train", self.seen["test"]), "z")
        if isinstance(head, StudentHead):
            return SoftRmaxTail.fit(rows, torch.zeros(0), nu=head.nu, by="distance")
        assert isinstance(head, SoftRmax)
        return SoftRmaxTail.fit(rows, torch.zeros(0), power=head.power, by="distance")

    def held_out(self) -> dict[str, list[float]]:
        """Of each class in turn: the area where its inputs are the outliers, and nothing that is fitted knows of it."""
        seen, y = self._as_seen(self.seen["test"]), torch.as_tensor(self.seen["test"]["label"])
        k = seen.logits.shape[1]
        counts = np.bincount(y.numpy(), minlength=k)
        there = [c for c in np.random.default_rng(self.run.seed).permutation(k) if 0 < counts[c] < len(y)][:HELD_OUT]
        found: dict[str, list[float]] = {}
        for c in sorted(there) if k > 2 else []:
            others = torch.arange(k, device=seen.logits.device) != c
            without = seen._replace(logits=seen.logits[:, others])
            fitted: dict[str, OutlierScore] = {OWN: MaxSoftmax()}
            if self.train is not None and self.head is not None:
                train, labels = self.train
                keep = labels != c
                rest, of = Seen(*(part[keep] for part in train)), labels[keep]
                try:
                    fitted["Mahalanobis"] = Mahalanobis.fit(rest, of)
                    fitted["nearest neighbours"] = Neighbours.fit(rest, of, k=_k(len(of)))
                except AssayError:
                    continue  # a class that training inputs hardly show
            for name, score in fitted.items():
                marks = _numbers(score.score(without))
                found.setdefault(name, []).append(auroc(marks[y.numpy() != c], marks[y.numpy() == c]))
        return found

    def published_rule(self, pooled: Scores) -> tuple[Curve, ...]:
        """What activation clusters flag at each threshold t of print."""
        if "activation clusters" not in pooled:
            return ()
        t = np.linspace(0, 0.3, 31)
        lines = tuple(
            Line(
                label="ordinary inputs" if g == "test" else g,
                x=tuple(t.tolist()),
                y=tuple(detection_rate(of, t).tolist()),
            )
            for g, of in pooled["activation clusters"].items()
        )
        return (
            Curve(
                name="clusters",
                title="Flagged by activation clusters, against their threshold",
                x_label="threshold t",
                y_label="share flagged",
                unit_y=True,
                lines=lines,
                marks=(Beside("as published", 0.05), Beside("1 / classes", 1 / len(self.subject.task.classes))),
                says="An input is flagged where no class has more than the share t of its cluster at every layer. From "
                "1 / classes on, a cluster of all classes in equal parts flags whatever falls into it.",
            ),
        )

    def causes(self, groups: Mapping[str, Mapping[str, Data]]) -> tuple[Matrix, ...]:
        """Why the softRmax posterior is flat where it is: between classes, or far from all."""
        if self.tail is None:
            return ()
        tail = self._softrmax_tail()
        shares = {}
        for group in ("test", *groups):
            splits = ["test"] if group == "test" else [f"{group}, {kind}" for kind in groups[group]]
            cause = torch.cat([tail.cause(self._as_seen(self.seen[split], "z")) for split in splits]).cpu()
            shares[group] = tuple((torch.bincount(cause, minlength=3) / len(cause)).tolist())
        return (
            Matrix(
                name="causes",
                title="Why its posterior is flat",
                row_label="inputs",
                column_label="it is",
                rows=tuple("ordinary inputs" if g == "test" else g for g in shares),
                columns=("sure", "between classes", "unfamiliar"),
                values=tuple(shares.values()),
                says="Shares of the inputs. A flat posterior with a latent point near a class lies between classes; "
                "one far from all classes is in the tail.",
            ),
        )

    def said(self, surest: list[tuple[str, int]]) -> list[tuple[str, int, str]]:
        """What it says of these inputs, by set and row; of a class with the confidence."""
        told, task = [], self.subject.task
        for split, row in surest:
            if self.classes:
                p = torch.as_tensor(self.seen[split]["logits"][row]).double().softmax(0)
                words = f"{task.classes[int(p.argmax())]} with {100 * float(p.max()):.0f} %"
            else:
                x, _ = self.subject.data[split].take(self.rows[split][row : row + 1])
                words = task.words(self.subject.predict(x.to(self.run.device))[0])
            told.append((split, row, words))
        return told

    def alarms(self) -> list[Alarm]:
        alarms = []
        if "train" not in self.subject.data:
            which = (
                "Mahalanobis, nearest neighbours, ViM, activation clusters and deep k-NN"
                if self.classes
                else "nearest neighbours and deep distances"
            )
            alarms.append(
                Alarm(
                    f"There is no training data: {which} have nothing to be fitted on; give a split 'train' to see "
                    "whether they would find more."
                )
            )
        for name, why in self.left_out.items():
            alarms.append(Alarm(f"Left out, {name}: {why}"))
        return alarms

    def _as_seen(self, rows: Mapping[str, NDArray[Any]], logits: str = "logits") -> Seen:
        z = torch.as_tensor(rows[logits if self.classes else "features"], device=self.run.device)
        inner = torch.as_tensor(rows["features"], device=self.run.device) if "features" in rows else z
        return Seen(z, z, inner)


def _numbers(score: Tensor) -> NDArray[np.float64]:  # n -> n
    return np.asarray(score.detach().cpu(), dtype=np.float64)


def _sure(task: Task, out: Tensor) -> Tensor | None:  # n *o -> n
    """How sure an answer is, where it says so: its confidence, or minus the width of its quantiles in tolerances."""
    said = task.confidence(out)
    if said is None and isinstance(task, Regression | Forecast) and (shares := task.numbers().shares):
        numbers = task.numbers()
        ends = numbers.between(out, shares[-1])
        assert ends is not None  # what `shares` promises
        said = -((ends[1] - ends[0]).abs() / out.new_tensor(numbers.tolerance)).mean(1)
    return said


def _silent(lead: str) -> str:
    return f"Its answers do not say how sure they are. By {lead} an ordinary input is the more familiar one in "


def _patched(parents: Part, shape: tuple[int, ...]) -> dict[str, Making]:
    """Near outliers where nothing is a class: a picture whose quarters change places may still have its answer."""

    def mixed(rows: NDArray[np.int64], *, rng: torch.Generator) -> Tensor:
        return mixed_values(parents.take(rows)[0], rng=rng)

    def quilted(rows: NDArray[np.int64], *, rng: torch.Generator) -> Tensor:
        return quilts(parents.take(rows)[0], rng=rng)

    return {"mixed values": mixed} | ({"quilts": quilted} if is_image(shape) else {})


def _mistakes(
    scores: Mapping[str, NDArray[np.float64]], right: NDArray[np.bool_], lead: str, seed: int
) -> list[Measure]:
    """Whether the answers that are not good enough are those it is least sure of, by each score."""
    order = [lead, *(s for s in scores if s != lead)]
    names = {s: f"AUROC, {MISTAKES}{'' if s == lead else f', {s}'}" for s in order}
    if right.all() or not right.any():
        return [Measure(name=name, value=None, n=len(right), better="higher") for name in names.values()]
    found = []
    for s, name in names.items():
        low, high = auroc_interval(scores[s][right], scores[s][~right])
        found.append(
            Measure(
                name=name,
                value=auroc(scores[s][right], scores[s][~right]),
                low=low,
                high=high,
                n=len(right),
                better="higher",
                about=f"the chance that a good answer scores above one that will not do, by {s}",
                beside=(Beside("a coin", 0.5),),
            )
        )
    ranks = _ranks(scores[lead])
    area = float(risk_coverage(ranks, right).area())
    low, high = bootstrap(lambda counts: risk_coverage(ranks, right, counts=counts).area(), len(right), seed=seed)
    found.append(
        Measure(
            name="area under the risk-coverage curve",
            value=area,
            low=min(low, area),
            high=max(high, area),
            n=len(right),
            better="lower",
            about=f"mean share of answers that will not do, over all shares of the inputs that are answered, the most "
            f"familiar first, by {lead}",
            beside=(
                Beside("in random order", float((~right).mean())),
                Beside("in the best possible order", best_area(right)),
            ),
        )
    )
    return found


def _never_wrong(right: NDArray[np.bool_] | None) -> tuple[Alarm, ...]:
    if right is None or (right.any() and not right.all()):
        return ()
    which = "good enough" if right.all() else "not good enough"
    return (Alarm(f"All {len(right)} answers are {which}: whether it knows its mistakes cannot be told from them."),)


def _ranks(score: NDArray[np.float64]) -> NDArray[np.float64]:  # n -> n in [0, 1]
    """The order of any score as a confidence has it; equals stay equal."""

    from scipy.stats import rankdata

    return np.asarray(rankdata(score) / len(score))


def _risk(score: NDArray[np.float64], right: NDArray[np.bool_], lead: str) -> tuple[Curve, ...]:
    curve = risk_coverage(_ranks(score), right)
    few = np.unique(np.linspace(0, len(curve.coverage) - 1, POINTS).round().astype(int))
    return (
        Curve(
            name="risk",
            title="What it gets wrong, against what it answers",
            x_label="share of the inputs that are answered, the most familiar first",
            y_label="share of the answers that will not do",
            unit_y=True,
            lines=(Line(label=lead, x=tuple(curve.coverage[few].tolist()), y=tuple(curve.risk[few].tolist())),),
            says="A score that knows its mistakes starts low and rises to the right; one that knows nothing is flat.",
        ),
    )


def _k(n: int) -> int:
    """The neighbour that counts: the 50th, as for tens of thousands of inputs, or a twentieth of them all."""
    return max(1, min(50, n // 20))


def _area(
    name: str, of: Mapping[str, NDArray[np.float64]], group: str, by: str = OWN, *, bare: float | None = None
) -> Measure:
    low, high = auroc_interval(of["test"], of[group])
    beside = () if bare is None else (Beside("by the mean of its values alone", bare),)
    return Measure(
        name=name,
        value=auroc(of["test"], of[group]),
        low=low,
        high=high,
        n=len(of["test"]) + len(of[group]),
        better="higher",
        about=f"the chance that an ordinary input scores above one of {_the(group)}, by {by}",
        beside=(Beside("a coin", 0.5), *beside),
    )


def _the(group: str) -> str:
    return group if group == YOURS else f"the {group}"


def _passes(name: str, of: Mapping[str, NDArray[np.float64]], group: str, by: str = OWN) -> Measure:
    return Measure.proportion(
        name,
        of[group] > threshold_at(of["test"], accept=ACCEPT),
        better="lower",
        about=f"share of {_the(group)} that pass, by {by}, where {100 * ACCEPT:.0f} % of ordinary inputs do",
        beside=(Beside("a coin", ACCEPT),),
    )


def _bars(group: str, pooled: Scores, kinds: tuple[str, ...], radius: str) -> Bars:
    found = [_area("", of, group) for of in pooled.values()]
    return Bars(
        name=group.replace(" ", "-"),
        title=f"How well each score tells {group} from ordinary inputs",
        y_label="AUROC",
        labels=tuple(pooled),
        values=tuple(m.value or 0.0 for m in found),
        low=tuple(m.low or 0.0 for m in found),
        high=tuple(m.high or 0.0 for m in found),
        unit_y=True,
        marks=(Beside("a coin", 0.5),),
        says=(
            "The attack knows the model and no score: one that knows the score can pass it."
            + (f" It changes each value by at most its radius{radius}." if radius else "")
            if group == BROKEN
            else f"Together: {', '.join(kinds)}. Below a half, the score takes outliers for more familiar."
        ),
    )


def _by_kind(own: Mapping[str, NDArray[np.float64]], by: str) -> Bars:
    kinds = [name for name in own if name != "test"]
    found = [_area("", own, name) for name in kinds]
    return Bars(
        name="kinds",
        title=f"How well {by} {'tell' if by.endswith('s') else 'tells'} each kind from ordinary inputs",
        y_label="AUROC",
        labels=tuple(name.split(", ")[1] if ", as given" not in name else YOURS for name in kinds),
        values=tuple(m.value or 0.0 for m in found),
        low=tuple(m.low or 0.0 for m in found),
        high=tuple(m.high or 0.0 for m in found),
        unit_y=True,
        marks=(Beside("a coin", 0.5),),
        says="Digits are left out where a class has the name of one, and where nothing has a name: they may be what "
        "the model is for.",
    )


def _passing(pooled: Scores, groups: tuple[str, ...]) -> Matrix:
    return Matrix(
        name="passing",
        title=f"Outliers that pass where {100 * ACCEPT:.0f} % of the ordinary inputs do",
        row_label="score",
        column_label="inputs",
        rows=tuple(pooled),
        columns=groups,
        values=tuple(tuple(_passes("", of, g).value for g in groups) for of in pooled.values()),
        says="Shares; 0 is best, and a coin lets 0.95 pass.",
    )


def _detection(group: str, pooled: Scores) -> Curve:
    """Each score at the thresholds that flag up to half of the ordinary inputs."""
    lines = []
    for score, of in pooled.items():
        t = np.unique(np.quantile(of["test"], np.linspace(0, 0.5, 26)))
        flagged = detection_rate(of["test"], t).tolist()
        lines.append(Line(label=score, x=tuple(flagged), y=tuple(detection_rate(of[group], t).tolist())))
    return Curve(
        name=f"detection-{group.replace(' ', '-')}",
        title=f"Share of {group} flagged, against the threshold",
        x_label="ordinary inputs flagged at the same threshold",
        y_label="outliers flagged",
        unit_y=True,
        diagonal=True,
        lines=tuple(lines),
        marks=(Beside("5 %", 1 - ACCEPT),),
        says="A threshold is named by the ordinary inputs that it costs. On the diagonal a score is worth nothing.",
    )


def _surest(own: Mapping[str, NDArray[np.float64]], shown: int) -> list[tuple[str, int]]:
    """The outliers of highest confidence, the first of each kind before the second of any."""
    ranked = []
    for split, of in own.items():
        if split != "test" and not split.startswith(BROKEN):
            order = np.argsort(-of, kind="stable")[:shown]
            ranked += [(place, -float(of[row]), split, int(row)) for place, row in enumerate(order)]
    return [(split, row) for _, _, split, row in sorted(ranked)[:shown]]


def _pictures(
    subject: Subject,
    kinds: Mapping[str, Data],
    rows: Mapping[str, NDArray[np.int64]],
    surest: list[tuple[str, int, str]],
) -> tuple[Gallery, ...]:
    if not subject.inputs.is_image or not surest:
        return ()
    exhibits = []
    for split, row, said in surest:
        x = kinds[split].take(rows[split][row : row + 1])[0].numpy()[0]
        caption = f"{split}: said {said}"
        alt = f"Outlier {int(rows[split][row])} of the {split}"
        panel = Panel.of("outlier", alt, x, low=subject.inputs.low, high=subject.inputs.high)
        exhibits.append(Exhibit(index=int(rows[split][row]), caption=caption, panels=(panel,)))
    return (Gallery(name="surest", title="The outliers it is surest of", exhibits=tuple(exhibits)),)


def _leaks(subject: Subject, run: Run, doubts: tuple[str, ...]) -> list[Alarm]:
    """Outliers that stand bit for bit in the data that the model was made or is tested with are none."""
    given, alarms = subject.data["outliers"], []
    batch = batch_of(subject.inputs.shape)
    ours = {_digest(x): i for start in range(0, len(given), batch) for i, x in _rows(given, start, batch)}
    for split in ("train", "test"):
        data = subject.data.get(split)
        if data is None:
            continue
        with run.progress(f"looking for outliers in {split!r}", len(data)) as tick:
            leaked = set()
            for start in range(0, len(data), batch):
                leaked |= {ours[d] for d in (_digest(x) for _, x in _rows(data, start, batch)) if d in ours}
                tick(min(batch, len(data) - start))
        if leaked:
            says = (
                f"{share(len(leaked), len(given))} of the inputs in 'outliers' stand in {split!r} too (for example "
                f"input {min(leaked)}); they are no outliers, so take them out."
            )
            alarms.append(Alarm(says, doubts=doubts))
    return alarms


def _rows(data: Data, start: int, batch: int) -> list[tuple[int, NDArray[np.float32]]]:
    index = np.arange(start, min(start + batch, len(data)))
    return list(zip(index.tolist(), data.take(index)[0].numpy(), strict=True))


def _digest(x: NDArray[np.float32]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(x).tobytes(), digest_size=16).digest()


SHELVED = DoesItKnow
