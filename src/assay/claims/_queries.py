"""What searches with several seeds find, with intervals that resample seeds and, in each, its queries."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.claim import Held
from assay.finding import CONFIDENCE, Measure

DRAWS = 2000
Array = NDArray[np.float64]


def over_queries(name: str, seen: Array, *, seed: int = 0, unit: str = "%") -> Measure:  # s q
    """The mean; each draw takes seeds, and of each its queries, with repetition."""
    rng, (seeds, queries) = np.random.default_rng(seed), seen.shape
    drawn = np.zeros(DRAWS)
    for _ in range(seeds):
        own = seen[rng.integers(0, seeds, DRAWS)]  # draws q
        drawn += np.take_along_axis(own, rng.integers(0, queries, own.shape), 1).mean(1) / seeds
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Measure(
        name=name, value=float(seen.mean()), low=float(low), high=float(high), better="higher", n=seen.size, unit=unit
    )


def above(*gaps: Measure) -> Held:
    """holds: every interval lies above 0. fails: one lies below."""
    if all((gap.low or 0.0) > 0 for gap in gaps):
        return "holds"
    return "fails" if any((gap.high or 0.0) < 0 for gap in gaps) else "cannot tell"


def points(gap: Measure) -> str:
    return f"{100 * (gap.value or 0):+.1f} ({100 * (gap.low or 0):+.1f} to {100 * (gap.high or 0):+.1f})"


@torch.no_grad()
def found_first(items: Tensor, kinds: Tensor, queries: Tensor, asked: Tensor) -> Array:  # g d, g, n d, n -> n
    """1 where the item nearest to a query by the cosine is of its kind."""
    nearest = (F.normalize(queries, dim=1) @ F.normalize(items, dim=1).T).argmax(1)
    found: Array = (kinds[nearest] == asked).double().cpu().numpy()
    return found
