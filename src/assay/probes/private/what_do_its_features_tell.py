"""What an attacker who retrains reads about people off a layer of the model, beside what inputs and labels tell."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.attribute import LEAST
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Better, Finding, Measure, Table
from assay.inputs.reach import Reach
from assay.methods.private.attacker import Attacker, Kind, Leakage, within
from assay.methods.train.typicality import comparable
from assay.methods.uncertainty.activations import shown
from assay.probe import Need, Probe, undisturbed
from assay.run import HELD_BYTES
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.attribute import Attribute
    from assay.run import Run, Shard
    from assay.subject import Subject

TIMES = 4  # as many inputs as other questions have: each takes one pass
MOST = 10_000
KINDS: tuple[Kind, ...] = ("linear", "mlp")
FEATURES, LOGITS = "features", "logits"


@dataclass(frozen=True)
class WhatDoItsFeaturesTell(Probe):
    """What do its features tell about people?

    Two attackers, a linear one and one with a hidden layer, learn to read each attribute off a layer on one half of the
    test inputs, and are judged on the other half. `layer` is what enters the last linear layer (features), the answers
    (logits), a name of the subject's layers such as last_conv, or a module. An attribute that goes with the label is
    read off any right answer; what is read beyond the label is what tells inputs of one label apart. Beside it stands
    what the inputs tell themselves.

    `attribute` names one; left out, each is read. `people` names the attribute that says who a row is about: nobody is
    then in both halves. Where the model carries a defence, an attacker who learnt on the model of before is judged too:
    what only he cannot read is not hidden. `plain` names that model; left out, it is looked for among the bundled ones.
    What is read is a floor: another attacker may read more.
    """

    layer: str = FEATURES
    attribute: str | None = None
    people: str | None = None
    plain: str | None = None

    needs: ClassVar[tuple[Need, ...]] = ("classes", "attributes")
    source: ClassVar[str] = (
        "Fuhl, Bozkir & Kasneci, ICANN 2021 (an attacker that adapts); Alain & Bengio 2016, arXiv:1610.01644 (linear "
        "probes)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.6),)

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is not None:
            return reason
        known = [name for name, each in subject.attributes.items() if "test" in each.codes]
        for setting, name in (("attribute", self.attribute), ("people", self.people)):
            if name is not None and name not in known:
                return (
                    f"the setting {setting}={name} names none of the attributes of the test inputs: {', '.join(known)}"
                )
        if self.layer == FEATURES and self._place(subject) is None:
            return "no last linear layer was found whose inputs are features; have its answers with --set layer=logits"
        return None

    def depends_on(self, run: Run) -> tuple[str, ...]:
        if self.plain is None:
            return ()
        plain = run.further(self.plain)
        return (f"{plain.fingerprint()} {plain.behaviour()}",)

    def ask(self, subject: Subject, run: Run) -> Finding:
        seen = _seen(subject, run, self._place(subject))
        before, unknown = self._before(subject, run, seen)
        asked = [self.attribute] if self.attribute else [n for n, a in subject.attributes.items() if "test" in a.codes]
        read: list[_Read] = []
        alarms: list[Alarm] = [] if unknown is None else [unknown]
        for name in asked:
            found = self._read(subject.attributes[name], subject, seen, before, run)
            alarms += found.alarms
            read.append(found)
        read.sort(key=lambda each: -(each.measures[0].value or 0.0))  # what is read most stands first
        columns: dict[str, NDArray[np.int64] | NDArray[np.bool_]] = {"index": seen.index, "label": seen.y}
        for found in read:
            columns |= found.columns
        return Finding(
            says=" ".join(found.says for found in read),
            measures=tuple(measure for found in read for measure in found.measures),
            samples=Table("test", columns),
            views=tuple(found.bars for found in read if found.bars is not None),
            alarms=tuple(alarms),
        )

    def _place(self, subject: Subject) -> tuple[str, bool] | None:
        """The module whose output, or input, is looked at; None for the answers, or where there is none."""
        if self.layer == LOGITS:
            return None
        if self.layer == FEATURES:
            head = subject.layers.get("head")
            return (head, True) if head is not None else None
        return subject.layers.get(self.layer, self.layer), False

    def _before(self, subject: Subject, run: Run, seen: _Seen) -> tuple[Tensor | None, Alarm | None]:  # -> n f
        """What the model of before its defence shows of the same inputs; or why that is not known."""
        if self.plain is None and not subject.origin:
            return None, None
        name = self.plain or subject.name.partition("+")[0]
        try:
            plain = run.further(name)
            old = replace(subject, model=plain.model, layers=plain.layers, draws=plain.draws)
            with ExitStack() as stack:
                stack.enter_context(undisturbed(plain.model, run))
                then, now = _seen(old, run, self._place(old), seen.index).of["layer"], seen.of["layer"]
            if then.shape != now.shape:
                raise AssayError(
                    f"The {self.layer} of the model before had {then.shape[1]} values and have {now.shape[1]} now: no "
                    "attacker of one reads the other; name another layer."
                )
            return then, None
        except AssayError as e:
            if self.plain is not None:
                raise
            return None, Alarm(
                f"It went through {', '.join(subject.origin)}, and what it showed before is not known here "
                f"(--set plain=MODEL tells): {str(e).rstrip('.')}."
            )

    def _read(self, attribute: Attribute, subject: Subject, seen: _Seen, before: Tensor | None, run: Run) -> _Read:
        codes = attribute.codes["test"][seen.index]
        apart = self.people is not None and self.people != attribute.name
        who = subject.attributes[str(self.people)].codes["test"][seen.index] if apart else None
        learn, judge = _halves(codes, who, run.seed)
        few = [
            v
            for v in range(len(attribute.values))
            if (codes[judge] == v).sum() < LEAST or (codes[learn] == v).sum() < LEAST
        ]
        alarms = []
        if here := [attribute.values[v] for v in few if (codes == v).any()]:
            alarms.append(
                Alarm(
                    f"Fewer than {LEAST} inputs in one of the halves have these values of {attribute.name}, which were "
                    f"left out: {', '.join(here)}."
                )
            )
        learn, judge = (rows[~np.isin(codes[rows], few)] for rows in (learn, judge))
        bench = _Bench(attribute.name, self.layer, codes, seen, learn, judge, run.seed)
        if len(attribute.values) - len(few) < 2:
            blank = Measure(name=bench.beyond_name, value=None, better="lower", about=ABOUT)
            says = f"Of {attribute.name} nothing can be said: fewer than two values have {LEAST} inputs in each half."
            return _Read(says, (blank,), None, {}, (*alarms, Alarm(says, (blank.name,))))
        return bench.read(before, alarms)


ABOUT = (
    "chance that, of two inputs with one label, the attacker gives the one that has a value of the attribute a higher "
    "chance of it than the one that has not (AUROC)"
)


@dataclass(frozen=True)
class _Seen:
    """Inputs of the test split: what the layer, the answers and the inputs themselves show of each."""

    index: NDArray[np.int64]  # n
    y: NDArray[np.int64]  # n
    of: dict[str, Tensor]  # n f each: layer, logits, inputs


class _Read(NamedTuple):
    """What was read of one attribute."""

    says: str
    measures: tuple[Measure, ...]
    bars: Bars | None
    columns: dict[str, NDArray[np.int64] | NDArray[np.bool_]]  # n each
    alarms: tuple[Alarm, ...]


@dataclass(frozen=True)
class _Bench:
    """One attribute, the half that is learnt and the half that judges."""

    name: str
    layer: str
    codes: NDArray[np.int64]  # n
    seen: _Seen
    learn: NDArray[np.int64]
    judge: NDArray[np.int64]
    seed: int

    @property
    def beyond_name(self) -> str:
        return f"{self.name} read beyond the label"

    def _fit(self, z: Tensor, kind: Kind) -> Attacker:  # n f
        return Attacker.fit(z[self.learn], self.codes[self.learn], self.seed, kind=kind, values=self.codes.max() + 1)

    def _judged(self, attacker: Attacker, z: Tensor) -> Leakage:  # n f
        return attacker.judged(z[self.judge], self.codes[self.judge])

    def _best(self, z: Tensor) -> tuple[Attacker, dict[Kind, Leakage]]:  # n f
        """The attacker who did better on what he kept back of his half, and what both read."""
        both = {kind: self._fit(z, kind) for kind in KINDS}
        best = min(both.values(), key=lambda each: each.held_out_loss)
        return best, {kind: self._judged(each, z) for kind, each in both.items()}

    def read(self, before: Tensor | None, alarms: list[Alarm]) -> _Read:
        name, on, y = self.name, f"the {self.layer}", self.seen.y
        best, both = self._best(self.seen.of["layer"])
        ours = both[best.kind]
        label = F.one_hot(torch.as_tensor(y)).double().to(self.seen.of["layer"].device)
        by_label = self._judged(self._fit(label, "linear"), label)
        inputs, by_input = self._best(self.seen.of["inputs"]) if "inputs" in self.seen.of else (None, {})
        by_inputs = None if inputs is None else by_input[inputs.kind]
        knowing = torch.cat([self.seen.of["layer"].double(), label], 1)
        with_label = self._judged(self._fit(knowing, best.kind), knowing)
        beyond = self._beyond(with_label, y[self.judge])
        bars = [(f"{self.layer}, {kind}", each) for kind, each in both.items()]
        measures = [
            beyond,
            self._accuracy(f"{name} read off {on}", ours, (*_beside(ours, by_label, by_inputs),)),
            Measure.contrast(
                f"{name} read off {on}, each value alike",
                [(1 / len(ours.present), ours.balanced_hits[ours.codes == v]) for v in ours.present],
                better="lower",
                about="the mean over values of the share of their inputs that is read (balanced accuracy), where the "
                "attacker takes each for as common",
                beside=(Beside("guessing", 1 / len(ours.present)),),
            ),
            self._area(f"{name} told apart by {on}", ours),
            Measure.mean(
                f"{name} gained over the label by {on}",
                with_label.hits.astype(float) - by_label.hits,
                better="lower",
                seed=self.seed,
                unit="%",
                about="right readings of an attacker who sees the layer and the label, less those of one who sees the "
                "label alone",
            ),
            self._accuracy(
                f"{name} read off the label", by_label, (Beside("commonest value", by_label.chance),), "neither"
            ),
        ]
        if by_inputs is not None:
            measures.append(
                self._accuracy(f"{name} read off the inputs", by_inputs, (Beside("commonest value", by_inputs.chance),))
            )
            bars += [(f"inputs, {kind}", each) for kind, each in by_input.items()]
        if self.layer != LOGITS:
            chosen, of_logits = self._best(self.seen.of["logits"])
            by_logits = of_logits[chosen.kind]
            measures.append(
                self._accuracy(f"{name} read off the logits", by_logits, (Beside("commonest value", by_logits.chance),))
            )
            bars.append(("logits", by_logits))
        bars.append(("label", by_label))
        alarms = [*alarms, *self._nothing(beyond, ours, by_inputs)]
        if before is not None:
            old, told = self._of_before(before, best.kind, ours)
            measures.append(old)
            alarms += told
        said = self._drawn(bars, ours.chance)
        columns: dict[str, NDArray[np.int64] | NDArray[np.bool_]] = {name: self.codes}
        judged, right = (np.zeros(len(self.codes), dtype=bool) for _ in range(2))
        judged[self.judge], right[self.judge] = True, ours.hits
        columns |= {f"{name} judged": judged, f"{name} read": right}
        return _Read(self._sentence(ours, by_label, by_inputs, beyond), tuple(measures), said, columns, tuple(alarms))

    def _accuracy(self, name: str, found: Leakage, beside: tuple[Beside, ...], better: Better = "lower") -> Measure:
        return Measure.proportion(
            name,
            found.hits,
            better=better,
            about="share of inputs whose value the attacker names; he learnt on others",
            beside=beside,
        )

    def _area(self, name: str, found: Leakage) -> Measure:
        value, low, high = found.auc or (None, None, None)
        return Measure(
            name=name, value=value, low=low, high=high, n=len(found.hits), better="lower",
            about="chance that an input that has a value is given a higher chance of it than one that has not (AUROC), "
            "the mean over values",
            beside=(Beside("guessing", 0.5),),
        )  # fmt: skip

    def _beyond(self, found: Leakage, y: NDArray[np.int64]) -> Measure:
        value, low, high = within(found, y) or (None, None, None)
        return Measure(
            name=self.beyond_name, value=value, low=low, high=high, n=len(found.hits), better="lower", about=ABOUT,
            beside=(Beside("guessing", 0.5),),
        )  # fmt: skip

    def _nothing(self, beyond: Measure, ours: Leakage, by_inputs: Leakage | None) -> list[Alarm]:
        found = []
        if beyond.value is None:
            found.append(
                Alarm(
                    f"No label has inputs of two values of {self.name}: what is read beyond the label cannot be told "
                    "from the label.",
                    (beyond.name,),
                )
            )
        if by_inputs is not None and by_inputs.auc is not None and ours.auc is not None:
            (_, low, _), (_, _, high) = ours.auc, by_inputs.auc
            if low > high:
                found.append(
                    Alarm(
                        f"More of {self.name} was read off the layer than off the inputs, which hold all that it "
                        "shows: the attackers of the inputs are weak, and those of the layer may be too."
                    )
                )
        return found

    def _of_before(self, before: Tensor, kind: Kind, ours: Leakage) -> tuple[Measure, list[Alarm]]:  # n f
        """What an attacker reads now who learnt before the defence came."""
        found = self._judged(self._fit(before, kind), self.seen.of["layer"])
        measure = self._accuracy(
            f"{self.name} read by an attacker of before", found, (Beside("by one who retrains", ours.accuracy),)
        )
        retrained = self._accuracy("", ours, ())
        if (retrained.low or 0.0) <= (measure.high or 1.0):
            return measure, []
        return measure, [
            Alarm(
                f"The privacy of {self.name} is apparent: an attacker who learnt before reads "
                f"{100 * found.accuracy:.0f} %, one who retrains {100 * ours.accuracy:.0f} %. Only the second counts."
            )
        ]

    def _drawn(self, bars: list[tuple[str, Leakage]], chance: float) -> Bars:
        at = [self._accuracy(label, found, ()) for label, found in bars]
        return Bars(
            name=f"read-{self.name}",
            title=f"Inputs whose {self.name} is read",
            y_label="share of inputs",
            labels=tuple(label for label, _ in bars),
            values=tuple(m.value or 0.0 for m in at),
            low=tuple(m.low or 0.0 for m in at),
            high=tuple(m.high or 0.0 for m in at),
            unit_y=True,
            marks=(Beside("commonest value", chance),),
            says="What attackers read off the layer, beside what they read off the inputs, the answers and the label. "
            "They learnt on one half of the inputs and are judged on the other.",
        )

    def _sentence(self, ours: Leakage, by_label: Leakage, by_inputs: Leakage | None, beyond: Measure) -> str:
        inputs = "" if by_inputs is None else f"off the inputs for {100 * by_inputs.accuracy:.0f} %, "
        left = (
            "Within one label it cannot be looked at."
            if beyond.value is None
            else f"Within one label it is told in {100 * beyond.value:.0f} % of pairs, by guessing in 50."
        )
        return (
            f"Of {len(ours.hits):,} inputs {self.name} is read off the {self.layer} for {100 * ours.accuracy:.0f} % "
            f"({inputs}off the label for {100 * by_label.accuracy:.0f} %, by the commonest value for "
            f"{100 * ours.chance:.0f} %). {left}"
        )


def _beside(ours: Leakage, by_label: Leakage, by_inputs: Leakage | None) -> list[Beside]:
    found = [Beside("commonest value", ours.chance), Beside("the label alone", by_label.accuracy)]
    return found if by_inputs is None else [*found, Beside("the inputs", by_inputs.accuracy)]


def _seen(subject: Subject, run: Run, place: tuple[str, bool] | None, index: NDArray[np.int64] | None = None) -> _Seen:
    reach = None if subject.kind is None else subject.kind.reach
    choices = reach.choices if isinstance(reach, Reach) else None

    def work(shard: Shard) -> dict[str, Tensor]:
        logits = subject.predict(shard.x).flatten(1).float()
        layer = logits
        if place is not None:
            name, entering = place
            layer = shown(subject.model, shard.x, (name,), entering=entering)[1][name].flatten(1).float()
        told = {"layer": layer, "logits": logits, "y": shard.y}
        return told if subject.tokens else told | {"inputs": comparable(shard.x, choices).float()}

    data = subject.data["test"]
    if index is None:
        first = run.map(work, subject, "test", np.arange(1), "what it shows of one input")
        width = sum(each.size for each in first.values())
        wanted = len(data) if run.budget.samples is None else TIMES * run.budget.samples
        index = run.pick(data, max(1, min(wanted, MOST, HELD_BYTES // (8 * width))))
    rows = run.map(work, subject, "test", index, "what it shows of its inputs")
    of = {name: torch.as_tensor(each, device=run.device) for name, each in rows.items() if name != "y"}
    if "inputs" in of:  # a cell that is missing is the mean of the others
        of["inputs"] = torch.where(of["inputs"].isfinite(), of["inputs"], of["inputs"].nanmean(0).nan_to_num(0.0))
    return _Seen(index, np.asarray(rows["y"], dtype=np.int64), of)


def _halves(
    codes: NDArray[np.int64], who: NDArray[np.int64] | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # n, n
    """Rows to learn and rows to judge, of those whose value is known; nobody in both where it is said who they are."""
    rng = np.random.default_rng(seed)
    known = np.flatnonzero((codes >= 0) & (True if who is None else who >= 0))
    if who is None:
        first, second = np.array_split(rng.permutation(known), 2)
        return np.sort(first), np.sort(second)
    people, counts = np.unique(who[known], return_counts=True)
    order = rng.permutation(len(people))
    sizes, taken = [0, 0], []
    for person in order[np.argsort(-counts[order], kind="stable")]:  # the largest first, each into the smaller half
        half = int(sizes[1] < sizes[0])
        sizes[half] += counts[person]
        if half == 0:
            taken.append(people[person])
    inside = np.isin(who[known], taken)
    return known[inside], known[~inside]


SHELVED = WhatDoItsFeaturesTell
