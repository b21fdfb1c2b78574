r"""The maximum calibration error: how far off confidence is in its worst bin.

    MCE = max_j | mean o_j - mean s_j |      over equal bins ( (j-1)/B, j/B ] that hold inputs

A bin of one input is nearly always far off, so that the plain maximum says little: with it come the floor, the mean of
the maximum where outcomes are drawn with their scores as chances, and an interval for the largest true gap, from
intervals that hold in all bins at once: with [l_j, h_j] the exact interval of the chance in bin j at level 1 - 0.05/b

    [ max_j max(0, l_j - s_j, s_j - h_j),   max_j max(h_j - s_j, s_j - l_j) ]

Source: Naeini, Cooper & Hauskrecht, AAAI 2015; Guo et al., ICML 2017, arXiv:1706.04599, eq. 5. Exact intervals:
    Clopper & Pearson, Biometrika 1934; that all hold at once: Bonferroni.
Adds to print: floor and interval. The interval takes the outcomes of a bin for draws with one chance; with several
    chances they vary less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import AssayError
from assay.methods.uncertainty.calibration import BINS, equal_bins
from assay.methods.uncertainty.probabilities import pairs


class MaximumError(NamedTuple):
    value: float
    low: float
    high: float
    floor: float
    """What a perfectly calibrated model with the same scores shows on average."""
    bin: int
    """Which bin is the worst, from 0."""
    inputs: int
    """How many it holds."""


def maximum_error(
    scores: ArrayLike, outcomes: ArrayLike, *, bins: int = BINS, draws: int = 250, seed: int = 0
) -> MaximumError:  # n in [0, 1], n of 0 or 1
    """The largest gap of a bin, with its (at least) 95 % interval and its floor."""
    from scipy.special import betaincinv  # the quantiles of beta laws; scipy.stats is slow to import

    if draws < 1:
        raise AssayError(f"maximum_error got draws={draws}; the floor is a mean of at least 1, and 250 is usual.")
    score, hit = pairs(scores, outcomes)
    at = equal_bins(score, bins)
    held = np.unique(at)
    at = np.searchsorted(held, at)
    b = len(held)
    count = np.bincount(at, minlength=b)
    said, rate = (np.bincount(at, v, b) / count for v in (score, hit))
    gap = np.abs(rate - said)
    hits, tail = np.bincount(at, hit, b), 0.025 / b
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), count - hits + 1, tail), 0.0)
    high = np.where(hits < count, betaincinv(hits + 1, np.maximum(count - hits, 1), 1 - tail), 1.0)
    rng = np.random.default_rng(seed)
    floors = []
    for _ in range(draws):
        came = np.bincount(at, rng.random(len(score)) < score, b) / count
        floors.append(np.abs(came - said).max())
    worst = int(gap.argmax())
    return MaximumError(
        float(gap[worst]),
        float(np.maximum(0, np.maximum(low - said, said - high)).max()),
        float(np.maximum(high - said, said - low).max()),
        float(np.mean(floors)),
        int(held[worst]),
        int(count[worst]),
    )
