"""How far the data that it meets are from those that it was made with, as inputs and as the model sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.domain import LEAST
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Finding, Gallery, Matrix, Measure, Table, wilson
from assay.inputs.reach import Reach
from assay.methods.shift.mk_mmd import Shift, mmd_test
from assay.methods.shift.points import coded, on_one_scale
from assay.methods.shift.two_samples import PriorGap, Telling, classifier_auc, least_auc, prior_gap
from assay.methods.train.typicality import comparable
from assay.methods.uncertainty.activations import shown
from assay.methods.uncertainty.detection import area_interval
from assay.probe import Need, Probe
from assay.probes._leaks import leaked_domains
from assay.probes._on_show import on_show
from assay.run import HELD_BYTES

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Domain, Subject

MOST = 5000  # inputs of a domain, which are all compared with each other
WIDE = 2**14  # values of an answer that stands in the place of features
GALLERIES = 4  # domains whose farthest inputs are shown, the farthest first
ALPHA = 0.05
DEALS = 1999  # at most, where nobody asked for more: enough for 100 tests at once
BLIND = 0.6  # the least area that would have been seen: above it, that none was seen says little
HALVES = "home against home"
FARTHEST = "AUC of the farthest domain"
On = Literal["features", "inputs"]
Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class HowFarIsItFromHome(Probe):
    """How far is the deployment data from home?

    Home is the training data, or the test data where there are none. Each domain is held against it twice: the inputs
    as they are, and the features, what enters the model's last linear layer. MK-MMD says whether they differ, with the
    p-value of `deals` permutations; the area under the curve of a classifier that has to tell them apart says by how
    much: 1/2 is not at all, 1 is that every input shows where it comes from. Where labels are known both are asked
    within each class too, and the shares of the classes are compared. Two halves of home stand beside, which ought to
    say that nothing moved, and the test data, which ought to say it nearly: a model that remembers its training inputs
    makes other features of them. With many domains more deals are made, so that the p-values can be as small as the
    level that is left for each.

    A shift is no fault of the model, and a model may well be right far from home: there is no limit unless
    `assay.toml` sets one. `inputs` is how many of each domain are compared.
    """

    inputs: int | None = None
    deals: int = 500

    needs: ClassVar[tuple[Need, ...]] = ("domains",)
    source: ClassVar[str] = (
        "Gretton et al., JMLR 2012, 13:723 (MMD); Long et al., ICML 2015, arXiv:1502.02791 (several kernels); "
        "Lopez-Paz & Oquab, ICLR 2017, arXiv:1610.06545 (classifier); Wang, TU Delft 2024 (dissertation), sec. 2.3.3 "
        "and 3.3 (the three gaps)"
    )

    def __post_init__(self) -> None:
        self.refuse_below(LEAST, "inputs")
        self.refuse_below(19, "deals")  # fewer have no p-value of 0.05

    def ask(self, subject: Subject, run: Run) -> Finding:
        domains = {name: d for name, d in subject.domains().items() if len(d.data) >= LEAST}
        small = {name: len(d.data) for name, d in subject.domains().items() if name not in domains}
        if not domains:
            raise AssayError(
                f"No domain has {LEAST} inputs ({', '.join(f'{n!r} has {k}' for n, k in small.items())}); give more."
            )
        home = subject.home
        bench = _Bench(subject.everywhere(), run, self.inputs, self.deals, len(domains))
        bench.look(home, twice=True)
        found = {HALVES: bench.halves(home)}
        others = (("test",) if home != "test" else ()) + tuple(domains)
        for name in others:
            bench.look(name)
            found[name] = bench.apart(home, name)
        lead = bench.on[0]
        far = max(domains, key=lambda name: found[name][lead].told.value)
        within = {n: bench.within(home, n) for n, d in domains.items() if d.labelled and bench.classes}
        priors = {n: bench.priors(home, n) for n in within}
        measures = [_farthest(far, found, lead, home, len(domains))]
        for name in (*domains, *(n for n in found if n not in domains)):
            for on in bench.on:
                three = found[name][on].measures(on, name, home, found[HALVES][on])
                measures += three if name in domains else three[:2]
            if name in within:
                measures += _prior(name, priors[name], home)
                measures += _classes(name, within[name], home)
        return Finding(
            says=_sentence(far, found, lead, home, domains),
            measures=tuple(measures),
            samples=bench.table(far, found[far], domains[far].labelled),
            views=(
                *(_areas(on, found, far) for on in bench.on),
                *_by_class(subject, within, lead),
                *_shares(subject, home, priors, domains),
                *bench.farthest(domains, found),
            ),
            alarms=(
                *(replace(a, doubts=(FARTHEST, *a.doubts)) for a in leaked_domains(subject, run, measures)),
                *_alarms(subject, found, domains, small, within, bench, home),
            ),
        )


class Apart(NamedTuple):
    """Two samples held against each other on one thing."""

    shift: Shift
    told: Telling
    m: int
    n: int

    @classmethod
    def of(cls, a: Tensor, b: Tensor, *, deals: int, rng: torch.Generator) -> Apart:  # m d, n d
        return cls(mmd_test(a, b, rng=rng, deals=deals), classifier_auc(a, b, rng=rng), len(a), len(b))

    @property
    def flat(self) -> bool:
        """Whether every row is the same, so that nothing could be told."""
        return float(self.shift.dealt.abs().max()) < 1e-12

    def p(self) -> tuple[float, float, float]:
        """The p-value, and what more deals could make of it."""
        deals = len(self.shift.dealt)
        return self.shift.p_value, *wilson(round(self.shift.p_value * (1 + deals)) - 1, deals)

    def measures(self, on: On, name: str, home: str, control: Apart) -> tuple[Measure, Measure, Measure]:
        """The area, the p-value, and MMD squared itself."""
        whom = f"two halves of {home!r}" if name == HALVES else f"{name!r} against {home!r}"
        whom, beside = f"{whom}, on {on}", name != HALVES
        p, low, high = self.p()
        return (
            Measure(
                name=f"AUC, {on}, {name}",
                value=self.told.value,
                low=self.told.low,
                high=self.told.high,
                n=self.n,
                unit="",
                better="neither",
                about=f"{whom}: chance that a classifier that has seen neither puts an input of the one above one of "
                "the other; 0.5 where nothing tells them apart",
                beside=(
                    Beside("the least that would be seen", least_auc(self.m, self.n)),
                    *((Beside(HALVES, control.told.value),) if beside else ()),
                ),
            ),
            Measure(
                name=f"p-value, {on}, {name}",
                value=p,
                low=min(p, low),
                high=max(p, high),
                n=self.n,
                better="neither",
                about=f"{whom}: how often inputs that are dealt anew are as far apart by MMD, of "
                f"{len(self.shift.dealt)} deals; the interval is what more deals could say",
            ),
            Measure(
                name=f"MMD squared, {on}, {name}",
                value=self.shift.squared,
                low=self.shift.low,
                high=self.shift.high,
                n=self.n,
                better="neither",
                about=f"{whom}: unbiased, by five Gaussian kernels about the median distance; 0 where nothing moved",
                beside=(
                    Beside("the least that would be seen", self.shift.least(ALPHA)),
                    *((Beside(HALVES, control.shift.squared),) if beside else ()),
                ),
            ),
        )


class _Bench:
    """What was drawn of each set, as points and as features, and what comes of holding two against each other."""

    def __init__(self, subject: Subject, run: Run, inputs: int | None, deals: int, domains: int) -> None:
        self.subject, self.run, self.least = subject, run, deals
        self.classes = "classes" in subject.task.gives
        reach = None if subject.kind is None else subject.kind.reach
        self.choices = reach.choices if isinstance(reach, Reach) else None
        one = subject.data["test"].take(np.arange(1))[0].to(run.device)
        self.head, self.left_out = self._head(one)
        self.on: tuple[On, ...] = () if self.left_out else ("features",)
        if not subject.tokens:  # no distance lies between two words by number
            self.on = (*self.on, "inputs")
        if not self.on:
            raise AssayError(f"Neither inputs nor features can be compared here: {self.left_out}.")
        self.deals = enough_deals(deals, domains * len(self.on))
        row = self._look(one)
        width = max(4 * int(each.numel()) for each in row.values())
        wanted = inputs or run.budget.samples or MOST
        self.count = max(LEAST, min(wanted, MOST, HELD_BYTES // (8 * width)))
        self.rows: dict[str, Rows] = {}
        self.index: dict[str, NDArray[np.int64]] = {}

    def _head(self, one: Tensor) -> tuple[str | None, str]:
        """The layer whose input is the features, or None where answers stand for them; and why there are neither."""
        head = self.subject.layers.get("head")
        why = "no linear layer was found; name one as layers['head']"
        if head is not None:
            try:
                shown(self.subject.model, one, (head,), entering=True)
                return head, ""
            except AssayError as e:
                why = str(e)
        wide = int(self.subject.predict(one).numel())
        return None, "" if wide <= WIDE else f"{why}; and an answer has {wide} values"

    def _look(self, x: Tensor) -> dict[str, Tensor]:
        seen = {} if self.subject.tokens else {"inputs": comparable(x, self.choices)}
        if self.head is not None:
            seen["features"] = shown(self.subject.model, x, (self.head,), entering=True)[1][self.head].flatten(1)
        elif "features" in self.on:
            seen["features"] = self.subject.predict(x).flatten(1)
        return {name: rows.float() for name, rows in seen.items()}

    def look(self, name: str, *, twice: bool = False) -> None:
        """Draw inputs of a set and look at them; of home twice as many, so that there are two halves of full size."""
        data = self.subject.data[name]
        self.index[name] = self.run.pick(data, (1 + twice) * self.count)

        def work(shard: Shard) -> Mapping[str, Tensor]:
            return self._look(shard.x)

        self.rows[name] = self.run.map(work, self.subject, name, self.index[name], f"what {name} looks like")

    def _pair(self, on: On, a: NDArray[Any], b: NDArray[Any]) -> tuple[Tensor, Tensor]:
        first, second = (torch.as_tensor(rows, device=self.run.device) for rows in (a, b))
        if on == "features" or self.subject.inputs.is_picture:
            return first, second
        return on_one_scale(first, second, None if self.choices is None else coded(self.choices))

    def _held(self, on: On, a: NDArray[Any], b: NDArray[Any], deals: int) -> Apart:
        return Apart.of(*self._pair(on, a, b), deals=deals, rng=self.run.rng())

    def _apart(self, home: str, name: str) -> NDArray[np.bool_]:
        """Which of what was drawn of home is none of the domain's own; all of it where hardly any is left."""
        if name not in self.subject.domains():
            return np.ones(len(self.index[home]), dtype=bool)
        others = np.isin(self.index[home], self.subject.home_rows(name))
        return others if int(others.sum()) >= LEAST else np.ones_like(others)

    def _some(self, home: str, name: str) -> NDArray[np.int64]:
        """Of what was drawn of home, as many as of a domain."""
        order = np.random.default_rng(self.run.seed).permutation(len(self.index[home]))
        return np.sort(order[self._apart(home, name)[order]][: self.count])

    def halves(self, home: str) -> dict[On, Apart]:
        order = np.random.default_rng(self.run.seed).permutation(len(self.index[home]))
        cut = len(order) // 2
        rows = self.rows[home]
        return {on: self._held(on, rows[on][order[:cut]], rows[on][order[cut:]], self.deals) for on in self.on}

    def apart(self, home: str, name: str) -> dict[On, Apart]:
        some = self._some(home, name)
        return {on: self._held(on, self.rows[home][on][some], self.rows[name][on], self.deals) for on in self.on}

    def within(self, home: str, name: str) -> dict[int, Apart | None]:
        """Class by class, on what leads; None where either side has too few to say anything."""
        labels = {each: np.asarray(self.subject.data[each].labels)[self.index[each]] for each in (home, name)}
        labels[home] = np.where(self._apart(home, name), labels[home], -1)
        on, classes = self.on[0], range(len(self.subject.task.classes))
        asked = [c for c in classes if min(int((each == c).sum()) for each in labels.values()) >= LEAST]
        deals, found = enough_deals(self.least, len(asked)), dict[int, Apart | None].fromkeys(classes)
        for c in asked:
            a, b = (self.rows[each][on][labels[each] == c] for each in (home, name))
            found[c] = self._held(on, a, b, deals)
        return found

    def priors(self, home: str, name: str) -> PriorGap:
        k, labels = len(self.subject.task.classes), {n: np.asarray(self.subject.data[n].labels) for n in (home, name)}
        others = self.subject.home_rows(name)
        labels[home] = labels[home][others] if len(others) >= LEAST else labels[home]
        counts = [np.bincount(each, minlength=k) for each in labels.values()]
        return prior_gap(*counts, rng=np.random.default_rng(self.run.seed))

    def table(self, name: str, apart: Mapping[On, Apart], labelled: bool) -> Table:
        """Of the farthest domain: how far each input is."""
        columns: dict[str, NDArray[Any]] = {"index": self.index[name]}
        if labelled and self.classes:
            columns["label"] = np.asarray(self.subject.data[name].labels)[self.index[name]]
        for on, each in apart.items():
            columns[f"witness, {on}"] = each.shift.witness[1].double().numpy()
            columns[f"rank, {on}"] = each.told.ranks[1].double().numpy()
        return Table(name, columns)

    def farthest(self, domains: Mapping[str, Domain], found: Mapping[str, Mapping[On, Apart]]) -> list[Gallery]:
        """Of the farthest domains the inputs that are least like home."""
        on, subject, galleries = self.on[0], self.subject, []
        for name in sorted(domains, key=lambda each: -found[each][on].told.value)[:GALLERIES]:
            ours, theirs = found[name][on].shift.witness
            rows = theirs.argsort()[: self.run.budget.shown].numpy()
            places, data = self.index[name][rows], domains[name].data
            x = data.take(places)[0]
            said = subject.said(x.numpy(), self.run.device)
            exhibits = []
            for i, place, one, out in zip(rows, places, x, said, strict=True):
                words = [f"witness {float(theirs[i]):.3f}"]
                if domains[name].labelled:
                    words.append(f"labelled {subject.task.told(torch.as_tensor(np.asarray(data.labels)[place]))}")
                words.append(f"the model says {subject.task.words(torch.as_tensor(out))}")
                exhibits.append(on_show(subject, data, int(place), one, "; ".join(words)))
            galleries.append(
                Gallery(
                    name=f"farthest, {name}",
                    title=f"The inputs of {name} that are least like {subject.home}, by their {on}",
                    exhibits=tuple(exhibits),
                    says=f"The witness is how much nearer an input is to {subject.home} than to the others of {name}, "
                    f"by the mean of the kernel; that of {subject.home} itself is {float(ours.mean()):.3f} on the "
                    f"average, and of {name} {float(theirs.mean()):.3f}.",
                )
            )
        return galleries


def _farthest(far: str, found: Mapping[str, Mapping[On, Apart]], on: On, home: str, count: int) -> Measure:
    """The headline. Its interval holds for all domains at once, because this one was picked for being the farthest."""
    apart = found[far][on]
    low, high = area_interval(apart.told.value, apart.m // 2, apart.n // 2, level=1 - ALPHA / count)
    beside = [Beside(name, found[name][on].told.value) for name in (HALVES, "test") if name in found]
    return Measure(
        name=FARTHEST,
        value=apart.told.value,
        low=low,
        high=high,
        n=apart.n,
        better="neither",
        about=f"{far!r} against {home!r}, on {on}: chance that a classifier that has seen neither puts an input of the "
        f"one above one of the other; the interval holds for all {count} domains at once",
        beside=tuple(beside),
    )


def _prior(name: str, gap: PriorGap, home: str) -> tuple[Measure, Measure]:
    about = f"shares of the classes in {name!r} against those in {home!r}"
    return (
        Measure(
            name=f"prior gap, {name}",
            value=gap.value,
            low=gap.low,
            high=gap.high,
            unit="%",
            better="neither",
            about=f"{about}: the total variation between them, the least share of labels that would have to change",
            beside=(Beside("by chance", gap.by_chance),),
        ),
        Measure(
            name=f"p-value, priors, {name}",
            value=gap.p_value,
            better="neither",
            about=f"{about}: how often counts that are dealt anew have as large a chi-square",
        ),
    )


def _classes(name: str, within: Mapping[int, Apart | None], home: str) -> list[Measure]:
    """What is left of the shift where priors have no part in it: the mean over classes, and their smallest p-value."""
    asked = [each for each in within.values() if each is not None]
    if not asked:
        return []
    k = len(asked)
    value = sum(each.told.value for each in asked) / k
    half = math.sqrt(sum((each.told.high - each.told.low) ** 2 for each in asked)) / (2 * k)
    smallest = min(1.0, k * min(each.shift.p_value for each in asked))
    n = sum(each.n for each in asked)
    return [
        Measure(
            name=f"AUC within a class, {name}",
            value=value,
            low=max(0.0, value - half),
            high=min(1.0, value + half),
            n=n,
            better="neither",
            about=f"{name!r} against {home!r}, of inputs of one class; the mean of {k} classes with {LEAST} or more",
            beside=(Beside("nothing moved", 0.5),),
        ),
        Measure(
            name=f"p-value within a class, {name}",
            value=smallest,
            n=n,
            better="neither",
            about=f"the smallest of {k} classes, times {k}",
        ),
    ]


def _sentence(
    far: str, found: Mapping[str, Mapping[On, Apart]], on: On, home: str, domains: Mapping[str, Domain]
) -> str:
    apart = found[far][on]
    which = f"{far!r} is the farthest of {len(domains)} domains from {home!r}: a" if len(domains) > 1 else "A"
    told = (
        f"{which} classifier tells inputs of {far!r} from those of {home!r} in {100 * apart.told.value:.0f} of 100 "
        f"pairs by the model's features"
        if on == "features"
        else f"{which} classifier tells inputs of {far!r} from those of {home!r} in {100 * apart.told.value:.0f} of "
        "100 pairs"
    )
    if on == "features" and "inputs" in found[far]:
        told += f", and in {100 * found[far]['inputs'].told.value:.0f} by the inputs themselves"
    told += f"; a coin makes 50, and two halves of {home!r} {100 * found[HALVES][on].told.value:.0f}. "
    moved = _moved(found, domains)
    if len(moved) == len(domains):
        told += "Chance does not explain it." if len(domains) == 1 else "Chance explains none of the domains."
    elif not moved:
        told += "Chance could explain that: no shift was found."
    else:
        told += f"Chance could explain all but {', '.join(map(repr, moved))}."
    return told


def enough_deals(deals: int, tests: int) -> int:
    """So many deals, or more where so many tests need them: of p deals no p-value is below 1 / (1 + p)."""
    return max(deals, min(DEALS, math.ceil(tests / ALPHA) - 1))


def _level(found: Mapping[str, Mapping[On, Apart]], domains: Mapping[str, Domain]) -> tuple[float, float]:
    """What a p-value may be for a shift, and the error of that over all domains: ALPHA where deals suffice for it."""
    dealt = [len(each.shift.dealt) for name in domains for each in found[name].values()]
    level = max(ALPHA / len(dealt), 1 / (1 + min(dealt)))
    return level * (1 + 1e-9), min(1.0, level * len(dealt))


def _moved(found: Mapping[str, Mapping[On, Apart]], domains: Mapping[str, Domain]) -> list[str]:
    """The domains of which chance does not explain the MMD on something, by the level for all of them."""
    level, _ = _level(found, domains)
    return [name for name in domains if min(each.shift.p_value for each in found[name].values()) <= level]


def _areas(on: On, found: Mapping[str, Mapping[On, Apart]], far: str) -> Bars:
    each = {name: apart[on] for name, apart in found.items()}
    return Bars(
        name=f"areas, {on}",
        title=f"How well {on} tell where an input comes from",
        y_label="AUC",
        labels=tuple(each),
        values=tuple(a.told.value for a in each.values()),
        low=tuple(a.told.low for a in each.values()),
        high=tuple(a.told.high for a in each.values()),
        unit_y=True,
        marks=(Beside("nothing tells", 0.5),),
        says=f"P-values by MMD: {', '.join(f'{name} {a.shift.p_value:.3g}' for name, a in each.items())}.",
    )


def _by_class(subject: Subject, within: Mapping[str, Mapping[int, Apart | None]], on: On) -> tuple[Matrix, ...]:
    if not any(each is not None for found in within.values() for each in found.values()):
        return ()
    return (
        Matrix(
            name="classes",
            title=f"AUC of inputs of one class, on {on}",
            row_label="domain",
            column_label="class",
            rows=tuple(within),
            columns=subject.task.classes,
            values=tuple(
                tuple(None if each is None else each.told.value for each in found.values()) for found in within.values()
            ),
            says=f"0.5 is no shift within the class. Classes with fewer than {LEAST} inputs on either side are left "
            "out.",
        ),
    )


def _shares(
    subject: Subject, home: str, priors: Mapping[str, PriorGap], domains: Mapping[str, Domain]
) -> tuple[Matrix, ...]:
    if not priors:
        return ()
    k = len(subject.task.classes)
    sets = {home: subject.data[home], **{name: domains[name].data for name in priors}}
    counts = {name: np.bincount(np.asarray(data.labels), minlength=k) for name, data in sets.items()}
    return (
        Matrix(
            name="shares",
            title="The share of each class",
            row_label="domain",
            column_label="class",
            rows=tuple(counts),
            columns=subject.task.classes,
            values=tuple(tuple((each / each.sum()).tolist()) for each in counts.values()),
        ),
    )


def _alarms(
    subject: Subject,
    found: Mapping[str, Mapping[On, Apart]],
    domains: Mapping[str, Domain],
    small: Mapping[str, int],
    within: Mapping[str, Mapping[int, Apart | None]],
    bench: _Bench,
    home: str,
) -> list[Alarm]:
    alarms, moved = [], _moved(found, domains)
    _, error = _level(found, domains)
    if error > ALPHA * (1 + 1e-9):
        says = (
            f"Chance alone makes one of these {len(domains)} domains look moved in up to {100 * error:.0f} of 100 "
            f"audits, not in {100 * ALPHA:.0f}: {bench.deals:,} deals know no smaller p-value. Set "
            f"deals={math.ceil(len(domains) * len(bench.on) / ALPHA) - 1}."
        )
        alarms.append(Alarm(says))
    for name, count in small.items():
        alarms.append(
            Alarm(f"The domain {name!r} has {count} inputs and was left out; {LEAST} are the least to ask of.")
        )
    for name in domains:
        names = tuple(f"{what}, {on}, {name}" for on in found[name] for what in ("AUC", "MMD squared", "p-value"))
        one = found[name][bench.on[0]]
        least = least_auc(one.m, one.n)
        if name not in moved and least > BLIND:
            says = (
                f"No shift was found in {name!r}, but with {one.n} inputs against {one.m} none is seen for sure below "
                f"an AUC of {least:.2f}, or an MMD squared of {one.shift.least(ALPHA):.2g}."
            )
            alarms.append(Alarm(says, doubts=(*names, FARTHEST)))
        flat = [on for on in found[name] if found[name][on].flat]
        if flat:
            says = f"All {' and '.join(flat)} of {name!r} and {home!r} are equal: nothing could be told by them."
            alarms.append(Alarm(says, doubts=(*names, FARTHEST)))
    if "test" in found and home != "test":
        beyond = [on for on, each in found["test"].items() if each.shift.p_value <= ALPHA and each.told.low > 0.5]
        if beyond:
            area = 100 * found["test"][beyond[0]].told.value
            why = (
                f"The test data can be told from {home!r} too, by {' and '.join(beyond)}, in {area:.0f} of 100 pairs: "
            )
            why += (
                "they are themselves from elsewhere"
                if "inputs" in beyond
                else "the model remembers its training inputs, and so much of a domain's distance is no shift"
            )
            alarms.append(Alarm(f"{why}. Read the domains against that."))
    if bench.head is None and "features" in bench.on:
        alarms.append(Alarm("No layer of the model can be looked into: its answers stand in the place of features."))
    if bench.left_out:
        alarms.append(Alarm(f"Features were not compared: {bench.left_out}."))
    for name, each in within.items():
        few = [subject.task.classes[c] for c, apart in each.items() if apart is None]
        if few:
            named = ", ".join(few[:8]) + (", ..." if len(few) > 8 else "")
            alarms.append(
                Alarm(f"Of {name!r} no class with fewer than {LEAST} inputs drawn was compared by itself: {named}.")
            )
    return alarms


SHELVED = HowFarIsItFromHome
