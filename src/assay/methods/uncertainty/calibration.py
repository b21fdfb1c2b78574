r"""Calibration error by five estimators, each with an interval and the value that a perfectly calibrated model shows.

    ECE   = E_s | P(o = 1 | s) - s |                      s a score, o what came of it (0 or 1)
    ECE_W = (1/n) sum_j | sum_i W_ij (o_i - s_i) |        binned; the rows of W sum to 1
    ECE_d = \int | pi f(s | o=1) - s f(s) | ds            kernel density (density.py), pi = mean(o)

    legacy            B equal bins ( (j-1)/B, j/B ] of [0, 1], W_ij = 1 in the bin of s_i
    adaptive          bins of m = floor(n/B) scores: edge j halfway between sorted scores j m and j m + 1
    convex            equal bins, W linear between bin centres: s in [c_j, c_j+1] has
                      W_i,j = 1 - (s - c_j) / (c_j+1 - c_j) and W_i,j+1 = the rest; beyond c_1 and c_B all in that bin
    adaptive-convex   adaptive edges, W linear between their centres
    kde               both densities with the same bandwidth, mirrored at the ends of the support

Source: Posocco & Bonnefoy, "Estimating Expected Calibration Errors", 2021, eq. (1), def. 4-6, sec. 4.4-4.5; the legacy
    estimator is Guo et al., ICML 2017, arXiv:1706.04599, sec. 2; top-label calibration is Gupta & Ramdas, ICLR 2022.
Departs from print: (1) the printed convex weights are reversed, a score at c_j has no weight in bin j;
    `as_published=True` gives them. (2) c_j is (t_j-1 + t_j)/2, where print has a minus, and the edge index is
    j floor(n/B), where print has floor(n/j). (3) Scores of the top class lie in [1/k, 1]: densities are mirrored, and
    all bins but the legacy ones laid, there.
Adds to print: (1) the floor, the mean of the estimate when each outcome is drawn with exactly its score as its
    probability; at n = 500 a perfect model shows about 0.03, so an ECE means nothing without it. (2) The interval
    [v - b - 1.96 sd, v + 1.96 sd], b and sd the bootstrap's bias and standard deviation. Sampling inflates
    |acc - conf|, and resampling does so again by about as much: v lies too high by some b, which the lower end is owed,
    while the upper end may keep it. Where outcomes of a calibrated model reach v, the lower end is 0. It covered the
    truth in 95 % of the repeats on average (87 to 100 by estimator and law; five miscalibrated laws, all five
    estimators at n = 500 and three at n = 2000, 60 to 150 repeats each) and in 95 to 98 % for calibrated models. The
    basic interval [2v - q_high, 2v - q_low] covered 90 % (80 to 97), the percentile interval fewer still. No interval
    knows what lies below a bin's or a kernel's width.
    Edges and bandwidth are those of the sample. Beyond `WHOLE` inputs, scores that share a bin and a cell of the grid
    are resampled as one, by multinomial counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.density import (
    GRID,
    Bandwidth,
    between,
    density_error,
    gap,
    on_grid,
    smooth,
    spectrum,
    sums,
    width_of,
)
from assay.methods.uncertainty.probabilities import (
    Floats,
    Ints,
    Reals,
    Support,
    check_simplex,
    check_support,
    in_unit,
    labels_of,
    pairs,
    probabilities_of,
    taken,
)

Estimator = Literal["legacy", "adaptive", "convex", "adaptive-convex", "kde"]
ESTIMATORS: tuple[Estimator, ...] = ("legacy", "adaptive", "convex", "adaptive-convex", "kde")
Kind = Literal["confidence", "class-wise", "top-label"]
Bins = int | Literal["sqrt"] | None

BINS = 15  # where nobody says, or one for each input where there are fewer
FEW = 30  # inputs below which no estimator is worth much
FLOOR = 250  # draws that the floor is a mean of, if there are as many
BLOCK = 8192  # inputs that are worked on at once, so that they stay in the cache
NORMAL = 1.959964  # standard deviations to either side that hold 95 %
NEAR = 1e-7  # times B: a rounding of single precision is 6e-8
WHOLE = 50_000  # inputs up to which the bootstrap draws each by itself


class CalibrationError(NamedTuple):
    value: float
    low: float
    high: float
    floor: float
    """What a perfectly calibrated model with the same scores shows on average."""
    few: bool
    """Fewer than 30 inputs: no estimator can be trusted there."""


class Reliability(NamedTuple):
    """One entry per bin that is not empty."""

    confidence: Floats  # b: mean score
    accuracy: Floats  # b
    inputs: NDArray[np.int64]  # b: how many


@dataclass(frozen=True)
class Rule:
    """An estimator and its settings."""

    estimator: Estimator = "legacy"
    bins: Bins = None
    """How many, floor(sqrt(n)), or None: 15, or n where that is fewer."""
    bandwidth: Bandwidth = "silverman"
    """Standard deviation of the kernel."""
    as_published: bool = False

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise AssayError(f"calibration_error has no estimator {self.estimator!r}; name one of {ESTIMATORS}.")
        if self.bins not in (None, "sqrt") and not (isinstance(self.bins, int | np.integer) and self.bins >= 1):
            raise AssayError(f"calibration_error got bins={self.bins!r}; it wants at least 1, or 'sqrt'.")
        if self.bandwidth != "silverman" and not (isinstance(self.bandwidth, float | int) and self.bandwidth > 0):
            raise AssayError(
                f"calibration_error got bandwidth={self.bandwidth!r}; it wants a number above 0, or 'silverman'."
            )

    def bins_of(self, n: int) -> int:
        if self.bins is None:
            return min(BINS, n)
        if self.bins == "sqrt":
            return int(n**0.5)
        return min(self.bins, n) if self.estimator.startswith("adaptive") else self.bins  # a small class has few to cut


def calibration_error(
    scores: ArrayLike,
    outcomes: ArrayLike,
    *,
    estimator: Estimator = "legacy",
    kind: Kind = "confidence",
    bins: Bins = None,
    bandwidth: Bandwidth = "silverman",
    support: Support | None = None,
    logits: bool = False,
    as_published: bool = False,
    draws: int = 1000,
    seed: int = 0,
) -> CalibrationError:  # scores: n in [0, 1], outcomes: n, 0 or 1;  or scores: n k, outcomes: n labels
    """The expected calibration error with its (nominal) 95 % bootstrap interval and the floor of a calibrated model.

    Of n x k probabilities with labels, `kind` says which error: that of the top score ("confidence"), the mean over
    the classes of the error of each class's score ("class-wise"), or that of the top score within the inputs of each
    predicted class ("top-label"). `support` is where densities are mirrored and bins laid, [0, 1] for n scores.
    """
    rule = Rule(estimator, bins, bandwidth, as_published)
    if draws < 2:
        raise AssayError(f"calibration_error got draws={draws}; an interval wants at least 2, and 1000 is usual.")
    groups, n = groups_of(scores, outcomes, rule, kind, support, logits)
    value = _value(groups, rule, n)
    resampled, calibrated = _resample(groups, rule, n, draws, np.random.default_rng(seed))
    bias, spread = float(resampled.mean()) - value, NORMAL * float(resampled.std(ddof=1))
    plausible = value <= float(np.quantile(calibrated, 0.975))  # that the model is calibrated: then 0 must be inside
    low = 0.0 if plausible else min(value, max(0.0, value - bias - spread))
    return CalibrationError(value, low, value + spread, float(calibrated.mean()), n < FEW)


def ece(
    scores: ArrayLike,
    outcomes: ArrayLike,
    *,
    estimator: Estimator = "legacy",
    kind: Kind = "confidence",
    bins: Bins = None,
    bandwidth: Bandwidth = "silverman",
    support: Support | None = None,
    logits: bool = False,
    as_published: bool = False,
) -> float:
    """The value of `calibration_error` alone, without resampling."""
    rule = Rule(estimator, bins, bandwidth, as_published)
    groups, n = groups_of(scores, outcomes, rule, kind, support, logits)
    return _value(groups, rule, n)


def bin_weights(
    scores: ArrayLike,
    *,
    estimator: Estimator = "legacy",
    bins: Bins = None,
    support: Support = (0.0, 1.0),
    as_published: bool = False,
) -> Floats:  # n -> n b
    """W of a binned estimator. Each row sums to 1."""
    score, rule = in_unit(scores), Rule(estimator, bins, as_published=as_published)
    if estimator == "kde":
        raise AssayError("bin_weights got estimator='kde', which has no bins; name one of the other four.")
    at, share = (v[0] for v in _bins(score[None], rule, check_support(support, score)))
    rows, weights = np.arange(len(score)), np.zeros((len(score), rule.bins_of(len(score)) + 1))
    weights[rows, at], weights[rows, at + 1] = 1 - share, share
    return weights[:, :-1]  # beyond the last centre nothing is shared


def reliability(confidence: ArrayLike, correct: ArrayLike, *, bins: int = BINS) -> Reliability:
    """Mean score and accuracy of each equal bin that holds anything."""
    score, hit = pairs(confidence, correct)
    at = equal_bins(score, bins)
    count = np.bincount(at, minlength=bins)
    full = count > 0
    mean = np.bincount(at, weights=score, minlength=bins)[full] / count[full]
    accuracy = np.bincount(at, weights=hit, minlength=bins)[full] / count[full]
    return Reliability(mean, accuracy, count[full])


def equal_bins(score: Floats, bins: int) -> Ints:  # ... -> ...
    """The bin ((b-1)/B, b/B] of each score, from 0; a score of 0 goes to the first.

    A score lies on the edge j/B if it is the number of double or of single precision that is nearest to j/B. Elsewhere
    the comparison is exact, while score * B alone rounds: 0.07 * 100 is above 7.
    """
    if bins < 1:
        raise AssayError(f"Got bins={bins}; give at least 1.")
    reach = NEAR * bins  # what rounding can have moved, in single precision too
    place = score * bins
    place += reach
    whole = np.floor(place)
    place -= whole
    at = whole.astype(np.intp, order="C")
    near = np.flatnonzero(place <= 2 * reach)  # around an edge j/B, and then `at` is j: there it is decided
    if len(near):
        flat = at.reshape(-1)
        j, here = flat[near], score.ravel()[near]
        mark = j / bins
        flat[near] = np.maximum(j - ((here <= mark) | (here == mark.astype(np.float32))), 0)
    return at


def estimate(score: Floats, outcome: Floats, rule: Rule, support: Support) -> Floats:  # r n, r n -> r
    """Each row's ECE. `outcome` may be a probability; nothing is checked."""
    if rule.estimator == "kde":
        return density_error(score, outcome, support, rule.bandwidth)
    n = score.shape[1]
    bins = rule.bins_of(n)
    if rule.estimator == "legacy":  # one weight a score: half of the work
        gaps = np.zeros((len(score), bins))
        ahead = bins * np.arange(len(score))[:, None]
        for start in range(0, n, BLOCK):
            s, o = score[:, start : start + BLOCK], outcome[:, start : start + BLOCK]
            at = equal_bins(s, bins)
            if len(s) > 1:
                at += ahead
            gaps += np.bincount(at.ravel(), (o - s).ravel(), gaps.size).reshape(gaps.shape)
    else:
        gaps = sums(*_bins(score, rule, support), outcome - score, bins)
    return np.asarray(np.abs(gaps).sum(1) / n)


# Which scores fall into which bins, and how much of each.


def _bins(score: Floats, rule: Rule, support: Support) -> tuple[Ints, Floats]:  # r n -> r n, r n
    """The left bin of each score and the share that goes to the bin after it."""
    low, high = support
    n = score.shape[1]
    count = rule.bins_of(n)
    if rule.estimator == "legacy":
        return equal_bins(score, count), np.zeros_like(score)
    if rule.estimator == "convex":
        at, share = between((score - low) / (high - low) * count - 0.5, count - 1)
    else:
        cut = n // count * np.arange(1, count)
        rank = np.sort(score, axis=1)
        inner = (rank[:, cut - 1] + rank[:, cut]) / 2  # r b-1
        if rule.estimator == "adaptive":
            return _below(inner, score, "left"), np.zeros_like(score)
        ends = np.full((len(score), 1), 1.0)
        edges = np.concatenate([low * ends, inner, high * ends], axis=1)
        centre = (edges[:, :-1] + edges[:, 1:]) / 2  # r b
        at = np.maximum(_below(centre, score, "right") - 1, 0)
        here = np.take_along_axis(centre, at, 1)
        width = np.take_along_axis(centre, np.minimum(at + 1, count - 1), 1) - here
        share = np.clip((score - here) / np.where(width > 0, width, np.inf), 0, 1)
    if rule.as_published:
        share = np.where(share > 0, 1 - share, 0.0)  # 0 only beyond the outer centres, but for a set of measure 0
    return at, share


def _below(marks: Floats, score: Floats, side: Literal["left", "right"]) -> Ints:  # r b, r n -> r n
    """How many of its row's sorted marks lie below each score ("right": or on it)."""
    rows = np.arange(len(score))[:, None]
    ahead = 2.0 * rows  # one sorted list for all rows
    found = np.searchsorted((marks + ahead).ravel(), (score + ahead).ravel(), side).reshape(score.shape)
    return np.asarray(found - rows * marks.shape[1])


# What is resampled.


class Group(NamedTuple):
    """Scores and outcomes that are binned together."""

    score: Floats  # n
    outcome: Floats  # n
    support: Support
    weight: float = 1.0
    rows: Ints | slice = slice(None)
    """Where they stand among the inputs."""


@dataclass(frozen=True)
class Cells:
    """What is resampled: each input, or in large groups all that share a bin, a cell of the grid and an outcome.

    In float32: a draw's rounding is some 1e-7 of the error, far below its noise.
    """

    score: Reals  # m
    count: Ints  # m
    bins: csr_array  # b m: W', or the grid's
    hits: csr_array  # b m: W' o
    base: csr_array  # b m: W' s, what W' o is expected to be; for a density W', the rest being done on the grid
    wave: Reals | None  # 1 g, the spectrum of a kernel
    support: Support

    @classmethod
    def of(cls, group: Group, rule: Rule, whole: bool) -> Cells:
        score, outcome, support, *_ = group
        place, part = on_grid(score, support)
        at, share, wave, size = place, part, None, GRID
        if rule.estimator == "kde":
            wave = spectrum(width_of(score[None], rule.bandwidth), support).astype(np.float32)
        else:
            size = rule.bins_of(len(score))
            at, share = (v[0] for v in _bins(score[None], rule, support))
        count = np.ones(len(score), dtype=np.intp)
        if not whole:
            code = (at * GRID + place) * 2 + (outcome > 0.5)
            code, cell, count = np.unique(code, return_inverse=True, return_counts=True)
            at, outcome = code // (2 * GRID), (code % 2).astype(np.float64)
            score, share = (np.bincount(cell, v) / count for v in (score, share))
        bins, hits, base = (_matrix(at, share, v, size) for v in (np.ones_like(score), outcome, score))
        return cls(score.astype(np.float32), count, bins, hits, base if wave is None else bins, wave, support)

    def draw(self, rng: np.random.Generator, draws: int) -> Reals:  # -> m draws
        """How often each comes among as many draws with replacement."""
        n, m = int(self.count.sum()), len(self.count)
        if n > m:
            return np.ascontiguousarray(rng.multinomial(n, self.count / n, size=draws).T, dtype=np.float32)
        return _counts(n, draws, rng)

    def resampled(self, drawn: Reals) -> Reals:  # m draws -> draws
        return self._error(self.hits @ drawn, self.base @ drawn)

    def calibrated(self, rng: np.random.Generator, draws: int) -> Reals:  # -> draws
        """Each outcome drawn with its score as its probability."""
        return self.drawn(rng, draws, self.score)

    def drawn(self, rng: np.random.Generator, draws: int, chances: Reals) -> Reals:  # m -> draws
        """Each outcome drawn with its chance."""
        m, chance = len(self.count), chances[:, None]
        if self.count.sum() > m:
            came = rng.binomial(self.count[:, None], chance, size=(m, draws)).astype(np.float32)
        else:
            came = (rng.random((m, draws), dtype=np.float32) < chance).astype(np.float32)
        return self._error(self.bins @ came, self.base @ self.count[:, None].astype(np.float32))

    def _error(self, hits: Reals, base: Reals) -> Reals:  # b draws, b draws or b 1 -> draws
        """n times the ECE, of each draw."""
        if self.wave is None:
            return np.asarray(np.abs(hits - base).sum(0))
        return gap(smooth(hits.T, self.wave), smooth(base.T, self.wave), self.support)


def _matrix(at: Ints, share: Floats, value: Floats, size: int) -> csr_array:  # n -> size n
    """W' with each column times its value, sparse."""
    cells = np.arange(len(at))
    entries = np.concatenate([(1 - share) * value, share * value]).astype(np.float32)
    rows, columns = np.concatenate([at, np.minimum(at + 1, size - 1)]), np.concatenate([cells, cells])
    kept = entries != 0
    return csr_array((entries[kept], (rows[kept], columns[kept])), shape=(size, len(at)))


def _counts(n: int, draws: int, rng: np.random.Generator) -> Reals:  # -> n draws
    picked = rng.integers(0, n, size=(draws, n), dtype=np.int32)
    return np.ascontiguousarray(np.stack([np.bincount(row, minlength=n) for row in picked], axis=1), dtype=np.float32)


def _value(groups: list[Group], rule: Rule, n: int) -> float:
    return sum(
        g.weight * len(g.score) / n * float(estimate(g.score[None], g.outcome[None], rule, g.support)[0])
        for g in groups
    )


def _resample(
    groups: list[Group], rule: Rule, n: int, draws: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:  # -> draws, up to FLOOR
    """The estimate on resampled inputs, and on outcomes of a calibrated model.

    Up to `WHOLE` inputs the groups share their draws; beyond, each is resampled by itself.
    """
    whole = n <= WHOLE
    cells = [Cells.of(g, rule, whole) for g in groups]
    resampled, calibrated = np.zeros(draws), np.zeros(min(draws, FLOOR))
    for start, stop in _chunks(cells, draws):
        shared = _counts(n, stop - start, rng) if whole else None
        for g, c in zip(groups, cells, strict=True):
            drawn = c.draw(rng, stop - start) if shared is None else shared[g.rows]
            resampled[start:stop] += g.weight / n * c.resampled(drawn)
    for start, stop in _chunks(cells, len(calibrated)):
        for g, c in zip(groups, cells, strict=True):
            calibrated[start:stop] += g.weight / n * c.calibrated(rng, stop - start)
    return resampled, calibrated


def _chunks(cells: list[Cells], draws: int) -> list[tuple[int, int]]:
    """So many draws at a time that a table of them stays near the processor."""
    size = max(1, 500_000 // max(GRID, *(len(c.score) for c in cells)))
    return [(start, min(start + size, draws)) for start in range(0, draws, size)]


# What is binned together.


def groups_of(
    scores: ArrayLike, outcomes: ArrayLike, rule: Rule, kind: Kind, support: Support | None, logits: bool
) -> tuple[list[Group], int]:
    table = taken(scores)
    if table.ndim == 1:
        if kind != "confidence":
            raise ShapeError(
                f"calibration_error got {len(table)} scores for kind={kind!r}; it wants n x k probabilities."
            )
        if logits:
            raise ShapeError("calibration_error got logits=True with one score per input; give all n x k logits.")
        score, hit = pairs(table, outcomes)
        groups = [Group(score, hit, check_support(support or (0.0, 1.0), score))]
    else:
        groups = _of_classes(table, outcomes, kind, support, logits)
    n = len(table)
    if rule.bins is not None and rule.bins != "sqrt" and rule.bins > n:
        raise AssayError(f"calibration_error got bins={rule.bins} for {n} inputs; it wants at most one bin per input.")
    return groups, n


def _of_classes(table: Reals, outcomes: ArrayLike, kind: Kind, support: Support | None, logits: bool) -> list[Group]:
    label = labels_of(outcomes, table)
    k = table.shape[1]
    if kind == "class-wise":
        if len(np.unique(label)) == 1:
            raise AssayError(
                f"calibration_error got labels of one class only ({label[0]}); class-wise it wants at least two."
            )
        span = support or (0.0, 1.0)
        columns = np.ascontiguousarray(probabilities_of(table, logits).T).clip(0, 1)
        return [Group(s, (label == c).astype(np.float64), check_support(span, s), 1 / k) for c, s in enumerate(columns)]
    if logits:
        table = probabilities_of(table, logits)
    score, hit = _top(table, label)
    span = check_support(support, score) if support else (1 / k, 1.0)
    if kind == "confidence":
        return [Group(score, hit, span)]
    if kind != "top-label":
        raise AssayError(f"calibration_error has no kind {kind!r}; name 'confidence', 'class-wise' or 'top-label'.")
    answer = table.argmax(1)
    members = [np.flatnonzero(answer == c) for c in np.unique(answer)]
    return [Group(score[rows], hit[rows], span, 1.0, rows) for rows in members]


def _top(table: Reals, label: Ints) -> tuple[Floats, Floats]:  # n k, n -> n, n
    """The top score of each input, and 1 where its class (the first of equals) is the label.

    By blocks that stay near the processor. Of single precision they are turned: the maximum of k long columns takes a
    fraction of that of many short rows. Of double precision turning costs what it gains, and argmax is the fast one.
    """
    turned = table.itemsize == 4
    block = BLOCK if turned else 4 * BLOCK
    score, hit, first = np.empty(len(table)), np.empty(len(table)), table.shape[1] * np.arange(block)
    for start in range(0, len(table), block):
        rows, here = table[start : start + block], label[start : start + block]
        columns = np.ascontiguousarray(rows.T) if turned else rows.T  # k b
        check_simplex(columns)
        if turned:
            top = columns.max(0)
            right = rows.ravel().take(here + first[: len(here)]) == top
            if np.count_nonzero(columns == top) > len(here):  # ties
                right = columns.argmax(0) == here
        else:
            answer = rows.argmax(1)
            top, right = rows.ravel().take(answer + first[: len(here)]), answer == here
        np.minimum(top, 1, out=score[start : start + block])
        hit[start : start + block] = right
    return score, hit
