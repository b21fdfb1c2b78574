"""Intervals: by hand, against brute force, and what conformal ones keep over many draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.intervals import (
    by_chance,
    covered,
    fit_widening,
    interval_score,
    kept_by_luck,
    knows_nothing,
    widen,
    widening_limits,
    width,
)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_ends_are_inside_and_what_has_changed_places_or_is_no_number_holds_nothing():
    low, high = column(0, 0, 0, 0, 2, math.nan), column(1, 1, 1, 1, 1, 1)
    y = column(0, 1, 0.5, 1.1, 1.5, 0.5)
    assert covered((low, high), y).flatten().tolist() == [True, True, True, False, False, False]
    assert width((low, high)).flatten().tolist()[:5] == [1, 1, 1, 1, 0]


def test_the_interval_score_by_hand_and_least_for_the_true_quantiles():
    ends = (column(1, 1, 1), column(3, 3, 3))
    assert_close(interval_score(ends, column(2, 0, 4.5), 0.8), column(2, 2 + 10 * 1, 2 + 10 * 1.5))
    y = torch.from_numpy(np.random.default_rng(0).normal(size=(50_000, 1)))
    score = {r: float(interval_score((y * 0 - r, y * 0 + r), y, 0.9).mean()) for r in (1.3, 1.645, 2.1)}
    assert min(score, key=score.__getitem__) == 1.645


@pytest.mark.parametrize("level", [0, 1, 1.5, math.nan])
def test_a_level_that_is_none_is_refused(level):
    with pytest.raises(AssayError, match="between 0 and 1"):
        interval_score((column(0), column(1)), column(0), level)


def test_the_targets_own_interval():
    y = torch.arange(101, dtype=torch.float64)[:, None].repeat(1, 2) * torch.tensor([1.0, -2.0])
    low, high = knows_nothing(y, 0.9)
    assert_close(low, torch.tensor([5.0, -190.0], dtype=torch.float64))
    assert_close(high, torch.tensor([95.0, -10.0], dtype=torch.float64))


@pytest.mark.parametrize(("n", "level"), [(1, 0.9), (10, 0.9), (37, 0.5), (500, 0.95), (20, 0.05)])
def test_what_chance_shows_is_the_mean_deviation_of_a_binomial(n, level):
    k = np.arange(n + 1)
    assert by_chance(n, level) == pytest.approx(float(binom.pmf(k, n, level) @ np.abs(k / n - level)), rel=1e-9)


def test_the_widening_is_the_rank_that_the_promise_asks_for():
    y = column(*range(1, 20))  # residuals 1 to 19 of an answer of 0: k = ceil(20 * 0.9) = 18
    zero = torch.zeros_like(y)
    q = fit_widening((zero, zero), y, alpha=0.1)
    assert q.tolist() == [18]
    assert fit_widening((zero, zero), y, alpha=0.1, unit=zero + 2).tolist() == [9]
    assert fit_widening((zero - 30, zero + 30), y, alpha=0.1).tolist() == [-12]  # too wide: quantiles move inwards
    low, high = widen((zero, zero), q)
    assert_close((low[0], high[0]), (column(-18.0)[0], column(18.0)[0]))
    with pytest.raises(AssayError, match="8 held-out inputs are too few"):
        fit_widening((zero[:8], zero[:8]), y[:8], alpha=0.1)


def test_the_limits_of_a_width_hold_the_true_one():
    rng, inside, zero = np.random.default_rng(5), [], torch.zeros(100, 1, dtype=torch.float64)
    for _ in range(400):
        low, high = widening_limits((zero, zero), torch.from_numpy(rng.normal(size=(100, 1))), alpha=0.1)
        inside.append(bool((low <= 1.6449) & (high >= 1.6449)))
    assert 0.93 <= np.mean(inside) <= 0.995
    low, high = widening_limits((zero[:20], zero[:20]), torch.from_numpy(rng.normal(size=(20, 1))), alpha=0.1)
    assert low.isfinite().all()
    assert high.isinf().all()


def test_each_number_has_a_width_of_its_own():
    y = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 2)) * [1.0, 50.0])
    zero = torch.zeros_like(y)
    q = fit_widening((zero, zero), y, alpha=0.1)
    assert 20 < float(q[1] / q[0]) < 90
    with pytest.raises(ShapeError, match=r"give \(n, d\)"):
        fit_widening((zero[:, :1], zero[:, :1]), y, alpha=0.1)


def test_a_spread_of_nothing_that_is_wrong_too_often_asks_for_endless_intervals():
    y, zero = column(*([0.0] * 15), *([1.0] * 5)), torch.zeros(20, 1, dtype=torch.float64)
    q = fit_widening((zero, zero), y, alpha=0.1, unit=zero)
    assert q.isinf().all()
    assert covered(widen((zero, zero), q, zero), y + 1e9).all()
    few = column(*([0.0] * 19), 1.0)
    assert fit_widening((zero, zero), few, alpha=0.1, unit=zero).tolist() == [0]


def test_what_is_not_a_number_is_never_fitted_on():
    y = column(*range(20))
    bad = torch.where(y == 7, math.nan, 0.0)
    with pytest.raises(AssayError, match="held-out input 7 is not a number"):
        fit_widening((bad, bad), y, alpha=0.1)
    with pytest.raises(AssayError, match="held-out input 7 is not a number"):
        fit_widening((y * 0, y * 0), y, alpha=0.1, unit=1 + bad)


def noisy(n: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Targets of mean 0 whose noise is between 0.1 and 2.1, and that noise."""
    sd = torch.from_numpy(0.1 + 2 * rng.random((n, 1)))
    return sd * torch.from_numpy(rng.standard_t(5, (n, 1))), sd


@pytest.mark.parametrize("n", [19, 50])
@pytest.mark.parametrize("kind", ["absolute", "normalised", "quantiles"])
def test_the_promise_is_kept_on_average_over_draws_and_hardly_more(n, kind):
    rng, kept, draws, asked = np.random.default_rng(7), [], 400, 100
    for _ in range(draws):
        y, sd = noisy(n + asked, rng)
        ends = (-sd, sd) if kind == "quantiles" else (0 * y, 0 * y)  # quantiles that are far too narrow
        unit = sd if kind == "normalised" else None
        q = fit_widening((ends[0][:n], ends[1][:n]), y[:n], alpha=0.1, unit=None if unit is None else unit[:n])
        new = widen((ends[0][n:], ends[1][n:]), q, None if unit is None else unit[n:])
        kept.append(float(covered(new, y[n:]).double().mean()))
    exact = math.ceil((n + 1) * 0.9 - 1e-9) / (n + 1)
    error = np.std(kept) / math.sqrt(draws)
    assert np.mean(kept) == pytest.approx(exact, abs=4 * error)
    low, high = kept_by_luck(n, asked, 0.1)
    inside = np.mean([low - 1e-9 <= c <= high + 1e-9 for c in kept])
    assert 0.92 <= inside <= 1
    assert high - low < 0.35  # all of [0, 1] would hold them, too


def test_where_noise_is_small_those_that_know_of_it_are_narrower():
    rng = np.random.default_rng(3)
    y, sd = noisy(2000, rng)
    new = noisy(2000, rng)[1]
    plain = fit_widening((0 * y, 0 * y), y, alpha=0.1)
    normalised = fit_widening((0 * y, 0 * y), y, alpha=0.1, unit=sd)
    quantiles = fit_widening((-1.9 * sd, 1.9 * sd), y, alpha=0.1)
    calm = new < 0.6
    wide = {
        "plain": width(widen((0 * new, 0 * new), plain)),
        "normalised": width(widen((0 * new, 0 * new), normalised, new)),
        "quantiles": width(widen((-1.9 * new, 1.9 * new), quantiles)),
    }
    for name in ("normalised", "quantiles"):
        assert float(wide[name][calm].mean()) < 0.5 * float(wide["plain"][calm].mean())
        assert float(wide[name][~calm].max()) > float(wide["plain"].max())
