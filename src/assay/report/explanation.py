"""The page of one explained input: what the model says, each map with its verdict beside it, the trial in numbers."""

from __future__ import annotations

import base64
import io
import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from assay.report import words
from assay.report.figures import COLOURS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.explanation import Explanation, Map

FOR, AGAINST = COLOURS[1], COLOURS[0]  # the class; told apart by people with any kind of colour vision
SIDE = 640  # pixels of a picture in the page, at most; a card shows it as wide as itself
DARK, LIGHT = 0.15, 0.85  # greys that a picture keeps under a map: its own order, and colours show on either end
MOST_CLASSES = 8
MOST_ROWS = 16  # columns of a row that are drawn by themselves
NUMERAL = 0.11  # of the longer side: how high a number stands in a picture
NUMBERED = 9  # picks that are numbered in the picture; of more, the depth tells
COLUMNS = {
    "s-r-bar": ("Robustness, top held", "higher is better", "how far the others must move to change the answer"),
    "s-r": ("Robustness, top moved", "lower is better", "how far the top features must move to change it"),
    "insertion": ("Insertion", "higher is better", "the answer's probability while the top features come in"),
    "deletion": ("Deletion", "lower is better", "the answer's probability while the top features go"),
    "kept": ("Top kept", "lower is better", "how far the number is from what it was with only the top features there"),
    "gone": ("Top gone", "higher is better", "how far the number moves when the top features go"),
}
OTHERS = (
    ("Likeness", "lower is better", "to maps of models with random weights, signs left out; 1 if it needs no model"),
    ("Gap", "lower is better", "what the values miss of the score that they should add up to"),
)
FEATURES = {"image": "pixels", "text": "words", "table": "columns", "series": "stretches"}
BADGES = {"believable": "pass", "not believable": "fail", "cannot tell": "cannot tell"}


class Mark(NamedTuple):
    """A number on a picture, at the middle of what it names, in pixels of the picture."""

    text: str
    x: float
    y: float
    size: float


@dataclass(frozen=True)
class Picture:
    uri: str
    width: int
    height: int
    alt: str
    marks: tuple[Mark, ...] = ()

    @property
    def small(self) -> bool:
        """Whether its pixels are to stay squares."""
        return max(self.width, self.height) <= 64


@dataclass(frozen=True)
class Scale:
    """The colours of a map with the values that they stand for, from left to right."""

    colours: tuple[str, ...]
    ticks: tuple[str, ...]
    says: str


class Token(NamedTuple):
    """A word with what a map gives it."""

    name: str
    value: str
    colour: str
    strength: float  # 0 to 1
    place: int | None  # in the order of the picks


class Bar(NamedTuple):
    """A line of a drawing of a row: from `left`, `width` wide, in percent of the track."""

    name: str
    value: str
    adds: str
    left: float
    width: float
    colour: str
    place: int | None = None
    whole: bool = False  # a total, not what one column adds


class Sum(NamedTuple):
    """What a map promises: base + values = score, but for the gap."""

    base: str
    start: str
    values: str
    score: str
    gap: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """A map as it stands on the page."""

    map: Map
    badge: str
    picture: Picture | None = None
    scale: Scale | None = None
    tokens: tuple[Token, ...] = ()
    bars: tuple[Bar, ...] = ()
    sum: Sum | None = None


class Cell(NamedTuple):
    label: str
    text: str
    about: str


def render(told: Explanation) -> str:
    """The whole page, as text."""
    from assay.report.page import environment

    cards = [_card(told, m) for m in told.maps]
    count = {v: sum(m.verdict == v for m in told.maps) for v in BADGES}
    order = sorted(range(len(told.classes)), key=lambda c: -told.probabilities[c])
    shown = [c for c in order if c in order[:MOST_CLASSES] or c == told.rival]
    chosen = told.answer is not None
    return (
        environment()
        .get_template("explanation.html")
        .render(
            told=told,
            picture=_original(told),
            answer=told.says if told.answer is None else told.classes[told.answer],
            rival="" if told.rival is None else told.classes[told.rival],
            explained=told.number
            if told.answer is None
            else f"the score of {told.classes[told.answer]}, {told.number}",
            chosen=chosen,
            said=None if told.picture is None else _pixels(told.picture, "The answer"),
            traces=[_trace(name, line) for name, line in told.input.lines],
            features=FEATURES[told.input.kind],
            chances=[(told.classes[c], told.probabilities[c], c == told.answer) for c in shown],
            hidden=len(told.classes) - len(shown),
            tally=", ".join(f"{n} {word}" for word, n in count.items()),
            cards=[c for c in cards if not c.map.picks],
            decided=[c for c in cards if c.map.picks],
            columns=[*(COLUMNS[s.name] for s in told.maps[0].scores), *OTHERS],
            rows=[(c, list(_cells(c.map))) for c in cards],
            footer=list(_colophon(told)),
            command=_command(told),
            score=words.number(told.score),
            colours=(FOR, AGAINST),
        )
    )


def _card(told: Explanation, m: Map) -> Card:
    badge, total = BADGES[m.verdict], _sum(told, m)
    match told.input.kind:
        case "image":
            assert told.input.image is not None  # a picture was explained
            if m.picks:
                return Card(map=m, badge=badge, picture=_picks(told, m))
            drawn, scale = heat(m.shown, told.input.image, signed=m.signed), scale_of(m.shown, signed=m.signed)
            return Card(
                map=m, badge=badge, picture=_picture(drawn, f"Map of {m.name}. {scale.says}"), scale=scale, sum=total
            )
        case "text":
            return Card(map=m, badge=badge, tokens=tuple(_tokens(told, m)), sum=total)
        case "table" | "series":
            return Card(map=m, badge=badge, bars=tuple(_bars(told, m)), sum=total)


def figure(value: float, digits: int, *, sign: bool = False) -> str:
    """A number with so many decimals, with a real minus, and with its sign where it is added to something."""
    form = f".{digits}f" if digits <= 6 else ".2e"
    text = f"{value:{'+' if sign else ''}{form}}"
    return (text if float(text) else text.lstrip("+-")).replace("-", words.MINUS)


def digits_of(values: Sequence[float]) -> int:
    """Decimals that give the largest of some numbers three figures."""
    top = max((abs(v) for v in values), default=0.0)
    return 2 if top == 0 else min(8, max(0, 2 - math.floor(math.log10(top))))


def _sum(told: Explanation, m: Map) -> Sum | None:
    if m.base is None or m.missed is None:
        return None
    added = float(m.shown.sum())
    d = digits_of((m.base, added, told.score))
    return Sum(
        figure(m.base, d),
        m.start,
        figure(added, d, sign=True),
        figure(told.score, d),
        figure(-m.missed, d, sign=True),
    )


def _place(told: Explanation, m: Map, k: int) -> int | None:
    return m.picks.index(int(told.groups[k])) + 1 if int(told.groups[k]) in m.picks else None


def _tokens(told: Explanation, m: Map) -> Iterator[Token]:
    base = m.shown if m.signed or m.picks else m.shown - m.shown.min()  # without a sign, the least says nothing
    largest, d = float(abs(base).max()) or 1.0, digits_of(m.shown.tolist())
    for k, name in enumerate(told.input.names):
        share, place = float(base[k]) / largest, _place(told, m, k)
        value = "" if m.picks else figure(float(m.shown[k]), d, sign=m.signed)
        yield Token(name, value, FOR if share >= 0 else AGAINST, abs(share), place)


def _bars(told: Explanation, m: Map) -> Iterator[Bar]:
    """The columns of a row, the largest first; where the map adds up, a waterfall from its base to the score."""
    named = list(zip(told.input.names, told.input.recorded, strict=True))
    if m.picks:
        picked = sorted((place, k) for k in range(len(named)) if (place := _place(told, m, k)) is not None)
        for place, k in picked:
            yield Bar(*named[k], "", 0.0, 100 * float(m.shown[k]), FOR, place)
        return
    order = sorted(range(len(named)), key=lambda k: -abs(float(m.shown[k])))
    first, rest = (order, []) if len(order) <= MOST_ROWS else (order[: MOST_ROWS - 1], order[MOST_ROWS - 1 :])
    lines = [(*named[k], float(m.shown[k])) for k in first]
    if rest:
        share = float(m.shown[rest].sum()) if m.signed else float(m.shown[rest].mean())
        lines.append(
            (f"{len(rest)} other {FEATURES[told.input.kind]}, {'together' if m.signed else 'on average'}", "", share)
        )
    if m.base is None or m.missed is None:
        d = digits_of([v for *_, v in lines])
        least, most = min(v for *_, v in lines), max(v for *_, v in lines)
        zero = 0.0 if m.signed else least  # without a sign, the least says nothing
        for name, value, v in lines:
            yield _bar(name, value, figure(v, d, sign=m.signed), zero, v, min(zero, least), max(zero, most))
        return
    lines += [("not accounted for", "", -m.missed)] if abs(m.missed) > 0 else []
    ends = [m.base]
    for *_, v in lines:
        ends.append(ends[-1] + v)
    low, high, d = min(0.0, *ends), max(0.0, *ends), digits_of([*ends, told.score])
    yield _bar("base value", m.start, figure(m.base, d), 0.0, m.base, low, high, whole=True)
    for (name, value, v), start in zip(lines, ends, strict=False):
        yield _bar(name, value, figure(v, d, sign=True), start, start + v, low, high)
    whole = told.number if told.answer is None else f"score of {told.classes[told.answer]}"
    yield _bar(whole, "", figure(told.score, d), 0.0, told.score, low, high, whole=True)


def _bar(
    name: str, value: str, adds: str, start: float, end: float, low: float, high: float, *, whole: bool = False
) -> Bar:
    span = (high - low) or 1.0
    left, right = sorted(100 * (v - low) / span for v in (start, end))
    colour = "var(--muted)" if whole else FOR if end >= start else AGAINST
    return Bar(name, value, adds, left, right - left, colour, None, whole)


def heat(values: NDArray[np.float64], image: NDArray[np.float32], *, signed: bool) -> NDArray[np.uint8]:
    """A map over its image in grey: h w, c h w -> h w 3. What speaks for the class is orange, against it blue.

    The depth is the share of the largest |value|, its square root, so that what is a quarter as large is still seen.
    Without a sign the least value has no colour and the largest all of it.
    """
    import numpy as np

    size = np.abs(values) if signed else values - values.min()
    depth = np.sqrt(size / (float(size.max()) or 1.0))[..., None]  # h w 1
    ink = np.where((values >= 0)[..., None] | (not signed), _rgb(FOR), _rgb(AGAINST))  # h w 3
    return _eight((1 - depth) * _ground(image)[..., None] + depth * ink)


def scale_of(values: NDArray[np.float64], *, signed: bool, stops: int = 17) -> Scale:
    """The colours of `heat` over a middle grey, from the least value to the largest, in even steps of the value."""
    import numpy as np

    low, high = float(values.min()), float(values.max())
    if signed:
        high = max(abs(low), abs(high))
        low = -high
    along = np.linspace(low, high, stops)
    patch = heat(along[None], np.full((1, 1, stops), 0.5, np.float32), signed=signed)[0]
    d = digits_of((low, high))
    if signed:
        says = f"Full colour at {figure(high, d)} for or against it"
        quarter, ticks = high / 4, (figure(low, d), "0", figure(high, d, sign=True))
    else:
        says = f"No colour at {figure(low, d)}, all of it at {figure(high, d)}"
        quarter, ticks = low + (high - low) / 4, (figure(low, d), figure((low + high) / 2, d), figure(high, d))
    half = figure(quarter, digits_of((quarter,)))
    colours = tuple(f"rgb({r} {g} {b})" for r, g, b in patch.tolist())
    return Scale(colours, ticks, f"{says}, half as deep at {half}: depth is the square root.")


def _ground(image: NDArray[np.float32]) -> NDArray[np.float64]:  # c h w -> h w
    import numpy as np

    grey: NDArray[np.float64] = DARK + (LIGHT - DARK) * image.mean(0).astype(np.float64)
    return grey


def _picks(told: Explanation, m: Map) -> Picture:
    """What was picked over its image, the first one deepest, with its place in the order."""
    import numpy as np

    assert told.input.image is not None  # a picture was explained
    depth = (0.75 * m.shown / (float(m.shown.max()) or 1.0))[..., None]
    drawn = _eight((1 - depth) * _ground(told.input.image)[..., None] + depth * np.array(_rgb(FOR)))
    (h, w), marks = drawn.shape[:2], []
    size = NUMERAL * max(h, w)
    for place, group in enumerate(m.picks[:NUMBERED] if len(m.picks) <= NUMBERED else (), start=1):
        y, x = (told.groups == group).nonzero()
        inner = int(((y - y.mean()) ** 2 + (x - x.mean()) ** 2).argmin())  # its middle may lie outside of a crooked one
        middle = (y.mean(), x.mean()) if told.units == "patches" else (y[inner], x[inner])
        at_y, at_x = (
            min(max(float(v) + 0.5, size / 2), side - size / 2) for v, side in zip(middle, (h, w), strict=True)
        )
        marks.append(Mark(str(place), at_x, at_y, size))
    where = "; ".join(f"{k.text} at {100 * k.x / w:.0f} % from the left, {100 * k.y / h:.0f} % down" for k in marks)
    return _picture(drawn, f"Picks of {m.name} in their order{': ' + where if where else ', the first deepest'}", marks)


def _original(told: Explanation) -> Picture | None:
    return None if told.input.image is None else _pixels(told.input.image, "The input")


def _pixels(image: NDArray[np.float32], alt: str) -> Picture:  # c h w
    return _picture(_eight(image.transpose(1, 2, 0).repeat(3 // len(image), 2)), alt)


class Trace(NamedTuple):
    """A channel of a series as a line in a box of 100 by 20."""

    name: str
    runs: tuple[str, ...]  # points, from one gap to the next
    ends: str


def _trace(name: str, line: Sequence[float]) -> Trace:
    known = [v for v in line if math.isfinite(v)]
    if not known:
        return Trace(name, (), f"{len(line)} times, no value is known")
    low, high = min(known), max(known)
    step, span = 100 / max(1, len(line) - 1), (high - low) or 1.0
    runs = []
    for there, run in itertools.groupby(enumerate(line), lambda at: math.isfinite(at[1])):
        points = [f"{k * step:.2f},{19 - 18 * (v - low) / span:.2f}" for k, v in run] if there else []
        runs += [" ".join(points if len(points) > 1 else 2 * points)] if points else []  # one point alone is a dot
    missing = f", {len(line) - len(known)} unknown" if len(known) < len(line) else ""
    return Trace(name, tuple(runs), f"{len(line)} times, from {low:.4g} to {high:.4g}{missing}")


def _picture(pixels: NDArray[np.uint8], alt: str, marks: Sequence[Mark] = ()) -> Picture:  # h w 3
    from PIL import Image

    picture = Image.fromarray(pixels)
    longest = max(picture.size)
    if longest > SIDE:
        picture = picture.resize([max(1, round(side * SIDE / longest)) for side in picture.size])
    out = io.BytesIO()
    picture.save(out, format="PNG", optimize=True)
    uri = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")
    height, width = pixels.shape[:2]
    return Picture(uri, width, height, alt, tuple(marks))


def _eight(unit: NDArray[np.float64] | NDArray[np.float32]) -> NDArray[np.uint8]:
    import numpy as np

    return np.clip(unit * 255 + 0.5, 0, 255).astype(np.uint8)


def _rgb(colour: str) -> tuple[float, float, float]:
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return r, g, b


def _cells(m: Map) -> Iterator[Cell]:
    for s in m.scores:
        usual = sorted(s.random)[len(s.random) // 2]
        name, better, _ = COLUMNS[s.name]
        yield Cell(f"{name} ({better})", f"{s.value:.3g}", f"random {usual:.3g}; beats {s.beaten} of {len(s.random)}")
    alike, signs = "", "not made"
    if m.likeness is not None:
        alike, signs = figure(m.likeness, 2), "unrelated maps 0"
        signs += "" if m.signed_likeness is None else f"; with signs {figure(m.signed_likeness, 2)}"
    yield Cell(f"{OTHERS[0][0]} ({OTHERS[0][1]})", alike, signs)
    missed = ("", "not promised") if m.gap is None else (f"{100 * m.gap:.1f}{words.NBSP}%", "should be 0")
    yield Cell(f"{OTHERS[1][0]} ({OTHERS[1][1]})", *missed)


def _colophon(told: Explanation) -> Iterator[tuple[str, str]]:
    from assay.version import __version__

    yield "Made with", f"Assay {__version__}, {words.moment(told.when)}"
    yield "Reference", f"{told.reference}: what a removed feature becomes, and where maps that add up start from"
    yield "Budget", f"{told.budget}, seed {told.seed}, device {told.device}, {words.duration(told.seconds)}"


def _command(told: Explanation) -> tuple[str, ...]:
    """The words of the line that makes this page again."""
    if not told.source:
        return ()
    methods = [word for name in told.methods for word in ("--method", name)]
    given = told.input.what.removeprefix("input ")
    line = ["assay", "explain", *told.source, "--input", given, *methods]
    line += [] if told.rival is None else ["--why-not", str(told.rival), "--criterion", told.criterion]
    line += [] if told.of is None else ["--of", told.of]
    line += ["--units", told.units, "--budget", told.budget, "--seed", str(told.seed)]
    return tuple(shlex.quote(word) for word in line)
