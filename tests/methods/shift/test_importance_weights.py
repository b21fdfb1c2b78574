"""Importance weights from densities: the card's protocol over 60 seeds, limits, closed forms and other units."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_t, norm
from scipy.stats import t as student
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.shift.importance_weights import (
    DensityRatio,
    effective_size,
    fit_ratio,
    importance_weights,
    too_few,
)

SEEDS = 60
OUTLIERS = 5


class Drawn(NamedTuple):
    source: Tensor  # 150 1
    y: Tensor  # 150
    target: Tensor  # 100 1
    strays: Tensor  # 5 1
    noise: Tensor  # 5


def drawn(seed: int) -> Drawn:
    """sec. 5.4.1: sinc, N(1.1, 1/2) against N(2.1, 10/17), and five outliers on [-5, -4]."""
    rng = np.random.default_rng(seed)
    source, target = rng.normal(1.1, 1 / 2, 150), rng.normal(2.1, 10 / 17, 100)
    y = np.sinc(source) + rng.normal(0, 1 / 4, 150)
    strays = rng.uniform(-5, -4, OUTLIERS)
    parts = (source[:, None], y, target[:, None], strays[:, None], rng.normal(0, 1 / 4, OUTLIERS))
    return Drawn(*(torch.as_tensor(part) for part in parts))


def line_error(x: Tensor, y: Tensor, w: Tensor, target: Tensor) -> float:  # n 1, n, n, m 1
    """The squared error on the target of the line that weighted least squares finds."""
    root = w.sqrt()[:, None]
    design = torch.cat([torch.ones_like(x), x], 1)
    line = torch.linalg.lstsq(design * root, y[:, None] * root).solution
    truth = torch.as_tensor(np.sinc(target.numpy()))
    return float((torch.cat([torch.ones_like(target), target], 1) @ line - truth).square().mean())


@pytest.fixture(scope="module")
def seeds() -> list[Drawn]:
    return [drawn(seed) for seed in range(SEEDS)]


@pytest.fixture(scope="module")
def ratios(seeds: list[Drawn]) -> dict[float, list[DensityRatio]]:
    return {nu: [fit_ratio(d.source, d.target, nu=nu) for d in seeds] for nu in (1.0, 5.0, math.inf)}


def quantiles(values: list[float]) -> np.ndarray:
    return np.quantile(values, (0.1, 0.5, 0.9))


def test_the_fit_is_that_of_greatest_likelihood(seeds: list[Drawn]) -> None:
    x, source, target = torch.linspace(-6, 6, 50)[:, None].double(), seeds[0].source, seeds[0].target
    for nu in (3.0, math.inf):
        if math.isinf(nu):
            s, t = ((norm, norm.fit(part)) for part in (source, target))
        else:
            s, t = ((student, student.fit(part, fdf=nu)) for part in (source, target))
        naive = t[0].logpdf(x[:, 0], *t[1]) - s[0].logpdf(x[:, 0], *s[1])
        assert_close(fit_ratio(source, target, nu=nu)(x), torch.as_tensor(naive), rtol=2e-3, atol=2e-3)


def test_in_many_dimensions_it_is_the_ratio_of_two_t_densities() -> None:
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(3, 3))
    source, target = rng.normal(size=(400, 3)), rng.normal(size=(300, 3)) @ mix + 1
    ratio = fit_ratio(torch.as_tensor(source), torch.as_tensor(target), nu=3.0)
    means = ratio.pair.mean.numpy() * ratio.unit.numpy()
    scales = [np.linalg.inv(w.T @ w) * np.outer(ratio.unit, ratio.unit) for w in ratio.pair.whiten.numpy()]
    at = rng.normal(size=(20, 3)) * 4
    p_s, p_t = (multivariate_t(m, s, df=3).logpdf(at) for m, s in zip(means, scales, strict=True))
    assert_close(ratio(torch.as_tensor(at)), torch.as_tensor(p_t - p_s))
    way = np.array([0.3, -0.8, 0.5])  # far along it: the constant of the docstring
    bend = [way @ np.linalg.inv(s) @ way for s in scales]
    limit = np.linalg.det(scales[0]) ** 0.5 / np.linalg.det(scales[1]) ** 0.5 * (bend[0] / bend[1]) ** 3
    assert float(ratio(torch.as_tensor(way * 1e6)[None]).exp()) == pytest.approx(limit, rel=1e-3)


def test_far_away_the_t_weight_is_a_constant_and_the_gaussian_one_is_not(seeds: list[Drawn]) -> None:
    far = torch.tensor([[-1e6]], dtype=torch.float64)
    for nu in (1.0, 3.0, 5.0):
        ratio = fit_ratio(seeds[0].source, seeds[0].target, nu=nu)
        s_s, s_t = (1 / ratio.pair.whiten[:, 0, 0]).tolist()
        assert float(ratio(far).exp()) == pytest.approx((s_t / s_s) ** nu, rel=1e-3)
    assert abs(float(fit_ratio(seeds[0].source, seeds[0].target, nu=math.inf)(far))) > 1e9


def test_outliers_get_any_weight_from_gaussians_and_about_one_from_t(
    seeds: list[Drawn], ratios: dict[float, list[DensityRatio]]
) -> None:
    largest = {
        nu: [float(r(d.strays).exp().max()) for r, d in zip(of, seeds, strict=True)] for nu, of in ratios.items()
    }
    low, middle, high = quantiles(largest[math.inf])
    assert low < 1e-4
    assert 1 < middle < 1e3
    assert high > 1e7
    for nu, (down, up) in {1.0: (0.72, 0.99), 5.0: (0.46, 1.8)}.items():
        low, _, high = quantiles(largest[nu])
        assert low == pytest.approx(down, abs=0.1)
        assert high == pytest.approx(up, abs=0.3)


def test_a_share_of_the_weight_and_the_effective_size_tell_of_it(
    seeds: list[Drawn], ratios: dict[float, list[DensityRatio]]
) -> None:
    found = {}
    for nu in (1.0, math.inf):
        weights = [
            importance_weights(r(torch.cat([d.source, d.strays]))) for r, d in zip(ratios[nu], seeds, strict=True)
        ]
        shares = [float(w[-OUTLIERS:].sum() / w.sum()) for w in weights]
        found[nu] = np.median(shares), quantiles([effective_size(w) for w in weights]), [too_few(w) for w in weights]
    (bell, few, loud), (tail, many, calm) = found[math.inf], found[1.0]
    assert 0.2 < bell < 0.7
    assert tail == pytest.approx(OUTLIERS / 155, abs=0.02)
    assert few == pytest.approx([1.6, 6.1, 26], rel=0.5)
    assert many == pytest.approx([20, 25, 34], rel=0.25)
    assert sum(alarm is not None for alarm in loud) > 0.6 * SEEDS
    assert sum(alarm is not None for alarm in calm) < 0.1 * SEEDS


def test_without_weight_all_fits_agree_and_with_it_the_target_is_met(
    seeds: list[Drawn], ratios: dict[float, list[DensityRatio]]
) -> None:
    errors: dict[tuple[float, float], list[float]] = {}
    for nu in (1.0, math.inf):
        for power in (0.0, 1.0):
            errors[nu, power] = [
                line_error(d.source, d.y, importance_weights(r(d.source), power=power), d.target)
                for r, d in zip(ratios[nu], seeds, strict=True)
            ]
    assert errors[1.0, 0.0] == pytest.approx(errors[math.inf, 0.0], rel=1e-9)
    assert np.median(errors[1.0, 0.0]) > 0.3
    assert all(np.median(errors[nu, 1.0]) < 0.06 for nu in (1.0, math.inf))


def test_bad_outliers_bend_the_gaussian_line_in_the_bad_seeds(
    seeds: list[Drawn], ratios: dict[float, list[DensityRatio]]
) -> None:
    bad = {}
    for nu in (1.0, math.inf):
        errors = [
            line_error(
                torch.cat([d.source, d.strays]),
                torch.cat([d.y, torch.ones(OUTLIERS, dtype=torch.float64)]),
                importance_weights(r(torch.cat([d.source, d.strays]))),
                d.target,
            )
            for r, d in zip(ratios[nu], seeds, strict=True)
        ]
        bad[nu] = quantiles(errors)[2]
    assert bad[math.inf] > 0.3
    assert bad[1.0] < 0.1


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(lambda w: sum(w) > 1e-3))
def test_the_effective_size_lies_between_one_and_all(weights: list[float]) -> None:
    size = effective_size(torch.tensor(weights, dtype=torch.float64))
    assert 1 - 1e-9 <= size <= len(weights) * (1 + 1e-9)
    assert size == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))


def test_sizes_of_known_weights() -> None:
    assert effective_size(torch.ones(50)) == pytest.approx(50)
    assert effective_size(torch.eye(50)[3]) == pytest.approx(1)
    assert too_few(torch.ones(50)) is None
    assert "worth 1.0 equal ones, and the heaviest carries 100 %" in str(too_few(torch.eye(50)[3]))


def test_a_ratio_beyond_floating_point_still_has_weights() -> None:
    weights = importance_weights(torch.tensor([5000.0, 4999.0, -9000.0]))
    assert_close(weights, 3 * torch.tensor([1.0, 0.0, -14000.0]).softmax(0))


def test_other_units_and_a_feature_that_never_varies_change_nothing() -> None:
    rng = torch.Generator().manual_seed(0)
    source, target = torch.randn(200, 3, generator=rng), 1.5 * torch.randn(150, 3, generator=rng) + 0.5
    plain = fit_ratio(source, target)(source)
    unit = torch.tensor([1e3, 1.0, 1e-3])
    assert_close(fit_ratio(source * unit, target * unit)(source * unit), plain, rtol=1e-4, atol=1e-4)

    def widened(x: Tensor) -> Tensor:
        return torch.cat([x, torch.full_like(x[:, :1], 7.3)], 1)

    wide = fit_ratio(widened(source), widened(target))(widened(source))
    assert bool(wide.isfinite().all())
    # a t density of four dimensions is not that of three, even where the fourth is still
    assert float(torch.corrcoef(torch.stack([wide, plain]))[0, 1]) > 0.99


def test_what_cannot_be_weighed_is_refused_in_one_line() -> None:
    with pytest.raises(ShapeError, match=r"shape \(9,\) .* pass x\[:, None\]"):
        fit_ratio(torch.rand(9), torch.rand(9))
    with pytest.raises(AssayError, match="8 and 40 inputs of 7 features"):
        fit_ratio(torch.rand(8, 7), torch.rand(40, 7))
    with pytest.raises(AssayError, match="power=2"):
        importance_weights(torch.zeros(3), power=2)
    with pytest.raises(AssayError, match="not all 0"):
        effective_size(torch.zeros(3))
