"""Which rows somebody means, of as many as there are, without a list of them all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def rows_at(indices: Any, n: int) -> NDArray[np.int64]:  # k -> k
    """`np.arange(n)[indices]`, which takes the time and the memory of n rows: here those that are meant.

    Negative ones count from the end; slices and true or false for each row are understood as numpy does.
    """
    rows = np.asarray(indices) if not isinstance(indices, slice) else None
    if rows is None or rows.ndim != 1 or rows.dtype.kind not in "iu":
        found: NDArray[np.int64] = np.arange(n)[indices]
        return found
    wide = rows.astype(np.int64)
    wrong = np.flatnonzero((wide < -n) | (wide >= n))
    if len(wrong):
        raise IndexError(f"index {wide[wrong[0]]} is out of bounds for {n} rows")
    return np.where(wide < 0, wide + n, wide)
