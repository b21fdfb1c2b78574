"""Whether an answer hangs on where a thing stands in its picture: at the border, or in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import Alarm, Beside, Curve, Exhibit, Finding, Gallery, Line, Matrix, Measure, Table, View, bootstrap
from assay.methods.attack.through import carries_gradient
from assay.methods.steady.where_it_stands import Frame, Leak, influence, position_leak, rolled
from assay.methods.uncertainty.activations import features
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.tasks import Detection, ImageToImage, Segmentation
from assay.tasks.places import NOT_COUNTED

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

LOST, CENTRE, WORST = "lost at the border", "score at the centre", "score at the worst place"
INFLUENCE, LEAK = "influence of a pixel at the border, of one at the centre", "position leak"
LOOKED_AT = 64  # pictures whose pixels' influence is taken and whose maps are read
DRAWS = 4  # of random signs over the answer
VALUES = 2**24  # numbers in the maps that are held
FEW = 30  # inputs below which none is judged
BORDER = 1 / 8  # of the shorter side: what counts as the border
Array = NDArray[np.float64]


@dataclass(frozen=True)
class DoesItDependOnWhereItStands(Probe):
    """Does it answer as well when the same thing stands at the border of the picture as in its middle?

    Each picture is made smaller, to `scale` of its side, and put at 25 places of its frame, its edge drawn out to fill
    the rest: the same pixels, elsewhere. What is lost at the border is the score in the middle less the mean score at
    the 16 places that touch the border, input by input. Targets that have places themselves (classes of pixels, boxes,
    images) move along.

    Two causes are shown beside it, on pictures rolled round by a random amount, so that only the network can tell their
    border from their middle: how much a pixel at the border (an eighth of the side) moves the answer, of what one in
    the middle does, and how much of the distance to the border can be read off one place of the last convolution's map.
    Zeros that are padded at every layer bring both about.
    """

    scale: float = 0.8

    needs: ClassVar[tuple[Need, ...]] = ("images",)
    source: ClassVar[str] = "Li, Poon & Yang, 'RIAP', ICANN 2021, sec. 3 and 5"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=0.05),)

    def __post_init__(self) -> None:
        Frame.of(64, 64, self.scale)

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        height, width = subject.inputs.shape[-2:]
        try:
            Frame.of(height, width, self.scale)
        except AssayError:
            return f"a picture of {height} x {width} pixels is too small to be moved about"
        target = np.shape(subject.data["test"].labels)[1:]
        if isinstance(subject.task, Segmentation | ImageToImage) and target[-2:] != (height, width):
            return f"targets of shape {target} have other places than pictures of {height} x {width} pixels"
        return None

    def ask(self, subject: Subject, run: Run) -> Finding:
        height, width = subject.inputs.shape[-2:]
        frame = Frame.of(height, width, self.scale)
        index = run.pick(subject.data["test"], run.budget.dear)
        rows = run.map(lambda shard: self._moved(subject, frame, shard), subject, "test", index, "moving things about")
        score = np.asarray(rows["score"], dtype=np.float64)  # n a b
        ups, lefts = frame.offsets()
        away = np.maximum(*np.meshgrid(*(abs(o) / o.max() for o in (ups, lefts)), indexing="ij"))  # a b, 1: the border
        centre, border = score[:, away == 0].mean(1), score[:, away == 1].mean(1)
        lost, places = centre - border, score.mean(0)
        worst = np.unravel_index(int(places.argmin()), places.shape)
        says, *blind = subject.blind("test", index)
        nothing = Beside(says, float(subject.task.score(*blind).mean()))
        middle = Measure.mean(
            CENTRE, centre, better="higher", seed=run.seed, unit="%", column="centre", beside=(nothing,),
            about=f"{subject.task.headline} of pictures at {self.scale:g} of their size, in the middle of their frame",
        )  # fmt: skip
        causes, drawn = self._causes(subject, run, index)
        views: list[View] = [_map(places, ups, lefts, subject), _against(score, away, subject, run.seed), *drawn]
        return Finding(
            says=f"In the middle it scores {100 * centre.mean():.0f} %, at the border {100 * border.mean():.0f} %, and "
            f"{100 * places.min():.0f} % {_where(int(ups[worst[0]]), int(lefts[worst[1]]))}.",
            measures=(
                Measure.mean(
                    LOST, lost, better="lower", seed=run.seed, unit="%", column="lost",
                    about="score in the middle less the mean score at the places that touch the border",
                ),
                middle,
                Measure.mean(
                    WORST, score[:, worst[0], worst[1]], better="higher", seed=run.seed, unit="%",
                    about=f"of {places.size} places, {_where(int(ups[worst[0]]), int(lefts[worst[1]]))}; the lowest of "
                    "many is low by chance too",
                ),
                *causes,
            ),
            samples=Table("test", {"index": index, "centre": centre, "border": border, "lost": lost}),
            views=(*views, *self._shown(subject, frame, index, score, (ups, lefts), away, run.budget.shown)),
            alarms=(*_few(len(index)), *_nothing_to_lose(middle, nothing)),
        )  # fmt: skip

    def _moved(self, subject: Subject, frame: Frame, shard: Shard) -> Mapping[str, Tensor]:
        small, ups, lefts = frame.smaller(shard.x), *frame.offsets()
        target = _smaller(subject, frame, shard.y)
        score = [
            subject.task.score(
                subject.predict(frame.put(small, down, right)), _placed(subject, frame, target, down, right)
            )
            for down in ups.tolist()
            for right in lefts.tolist()
        ]
        return {"score": torch.stack(score, 1).view(-1, len(ups), len(lefts))}

    def _causes(
        self, subject: Subject, run: Run, index: NDArray[np.int64]
    ) -> tuple[tuple[Measure, ...], tuple[View, ...]]:
        """The influence of pixels by their distance from the border, and what the last map knows of it."""
        if not subject.differentiable:
            return (), ()
        few = index[np.linspace(0, len(index) - 1, min(LOOKED_AT, len(index))).round().astype(np.int64)]
        layer = subject.layers.get("last_conv")
        climbs = carries_gradient(subject.model, subject.data["test"].take(few[:2])[0].to(run.device))

        def work(shard: Shard) -> Mapping[str, Tensor]:
            x = rolled(shard.x, shard.rng)
            slope = {"influence": influence(subject.model, x, draws=DRAWS, rng=shard.rng)} if climbs else {}
            return {"x": x, **slope}

        rows = run.map(work, subject, "test", few, "influence of pixels")
        measures: tuple[Measure, ...] = ()
        views: tuple[View, ...] = ()
        if climbs:
            square = np.asarray(rows["influence"], dtype=np.float64)  # n rings
            measures, views = _influence(square, min(subject.inputs.shape[-2:]), run.seed)
        if layer is not None:
            maps = _maps(subject, torch.as_tensor(rows["x"], device=run.device), layer)
            if maps is not None and maps.ndim == 4 and len(maps) == len(few) > 3 and min(maps.shape[-2:]) > 2:
                most = max(2, VALUES // maps[0].numel())
                measures += (_leak(position_leak(maps[:most]), layer, run.seed),)
        return measures, views

    def _shown(
        self, subject: Subject, frame: Frame, index: NDArray[np.int64], score: Array,
        offsets: tuple[NDArray[np.int64], NDArray[np.int64]], away: Array, most: int,
    ) -> tuple[Gallery, ...]:  # fmt: skip
        """Pictures that lose most, in the middle and where they lose it."""
        at_border = np.where(away == 1, score, np.inf).reshape(len(score), -1)
        lost = score[:, away == 0][:, 0] - at_border.min(1)
        some = [i for i in np.argsort(-lost, kind="stable")[:most] if lost[i] > 0]
        if not some or len(subject.inputs.shape) != 3:
            return ()
        small = frame.smaller(subject.data["test"].take(index[some])[0])
        exhibits = []
        for k, i in enumerate(some):
            a, b = np.unravel_index(int(at_border[i].argmin()), away.shape)
            down, right = int(offsets[0][a]), int(offsets[1][b])
            middle, moved = (frame.put(small[k : k + 1], *to)[0].numpy() for to in ((0, 0), (down, right)))
            caption = f"score {score[i][away == 0][0]:.2f} in the middle, {score[i, a, b]:.2f} {_where(down, right)}"
            exhibits.append(
                Exhibit.of(int(index[i]), caption, middle, moved, low=subject.inputs.low, high=subject.inputs.high)
            )
        return (Gallery(name="moved", title="What it loses where", exhibits=tuple(exhibits)),)


def _maps(subject: Subject, x: Tensor, layer: str) -> Tensor | None:
    """What the last convolution shows; None where that is no one map: its weights alone are used, or it runs twice."""
    try:
        return features(subject.model, x, layer)
    except AssayError:
        return None


def _smaller(subject: Subject, frame: Frame, y: Tensor) -> Tensor:
    """Targets of the smaller picture."""
    if isinstance(subject.task, Segmentation):
        return frame.smaller_classes(y)
    return frame.smaller(y) if isinstance(subject.task, ImageToImage) else y


def _placed(subject: Subject, frame: Frame, y: Tensor, down: int, right: int) -> Tensor:
    """Targets of the smaller picture so far off the centre; of places around it none counts."""
    if isinstance(subject.task, Segmentation):
        return frame.put_alone(y, down, right, NOT_COUNTED)
    if isinstance(subject.task, ImageToImage):
        return frame.put(y, down, right)
    if isinstance(subject.task, Detection):  # class, left, top, right, bottom in shares; -1 where there is none
        by = y.new_tensor([(frame.margin[1] + right) / frame.width, (frame.margin[0] + down) / frame.height] * 2)
        of = y.new_tensor([frame.size[1] / frame.width, frame.size[0] / frame.height] * 2)
        return torch.where(y[..., :1] < 0, y, torch.cat([y[..., :1], by + of * y[..., 1:]], -1))
    return y


def _influence(square: Array, side: int, seed: int) -> tuple[tuple[Measure, ...], tuple[View, ...]]:  # n rings
    edge = max(1, round(BORDER * side))
    outer, inner = square[:, :edge].mean(1), square[:, square.shape[1] // 2 :].mean(1)
    if not inner.sum() > 0:
        return (), ()
    value = float(np.sqrt(outer.sum() / inner.sum()))
    low, high = bootstrap(
        lambda counts: np.sqrt((counts @ outer) / (counts @ inner).clip(1e-300)), len(outer), seed=seed
    )
    profile = np.sqrt(square.mean(0) / inner.mean())
    curve = Curve(
        name="influence",
        title="How much a pixel moves the answer, by its distance from the border",
        x_label="pixels from the border",
        y_label="influence, of a pixel in the middle",
        lines=(Line(label="influence", x=tuple(map(float, range(len(profile)))), y=tuple(profile.tolist())),),
        says="On pictures rolled round by a random amount: a network for which places are alike has a level line.",
    )
    return (
        Measure(
            name=INFLUENCE, value=value, low=min(low, value), high=max(high, value), n=len(outer), better="neither",
            beside=(Beside("all places alike", 1.0),),
            about=f"root mean square slope of the answer by a pixel in the outer {edge} rings, over that in the middle",
        ),
    ), (curve,)  # fmt: skip


def _leak(leak: Leak, layer: str, seed: int) -> Measure:
    left, whole = (each.cpu().numpy() for each in leak)
    low, high = bootstrap(lambda counts: 1 - (counts @ left) / (counts @ whole), len(left), seed=seed)
    value = leak.r2
    return Measure(
        name=LEAK, value=value, low=min(low, value), high=max(high, value), n=len(left), better="lower",
        beside=(Beside("all places alike", 0.0),),
        about="share of the variance of the distance to the border that a linear layer reads off one place of "
        f"{layer}, on pictures that it was not fitted to (R^2; below 0 is nothing)",
    )  # fmt: skip


def _where(down: int, right: int) -> str:
    parts = [f"{abs(down)} pixels {'down' if down > 0 else 'up'}" if down else ""]
    parts += [f"{abs(right)} {'to the right' if right > 0 else 'to the left'}" if right else ""]
    return " and ".join(filter(None, parts)) or "in the middle"


def _map(places: Array, ups: NDArray[np.int64], lefts: NDArray[np.int64], subject: Subject) -> Matrix:
    return Matrix(
        name="places",
        title="Score by where it stands",
        row_label="pixels down",
        column_label="pixels to the right",
        rows=tuple(f"{u:+d}" for u in ups),
        columns=tuple(f"{o:+d}" for o in lefts),
        values=tuple(tuple(row) for row in places.tolist()),
        says=f"Mean {subject.task.headline.removeprefix('mean ')}; in the middle of the table it stands in the middle.",
    )


def _against(score: Array, away: Array, subject: Subject, seed: int) -> Curve:
    shares = np.unique(away)
    means = [Measure.mean("", score[:, away == s].mean(1), better="higher", seed=seed) for s in shares]
    line = Line(
        label=subject.task.headline,
        x=tuple(shares.tolist()),
        y=tuple(m.value or 0.0 for m in means),
        low=tuple(m.low or 0.0 for m in means),
        high=tuple(m.high or 0.0 for m in means),
    )
    return Curve(
        name="offset",
        title="Score against the way to the border",
        x_label="share of the way from the middle to the border",
        y_label="score",
        unit_y=True,
        lines=(line,),
    )


def _few(n: int) -> tuple[Alarm, ...]:
    """Inputs that are all right everywhere have an interval of no width, be they two."""
    says = f"It was asked on {n} inputs alone, too few to judge what is lost: {FEW} or more would do."
    return (Alarm(says, doubts=(LOST,)),) if n < FEW else ()


def _nothing_to_lose(middle: Measure, nothing: Beside) -> tuple[Alarm, ...]:
    if (middle.low or 0.0) > nothing.value:
        return ()
    return (
        Alarm(
            "Made smaller it is no better in the middle than a model that sees nothing, so that it has nothing to lose "
            "at the border; take a larger scale=.",
            doubts=(LOST,),
        ),
    )


SHELVED = DoesItDependOnWhereItStands
