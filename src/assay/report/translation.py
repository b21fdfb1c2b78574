"""The page of trained translators: every test image with its truth, the mean, the spread and the error side by side.

A slider sets the spread from which on a pixel is flagged for a person to look at. The page is whole without its script:
what is flagged at the threshold that was chosen is drawn beforehand.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.errors import AssayError
from assay.report import words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIDE = 256  # pixels of a picture in the page, at most; the archive has all of them
MOST_SHOWN = 24
NO_UNCERTAINTY = "no uncertainty available"
FLAG = (255, 140, 0)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the mean image is worth on the test images; None where there is no truth, or nothing to measure."""

    error: float | None  # mean |mean - truth| of a pixel
    root: float | None  # root of the mean squared error
    blind: float | None  # the same root of the mean training image, whatever the input
    correlation: float | None  # Pearson's, mean over images
    undefined: int  # images whose correlation is undefined, and not counted
    wrong: float | None  # share of pixels whose error is above the tolerance
    area: float | None  # partial AUC up to 0.2 with which the spread finds them; by chance 0.02
    rank: float | None  # Spearman's correlation of spread and error, mean over images


@dataclass(frozen=True, kw_only=True)
class Review:
    """What a threshold on the spread flags, for a row of thresholds, and which of them was chosen."""

    threshold: float
    thresholds: tuple[float, ...]
    flagged: tuple[float, ...]  # share of all pixels
    found: tuple[float, ...] | None  # share of the wrong pixels that are flagged
    hits: tuple[float, ...] | None  # share of the flagged pixels that are wrong


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """One test image: PNG files, and how many regions are flagged in it."""

    name: str
    source: bytes
    mean: bytes
    truth: bytes | None
    spread: bytes | None  # grey, 255 for `Translation.widest`
    error: bytes | None
    flagged: bytes | None  # what lies over the mean at the chosen threshold
    regions: int


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A finished training with its answers to the test images."""

    title: str
    when: str
    data: str
    trained_on: int
    tested_on: int
    shape: tuple[int, int, int]
    answers: int  # channels of an output
    members: int
    tolerance: float
    settings: Mapping[str, Any]
    seed: int
    scores: Scores
    review: Review | None  # None where there is no uncertainty
    losses: tuple[tuple[float, ...], ...]  # of each member, epoch by epoch
    widest: float
    largest: float
    pictures: tuple[Pictures, ...] = field(repr=False)
    command: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """How values were changed on their way in."""

    def told(self) -> dict[str, Any]:
        """What goes into translation.json: everything but the pictures."""
        return {name: value for name, value in asdict(self).items() if name != "pictures"} | {
            "uncertainty": self.review is not None
        }


class Shown(NamedTuple):
    label: str
    uri: str
    alt: str
    over: str  # what lies over it, or nothing


class Row(NamedTuple):
    name: str
    panels: list[Shown]
    spread: str
    regions: int


def picture(image: NDArray[np.floating], *, low: float = 0.0, high: float = 1.0) -> bytes:  # c h w
    """As PNG of eight bits, at most SIDE pixels to a side."""
    import numpy as np
    from PIL import Image

    if image.shape[0] not in (1, 3):
        raise AssayError(f"An image of {image.shape[0]} channels cannot be drawn; 1 and 3 can.")
    span = high - low if high > low else 1.0
    pixels = np.clip(np.rint((image.astype(np.float64) - low) / span * 255), 0, 255).astype(np.uint8)
    return _png(Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)))


def overlay(mask: NDArray[np.bool_]) -> bytes:  # h w
    """Flagged pixels in one colour, all others clear."""
    import numpy as np
    from PIL import Image

    pixels = np.zeros((*mask.shape, 4), dtype=np.uint8)
    pixels[mask] = (*FLAG, 190)
    return _png(Image.fromarray(pixels, "RGBA"))


def _png(image: Any) -> bytes:
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE))
    held = io.BytesIO()
    image.save(held, "PNG", optimize=True)
    return held.getvalue()


def render(told: Translation) -> str:
    """The whole page, as text."""
    from markupsafe import Markup

    from assay.report.page import TEMPLATES, environment

    script = (TEMPLATES / "translation.js").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("translation.html")
        .render(
            told=told,
            verdict=in_words(told),
            no_uncertainty=NO_UNCERTAINTY,
            rows=[_row(each, told) for each in told.pictures],
            review=None if told.review is None else _review(told.review),
            scores=list(_scores(told)),
            settings=[(name.replace("_", " "), f"{value:g}" if isinstance(value, float) else str(value))
                      for name, value in told.settings.items()],
            losses=[f"{each[-1]:.3g}" for each in told.losses],
            footer=[("Made", words.moment(told.when)), ("Seed", str(told.seed)),
                    ("With", ", ".join(f"{k} {v}" for k, v in told.environment.items() if k in ("assay", "torch")))],
            script=Markup(script),
            script_hash=base64.b64encode(sha256(script.encode()).digest()).decode("ascii"),
        )
    )  # fmt: skip


def in_words(told: Translation) -> str:
    """The sentence that a reader needs."""
    s, many = told.scores, f"{told.members} networks" if told.members > 1 else "one network"
    said = f"{many[0].upper()}{many[1:]}, trained on {told.trained_on:,} pairs"
    if s.error is not None and s.root is not None and s.blind is not None:
        said += (
            f": on {told.tested_on:,} test images a pixel is {s.error:.3g} off on average (root mean square "
            f"{s.root:.3g}; always the mean training image: {s.blind:.3g})"
        )
    else:
        said += f", asked about {told.tested_on:,} test images whose truth nobody gave"
    if told.review is None:
        return f"{said}. There is {NO_UNCERTAINTY}: one network has no spread. Train 3 or more."
    if s.area is not None:
        said += f". Its spread finds wrong pixels with a partial area of {s.area:.3f} (0.02 by chance, at most 0.2)"
    return f"{said}."


def _scores(told: Translation) -> list[tuple[str, str, str]]:
    s = told.scores
    rows = [
        ("Mean error of a pixel", s.error, "of values from 0 to 1"),
        ("Root mean squared error", s.root, f"the mean training image has {s.blind:.3g}" if s.blind else ""),
        ("Correlation with the truth", s.correlation, "Pearson's, mean over images"
         + (f"; of {s.undefined} images it is undefined and not counted" if s.undefined else "")),
        ("Wrong pixels", s.wrong, f"share whose error is above {told.tolerance:g}"),
        ("Spread finds wrong pixels", s.area, "area under the ROC curve up to 20 % false alarms: 0.02 by chance, at "
         "most 0.2"),
        ("Spread goes with the error", s.rank, "Spearman's rank correlation, mean over images"),
    ]  # fmt: skip
    return [(name, f"{value:.3g}", about) for name, value, about in rows if value is not None]


def _review(review: Review) -> dict[str, Any]:
    """The chosen threshold, and all of them as data for the slider."""
    chosen = min(range(len(review.thresholds)), key=lambda i: abs(review.thresholds[i] - review.threshold))
    return {
        "chosen": chosen,
        "last": len(review.thresholds) - 1,
        "threshold": review.thresholds[chosen],
        "flagged": review.flagged[chosen],
        "found": None if review.found is None else review.found[chosen],
        "hits": None if review.hits is None else review.hits[chosen],
        "thresholds": " ".join(f"{t:.6g}" for t in review.thresholds),
        "flagged_all": " ".join(f"{t:.4f}" for t in review.flagged),
        "found_all": "" if review.found is None else " ".join(f"{t:.4f}" for t in review.found),
        "hits_all": "" if review.hits is None else " ".join(f"{t:.4f}" for t in review.hits),
    }


def _row(each: Pictures, told: Translation) -> Row:
    panels = [Shown("source", _uri(each.source), f"What {each.name} shows", "")]
    if each.truth is not None:
        panels.append(Shown("truth", _uri(each.truth), f"The true answer to {each.name}", ""))
    over = "" if each.flagged is None else _uri(each.flagged)
    panels.append(Shown("mean", _uri(each.mean), f"The predicted answer to {each.name}, flagged pixels marked", over))
    if each.spread is not None:
        panels.append(Shown(f"spread, white is {told.widest:.3g}", _uri(each.spread), f"Spread for {each.name}", ""))
    if each.error is not None:
        panels.append(Shown(f"error, white is {told.largest:.3g}", _uri(each.error), f"Error for {each.name}", ""))
    return Row(each.name, panels, "" if each.spread is None else _uri(each.spread), each.regions)


def _uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
