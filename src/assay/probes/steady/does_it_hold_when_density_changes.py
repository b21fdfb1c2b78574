"""Whether an image translator still follows the truth where images come from elsewhere: fuller, or emptier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.finding import Alarm, Bars, Beside, Curve, Finding, Line, Measure, Table, View
from assay.methods.uncertainty.image_correlation import pearson, spearman
from assay.methods.uncertainty.pixel_spread import together
from assay.probe import Need, Probe
from assay.probes._members import has_members, members_of, no_translator
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

LOST, HOME = "lost in the worst domain", "correlation on test"
GOES = "spread goes with the error"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DoesItHoldWhenDensityChanges(Probe):
    """Does what it draws still follow the truth where images are denser, sparser, or otherwise from elsewhere?

    Pearson's correlation of the answer with the true image, image by image, and its mean over the test images and over
    each domain with targets. It does not see scale or shift. Where an answer, or the truth, is even it is undefined:
    such images are told of and not counted, least of all as 0. What is lost is the mean on test less that in the domain
    where it is lowest.

    Of a model with members, whether the spread goes with the error is shown beside it, since a correlation with the
    truth says nothing of what the model knows of itself.
    """

    needs: ClassVar[tuple[Need, ...]] = ("domains",)
    source: ClassVar[str] = "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 5.3"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.1),)

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject) or no_translator(subject)
        if reason is None and not any(domain.labelled for domain in subject.domains().values()):
            return "it needs a domain whose true images are known, and none of the subject's has them"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        domains = {name: each for name, each in subject.domains().items() if each.labelled}
        names = ("test", *domains)
        index = {name: run.pick(subject.data[name], run.budget.dear) for name in names}
        rows = {name: run.map(lambda s: _looked(subject, s), subject, name, index[name], f"answers on {name}")
                for name in names}  # fmt: skip
        found: dict[str, Floats] = {name: np.asarray(each["r"], dtype=np.float64) for name, each in rows.items()}
        alarms: list[Alarm] = []
        means = {
            name: _mean(HOME if name == "test" else f"correlation on {name}", found[name], run.seed, alarms)
            for name in names
        }
        there = {name: m for name, m in means.items() if name != "test" and m.value is not None}
        worst = min(there, key=lambda name: there[name].value or 0.0, default=None)
        lost = _lost(means["test"], None if worst is None else there[worst], worst, alarms)
        goes = [
            _mean(GOES if name == "test" else f"{GOES}, {name}", np.asarray(each["goes"], np.float64), run.seed, alarms)
            for name, each in rows.items()
            if "goes" in each
        ]
        at = {name: each.at for name, each in domains.items()}
        return Finding(
            says=_says(means["test"], worst, None if worst is None else there[worst]),
            measures=(lost, *means.values(), *goes),
            samples=Table("test", {"index": index["test"], "correlation": found["test"]}),
            views=_views(means, at),
            alarms=tuple(alarms),
        )


def _looked(subject: Subject, shard: Shard) -> Mapping[str, Tensor]:
    if has_members(subject):
        mean, spread = together(members_of(subject, shard.x).float())
    else:
        mean, spread = subject.predict(shard.x).float(), None
    said, true = mean.cpu().numpy(), shard.y.float().cpu().numpy()
    told = {"r": torch.from_numpy(pearson(said, true))}
    if spread is not None:
        error = np.abs(said - true).mean(1)
        told["goes"] = torch.from_numpy(spearman(spread.cpu().numpy(), error))
    return told


def _mean(name: str, r: Floats, seed: int, alarms: list[Alarm]) -> Measure:
    """The mean over images whose correlation is defined; how many have none is told."""
    known = r[np.isfinite(r)]
    if len(known) < len(r):
        left = f"{len(r) - len(known)} of {len(r)} images, where an image is even all over"
        alarms.append(Alarm(f"{name}: undefined for {left}; they are not counted.", doubts=(name,)))
    if not len(known):
        return Measure(name=name, value=None, better="higher", n=len(r))
    return Measure.mean(
        name, known, better="higher", seed=seed, beside=(Beside("by chance", 0.0),),
        column="correlation" if name == HOME and len(known) == len(r) else None,
        about=f"mean over {len(known)} images, from {known.min():.3g} to {known.max():.3g}",
    )  # fmt: skip


def _lost(home: Measure, there: Measure | None, worst: str | None, alarms: list[Alarm]) -> Measure:
    if home.value is None or there is None or there.value is None or worst is None:
        alarms.append(Alarm("What is lost cannot be told: the correlation is undefined for every image of a side."))
        return Measure(name=LOST, value=None, better="lower")
    value = home.value - there.value

    def half(near: float | None, far: float | None) -> float:
        return 0.0 if near is None or far is None else abs(near - far)

    down = math.hypot(half(home.value, home.low), half(there.value, there.high))
    up = math.hypot(half(home.value, home.high), half(there.value, there.low))
    return Measure(
        name=LOST, value=value, low=value - down, high=value + up, n=there.n, better="lower",
        about=f"mean correlation on test less that on {worst}",
    )  # fmt: skip


def _says(home: Measure, worst: str | None, there: Measure | None) -> str:
    if home.value is None or there is None or there.value is None:
        return "Its answers are even all over, so that they follow nothing."
    return (
        f"Its answers go with the truth by {home.value:.3f} on the test images, and by {there.value:.3f} on {worst}, "
        "the worst of the domains."
    )


def _views(means: Mapping[str, Measure], at: Mapping[str, float | None]) -> tuple[View, ...]:
    known = {name: m for name, m in means.items() if m.value is not None}
    along = sorted((place, known[name]) for name, place in at.items() if place is not None and name in known) if len(
        {place for name, place in at.items() if place is not None and name in known}
    ) > 1 else []  # fmt: skip
    bars = Bars(
        name="domains", title="Correlation with the truth, by domain", y_label="mean correlation",
        labels=tuple(known), **_ends(list(known.values())),
    )  # fmt: skip
    if not along:
        return (bars,) if known else ()
    ends = _ends([m for _, m in along])
    line = Line(label="mean correlation", x=tuple(place for place, _ in along), y=ends["values"], low=ends["low"],
                high=ends["high"])  # fmt: skip
    return bars, Curve(
        name="along", title="Correlation with the truth, along the domains", x_label="where the domain lies",
        y_label="mean correlation", lines=(line,),
    )  # fmt: skip


def _ends(measures: list[Measure]) -> dict[str, Any]:
    return {
        "values": tuple(m.value or 0.0 for m in measures),
        "low": tuple(m.low if m.low is not None else m.value or 0.0 for m in measures),
        "high": tuple(m.high if m.high is not None else m.value or 0.0 for m in measures),
    }


SHELVED = DoesItHoldWhenDensityChanges
