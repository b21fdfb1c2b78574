r"""How closely two images go together, each pair by itself: Pearson's correlation and Spearman's, over pixels.

    r(a, b) = sum (a - mean a)(b - mean b) / sqrt( sum (a - mean a)^2  sum (b - mean b)^2 )

Spearman's is the same of the ranks, ties at their mean rank. Where one of the two is even, r is undefined: NaN, which
is to be told and not to be counted as 0.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021, sec. 5.3 (Pearson, image by image).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.errors import ShapeError

Floats = NDArray[np.float64]


def pearson(a: NDArray[np.floating], b: NDArray[np.floating]) -> Floats:  # n *d, n *d -> n
    """One number for each pair; NaN where one of the two is even, up to rounding."""
    a, b = _flat(a, b)
    even = _is_even(a) | _is_even(b)
    wide_a, wide_b = (each.astype(np.float64) - each.mean(1, dtype=np.float64, keepdims=True) for each in (a, b))
    both = np.sqrt((wide_a**2).sum(1)) * np.sqrt((wide_b**2).sum(1))
    r: Floats = np.divide((wide_a * wide_b).sum(1), both, out=np.full(len(a), np.nan), where=~even & (both > 0))
    return r.clip(-1, 1)


def spearman(a: NDArray[np.floating], b: NDArray[np.floating]) -> Floats:  # n *d, n *d -> n
    """The same of the ranks: how far one goes up where the other does, however fast."""
    from scipy.stats import rankdata

    a, b = _flat(a, b)
    even = _is_even(a) | _is_even(b)
    r = pearson(rankdata(a, axis=1), rankdata(b, axis=1)) if a.shape[1] else np.full(len(a), np.nan)
    return np.where(even, np.nan, r)


def _flat(a: NDArray[np.floating], b: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    if a.shape != b.shape or a.ndim < 2:
        raise ShapeError(f"Images of shape {a.shape} and {b.shape} cannot be laid beside each other; give (n, ...).")
    return a.reshape(len(a), -1), b.reshape(len(b), -1)


def _is_even(a: NDArray[np.floating]) -> NDArray[np.bool_]:  # n p -> n
    """All pixels the same, up to rounding of a number of their size."""
    if not a.shape[1]:
        return np.ones(len(a), dtype=bool)
    kind = a.dtype if a.dtype.kind == "f" else np.dtype(np.float64)
    most = np.maximum(np.abs(a.max(1)), np.abs(a.min(1))).astype(np.float64)
    even: NDArray[np.bool_] = (a.max(1) - a.min(1)).astype(np.float64) <= 4 * np.finfo(kind).eps * most
    return even
