r"""The calibration error behind an estimate of it, with what chance adds to the estimate taken off.

No estimate V of a calibration error is 0 for a calibrated model: chance alone gives it a floor. What V is worth is read
from laws of which the error e is known. They have the scores s at hand, and their outcomes come true with

    g_t(s) = sin^2( asin sqrt(s) -+ t ),     e(t) = mean | g_t(s) - s |,     t >= 0, once with - (too sure), once with +

Outcomes are drawn from g_t, the estimator answers V, and with m(e) and sd(e) the mean and standard deviation of V

    value   the e with m(e) = V on the side that the outcomes lean to; 0 where V is below m(0), the floor
    high    the largest e, on either side, with m(e) - 1.96 sd(e) <= V
    low     the larger of  V - m(0) - 2.24 sd(value)  and the least e with |mean o - mean s| <= e + 2.24 sd(mean o);
            least, because sd falls to 0 where g_t reaches 0 or 1, and a model may be right, or wrong, every time

The square root of the arcsine makes the gap g - s grow as the noise sqrt(s(1-s)) does. Of all gaps of one sign and size
these are the ones that raise V least (E|x + noise| is convex in x: the least sum has gaps in proportion to the noise),
so that `high` holds for others too. Gaps in few places raise V by all of their size on top of the floor: therefore
`low` takes the whole floor off, unless the outcomes lean to one side together, which is seen without bins.

Source: a confidence interval by inverting tests, Neyman, Phil. Trans. R. Soc. A 1937; the arcsine, Bartlett,
    Biometrics 1947; that binned estimates are too high, Roelofs et al., AISTATS 2022, arXiv:2012.08668, whose estimate
    of the bias is from such laws too. The estimators are those of `calibration.py`.
Adds: all of it. The interval held the truth in 97 % of the repeats (90 to 100 % by law; eight laws of other shapes on
    three distributions of scores, legacy and adaptive-convex, n = 100 and 500, 40 repeats each). Nothing here looks
    below a bin's or a kernel's width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import AssayError
from assay.methods.uncertainty.calibration import (
    FEW,
    NORMAL,
    WHOLE,
    Bins,
    Cells,
    Estimator,
    Rule,
    estimate,
    groups_of,
)
from assay.methods.uncertainty.density import Bandwidth
from assay.methods.uncertainty.probabilities import Floats, Reals, Support

EITHER = 2.241403  # standard deviations: each of two bounds is passed in 1.25 %
POINTS = 13  # errors at which outcomes are drawn, on either side
CLOSER = (0.5, 0.25, 0.1, 0.03)  # steps before the largest error there is, where more are drawn
TURNS = 257  # angles t at which e(t) is computed
CELLS = 4_000_000  # numbers in a table of draws


class AboveFloor(NamedTuple):
    value: float
    low: float
    high: float
    calibrated: float
    """What `value` is on average for a calibrated model: little, and not 0, because it is never negative."""
    estimate: float
    """V, as the estimator gives it."""
    floor: float
    """What the estimator gives on average for a calibrated model."""
    few: bool
    """Fewer than 30 inputs: no estimator can be trusted there."""


def above_floor(
    scores: ArrayLike,
    outcomes: ArrayLike,
    *,
    estimator: Estimator = "legacy",
    bins: Bins = None,
    bandwidth: Bandwidth = "silverman",
    support: Support | None = None,
    logits: bool = False,
    draws: int = 100,
    seed: int = 0,
) -> AboveFloor:  # scores: n in [0, 1], outcomes: n, 0 or 1;  or scores: n k, outcomes: n labels
    """The error of the (top) scores without what chance adds, with its (nominal) 95 % interval."""
    if draws < 20:
        raise AssayError(f"above_floor got draws={draws}; an interval wants at least 20, and 100 is usual.")
    rule = Rule(estimator, bins, bandwidth)
    (group,), n = groups_of(scores, outcomes, rule, "confidence", support, logits)
    score, hit = group.score, group.outcome
    shown = float(estimate(score[None], hit[None], rule, group.support)[0])
    cells = Cells.of(group, rule, n <= WHOLE)
    sides = (_side(cells, -1.0, shown, draws, seed), _side(cells, 1.0, shown, draws, seed))
    return behind(shown, float(hit.mean() - score.mean()), sides, few=n < FEW)


def behind(shown: float, lean: float, sides: tuple[Side, Side], *, few: bool) -> AboveFloor:
    """The error behind V, where mean o - mean s is `lean`, from laws that are too sure and laws that are not enough."""
    own = sides[int(lean > 0)]
    value = own.reaching(shown, 0)
    spread = float(np.interp(value, own.error, own.spread))
    low = max(0.0, shown - own.floor - EITHER * spread, own.leaning(abs(lean)))
    high = max(low, *(s.reaching(shown, -NORMAL) for s in sides))
    return AboveFloor(min(max(value, low), high), low, high, own.left, shown, own.floor, few)


class Side(NamedTuple):
    """What an estimator shows at errors from 0 on, all of one sign."""

    error: Floats  # p, rising from 0
    mean: Floats  # p, of V
    spread: Floats  # p, its standard deviation
    turned: Floats  # t, errors again, closer together
    noise: Floats  # t, standard deviation of mean(o)
    left: float  # mean over calibrated outcomes of the e with m(e) = V

    @property
    def floor(self) -> float:
        return float(self.mean[0])

    @classmethod
    def of(cls, error: Floats, tables: Floats, turned: Floats, noise: Floats) -> Side:  # p, p draws, t, t
        """From the estimates that each error shows."""
        mean = np.maximum.accumulate(tables.mean(1))
        left = float(np.interp(tables[0], mean, error).mean())
        return cls(error, mean, tables.std(1, ddof=1), turned, noise, left)

    def reaching(self, shown: float, deviations: float) -> float:
        """The largest e with m(e) + deviations * sd(e) <= V; 0 where there is none."""
        return _last(self.error, self.mean + deviations * self.spread - shown)

    def leaning(self, lean: float) -> float:
        """The least e with |mean o - mean s| <= e + 2.24 sd(mean o)."""
        far = self.turned + EITHER * self.noise - lean
        beyond = np.flatnonzero(far >= 0)
        if len(beyond) == 0:
            return float(self.turned[-1])
        i = int(beyond[0])
        return 0.0 if i == 0 else float(np.interp(0, far[i - 1 : i + 1], self.turned[i - 1 : i + 1]))


def _side(cells: Cells, side: float, shown: float, draws: int, seed: int) -> Side:
    score, weight = cells.score.astype(np.float64), cells.count / cells.count.sum()
    turn, angle = np.linspace(0, np.pi / 2, TURNS), np.arcsin(np.sqrt(score))
    laws = [_turned(angle, side * t) for t in turn]
    size = np.maximum.accumulate([weight @ np.abs(g - score) for g in laws])
    n = int(cells.count.sum())
    most = min(1.0, float(size[-1]), shown + 2 / np.sqrt(n))  # beyond, V is larger: sd(mean o) <= 1 / (2 sqrt n)
    error = np.linspace(0, most, POINTS)
    if most == size[-1]:  # all outcomes alike: towards that sd falls to 0 as a square root does
        error = np.sort(np.r_[error, most - error[1] * np.array(CLOSER)])
    rising = np.r_[True, np.diff(size) > 0]
    chances = [_turned(angle, side * t) for t in np.interp(error, size[rising], turn[rising])]
    tables = np.stack([_shown(cells, g, draws, seed) / n for g in chances])  # p draws
    return Side.of(error, tables, size, np.sqrt([weight @ (g * (1 - g)) / n for g in laws]))


def moved(score: Floats, turn: float) -> Floats:
    """sin^2(asin sqrt(s) + turn), from 0 to 1."""
    return _turned(np.arcsin(np.sqrt(score)), turn)


def _turned(angle: Floats, turn: float) -> Floats:
    return np.asarray(np.sin(np.clip(angle + turn, 0, np.pi / 2)) ** 2)


def _shown(cells: Cells, chance: Floats, draws: int, seed: int) -> Reals:  # m -> draws
    """n times V; the same luck for every law, so that their means differ by the laws alone."""
    rng, size = np.random.default_rng(seed), max(1, CELLS // len(chance))
    parts = [cells.drawn(rng, min(size, draws - start), chance) for start in range(0, draws, size)]
    return np.concatenate(parts)


def _last(at: Floats, height: Floats) -> float:
    """Where a rising line through these points is last at or below 0; the first place if it never is."""
    below = np.flatnonzero(height <= 0)
    if len(below) == 0:
        return float(at[0])
    i = int(below[-1])
    if i == len(at) - 1:
        return float(at[i])
    return float(np.interp(0, height[i : i + 2], at[i : i + 2]))
