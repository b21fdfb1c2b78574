r"""How well an uncertainty ranks pixels: whether those that are strange, or wrong, come first.

    S_1 the positive pixels, S_2 the k pixels of the largest uncertainty U
    TP@k = |S_1 & S_2|,   precision@k = TP@k / k,   recall@k = TP@k / |S_1|
    partial AUC = area under the ROC curve for false-positive rates up to `most`, not normalised

so that at most=0.2 a perfect ranking has 0.2 and a random one 0.02 on average; at most=1 it is the usual AUROC. People
look at few false alarms, so that what comes later does not count.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021, sec. 5.3. scikit-learn's `max_fpr` gives another
    number, McClish's, which is stretched to 0.5 and 1.

Ties are broken at random: by any fixed order a map that says nothing could look as if it knew. Only the order of U
counts, so that a strictly increasing change of it changes nothing. Every row of an array is ranked by itself; pool
pixels of many images by making them one row. What is neither positive nor negative is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError

MOST = 0.2
Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]


class Ranking(NamedTuple):
    """Pixels by falling uncertainty, the most uncertain first; of those left out neither is true."""

    positive: Masks  # ... p
    negative: Masks  # ... p
    order: NDArray[np.int64]  # ... p: where each stood before


class Found(NamedTuple):
    """What lies among the first k; NaN where there is nothing to find."""

    hits: NDArray[np.int64]  # ...
    precision: Floats  # ...
    recall: Floats  # ...


def ranked(
    u: NDArray[np.floating], positive: Masks, *, rng: np.random.Generator, counted: Masks | None = None
) -> Ranking:  # ... p, ... p
    """Rank the pixels of each row by U, ties at random; `counted` leaves pixels out."""
    if u.shape != positive.shape or (counted is not None and counted.shape != u.shape):
        raise ShapeError(f"ranked got U of shape {u.shape} and positives of shape {positive.shape}; give one for each.")
    if not np.isfinite(u).all():
        raise AssayError("An uncertainty holds NaN or infinity, which has no rank; mend what it was made of.")
    order = np.lexsort((rng.random(u.shape), -u.astype(np.float64)), axis=-1)
    counted = np.ones(u.shape, dtype=bool) if counted is None else counted
    return Ranking(
        np.take_along_axis(positive & counted, order, -1), np.take_along_axis(~positive & counted, order, -1), order
    )


def partial_auc(ranking: Ranking, most: float = MOST) -> Floats:  # ... p -> ...
    """The area for false-positive rates up to `most`; NaN where there are no positives, or nothing else."""
    if not 0 < most <= 1:
        raise AssayError(f"partial_auc got most={most}; it is a false-positive rate, above 0 and up to 1.")
    hits, strangers = ranking.positive.sum(-1), ranking.negative.sum(-1)  # ...
    before = ranking.negative.cumsum(-1) - ranking.negative  # negatives ahead of each pixel
    width = np.clip(most * strangers[..., None] - before, 0, 1) * ranking.negative  # in units of one negative
    area = (width * ranking.positive.cumsum(-1)).sum(-1)
    return _over(area, hits.astype(np.float64) * strangers)


def resampled_areas(
    ranking: Ranking, image: NDArray[np.int64], counts: Floats, most: float = MOST
) -> Floats:  # p, p, draws n -> draws
    """The partial areas of one pooled ranking where the images come so often as `counts` says: for a bootstrap.

    `image` says of which image each pixel of the ranking is. NaN where a draw has no positives, or nothing else.
    """
    areas = np.full(len(counts), np.nan)
    for draw, count in enumerate(counts):
        weight = count[image]
        hits, strangers = weight * ranking.positive, weight * ranking.negative
        total = hits.sum() * strangers.sum()
        if total > 0:
            room = most * strangers.sum() - (strangers.cumsum() - strangers)
            areas[draw] = (np.clip(room, 0, strangers) * hits.cumsum()).sum() / total
    return areas


def found_at(ranking: Ranking, k: int | NDArray[np.int64]) -> Found:  # ... p, ... -> ...
    """What lies among the first k of those that count; k may differ from row to row."""
    there = (ranking.positive | ranking.negative).cumsum(-1)
    k = np.broadcast_to(np.asarray(k, dtype=np.int64), there.shape[:-1])
    if there.size == 0 or (k < 1).any() or (k > there[..., -1]).any():
        raise AssayError(f"k={k.tolist()} is no number of pixels to look at; give 1 to as many as there are.")
    hits = (ranking.positive & (there <= k[..., None])).sum(-1)
    return Found(hits, hits / k, _over(hits.astype(np.float64), ranking.positive.sum(-1).astype(np.float64)))


def roc(ranking: Ranking, points: int = 101, most: float = 1.0) -> tuple[Floats, Floats]:  # p -> k, k
    """False-positive rates up to `most` and the share of positives found there, of one ranking, for the eye."""
    positives, negatives = ranking.positive.sum(), ranking.negative.sum()
    if not positives or not negatives:
        raise AssayError("A ranking without positives, or of nothing else, has no curve; look at partial_auc first.")
    at = np.searchsorted(ranking.negative.cumsum(), np.floor(np.linspace(0, most, points) * negatives + 1e-9) + 0.5)
    hits = np.concatenate([[0], ranking.positive.cumsum()])[at]
    return np.linspace(0, most, points), hits / positives


def _over(top: Floats, bottom: Floats) -> Floats:
    share: Floats = np.divide(top, bottom, out=np.full(np.shape(bottom), np.nan), where=bottom > 0)
    return share
