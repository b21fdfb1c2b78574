"""What its confidence is worth when inputs are no longer those of the test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch import Tensor

from assay.data.corruptions import CORRUPTIONS, corrupt
from assay.domain import NO_DOMAIN, OUTLIERS
from assay.errors import AssayError, SubjectError
from assay.finding import Alarm, Bars, Beside, Boxes, Finding, Matrix, Measure, Table, View
from assay.methods.uncertainty import CalibrationError
from assay.methods.uncertainty.above_floor import AboveFloor, above_floor
from assay.methods.uncertainty.under_shift import drift, drift_above_floor
from assay.probe import Need, Probe
from assay.probes._leaks import leaked_domains
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

SEVERITIES = (1, 2, 3, 4, 5)
SHARE = 0.35  # of the budget's inputs, because each of them is asked about 81 times
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ConfidenceUnderShift(Probe):
    """Does its confidence hold when inputs shift?

    Pictures are corrupted in every kind at five severities. Each split besides 'train', 'test', 'calibration',
    'validation' and 'outliers' is taken for a shift of the user's own and asked about as it is; of 'outliers' only how
    sure the model is. The calibration error is that of the confidence, over `bins` equal bins, or one for each input
    where there are fewer, less what chance adds to it, since no estimate of few inputs is 0. `inputs` is how many test
    inputs are corrupted.
    """

    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    bins: int = 15
    inputs: int | None = None

    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Liu, dissertation, UCLA 2021, sec. 5.5; Ovadia et al., NeurIPS 2019, arXiv:1906.02530; Hendrycks & "
        "Dietterich, ICLR 2019, arXiv:1903.12261 (corruptions)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.1),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "bins", "inputs")
        strange = [name for name in self.corruptions if name not in CORRUPTIONS]
        if strange or not self.corruptions:
            raise AssayError(f"corruptions={','.join(strange)!r} are not known; choose from {', '.join(CORRUPTIONS)}.")

    def why_not(self, subject: Subject) -> str | None:
        if (reason := super().why_not(subject)) is not None:
            return reason
        if subject.inputs.is_image or _shifts(subject):
            return None
        return (
            f"it corrupts images, and an input here has shape {subject.inputs.shape}; a split of shifted inputs under "
            f"any name but {', '.join(NO_DOMAIN)} would do"
        )

    def ask(self, subject: Subject, run: Run) -> Finding:
        wanted = None if run.budget.samples is None else math.ceil(SHARE * run.budget.samples)
        index = run.pick(subject.data["test"], self.inputs or wanted)
        kinds = self.corruptions if subject.inputs.is_image else ()
        rows = run.map(partial(_sweep, subject, kinds), subject, "test", index, "confidence under shift")
        sure, surprise = (np.asarray(rows[name], dtype=np.float64) for name in ("sure", "surprise"))  # n 1+c*s
        right, label = rows["right"].astype(bool), np.asarray(rows["label"], dtype=np.int64)
        bins = min(self.bins, len(index))
        found = drift_above_floor(sure, right, _weights(len(kinds)), bins=bins, seed=run.seed)
        columns = {"index": index, "label": label, "clean right": right[:, 0], "clean confidence": sure[:, 0]}
        measures: list[Measure] = []
        views: list[View] = []
        told = ""
        if kinds:
            hit, lost, gap = right[:, 1:].mean(1), surprise[:, 1:].mean(1), (sure - right)[:, 1:].mean(1)  # n
            columns |= {"right under shift": hit, "surprise under shift": lost, "gap under shift": gap}
            raw = drift(sure, right, _rise(len(kinds)), bins=bins, seed=run.seed)
            (rise,) = raw.combined
            measures += self._corrupted(found, rise, hit, lost, gap, surprise, len(subject.task.classes), run.seed)
            views += self._figures(raw.each, found[1].floor, right, surprise)
            told = (
                f"On corrupted pictures its confidence is off by {100 * found[1].value:.1f} points on average, "
                f"{100 * found[0].value:.1f} on clean ones, what chance adds at this sample size being taken off; at "
                f"severity 5 it is off by {100 * found[6].value:.1f} and right on {100 * right[:, 5::5].mean():.0f} %. "
            )
        clean = self._error("calibration error, clean", found[0], len(index), "on the test data as they are")
        shifts = {split: self._shift(subject, run, split) for split in _shifts(subject)}
        for split, (error, others) in shifts.items():
            measures += [error, *others]
            told += f"On {split!r} it is off by {100 * (error.value or 0):.1f} points. "
        measures.append(clean)
        if shifts:
            views.append(self._bars({"test": clean, **{split: error for split, (error, _) in shifts.items()}}))
        if OUTLIERS in subject.data:
            measures.append(self._outliers(subject, run))
        few = [m.name for m in measures if m.n is not None and m.n < 30]
        says = f"Fewer than 30 inputs for {', '.join(few)}: no estimate of a calibration error is worth much there."
        return Finding(
            says=told.strip(),
            measures=tuple(measures),
            samples=Table("test", columns),
            views=tuple(views),
            alarms=(
                *((Alarm(says, doubts=tuple(few)),) if few else ()),
                *(leaked_domains(subject, run, measures) if shifts else ()),
            ),
        )

    def _error(self, name: str, error: AboveFloor, n: int, about: str, *beside: Beside) -> Measure:
        return Measure(
            name=name,
            value=error.value,
            low=error.low,
            high=error.high,
            n=n,
            unit="%",
            better="lower",
            about=f"{about}; expected calibration error over {min(self.bins, n)} equal bins, less what chance adds",
            beside=(
                Beside("a perfectly calibrated model", error.calibrated),
                Beside("with what chance adds", error.estimate),
                Beside("a perfectly calibrated model, with what chance adds", error.floor),
                *beside,
            ),
        )

    def _rise(self, error: CalibrationError, n: int) -> Measure:
        """Of the estimates as they are: what chance adds to both is in it, and what that comes to stands beside."""
        return Measure(
            name="rise over clean",
            value=error.value,
            low=error.low,
            high=error.high,
            n=n,
            unit="%",
            better="lower",
            about="calibration error under shift minus that on clean inputs, with what chance adds to either; over "
            f"{min(self.bins, n)} equal bins",
            beside=(Beside("a perfectly calibrated model, with what chance adds", error.floor),),
        )

    def _corrupted(
        self,
        found: tuple[AboveFloor, ...],
        rise: CalibrationError,
        hit: Floats,
        lost: Floats,
        gap: Floats,
        surprise: Floats,
        k: int,
        seed: int,
    ) -> list[Measure]:
        """What corruption does to the three numbers that have to be read together, and to each severity."""
        n, over = len(hit), f"mean over {len(self.corruptions)} corruptions"
        clean, every, *each = found
        on_clean = Beside("clean", clean.value)
        return [
            self._error("calibration error under shift", every, n, f"{over} at 5 severities", on_clean),
            self._rise(rise, n),
            *(
                self._error(f"calibration error, severity {s}", error, n, over, on_clean)
                for s, error in zip(SEVERITIES, each, strict=True)
            ),
            Measure.mean(
                "accuracy under shift",
                hit,
                better="higher",
                seed=seed,
                unit="%",
                column="right under shift",
                about=f"{over} at 5 severities",
            ),
            Measure.mean(
                "negative log-likelihood under shift",
                lost,
                better="lower",
                seed=seed,
                unit="nats",
                column="surprise under shift",
                about=f"{over} at 5 severities",
                beside=(
                    Beside("always says 1/k for each class", float(np.log(k))),
                    Beside("clean", float(surprise[:, 0].mean())),
                ),
            ),
            Measure.mean(
                "over-confidence under shift",
                gap,
                better="neither",
                seed=seed,
                unit="%",
                column="gap under shift",
                about=f"mean confidence minus accuracy, {over} at 5 severities",
            ),
        ]

    def _figures(self, error: Floats, floor: float, right: NDArray[np.bool_], surprise: Floats) -> list[View]:
        """A box for each severity over the kinds of corruption, as in Fig. 5.6, and which kind it was."""
        table = error[1:].reshape(len(self.corruptions), len(SEVERITIES))  # c s

        def boxes(name: str, title: str, each: Floats, unit: bool, marks: tuple[Beside, ...] = ()) -> Boxes:
            by_severity = each[1:].reshape(table.shape).T.tolist()
            return Boxes(
                name=name,
                title=f"{title} against severity",
                x_label="severity",
                y_label=title[0].lower() + title[1:],
                labels=("clean", *map(str, SEVERITIES)),
                values=((float(each[0]),), *map(tuple, by_severity)),
                unit_y=unit,
                marks=marks,
                says=f"Each box shows how {len(self.corruptions)} kinds of corruption differ"
                + ("; what chance adds is in them." if marks else "."),
            )

        return [
            boxes("error", "Calibration error", error, False, (Beside("a calibrated model", floor),)),
            boxes("accuracy", "Accuracy", right.mean(0), True),
            boxes("surprise", "Negative log-likelihood", surprise.mean(0), False),
            Matrix(
                name="corruptions",
                title="Calibration error per corruption and severity",
                row_label="corruption",
                column_label="severity",
                rows=tuple(name.replace("-", " ") for name in self.corruptions),
                columns=tuple(map(str, SEVERITIES)),
                values=tuple(map(tuple, table.tolist())),
            ),
        ]

    def _shift(self, subject: Subject, run: Run, split: str) -> tuple[Measure, list[Measure]]:
        """One of the user's own shifts: calibration error, accuracy and negative log-likelihood."""
        index = run.pick(subject.data[split])
        logits, label = run.predict(subject, split, index, f"confidence on {split}")
        chance = log_softmax(logits.astype(np.float64), axis=1)
        right = logits.argmax(1) == label
        sure = np.exp(chance.max(1)).clip(0, 1)
        error = above_floor(sure, right, bins=min(self.bins, len(index)), seed=run.seed)
        surprise = -chance[np.arange(len(label)), label]
        about = f"on the split {split!r}"
        return self._error(f"calibration error on {split}", error, len(index), about), [
            Measure.proportion(f"accuracy on {split}", right, better="higher", about=about),
            Measure.mean(
                f"negative log-likelihood on {split}",
                surprise,
                better="lower",
                seed=run.seed,
                unit="nats",
                about=about,
                beside=(Beside("always says 1/k for each class", float(np.log(logits.shape[1]))),),
            ),
        ]

    def _bars(self, errors: Mapping[str, Measure]) -> Bars:
        return Bars(
            name="splits",
            title="Calibration error on each split",
            y_label="calibration error",
            labels=tuple(errors),
            values=tuple(m.value or 0.0 for m in errors.values()),
            low=tuple(m.low or 0.0 for m in errors.values()),
            high=tuple(m.high or 0.0 for m in errors.values()),
        )

    def _outliers(self, subject: Subject, run: Run) -> Measure:
        index = run.pick(subject.data[OUTLIERS])
        logits, _ = run.predict(subject, OUTLIERS, index, "confidence on outliers")
        k = logits.shape[1]
        return Measure.mean(
            "confidence on outliers",
            np.exp(log_softmax(logits.astype(np.float64), axis=1).max(1)),
            better="lower",
            seed=run.seed,
            unit="%",
            about="mean confidence on inputs that belong to no class; their labels are not looked at",
            beside=(Beside("says that it does not know (1/k)", 1 / k),),
        )


def _shifts(subject: Subject) -> list[str]:
    return [name for name, domain in subject.domains().items() if domain.labelled]


def _weights(kinds: int) -> Floats:  # -> sums, 1 + kinds * severities
    """What is asked of the conditions: clean, all corrupted, and each severity; or clean."""
    clean = np.eye(1, 1 + kinds * len(SEVERITIES))
    if not kinds:
        return clean
    severity = np.tile(np.arange(len(SEVERITIES)), kinds)  # kinds first
    each = np.stack([np.r_[0, severity == s] / kinds for s in range(len(SEVERITIES))])
    return np.concatenate([clean, each.mean(0, keepdims=True), each])


def _rise(kinds: int) -> Floats:  # -> 1, 1 + kinds * severities
    """All corrupted less clean."""
    clean, every, *_ = _weights(kinds)
    return np.stack([every - clean])


def _sweep(subject: Subject, kinds: tuple[str, ...], shard: Shard) -> Mapping[str, Tensor]:
    """Confidence, whether it is right, and surprise: clean, then by kind and severity."""
    low, high = subject.inputs.low, subject.inputs.high
    rows = []
    for kind, severity in [("", 0), *((kind, s) for kind in kinds for s in SEVERITIES)]:
        x = corrupt(shard.x, kind, severity, rng=shard.rng, low=low, high=high) if kind else shard.x
        chance = subject.predict(x).double().log_softmax(1)  # n k
        if not bool(chance.isfinite().all()):
            raise SubjectError(
                f"The model returned NaN or infinity for an input {f'with {kind} {severity}' if kind else 'as it is'}; "
                f"check its weights and its scaling."
            )
        top = chance.max(1)
        own = chance.gather(1, shard.y[:, None])[:, 0]
        rows.append((top.values.exp().clamp(0, 1), top.indices == shard.y, -own))
    sure, right, surprise = (torch.stack(column, 1) for column in zip(*rows, strict=True))
    return {"label": shard.y, "sure": sure, "right": right, "surprise": surprise}


SHELVED = ConfidenceUnderShift
