"""Whether it notices inputs that belong to none of its classes."""

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
from assay.data.strangers import Far, Made, far_kinds, near_kinds
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
    share,
)
from assay.methods.attack.pgd import pgd
from assay.methods.uncertainty.activation_clusters import ActivationClusters, Clustering, Projection
from assay.methods.uncertainty.activations import Seen, shown
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
from assay.nn.members import Members
from assay.nn.softrmax import SoftRmax
from assay.nn.student_head import StudentHead
from assay.probe import Need, Probe
from assay.run import batch_of
from assay.standard import Standard

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
LEVEL = "mean value"  # of an input: a score that needs no model
Scores = dict[str, dict[str, NDArray[np.float64]]]  # of each score, for each set of inputs: n


@dataclass(frozen=True)
class DoesItKnow(Probe):
    """Does it know what it does not know?

    Ordinary test inputs meet inputs of no class: near ones, made of parts of test inputs; far ones, which share nothing
    with them; the split `outliers`, where there is one; and inputs that an attack within l_inf `radius` changed. A
    score is good if ordinary inputs have more of it. The first measure takes the confidence, the largest softmax
    probability: it is what everyone has who has the model, it needs no data and no choice, and so the number can be
    compared between models and before and after a cure. The near outliers make it, because far ones can be kept away
    by looking at their values alone, without the model. Other scores stand beside it; which of them is best is known
    only after the fact.

    `projection` and `clustering` are those of the activation clusters: print has "umap" (pip install 'assay[clusters]')
    and "kmeans".
    """

    radius: float = 8 / 255
    outliers: int | None = None
    taught: int | None = None
    projection: Projection = "lda"
    clustering: Clustering = "kmeans"

    in_shares: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
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

    def ask(self, subject: Subject, run: Run) -> Finding:
        test = subject.data["test"]
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
        own = pooled[OWN]
        trivial = bench.trivial(groups)
        measures = [
            m
            for g in groups
            for m in (_area(f"AUROC, {g}", own, g, bare=trivial[g]), _passes(f"FPR at 95 %, {g}", own, g))
        ]
        held_out = bench.held_out()
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
        others = [s for s in pooled if s != OWN]
        measures += [
            _area(f"AUROC, {g}, {s}", pooled[s], g, s, bare=trivial[g]) for g in groups if g != BROKEN for s in others
        ]
        best = max(pooled, key=lambda s: auroc(pooled[s]["test"], pooled[s][NEAR]))
        surest = _surest(scores[OWN], run.budget.shown)
        near, far, top = (m.value or 0.0 for m in (measures[0], _area("", own, FAR), _area("", pooled[best], NEAR)))
        return Finding(
            says=f"An ordinary input has the higher confidence in {100 * near:.0f} of 100 pairs with a near outlier "
            f"and in {100 * far:.0f} with a far one, where a coin makes 50. "
            + (
                "No other score does better on near outliers."
                if best == OWN
                else f"{best[0].upper()}{best[1:]} is the best score on near outliers, with {100 * top:.0f}."
            ),
            measures=tuple(measures),
            samples=Table(
                "test",
                {
                    "index": index,
                    "label": np.asarray(test.labels)[index],
                    **{s: of["test"] for s, of in scores.items()},
                    "flagged": own["test"] <= threshold_at(own["test"], accept=ACCEPT),
                },
            ),
            views=(
                *(_bars(g, pooled, tuple(groups[g]), subject.inputs.aside(self.radius)) for g in groups),
                _by_kind(scores[OWN]),
                _passing(pooled, tuple(groups)),
                *(_detection(g, pooled) for g in (NEAR, FAR, YOURS) if g in groups),
                *bench.published_rule(pooled),
                *bench.causes(groups),
                *_pictures(subject, kinds, rows, bench.said(surest)),
            ),
            alarms=(
                *self._alarms(subject, run, groups, tried, len(broken), [m.name for m in measures]),
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

        near, block = near_kinds(Part(test, parents), shape), batch_of(shape)
        made = {
            k: Made(partial(far, m), each, block=block, rng=rng) for k, m in far_kinds(shape, bounds=bounds).items()
        }
        if set(subject.task.classes) & set("0123456789"):
            made.pop("digits", None)  # they may be what it was made for
        groups: dict[str, dict[str, Data]] = {
            NEAR: {k: Made(make, len(parents), block=block, rng=rng) for k, make in near.items()},
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
        return Arrays(rows["x"], np.asarray(rows["label"])[rows["x at"]]), int(rows["right"].sum())

    def _attack(self, subject: Subject, steps: int, shard: Shard) -> Mapping[str, Tensor]:
        found = pgd(
            subject.model,
            shard.x,
            shard.y,
            radius=self.radius,
            steps=steps,
            eot=subject.draws,
            bounds=(subject.inputs.low, subject.inputs.high),
            rng=shard.rng,
        )
        right = subject.predict(shard.x).argmax(1) == shard.y
        fell = right & (subject.predict(found.x).argmax(1) != shard.y)
        return {"x": found.x, "label": shard.y, "right": right, "fell": fell}

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
            alarms.append(Alarm("The model gives no gradients: attacked inputs were not made, ODIN is left out."))
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
        one = subject.data["test"].take(np.arange(1))[0].to(run.device)
        tails = [name for name, m in subject.model.named_modules() if isinstance(m, SoftRmax | StudentHead)]
        self.tail = self._usable(one, tails[0], "softRmax tail") if len(tails) == 1 else None
        self.head = self._usable(one, subject.layers.get("head"), "scores of features")
        self.points = [name for name in (self.head, self.tail) if name is not None]
        if subject.draws > 1:
            self.left_out["ODIN"] = (
                "it steps up the gradient of one pass, and this model answers by several random ones"
            )
        self.seen: dict[str, dict[str, NDArray[Any]]] = {}
        self.clusters: ActivationClusters | None = None
        self.neighbours: DeepNeighbours | None = None
        self.train: tuple[Seen, Tensor] | None = None
        if "train" in subject.data:
            index = run.pick(subject.data["train"], taught)
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
        names = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        some = (
            [names[i] for i in np.unique(np.linspace(0, len(names) - 1, LAYERS).round().astype(int))] if names else []
        )
        few = np.random.default_rng(self.run.seed).permutation(index)[:CLUSTERED]
        x, y = (part.to(self.run.device) for part in self.subject.data["train"].take(np.sort(few)))
        try:
            layers = [name for name in some if shown(model, one, (name,))[1][name].numel() <= WIDE]
        except AssayError as e:
            self.left_out["activation clusters and deep k-NN"] = str(e)
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
        told = {"label": shard.y, "logits": logits if self.subject.draws == 1 else self.subject.predict(shard.x)}
        if self.head is not None:
            told["features"] = inner[self.head].flatten(1)
        if self.tail is not None:
            told["z"] = inner[self.tail]
        return told

    def _score(self, shard: Shard) -> dict[str, Tensor]:
        """The same, and the scores that need the model itself."""
        told, model = self._look(shard), self.subject.model
        told[LEVEL] = shard.x.flatten(1).double().mean(1)
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

    def scores(self, splits: Mapping[str, NDArray[np.int64]]) -> Scores:
        """Every score that can be had, of every set, high where an input is familiar."""
        for split, index in splits.items():
            self.seen[split] = self.run.map(self._score, self.subject, split, index, f"scores, {split}")
        seen = {split: self._as_seen(self.seen[split]) for split in splits}
        made: Scores = {OWN: {split: _numbers(MaxSoftmax().score(s)) for split, s in seen.items()}}
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
        for name in ("ODIN", "activation clusters", "deep k-NN", "mutual information", "spread"):
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
        makers: dict[str, Callable[[], OutlierScore]] = {"energy": Energy}
        if self.train is None or self.head is None:
            return makers
        train, y = self.train
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

    def said(self, surest: list[tuple[str, int]]) -> list[tuple[str, int, str, float]]:
        """The class and the confidence of these inputs, by set and row."""
        told = []
        for split, row in surest:
            p = torch.as_tensor(self.seen[split]["logits"][row]).double().softmax(0)
            told.append((split, row, self.subject.task.classes[int(p.argmax())], float(p.max())))
        return told

    def alarms(self) -> list[Alarm]:
        alarms = []
        if self.train is None:
            alarms.append(
                Alarm(
                    "There is no training data: Mahalanobis, nearest neighbours, ViM, activation clusters and deep "
                    "k-NN have nothing to be fitted on; give a split 'train' to see whether they would find more."
                )
            )
        for name, why in self.left_out.items():
            alarms.append(Alarm(f"Left out, {name}: {why}"))
        return alarms

    def _as_seen(self, rows: Mapping[str, NDArray[Any]], logits: str = "logits") -> Seen:
        z = torch.as_tensor(rows[logits], device=self.run.device)
        inner = torch.as_tensor(rows["features"], device=self.run.device) if "features" in rows else z
        return Seen(z, z, inner)


def _numbers(score: Tensor) -> NDArray[np.float64]:  # n -> n
    return np.asarray(score.detach().cpu(), dtype=np.float64)


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


def _passes(name: str, of: Mapping[str, NDArray[np.float64]], group: str) -> Measure:
    return Measure.proportion(
        name,
        of[group] > threshold_at(of["test"], accept=ACCEPT),
        better="lower",
        about=f"share of {_the(group)} that pass, by its confidence, where {100 * ACCEPT:.0f} % of ordinary inputs do",
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


def _by_kind(own: Mapping[str, NDArray[np.float64]]) -> Bars:
    kinds = [name for name in own if name != "test"]
    found = [_area("", own, name) for name in kinds]
    return Bars(
        name="kinds",
        title="How well its confidence tells each kind from ordinary inputs",
        y_label="AUROC",
        labels=tuple(name.split(", ")[1] if ", as given" not in name else YOURS for name in kinds),
        values=tuple(m.value or 0.0 for m in found),
        low=tuple(m.low or 0.0 for m in found),
        high=tuple(m.high or 0.0 for m in found),
        unit_y=True,
        marks=(Beside("a coin", 0.5),),
        says="Digits are left out where a class has the name of one: they may be what the model is for.",
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
    surest: list[tuple[str, int, str, float]],
) -> tuple[Gallery, ...]:
    if not subject.inputs.is_image or not surest:
        return ()
    exhibits = []
    for split, row, said, sure in surest:
        x = kinds[split].take(rows[split][row : row + 1])[0].numpy()[0]
        caption = f"{split}: said {said} with {100 * sure:.0f} %"
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
