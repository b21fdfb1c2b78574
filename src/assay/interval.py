"""Intervals: what a number of some inputs may be of all, and how a difference between two models lies.

The records of the ledger hang on this file (jobs/claims.py): another interval may be another verdict. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from assay.errors import AssayError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
KEPT = 500_000  # counts of a bootstrap, 4 MB, that are kept for the next with the same rows and seed
_Z = 1.959963984540054  # the normal quantile that belongs to CONFIDENCE


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The Wilson score interval of a proportion (Wilson 1927): never outside [0, 1], sensible at 0 and n hits."""
    if n == 0:
        raise AssayError("A proportion of 0 inputs has no interval; give at least one input.")
    p, z2 = hits / n, _Z * _Z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == n else min(1.0, centre + half)
    return low, high


def paired_difference(
    a: NDArray[np.float64], b: NDArray[np.float64], *, seed: int = 0, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:  # n, n
    """Mean of b - a with its interval: of right or wrong the adjusted Wald interval for paired proportions (Bonett &
    Price, J. Educ. Behav. Stat. 2012), else the bootstrap's, which is of 95 %."""
    import numpy as np

    gain, n = b - a, len(a)
    if np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        up, down = (float((gain == side).sum() + 1) / (n + 2) for side in (1, -1))
        z = _Z if confidence == CONFIDENCE else NormalDist().inv_cdf((1 + confidence) / 2)
        half = z * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
        low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    else:
        low, high = bootstrap(lambda counts: counts @ gain / n, n, seed=seed)
    return float(gain.mean()), low, high


def bootstrap(
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]], n: int, *, seed: int, draws: int = 1000
) -> tuple[float, float]:
    """The percentile interval of `statistic`, a function of resampling weights.  # draws n -> draws

    A resample of n rows is n counts that sum to n; a statistic written on counts serves all draws in one product.
    """
    import numpy as np

    drawn = _resamples(n, seed, draws) if n * draws <= KEPT else _resampled(n, seed, draws)
    parts = [statistic(counts) for counts in drawn]
    low, high = np.quantile(np.concatenate(parts), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _resampled(n: int, seed: int, draws: int) -> Iterator[NDArray[np.float64]]:  # -> rows n, draws of them in all
    """How often each of n rows comes in each resample, some 32 MB of counts at a time."""
    import numpy as np

    rng = np.random.default_rng(seed)
    rows = max(1, min(draws, 4_000_000 // max(n, 1)))
    few = max(1, 16_000 // max(n, 1))  # as many as a processor keeps at hand while it counts them
    for start in range(0, draws, rows):
        counts = np.empty((min(rows, draws - start), n))
        for at in range(0, len(counts), few):
            part = counts[at : at + few]
            picked = rng.integers(0, n, size=part.shape)
            picked += n * np.arange(len(part))[:, None]
            part[:] = np.bincount(picked.ravel(), minlength=part.size).reshape(part.shape)
        counts.flags.writeable = False
        yield counts


@lru_cache(maxsize=4)
def _resamples(n: int, seed: int, draws: int) -> tuple[NDArray[np.float64], ...]:
    """All of them, kept: an audit takes the means of many measures over the same few inputs with the same seed."""
    return tuple(_resampled(n, seed, draws))
