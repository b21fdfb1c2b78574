"""How far each input is proved to keep its answer, and how far it is known not to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError, SubjectError
from assay.finding import Alarm, Bars, Beside, Curve, Finding, Line, Measure, Table, Witnesses, share, wilson
from assay.methods.attack.aim import label_of, truth_of
from assay.methods.attack.cells import masked, settled
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.swift import searching
from assay.methods.certify import nearest, relax
from assay.methods.certify.demands import demanded, unproved
from assay.methods.certify.layers import layers
from assay.methods.certify.points import points
from assay.methods.certify.smoothing import smooth
from assay.nn.members import draws_apart
from assay.probe import Probe
from assay.run import KEPT_BYTES
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import InputSpace, Subject

Norm = Literal["l2", "linf"]
NORMS: tuple[Norm, ...] = ("l2", "linf")
LETTERS = {"l2": "l2", "linf": "l∞"}
EACH = 5  # inputs for each step of the budget, and 1 where each costs more
NEURONS = 1000  # ReLUs times inputs for each step of the budget: beyond them backward bounds cost too much
CELLS: dict[Norm, int] = {"l2": 40_000_000, "linf": 1_000_000}  # training points x features x inputs, likewise
CHOOSING, DRAWS = 100, 50  # draws that choose the smoothed answer; and that count it, for each step of the budget
BATCH = 128  # noisy inputs at a time: any model that can be attacked can take as many
ALPHA = 0.001  # the chance that a certificate of smoothing is wrong
SLACK = 1e-3  # of a distance: float32 may break what is proved in exact arithmetic, by its rounding
LEAST = 1e-5  # of the range of the inputs, the same


class Way(NamedTuple):
    """How a model is certified, on how many inputs, and what kept it from a better way."""

    kind: Literal["nearest", "crown", "interval", "smoothing"]
    inputs: int
    linf: int  # of these
    attack: int  # steps
    limit: str = ""


@dataclass(frozen=True)
class Bound:
    """What is known of each input in one norm."""

    index: NDArray[np.int64]  # n
    label: NDArray[np.int64]  # n
    right: NDArray[np.bool_]  # n
    lower: NDArray[np.float64]  # n, certified; 0 where the answer is wrong
    exact: NDArray[np.float64] | None  # n, NaN where the search for it did not end
    upper: NDArray[np.float64]  # n, where an attack breaks it; inf where none did

    @property
    def settled(self) -> NDArray[np.bool_]:
        """Whose exact radius is known: n."""
        return np.zeros(len(self.index), dtype=bool) if self.exact is None else ~np.isnan(self.exact)

    def holds(self, radius: float) -> NDArray[np.bool_]:
        """Proved to stay right under every change of this size: n."""
        proved = self.lower if self.exact is None else np.where(self.settled, self.exact, self.lower)
        return self.right & (proved >= radius) & (self.upper > radius)

    def undecided(self, radius: float) -> NDArray[np.bool_]:
        """Neither proved to hold nor known to break: n."""
        return self.right & (self.upper > radius) & ~self.settled & ~self.holds(radius)


@dataclass(frozen=True)
class CertifiedRadius(Probe):
    """What change, proved, can no attack use?

    For each input a radius that is proved safe, the exact one where it exists, and one at which an attack succeeds, for
    changes inside the bounds of the inputs. A nearest-neighbour classifier has an exact answer; a ReLU network gets
    linear or interval bounds; of any other model the smoothed version is certified, a vote of its answers (of a random
    model, of single passes) under noise of size `sigma`. Numbers are certified where the whole interval of each stays
    within its tolerance, several labels where each logit keeps its sign; these have no vote to smooth.

    `radius` is the l2 size of the headline: 0.25, a quarter of the range of one pixel, is the first size at which
    certified accuracies are usually tabled. `linf_radius` of 2/255 is the smallest that is usual there. `sigma` 0.25
    lets a certificate reach twice the radius within the draws of the quick budget. `inputs` overrides how many inputs
    the budget has, and with it whether linear bounds can be paid for. `by` "smoothing" certifies the smoothed version
    of any classifier, so that two which admit different proofs are asked the same. What is neither proved nor broken
    widens the interval, so that loose bounds end in "cannot tell" and not in a fail.
    """

    radius: float = 0.25
    linf_radius: float = 2 / 255
    sigma: float = 0.25
    inputs: int | None = None
    by: Literal["best", "smoothing"] = "best"

    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Zhang et al., NeurIPS 2018, arXiv:1811.00866 (linear bounds); Gowal et al. 2018, arXiv:1810.12715 "
        "(intervals); Wang et al. 2019, arXiv:1906.03972 (nearest neighbours); Cohen, Rosenfeld & Kolter, ICML 2019, "
        "arXiv:1902.02918 (smoothing); Pintor et al., NeurIPS 2021, arXiv:2102.12827 (the attack)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.2),)

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius", "linf_radius")
        self.refuse_beyond_the_range("linf_radius")
        self.refuse_below(1e-4, "sigma")
        self.refuse_below(1, "inputs")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        return reason or unproved(subject.task, subject.model, subject.inputs.shape, draws=subject.draws)

    def ask(self, subject: Subject, run: Run) -> Finding:
        way = self._way(subject, run.budget.steps)
        index = run.pick(subject.data["test"], way.inputs)
        if way.kind == "smoothing":
            return self._smoothed(subject, way, index, run)
        few = index[np.unique(np.linspace(0, len(index) - 1, num=min(way.linf, len(index)), dtype=int))]
        radii = dict(zip(NORMS, (self.radius, self.linf_radius), strict=True))
        asked = {norm: at for norm, at in zip(NORMS, (index, few), strict=True) if len(at)}
        rows = {
            norm: run.map(
                partial(_search, subject, way, norm, radii[norm]),
                subject,
                "test",
                at,
                f"proofs and attacks, {norm}",
                few={"changed": "fell"},
                room=KEPT_BYTES // len(asked),
            )
            for norm, at in asked.items()
        }
        span = subject.inputs.high - subject.inputs.low
        found = {norm: _known(norm, at, rows[norm], span) for norm, at in asked.items()}
        first, count = found["l2"], len(index)
        undecided = first.undecided(self.radius)
        blocked = self._blocked(subject, way, index[undecided][: run.budget.steps], run)
        held, open_ = int(first.holds(self.radius).sum()), int(undecided.sum())
        witnesses, size = _witnesses(subject, run, asked, rows), subject.inputs.size
        return Finding(
            says=f"Of the inputs, {share(held, count)} are proved to stay right under every change of l2 size "
            f"{size(self.radius)}; {share(count - held - open_, count)} are wrong already or break at that size, and "
            f"{share(open_, count)} are undecided.",
            measures=tuple(
                m for norm, b in found.items() for m in _measures(subject.inputs, norm, radii[norm], b, count, run.seed)
            ),
            samples=_table(found, radii, index, classes="classes" in subject.task.gives),
            views=(*(_curve(subject.inputs, norm, radii[norm], b) for norm, b in found.items()), *blocked),
            alarms=_alarms(subject, way, found),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _way(self, subject: Subject, steps: int) -> Way:
        most = len(subject.data["test"])
        many, few = (min(self.inputs or each * steps, most) for each in (EACH, 1))
        classes = "classes" in subject.task.gives
        if classes and self.by == "smoothing":
            return Way("smoothing", few, 0, steps, "Its smoothed version was asked about, whatever else can be proved.")
        stored = points(subject.model) if classes else None
        if stored is not None:
            payable = {norm: cells * steps // stored.x.size for norm, cells in CELLS.items()}
            inputs = max(few, min(many, payable["l2"]))
            linf = min(inputs, payable["linf"])
            limit = (
                f"The exact l_inf radius was found for {linf} of the {inputs} inputs: each takes linear programmes "
                f"over {len(stored.x):,} training points; a larger budget affords more."
            )
            return Way("nearest", inputs, linf, steps, limit if linf < inputs else "")
        if subject.draws > 1:
            return Way("smoothing", few, 0, steps, "The model's answers are random, so it has no fixed bounds.")
        try:
            chain = layers(subject.model, subject.inputs.shape)
        except (SubjectError, ShapeError) as e:
            return Way("smoothing", few, 0, steps, f"The model cannot be read layer by layer: {e}")
        neurons = sum(math.prod(a.out_shape) for a in chain[:-1])
        afford = NEURONS * steps // max(1, neurons)
        if afford >= few:
            inputs = min(many, afford)
            return Way("crown", inputs, inputs, EACH * steps)
        limit = (
            f"Interval bounds were used, which are loose: linear ones (CROWN) trace each of {neurons:,} ReLUs back for "
            f"each input, and the budget pays for {NEURONS * steps:,} in all. "
            + (f"Ask about {afford} inputs or fewer" if afford else "Certify a smaller network")
            + ", or give a larger budget."
        )
        return Way("interval", few, few, steps, limit)

    def _blocked(self, subject: Subject, way: Way, index: NDArray[np.int64], run: Run) -> tuple[Bars, ...]:
        """In which layer the undecided inputs lost their certificate."""
        if way.kind not in ("crown", "interval") or not len(index):
            return ()
        method: relax.Method = "crown" if way.kind == "crown" else "interval"

        def count(shard: Shard) -> Mapping[str, Tensor]:
            box = (subject.inputs.low, subject.inputs.high)
            left = relax.unstable(subject.model, shard.x, norm="l2", radius=self.radius, method=method, box=box)
            return {"left": left}

        left = run.map(count, subject, "test", index, "what blocked the undecided")["left"].mean(0)  # layers
        widths = [math.prod(a.out_shape) for a in layers(subject.model, subject.inputs.shape)[:-1]]
        if not widths:
            return ()
        shares = left / np.array(widths)
        worst = int(left.argmax())
        return (
            Bars(
                name="blocked",
                title="What blocked the undecided: ReLUs that may be on or off within l2 "
                f"{subject.inputs.size(self.radius)}",
                y_label="share of the layer's ReLUs",
                labels=tuple(f"layer {k + 1} ({n:,})" for k, n in enumerate(widths)),
                values=tuple(map(float, shares)),
                unit_y=True,
                says=f"Mean over {len(index)} undecided inputs. Every such ReLU is replaced by bounds, which is where "
                f"a proof loses; the most, {left[worst]:,.1f} of {widths[worst]:,}, are in layer {worst + 1}.",
            ),
        )

    def _smoothed(self, subject: Subject, way: Way, index: NDArray[np.int64], run: Run) -> Finding:
        """The certificate is about argmax of P(answer under noise): another classifier, made from the model.

        A random model answers each noisy input by one pass, not by the mean of many: it is one vote of very many, and
        the certificate is of votes in which the model draws as freely as the noise.
        """
        draws = DRAWS * run.budget.steps

        def work(shard: Shard) -> Mapping[str, Tensor]:
            s = smooth(
                subject.single,
                shard.x,
                sigma=self.sigma,
                draws=(CHOOSING, draws),
                alpha=ALPHA,
                batch=BATCH,
                rows_apart=subject.draws == 1 or draws_apart(subject.model),
                rng=shard.rng,
            )
            attacked = _attack(subject, shard, "l2", way.attack)
            return {**attacked, "smoothed": s.label, "radius": s.radius}

        about = f"answers under noise of {self.sigma:g}"
        rows = run.map(work, subject, "test", index, about, few={"changed": "fell"})
        label, answer = (np.asarray(rows[name], dtype=np.int64) for name in ("label", "smoothed"))
        upper = np.asarray(rows["upper"], dtype=np.float64)
        right, abstained = answer == label, answer == -1
        radius = np.where(right, np.asarray(rows["radius"], dtype=np.float64), 0.0)
        held = right & (radius >= self.radius)
        undecided = (right | abstained) & ~held
        most = self.sigma * float(ndtri(ALPHA ** (1 / draws)))
        headline = "certified accuracy of the smoothed model, l2"
        of = "of single passes " if subject.draws > 1 else ""
        witnesses, size = _witnesses(subject, run, {"l2": index}, {"l2": rows}), subject.inputs.size
        beyond = f", and {size(self.radius)} is beyond that: raise sigma or the budget" if self.radius > most else ""
        alarms = [
            Alarm(
                f"{way.limit} What is certified is its smoothed version, which answers by vote {of}under Gaussian "
                f"noise of sigma {self.sigma:g}{subject.inputs.aside(self.sigma)}; the model itself has no "
                "certificate.",
                doubts=(headline,),
            ),
            Alarm(
                f"With {draws:,} draws no l2 radius above {size(most)} can be certified, however sure the vote{beyond}."
            ),
        ]
        if abstained.any():
            alarms.append(Alarm(f"Smoothing abstained on {share(int(abstained.sum()), len(index))}: too close a vote."))
        if not subject.differentiable:
            alarms.append(Alarm("The model gives no gradients, so no attack was run on it."))
        if (reach := subject.reach()) is not None and (less := reach.of_proofs()):
            alarms.append(Alarm(less))
        x = _sizes(self.radius, radius, upper)
        lines = [_line("smoothed model: not certified", ~(right & (radius >= x[:, None])), x)]
        if subject.differentiable:
            lines.append(_line("the model itself: broken by an attack", upper <= x[:, None], x))
        return Finding(
            says=f"The model itself cannot be certified. Its smoothed version is proved right on "
            f"{share(int(held.sum()), len(index))} under every change of l2 size {size(self.radius)}, and "
            f"{share(int(undecided.sum()), len(index))} are undecided.",
            measures=(
                Measure.proportion(
                    headline,
                    held,
                    better="higher",
                    column="certified",
                    about=f"right under every l2 change below {size(self.radius, 4)}, each with a chance of "
                    f"{ALPHA:g} of error; noise of sigma {self.sigma:g}, {draws:,} draws",
                    beside=(
                        Beside("the smoothed model, no change", float(right.mean())),
                        Beside("the model itself, no change", float((upper > 0).mean())),
                    ),
                ),
                _median(subject.inputs, "median certified radius of the smoothed model, l2", radius, run.seed),
                Measure.proportion(
                    "undecided for the smoothed model, l2",
                    undecided,
                    better="lower",
                    column="undecided",
                    about="neither certified at that size nor given another label; those it abstains on are among them",
                ),
                Measure.proportion(
                    "abstentions of the smoothed model",
                    abstained,
                    better="lower",
                    column="abstained",
                    about="the vote is too close to certify any answer",
                ),
            ),
            samples=Table(
                "test",
                {
                    "index": index,
                    "label": label,
                    "certified": held,
                    "undecided": undecided,
                    "abstained": abstained,
                    "lower l2 of the smoothed model": radius,
                    "upper l2 of the model itself": _finite(upper),
                },
            ),
            views=(
                Curve(
                    name="l2",
                    title="Proved for the smoothed model, and found on the model itself (l2)",
                    x_label=subject.inputs.axis("l2 size of the change"),
                    y_label="error",
                    unit_y=True,
                    lines=tuple(lines),
                    marks=(Beside("asked about", self.radius), Beside(f"most of {draws:,} draws", most)),
                    says="The lines are about two classifiers, so they may cross.",
                ),
            ),
            alarms=tuple(alarms),
            witnesses=witnesses if len(witnesses) else None,
        )


def _attack(subject: Subject, shard: Shard, norm: Norm, steps: int) -> dict[str, Tensor]:
    """The smallest change found: 0 where the answer is wrong already, infinity where there is none."""
    out, truth, classes = subject.predict(shard.x), truth_of(subject.task, shard.y), "classes" in subject.task.gives
    right = subject.task.right(out, shard.y)
    said = out.argmax(1) if classes else right.long()
    upper, changed = torch.where(right, torch.inf, 0.0).double(), shard.x.clone()
    rows = right.nonzero()[:, 0]
    if len(rows) and subject.differentiable:
        x, y, bounds = shard.x[rows], shard.y[rows], (subject.inputs.low, subject.inputs.high)
        reach, everyone = subject.reach(x), torch.arange(len(x), device=x.device)
        through = searching(subject.model, x, draws=subject.draws)
        got = minimal_norm(
            through.model, x, truth[rows], norm=norm, steps=steps, mask=masked(reach, everyone), eot=subject.draws,
            bounds=bounds, precision=through.boundary,
        )  # fmt: skip
        at, far = settled(reach, everyone, got, x, norm)
        answer = subject.predict(at)  # what a fresh look confirms, and nothing else
        fell = ~subject.task.right(answer, y)
        there = rows[fell]
        upper[there], changed[there] = far[fell].double(), at[fell]
        said[there] = answer.argmax(1)[fell] if classes else 0
    fell = torch.isfinite(upper) & (upper > 0)
    return {"label": label_of(truth), "upper": upper, "changed": changed, "fell": fell, "said": said}


def _search(subject: Subject, way: Way, norm: Norm, radius: float, shard: Shard) -> Mapping[str, Tensor]:
    """Certificate and attack for each input of a shard."""
    told = _attack(subject, shard, norm, way.attack)
    upper = told["upper"]
    rows = (upper > 0).nonzero()[:, 0]
    low, high = subject.inputs.low, subject.inputs.high
    whole = (high - low) * (math.sqrt(shard.x[0].numel()) if norm == "l2" else 1.0)  # no change is larger
    told["lower"] = torch.zeros_like(upper)
    stored = points(subject.model) if "classes" in subject.task.gives else None
    if stored is not None:
        told["exact"] = torch.zeros_like(upper)
    if not len(rows):
        return told
    x, y = shard.x[rows], shard.y[rows]
    if stored is None:
        top = torch.where(upper[rows].isinf(), whole, upper[rows] * (1 + SLACK)).clamp_max(whole)
        keep = demanded(subject.task, y)
        told["lower"][rows] = _relaxed(subject.model, x, keep, norm, top, radius, way, (low, high))
    else:
        flat, label = x.flatten(1).double().cpu().numpy(), y.cpu().numpy()
        closed = nearest.certified_radius(stored.x, stored.y, flat, label, k=1, factor=stored.factor)
        closed = closed / (1.0 if norm == "l2" else math.sqrt(flat.shape[1]))  # |d|_2 <= sqrt(f) |d|_inf
        p = 2 if norm == "l2" else np.inf
        best = nearest.exact_radius(stored.x, stored.y, flat, label, p, factor=stored.factor, box=(low, high))
        exact = np.where(best.ended == "stalled", np.nan, np.minimum(best.radius, whole))
        told["lower"][rows] = torch.from_numpy(np.minimum(closed, whole)).to(upper)
        told["exact"][rows] = torch.from_numpy(exact).to(upper)
    return told


def _known(norm: Norm, index: NDArray[np.int64], rows: Mapping[str, NDArray[Any]], span: float) -> Bound:
    """The bounds of each input, unless one contradicts another: that is shouted, never averaged."""
    lower, upper = rows["lower"], rows["upper"]
    exact = rows.get("exact")
    for claimed in (lower, exact):
        if claimed is None:
            continue
        false = np.flatnonzero(claimed > upper * (1 + SLACK / 2) + LEAST * span)  # an exact of NaN compares false
        if len(false):
            i = false[0]
            raise AssayError(
                f"Input {index[i]} of 'test' is certified to {norm} {claimed[i]:.6g}, and an attack breaks it at "
                f"{upper[i]:.6g}: one of the two is a bug, so nothing here can be believed; please report it."
            )
    return Bound(
        index,
        label=rows["label"].astype(np.int64),
        right=upper > 0,
        lower=np.minimum(lower, upper),
        exact=None if exact is None else np.minimum(exact, upper),
        upper=upper,
    )


def _relaxed(
    model: nn.Module,
    x: Tensor,
    y: Tensor | relax.Demand,
    norm: Norm,
    top: Tensor,
    radius: float,
    way: Way,
    box: tuple[float, float],
) -> Tensor:  # n *d, n, n -> n
    """The largest certified radius up to `top`, which lies a hair beyond the attack: proving that would be a bug.

    The bisection stops at 1 %, so two sizes within that are tried by themselves: the one that is asked about, and one a
    hair below the attack, where proof and attack meet.
    """
    method: relax.Method = "crown" if way.kind == "crown" else "interval"
    lower = relax.certified_radius(model, x, y, norm=norm, high=top, method=method, box=box)
    for size in (torch.full_like(top, radius), top * (1 - 2 * SLACK)):
        near = ((lower < size) & (size <= 1.02 * lower) & (size < top)).nonzero()[:, 0]
        if len(near):
            held = relax.certified(model, x[near], y[near], norm=norm, radius=size[near], method=method, box=box)
            lower[near] = torch.where(held, size[near], lower[near])
    return lower


def _alarms(subject: Subject, way: Way, found: Mapping[Norm, Bound]) -> tuple[Alarm, ...]:
    says = [way.limit] if way.limit else []
    if (reach := subject.reach()) is not None and (less := reach.of_proofs()):
        says.append(less)
    if (stored := points(subject.model)) is not None and (both := nearest.in_two_classes(stored.x, stored.y)):
        says.append(both)
    for norm, b in found.items():
        stalled = int(np.isnan(b.exact).sum()) if b.exact is not None else 0
        if stalled:
            says.append(
                f"The exact {norm} radius of {share(stalled, len(b.index))} was not reached within rounding; the "
                "closed-form bound stands for it."
            )
        never = int(np.isinf(b.upper).sum())
        if never and subject.differentiable:
            says.append(f"The attack broke {share(never, len(b.index))} at no {norm} size: they have no upper end.")
    if not subject.differentiable:
        says.append("The model gives no gradients, so no attack was run; distance-to-failure asks without them.")
    return tuple(map(Alarm, says))


def _measures(space: InputSpace, norm: Norm, radius: float, b: Bound, count: int, seed: int) -> tuple[Measure, ...]:
    whole = len(b.index) == count  # else the samples have rows that were not asked about in this norm
    beside = [Beside("no change", float(b.right.mean())), Beside("under attack", float((b.upper > radius).mean()))]
    if b.exact is not None:
        beside.append(Beside("in closed form", float((b.right & (b.lower >= radius)).mean())))
    certified = Measure.proportion(
        f"certified accuracy, {norm}",
        b.holds(radius),
        better="higher",
        column=f"certified {norm}" if whole else None,
        about=f"proved right under every {LETTERS[norm]} change of at most {space.size(radius, 4)} inside the bounds; "
        "the interval reaches up to what no attack broke, because an undecided input may hold",
        beside=tuple(beside),
    )
    may_hold = b.holds(radius) | b.undecided(radius)
    measures = [
        replace(certified, high=wilson(int(may_hold.sum()), len(may_hold))[1]),
        _median(space, f"median certified radius, {norm}", b.lower, seed),
    ]
    if b.exact is not None:
        measures.append(_median(space, f"median exact radius, {norm}", np.where(b.settled, b.exact, b.lower), seed))
    undecided = Measure.proportion(
        f"undecided, {norm}",
        b.undecided(radius),
        better="lower",
        column=f"undecided {norm}" if whole else None,
        about=f"neither certified at {LETTERS[norm]} {space.size(radius, 4)} nor broken by the attack at that size",
    )
    return (*measures, undecided)


def _median(space: InputSpace, name: str, size: NDArray[np.float64], seed: int) -> Measure:  # n
    about = "half of the inputs have at most this; 0 where the answer is wrong or nothing was proved"
    median = Measure.median(name, size, better="higher", seed=seed, about=about)
    return replace(median, about=about + space.aside(median.value))


def _sizes(radius: float, lower: NDArray[np.float64], upper: NDArray[np.float64]) -> NDArray[np.float64]:  # -> 41
    """Where the curves are drawn."""
    ends = upper[np.isfinite(upper)] if np.isfinite(upper).any() else lower
    return np.linspace(0, max(float(np.quantile(ends, 0.98)), 1.2 * radius) or 1.0, 41)


def _line(label: str, errors: NDArray[np.bool_], x: NDArray[np.float64]) -> Line:  # k n, k
    return Line.shares(label, x, errors.sum(1), errors.shape[1])


def _curve(space: InputSpace, norm: Norm, radius: float, b: Bound) -> Curve:
    x = _sizes(radius, b.lower, b.upper)
    at = x[:, None]
    lines = [_line("not certified", ~(b.right & (b.lower >= at)), x)]
    if b.exact is not None:
        lines.append(_line("exact", ~(b.right & (np.where(b.settled, b.exact, b.lower) >= at)), x))
    if np.isfinite(b.upper[b.right]).any():
        lines.append(_line("broken by an attack", b.upper <= at, x))
    return Curve(
        name=norm,
        title=f"What is proved and what is found, against the size of the change ({LETTERS[norm]})",
        x_label=space.axis(f"{LETTERS[norm]} size of the change"),
        y_label="error",
        unit_y=True,
        lines=tuple(lines),
        marks=(Beside("asked about", radius),),
        says="The worst error that any attack can cause lies between the first line and the last; bands are for the "
        "sampling of the inputs. " + ("Here it is known: the line between." if b.exact is not None else ""),
    )


def _finite(size: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(size), size, np.nan)


def _table(
    found: Mapping[Norm, Bound], radii: Mapping[Norm, float], index: NDArray[np.int64], *, classes: bool
) -> Table:
    """Inputs that a norm was not asked for have NaN in its columns."""
    first = found["l2"]
    columns: dict[str, NDArray[Any]] = {"index": index, **({"label": first.label} if classes else {})}
    columns["right"] = first.right
    for norm, b in found.items():
        known = {"lower": b.lower, "upper": _finite(b.upper)} | ({} if b.exact is None else {"exact": b.exact})
        for name in ("lower", "exact", "upper"):
            if name in known:
                column = np.full(len(index), np.nan)
                column[np.isin(index, b.index)] = known[name]
                columns[f"{name} {norm}"] = column
        if len(b.index) == len(index):
            columns[f"certified {norm}"] = b.holds(radii[norm])
            columns[f"undecided {norm}"] = b.undecided(radii[norm])
    return Table("test", columns)


def _witnesses(
    subject: Subject,
    run: Run,
    asked: Mapping[Norm, NDArray[np.int64]],
    found: Mapping[Norm, Mapping[str, NDArray[Any]]],
) -> Witnesses:
    broke = {norm: r["changed at"] for norm, r in found.items()}
    index = np.concatenate([asked[norm][at] for norm, at in broke.items()])

    def join(column: str) -> NDArray[Any]:
        return np.concatenate([found[norm][column][at] for norm, at in broke.items()])

    clean, target = (part.numpy() for part in subject.data["test"].take(index))
    changed = np.concatenate([r["changed"] for r in found.values()]).astype(np.float32)
    classes = "classes" in subject.task.gives
    return Witnesses(
        split="test",
        index=index,
        clean=clean,
        changed=changed,
        label=join("label").astype(np.int64) if classes else target,
        said=join("said").astype(np.int64) if classes else subject.said(changed, run.device),
        norm=tuple(norm for norm, at in broke.items() for _ in at),
        radius=join("upper"),
        how=("smallest change found",) * len(index),
        left_out=sum(int(r["fell"].sum()) for r in found.values()) - len(index),
    )


SHELVED = CertifiedRadius
