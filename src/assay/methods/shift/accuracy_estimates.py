r"""How often a model is right where nobody has labels, told by what it says there.

Home is a labelled sample with accuracy a. s_i is how sure an answer is, p_i its probabilities of k classes, P the n x k
matrix of them, <.> a mean over inputs, home or there:

    average confidence        <s> there
    difference of confidences a + b (<s> there - <s> home)
    ATC                       < score >= t > there, with t such that < score >= t > home = a;
                              the score is s, or the negative entropy sum_j p_j log p_j
    dispersity                a + b (d there - d home),   d = ||P||_* / sqrt(n k), the sum of its singular values
    importance weighted       sum_i w_i right_i / sum_i w_i over home, w = p_there / p_home of the answers

The slopes b are least squares through the origin over shifts whose accuracy is known: what happens every day to inputs
of this kind, done to home's own inputs, each also with the classes in other shares (home's times Gamma(2) draws), since
nobody says that they are the same there. d is largest where answers are sure and all classes are said: a shift that
drives a model to one class with full confidence is seen by d, and by nothing that looks at one answer at a time.

What an estimate is worth is found by leaving one change out, with all its severities: the slope is fitted without it,
and the error on it kept. The `chosen` estimate is the one with the least mean absolute error. An interval joins in
quadrature the quantiles of those errors in units of (0.2 + |estimate - a|), since an error grows with the loss, and
the sampling error sqrt(q(1 - q) (1/n_there + 1/n_home)) of an accuracy q. It speaks of shifts that are to the changes
as these are to each other. No label conflict can be seen without labels: where like inputs have other labels there, all
of this is wrong and nothing here shows it.

Source: Guillory et al., ICCV 2021, arXiv:2107.03315 (difference of confidences); Garg et al., ICLR 2022,
    arXiv:2201.04234 (ATC); Deng et al., ICML 2023, arXiv:2302.01094 (the nuclear norm); Shimodaira 2000 (weights); the
    interval is that of split conformal prediction, Vovk et al. 2005, over changes instead of inputs.
Departs from print: no slope has an intercept, so that no change means no loss. Of scores equal to t ATC counts the
    share that makes home exact. Adds: shares of classes, the choice and the intervals.
Measured (`benchmarks/score_there.py fashion`, 500 inputs, seed 0): the chosen estimate erred by 2.8 points over
    80 domains of families that it was not fitted to, ATC by 8.0 at best and the difference of confidences by 8.3; its
    intervals, 28 points wide, held 99 %. Changes left out decide the choice and no domain does, but that
    dispersity is among the estimates, and the 0.2, were settled with an eye on these domains and on those of a small
    network for CIFAR-10: that network is no fresh trial of either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from assay.errors import AssayError, ShapeError
from assay.methods.shift.importance_weights import effective_size, fit_ratio, importance_weights

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

AVERAGE, DIFFERENCE, ATC, ATC_ENTROPY, DISPERSITY = (
    "average confidence",
    "difference of confidences",
    "ATC, maximum confidence",
    "ATC, negative entropy",
    "dispersity",
)
GAUGES = (AVERAGE, ATC, ATC_ENTROPY, DISPERSITY)
"""What is read of answers without labels, in the order of a reading."""
RULES: Mapping[str, tuple[str, bool]] = {
    AVERAGE: (AVERAGE, False),
    DIFFERENCE: (AVERAGE, True),
    ATC: (ATC, False),
    ATC_ENTROPY: (ATC_ENTROPY, False),
    DISPERSITY: (DISPERSITY, True),
}
"""Of each estimate, the gauge that it reads, and whether a slope is fitted; else the reading is the estimate."""
LEVEL, NORMAL = 0.95, 1.959964
GROWTH = 0.2  # added to the loss, by which errors grow: near 0 an error is not proportional to it
STILL = 1e-9  # a spread below this is rounding
DIRECTIONS = 8  # of the answers in which densities are fitted
SHARES = 2.0  # shape of the draws that other shares of the classes are made by: their spread is 1 / sqrt(2) of them
LEAST = 3  # changes, below which an error that leaves one out says nothing


@dataclass(frozen=True)
class Answers:
    """What a model said to n inputs: how sure it was, and its probabilities of classes, where it has them."""

    sure: Floats  # n in [0, 1]
    chance: Floats | None = None  # n k

    @classmethod
    def of(cls, sure: ArrayLike, chance: ArrayLike | None = None) -> Answers:
        """Checked: finite, in [0, 1], as many of one as of the other."""
        s = np.asarray(sure, dtype=np.float64)
        p = None if chance is None else np.asarray(chance, dtype=np.float64)
        if s.ndim != 1 or len(s) == 0:
            raise ShapeError(f"Confidences came in the shape {s.shape}; give one for each input, at least one.")
        if p is not None and (p.ndim != 2 or len(p) != len(s)):
            raise ShapeError(f"Probabilities came in the shape {p.shape} for {len(s)} confidences; give n x k.")
        for each, what in ((s, "confidence"), (p, "probability")):
            if each is not None and not bool(((each >= 0) & (each <= 1 + 1e-6)).all()):
                worst = each[~((each >= 0) & (each <= 1 + 1e-6))].flat[0]
                raise AssayError(f"Got the {what} {worst:g}; it lies from 0 to 1. Of logits take the softmax.")
        return cls(s, p)

    def __len__(self) -> int:
        return len(self.sure)

    @cached_property
    def order(self) -> Floats:  # n
        """The negative entropy."""
        assert self.chance is not None
        found: Floats = np.where(self.chance > 0, self.chance * np.log(np.maximum(self.chance, 1e-300)), 0.0).sum(1)
        return found

    @cached_property
    def told(self) -> Floats:  # n d
        """Log-probabilities, of which weights are made; of a confidence alone its log-odds."""
        if self.chance is None:
            return np.log((self.sure + 1e-12) / (1 - self.sure + 1e-12))[:, None]
        return np.log(np.maximum(self.chance, 1e-12))


class Threshold(NamedTuple):
    """Scores above `at` count in full, those equal to it in this share."""

    at: float
    share: float


def atc_threshold(score: Floats, right: Bools) -> Threshold:  # n, n
    """The threshold above which as many scores lie as answers are right."""
    hits = int(right.sum())
    if hits == 0:
        return Threshold(math.inf, 0.0)
    at = float(np.partition(score, len(score) - hits)[len(score) - hits])
    return Threshold(at, float((hits - (score > at).sum()) / (score == at).sum()))


def above(score: Floats, threshold: Threshold, weight: Floats | None = None) -> float:  # n, n
    """The weighted share of scores above a threshold."""
    counted = (score > threshold.at) + threshold.share * (score == threshold.at)
    return float(np.average(counted, weights=weight))


def dispersity(chance: Floats, weight: Floats | None = None) -> float:  # n k, n -> from 1 / k to 1
    """||P||_* / sqrt(n k): 1 where each class is said equally often and for sure; rows count by their weights."""
    rows = chance if weight is None else chance * np.sqrt(weight / weight.mean())[:, None]
    values = np.linalg.svd(rows, compute_uv=False) if len(rows) < rows.shape[1] else _singular(rows)
    return float(values.sum() / math.sqrt(rows.size))


def _singular(rows: Floats) -> Floats:  # n k, n >= k -> k
    """Singular values by the k x k products: for many rows much faster, and to 1e-8 of the largest as good."""
    found: Floats = np.sqrt(np.maximum(np.linalg.eigvalsh(rows.T @ rows), 0.0))
    return found


def other_shares(labels: NDArray[np.int64], rng: np.random.Generator) -> Floats:  # n -> n, mean 1
    """Weights that put the classes of these inputs in other shares."""
    found, place = np.unique(labels, return_inverse=True)
    weight = rng.gamma(SHARES, size=len(found))[place]
    scaled: Floats = weight / weight.mean()
    return scaled


class Weighted(NamedTuple):
    """Accuracy at home with each input counted as often as its like comes there."""

    value: float
    low: float
    high: float
    effective: float
    """How many equal weights would be worth as much."""


def weighted_accuracy(right: Bools, weight: Floats) -> Weighted:  # n, n
    """sum w right / sum w, with the interval of Wilson 1927 at the size that the weights are worth.

    Where wrong answers weigh more than others, the variance of a ratio of sums (delta method) is larger than that size
    tells, and the size at which it would be that of a proportion is taken instead.
    """
    total = weight.sum()
    value = float(weight @ right / total)
    size = effective_size(torch.from_numpy(weight))
    spread = float((weight**2 * (right - value) ** 2).sum()) / float(total) ** 2
    worth = min(size, value * (1 - value) / spread) if spread > 0 else size
    return Weighted(value, *_wilson(value, worth), size)


def _wilson(share: float, size: float) -> tuple[float, float]:
    """The score interval of a proportion of so many inputs, which need not be a whole number."""
    z2 = NORMAL * NORMAL / size
    centre, half = share + z2 / 2, math.sqrt(z2 * (share * (1 - share) + z2 / 4))
    low, high = (centre - half) / (1 + z2), (centre + half) / (1 + z2)
    return max(0.0, min(share, low)), min(1.0, max(share, high))


class Shift(NamedTuple):
    """One shift of known accuracy: what was done, what is read of its answers, and how often they are right."""

    change: str
    reading: Floats  # g
    accuracy: float


class Home:
    """The labelled sample that others are compared with, and what is read of answers by its measure."""

    def __init__(self, answers: Answers, right: ArrayLike) -> None:  # n
        self.answers, self.right = answers, np.asarray(right, dtype=bool)
        if self.right.shape != answers.sure.shape:
            raise ShapeError(f"{len(answers)} answers, and right or wrong for {self.right.shape}; give one for each.")
        self.accuracy = float(self.right.mean())
        self.at = atc_threshold(answers.sure, self.right)
        self.at_entropy = None if answers.chance is None else atc_threshold(answers.order, self.right)
        told = answers.told - answers.told.mean(0)
        self.basis = np.linalg.svd(told, full_matrices=False)[2][:DIRECTIONS].T  # d e
        self.reading = self.read(answers)

    @property
    def still(self) -> tuple[str, ...]:
        """Estimates that say nothing, because what they read is the same for every answer at home."""
        names = (AVERAGE, DIFFERENCE, ATC) if float(np.ptp(self.answers.sure)) < STILL else ()
        chance = self.answers.chance
        if chance is None:
            return names
        entropy = (ATC_ENTROPY,) if float(np.ptp(self.answers.order)) < STILL else ()
        alone = (DISPERSITY,) if float(np.ptp(chance, axis=0).max()) < STILL else ()
        return (*names, *entropy, *alone)

    def weights(self, there: Answers) -> Floats | None:  # -> n
        """How often the like of each home answer comes there, by t densities in the directions in which answers differ
        most; None where there are too few for that, or all are one."""
        both = self.answers.told @ self.basis, there.told @ self.basis
        if min(map(len, both)) < self.basis.shape[1] + 2 or float(np.ptp(np.concatenate(both), axis=0).max()) < STILL:
            return None
        source, target = (torch.from_numpy(np.ascontiguousarray(each)) for each in both)
        found: Floats = importance_weights(fit_ratio(source, target)(source)).numpy()
        return found

    def read(self, there: Answers, weight: Floats | None = None) -> Floats:  # n -> g
        """The gauges, NaN where one cannot be read."""
        if (there.chance is None) != (self.answers.chance is None):
            raise AssayError("Answers at home and there differ: probabilities of classes are given for one of them.")
        found = dict.fromkeys(GAUGES, math.nan)
        found[AVERAGE] = float(np.average(there.sure, weights=weight))
        found[ATC] = above(there.sure, self.at, weight)
        if there.chance is not None and self.at_entropy is not None:
            found[ATC_ENTROPY] = above(there.order, self.at_entropy, weight)
            found[DISPERSITY] = dispersity(there.chance, weight)
        return np.array([found[gauge] for gauge in GAUGES])

    def shift(self, change: str, there: Answers, right: ArrayLike, weight: Floats | None = None) -> Shift:
        """A shift of known accuracy, as it is read."""
        return Shift(change, self.read(there, weight), float(np.average(np.asarray(right, bool), weights=weight)))


class Estimate(NamedTuple):
    """An accuracy without labels. `error` is its mean absolute error on shifts of which it knew no like."""

    value: float
    low: float
    high: float
    error: float | None


class Estimator:
    """The estimates, with slopes and errors from shifts of known accuracy; without shifts an interval is of sampling
    alone, and nothing is `chosen` by merit."""

    def __init__(self, home: Home, shifts: Sequence[Shift]) -> None:
        self.home = home
        changes = np.array([shift.change for shift in shifts])
        readings = np.array([shift.reading for shift in shifts]).reshape(len(shifts), len(GAUGES))  # m g
        lost = np.array([shift.accuracy for shift in shifts]) - home.accuracy  # m
        self.slope: dict[str, float] = {}
        self.spread: dict[str, tuple[float, float]] = {}
        self.error: dict[str, float] = {}
        for name, (gauge, fitted) in RULES.items():
            at = GAUGES.index(gauge)
            known = np.isfinite(readings[:, at])
            moved, y, who = readings[known, at] - home.reading[at], lost[known], changes[known]
            if math.isnan(home.reading[at]) or name in home.still or (fitted and float(moved @ moved) < STILL):
                continue
            self.slope[name] = float(moved @ y / (moved @ moved)) if fitted else 1.0
            kinds, place = np.unique(who, return_inverse=True)
            if len(kinds) < LEAST:
                continue
            xy, xx = (np.bincount(place, each, len(kinds)) for each in (moved * y, moved * moved))
            without = np.divide(xy.sum() - xy, xx.sum() - xx, out=np.zeros(len(kinds)), where=xx.sum() - xx > STILL)
            said = self._told(name, moved, without[place] if fitted else np.ones(len(place)))  # m
            off = y + home.accuracy - said
            self.error[name] = float(np.abs(off).mean())
            self.spread[name] = _edges(off / (GROWTH + np.abs(said - home.accuracy)))

    def _told(self, name: str, moved: Floats, slope: Floats | float) -> Floats:  # m -> m
        gauge, fitted = RULES[name]
        start = self.home.accuracy if fitted else self.home.reading[GAUGES.index(gauge)]
        return np.clip(start + slope * moved, 0.0, 1.0)

    @property
    def chosen(self) -> str | None:
        """The estimate with the least error; where none is known, ATC, since it wants no shifts; else None."""
        if self.error:
            return min(self.error, key=lambda name: self.error[name])
        return next((name for name in (ATC_ENTROPY, ATC) if name in self.slope), None)

    def estimate(self, there: Answers) -> dict[str, Estimate]:
        """Each estimate that can be made of these answers."""
        moved = self.home.read(there) - self.home.reading  # g
        made = {}
        for name, slope in self.slope.items():
            step = moved[GAUGES.index(RULES[name][0])]
            if math.isnan(step):
                continue
            value = float(self._told(name, np.array([step]), slope)[0])
            likely = (value * len(there) + 1) / (len(there) + 2)  # an accuracy of 0 or 1 has a sampling error too
            noise = NORMAL * math.sqrt(likely * (1 - likely) * (1 / len(there) + 1 / len(self.home.right)))
            scale = GROWTH + abs(value - self.home.accuracy)
            down, up = (scale * edge for edge in self.spread.get(name, (0.0, 0.0)))
            low, high = value - math.hypot(down, noise), value + math.hypot(up, noise)
            made[name] = Estimate(value, max(0.0, low), min(1.0, high), self.error.get(name))
        return made


def _edges(score: Floats) -> tuple[float, float]:  # m
    """The quantiles between which a new score lies with probability LEVEL, were it drawn like these; 0 is inside."""
    order, tail = np.sort(score), (1 - LEVEL) / 2
    last = math.floor(tail * (len(order) + 1))
    low, high = (order[0], order[-1]) if last < 1 else (order[last - 1], order[-last])
    return min(0.0, float(low)), max(0.0, float(high))
