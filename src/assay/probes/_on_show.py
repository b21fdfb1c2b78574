"""One input on show: a picture, the text as it was written, the cells of a row, or its first values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.data.texts import Texts
from assay.finding import Exhibit
from assay.inputs.show import Cells

if TYPE_CHECKING:
    from torch import Tensor

    from assay.subject import Data, Subject

CELLS = 8  # of a row
LONGEST = 300  # characters of a text


def on_show(subject: Subject, data: Data, place: int, x: Tensor, caption: str) -> Exhibit:  # *d
    """The input `x`, which stands at this place of the data, with what there is to say about it."""
    if subject.inputs.is_picture:
        return Exhibit.of(place, caption, x.numpy(), low=subject.inputs.low, high=subject.inputs.high)
    return Exhibit(index=place, caption=f"{caption}. {in_words(subject, data, place, x)}", panels=())


def in_words(subject: Subject, data: Data, place: int, x: Tensor) -> str:  # *d
    whole = getattr(data, "whole", data)
    if isinstance(whole, Texts):
        (text,) = whole.strings(np.array([place]))
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    shown = subject.kind.show(x) if subject.kind is not None else None
    if isinstance(shown, Cells):
        cells = [f"{name} {value}" for name, value in shown.cells]
    else:
        cells = [f"{value:.3g}" for value in x.flatten()[: CELLS + 1].tolist()]
    return ", ".join(cells[:CELLS]) + (", ..." if len(cells) > CELLS else "")
