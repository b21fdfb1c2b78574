r"""The exact interval of a proportion: it covers at least as often as it says, however rare the event.

    low  = quantile alpha/2     of Beta(h, n - h + 1)        0 where h = 0
    high = quantile 1 - alpha/2 of Beta(h + 1, n - h)        1 where h = n

Wilson's interval covers 95 % on average, and less for some rare events: of answers that hardly ever change every count
is one of a rare event.

Source: Clopper & Pearson, Biometrika 26(4), 1934.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError

ALPHA = 0.05


def exact(
    hits: ArrayLike, n: ArrayLike, alpha: float = ALPHA
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # ..., ... -> ..., ...
    """The lower and the upper end for each count of `hits` among `n`."""
    from scipy.special import betaincinv  # the quantiles of beta laws; scipy.stats is slow to import

    h, m = np.asarray(hits, dtype=np.float64), np.asarray(n, dtype=np.float64)
    if not ((h >= 0) & (h <= m) & (m >= 1)).all():
        raise AssayError(f"exact got {hits!r} hits among {n!r}; give counts from 0 to n, and n of at least 1.")
    low = np.where(h > 0, betaincinv(np.maximum(h, 1), m - h + 1, alpha / 2), 0.0)
    high = np.where(h < m, betaincinv(h + 1, np.maximum(m - h, 1), 1 - alpha / 2), 1.0)
    return low, high
