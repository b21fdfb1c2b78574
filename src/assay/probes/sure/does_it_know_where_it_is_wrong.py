"""Whether the spread of an image translator ranks pixels: the wrong ones first, and those of what it never saw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.marked import Marked
from assay.domain import rows_of
from assay.errors import AssayError
from assay.finding import Alarm, Beside, Curve, Exhibit, Finding, Gallery, Line, Measure, Panel, Table, bootstrap
from assay.methods.uncertainty.image_correlation import spearman
from assay.methods.uncertainty.pixel_ranking import MOST, Ranking, found_at, partial_auc, ranked, resampled_areas, roc
from assay.methods.uncertainty.pixel_spread import together
from assay.probe import Probe
from assay.probes._members import has_members, members_of, no_translator
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

WRONG, GOES = "partial area, wrong pixels", "spread goes with the error"
KEPT = 2**22  # pixels of a split that are ranked; of more, some of each image, drawn at random
JUDGED = 2**14  # positives, and as many others, that an interval is taken from
DRAWS = 200  # resamples of the images for it
FEW = 50  # wrong pixels below which none is judged
SHOWN = 4  # images of each set with boxes that are shown
Floats = NDArray[np.float64]


class Seen(NamedTuple):
    """Pixels of some images of a split: n p."""

    rows: NDArray[np.int64]  # n: which images of the split
    spread: Floats
    error: Floats
    inside: NDArray[np.bool_]
    counted: NDArray[np.bool_]


@dataclass(frozen=True)
class DoesItKnowWhereItIsWrong(Probe):
    """Does it know where in an image it is wrong?

    Pixels are ranked by how far the members of the model are apart, ties at random. Wrong are pixels whose error is
    above the task's tolerance; where a domain comes with boxes around what does not belong (`assay.data.marked`), what
    lies in them should come first as well. The area under the ROC curve counts up to a false-positive rate of `most`
    and is not normalised: at 0.2 a perfect ranking has 0.2, a random one 0.02. Pixels of all images are pooled; the
    mean over images, each ranked by itself, stands beside it.

    Pixels whose true value is at most `background`, on average over the channels, are left out where one is given (the
    public code of the source has 10/255), and of those outside of boxes one in `thin` is drawn (there 50).
    """

    most: float = MOST
    background: float | None = None
    thin: int = 1

    source: ClassVar[str] = "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021, sec. 5.3"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.05),)

    def __post_init__(self) -> None:
        if not 0 < self.most <= 1:
            raise AssayError(f"The setting most={self.most:g} of {self.name()!r} is no false-positive rate; give 0.2.")
        self.refuse_below(1, "thin")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject) or no_translator(subject)
        if reason is None and not has_members(subject):
            return (
                "no uncertainty available: it gives one answer to an image, and nothing says where it is unsure; "
                "remedies such as ensemble, fast-ensemble or mc-dropout give it members"
            )
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        marked = [name for name, domain in subject.domains().items() if _boxes(domain.data) is not None]
        seen = {name: self._seen(subject, name, run) for name in ("test", *marked)}
        test = seen["test"]
        wrong = test.error > subject.task.tolerance  # type: ignore[attr-defined]  # no_translator saw to it
        lines, at_k, measures, alarms = [], [], [], list(_no_spread(seen))
        for name, each in seen.items():
            positive, title = (wrong, WRONG) if name == "test" else (each.inside, f"partial area in boxes, {name}")
            rows, told = self._ranked(each, positive, title, run)
            measures += rows
            alarms += told
            order = _pooled(each, positive, run.seed)
            if rows[0].value is not None:
                lines.append(_curve_of(order, title.removeprefix("partial area").strip(", "), self.most))
            if name != "test" and rows[0].value is not None:
                at_k.append((name, order))
        measures += [m for name, each in seen.items() for m in _goes(each, name, run, alarms)]
        beside, area = Beside("by chance", self.most**2 / 2), measures[0].value
        return Finding(
            says=f"Ranked by its spread, wrong pixels come with a partial area of {area:.3f}, where chance has "
            f"{beside.value:.2g} and a perfect ranking {self.most:g}."
            if area is not None
            else f"No pixel of {len(test.rows)} images is wrong by more than the tolerance: there is none to find.",
            measures=tuple(measures),
            samples=Table("test", {"index": test.rows, "wrong": wrong.mean(1), "spread": test.spread.mean(1)}),
            views=(
                *((_roc(lines, self.most),) if lines else ()),
                *(_precision(at_k) if at_k else ()),
                *self._shown(subject, marked, run),
            ),
            alarms=tuple(alarms),
        )

    def _seen(self, subject: Subject, split: str, run: Run) -> Seen:
        data = subject.data[split]
        index = run.pick(data, run.budget.dear)
        height, width = subject.task.shape[1:]  # type: ignore[attr-defined]
        kept = min(height * width, max(1, KEPT // max(1, len(index))))
        boxes = _boxes(data)

        def work(shard: Shard) -> Mapping[str, Tensor]:
            mean, spread = together(members_of(subject, shard.x).float())
            error = (mean - shard.y).abs().mean(1)
            inside = torch.zeros_like(spread, dtype=torch.bool)
            if boxes is not None:
                whole, rows = boxes
                inside = torch.from_numpy(whole.inside(rows[shard.index])).to(spread.device)
            counted = inside | (_draws(spread.shape, shard.rng).to(spread.device) < 1 / self.thin)
            if self.background is not None:
                counted &= shard.y.mean(1) > self.background
            columns = {"spread": spread, "error": error, "inside": inside, "counted": counted}
            if kept < height * width:
                where = _draws((len(spread), height * width), shard.rng).argsort(1)[:, :kept].to(spread.device)
                return {name: each.flatten(1).gather(1, where) for name, each in columns.items()}
            return {name: each.flatten(1) for name, each in columns.items()}

        rows = run.map(work, subject, split, index, f"members on {split}")
        spread, error = (np.asarray(rows[name], dtype=np.float64) for name in ("spread", "error"))
        return Seen(index, spread, error, rows["inside"].astype(bool), rows["counted"].astype(bool))

    def _ranked(
        self, seen: Seen, positive: NDArray[np.bool_], title: str, run: Run
    ) -> tuple[list[Measure], list[Alarm]]:
        """Pooled and per image, precision and recall at as many pixels as there are positives."""
        order = _pooled(seen, positive, run.seed)
        hits, n = int(order.positive.sum()), len(seen.rows)
        each_title = title.replace("partial area", "partial area of each image")
        k_title = title.replace("partial area", "precision and recall at their number")
        value = float(partial_auc(order, self.most))
        if math.isnan(value):
            what = "no pixel that counts is one" if not hits else "every pixel that counts is one"
            alarm = Alarm(f"{title}: {what}, so that there is nothing to rank.", doubts=(title,))
            return [Measure(name=title, value=None, better="higher", n=n)], [alarm]
        low, high = _interval(order, np.repeat(np.arange(n), seen.spread.shape[1])[order.order], n, self.most, run.seed)
        chance = Beside("by chance", self.most**2 / 2)
        at = found_at(order, hits)
        share = hits / int((order.positive | order.negative).sum())
        alone = partial_auc(
            ranked(seen.spread, positive, rng=np.random.default_rng(run.seed), counted=seen.counted), self.most
        )
        known = alone[np.isfinite(alone)]
        measures = [
            Measure(
                name=title, value=value, low=min(low, value), high=max(high, value), n=n, better="higher",
                beside=(chance, Beside("perfect", self.most)),
                about=f"area under the ROC curve up to a false-positive rate of {self.most:g}, {hits:,} pixels to find",
            ),
            Measure.mean(
                each_title, known, better="higher", seed=run.seed, beside=(chance,),
                about=f"each image ranked by itself; {n - len(known)} of {n} have nothing to find and are not counted",
            ),
            Measure(
                name=k_title, value=float(at.precision), better="higher", n=n, unit="%", beside=(Beside("by chance",
                share),), about=f"share of the {hits:,} pixels of the largest spread that are such, of {hits:,}",
            ),
        ]  # fmt: skip
        few = Alarm(f"{title}: {hits} pixels are few to judge by; {FEW} or more would do.", doubts=(title,))
        return measures, [few] if hits < FEW else []

    def _shown(self, subject: Subject, marked: list[str], run: Run) -> list[Gallery]:
        """Images with boxes: what it was shown, what it said, the spread with the boxes, and the error."""
        shape = subject.inputs.shape
        if len(shape) != 3 or shape[0] not in (1, 3) or not subject.inputs.is_image:
            return []
        galleries = []
        for name in marked:
            data = subject.data[name]
            found = _boxes(data)
            assert found is not None
            whole, rows = found
            some = np.flatnonzero(whole.inside(rows).any((1, 2)))[: min(SHOWN, run.budget.shown)]
            if not len(some):
                continue
            x, y = data.take(some)
            mean, spread = (part.cpu() for part in together(members_of(subject, x.to(run.device)).float()))
            error = (mean - y).abs().mean(1)
            wide, far = float(spread.max()) or 1.0, float(error.max()) or 1.0
            exhibits = []
            for k, place in enumerate(some.tolist()):
                edged = _with_edges(spread[k].numpy(), whole.boxes[rows[place]], wide)
                said = subject.task.picture(mean[k])
                assert said is not None
                exhibits.append(
                    Exhibit(
                        index=place, caption=f"{name}: spread up to {wide:.3g}, error up to {far:.3g}",
                        panels=(
                            Panel.of("shown", f"Image {place}", x[k].numpy(), low=subject.inputs.low,
                                     high=subject.inputs.high),
                            Panel.of("answer", f"What it made of image {place}", said),
                            Panel.of("spread and boxes", f"Spread for image {place}", edged[None], high=wide),
                            Panel.of("error", f"Error for image {place}", error[k : k + 1].numpy(), high=far),
                        ),
                    )
                )  # fmt: skip
            galleries.append(Gallery(name=f"boxes-{name}", title=f"What does not belong: {name}",
                                     exhibits=tuple(exhibits)))  # fmt: skip
        return galleries


def _boxes(data: Any) -> tuple[Marked, NDArray[np.int64]] | None:
    """What data with boxes were before they were cut, and their rows there; None where no row has one."""
    whole, rows = rows_of(data)
    return (whole, rows) if isinstance(whole, Marked) and (whole.boxes[rows] >= 0).any() else None


def _draws(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=rng, device=rng.device)


def _pooled(seen: Seen, positive: NDArray[np.bool_], seed: int) -> Ranking:
    return ranked(seen.spread.ravel(), positive.ravel(), rng=np.random.default_rng(seed), counted=seen.counted.ravel())


def _interval(order: Ranking, image: NDArray[np.int64], n: int, most: float, seed: int) -> tuple[float, float]:
    """Of the pooled area, by drawing images anew; of many positives, or others, every some-th stands for all."""
    kinds = [np.flatnonzero(each) for each in (order.positive, order.negative)]
    few = np.sort(np.concatenate([kind[:: max(1, len(kind) // JUDGED)] for kind in kinds]))
    thinned = Ranking(*(part[few] for part in order))

    def areas(counts: Floats) -> Floats:
        found = resampled_areas(thinned, image[few], counts, most)
        return np.where(np.isnan(found), np.nanmean(found) if np.isfinite(found).any() else 0.0, found)

    return bootstrap(areas, n, seed=seed, draws=DRAWS)


def _goes(seen: Seen, name: str, run: Run, alarms: list[Alarm]) -> list[Measure]:
    """Spearman's correlation of spread and error, image by image."""
    title = GOES if name == "test" else f"{GOES}, {name}"
    r = spearman(seen.spread, seen.error)
    known = r[np.isfinite(r)]
    if not len(known):
        alarms.append(Alarm(f"{title}: undefined for every image, as the spread or the error is even.", (title,)))
        return [Measure(name=title, value=None, better="higher", n=len(r))]
    left = f"; undefined and not counted for {len(r) - len(known)} of {len(r)}" if len(known) < len(r) else ""
    return [
        Measure.mean(
            title, known, better="higher", seed=run.seed, beside=(Beside("by chance", 0.0),),
            about=f"Spearman's correlation over the pixels of an image, mean over images{left}",
        )
    ]  # fmt: skip


def _no_spread(seen: Mapping[str, Seen]) -> list[Alarm]:
    if any(each.spread.any() for each in seen.values()):
        return []
    return [Alarm("Its members give the very same answers: no uncertainty available, and the ranking is chance.")]


def _curve_of(order: Ranking, label: str, most: float) -> Line:
    far, near = roc(order, 81, most)
    return Line(label=label, x=tuple(far.tolist()), y=tuple(near.tolist()))


def _roc(lines: list[Line], most: float) -> Curve:
    return Curve(
        name="roc", title="What a look at the most uncertain pixels finds", x_label="false-positive rate",
        y_label="share found", lines=tuple(lines), diagonal=True, unit_y=True,
        says=f"The area under each line up to {most:g} is what is measured; chance is the diagonal.",
    )  # fmt: skip


def _precision(found: list[tuple[str, Ranking]]) -> tuple[Curve, ...]:
    lines = []
    for name, order in found:
        most = int((order.positive | order.negative).sum())
        ks = np.unique(np.geomspace(1, most, 40).astype(np.int64))
        at = [found_at(order, int(k)) for k in ks]
        for word in ("precision", "recall"):
            y = tuple(float(getattr(each, word)) for each in at)
            lines.append(Line(label=f"{word}, {name}", x=tuple((ks / most).tolist()), y=y))
    return (
        Curve(
            name="at-k", title="Precision and recall of the first pixels", x_label="share of pixels looked at",
            y_label="share", lines=tuple(lines), unit_y=True, says="Positive is what lies in a box.",
        ),
    )  # fmt: skip


def _with_edges(spread: NDArray[np.float32], boxes: NDArray[np.int64], bright: float) -> NDArray[np.float32]:
    drawn = spread.copy()
    for left, top, right, bottom in boxes:
        if left >= 0:
            drawn[[top, bottom - 1], left:right] = bright
            drawn[top:bottom, [left, right - 1]] = bright
    return drawn


SHELVED = DoesItKnowWhereItIsWrong
