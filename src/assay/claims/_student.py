"""A number of several trainings, none of which shares its inputs with another: its mean with Student's interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from assay.finding import Better, Measure


def of_seeds(
    name: str,
    values: Sequence[float] | NDArray[np.float64],
    *,
    better: Better = "neither",
    unit: str = "",
    share: bool = False,
) -> Measure:
    """The mean over trainings, values n -> Measure; the interval of a share ends at 0 and 1, and one value has none."""
    v = np.asarray(values, dtype=np.float64)
    at = float(v.mean())
    half = float(student.ppf(0.975, len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else 0.0
    low, high = (max(0.0, at - half), min(1.0, at + half)) if share else (at - half, at + half)
    return Measure(name=name, value=at, low=low, high=high, n=len(v), better=better, unit=unit)
