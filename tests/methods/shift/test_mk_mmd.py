"""MK-MMD: the printed sums, closed forms, p-values that are what they say, and a map that is trained by it."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.shift import mk_mmd as module
from assay.methods.shift.mk_mmd import median_distance, mk_mmd, mmd_test


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n: int, d: int, seed: int, by: float = 0.0) -> Tensor:
    return by + torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


def kernel(x: Tensor, y: Tensor, scale: float) -> float:
    apart = float(((x - y) ** 2).sum())
    return sum(math.exp(-apart / (2 * scale * f)) for f in (0.25, 0.5, 1.0, 2.0, 4.0)) / 5


def as_printed(a: Tensor, b: Tensor, scale: float, *, biased: bool) -> float:
    """One pair at a time."""

    def mean(left: Tensor, right: Tensor, same: bool) -> float:
        pairs = [(i, j) for i in range(len(left)) for j in range(len(right)) if biased or not same or i != j]
        return sum(kernel(left[i], right[j], scale) for i, j in pairs) / len(pairs)

    return mean(a, a, True) + mean(b, b, True) - 2 * mean(a, b, False)


@pytest.mark.parametrize("biased", [True, False])
def test_both_estimates_are_the_printed_sums(biased: bool) -> None:
    a, b = normal(7, 3, 0), normal(5, 3, 1, by=0.5)
    for scale in (0.7, float(median_distance(torch.cat([a, b])))):
        assert_close(float(mk_mmd(a, b, biased=biased, scale=scale)), as_printed(a, b, scale, biased=biased))
    found = mmd_test(a, b, rng=seeded(0), deals=3)
    assert_close(found.biased if biased else found.squared, as_printed(a, b, found.scale, biased=biased))


def test_the_median_is_that_of_all_pairs_and_never_0() -> None:
    x = normal(9, 2, 0)
    apart = sorted(float(((x[i] - x[j]) ** 2).sum()) for i, j in combinations(range(9), 2))
    assert_close(float(median_distance(x)), apart[(len(apart) - 1) // 2])
    mostly = torch.zeros(10, 2)
    mostly[0] = 3
    assert_close(float(median_distance(mostly)), 9 * 18 / 45, rtol=1e-6, atol=0)  # 9 pairs of 45 are 18 apart: the mean
    assert float(median_distance(torch.ones(5, 2))) == 1


rows = st.lists(st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=2), min_size=2, max_size=6)


@settings(deadline=None, max_examples=40)
@given(rows, rows, st.floats(-50, 50, width=32))
def test_it_is_symmetric_above_0_and_blind_to_a_common_shift(
    one: list[list[float]], two: list[list[float]], by: float
) -> None:
    a, b = torch.tensor(one, dtype=torch.float64), torch.tensor(two, dtype=torch.float64)
    found = mk_mmd(a, b, scale=1.0)
    assert float(found) >= -1e-12
    assert_close(mk_mmd(b, a, scale=1.0), found, rtol=0, atol=1e-12)
    assert_close(mk_mmd(a + by, b + by, scale=1.0), found, rtol=0, atol=1e-9)
    assert abs(float(mk_mmd(a, a))) < 1e-12


def closed_form(by: float, d: int, scale: float) -> float:
    """Of N(0, 1) and N(by, 1) in d dimensions: x - y is normal with variance 2, of mean 0 within and `by` across."""
    total = 0.0
    for factor in (0.25, 0.5, 1, 2, 4):
        wide = scale * factor
        total += 2 * (wide / (wide + 2)) ** (d / 2) * (1 - math.exp(-d * by**2 / (2 * (wide + 2)))) / 5
    return total


def test_it_tends_to_the_closed_form_of_two_gaussians() -> None:
    truth = closed_form(0.4, 3, 2.0)
    widths = []
    for n in (50, 400, 3200):
        found = mmd_test(normal(n, 3, n), normal(n, 3, n + 1, by=0.4), rng=seeded(0), deals=20, scale=2.0)
        widths.append(found.high - found.low)
        assert found.low <= truth <= found.high
    assert abs(found.squared - truth) < 0.1 * truth
    assert widths[2] < widths[1] / 2 < widths[0] / 4


@pytest.mark.parametrize("by", [0.0, 0.5])
def test_the_interval_holds_the_closed_form_as_often_as_it_says(by: float) -> None:
    truth, held = closed_form(by, 2, 2.0), 0
    for seed in range(150):
        a, b = normal(40, 2, 2 * seed), normal(30, 2, 2 * seed + 1, by=by)
        found = mmd_test(a, b, rng=seeded(seed), deals=60, scale=2.0)
        held += found.low <= truth <= found.high
    assert held / 150 >= 0.9
    assert held / 150 <= 0.99 or by == 0  # where nothing moved it is wider than it need be


def test_it_grows_with_the_shift_of_the_mean() -> None:
    a, b = normal(200, 4, 0), normal(200, 4, 1)
    b = b - b.mean(0) + a.mean(0)
    found = [float(mk_mmd(a, b + by, biased=False, scale=8.0)) for by in (0.0, 0.2, 0.4, 0.6, 0.8)]
    assert found == sorted(found)
    assert found[1] > found[0] + 1e-4


def dealt_by_hand(a: Tensor, b: Tensor, scale: float) -> list[float]:
    """Of every way to deal the rows of both into sides of these sizes."""
    pool, found = torch.cat([a, b]), []
    for first in combinations(range(len(pool)), len(a)):
        rest = [i for i in range(len(pool)) if i not in first]
        found.append(float(mk_mmd(pool[list(first)], pool[rest], biased=False, scale=scale)))
    return found


@pytest.mark.parametrize("sizes", [(4, 4), (5, 4), (5, 3)])
@pytest.mark.parametrize("unit", [1, 2])
def test_a_deal_is_the_estimate_of_the_rows_dealt_anew(
    sizes: tuple[int, int], unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in units, where blocks of the matrix hold some of the rows, and where a unit is not full."""
    monkeypatch.setattr(module, "UNIT", unit)
    monkeypatch.setattr(module, "ENOUGH", 1)
    monkeypatch.setattr(module, "BLOCK", 4)
    a, b = normal(sizes[0], 2, 0), normal(sizes[1], 2, 1, by=1.0)
    found = mmd_test(a, b, rng=seeded(0), deals=300)
    every = torch.tensor(dealt_by_hand(a, b, found.scale))
    nearest = (found.dealt.float()[:, None] - every).abs().min(1)
    assert float(nearest.values.max()) < 1e-6
    met = len({round(value, 5) for value in every[nearest.indices].tolist()})
    if unit == 1:
        assert met > 20
    else:  # of equal sides it is all one which is called the first
        assert met == {(4, 4): 3, (5, 4): 6, (5, 3): 3}[sizes]
    assert_close(found.squared, float(mk_mmd(a, b, biased=False, scale=found.scale)), rtol=0, atol=1e-6)
    assert float((every - found.squared).abs().min()) < 1e-6


def test_blocks_and_units_change_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENOUGH", 50)
    monkeypatch.setattr(module, "BLOCK", 64)
    a, b = normal(210, 5, 0).float(), normal(203, 5, 1, by=0.1).float()
    found = mmd_test(a, b, rng=seeded(0), deals=2)
    for biased, value in ((True, found.biased), (False, found.squared)):
        exact = float(mk_mmd(a.double(), b.double(), biased=biased, scale=found.scale))
        assert_close(value, exact, rtol=1e-5, atol=1e-7)


def test_a_far_row_costs_no_digits() -> None:
    a, b = normal(700, 4, 0), normal(700, 4, 1, by=0.3)
    a[3] = 1e4
    found = mmd_test(a.float(), b.float(), rng=seeded(0), deals=2)
    exact = float(mk_mmd(a, b, biased=False, scale=found.scale))
    assert_close(found.squared, exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize("unit", [1, 4])
def test_p_values_are_uniform_where_there_is_no_shift(unit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNIT", unit)
    monkeypatch.setattr(module, "ENOUGH", 5)
    p = [mmd_test(normal(24, 2, 2 * s), normal(21, 2, 2 * s + 1), rng=seeded(s), deals=99).p_value for s in range(200)]
    assert kstest(np.array(p) - np.random.default_rng(0).random(len(p)) / 100, "uniform").pvalue > 0.01
    assert min(p) >= 0.01


def test_p_values_of_samples_with_ties_are_never_too_small() -> None:
    p = [
        mmd_test(
            torch.randint(2, (6, 1), generator=seeded(s)).double(),
            torch.randint(2, (6, 1), generator=seeded(s + 999)).double(),
            rng=seeded(s),
            deals=39,
        ).p_value
        for s in range(200)
    ]
    for alpha in (0.05, 0.1, 0.3, 0.5):
        assert np.mean(np.array(p) <= alpha) <= alpha + 2 * math.sqrt(alpha * (1 - alpha) / 200)


def test_power_rises_to_1_with_the_size_of_the_samples() -> None:
    power = []
    for n in (10, 40, 200):
        p = [
            mmd_test(normal(n, 3, 2 * s), normal(n, 3, 2 * s + 1, by=0.35), rng=seeded(s), deals=59).p_value
            for s in range(40)
        ]
        power.append(float(np.mean(np.array(p) <= 0.05)))
    assert power == sorted(power)
    assert power[0] < 0.6
    assert power[-1] == 1


def test_the_least_that_is_said_to_be_seen_is_seen_eight_times_in_ten() -> None:
    n, by = 60, 0.0
    least = mmd_test(normal(n, 2, 0), normal(n, 2, 1), rng=seeded(0), deals=400, scale=2.0).least()
    while closed_form(by, 2, 2.0) < least:
        by += 0.005
    seen = [
        mmd_test(normal(n, 2, 2 * s), normal(n, 2, 2 * s + 1, by=by), rng=seeded(s), deals=59, scale=2.0).p_value
        <= 0.05
        for s in range(100)
    ]
    assert 0.77 <= np.mean(seen) <= 0.97


def test_the_witness_is_the_difference_of_the_mean_kernels_to_the_others() -> None:
    a, b = normal(6, 2, 0), normal(4, 2, 1, by=1.0)
    found = mmd_test(a, b, rng=seeded(0), deals=2)
    to_a = sum(kernel(b[1], x, found.scale) for x in a) / 6
    to_b = sum(kernel(b[1], b[j], found.scale) for j in (0, 2, 3)) / 3
    assert_close(float(found.witness[1][1]), to_a - to_b)
    assert_close(float(found.witness[0].mean() - found.witness[1].mean()), found.squared)  # rows keep their order


def test_the_farthest_by_the_witness_are_the_ones_that_were_moved() -> None:
    a, b = normal(100, 3, 0), normal(100, 3, 1)
    b[:20] += 4
    far = mmd_test(a, b, rng=seeded(0), deals=2).witness[1].argsort()[:20]
    assert int((far < 20).sum()) >= 18


def test_features_that_are_all_equal_are_no_shift() -> None:
    found = mmd_test(torch.zeros(30, 4), torch.zeros(40, 4), rng=seeded(0), deals=50)
    assert found.p_value == 1
    assert found.squared == pytest.approx(0, abs=1e-12)


def test_its_gradient_is_right() -> None:
    a, b = normal(4, 2, 0).requires_grad_(), normal(3, 2, 1, by=0.5)
    for biased in (True, False):
        assert torch.autograd.gradcheck(lambda x, how=biased: mk_mmd(x, b, biased=how, scale=1.5), (a,))


def trained(source: Tensor, target: Tensor, steps: int = 40) -> tuple[Tensor, float, float]:
    """A linear map of the target that brings it to the source by MMD alone; the loss before and after."""
    scale = float(median_distance(torch.cat([source, target])))
    weight, bias = torch.eye(source.shape[1], dtype=torch.float64), torch.zeros(source.shape[1], dtype=torch.float64)
    weight.requires_grad_(), bias.requires_grad_()
    optimiser = torch.optim.Adam([weight, bias], lr=0.15)
    first = last = 0.0
    for step in range(steps):
        loss = mk_mmd(source, target @ weight + bias, scale=scale)
        first, last = (loss.item() if step == 0 else first), loss.item()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return (target @ weight + bias).detach(), first, last


def two_classes(n: int, share: float, seed: int, by: float) -> tuple[Tensor, Tensor]:
    """Classes at -2 and 2 on the first axis, a share of the second one, all moved by `by`."""
    y = (torch.arange(n) < share * n).long()
    x = 0.5 * normal(n, 2, seed)
    x[:, 0] += 4.0 * y - 2 + by
    return x, y


def test_minimising_it_moves_the_means_together_and_with_prior_shift_mixes_the_classes() -> None:
    source, _ = two_classes(100, 0.5, 0, 0.0)
    for share in (0.5, 0.1):
        target, y = two_classes(100, share, 1, 0.6)
        moved, before, after = trained(source, target)
        assert after < 0.5 * before
        gap = [float((x.mean(0) - source.mean(0)).norm()) for x in (target, moved)]
        assert gap[1] < 0.5 * gap[0]
        right = float(((moved[:, 0] > 0).long() == y).double().mean())
        if share == 0.5:
            assert right > 0.98
        else:  # to look like the source, half of them have to be on either side, and 9 in 10 are of one class
            assert right < 0.75


def test_what_cannot_be_compared_is_told_in_one_line() -> None:
    with pytest.raises(ShapeError, match=r"shapes \(3, 2\) and \(3, 4\); give rows of the same length"):
        mk_mmd(torch.zeros(3, 2), torch.zeros(3, 4))
    with pytest.raises(AssayError, match="samples of 1 and 3 rows; give at least 2"):
        mmd_test(torch.zeros(1, 2), torch.zeros(3, 2), rng=seeded(0))
    broken = torch.zeros(3, 2)
    broken[2, 1] = torch.nan
    with pytest.raises(AssayError, match="Row 2 of the second sample holds NaN or inf"):
        mk_mmd(torch.zeros(3, 2), broken)
    with pytest.raises(AssayError, match="deals=0"):
        mmd_test(torch.zeros(3, 2), torch.zeros(3, 2), rng=seeded(0), deals=0)
