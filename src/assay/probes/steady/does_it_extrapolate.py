"""Domains that lie along one number, an angle, a year: between what was seen, and beyond it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from assay.domain import LEAST
from assay.errors import AssayError
from assay.finding import Alarm, Beside, Curve, Finding, Line, Measure, wilson
from assay.probe import Need, Probe
from assay.probes._leaks import leaked_domains
from assay.standard import Standard

if TYPE_CHECKING:
    from torch import Tensor

    from assay.domain import Domain
    from assay.run import Run, Shard
    from assay.subject import Subject

LOST = "lost beyond what was seen"
BETWEEN, BEYOND = "right between", "right beyond"


@dataclass(frozen=True)
class DoesItExtrapolate(Probe):
    """Does it hold beyond what it has seen, or only between?

    Domains with labels that lie along one number: an angle, a year, in their names ("rotated-15"). `seen` says from
    where to where training lay, as seen=15,60: domains inside are between what was seen, those outside beyond it; with
    no domain inside, the test data stand for what was seen. Where nobody says it, the first and the last domain stand
    for what lies beyond; as they may have been trained on, it cannot pass then.

    What is lost is the share of right answers between, less that beyond, each a mean over domains. Its interval is that
    of domains with inputs of their own; where they show the same inputs it is wider than it need be.
    """

    seen: tuple[float, ...] | None = None

    needs: ClassVar[tuple[Need, ...]] = ("domains",)
    source: ClassVar[str] = "Wang, TU Delft 2024, ch. 8 (middle domains are easy, end domains hard) and sec. 3.4"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.1),)

    def __post_init__(self) -> None:
        if self.seen is not None and not (
            len(self.seen) == 2 and all(map(math.isfinite, self.seen)) and self.seen[0] <= self.seen[1]
        ):
            told = ",".join(f"{s:g}" for s in self.seen)
            raise AssayError(
                f"The setting seen={told} of {self.name()!r} must be two numbers, from where to where: seen=15,60."
            )

    def why_not(self, subject: Subject) -> str | None:
        lacks = super().why_not(subject)
        if lacks is not None:
            return lacks
        along = _along(subject)
        if self._outside(along):
            return None
        known = ", ".join(f"{d.name} at {d.at:g}" for d in along) or "none"
        if self.seen is None:
            return (
                "it needs three domains with labels and a number in their names, as rotated-15, or one outside of what "
                f"was seen (assay ask {self.name()} ... --set seen=FROM,TO); of such there are: {known}"
            )
        return (
            f"it needs a domain with labels outside of what was seen, {self.seen[0]:g} to {self.seen[1]:g}; with a "
            f"number in their names there are: {known}"
        )

    def _outside(self, along: Sequence[Domain]) -> list[str]:
        """The names of those beyond what was seen; none where that cannot be told."""
        at = [float(d.at) for d in along if d.at is not None]
        if self.seen is None and len(set(at)) < 3:
            return []
        low, high = self.seen or (sorted(set(at))[1], sorted(set(at))[-2])
        return [d.name for d, a in zip(along, at, strict=True) if not low <= a <= high]

    def ask(self, subject: Subject, run: Run) -> Finding:
        task, along = subject.task, _along(subject)
        outside = self._outside(along)

        def work(shard: Shard) -> Mapping[str, Tensor]:
            return {"right": task.right(task.checked(subject.predict(shard.x), len(shard.x)), shard.y)}

        inside = [d.name for d in along if d.name not in outside] or ["test"]
        right = {
            name: run.map(work, subject, name, run.pick(subject.data[name]), f"answers on {name}")["right"].astype(bool)
            for name in dict.fromkeys((*inside, *(d.name for d in along)))
        }
        rate = {name: float(hits.mean()) for name, hits in right.items()}
        band = {name: wilson(int(hits.sum()), len(hits)) for name, hits in right.items()}
        near, far = ([(1 / len(some), right[name]) for name in some] for some in (inside, outside))
        measures = [
            Measure.contrast(
                LOST, [*near, *((-w, hits) for w, hits in far)], better="lower",
                about="right answers between, less those beyond",
            ),
            Measure.contrast(BETWEEN, near, better="higher", about=f"mean over {', '.join(inside)}"),
            Measure.contrast(BEYOND, far, better="higher", about=f"mean over {', '.join(outside)}"),
            *(
                Measure.proportion(
                    f"right on {d.name}", right[d.name], better="higher", about=f"at {d.at:g}, {_where(d, outside)}",
                    beside=(Beside(*subject.trivially_right(d.name, run.pick(d.data))),),
                )
                for d in along
            ),
        ]  # fmt: skip
        few = [d.name for d in along if len(right[d.name]) < LEAST]
        alarms = [replace(a, doubts=(LOST, *a.doubts)) for a in leaked_domains(subject, run, measures)]
        if few:
            says = f"Fewer than {LEAST} inputs in {', '.join(few)}: what is measured there says little."
            alarms.append(Alarm(says, doubts=(LOST, *(f"right on {name}" for name in few))))
        if self.seen is None:
            alarms.append(
                Alarm(
                    f"Nobody said where training lay: {' and '.join(outside)} are taken for what lies beyond it. If "
                    "they were trained on, this says nothing of extrapolation; give seen=FROM,TO.",
                    doubts=(LOST, BEYOND),
                )
            )
        between, beyond = (measure.value or 0.0 for measure in measures[1:3])
        order = sorted(along, key=lambda d: d.at or 0.0)
        line = Line(
            label="right answers",
            x=tuple(float(d.at or 0.0) for d in order),
            y=tuple(rate[d.name] for d in order),
            low=tuple(band[d.name][0] for d in order),
            high=tuple(band[d.name][1] for d in order),
        )
        marks = () if self.seen is None else tuple(Beside("seen up to here", end) for end in self.seen)
        return Finding(
            says=f"It is right on {100 * between:.0f} % between what was seen ({', '.join(inside)}) and on "
            f"{100 * beyond:.0f} % beyond ({', '.join(outside)}).",
            measures=tuple(measures),
            views=(
                Curve(
                    name="along",
                    title="Right answers along the domains",
                    x_label="where the domain lies",
                    y_label="share of right answers",
                    lines=(line,),
                    unit_y=True,
                    marks=marks,
                ),
            ),
            alarms=tuple(alarms),
        )


def _along(subject: Subject) -> list[Domain]:
    """The domains with labels that lie somewhere."""
    return [d for d in subject.domains().values() if d.labelled and d.at is not None]


def _where(domain: Domain, outside: Sequence[str]) -> str:
    return "beyond what was seen" if domain.name in outside else "between"


SHELVED = DoesItExtrapolate
