"""The page of one explained pair: the answer, the walk that changes it, the maps, and the audits of all this."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.report import words
from assay.report.page import Drawing, Picture, Pictured

if TYPE_CHECKING:
    from PIL.Image import Image

    from assay.finding import Panel
    from assay.pair_explanation import Frame, PairExplanation, Shown, Trial

SIDE = 160  # pixels of a picture in the animation, at least
GROUND, TRACK, MARK, INK = "#15181b", "#4a525a", "#d55e00", "#e6e8eb"
BRIEF, LONG = 160, 1400  # milliseconds that a frame stands, and the first and the last one


@dataclass(frozen=True)
class Card:
    """A map with its pictures made ready."""

    shown: Shown
    picture: Picture


@dataclass(frozen=True)
class Section:
    """An audit with its figures drawn."""

    trial: Trial
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True)
class Mark:
    """A place on the scale of answers, in percent of its width."""

    name: str
    value: float
    at: float


def render(told: PairExplanation, moving: bytes) -> str:
    """The whole page, as text; `moving` is the animation of the walk."""
    from assay.report.page import environment

    return (
        environment()
        .get_template("pair_explanation.html")
        .render(
            told=told,
            sides=[(side, picture(side.panel)) for side in (told.first, told.second)],
            marks=list(_marks(told)),
            tally=tally(told.trials),
            moving=_data("image/gif", moving),
            still=picture(told.frames[-1].panel),
            trace=_drawings((told.walked,), "walk")[0],
            frames=[
                (frame, picture(frame.panel), picture(frame.seen) if frame.seen else None) for frame in told.frames
            ],
            pictures=[(panel, picture(panel)) for panel in told.pictures],
            maps=[Card(m, picture(m.panel)) for m in told.maps],
            seen=[(panel, picture(panel)) for panel in told.seen],
            seen_maps=[Card(m, picture(m.panel)) for m in told.seen_maps],
            strips=[(strip, [(one, picture(one.panel)) for one in strip.drawn]) for strip in told.strips],
            sections=[Section(t, _drawings(t.views, t.name)) for t in told.trials],
            footer=list(_colophon(told)),
            command=_command(told, swapped=False),
            swapped=_command(told, swapped=True),
        )
    )


def tally(trials: Sequence[Trial]) -> str:
    """'2 pass, 1 fails, 1 cannot tell', and what was not asked."""
    seen = [t.outcome for t in trials]
    said = [
        f"{seen.count('pass')} {'passes' if seen.count('pass') == 1 else 'pass'}",
        f"{seen.count('fail')} {'fails' if seen.count('fail') == 1 else 'fail'}",
        f"{seen.count('cannot tell')} cannot tell",
    ]
    return ", ".join([*said, *([f"{n} not asked"] if (n := seen.count("not asked")) else [])])


def animate(frames: Sequence[Frame], *, scale: tuple[float, float], target: float) -> bytes:
    """The walk as a moving picture (GIF): the input, beside it what the model sees, below both the answer.

    `scale` are the ends of the bar of answers. A frame that tells where it is can be read without the page.
    """
    drawn = [_frame(frame, scale, target) for frame in frames]
    lasts = [LONG if i in (0, len(drawn) - 1) else BRIEF for i in range(len(drawn))]
    out = io.BytesIO()
    drawn[0].save(out, format="GIF", save_all=True, append_images=drawn[1:], duration=lasts, loop=0, optimize=False)
    return out.getvalue()


def _frame(frame: Frame, scale: tuple[float, float], target: float) -> Image:
    from PIL import Image, ImageDraw, ImageFont

    panels = [frame.panel, *([frame.seen] if frame.seen else [])]
    images = [_grown(panel) for panel in panels]
    gap, width, height = 8, max(image.width for image in images), max(image.height for image in images)
    across = gap + (width + gap) * len(images)
    canvas = Image.new("RGB", (across, height + 62), GROUND)
    for k, image in enumerate(images):
        canvas.paste(image, (gap + k * (width + gap), gap))
    draw, top = ImageDraw.Draw(canvas), height + 2 * gap
    font = ImageFont.load_default(12)
    left, right = gap + 4, across - gap - 4

    def at(value: float) -> float:
        low, high = scale
        return left + (right - left) * min(max((value - low) / (high - low), 0.0), 1.0)

    draw.line([(left, top + 6), (right, top + 6)], fill=TRACK, width=4)
    draw.line([(at(target), top), (at(target), top + 12)], fill=INK, width=2)
    draw.ellipse([at(frame.c) - 5, top + 1, at(frame.c) + 5, top + 11], fill=MARK)
    draw.text((left, top + 18), f"step {frame.step}: {frame.c:.2f}", fill=INK, font=font)
    return canvas


def _grown(panel: Panel) -> Image:
    """A picture at the size of the animation; small ones grow by a whole factor, so that a pixel stays a square."""
    from PIL import Image

    with Image.open(io.BytesIO(panel.png)) as image:
        plain = image.convert("RGB")
    factor = max(1, -(-SIDE // max(plain.size)))
    return plain.resize((plain.width * factor, plain.height * factor), Image.Resampling.NEAREST)


def picture(panel: Panel) -> Picture:
    return Pictured.of(panel)


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64," + base64.b64encode(content).decode("ascii")


def _drawings(views: Sequence[object], key: str) -> tuple[Drawing, ...]:
    from markupsafe import Markup

    from assay.finding import Bars, Curve
    from assay.report.figures import draw

    return tuple(
        Drawing(v.name, v.title, v.says, Markup(draw(v, f"pair/{key}/{i}")))
        for i, v in enumerate(views)
        if isinstance(v, Bars | Curve)
    )


def _marks(told: PairExplanation) -> Iterator[Mark]:
    """Where the answer, the right one, the target and what was reached stand between the ends of the scale."""
    low, high = told.scale
    named = [("answer", told.c), ("right", told.right), ("target", told.target), ("reached", told.reached_c)]
    for name, value in named:
        if value is not None:
            yield Mark(name, value, 100 * min(max((value - low) / (high - low), 0.0), 1.0))


def _colophon(told: PairExplanation) -> Iterator[tuple[str, str]]:
    from assay.version import __version__

    yield "Made with", f"Assay {__version__}, {words.moment(told.when)}"
    yield "Walk", told.settings
    yield "Budget", f"{told.budget}, seed {told.seed}, device {told.device}, {words.duration(told.seconds)}"
    yield "Source", told.method


def _command(told: PairExplanation, *, swapped: bool) -> tuple[str, ...]:
    """The words of the line that makes this page again, or that of the other input of the pair."""
    if not told.source:
        return ()
    pair = [told.first.given, told.second.given]
    target = told.swapped_target if swapped else told.target
    line = ["assay", "explain", *told.source, "--pair", *(pair[::-1] if swapped else pair), "--to", _exact(target)]
    line += [word for given in told.manner for word in ("--set", given)]
    line += [*(["--decoder"] if told.decoder else []), "--budget", told.budget, "--seed", str(told.seed)]
    return tuple(shlex.quote(word) for word in line)


def _exact(value: float) -> str:
    """The shortest text that reads back as this number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
