"""CRPS by closed forms, by its integral, as a sample's; its floor by drawing; PIT."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.uncertainty.crps import (
    crps_normal,
    crps_of_targets,
    crps_point,
    crps_quantiles,
    floor_normal,
    floor_quantiles,
)
from assay.methods.uncertainty.pit import Pit, pit_histogram, pit_normal, pit_quantiles
from assay.tasks import Regression

RNG = np.random.default_rng(0)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_a_standard_normal_at_its_mean():
    assert_close(crps_normal(column(0), column(1), column(0)), column((math.sqrt(2) - 1) / math.sqrt(math.pi)))


@pytest.mark.parametrize(("mean", "sd", "y"), [(0, 1, 0.7), (3, 0.2, 2.1), (-1, 4, 9), (5, 1, 5)])
def test_the_closed_form_is_the_integral(mean, sd, y):
    x = np.linspace(mean - 12 * sd - abs(y), mean + 12 * sd + abs(y), 400_001)
    cdf = torch.special.ndtr(torch.from_numpy((x - mean) / sd)).numpy()
    by_hand = np.trapezoid((cdf - (x >= y)) ** 2, x)
    assert float(crps_normal(column(mean), column(sd), column(y))) == pytest.approx(by_hand, abs=1e-3 * sd)


def test_a_spread_of_nothing_is_a_point_and_small_ones_come_near_it():
    mean, y = column(1.0, 2.0, 3.0), column(1.5, 2.0, -4.0)
    zero = torch.zeros_like(mean)
    assert_close(crps_normal(mean, zero, y), crps_point(mean, y))
    assert_close(crps_normal(mean, zero + 1e-9, y), crps_point(mean, y), atol=1e-8, rtol=0)


def test_what_is_not_a_number_stays_so_and_a_negative_spread_is_refused():
    nan = column(math.nan)
    for given in ((nan, column(1), column(0)), (column(0), nan, column(0)), (column(0), column(1), nan)):
        assert crps_normal(*given).isnan().all()
    with pytest.raises(AssayError, match="standard deviation of -1"):
        crps_normal(column(0), column(-1), column(0))


def test_quantiles_at_half_steps_are_a_sample():
    sample, y = RNG.normal(size=(5, 8, 2)), RNG.normal(size=(5, 2))
    levels = tuple((k + 0.5) / 8 for k in range(8))
    to_y = np.abs(sample - y[:, None]).mean(1)
    among = np.abs(sample[:, :, None] - sample[:, None]).mean((1, 2))
    found = crps_quantiles(torch.from_numpy(np.sort(sample, 1)), levels, torch.from_numpy(y))
    np.testing.assert_allclose(found.numpy(), to_y - among / 2, rtol=1e-12)


def test_many_quantiles_of_a_normal_score_as_it_does_and_have_its_floor():
    levels = tuple((np.arange(200) + 0.5) / 200)
    q = torch.special.ndtri(torch.tensor(levels, dtype=torch.float64))[None, :, None]
    y = column(0.3)
    assert_close(crps_quantiles(q, levels, y), crps_normal(column(0), column(1), y), atol=1e-3, rtol=0)
    assert_close(floor_quantiles(q, levels), floor_normal(column(1)), atol=5e-3, rtol=0)


def test_one_quantile_in_the_middle_is_the_absolute_error_and_uneven_levels_weigh_what_is_nearest():
    q, y = torch.from_numpy(RNG.normal(size=(6, 3, 2))), torch.from_numpy(RNG.normal(size=(6, 2)))
    assert_close(crps_quantiles(q[:, :1], (0.5,), y), crps_point(q[:, 0], y))
    by_hand = np.zeros((6, 2))
    for a, w, row in zip((0.05, 0.5, 0.95), (0.275, 0.45, 0.275), q.numpy().transpose(1, 0, 2), strict=True):
        u = y.numpy() - row
        by_hand += 2 * w * np.where(u > 0, a * u, (a - 1) * u)
    np.testing.assert_allclose(crps_quantiles(q, (0.05, 0.5, 0.95), y).numpy(), by_hand)
    with pytest.raises(ShapeError, match="for 2 levels"):
        crps_quantiles(q, (0.1, 0.9), y)


def test_the_floor_is_the_mean_score_of_what_a_model_itself_states():
    rng = np.random.default_rng(1)
    y = torch.from_numpy(rng.normal(2, 3, size=(200_000, 1)))
    sd = torch.full_like(y, 3)
    assert_close(crps_normal(torch.full_like(y, 2), sd, y).mean(), floor_normal(sd).mean(), atol=0.01, rtol=0)
    levels, knots = (0.1, 0.4, 0.5, 0.9), np.array([-1.0, 0.0, 2.0, 5.0])
    u = rng.random(200_000)  # uniform between the knots, tails at the outermost: what the formula takes
    drawn = torch.from_numpy(np.interp(u, levels, knots))[:, None]
    q = torch.from_numpy(knots)[None, :, None]
    mean = crps_quantiles(q.expand(len(drawn), -1, -1), levels, drawn).mean()
    assert_close(floor_quantiles(q, levels).squeeze(), mean, atol=0.01, rtol=0)
    assert_close(floor_quantiles(q.flip(1), levels), floor_quantiles(q, levels))


def test_the_targets_own_distribution_scores_half_their_mean_difference():
    y = RNG.normal(size=(40, 3)) + 1e6
    by_hand = np.abs(y[:, None] - y[None]).mean((0, 1)) / 2
    np.testing.assert_allclose(crps_of_targets(torch.from_numpy(y)).numpy(), by_hand, rtol=1e-6)
    assert_close(crps_of_targets(column(3.0)), column(0.0)[0])


def test_the_loss_of_a_regression_with_a_spread_is_this_score():
    mean, sd, y = (torch.from_numpy(RNG.random((7, 2)) + 0.1) for _ in range(3))
    task = Regression(("a", "b"), (0.5, 2.0), spread=True)
    wanted = (crps_normal(mean, sd, y) / torch.tensor([0.5, 2.0])).mean(1)
    assert_close(task.loss(torch.stack([mean, sd], 1), y), wanted)


def test_levels_of_a_calibrated_normal_are_flat_and_of_a_narrow_one_heap_at_the_ends():
    y = torch.from_numpy(np.random.default_rng(2).normal(size=(20_000, 1)))
    zero, one = torch.zeros_like(y), torch.ones_like(y)
    flat = pit_histogram(pit_normal(zero, one, y), 10)
    assert float(flat.sum()) == pytest.approx(20_000)
    assert float(((flat - 2000) ** 2 / 2000).sum()) < 27.9  # chi-squared of 9, at 0.999
    narrow = pit_histogram(pit_normal(zero, one / 2, y), 10)
    assert narrow[0] > 2 * 2000
    assert narrow[-1] > 2 * 2000


def test_a_level_between_two_counts_evenly_for_all_between_them():
    assert_close(pit_histogram(Pit(column(0.1), column(0.35)), 10).numpy()[:5], np.array([0, 0.4, 0.4, 0.2, 0]))
    assert_close(pit_histogram(Pit(column(1.0), column(1.0)), 4).numpy(), np.array([0.0, 0, 0, 1]))
    point = pit_normal(column(0, 0, 0), column(0, 0, 0), column(-1, 0, 1))
    assert point.low.flatten().tolist() == [0, 0, 1]
    assert point.high.flatten().tolist() == [0, 1, 1]


def test_quantiles_tell_which_two_a_number_came_between():
    q = torch.tensor([[[1.0], [2.0], [3.0]]]).expand(4, -1, -1)
    found = pit_quantiles(q, (0.1, 0.5, 0.9), column(0.0, 1.5, 2.0, 7.0).float())
    np.testing.assert_allclose(found.low[:, 0], [0, 0.1, 0.1, 0.9], rtol=1e-6)
    np.testing.assert_allclose(found.high[:, 0], [0.1, 0.5, 0.9, 1], rtol=1e-6)
