"""The inputs that a classifier gets wrong, the surest first, to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay.finding import Exhibit, Gallery

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.finding import Table
    from assay.subject import Subject


def mistakes(
    subject: Subject, samples: Table, wrong: NDArray[np.bool_], most: int, title: str, says: str = ""
) -> tuple[Gallery, ...]:  # n
    """Those of the `samples` that are `wrong`: label, what was said instead, and with what confidence; of pictures."""
    told: dict[str, NDArray[Any]] = dict(samples.columns)
    shown = np.flatnonzero(wrong)[np.argsort(-told["confidence"][wrong], kind="stable")][:most]
    if not subject.inputs.is_picture or not len(shown):
        return ()
    names, x = subject.task.classes, subject.data[samples.split].take(told["index"][shown])[0].numpy()
    exhibits = tuple(
        Exhibit.of(
            int(told["index"][i]),
            f"{names[told['label'][i]]}, said {names[told['said'][i]]} with {100 * told['confidence'][i]:.1f} %",
            image,
            low=subject.inputs.low,
            high=subject.inputs.high,
        )
        for i, image in zip(shown, x, strict=True)
    )
    return (Gallery(name="mistakes", title=title, exhibits=exhibits, says=says),)
