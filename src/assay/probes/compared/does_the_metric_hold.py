"""Whether nearest neighbours, under a metric or in an embedding, survive small changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import SubjectError
from assay.finding import Alarm, Beside, Curve, Finding, Line, Measure, Table, share
from assay.methods.certify.nearest import certified_radius, exact_radius, in_two_classes
from assay.methods.certify.nearest_bound import check_votes
from assay.methods.certify.points import points as stored_points
from assay.nn.members import in_rounds
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.tasks import Search
from assay.tasks.search import Described

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
EACH = 10  # inputs for each step of the budget
POINTS = 2000  # training points that an embedding is searched among
EXACT = 2**24  # numbers in the training points, up to which the exact radius is computed and not only a bound
RAW = 2**25  # the same, up to which raw inputs are compared with their embedding
CHUNK = 2**24  # distances that are held at a time
HEADLINE = "certified error"


class Scored(NamedTuple):
    """How the neighbours of some inputs hold: n rows."""

    radius: Floats  # n, l2: the exact one where it was computed, else the certified one
    bound: Floats  # n, certified
    wrong: NDArray[np.bool_]  # n, as they are
    apart: Floats  # n, distance to the nearest point of another class
    exact: bool

    def in_units_of(self, unit: float) -> Scored:
        """The same, measured with another unit; 0 stays where all points are one."""
        scale = 1 / unit if unit > 0 else 1.0
        return self._replace(radius=self.radius * scale, bound=self.bound * scale, apart=self.apart * scale)


class Terms(NamedTuple):
    """What a change is here, in numbers and in words."""

    radius: float
    size: str
    axis: str
    moves: str
    among: str
    own: float | None = None  # the error of the model's own answers
    blind: Beside | None = None  # that of a model which sees no input; None: the commonest class


@dataclass(frozen=True)
class DoesTheMetricHold(Probe):
    """If it is used for retrieval, does its nearest neighbour hold?

    A nearest-neighbour classifier is asked about l2 changes of the input, of size `radius` in shares of the range. Of
    any other network the embedding is taken, which is what its last linear layer sees, and the nearest of at most 2,000
    training points gives the label. The units of an embedding mean nothing, so that there the change is `share` of the
    median distance from an input to the nearest point of another class. `k` neighbours vote.

    Of a search of a gallery the descriptors are taken as they are: how far that of a query may move before what comes
    first is no longer relevant, as a share of the median distance to the nearest item that is not.
    """

    radius: float = 0.5
    share: float = 0.1
    k: int = 1
    inputs: int | None = None

    in_shares: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    source: ClassVar[str] = (
        "Wang, Liu, Yi, Zhou & Hsieh 2019, arXiv:1906.03972; for metrics Wang, Liu, Yi, Jiang & Hsieh, NeurIPS 2020, "
        "arXiv:2006.07024"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.3),)
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius", "share")
        self.refuse_below(1, "inputs")
        check_votes(self.k)

    def why_not(self, subject: Subject) -> str | None:
        if isinstance(subject.task, Search):
            size = subject.task.gallery.size * subject.task.gallery.width
            return None if size <= RAW else f"its gallery holds {size:,} numbers, and bounds are found among {RAW:,}"
        if (reason := super().why_not(subject)) is not None or stored_points(subject.model) is not None:
            return reason
        if "train" not in subject.data:
            return f"it needs training data to find neighbours among, and the subject has only {sorted(subject.data)}"
        if "head" not in subject.layers:
            return "no layer is named 'head', so that it is not known what to take as the embedding; name the last one"
        return None

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(EACH * run.budget.steps))
        if isinstance(subject.task, Search):
            return self._search(subject, subject.task.gallery, run, index)
        if stored_points(subject.model) is not None:
            return self._metric(subject, run, index)
        if self.why_not(subject) is not None:  # it was a nearest neighbour before it was read in shares of the range
            raise SubjectError(
                "A training point differs from all inputs in a feature that never varies, and no share of its range "
                "says by how much; give bounds that hold the point, or leave the feature out."
            )
        return self._embedding(subject, run, index)

    def _metric(self, subject: Subject, run: Run, index: Ints) -> Finding:
        """Raw inputs under the classifier's own metric, in shares of the range."""
        stored = stored_points(subject.model)
        assert stored is not None  # ask
        points, owner, factor = stored
        rows = run.map(lambda s: {"x": s.x.flatten(1), "y": s.y}, subject, "test", index, "inputs")
        label, scored = (
            np.asarray(rows["y"], dtype=np.int64),
            partial(score, points, owner, rows["x"], rows["y"], self.k),
        )
        with run.progress("how far each neighbour holds", 1) as tick:
            spaces = (
                {"Euclid": scored(None)} if factor is None else {"its metric": scored(factor), "Euclid": scored(None)}
            )
            tick(1)
        terms = Terms(
            radius=self.radius,
            size=f"{subject.inputs.size(self.radius)} in l2",
            axis=subject.inputs.axis("l2 size of the change"),
            moves="one changes",
            among=f"{len(points):,} training points",
        )
        return self._told(index, label, spaces, terms, in_two_classes(points, owner), seed=run.seed)

    def _embedding(self, subject: Subject, run: Run, index: Ints) -> Finding:
        """What the head sees, in units of the median distance to another class."""
        train = run.pick(subject.data["train"], POINTS)
        compare = len(train) * math.prod(subject.inputs.shape) <= RAW
        work = partial(_embed, subject, compare)
        stored = run.map(work, subject, "train", train, "embedding the training inputs")
        asked = run.map(work, subject, "test", index, "embedding the inputs")
        names = {"embedding": "embedded", **({"raw inputs, Euclid": "x"} if compare else {})}
        with run.progress("how far each neighbour holds", len(names)) as tick:
            spaces = {}
            for name, column in names.items():
                found = score(stored[column], stored["y"], asked[column], asked["y"], self.k, None)
                spaces[name] = found.in_units_of(float(np.median(found.apart)))
                tick(1)
        label = np.asarray(asked["y"], dtype=np.int64)
        terms = Terms(
            radius=self.share,
            size=f"{self.share:.3g} of the median distance to another class",
            axis="size of the change / median distance to another class",
            moves="the embedding of one changes",
            among=f"{len(train):,} training points",
            own=float((asked["said"] != label).mean()),
        )
        about = (
            "What is certified is the embedding: how far a vector may move before the answer is another. "
            "It says nothing of how far a change of the input moves that vector; ask how-steep or worst-case-accuracy."
        )
        both = in_two_classes(stored["embedded"], stored["y"])
        return self._told(index, label, spaces, terms, about, both, seed=run.seed)

    def _search(self, subject: Subject, gallery: Described, run: Run, index: Ints) -> Finding:
        """The descriptors of a search: its first items vote whether they are relevant, and those are the query's own.

        Of descriptors of length 1 the nearest by the cosine is the nearest in l2 too.
        """
        work = partial(_describe, subject)
        rows = run.map(work, subject, "test", index, "describing the queries")
        points = gallery.on(torch.device("cpu"))[0].double().numpy()
        group = np.asarray(rows["y"], dtype=np.int64)[:, 0]
        there, at = np.unique(group, return_inverse=True)
        parts, order = [], np.argsort(at, kind="stable")
        with run.progress("how far each neighbour holds", len(there)) as tick:
            for number, some in zip(there, np.split(order, np.cumsum(np.bincount(at))[:-1]), strict=True):
                own = np.zeros(len(points), dtype=np.int64)
                own[gallery.rows[gallery.starts[number] : gallery.starts[number + 1]]] = 1
                parts.append(score(points, own, rows["descriptor"][some], np.ones(len(some)), self.k, None))
                tick(1)
        back = np.argsort(order)
        found = Scored(
            radius=np.concatenate([p.radius for p in parts])[back],
            bound=np.concatenate([p.bound for p in parts])[back],
            wrong=np.concatenate([p.wrong for p in parts])[back],
            apart=np.concatenate([p.apart for p in parts])[back],
            exact=parts[0].exact,
        )
        spaces = {"descriptors": found.in_units_of(float(np.median(found.apart)))}
        terms = Terms(
            radius=self.share,
            size=f"{self.share:.3g} of the median distance to an item that is not relevant",
            axis="size of the change / median distance to an item that is not relevant",
            moves="the descriptor of one changes",
            among=f"{len(points):,} items of the gallery",
            blind=Beside(subject.blind("test", index)[0], 1 - subject.trivially_right("test", index)[1]),
        )
        about = (
            "What is certified is the descriptor: how far a vector may move before what comes first is not relevant. "
            "It says nothing of how far a change of the query moves that vector; ask worst-case-accuracy."
        )
        return self._told(index, group, spaces, terms, about, seed=run.seed)

    def _told(
        self, index: Ints, label: Ints, spaces: Mapping[str, Scored], terms: Terms, *says: str, seed: int
    ) -> Finding:
        name, mine = next(iter(spaces.items()))
        others = {other: s for other, s in spaces.items() if other != name}
        lost = mine.radius <= terms.radius
        votes = "nearest" if self.k == 1 else f"{self.k} nearest"
        own = (Beside("the model's own answer", terms.own),) if terms.own is not None else ()
        return Finding(
            says=f"By the {votes} of {terms.among}, {share(int(mine.wrong.sum()), len(lost))} of the inputs are wrong, "
            f"and {share(int(lost.sum()), len(lost))} are wrong or not safe when {terms.moves} by {terms.size}.",
            measures=(
                Measure.proportion(
                    HEADLINE,
                    lost,
                    better="lower",
                    column="not certified",
                    about=f"wrong, or not certain to stay right when {terms.moves} by {terms.size}",
                    beside=tuple(Beside(o, float((s.radius <= terms.radius).mean())) for o, s in others.items()),
                ),
                Measure.proportion(
                    "error",
                    mine.wrong,
                    better="lower",
                    column="wrong",
                    about=f"of the vote of the {votes} of {terms.among}",
                    beside=(
                        *(Beside(o, float(s.wrong.mean())) for o, s in others.items()),
                        *own,
                        terms.blind
                        or Beside("always the commonest class", float((label != np.bincount(label).argmax()).mean())),
                    ),
                ),
                Measure.median(
                    "median certified radius",
                    mine.radius,
                    seed=seed,
                    better="higher",
                    about=f"{terms.axis}; 0 where wrong; "
                    + (
                        "exact: some change a little larger breaks it" if mine.exact else "a bound: it may hold further"
                    ),
                    beside=tuple(Beside(o, _middle(s.radius)) for o, s in others.items()),
                ),
            ),
            samples=Table(
                "test",
                {
                    "index": index,
                    "label": label,
                    "wrong": mine.wrong,
                    "not certified": lost,
                    "radius": mine.radius,
                    "certified radius": mine.bound,
                    **{f"radius, {o}": s.radius for o, s in others.items()},
                },
            ),
            views=(_curve(spaces, terms),),
            alarms=tuple(map(Alarm, filter(None, says))),
        )


def score(points: Any, owner: Any, x: Any, label: Any, k: int, factor: Floats | None) -> Scored:
    """Errors and radii of K-NN: m *d, m, n *d, n, r d -> n rows. A class without a training point is always wrong."""
    points, x = (np.asarray(a, dtype=np.float64).reshape(len(a), -1) for a in (points, x))
    owner, label = np.asarray(owner, dtype=np.int64), np.asarray(label, dtype=np.int64)
    known = np.isin(label, owner)
    exact = k == 1 and points.size <= EXACT
    bound = np.zeros(len(x))
    if known.any():
        bound[known] = certified_radius(points, owner, x[known], label[known], k, factor=factor)
    radius = bound.copy()
    if exact and known.any():
        radius[known] = exact_radius(points, owner, x[known], label[known], factor=factor).radius
    wrong, apart = np.ones(len(x), dtype=bool), np.zeros(len(x))
    seen = points if factor is None else points @ factor.T
    for rows in np.array_split(np.arange(len(x)), max(1, len(x) * len(points) // CHUNK + 1)):
        z = x[rows] if factor is None else x[rows] @ factor.T
        distance = torch.cdist(torch.from_numpy(z), torch.from_numpy(seen)).numpy()
        apart[rows] = np.where(owner == label[rows, None], np.inf, distance).min(1)
        voters = owner[np.argpartition(distance, k - 1, axis=1)[:, :k]]  # n k
        votes = (voters[:, :, None] == np.unique(owner)).sum(1)  # n c
        wrong[rows] = votes.max(1, where=np.unique(owner) != label[rows, None], initial=0) >= (
            voters == label[rows, None]
        ).sum(1)
    return Scored(radius, bound, wrong | ~known, apart, exact)


def _middle(values: Floats) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])


def _describe(subject: Subject, shard: Shard) -> Mapping[str, Tensor]:
    return {"y": shard.y, "descriptor": subject.predict(shard.x).double()}


def _embed(subject: Subject, raw: bool, shard: Shard) -> Mapping[str, Tensor]:
    """What the head is given, averaged over the draws of a random model, and the raw input where it is wanted."""
    given: list[Tensor] = []
    name = subject.layers["head"]
    hook = subject.model.get_submodule(name).register_forward_pre_hook(lambda _, args: given.append(args[0]))
    try:
        said = subject.predict(shard.x).argmax(1)
    finally:
        hook.remove()
    n = len(shard.x)
    draws = [draw for e in given if len(e) % n == 0 for draw in in_rounds(e, len(e) // n)]  # several to a batch
    if len(draws) != subject.draws:
        raise SubjectError(
            f"The layer {name!r} was called {len(given)} times in {subject.draws} passes, with "
            f"{[len(e) for e in given]} rows for {n} inputs; name as 'head' one that each input passes once."
        )
    told = {"y": shard.y, "said": said, "embedded": torch.stack(draws).double().mean(0).flatten(1)}
    return told | ({"x": shard.x.flatten(1)} if raw else {})


def _curve(spaces: Mapping[str, Scored], terms: Terms) -> Curve:
    top = max(float(np.quantile(s.radius, 0.98)) for s in spaces.values())
    grid = np.linspace(0, max(top, 1.2 * terms.radius) or 1.0, 41)
    lines = []
    for name, s in spaces.items():
        lines.append(Line.shares(name, grid, [(s.radius <= r).sum() for r in grid], len(s.radius)))
    return Curve(
        name="certified-error",
        title="Inputs that are wrong or not safe, against the size of the change",
        x_label=terms.axis,
        y_label="certified error",
        unit_y=True,
        lines=tuple(lines),
        marks=(Beside("asked about", terms.radius),),
        says="Exact: at each size this share of the inputs can be broken, and no more."
        if all(s.exact for s in spaces.values())
        else "The truth can only be lower where the radius is a bound and not exact.",
    )


SHELVED = DoesTheMetricHold
