"""Finding: the answer to a question, as data.

Nothing in here draws, judges or needs torch: a stored finding opens with numpy alone. A value is None when it was not
measured, never NaN and never a stand-in 0.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from assay.errors import AssayError
from assay.interval import CONFIDENCE as CONFIDENCE
from assay.interval import bootstrap as bootstrap
from assay.interval import paired_difference as paired_difference
from assay.interval import wilson as wilson

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Beside:
    """A number to read a measure against: what a trivial or a perfect model would show at the same sample size."""

    label: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number with its interval, sample size, unit, and which direction is better."""

    name: str
    value: float | None
    better: Better
    low: float | None = None
    high: float | None = None
    n: int | None = None
    unit: str = ""
    about: str = ""
    column: str | None = None
    """The column of `samples` whose mean the value is; what a paired comparison needs."""
    beside: tuple[Beside, ...] = ()

    def __post_init__(self) -> None:
        for field in ("value", "low", "high"):
            number = getattr(self, field)
            if number is not None and not math.isfinite(number):
                raise AssayError(f"Measure {self.name!r} has {field}={number}; pass None for what was not measured.")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise AssayError(f"Measure {self.name!r} has low {self.low} above high {self.high}; swap them.")

    @classmethod
    def proportion(
        cls,
        name: str,
        hits: ArrayLike,
        *,
        better: Better,
        about: str = "",
        column: str | None = None,
        beside: tuple[Beside, ...] = (),
    ) -> Measure:  # hits: n, true or false
        """The share of `hits` that are true, with its Wilson interval."""
        import numpy as np

        held = np.asarray(hits, dtype=bool)
        low, high = wilson(int(held.sum()), held.size)
        return cls(
            name=name,
            value=float(held.mean()),
            low=low,
            high=high,
            n=held.size,
            unit="%",
            better=better,
            about=about,
            column=column,
            beside=beside,
        )

    @classmethod
    def mean(
        cls,
        name: str,
        values: ArrayLike,
        *,
        better: Better,
        seed: int,
        unit: str = "",
        about: str = "",
        column: str | None = None,
        beside: tuple[Beside, ...] = (),
    ) -> Measure:  # values: n
        """The mean of `values`, with a bootstrap interval."""
        import numpy as np

        v = np.asarray(values, dtype=np.float64)
        if v.size == 0:
            raise AssayError(f"Measure {name!r} is a mean of 0 values; give at least one.")
        low, high = bootstrap(lambda counts: counts @ v / v.size, v.size, seed=seed)
        return cls(
            name=name,
            value=float(v.mean()),
            low=low,
            high=high,
            n=v.size,
            unit=unit,
            better=better,
            about=about,
            column=column,
            beside=beside,
        )

    @classmethod
    def contrast(
        cls,
        name: str,
        parts: Sequence[tuple[float, ArrayLike]],
        *,
        better: Better,
        about: str = "",
        beside: tuple[Beside, ...] = (),
    ) -> Measure:  # of each part its weight and its hits: n, true or false
        """A weighted sum of shares of different inputs, such as a difference, with the interval of their intervals.

        low = sum w_i p_i - sqrt( sum w_i^2 (p_i - far_i)^2 ), far_i the lower end of p_i's interval where w_i > 0, else
        the upper; high likewise (Zou and Donner, Stat. Med. 2008, eq. 2, on Wilson's intervals).
        """
        import numpy as np

        value, down, up, n = 0.0, 0.0, 0.0, 0
        for weight, hits in parts:
            held = np.asarray(hits, dtype=bool)
            share, ends = float(held.mean()), wilson(int(held.sum()), held.size)
            value, n = value + weight * share, n + held.size
            down = math.hypot(down, weight * (share - ends[weight < 0]))
            up = math.hypot(up, weight * (ends[weight > 0] - share))
        return cls(
            name=name,
            value=value,
            low=value - down,
            high=value + up,
            n=n,
            unit="%",
            better=better,
            about=about,
            beside=beside,
        )

    @classmethod
    def chance(
        cls,
        name: str,
        chances: ArrayLike,
        *,
        better: Better,
        seed: int,
        about: str = "",
        column: str | None = None,
        beside: tuple[Beside, ...] = (),
    ) -> Measure:  # chances: n, from 0 to 1
        """The mean of chances, one per input; a proportion where each of them is 0 or 1, as without any randomness.

        The bootstrap resamples inputs, so that both what the inputs and what the draws of each vary by are in it.
        """
        import numpy as np

        v = np.asarray(chances, dtype=np.float64)
        if np.isin(v, (0.0, 1.0)).all():
            return cls.proportion(name, v > 0, better=better, about=about, column=column, beside=beside)
        return cls.mean(name, v, better=better, seed=seed, unit="%", about=about, column=column, beside=beside)

    @classmethod
    def median(
        cls,
        name: str,
        values: ArrayLike,
        *,
        better: Better,
        seed: int,
        about: str = "",
        beside: tuple[Beside, ...] = (),
    ) -> Measure:  # values: n, infinity where there is none
        """The median of `values`, the lower of two, with a bootstrap interval; not measured where it is infinite."""
        import numpy as np

        order = np.sort(np.asarray(values, dtype=np.float64))
        if order.size == 0:
            raise AssayError(f"Measure {name!r} is a median of 0 values; give at least one.")
        value = float(order[(order.size - 1) // 2])
        if not math.isfinite(value):
            return cls(name=name, value=None, n=order.size, better=better, about=about, beside=beside)
        largest = float(order[np.isfinite(order)][-1])

        def middle(counts: NDArray[np.float64]) -> NDArray[np.float64]:  # draws n -> draws
            drawn: NDArray[np.float64] = order[(np.cumsum(counts, axis=1) < order.size / 2).sum(1)]
            return np.minimum(drawn, largest)

        low, high = bootstrap(middle, order.size, seed=seed)
        return cls(name=name, value=value, low=low, high=high, n=order.size, better=better, about=about, beside=beside)


EVERYTHING = ("every measure",)
"""What an alarm about the subject as a whole doubts."""


@dataclass(frozen=True)
class Alarm:
    """Why a number may flatter the subject; measures named in `doubts` cannot pass while it stands."""

    says: str
    doubts: tuple[str, ...] = ()

    def about(self, measure: str) -> bool:
        return self.doubts == EVERYTHING or measure in self.doubts


@dataclass(frozen=True)
class Table:
    """One row per input. Column `index` says which input of `split` a row is about."""

    split: str
    columns: Mapping[str, NDArray[Any]]

    def __post_init__(self) -> None:
        if "index" not in self.columns:
            raise AssayError(f"A samples table needs a column 'index'; got {sorted(self.columns)}.")
        sizes = {name: len(column) for name, column in self.columns.items()}
        if len(set(sizes.values())) > 1:
            raise AssayError(f"The columns of a samples table differ in length: {sizes}; give each one row per input.")

    def __len__(self) -> int:
        return len(self.columns["index"])


# Views: what is to be drawn, as data. The report draws them; a probe never does.


@dataclass(frozen=True, kw_only=True)
class Line:
    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None

    @classmethod
    def shares(cls, label: str, x: Iterable[float], hits: Iterable[int], n: int) -> Line:
        """How many of n inputs at each x, as a share with its Wilson interval."""
        counts = [int(h) for h in hits]
        bands = [wilson(h, n) for h in counts]
        return cls(
            label=label,
            x=tuple(float(v) for v in x),
            y=tuple(h / n for h in counts),
            low=tuple(b[0] for b in bands),
            high=tuple(b[1] for b in bands),
        )


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Lines with their bands. `diagonal` adds y = x; `marks` are labelled vertical lines."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    says: str = ""
    diagonal: bool = False
    unit_y: bool = False
    """The y axis is a proportion: fix it to [0, 1]."""
    marks: tuple[Beside, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Points that no line joins, in groups; a group of one stands out, to be found among the others."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    """The groups; they have no bands."""
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars:
    name: str
    title: str
    y_label: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    says: str = ""
    unit_y: bool = False
    marks: tuple[Beside, ...] = ()
    """Labelled horizontal lines."""


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """For each label a box from quartile to quartile of its values, with the median and whiskers."""

    name: str
    title: str
    x_label: str
    y_label: str
    labels: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    says: str = ""
    unit_y: bool = False
    marks: tuple[Beside, ...] = ()
    """Labelled horizontal lines."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    name: str
    title: str
    x_label: str
    edges: tuple[float, ...]
    counts: tuple[tuple[str, tuple[float, ...]], ...]
    """Label and counts, one entry per group."""
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    name: str
    title: str
    row_label: str
    column_label: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture: a PNG of eight bits, for the eye. Full precision is in the witnesses."""

    label: str
    alt: str
    png: bytes

    @classmethod
    def of(cls, label: str, alt: str, image: ArrayLike, *, low: float = 0.0, high: float = 1.0) -> Panel:  # c h w
        """Picture an image of one or three channels whose values lie in [low, high]; of a pair both, side by side."""
        import io

        import numpy as np
        from PIL import Image

        pixels = np.clip((np.asarray(image, dtype=np.float64) - low) / (high - low) * 255 + 0.5, 0, 255)
        if pixels.ndim == 4:  # a pair, with a white line between
            pixels = np.concatenate([pixels[0], np.full_like(pixels[0, ..., :1], 255), *pixels[1:]], axis=-1)
        if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
            raise AssayError(f"Panel {label!r} wants an image of shape (1 or 3, h, w), got {pixels.shape}.")
        eight = pixels.astype(np.uint8)
        picture = Image.fromarray(eight[0] if len(eight) == 1 else eight.transpose(1, 2, 0))
        longest = max(picture.size)
        if longest > 160:  # a report shows thumbnails; 200 full-size photographs would not fit in one page
            picture = picture.resize([max(1, round(side * 160 / longest)) for side in picture.size])
        out = io.BytesIO()
        picture.save(out, format="PNG", optimize=True)
        return cls(label=label, alt=alt, png=out.getvalue())


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One input on show: its pictures side by side and what there is to say about it."""

    index: int
    caption: str
    panels: tuple[Panel, ...]

    @classmethod
    def of(
        cls,
        index: int,
        caption: str,
        clean: NDArray[Any],
        changed: NDArray[Any] | None = None,
        *,
        low: float = 0.0,
        high: float = 1.0,
    ) -> Exhibit:  # c h w
        """An image; with `changed`, also what it became and the difference, grey where nothing changed.

        The difference is stretched to its own largest value, because a worst-case change is too small to see.
        """
        panels = [Panel.of("clean", f"Input {index} as it is", clean, low=low, high=high)]
        if changed is not None:
            gap = changed.astype(float) - clean.astype(float)
            size = float(abs(gap).max()) or 1.0
            panels += [
                Panel.of("changed", f"Input {index} after the change", changed, low=low, high=high),
                Panel.of("difference", f"What changed in input {index}: at most {size:.3g}", gap, low=-size, high=size),
            ]
        return cls(index=index, caption=caption, panels=tuple(panels))


@dataclass(frozen=True, kw_only=True)
class Gallery:
    name: str
    title: str
    exhibits: tuple[Exhibit, ...]
    says: str = ""


View = Curve | Scatter | Bars | Boxes | Histogram | Matrix | Gallery


@dataclass(frozen=True, kw_only=True)
class Witnesses:
    """The inputs that broke the model, in full precision, so that anyone can judge them again.

    `norm` "none" means that the change obeys the box but no ball (a corruption, or no change at all). `left_out` more
    were found, evenly among these, and there was no room to keep them.
    """

    split: str
    index: NDArray[np.int64]  # n
    clean: NDArray[np.float32]  # n *d
    changed: NDArray[np.float32]  # n *d
    label: NDArray[Any]  # n *t: the targets, of a classifier class indices
    said: NDArray[Any]  # n *o: what the model answered on `changed`, of a classifier the class
    norm: tuple[str, ...]
    radius: NDArray[np.float64]  # n
    how: tuple[str, ...]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def keep(self, rows: NDArray[np.bool_]) -> Witnesses:
        """Only the witnesses whose row is true."""
        return Witnesses(
            split=self.split,
            left_out=self.left_out,
            index=self.index[rows],
            clean=self.clean[rows],
            changed=self.changed[rows],
            label=self.label[rows],
            said=self.said[rows],
            radius=self.radius[rows],
            norm=tuple(n for n, kept in zip(self.norm, rows, strict=True) if kept),
            how=tuple(h for h, kept in zip(self.how, rows, strict=True) if kept),
        )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a probe found. The first measure is the headline; `says` is the sentence that a manager needs."""

    says: str
    measures: tuple[Measure, ...]
    samples: Table | None = None
    views: tuple[View, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    witnesses: Witnesses | None = None

    def __post_init__(self) -> None:
        if not self.measures:
            raise AssayError("A finding needs at least one measure; the first is its headline.")
        names = [m.name for m in self.measures]
        if len(set(names)) < len(names):
            raise AssayError(f"A finding names a measure twice: {names}; give each its own name.")
        blank = [m.name for m in self.measures if m.value is None]
        if blank and not self.alarms:
            raise AssayError(f"Finding has no value for {blank}; add an alarm that says why.")

    def measure(self, name: str | None = None) -> Measure:
        """The measure of that name; the headline if no name is given."""
        if name is None:
            return self.measures[0]
        for m in self.measures:
            if m.name == name:
                return m
        raise AssayError(f"This finding has no measure {name!r}; it has {[m.name for m in self.measures]}.")


# Strict JSON. Tables and witnesses go to files of their own (store.py).

_VIEWS: dict[str, type[Any]] = {
    v.__name__.lower(): v for v in (Curve, Scatter, Bars, Boxes, Histogram, Matrix, Gallery)
}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):
        return value.item()
    return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _view_from(stored: Mapping[str, Any]) -> View:
    fields = {k: _tuples(v) for k, v in stored.items() if k != "kind"}
    kind = _VIEWS.get(str(stored.get("kind")))
    if kind is None:
        raise AssayError(f"A stored view has kind {stored.get('kind')!r}; known are {sorted(_VIEWS)}.")
    if "marks" in fields:
        fields["marks"] = tuple(Beside(**m) for m in fields["marks"])
    if kind in (Curve, Scatter):
        fields["lines"] = tuple(Line(**{k: _tuples(v) for k, v in line.items()}) for line in fields["lines"])
    if kind is Gallery:
        fields["exhibits"] = tuple(
            Exhibit(
                index=e["index"],
                caption=e["caption"],
                panels=tuple(
                    Panel(label=p["label"], alt=p["alt"], png=base64.b64decode(p["png"])) for p in e["panels"]
                ),
            )
            for e in fields["exhibits"]
        )
    view: View = kind(**fields)
    return view


def finding_to_json(finding: Finding) -> dict[str, Any]:
    return {
        "says": finding.says,
        "measures": [_plain(m) for m in finding.measures],
        "alarms": [_plain(a) for a in finding.alarms],
        "views": [{"kind": type(v).__name__.lower(), **_plain(v)} for v in finding.views],
    }


def finding_from_json(
    stored: Mapping[str, Any], samples: Table | None = None, witnesses: Witnesses | None = None
) -> Finding:
    return Finding(
        says=stored["says"],
        measures=tuple(Measure(**{**m, "beside": tuple(Beside(**b) for b in m["beside"])}) for m in stored["measures"]),
        alarms=tuple(Alarm(a["says"], tuple(a["doubts"])) for a in stored["alarms"]),
        views=tuple(_view_from(v) for v in stored["views"]),
        samples=samples,
        witnesses=witnesses,
    )


def share(part: Sequence[Any] | int, whole: int) -> str:
    """'3 of 40 (8 %)': the way every sentence in a report writes a share."""
    count = part if isinstance(part, int) else len(part)
    return f"{count} of {whole} ({100 * count / whole:.0f} %)" if whole else "0 of 0"
