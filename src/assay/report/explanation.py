"""The page of one explained input: what the model says, each map with its verdict beside it, the trial in numbers."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from assay.report import words
from assay.report.figures import COLOURS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.explanation import Explanation, Map

FOR, AGAINST = COLOURS[1], COLOURS[0]  # the class; told apart by people with any kind of colour vision
SIDE = 132  # pixels of a picture on the page, at least
MOST_CLASSES = 8
COLUMNS = {
    "s_r_bar": ("Robustness, top held", "higher is better", "how far the others must move to change the answer"),
    "s_r": ("Robustness, top moved", "lower is better", "how far the top features must move to change it"),
    "insertion": ("Insertion", "higher is better", "the answer's probability while the top features come in"),
    "deletion": ("Deletion", "lower is better", "the answer's probability while the top features go"),
}
OTHERS = (
    ("Likeness", "lower is better", "to the map of a model whose last layer is random; 1 is a map that needs no model"),
    ("Gap", "lower is better", "what the values miss of the score that they should add up to"),
)
BADGES = {"believable": "pass", "not believable": "fail", "cannot tell": "cannot tell"}


@dataclass(frozen=True)
class Picture:
    uri: str
    width: int
    height: int
    alt: str


class Token(NamedTuple):
    """A word or a column with what a map gives it; `share` of the largest, in percent, may be negative."""

    name: str
    value: str
    share: float
    colour: str
    strength: float  # 0 to 1
    place: int | None  # in the order of the picks


@dataclass(frozen=True, kw_only=True)
class Card:
    """A map as it stands on the page."""

    map: Map
    badge: str
    picture: Picture | None
    tokens: tuple[Token, ...]


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
    return (
        environment()
        .get_template("explanation.html")
        .render(
            told=told,
            picture=_original(told),
            answer=told.classes[told.answer],
            rival=told.classes[told.rival],
            chances=[(told.classes[c], told.probabilities[c], c == told.answer) for c in shown],
            hidden=len(told.classes) - len(shown),
            tally=", ".join(f"{n} {word}" for word, n in count.items()),
            cards=[c for c in cards if not c.map.picks],
            decided=[c for c in cards if c.map.picks],
            columns=[*(COLUMNS[s.name] for s in told.maps[0].scores), *OTHERS],
            rows=[(c, list(_cells(c.map))) for c in cards],
            footer=list(_colophon(told)),
            command=_command(told),
            features={"image": "patches", "text": "words", "table": "columns"}[told.input.kind],
            colours=(FOR, AGAINST),
        )
    )


def _card(told: Explanation, m: Map) -> Card:
    badge = BADGES[m.verdict]
    if told.input.kind == "image":
        assert told.input.image is not None  # a picture was explained
        drawn = _picks(told, m) if m.picks else heat(m.shown, told.input.image, signed=m.signed)
        return Card(map=m, badge=badge, picture=_picture(drawn, f"Map of {m.name}"), tokens=())
    return Card(map=m, badge=badge, picture=None, tokens=tuple(_tokens(told, m)))


def _tokens(told: Explanation, m: Map) -> Iterator[Token]:
    base = m.shown if m.signed or m.picks else m.shown - m.shown.min()  # without a sign, the least says nothing
    largest = float(abs(base).max()) or 1.0
    values = [f"{v:.4g}" for v in told.input.values] or [""] * len(told.input.names)
    for k, (name, value) in enumerate(zip(told.input.names, values, strict=True)):
        share = float(base[k]) / largest
        place = m.picks.index(int(told.groups[k])) + 1 if int(told.groups[k]) in m.picks else None
        yield Token(name, value, 100 * share, FOR if share >= 0 else AGAINST, abs(share), place)


def heat(values: NDArray[np.float64], image: NDArray[np.float32], *, signed: bool) -> NDArray[np.uint8]:
    """A map over a faint copy of its image: h w, c h w -> h w 3. What speaks for the class is orange, against it blue.

    The depth is the share of the largest |value|, its square root, so that what is half as large is still seen.
    """
    import numpy as np

    faint = 1 - 0.28 * image.mean(0).astype(np.float64)  # h w
    size = np.abs(values) if signed else values - values.min()
    depth = np.sqrt(size / (float(size.max()) or 1.0))[..., None]  # h w 1
    ink = np.where((values >= 0)[..., None] | (not signed), _rgb(FOR), _rgb(AGAINST))  # h w 3
    return _eight((1 - depth) * faint[..., None] + depth * ink)


def _picks(told: Explanation, m: Map) -> NDArray[np.uint8]:  # -> h w 3
    """The patches that were picked, the first one deepest."""
    import numpy as np

    assert told.input.image is not None  # a picture was explained
    faint = 1 - 0.28 * told.input.image.mean(0).astype(np.float64)
    depth = (0.75 * m.shown)[..., None]
    return _eight((1 - depth) * faint[..., None] + depth * np.array(_rgb(FOR)))


def _original(told: Explanation) -> Picture | None:
    image = told.input.image
    if image is None:
        return None
    pixels = image.transpose(1, 2, 0).repeat(3 // len(image), 2)  # h w 3
    return _picture(_eight(pixels), "The input")


def _picture(pixels: NDArray[np.uint8], alt: str) -> Picture:  # h w 3
    from PIL import Image

    picture = Image.fromarray(pixels)
    longest = max(picture.size)
    if longest > 2 * SIDE:
        picture = picture.resize([max(1, round(side * 2 * SIDE / longest)) for side in picture.size])
    scale = max(1, -(-SIDE // longest)) if longest <= 64 else SIDE / longest
    out = io.BytesIO()
    picture.save(out, format="PNG", optimize=True)
    uri = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")
    height, width = pixels.shape[:2]
    return Picture(uri, max(1, round(width * scale)), max(1, round(height * scale)), alt)


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
    alike = "not made" if m.likeness is None else f"{m.likeness:.2f}".replace("-", words.MINUS)
    yield Cell(f"{OTHERS[0][0]} ({OTHERS[0][1]})", alike, "unrelated maps 0")
    missed = ("not promised", "") if m.gap is None else (words.number(m.gap, "%"), "should be 0")
    yield Cell(f"{OTHERS[1][0]} ({OTHERS[1][1]})", *missed)


def _colophon(told: Explanation) -> Iterator[tuple[str, str]]:
    from assay import __version__

    yield "Made with", f"Assay {__version__}, {words.moment(told.when)}"
    yield "Reference", f"{told.reference}: what a removed feature becomes, and where maps that add up start from"
    yield "Budget", f"{told.budget}, seed {told.seed}, device {told.device}, {words.duration(told.seconds)}"


def _command(told: Explanation) -> tuple[str, ...]:
    """The words of the line that makes this page again."""
    if not told.source:
        return ()
    methods = [word for name in told.methods for word in ("--method", name)]
    given = told.input.what.removeprefix("input ")
    line = ["assay", "explain", *told.source, "--input", given, *methods, "--why-not", str(told.rival)]
    return tuple(shlex.quote(word) for word in (*line, "--budget", told.budget, "--seed", str(told.seed)))
