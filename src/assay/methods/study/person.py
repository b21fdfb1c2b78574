r"""How much of a result is the person's: what varies between tuners, of all that varies between single results.

    x_ij = mu + person_i + seed noise_ij,   i = 1..k,  j = 1..m;   MSB, MSW: mean squares between and within persons
    share = (MSB - MSW) / (MSB + (m - 1) MSW),    F = MSB / MSW ~ F(k - 1, k (m - 1)) where nobody differs
    interval: (F / F_up - 1) / (F / F_up + m - 1) to (F / F_low - 1) / (F / F_low + m - 1)

0: whoever tunes, results differ by the seed alone. 1: by the tuner alone. Below 0 where persons differ less than seeds.

Source: the intraclass correlation ICC(1, 1), Shrout and Fleiss, Psychol. Bull. 1979, on the ten trainings that Anand et
    al., BMVC 2020, sec. 7.2.2 make of each participant's final configuration.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import ShapeError


class Share(NamedTuple):
    """The share with its 95 % interval; None where nothing varies."""

    value: float | None
    low: float | None
    high: float | None
    between: float
    """The standard deviation between persons' means, in the unit of the results."""
    within: float
    """The standard deviation between seeds of one person."""


def person_share(results: ArrayLike) -> Share:  # k m
    """The person's share of results, one row for each person, one column for each seed."""
    from scipy.stats import f

    x = np.asarray(results, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] < 2 or x.shape[1] < 2 or not np.isfinite(x).all():
        raise ShapeError(f"person_share got results of shape {x.shape}; give two or more seeds of two or more persons.")
    k, m = x.shape
    between = m * float(x.mean(1).var(ddof=1))
    within = float(x.var(axis=1, ddof=1).mean())
    spread = (float(x.mean(1).std(ddof=1)), within**0.5)
    if between + within == 0:
        return Share(None, None, None, *spread)
    if within == 0:
        return Share(1.0, 1.0, 1.0, *spread)
    ratio, free = between / within, (k - 1, k * (m - 1))

    def share(r: float) -> float:
        return float((r - 1) / (r + m - 1))

    low, high = (share(ratio / float(f.ppf(q, *free))) for q in (0.975, 0.025))
    return Share(share(ratio), low, high, *spread)
