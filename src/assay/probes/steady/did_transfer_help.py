"""A target with a few labels: what the model's own weights are worth there, beside three other starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.domain import LEAST
from assay.errors import AssayError
from assay.finding import Alarm, Beside, Curve, Finding, Line, Measure
from assay.methods.shift.transfer import STARTS, Held, Start, compared, over_seeds
from assay.probe import Need, Probe
from assay.probes._leaks import leaked_domains
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.domain import Domain
    from assay.run import Run
    from assay.subject import Data, Subject

GAIN = "gain over scratch"
SOURCE = 2000  # training inputs that a shuffled source has at most
MOST = 1000  # target inputs, half to learn, half to judge


@dataclass(frozen=True)
class DidTransferHelp(Probe):
    """Does it help on a new domain to have learnt elsewhere first?

    Half of a labelled domain is learnt, half judges. The model learns it from its own weights, from weights drawn
    anew, from weights that learnt the training data with shuffled labels, and with random features under a last layer
    that learns; all with the same inputs, batches and steps. The gain is that of its own weights over scratch, of the
    most target inputs there are and of a quarter of them. `domain` names one; left out, each labelled one is tried.

    Every training is done with several `seeds`, and intervals hold both what differs from seed to seed, by Student's t
    over the seeds' differences, and what differs from one judged input to the next. The model's own weights are those
    that were given: what another training on the source would have made of them is not in the interval.
    """

    domain: str | None = None
    epochs: int = 30
    lr: float = 1e-3
    seeds: int = 5

    needs: ClassVar[tuple[Need, ...]] = ("classes", "gradients", "domains", "train")
    in_quick: ClassVar[bool] = False
    source: ClassVar[str] = (
        "Wang, TU Delft 2024, ch. 8 (does transfer help?); Maennel et al., NeurIPS 2020, arXiv:2006.10455 (shuffled "
        "labels)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "epochs")
        self.refuse_below(2, "seeds")
        if not 0 < self.lr < 1:
            raise AssayError(f"The setting lr={self.lr} of {self.name()!r} must lie between 0 and 1, such as 0.001.")

    def why_not(self, subject: Subject) -> str | None:
        lacks = super().why_not(subject)
        if lacks is not None:
            return lacks
        if subject.draws > 1:
            return "it judges a model that answers the same each time, and this one is random"
        if "head" not in subject.layers:
            return "it needs a last linear layer for random features, and the model has none that is a module"
        if not self._targets(subject):
            known = ", ".join(f"{d.name} {len(d.data)}" for d in subject.domains().values() if d.labelled) or "none"
            wanted = f"the domain {self.domain!r}" if self.domain else "a domain"
            return f"it needs {wanted} with labels and at least {2 * LEAST} inputs; with labels there are: {known}"
        return None

    def _targets(self, subject: Subject) -> list[Domain]:
        return [
            d
            for d in subject.domains().values()
            if d.labelled and len(d.data) >= 2 * LEAST and self.domain in (None, d.name)
        ]

    def ask(self, subject: Subject, run: Run) -> Finding:
        targets, seeds = self._targets(subject), tuple(run.seed + i for i in range(self.seeds))
        source = _held(subject.data["train"], run, SOURCE)
        measures: list[Measure] = []
        views: list[Curve] = []
        told: list[str] = []
        trainings = len(STARTS) * len(seeds) * 2
        for target in targets:
            whole = _held(target.data, run, MOST)
            order = np.random.default_rng(run.seed).permutation(len(whole))
            learn, judge = (Held(*whole.take(part)) for part in np.array_split(order, 2))
            sizes = (max(8, len(learn) // 4), len(learn))
            with run.progress(f"learning {target.name} from four starts", trainings) as tick:
                found = compared(
                    subject.model, source, learn, judge, subject.layers["head"], sizes=sizes, epochs=self.epochs,
                    lr=self.lr, seeds=seeds, device=run.device, done=partial(tick, 1),
                )  # fmt: skip
            right = {at: float(hits.mean()) for at, hits in found.items()}
            few, most = sizes
            for n in (most, few):
                others: tuple[Start, ...] = ("shuffled source", "random features")
                beside = (Beside(start, right[start, n] - right["scratch", n]) for start in others)
                name = f"{GAIN}, {target.name}" + ("" if n == most else f", {n} inputs")
                measures.append(
                    _mean(
                        name, found["source", n] - found["scratch", n],
                        f"right answers after learning {n} inputs of {target.name} from its own weights, less from "
                        f"weights drawn anew; {len(seeds)} seeds", tuple(beside),
                    )
                )  # fmt: skip
            measures += [
                _mean(f"right from {start}, {target.name}", found[start, most], f"after learning {most} inputs")
                for start in STARTS
            ]
            views.append(_curve(target.name, sizes, found))
            told.append(
                f"After {most} inputs of {target.name} it is right on {100 * right['source', most]:.0f} % from its own "
                f"weights, {100 * right['scratch', most]:.0f} % from scratch, "
                f"{100 * right['shuffled source', most]:.0f} % from a shuffled source and "
                f"{100 * right['random features', most]:.0f} % with random features."
            )
        leaks = [alarm for alarm in leaked_domains(subject, run, measures) if alarm.doubts]
        return Finding(
            says=" ".join(told),
            measures=tuple(measures),
            views=tuple(views),
            alarms=(*leaks, *_explained(measures)),
        )


def _mean(name: str, values: NDArray[np.float64], about: str, beside: tuple[Beside, ...] = ()) -> Measure:  # seeds n
    low, high = over_seeds(values)
    return Measure(
        name=name, value=float(values.mean()), low=low if values.min() < 0 else max(0.0, low), high=high,
        n=values.shape[1], unit="%", better="higher", about=about, beside=beside,
    )  # fmt: skip


def _explained(measures: list[Measure]) -> list[Alarm]:
    """Gains that a start without the source's labels has as well."""
    return [
        Alarm(
            f"The {m.name} is {100 * m.value:.0f} points, and {100 * other.value:.0f} from a {other.label}: the labels "
            "of the source need not be what helps."
        )
        for m in measures
        if m.name.startswith(GAIN) and m.value is not None and m.low is not None and m.low > 0
        for other in m.beside
        if other.label == "shuffled source" and other.value >= m.low
    ]


def _held(data: Data, run: Run, most: int) -> Held:
    return Held(*data.take(run.pick(data, min(most, len(data)), bounded=False)))


def _curve(name: str, sizes: tuple[int, ...], found: dict[tuple[Start, int], NDArray[np.float64]]) -> Curve:
    lines = []
    for start in STARTS:
        at = [_mean(start, found[start, n], "") for n in sizes]
        lines.append(
            Line(
                label=start,
                x=tuple(map(float, sizes)),
                y=tuple(m.value or 0.0 for m in at),
                low=tuple(m.low or 0.0 for m in at),
                high=tuple(m.high or 0.0 for m in at),
            )
        )
    return Curve(
        name=f"learnt-{name}",
        title=f"Learning {name} from four starts",
        x_label="target inputs learnt",
        y_label="right answers",
        lines=tuple(lines),
        unit_y=True,
    )


SHELVED = DidTransferHelp
