r"""Kernel densities of scores, and what they say about calibration: the error, and how often each score comes true.

    f(s)   = (1/n) sum_i K_h(s - s_i)                                 the scores mirrored at both ends of the support
    rel(s) = P(o = 1 | s) = pi f(s | o=1) / f(s),   LCE(s) = rel(s) - s,   pi = mean(o)
    ECE_d  = \int f(s) |LCE(s)| ds = \int | pi f(s | o=1) - s f(s) | ds

Both densities have the same bandwidth h, the standard deviation of the triweight kernel (1 - u^2)^3; Silverman's is
(4 / 3n)^(1/5) min(sd, IQR / 1.349) of all scores. Scores are laid on a grid by linear binning, which a cosine transform
of type I smooths: a histogram of a grid that includes both ends, its end cells doubled, is half a period of the
mirrored one, and on such sequences that transform is the Fourier transform.

Source: Posocco & Bonnefoy, "Estimating Expected Calibration Errors", 2021, sec. 4.4-4.5.
Departs from print: (1) ECE_d is the product form, where print divides by f(s) and multiplies by it again. (2) Scores of
    the top class lie in [1/k, 1], and are mirrored there. (3) All mirror images that reach the support count, so that
    no mass leaks. (4) Where half of the scores are equal, IQR is 0 and sd stands alone.
Adds to print: the band resamples the grid's cells by multinomial counts, which is to resample inputs and to round each
    at random to one of its two neighbours on the grid, 1/4096 of the support apart.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import dct, idct

from assay.errors import AssayError
from assay.methods.uncertainty.probabilities import Floats, Ints, Reals, Support, check_support, pairs

Bandwidth = float | Literal["silverman"]

GRID = 4097  # points of a density: steps of 1/4096 of the support, and a fast transform
DRAWN = 16  # every so many of them are points of a reliability curve
LEAST = 1e-5  # of the highest density: below is the rounding of the transform


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


def reliability_curve(
    scores: ArrayLike,
    outcomes: ArrayLike,
    *,
    bandwidth: Bandwidth = "silverman",
    support: Support = (0.0, 1.0),
    level: float = 0.95,
    draws: int = 500,
    seed: int = 0,
) -> ReliabilityCurve:  # n in [0, 1], n of 0 or 1
    """rel(s) of the inputs, over bootstraps of them."""
    score, hit = pairs(scores, outcomes)
    if draws < 2:
        raise AssayError(f"reliability_curve got draws={draws}; a band wants at least 2, and 500 is usual.")
    shape = spectrum(width_of(score[None], bandwidth), check_support(support, score))
    at, share = on_grid(score[None], support)
    mass = np.concatenate([sums(at, share, o[None], GRID)[0] for o in (hit, 1 - hit)])  # 2g
    held = np.flatnonzero(mass)
    rng, reached, kept = np.random.default_rng(seed), np.ones((GRID - 1) // DRAWN + 1, dtype=bool), []
    for start in range(0, draws, 100):
        count = np.zeros((min(100, draws - start), 2 * GRID))
        count[:, held] = rng.multinomial(len(score), mass[held] / mass[held].sum(), size=len(count))
        right, wrong = np.moveaxis(smooth(count.reshape(-1, 2, GRID), shape)[..., ::DRAWN], 1, 0)  # draws p
        every = right + wrong
        reached &= (every > LEAST * every.max()).all(0)
        kept.append(right / np.where(reached, every, 1.0))
    curves = np.concatenate(kept)[:, reached].clip(0, 1)
    median, low, high = np.quantile(curves, [0.5, (1 - level) / 2, (1 + level) / 2], axis=0)
    return ReliabilityCurve(grid(support)[::DRAWN][reached], median, low, high)


def density_error(score: Floats, outcome: Floats, support: Support, bandwidth: Bandwidth) -> Floats:  # r n, r n -> r
    """ECE_d of each row. `outcome` may be a probability; nothing is checked."""
    at, share = on_grid(score, support)
    mass = np.stack([sums(at, share, o, GRID) for o in (outcome, np.ones_like(score))])  # 2 r g
    right, every = smooth(mass, spectrum(width_of(score, bandwidth), support))
    return np.asarray(gap(right, every, support) / score.shape[1], dtype=np.float64)


def width_of(score: Floats, bandwidth: Bandwidth) -> Floats:  # r n -> r, or 1 for all
    """The bandwidth, or Silverman's."""
    if not isinstance(bandwidth, str):
        return np.array([float(bandwidth)])
    n = score.shape[1]
    spread = score.std(axis=1, ddof=min(1, n - 1))
    low, high = np.quantile(score, [0.25, 0.75], axis=1)
    middle = (high - low) / 1.3489795
    return np.asarray((4 / (3 * n)) ** 0.2 * np.where(middle > 0, np.minimum(spread, middle), spread))


def grid(support: Support) -> Floats:  # -> g
    return np.linspace(*support, GRID)


def on_grid(score: Floats, support: Support) -> tuple[Ints, Floats]:  # ... -> ..., ...
    """The point of the grid to the left of each score, and the share of the next one."""
    return between((score - support[0]) / (support[1] - support[0]) * (GRID - 1), GRID - 1)


def between(place: Floats, last: int) -> tuple[Ints, Floats]:
    """Linear binning: the left neighbour among 0..last of each place, and the share of the right one."""
    place = np.clip(place, 0, last)
    at = place.astype(np.intp)
    return at, place - at


def sums(at: Ints, share: Floats, value: Floats, size: int) -> Floats:  # r n -> r size
    """The values of each row added up where they belong: 1 - share at `at`, the share at the place after it."""
    rows = len(at)
    flat = (at + size * np.arange(rows)[:, None]).ravel()
    right = share * value
    total = np.bincount(flat, (value - right).ravel(), rows * size)
    total[1:] += np.bincount(flat, right.ravel(), rows * size)[:-1]  # a last place shares nothing
    return np.asarray(total.reshape(rows, size), dtype=np.float64)


def spectrum(width: Floats, support: Support) -> Floats:  # r -> r g
    """Of the kernel, which ends at three standard deviations, and of all its mirror images."""
    span = support[1] - support[0]
    step = span / (GRID - 1)
    reach = np.maximum(3 * width, step)[:, None]  # below a step: no smoothing
    images = max(0, int(np.ceil((reach.max() / span - 1) / 2)))  # beyond those that touch the support
    away = step * np.arange(GRID)
    kernel = np.zeros((len(width), GRID))
    for m in range(-images, images + 1):
        bump = np.clip(1 - ((away + 2 * span * m) / reach) ** 2, 0, None)
        kernel += bump * bump * bump
    wave = dct(kernel, type=1)
    return np.asarray(wave / wave[:, :1])


def smooth(mass: Reals, wave: Reals) -> Reals:  # ... g -> ... g
    """Mass on the grid, smoothed by a kernel's spectrum, its mirror images added; per step of the grid."""
    mirrored = np.array(mass, order="C")
    mirrored[..., [0, -1]] *= 2
    return np.asarray(idct(dct(mirrored, type=1) * wave, type=1))


def gap(right: Reals, every: Reals, support: Support) -> Reals:  # ... g -> ...
    """The integral of |right - s every| by the trapezoid rule, in steps of the grid."""
    height = np.abs(right - grid(support).astype(every.dtype) * every)
    height[..., [0, -1]] /= 2
    return np.asarray(height.sum(-1))
