"""Which invariances its features have from domain to domain, and whether any of them could bridge what lies between."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, SubjectError
from assay.finding import EVERYTHING, Alarm, Beside, Finding, Matrix, Measure, Table, View, share, wilson
from assay.methods.shift.class_conditional import ConditionalGap, class_conditional_gap
from assay.methods.shift.domain_order import LEAST as ORDERED
from assay.methods.shift.domain_order import along_parameter, seriate
from assay.methods.shift.domain_posteriors import domain_posteriors
from assay.methods.shift.hypothesis_gap import HypothesisGap, hypothesis_gaps
from assay.methods.shift.label_conflict import DEALS, Conflict, label_conflict
from assay.methods.shift.label_conflict import LEAST as PAIRED
from assay.methods.shift.leave_one_out import leave_one_out
from assay.methods.shift.mixture_weights import mixture_weights
from assay.methods.shift.mk_mmd import Shift, mmd_test
from assay.methods.shift.principal import principal
from assay.methods.shift.support_overlap import LEVEL, held
from assay.methods.shift.two_samples import PriorGap, prior_gap
from assay.methods.uncertainty.activations import shown
from assay.probe import Need, Probe
from assay.probes._leaks import leaked_domains
from assay.run import HELD_BYTES
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

EACH = 300  # inputs of a domain: what is done to them grows with the square
FEW = 30  # inputs, below which nothing is said of a domain
CERTAIN = 0.01  # p of a label conflict
MOST, LEAST = 0.1, 0.5  # a gap or a conflict, and shared support
CONFLICT, GAP, SUPPORT = "label conflict", "hypothesis gap", "shared support"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CouldAnInvarianceBridgeIt(Probe):
    """Which invariance does it have, and could it bridge the gap?

    Its features, what enters its last linear layer or else its answers, are compared between home (the training data,
    else the test data) and each domain: as they are (class-agnostic invariance) and within each class
    (class-conditional), by MMD^2; the shares of classes (prior gap); and what the features say of the class. Where one
    hypothesis serves every domain they are hypothesis invariant, which is enough: a domain may look different and be
    answered alike. Aligned features under a prior gap cost errors in both domains that sum to it.

    Two things no invariance bridges: inputs that have other labels there (label conflict), and features where home has
    none (shared support). A domain without labels is asked for its support, and for the mixture of the others that it
    looks like.

    Labels are compared among inputs of equal shares of classes, so that a prior gap alone is no conflict.

    Neighbours are looked for along the first principal components. `inputs` is how many of each domain are looked at,
    fewer where they are wide.
    """

    inputs: int = EACH

    needs: ClassVar[tuple[Need, ...]] = ("classes", "domains")
    source: ClassVar[str] = (
        "Wang, Loog & van Gemert, ICPR 2020, arXiv:2010.07591 (the invariances); Wang, dissertation, TU Delft 2024, "
        "sec. 3.3 and 8.1 (label conflict, support, mixtures); how each is measured: methods/shift/"
    )
    standards: ClassVar[tuple[Standard, ...]] = (
        Standard(at_most=MOST),
        Standard(measure=CONFLICT, at_most=MOST),
        Standard(measure=SUPPORT, at_least=LEAST),
    )

    def __post_init__(self) -> None:
        self.refuse_below(FEW, "inputs")

    def ask(self, subject: Subject, run: Run) -> Finding:
        seen = _Seen(subject, run, self.inputs)
        rows = {name: _Row(seen, name) for name in seen.asked}
        order = _order(seen, run.seed)
        gaps = [row.gap for row in rows.values() if row.gap is not None and row.away]
        conflict = max((row for row in rows.values() if row.conflict and row.away), key=_conflicting, default=None)
        support = min((row for row in rows.values() if row.away), key=lambda row: row.overlap.mean(), default=None)
        measures = [
            _gap_measure(GAP, gaps, "over all domains"),
            _conflict_measure(CONFLICT, conflict.conflict if conflict else None, "the largest of all domains"),
            _support_measure(SUPPORT, support.overlap if support else None, seen, "the least of all domains"),
        ]
        for row in rows.values():
            measures += row.measures(run.seed) if row.away else []
        mixtures = {name: seen.mixture(name) for name in seen.unlabelled} if len(seen.sources) > 1 else {}
        for name, (alpha, low, high) in mixtures.items():
            measures += [
                Measure(
                    name=f"weight of {source} in {name}", value=float(a), low=float(l), high=float(h), better="neither",
                    n=len(seen.z[name]), unit="%",
                    about="by EM on posteriors of the domains; the interval resamples the inputs of that domain alone",
                )
                for source, a, l, h in zip(seen.sources, alpha, low, high, strict=True)
            ]  # fmt: skip
        measures += order.measures
        alarms = [
            *seen.alarms,
            *(alarm for row in rows.values() for alarm in row.alarms(seen.certain)),
        ]
        leaks = leaked_domains(subject, run, measures)
        alarms += [replace(alarm, doubts=(GAP, CONFLICT, SUPPORT, *alarm.doubts)) for alarm in leaks]
        if not gaps:
            alarms.append(Alarm(_why_no_gap(seen), doubts=(GAP,)))
        if conflict is None:
            alarms.append(Alarm(_why_no_conflict(seen), doubts=(CONFLICT,)))
        if support is None:
            alarms.append(Alarm("No domain has enough inputs to say where it lies.", doubts=(SUPPORT,)))
        return Finding(
            says=_says(seen, rows, mixtures, order),
            measures=tuple(measures),
            samples=_samples(rows),
            views=(_table(rows), *_mixed(seen, mixtures)),
            alarms=tuple(alarms),
        )


class _Seen:
    """Features, inputs, labels and answers of home and of every domain that is large enough."""

    def __init__(self, subject: Subject, run: Run, inputs: int) -> None:
        self.subject, self.run, self.home = subject, run, subject.home
        self.rng = torch.Generator().manual_seed(run.seed)
        self.classes = len(subject.task.classes)
        domains = subject.domains()
        self.alarms: list[Alarm] = []
        small = [name for name, d in domains.items() if len(d.data) < FEW]
        if small:
            self.alarms.append(
                Alarm(
                    f"Fewer than {FEW} inputs in {', '.join(map(repr, small))}: nothing is said of "
                    f"{'it' if len(small) == 1 else 'them'}.",
                    doubts=(GAP, CONFLICT, SUPPORT),
                )
            )
        known = {name: d for name, d in domains.items() if name not in small}
        self.unlabelled = [name for name, d in known.items() if not d.labelled]
        self.labelled = [name for name, d in known.items() if d.labelled]
        self.at = {name: d.at for name, d in known.items()}
        if len(subject.data[self.home]) < FEW:
            raise SubjectError(
                f"The split {self.home!r} has {len(subject.data[self.home])} inputs; give at least {FEW}."
            )
        beside = ["test"] if self.home != "test" and len(subject.data["test"]) >= FEW else []
        self.asked = [*beside, *known]
        self.sources = [self.home, *self.labelled]
        # over the number of domains that are asked, but not below what the swaps can reach
        self.certain = max(CERTAIN / max(1, len(self.labelled)), 1 / (1 + DEALS))
        everywhere, (layer, features) = subject.everywhere(), _layer(subject, run)
        # twice, as the parts of a domain are held beside their whole
        width = 2 * (4 * math.prod(subject.inputs.shape) + 8 * features)
        inputs = max(FEW, min(inputs, HELD_BYTES // (width * (1 + len(self.asked)))))
        self.index, z, x = {}, {}, {}
        self.y: dict[str, Tensor] = {}
        self.right: dict[str, NDArray[np.bool_]] = {}
        for name in (self.home, *self.asked):
            index = run.pick(everywhere.data[name], min(inputs, run.budget.samples or inputs))
            found = run.map(partial(_look, subject, layer), everywhere, name, index, f"features on {name}")
            if not np.isfinite(found["z"]).all():
                raise SubjectError(
                    f"The model returned NaN or infinity on {name!r}; check its weights and its scaling."
                )
            self.index[name], z[name], x[name] = index, torch.as_tensor(found["z"]), torch.as_tensor(found["x"])
            self.y[name] = torch.as_tensor(found["y"]).long()
            self.right[name] = found["said"] == found["y"]
        self.spoken = "what enters its last linear layer" if layer else "its answers"
        least, most = (torch.stack([of(part, 0) for part in z.values()]) for of in (torch.amin, torch.amax))
        spread = float((most.amax(0) - least.amin(0)).max())
        size = float(torch.maximum(most.abs(), least.abs()).max())
        self.constant = spread <= 1e-6 * size or spread == 0
        if self.constant:
            self.alarms.append(
                Alarm(
                    "It has the same features for every input: every invariance holds of them, and nothing can be told "
                    "from them.",
                    doubts=EVERYTHING,
                )
            )
        self.z, self.x = _brought(z), _brought(x)
        # which of the inputs seen of home are none of a domain's own; all of them where hardly any is left
        self.others = {name: torch.ones(len(self.index[self.home]), dtype=torch.bool) for name in self.asked}
        for name in known:
            apart = torch.from_numpy(np.isin(self.index[self.home], subject.home_rows(name)))
            self.others[name] = apart if int(apart.sum()) >= FEW else self.others[name]
        whole = all(bool(each.all()) for each in self.others.values())  # else home is what the domains are parts of
        labelled = [n for n in (self.home, *self.asked) if n not in self.unlabelled and (whole or n != self.home)]
        self.gaps: dict[str, HypothesisGap] = {}
        if len(labelled) > 1:
            z_known, y_known = ([of[n] for n in labelled] for of in (self.z, self.y))
            gaps = hypothesis_gaps(z_known, y_known, self.classes, rng=self.rng)
            self.gaps = dict(zip(labelled, gaps, strict=True))

    def mixture(self, name: str) -> tuple[Floats, Floats, Floats]:
        """The shares of the sources in a domain without labels, with their intervals."""
        told, priors = domain_posteriors([self.z[source] for source in self.sources], self.z[name])
        again = np.random.default_rng(self.run.seed).multinomial(len(told), np.full(len(told), 1 / len(told)), size=200)
        alpha = mixture_weights(told, priors).numpy()
        low, high = np.quantile(mixture_weights(told, priors, torch.as_tensor(again)).numpy(), (0.025, 0.975), axis=0)
        alpha, low, high = (np.round(part, 6) for part in (alpha, np.minimum(low, alpha), np.maximum(high, alpha)))
        return alpha, low, high


@dataclass
class _Row:
    """One domain beside home: a row of the table."""

    seen: _Seen
    name: str
    away: bool = field(init=False)
    """Whether it is a domain, and not the test data."""
    labelled: bool = field(init=False)
    overlap: NDArray[np.bool_] = field(init=False)
    agnostic: Shift = field(init=False)
    conditional: ConditionalGap | None = None
    prior: PriorGap | None = None
    gap: HypothesisGap | None = None
    conflict: Conflict | None = None
    inside: Conflict | None = None
    """The same of features in the place of inputs."""
    lost: Floats | None = None
    """For each input: told from inputs less told from features, 1, 0 or -1."""

    def __post_init__(self) -> None:
        s, name, home = self.seen, self.name, self.seen.home
        self.away, self.labelled = name != "test", name not in s.unlabelled
        mine = s.others[name]
        z, there = s.z[home][mine], s.z[name]
        others = [s.z[source] for source in s.sources if source not in (name, home)] if not self.labelled else []
        self.overlap = torch.stack([held(there, each) for each in (z, *others)]).any(0).numpy()
        self.agnostic = mmd_test(z, there, rng=s.rng)
        if not self.labelled:
            return
        y, label = s.y[home][mine], s.y[name]
        self.conditional = class_conditional_gap(z, y, there, label, rng=s.rng)
        counts = [np.bincount(np.asarray(s.subject.data[n].labels), minlength=s.classes) for n in (home, name)]
        self.prior = prior_gap(*counts, rng=np.random.default_rng(s.run.seed))
        self.lacking = [c for c, (a, b) in enumerate(zip(*counts, strict=True)) if (a > 0) != (b > 0)]
        gap = s.gaps.get(name)
        self.gap = gap if gap is not None and int(gap.common.sum()) >= FEW else None
        if not s.subject.tokens:
            self.conflict = _conflict(s.x[home][mine], y, s.x[name], label, s)
        if not s.constant:
            self.inside = _conflict(z, y, there, label, s)
        known = [leave_one_out(part, label, s.classes).argmax(1) == label for part in (s.x[name], there)]
        self.lost = (known[0].double() - known[1].double()).numpy()

    def measures(self, seed: int) -> list[Measure]:
        on, n = f"on {self.name}", len(self.overlap)
        found = [
            _support_measure(f"{SUPPORT} {on}", self.overlap, self.seen, "share of its inputs"),
            Measure(
                name=f"class-agnostic gap {on}", value=self.agnostic.squared, low=self.agnostic.low,
                high=self.agnostic.high, n=n, better="neither",
                about=f"MMD^2 of features from home's; p = {self.agnostic.p_value:.3g} by permutation",
            ),
        ]  # fmt: skip
        if not self.labelled:
            return found
        assert self.prior is not None  # of every domain with labels
        assert self.lost is not None
        found.append(
            Measure(
                name=f"prior gap {on}", value=self.prior.value, low=self.prior.low, high=self.prior.high, n=n,
                unit="%", better="neither",
                about=f"total variation of the shares of classes; p = {self.prior.p_value:.3g}. Features aligned all "
                "the same have errors that sum to it at least, in two classes",
                beside=(Beside("by chance", self.prior.by_chance),),
            )
        )  # fmt: skip
        if self.conditional is not None:
            found.append(
                Measure(
                    name=f"class-conditional gap {on}", value=self.conditional.squared, low=self.conditional.low,
                    high=self.conditional.high, n=n, better="neither",
                    about=f"MMD^2 within classes, mean; p = {self.conditional.p_value:.3g} by permutation",
                )
            )  # fmt: skip
        if self.gap is not None:
            found.append(_gap_measure(f"{GAP} {on}", [self.gap], "on inputs that another domain has too"))
            kl = (self.gap.kl - self.gap.kl_by_chance)[self.gap.common]
            found.append(
                Measure(
                    name=f"divergence of posteriors {on}", value=float(kl.mean()), better="neither", n=len(kl),
                    unit="nats",
                    about="mean KL of what features say in this domain from what they say in others, less that of "
                    "halves of this domain; no interval, as both are estimates",
                )
            )  # fmt: skip
        if self.conflict is not None:
            found.append(_conflict_measure(f"{CONFLICT} {on}", self.conflict, "between inputs alike in both"))
        if self.inside is not None:
            found.append(
                _conflict_measure(f"{CONFLICT} in features {on}", self.inside, "between features alike in both")
            )
        found.append(
            Measure.mean(
                f"sufficiency gap {on}", self.lost, better="lower", seed=seed, unit="%",
                about="accuracy of kernel ridge regression on inputs less that on features, each input left out in "
                "turn",
            )
        )  # fmt: skip
        found.append(Measure.proportion(f"accuracy {on}", self.seen.right[self.name], better="higher"))
        return found

    def alarms(self, certain: float) -> list[Alarm]:
        found: list[Alarm] = []
        if not self.labelled or not self.away:
            return found
        s, on = self.seen, f"on {self.name}"
        if self.lacking:
            names = ", ".join(repr(s.subject.task.classes[c]) for c in self.lacking[:5])
            found.append(
                Alarm(
                    f"Only one of {s.home!r} and {self.name!r} has inputs of {share(self.lacking, s.classes)} classes "
                    f"({names}): nothing within these is compared.",
                    doubts=(f"class-conditional gap {on}", f"{CONFLICT} {on}"),
                )
            )
        if self.gap is None and self.name in s.gaps and not s.constant:
            found.append(
                Alarm(
                    f"Only {share(int(s.gaps[self.name].common.sum()), len(self.overlap))} features of {self.name!r} "
                    "lie where another domain has any: hypothesis invariance is empty there, and holds whatever it "
                    "says.",
                    doubts=(GAP,),
                )
            )
        if self.gap is not None:
            gap = _differing([self.gap])
            if gap.by_chance >= MOST and gap.low <= MOST:
                found.append(
                    Alarm(
                        f"Halves of {self.name!r} differ from each other on {100 * gap.by_chance:.0f} % of inputs, by "
                        f"chance, and at most {100 * MOST:.0f} % is asked for: its labels are too few or too random "
                        "to tell.",
                        doubts=(GAP, f"{GAP} {on}"),
                    )
                )
        if self.conflict is None and not s.subject.tokens:
            found.append(
                Alarm(
                    f"Too few inputs of {self.name!r} are like those of {s.home!r} to see whether their labels agree.",
                    doubts=(CONFLICT,),
                )
            )
        if self.conflict is not None and self.conflict.p_value <= certain and self.conflict.low > 0:
            found.append(
                Alarm(
                    f"In {self.name!r} inputs like those of {s.home!r} have other labels (p = "
                    f"{self.conflict.p_value:.3g}, {self.conflict.pairs} pairs): no invariance can bridge that.",
                    doubts=(GAP, f"{GAP} {on}", CONFLICT),
                )
            )
        y = np.asarray(s.y[self.name])
        commonest = np.bincount(y, minlength=s.classes).max() / len(y)
        if s.right[self.name].mean() <= commonest:
            found.append(
                Alarm(
                    f"On {self.name!r} it is right on {100 * s.right[self.name].mean():.0f} %, no more than always "
                    f"saying the commonest class: hypothesis invariance says nothing about being right.",
                    doubts=(GAP, f"{GAP} {on}"),
                )
            )
        return found


def _brought(rows: dict[str, Tensor]) -> dict[str, Tensor]:  # each n d -> each n p
    """Into the principal components of all; a domain's rows are let go as soon as they are."""
    onto = principal(list(rows.values()))
    return {name: onto(rows.pop(name)) for name in list(rows)}


def _layer(subject: Subject, run: Run) -> tuple[str | None, int]:
    """The last linear layer, if what enters it can be caught, and how many values that has, else the answers; of a
    random model one pass tells little."""
    name = subject.layers.get("head")
    answers = None, len(subject.task.classes)
    if name is None or subject.draws > 1:
        return answers
    try:
        _, inner = shown(
            subject.model, subject.data["test"].take(np.arange(1))[0].to(run.device), (name,), entering=True
        )
    except AssayError:
        return answers
    return name, inner[name].numel()


def _look(subject: Subject, layer: str | None, shard: Shard) -> Mapping[str, Tensor]:
    """Features, inputs as shares of their ranges, answers and labels."""
    if layer is None:
        out = subject.predict(shard.x)
        z = out.double().log_softmax(1)
    else:
        out, inner = shown(subject.model, shard.x, (layer,), entering=True)
        z = inner[layer]
    low, span = (edge.to(shard.x.device) for edge in subject.inputs.edges())
    x = (shard.x.double() - low) / span.where(span > 0, torch.ones_like(span))
    return {"z": z.flatten(1).double(), "x": x.flatten(1).float(), "said": out.argmax(1), "y": shard.y}


class _Share(NamedTuple):
    """Of inputs that another domain holds too: how many are put into another class, with a 95 % interval."""

    value: float
    low: float
    high: float
    by_chance: float
    n: int


def _differing(gaps: Sequence[HypothesisGap]) -> _Share:
    """The share over all these domains, of which the inputs are a sample too: Wilson's interval widens both ends."""
    found, least, most, chance = (
        torch.cat([getattr(gap, part)[gap.common].double() for gap in gaps])
        for part in ("differs", "surely", "maybe", "by_chance")
    )
    share, by_chance, n = float(found.mean()), float(chance.mean()), len(found)
    under, over = wilson(int(found.sum()), n)
    low = max(0.0, share - math.hypot(share - float(least.mean()), share - under))
    high = min(1.0, share + math.hypot(float(most.mean()) - share, over - share))
    value = math.sqrt(max(0.0, share**2 - by_chance**2))
    return _Share(min(max(value, low), high), low, high, by_chance, n)


def _gap_measure(name: str, gaps: Sequence[HypothesisGap], where: str) -> Measure:
    about = (
        f"share of inputs, {where}, that the domain's own posterior on features puts into another class than that of "
        "the other domains, less what chance adds"
    )
    if not gaps:
        return Measure(name=name, value=None, better="lower", unit="%", about=about)
    found = _differing(gaps)
    return Measure(
        name=name, value=found.value, low=found.low, high=found.high, n=found.n, unit="%", better="lower", about=about,
        beside=(Beside("halves of a domain, by chance", found.by_chance),),
    )  # fmt: skip


def _conflict(a: Tensor, y_a: Tensor, b: Tensor, y_b: Tensor, seen: _Seen) -> Conflict | None:  # n d, n, m d, m
    """The test among as many inputs of each class in both, drawn by seed: other shares of classes alone make another
    P(y | x), and labels are known here, so that this can be taken out."""
    counts = torch.minimum(*(torch.bincount(y, minlength=seen.classes) for y in (y_a, y_b)))
    if int(counts.sum()) < PAIRED:
        return None
    i, j = (_of_each(y, counts, seen.rng) for y in (y_a, y_b))
    return label_conflict(a[i], y_a[i], b[j], y_b[j], classes=seen.classes, rng=seen.rng)


def _of_each(y: Tensor, counts: Tensor, rng: torch.Generator) -> Tensor:  # n, c -> k, ascending
    """So many of each class, drawn at random."""
    order = torch.randperm(len(y), generator=rng)
    place = torch.nn.functional.one_hot(y[order], len(counts)).cumsum(0).gather(1, y[order][:, None])[:, 0]
    return order[place <= counts[y[order]]].sort().values


def _conflicting(row: _Row) -> float:
    assert row.conflict is not None
    return row.conflict.strength


def _conflict_measure(name: str, conflict: Conflict | None, about: str) -> Measure:
    if conflict is None:
        return Measure(name=name, value=None, better="lower", about=about)
    value = max(0.0, conflict.strength)
    return Measure(
        name=name, value=value, low=min(value, max(0.0, conflict.low)), high=max(value, conflict.high),
        n=conflict.pairs, better="lower",
        about=f"{about}, of equal shares of classes: half the squared distance of P(y | x, domain) from P(y | x, "
        f"home), 1 where certain labels always differ; p = {conflict.p_value:.3g}, and {100 * conflict.differ:.0f} % "
        "of pairs have two labels for any reason",
    )  # fmt: skip


def _support_measure(name: str, overlap: NDArray[np.bool_] | None, seen: _Seen, about: str) -> Measure:
    if overlap is None:
        return Measure(name=name, value=None, better="higher", unit="%", about=about)
    return Measure.proportion(
        name, overlap, better="higher",
        about=f"{about}: features ({seen.spoken}) within reach of those of home, or of any source where labels lack",
        beside=(Beside(f"what {seen.home} shares with itself", LEVEL),),
    )  # fmt: skip


def _why_no_gap(seen: _Seen) -> str:
    if not seen.labelled:
        return "No domain of enough inputs has labels: what features say of the class there cannot be compared."
    return "No domain shares enough features with another to compare what they say of the class."


def _why_no_conflict(seen: _Seen) -> str:
    if not seen.labelled:
        return "No domain of enough inputs has labels: whether they agree with home's cannot be seen."
    if seen.subject.tokens:
        return "An input here is a row of words by number, of which none is near another: labels were not compared."
    return "No domain has enough inputs like home's to see whether their labels agree."


@dataclass
class _Order:
    measures: tuple[Measure, ...] = ()
    says: str = ""


def _order(seen: _Seen, seed: int) -> _Order:
    """Whether domains lie in an order: along their parameter where each has one, else along any."""
    names = [name for name in seen.asked if name != "test"]
    if len(names) < ORDERED or seen.constant:
        return _Order()
    centres = torch.stack([seen.z[name].mean(0) for name in names])
    apart = torch.cdist(centres, centres).numpy()
    at = [seen.at[name] for name in names]
    if all(where is not None for where in at) and len(set(at)) > 1:
        along = along_parameter(apart, np.array(at, dtype=np.float64), seed=seed)
        measure = Measure(
            name="domain order", value=along.correlation, n=len(names), better="neither",
            about=f"correlation of distances between mean features with those of {', '.join(map(str, at))}; p = "
            f"{along.p_value:.3g}",
        )  # fmt: skip
        how = f"(correlation {along.correlation:.2f}, p = {along.p_value:.2g})"
        if along.p_value <= 0.05:
            return _Order((measure,), f"Its features keep the order of the domains {how}.")
        if len(names) == ORDERED:  # no order of so few is unlikely enough
            return _Order((measure,), f"{len(names)} domains are too few to tell whether they keep an order {how}.")
        return _Order((measure,), f"Its features do not show the order of the domains {how}.")
    found = seriate(apart, seed=seed)
    line = ", ".join(names[i] for i in found.order)
    measure = Measure(
        name="domain order, residual", value=found.residual, n=len(names), better="neither", unit="%",
        about=f"share of triples of mean features that the best order, {line}, does not fit; p = {found.p_value:.3g}",
    )  # fmt: skip
    says = f"Its features put the domains into the order {line}." if found.p_value <= 0.05 else ""
    return _Order((measure,), says)


def _samples(rows: Mapping[str, _Row]) -> Table | None:
    """The domain with the largest gap, input by input."""
    some = [row for row in rows.values() if row.gap is not None and row.away]
    if not some:
        return None
    row = max(some, key=lambda row: _differing([row.gap]).value if row.gap else 0.0)
    assert row.gap is not None
    assert row.lost is not None
    s = row.seen
    return Table(
        row.name,
        {
            "index": s.index[row.name],
            "label": s.y[row.name].numpy(),
            "right": s.right[row.name],
            "shared": row.gap.common.numpy(),
            "hypotheses differ": row.gap.differs.numpy(),
            "by chance": row.gap.by_chance.numpy(),
            "divergence": row.gap.kl.numpy(),
            "told from inputs, less features": row.lost,
        },
    )


COLUMNS = (
    "class-agnostic", "class-conditional", "prior", "hypothesis", "sufficiency", "label conflict", "shared support",
    "accuracy",
)  # fmt: skip


def _table(rows: Mapping[str, _Row]) -> Matrix:
    """A row for each domain, a column for each invariance."""

    def cells(row: _Row) -> tuple[float | None, ...]:
        gap = None if row.gap is None else _differing([row.gap]).value
        return (
            max(0.0, row.agnostic.squared),
            None if row.conditional is None else max(0.0, row.conditional.squared),
            None if row.prior is None else row.prior.value,
            gap,
            None if row.lost is None else float(row.lost.mean()),
            None if row.conflict is None else max(0.0, row.conflict.strength),
            float(row.overlap.mean()),
            float(row.seen.right[row.name].mean()) if row.labelled else None,
        )

    return Matrix(
        name="invariances",
        title="Which invariance holds where",
        row_label="domain",
        column_label="gap",
        rows=tuple(rows),
        columns=COLUMNS,
        values=tuple(cells(row) for row in rows.values()),
        says="Gaps are 0 where an invariance holds; the first two are MMD^2, the others shares. Support and accuracy "
        "are better high. Empty: not measured, as labels lack or the alarms say.",
    )


def _mixed(seen: _Seen, mixtures: Mapping[str, tuple[Floats, Floats, Floats]]) -> tuple[View, ...]:
    if not mixtures:
        return ()
    return (
        Matrix(
            name="mixtures",
            title="Which domains one without labels looks like",
            row_label="without labels",
            column_label="made of",
            rows=tuple(mixtures),
            columns=tuple(seen.sources),
            values=tuple(tuple(float(a) for a in alpha) for alpha, _, _ in mixtures.values()),
            says="Shares of a mixture, by EM on its features. Aligning all domains treats these as equal.",
        ),
    )


def _says(
    seen: _Seen, rows: Mapping[str, _Row], mixtures: Mapping[str, tuple[Floats, Floats, Floats]], order: _Order
) -> str:
    """What can be bridged, the worst first."""
    if seen.constant:
        return "It has the same features for every input: each invariance holds, and none of them is worth anything."
    away = [row for row in rows.values() if row.away]
    told: list[str] = []
    bad = [row for row in away if row.conflict and row.conflict.p_value <= seen.certain and row.conflict.low > 0]
    if bad:
        told.append(
            f"In {_named(bad)} inputs like those of {seen.home!r} have other labels: no invariance can bridge that, "
            "only labels from there can."
        )
    far = [row for row in away if row.overlap.mean() < LEAST]
    if far:
        told.append(
            f"Most features of {_named(far)} lie where {seen.home!r} has none: what it says there is a guess beyond "
            "its data, whichever invariance holds."
        )
    left = [row for row in away if row.gap is not None and row not in bad]
    if left:
        gap = _gap_measure(GAP, [row.gap for row in left if row.gap], "")
        mean, low, high = (number or 0.0 for number in (gap.value, gap.low, gap.high))
        apart = [row for row in left if min(gap.p_value for gap in (row.agnostic, row.conditional) if gap) <= 0.05]
        told.append(
            f"Where domains share features, {100 * mean:.1f} % of inputs of {_named(left)} are put into another class "
            f"by the domain's own posterior than by that of the others"
            + (
                "; training for hypothesis invariance is aimed at that."
                if low > MOST
                else f": one hypothesis serves them{_though(apart)}."
                if high <= MOST
                else f", {100 * low:.0f} to {100 * high:.0f} with 95 % confidence: too few to tell whether one "
                "hypothesis serves them."
            )
        )
    shifted = [row for row in away if row.prior and row.prior.p_value <= seen.certain]
    if shifted:
        worst = max(row.prior.value for row in shifted if row.prior)
        told.append(
            f"Classes are not as common in {_named(shifted)} as at home (up to {100 * worst:.0f} % off): features "
            "aligned whatever the class would pay for that with errors."
        )
    for name, (alpha, _, _) in mixtures.items():
        first = int(np.argmax(alpha))
        told.append(f"{name!r} looks like {100 * alpha[first]:.0f} % {seen.sources[first]!r}.")
    if order.says:
        told.append(order.says)
    return " ".join(told) or "No domain has labels and enough inputs: only where they lie was asked."


def _though(apart: Sequence[_Row]) -> str:
    return (
        f", though the features of {_named(apart)} are told apart, which no hypothesis needs to mind" if apart else ""
    )


def _named(rows: Sequence[_Row]) -> str:
    names = [repr(row.name) for row in rows]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


SHELVED = CouldAnInvarianceBridgeIt
