r"""Calibration error by five estimators, each with an interval and the value that a perfectly calibrated model shows.

    ECE   = E_s | P(o = 1 | s) - s |                      s a score, o what came of it (0 or 1)
    ECE_W = (1/n) sum_j | sum_i W_ij (o_i - s_i) |        binned; the rows of W sum to 1
    ECE_d = \int | pi f(s | o=1) - s f(s) | ds            kernel density, pi = mean(o)

    legacy            B equal bins ( (j-1)/B, j/B ] of [0, 1], W_ij = 1 in the bin of s_i
    adaptive          bins of m = floor(n/B) scores: edge j halfway between sorted scores j m and j m + 1
    convex            equal bins, W linear between bin centres: s in [c_j, c_j+1] has
                      W_i,j = 1 - (s - c_j) / (c_j+1 - c_j) and W_i,j+1 = the rest; beyond c_1 and c_B all in that bin
    adaptive-convex   adaptive edges, W linear between their centres
    kde               both densities with the same bandwidth, mirrored at the ends of the support, by FFT on a grid

Source: Posocco & Bonnefoy, "Estimating Expected Calibration Errors", 2021, eq. (1), def. 4-6, sec. 4.4-4.5; the legacy
    estimator is Guo et al., ICML 2017, arXiv:1706.04599, sec. 2; top-label calibration is Gupta & Ramdas, ICLR 2022.
Departs from print: (1) the printed convex weights are reversed, a score at c_j has no weight in bin j;
    `as_published=True` gives them. (2) c_j is (t_j-1 + t_j)/2, where print has a minus, and the edge index is
    j floor(n/B), where print has floor(n/j). (3) ECE_d is the product form above, where print divides by f(s) and
    multiplies by it again. (4) Scores of the top class lie in [1/k, 1]: densities are mirrored, and all bins but the
    legacy ones laid, there.
Adds to print: (1) the floor, the mean of the estimate when each outcome is drawn with exactly its score as its
    probability; at n = 500 a perfect model shows about 0.03, so an ECE means nothing without it. (2) The basic
    bootstrap interval [2v - q_high, 2v - q_low], stretched to hold v: resampling inflates |acc - conf| by about as much
    as sampling did, and reflecting the quantiles at the estimate takes that bias out, where the percentile interval
    would count it twice. It reaches down to 0 where calibrated draws reach the value. It is nominal, and too short: on
    over-confident laws with 800 inputs it covered the truth in 77 to 90 % of 250 repeats (densities: of 60), mostly
    lying below it. Three ways to recentre it on shrunk gaps did better on calibrated models and mostly worse on these.
    Edges and bandwidth are those of the sample. Beyond `WHOLE` inputs, scores that share a bin
    and a cell of the grid are resampled as one, by multinomial counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dct, idct
from scipy.sparse import csr_array
from scipy.special import log_softmax, softmax

from assay.errors import AssayError, ShapeError

Estimator = Literal["legacy", "adaptive", "convex", "adaptive-convex", "kde"]
ESTIMATORS: tuple[Estimator, ...] = ("legacy", "adaptive", "convex", "adaptive-convex", "kde")
Kind = Literal["confidence", "class-wise", "top-label"]
Floats = NDArray[np.float64]
Reals = NDArray[np.floating]
Ints = NDArray[np.intp]
Support = tuple[float, float]

BINS = 15  # where nobody says, or one for each input where there are fewer
FEW = 30  # inputs below which no estimator is worth much
DRAWN = 16  # every so many points of the grid are points of a reliability curve
GRID = 4097  # points of a density: steps of 1/4096 of the support, and a fast FFT
FLOOR = 250  # draws that the floor is a mean of, if there are as many
BLOCK = 8192  # inputs that are worked on at once, so that they stay in the cache
WHOLE = 50_000  # inputs up to which the bootstrap draws each by itself
TOLERANCE = 1e-3  # by which probabilities may miss the sum 1, as they do in half precision


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


class ReliabilityCurve(NamedTuple):
    """P(o = 1 | s) at the scores that every resample reaches: median and band over resamples."""

    score: Floats  # p
    median: Floats  # p
    low: Floats  # p
    high: Floats  # p

    def at(self, scores: ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Median, low and high for the probability behind new scores: n -> n, n, n."""
        new = np.asarray(scores, dtype=np.float64)
        median, low, high = (np.interp(new, self.score, line) for line in self[1:])
        return median, low, high


class Brier(NamedTuple):
    """value = reliability - resolution + uncertainty + within, exactly."""

    value: float
    reliability: float
    """Squared gap between mean score and frequency, over bins: what recalibration can take off."""
    resolution: float
    """Variance of the frequencies of the bins: how well the scores sort the inputs."""
    uncertainty: float
    """Brier score of the base rate."""
    within: float
    """What varies inside the bins; none if all scores of a bin are equal."""


@dataclass(frozen=True)
class Rule:
    """An estimator and its settings."""

    estimator: Estimator = "legacy"
    bins: int | Literal["sqrt"] | None = None
    """How many, floor(sqrt(n)), or None: 15, or n where that is fewer."""
    bandwidth: float | Literal["silverman"] = "silverman"
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
    bins: int | Literal["sqrt"] | None = None,
    bandwidth: float | Literal["silverman"] = "silverman",
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
    groups, n = _groups(scores, outcomes, rule, kind, support, logits)
    value = _value(groups, rule, n)
    resampled, calibrated = _resample(groups, rule, n, draws, np.random.default_rng(seed))
    low, high = np.quantile(resampled, [0.025, 0.975])
    plausible = value <= float(np.quantile(calibrated, 0.975))  # that the model is calibrated: then 0 must be inside
    return CalibrationError(
        value,
        0.0 if plausible else min(value, max(0.0, 2 * value - float(high))),
        max(value, 2 * value - float(low)),
        float(calibrated.mean()),
        n < FEW,
    )


def ece(
    scores: ArrayLike,
    outcomes: ArrayLike,
    *,
    estimator: Estimator = "legacy",
    kind: Kind = "confidence",
    bins: int | Literal["sqrt"] | None = None,
    bandwidth: float | Literal["silverman"] = "silverman",
    support: Support | None = None,
    logits: bool = False,
    as_published: bool = False,
) -> float:
    """The value of `calibration_error` alone, without resampling."""
    rule = Rule(estimator, bins, bandwidth, as_published)
    groups, n = _groups(scores, outcomes, rule, kind, support, logits)
    return _value(groups, rule, n)


def bin_weights(
    scores: ArrayLike,
    *,
    estimator: Estimator = "legacy",
    bins: int | Literal["sqrt"] | None = None,
    support: Support = (0.0, 1.0),
    as_published: bool = False,
) -> Floats:  # n -> n b
    """W of a binned estimator. Each row sums to 1."""
    score, rule = _in_unit(scores), Rule(estimator, bins, as_published=as_published)
    if estimator == "kde":
        raise AssayError("bin_weights got estimator='kde', which has no bins; name one of the other four.")
    at, share = (v[0] for v in _bins(score[None], rule, _checked(support, score)))
    rows, weights = np.arange(len(score)), np.zeros((len(score), rule.bins_of(len(score)) + 1))
    weights[rows, at], weights[rows, at + 1] = 1 - share, share
    return weights[:, :-1]  # beyond the last centre nothing is shared


def reliability(confidence: ArrayLike, correct: ArrayLike, *, bins: int = BINS) -> Reliability:
    """Mean score and accuracy of each equal bin that holds anything."""
    Rule(bins=bins)  # refuses what is no number of bins
    score, hit = _pairs(confidence, correct)
    at = _equal(score, bins)
    count = np.bincount(at, minlength=bins)
    full = count > 0
    mean = np.bincount(at, weights=score, minlength=bins)[full] / count[full]
    accuracy = np.bincount(at, weights=hit, minlength=bins)[full] / count[full]
    return Reliability(mean, accuracy, count[full])


def reliability_curve(
    scores: ArrayLike,
    outcomes: ArrayLike,
    *,
    bandwidth: float | Literal["silverman"] = "silverman",
    support: Support = (0.0, 1.0),
    level: float = 0.95,
    draws: int = 500,
    seed: int = 0,
) -> ReliabilityCurve:  # n in [0, 1], n of 0 or 1
    """rel(s) = LCE(s) + s = pi f(s | o=1) / f(s) by kernel densities, over bootstraps of the inputs (sec. 4.4)."""
    score, hit = _pairs(scores, outcomes)
    group = _Group(score, hit, _checked(support, score))
    cells = _Cells.of(group, Rule("kde", bandwidth=bandwidth), len(score) <= WHOLE)
    rng, kept = np.random.default_rng(seed), []
    reached = np.ones(len(_grid(support)[::DRAWN]), dtype=bool)
    for start, stop in _chunks([cells], draws):
        count = cells.draw(rng, stop - start)
        right, drawn = (d[:, ::DRAWN] for d in cells.densities(cells.hits @ count, cells.base @ count))  # draws p
        reached &= (drawn > 1e-5 * drawn.max()).all(0)  # the rounding of the FFT is below
        kept.append(right / np.where(reached, drawn, 1.0))
    curves = np.concatenate(kept)[:, reached].clip(0, 1)
    median, low, high = np.quantile(curves, [0.5, (1 - level) / 2, (1 + level) / 2], axis=0)
    return ReliabilityCurve(_grid(support)[::DRAWN][reached], median, low, high)


def brier(scores: ArrayLike, outcomes: ArrayLike, *, bins: int = BINS, logits: bool = False) -> Brier:
    r"""Brier score, mean (s - o)^2 (summed over the classes of n k probabilities), and its parts over equal bins.

        reliability = sum_j n_j/n (mean s_j - mean o_j)^2,   resolution = sum_j n_j/n (mean o_j - mean o)^2
        uncertainty = mean o (1 - mean o),   within = mean (s_i - mean s_j)^2 - 2 mean (s_i - mean s_j)(o_i - mean o_j)

    Source: Murphy, J. Appl. Meteor. 1973; the terms within bins are Stephenson et al., Weather and Forecasting 2008.
    """
    Rule(bins=bins)  # refuses what is no number of bins
    parts = []
    for score, hit in _one_by_one(scores, outcomes, logits):
        at = _equal(score, bins)
        count = np.maximum(np.bincount(at, minlength=bins), 1)
        mean, rate = (np.bincount(at, weights=v, minlength=bins) / count for v in (score, hit))
        spread, base = score - mean[at], hit.mean()
        parts.append(
            (
                ((score - hit) ** 2).mean(),
                ((mean - rate)[at] ** 2).mean(),
                ((rate[at] - base) ** 2).mean(),
                base * (1 - base),
                (spread**2 - 2 * spread * (hit - rate[at])).mean(),
            )
        )
    return Brier(*(float(v) for v in np.sum(parts, axis=0)))


def nll(probabilities: ArrayLike, labels: ArrayLike, *, logits: bool = False) -> float:  # n k, n
    """Mean negative log-probability of what came, in nats; infinite where that had probability 0."""
    table = np.asarray(probabilities, dtype=np.float64)
    label = _labels(labels, table)
    if logits:
        surprise = -log_softmax(table, axis=1)[np.arange(len(label)), label]
    else:
        _simplex(table.T)
        with np.errstate(divide="ignore"):
            surprise = -np.log(table[np.arange(len(label)), label])
    return float(surprise.mean())


def sharpness(probabilities: ArrayLike) -> float:  # n or n k
    """Mean squared distance of the forecasts from their mean: 0 for one that always says the same, right or wrong."""
    table = np.asarray(probabilities, dtype=np.float64)
    if table.ndim == 2:
        _simplex(table.T)
    else:
        table = _in_unit(table)[:, None]
    return float(((table - table.mean(0)) ** 2).sum(1).mean())


def estimate(score: Floats, outcome: Floats, rule: Rule, support: Support) -> Floats:  # r n, r n -> r
    """Each row's ECE. `outcome` may be a probability; nothing is checked."""
    n = score.shape[1]
    if rule.estimator == "kde":
        at, share = _between((score - support[0]) / (support[1] - support[0]) * (GRID - 1), GRID - 1)
        mass = np.stack([_sums(at, share, o, GRID) for o in (outcome, np.ones_like(score))])  # 2 r g
        right, drawn = _smooth(mass, _spectrum(_width(score, rule), support))
        return np.asarray(_integral(right, drawn, support) / n)
    bins = rule.bins_of(n)
    if rule.estimator == "legacy":  # one weight a score: half of the work
        gaps = np.zeros((len(score), bins))
        for start in range(0, n, BLOCK):
            s, o = score[:, start : start + BLOCK], outcome[:, start : start + BLOCK]
            at = _equal(s, bins) + bins * np.arange(len(s))[:, None]
            gaps += _binned(at, o - s, gaps.size).reshape(gaps.shape)
    else:
        gaps = _sums(*_bins(score, rule, support), outcome - score, bins)
    return np.asarray(np.abs(gaps).sum(1) / n)


# Which scores fall into which bins, and how much of each.


def _bins(score: Floats, rule: Rule, support: Support) -> tuple[Ints, Floats]:  # r n -> r n, r n
    """The left bin of each score and the share that goes to the bin after it."""
    low, high = support
    n = score.shape[1]
    count = rule.bins_of(n)
    if rule.estimator == "legacy":
        return _equal(score, count), np.zeros_like(score)
    if rule.estimator == "convex":
        at, share = _between((score - low) / (high - low) * count - 0.5, count - 1)
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
        gap = np.take_along_axis(centre, np.minimum(at + 1, count - 1), 1) - here
        share = np.clip((score - here) / np.where(gap > 0, gap, np.inf), 0, 1)
    if rule.as_published:
        share = np.where(share > 0, 1 - share, 0.0)  # 0 only beyond the outer centres, but for a set of measure 0
    return at, share


def _equal(score: Floats, bins: int) -> Ints:
    """The bin ((b-1)/B, b/B] of each score; a score of 0 goes to the first."""
    at = np.ceil(score * bins).astype(np.intp)
    at -= 1
    return np.maximum(at, 0, out=at)


def _between(place: Floats, last: int) -> tuple[Ints, Floats]:
    """Left neighbour among 0..last of each place, and the share of the right one."""
    place = np.clip(place, 0, last)
    at = place.astype(np.intp)
    return at, place - at


def _below(marks: Floats, score: Floats, side: Literal["left", "right"]) -> Ints:  # r b, r n -> r n
    """How many of its row's sorted marks lie below each score ("right": or on it)."""
    rows = np.arange(len(score))[:, None]
    ahead = 2.0 * rows  # one sorted list for all rows
    found = np.searchsorted((marks + ahead).ravel(), (score + ahead).ravel(), side).reshape(score.shape)
    return np.asarray(found - rows * marks.shape[1])


def _sums(at: Ints, share: Floats, value: Floats, size: int) -> Floats:  # r n -> r size
    """W' value, row by row."""
    rows = len(at)
    flat = at + size * np.arange(rows)[:, None]
    right = share * value
    sums = _binned(flat, value - right, rows * size)
    sums[1:] += _binned(flat, right, rows * size)[:-1]  # a last bin shares nothing
    return sums.reshape(rows, size)


def _binned(at: Ints, value: Floats, size: int) -> Floats:  # ... -> size
    return np.asarray(np.bincount(at.ravel(), value.ravel(), size), dtype=np.float64)


def _matrix(at: Ints, share: Floats, value: Floats, size: int) -> csr_array:  # n -> size n
    """W' with each column times its value, sparse."""
    cells = np.arange(len(at))
    entries = np.concatenate([(1 - share) * value, share * value]).astype(np.float32)
    rows, columns = np.concatenate([at, np.minimum(at + 1, size - 1)]), np.concatenate([cells, cells])
    kept = entries != 0
    return csr_array((entries[kept], (rows[kept], columns[kept])), shape=(size, len(at)))


# Densities. A histogram of a grid that includes both ends, its end cells doubled, is half a period of the mirrored one;
# on such sequences the cosine transform of type I is the Fourier transform.


def _grid(support: Support) -> Floats:
    return np.linspace(*support, GRID)


def _width(score: Floats, rule: Rule) -> Floats:  # r n -> r or 1
    """The bandwidth, or Silverman's: (4 / 3n)^(1/5) min(sd, IQR / 1.349), sd alone where half the scores are equal."""
    if rule.bandwidth != "silverman":
        return np.array([float(rule.bandwidth)])  # one for all rows
    n = score.shape[1]
    spread = score.std(axis=1, ddof=min(1, n - 1))
    low, high = np.quantile(score, [0.25, 0.75], axis=1)
    middle = (high - low) / 1.3489795
    return np.asarray((4 / (3 * n)) ** 0.2 * np.where(middle > 0, np.minimum(spread, middle), spread))


def _spectrum(width: Floats, support: Support) -> Floats:  # r -> r g
    """Of the triweight kernel (1 - u^2)^3, which ends at three standard deviations, and of all its mirror images."""
    span = support[1] - support[0]
    step = span / (GRID - 1)
    reach = np.maximum(3 * width, step)[:, None]  # below a step: no smoothing
    images = max(0, int(np.ceil((reach.max() / span - 1) / 2)))  # beyond those that touch the support
    away = step * np.arange(GRID)
    kernel = np.zeros((len(width), GRID))
    for m in range(-images, images + 1):
        bump = np.clip(1 - ((away + 2 * span * m) / reach) ** 2, 0, None)
        kernel += bump * bump * bump
    spectrum = dct(kernel, type=1)
    return np.asarray(spectrum / spectrum[:, :1])


def _smooth(mass: Reals, spectrum: Reals) -> Reals:  # ... g -> ... g
    mirrored = np.array(mass, order="C")
    mirrored[..., [0, -1]] *= 2
    return np.asarray(idct(dct(mirrored, type=1) * spectrum, type=1))


def _integral(right: Reals, drawn: Reals, support: Support) -> Reals:  # ... g -> ...
    """Of |right - s drawn| by the trapezoid rule, in steps of the grid, per which the densities are."""
    height = np.abs(right - _grid(support).astype(drawn.dtype) * drawn)
    height[..., [0, -1]] /= 2
    return np.asarray(height.sum(-1))


# What is resampled.


class _Group(NamedTuple):
    """Scores and outcomes that are binned together."""

    score: Floats  # n
    outcome: Floats  # n
    support: Support
    weight: float = 1.0
    rows: Ints | slice = slice(None)
    """Where they stand among the inputs."""


@dataclass(frozen=True)
class _Cells:
    """What is resampled: each input, or in large groups all that share a bin, a cell of the grid and an outcome.

    In float32: a draw's rounding is some 1e-7 of the error, far below its noise.
    """

    score: Reals  # m
    count: Ints  # m
    bins: csr_array  # b m: W', or the grid's
    hits: csr_array  # b m: W' o
    base: csr_array  # b m: W' s, what W' o is expected to be; for a density W', the rest being done on the grid
    spectrum: Reals | None  # 1 g, of a kernel
    support: Support

    @classmethod
    def of(cls, group: _Group, rule: Rule, whole: bool) -> _Cells:
        score, outcome, support, *_ = group
        place, part = _between((score - support[0]) / (support[1] - support[0]) * (GRID - 1), GRID - 1)
        at, share, spectrum, size = place, part, None, GRID
        if rule.estimator == "kde":
            spectrum = _spectrum(_width(score[None], rule), support).astype(np.float32)
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
        return cls(
            score.astype(np.float32), count, bins, hits, bins if spectrum is not None else base, spectrum, support
        )

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
        m, chance = len(self.count), self.score[:, None]
        if self.count.sum() > m:
            came = rng.binomial(self.count[:, None], chance, size=(m, draws)).astype(np.float32)
        else:
            came = (rng.random((m, draws), dtype=np.float32) < chance).astype(np.float32)
        return self._error(self.bins @ came, self.base @ self.count[:, None].astype(np.float32))

    def densities(self, hits: Reals, drawn: Reals) -> tuple[Reals, Reals]:  # g draws -> draws g
        """n pi f(s | o=1) and n f(s) on the grid, per step of it."""
        assert self.spectrum is not None  # the rule is a kernel's
        return _smooth(hits.T, self.spectrum), _smooth(drawn.T, self.spectrum)

    def _error(self, hits: Reals, base: Reals) -> Reals:  # b draws, b draws or b 1 -> draws
        """n times the ECE, of each draw."""
        if self.spectrum is not None:
            return _integral(*self.densities(hits, base), self.support)
        return np.asarray(np.abs(hits - base).sum(0))


def _counts(n: int, draws: int, rng: np.random.Generator) -> Reals:  # -> n draws
    picked = rng.integers(0, n, size=(draws, n), dtype=np.int32)
    return np.ascontiguousarray(np.stack([np.bincount(row, minlength=n) for row in picked], axis=1), dtype=np.float32)


def _value(groups: list[_Group], rule: Rule, n: int) -> float:
    return sum(
        g.weight * len(g.score) / n * float(estimate(g.score[None], g.outcome[None], rule, g.support)[0])
        for g in groups
    )


def _resample(
    groups: list[_Group], rule: Rule, n: int, draws: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:  # -> draws, up to FLOOR
    """The estimate on resampled inputs, and on outcomes of a calibrated model.

    Up to `WHOLE` inputs the groups share their draws; beyond, each is resampled by itself.
    """
    whole = n <= WHOLE
    cells = [_Cells.of(g, rule, whole) for g in groups]
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


def _chunks(cells: list[_Cells], draws: int) -> list[tuple[int, int]]:
    """So many draws at a time that a table of them stays near the processor."""
    size = max(1, 500_000 // max(GRID, *(len(c.score) for c in cells)))
    return [(start, min(start + size, draws)) for start in range(0, draws, size)]


# What comes in.


def _groups(
    scores: ArrayLike, outcomes: ArrayLike, rule: Rule, kind: Kind, support: Support | None, logits: bool
) -> tuple[list[_Group], int]:
    table = _array(scores)
    if table.ndim == 1:
        if kind != "confidence":
            raise ShapeError(
                f"calibration_error got {len(table)} scores for kind={kind!r}; it wants n x k probabilities."
            )
        if logits:
            raise ShapeError("calibration_error got logits=True with one score per input; give all n x k logits.")
        score, hit = _pairs(table, outcomes)
        groups = [_Group(score, hit, _checked(support or (0.0, 1.0), score))]
    else:
        groups = _of_classes(table, outcomes, kind, support, logits)
    n = len(table)
    if rule.bins not in (None, "sqrt") and rule.bins > n:  # type: ignore[operator]
        raise AssayError(f"calibration_error got bins={rule.bins} for {n} inputs; it wants at most one bin per input.")
    return groups, n


def _of_classes(table: Reals, outcomes: ArrayLike, kind: Kind, support: Support | None, logits: bool) -> list[_Group]:
    label = _labels(outcomes, table)
    k = table.shape[1]
    if logits:
        table = softmax(_finite(table.astype(np.float64)), axis=1)
    if kind == "class-wise":
        _simplex(table.T)
        if len(np.unique(label)) == 1:
            raise AssayError(
                f"calibration_error got labels of one class only ({label[0]}); class-wise it wants at least two."
            )
        span = support or (0.0, 1.0)
        columns = np.ascontiguousarray(table.T, dtype=np.float64)
        return [_Group(s, (label == c).astype(np.float64), _checked(span, s), 1 / k) for c, s in enumerate(columns)]
    score, hit = _top(table, label)
    span = _checked(support, score) if support else (1 / k, 1.0)
    if kind == "confidence":
        return [_Group(score, hit, span)]
    if kind != "top-label":
        raise AssayError(f"calibration_error has no kind {kind!r}; name 'confidence', 'class-wise' or 'top-label'.")
    answer = table.argmax(1)
    members = [np.flatnonzero(answer == c) for c in np.unique(answer)]
    return [_Group(score[rows], hit[rows], span, 1.0, rows) for rows in members]


def _top(table: Reals, label: Ints) -> tuple[Floats, Floats]:  # n k, n -> n, n
    """The top score of each input, and 1 where its class (the first of equals) is the label.

    By blocks that stay in the cache. Of single precision they are turned: the maximum of k long columns takes a
    fraction of that of many short rows. Of double precision turning costs what it gains, and argmax is the fast one.
    """
    score, hit = np.empty(len(table)), np.empty(len(table))
    for start in range(0, len(table), BLOCK):
        rows, here = table[start : start + BLOCK], label[start : start + BLOCK]
        place = np.arange(len(here))
        columns = np.ascontiguousarray(rows.T) if table.itemsize == 4 else rows.T  # k b
        _simplex(columns)
        if table.itemsize == 4:
            top = columns.max(0)
            right = columns[here, place] == top
            if np.count_nonzero(columns == top) > len(here):  # ties
                right = columns.argmax(0) == here
        else:
            answer = rows.argmax(1)
            top, right = rows[place, answer], answer == here
        score[start : start + BLOCK], hit[start : start + BLOCK] = np.minimum(top, 1), right
    return score, hit


def _simplex(columns: Reals) -> None:  # k n
    total = np.ones(len(columns), dtype=columns.dtype) @ columns
    if columns.min() >= 0 and np.abs(total - 1).max() <= TOLERANCE:  # both false for NaN
        return
    _finite(columns)
    if columns.min() < 0 or columns.max() > 1 + TOLERANCE:
        worst = columns.min() if columns.min() < 0 else columns.max()
        raise AssayError(
            f"calibration_error got {worst:g} among the probabilities; if these are logits, pass logits=True."
        )
    worst = total[np.abs(total - 1).argmax()]
    raise AssayError(
        f"calibration_error got probabilities that sum to {worst:g} for an input; divide them by their sum, or pass "
        f"logits=True if they are logits."
    )


def _finite(values: Reals) -> Reals:
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise AssayError(f"calibration_error got {bad} among its scores; leave such inputs out or mend the model.")
    return values


def _labels(labels: ArrayLike, table: Reals) -> Ints:
    label = np.asarray(labels)
    if table.ndim != 2 or label.shape != table.shape[:1] or len(label) == 0:
        raise ShapeError(
            f"calibration_error got scores of shape {table.shape} and labels of shape {label.shape}; it wants n x k "
            f"probabilities and n labels, at least one."
        )
    k = table.shape[1]
    if k == 1:
        raise ShapeError(
            "calibration_error got probabilities of one class only; give both classes, or n scores and n outcomes."
        )
    whole = label.astype(np.intp, copy=False)
    if whole.min() < 0 or whole.max() >= k or (label.dtype.kind not in "iub" and (whole != label).any()):
        worst = label[(whole < 0) | (whole >= k) | (whole != label)][0]
        raise AssayError(f"calibration_error got the label {worst}; with {k} classes it wants 0 to {k - 1}.")
    return whole


def _array(scores: ArrayLike) -> Reals:
    given = np.asarray(scores)
    table = given if given.dtype in (np.float32, np.float64) else given.astype(np.float64)
    if table.ndim not in (1, 2):
        raise ShapeError(f"calibration_error got scores of shape {table.shape}; it wants n scores or n x k of them.")
    return table


def _pairs(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    score, hit = _in_unit(confidence), np.asarray(correct, dtype=np.float64)
    if score.shape != hit.shape or len(score) == 0:
        raise ShapeError(
            f"calibration_error got scores of shape {score.shape} and outcomes of shape {hit.shape}; it wants one of "
            f"each per input, at least one."
        )
    if not ((hit == 0) | (hit == 1)).all():
        worst = hit[~((hit == 0) | (hit == 1))][0]
        raise AssayError(
            f"calibration_error got the outcome {worst:g}; outcomes are 0 or 1 (labels go with n x k probabilities)."
        )
    return score, hit


def _in_unit(scores: ArrayLike) -> Floats:
    score = np.asarray(scores, dtype=np.float64)
    if score.ndim != 1:
        raise ShapeError(f"calibration_error got scores of shape {score.shape}; it wants one per input, shape (n,).")
    if len(score) and not (score.min() >= 0 and score.max() <= 1):  # both false for NaN
        worst = score[~((score >= 0) & (score <= 1))][0]
        raise AssayError(
            f"calibration_error got the score {worst:g}; scores are probabilities in [0, 1] (softmax first)."
        )
    return score


def _checked(support: Support, score: Floats) -> Support:
    low, high = support
    if not (low < high and score.min() >= low and score.max() <= high):
        raise AssayError(
            f"calibration_error got support=({low:g}, {high:g}) for scores from {score.min():g} to {score.max():g}; it "
            f"wants an interval that holds them."
        )
    return low, high


def _one_by_one(scores: ArrayLike, outcomes: ArrayLike, logits: bool) -> list[tuple[Floats, Floats]]:
    """Score and outcome of each class, or the ones given."""
    table = _array(scores)
    if table.ndim == 1:
        return [_pairs(table, outcomes)]
    label = _labels(outcomes, table)
    columns = (softmax(_finite(table.astype(np.float64)), axis=1) if logits else table.astype(np.float64)).T
    _simplex(columns)
    return [(column, (label == c).astype(np.float64)) for c, column in enumerate(columns)]
