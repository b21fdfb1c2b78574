r"""How often impostors get in and genuine ones do not, at every threshold.

    FAR(t) = share of impostors with score > t,     FRR(t) = share of genuine with score <= t

The equal error rate is (FAR + FRR) / 2 at the threshold where the two are closest. Intervals of shares are exact
(Clopper & Pearson, Biometrika 1934): they hold at any number of inputs, also where no error was seen. Then the upper
end of a one-sided one of 95 % is 1 - 0.05^(1/n), about 3 / n: the rule of three (Hanley & Lippman-Hand, JAMA 1983).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

Array = NDArray[np.float64]
LEVEL = 0.95


class Rates(NamedTuple):
    threshold: Array  # t, ascending
    far: Array  # t
    frr: Array  # t


def exact_interval(hits: NDArray[np.int64] | int, n: int, level: float = LEVEL) -> tuple[Array, Array]:  # t, n
    """The Clopper-Pearson interval of each count of n."""
    from scipy.stats import beta

    count = np.asarray(hits)
    if n < 1 or (count < 0).any() or (count > n).any():
        raise AssayError(f"A share of {hits} of {n} inputs has no interval; give 0 to n of at least 1.")
    tail = (1 - level) / 2
    low = np.where(count > 0, beta.ppf(tail, np.maximum(count, 1), n - count + 1), 0.0)
    high = np.where(count < n, beta.ppf(1 - tail, count + 1, np.maximum(n - count, 1)), 1.0)
    return low, high


def rates(genuine: Array, impostor: Array, thresholds: Array | None = None) -> Rates:  # g, i, t
    """Both rates at these thresholds; at every score, and below the least, where none are given."""
    genuine, impostor = np.sort(np.asarray(genuine, float)), np.sort(np.asarray(impostor, float))
    if not len(genuine) or not len(impostor):
        raise AssayError(
            f"Rates want both sides, and got {len(genuine)} genuine and {len(impostor)} impostors; give some."
        )
    if thresholds is None:
        scores = np.unique(np.concatenate([genuine, impostor]))
        thresholds = np.concatenate([[scores[0] - 1.0], scores])
    t = np.asarray(thresholds, dtype=np.float64)
    far = 1 - np.searchsorted(impostor, t, side="right") / len(impostor)
    frr = np.searchsorted(genuine, t, side="right") / len(genuine)
    return Rates(t, far, frr)


def equal_error_rate(genuine: Array, impostor: Array) -> float:  # g, i
    r = rates(genuine, impostor)
    at = int(np.abs(r.far - r.frr).argmin())
    return float(r.far[at] + r.frr[at]) / 2


def equal_error_interval(genuine: Array, impostor: Array) -> tuple[float, float]:  # g, i
    """Where the lower ends of both rates' exact intervals cross, and where the upper ones do.

        low = max_t min(FAR_low(t), FRR_low(t)),     high = min_t max(FAR_high(t), FRR_high(t))

    A bootstrap would say that two sides which do not overlap never will.
    """
    r = rates(genuine, impostor)
    far, frr = (
        exact_interval(np.rint(each * n).astype(np.int64), n)
        for each, n in ((r.far, len(impostor)), (r.frr, len(genuine)))
    )
    return float(np.minimum(far[0], frr[0]).max()), float(np.maximum(far[1], frr[1]).min())


def rule_of_three(n: int) -> float:
    """What a rate may still be, with 95 % confidence, where none of n erred."""
    return float(1 - (1 - LEVEL) ** (1 / n))
