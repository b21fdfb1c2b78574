from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.certify.smoothing import lower_chance, smooth

W, B = torch.tensor([3.0, -4.0, 0.0]), 0.5  # ||W|| = 5


def halves(x: Tensor) -> Tensor:
    """Two classes, margin W'x + B for class 0; under noise P(class 0) = Phi(margin / (5 sigma)), so R = |margin|/5."""
    score = x.flatten(1) @ W + B
    return torch.stack([score, torch.zeros_like(score)], 1)


def at_distance(*far: float) -> Tensor:
    """Points whose signed distance from the boundary is known."""
    return torch.stack([(5 * f - B) / 25 * W for f in far])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_linear_classifier_gets_its_distance_from_below() -> None:
    """The smoothed linear classifier's radius is the distance to the boundary: never above, closer with more draws."""
    far = torch.tensor([0.1, 0.3, 0.6, -0.2, -0.5], dtype=torch.float64)
    gaps = []
    for n in (200, 2_000, 50_000):
        got = smooth(halves, at_distance(*far.tolist()), sigma=0.5, draws=(100, n), rng=seeded())
        kept = got.label >= 0
        assert (got.label[kept] == (far < 0).long()[kept]).all()
        assert (got.radius <= far.abs()).all()
        gaps.append((far.abs() - got.radius).max().item())
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.02


def test_radius_is_the_formula_of_the_count() -> None:
    got = smooth(halves, at_distance(0.2, -0.4), sigma=0.7, draws=(10, 500), alpha=0.01, rng=seeded(3))
    for hits, chance, radius in zip(got.hits.tolist(), got.chance.tolist(), got.radius.tolist(), strict=True):
        low = binomtest(hits, 500, alternative="greater").proportion_ci(0.99, method="exact").low
        assert chance == pytest.approx(low, abs=1e-12)
        assert radius == pytest.approx(0.7 * norm.ppf(low), abs=1e-10)


@pytest.mark.parametrize("n", [1, 7, 1000])
@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.001])
def test_lower_chance_is_clopper_pearson(n: int, alpha: float) -> None:
    hits = torch.arange(n + 1)[:: max(1, n // 20)]
    exact = [binomtest(int(k), n, alternative="greater").proportion_ci(1 - alpha).low for k in hits]
    assert_close(lower_chance(hits, n, alpha=alpha), torch.tensor(exact, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    everything = lower_chance(torch.tensor([0, n]), n, alpha=alpha)
    assert_close(everything, torch.tensor([0, alpha ** (1 / n)], dtype=torch.float64), rtol=1e-9, atol=0)


def test_coverage_of_the_lower_chance() -> None:
    """Over 20,000 independent inputs the bound exceeds the true chance in at most a share alpha of them."""
    alpha, sigma, far = 0.05, 1.0, 0.8
    truth = norm.cdf(far / sigma)
    x = at_distance(far).expand(20_000, 3)
    got = smooth(halves, x, sigma=sigma, draws=(20, 60), alpha=alpha, batch=65_536, rng=seeded(1))
    wrong = int((got.chance > truth).sum())
    assert binomtest(wrong, len(x), alpha, alternative="greater").pvalue > 1e-3
    assert wrong > 0.2 * alpha * len(x)  # and it is not so low as to be useless: 60 draws leave it near alpha
    assert wrong == int((got.radius > far).sum())


def test_a_coin_flip_is_abstained_on() -> None:
    got = smooth(halves, at_distance(0.0, 1e-4, 2.0), sigma=0.5, draws=(100, 1000), rng=seeded())
    assert got.label.tolist() == [-1, -1, 0]
    assert got.radius[:2].tolist() == [0, 0]
    assert (got.chance[:2] <= 0.5).all()


def test_three_way_split_abstains_though_one_class_leads() -> None:
    def thirds(x: Tensor) -> Tensor:  # x ~ N: classes with chances .4, .3, .3
        u = torch.special.ndtr(x[:, 0])
        return torch.stack([u < 0.4, (u >= 0.4) & (u < 0.7), u >= 0.7], 1).float()

    got = smooth(thirds, torch.zeros(1, 1), sigma=1.0, draws=(1000, 20_000), rng=seeded())
    assert got.label.item() == -1
    assert got.hits.item() == pytest.approx(8000, abs=400)


@settings(deadline=None, max_examples=15)
@given(
    far=st.floats(-1, 1).filter(lambda f: abs(f) > 1e-3),
    sigma=st.floats(0.2, 1),
    seed=st.integers(0, 99),
    share=st.floats(0, 0.999),
)
def test_no_point_within_the_radius_changes_the_smoothed_class(
    far: float, sigma: float, seed: int, share: float
) -> None:
    """For the linear classifier g is known: the sign of the margin. The worst direction is straight to the boundary."""
    x = at_distance(far)
    got = smooth(halves, x, sigma=sigma, draws=(20, 1000), rng=seeded(seed))
    if got.label.item() >= 0:
        sideways = torch.randn(1, 3, generator=seeded(seed))
        for way in (-math.copysign(1, far) * W[None] / 5, sideways / sideways.norm()):
            assert halves(x + share * got.radius.item() * way).argmax(1).item() == got.label.item()


def test_batches_change_nothing() -> None:
    x = torch.randn(5, 2, 3, generator=seeded(9), dtype=torch.float64)
    w = torch.randn(6, 4, generator=seeded(8), dtype=torch.float64)
    sizes: list[int] = []

    def model(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x.flatten(1) @ w

    runs = []
    for batch in (1, 50, 64, 200, 100_000):
        sizes.clear()
        runs.append(smooth(model, x, sigma=0.8, draws=(33, 130), rng=seeded(2), batch=batch))
        assert max(sizes) <= batch
        assert sum(sizes) == 5 * (33 + 130)
    for run in runs[1:]:
        for a, b in zip(run, runs[0], strict=True):
            assert_close(a, b, rtol=0, atol=0)
    other = smooth(model, x, sigma=0.8, draws=(33, 130), rng=seeded(3))
    assert not torch.equal(other.hits, runs[0].hits)


def test_answers_about_one_input_share_nothing_that_a_random_model_draws() -> None:
    """One coin for all rows of a pass: within a batch of one input its answers would be one answer."""
    coin, batches = seeded(5), list[Tensor]()

    def tossed(x: Tensor) -> Tensor:
        batches.append(x)
        heads = torch.rand(1, generator=coin) < 0.8
        return torch.stack([torch.ones(len(x)), 2.0 * heads.expand(len(x))], 1)

    x, n = torch.arange(7.0)[:, None] * 1000, 2000
    got = smooth(tossed, x, sigma=0.5, draws=(50, n), batch=64, rows_apart=False, rng=seeded())
    for each in batches:
        assert len(set((each[:, 0] / 1000).round().tolist())) == len(each) <= 7
    assert sum(map(len, batches)) == 7 * (50 + n)
    assert got.label.tolist() == [1] * 7
    assert_close(got.hits / n, torch.full((7,), 0.8), rtol=0, atol=5 * math.sqrt(0.16 / n))  # binomial in each
    together = [smooth(tossed, x, sigma=0.5, draws=(50, n), batch=500, rng=seeded(s)).hits for s in range(5)]
    assert torch.stack(together).float().std() > 3 * math.sqrt(0.16 * n)  # which is not, where a batch shares its coin


def test_noise_is_gaussian_independent_and_not_clipped() -> None:
    seen: list[Tensor] = []

    def watch(x: Tensor) -> Tensor:
        seen.append(x)
        return torch.zeros(len(x), 2)

    x = torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    got = smooth(watch, x, sigma=0.5, draws=(1, 10_000), rng=seeded())
    assert got.hits.tolist() == [10_000, 10_000]
    e = (torch.cat(seen)[2:].reshape(2, 10_000, 2) - x[:, None]) / 0.5  # n draws d
    e = e.permute(0, 2, 1).reshape(4, 10_000)
    assert_close(e @ e.T / 10_000, torch.eye(4, dtype=torch.float64), rtol=0, atol=0.05)
    assert abs(e.mean().item()) < 0.02
    assert len(torch.unique(e)) == e.numel()  # no draw used twice


def not_a_number(x: Tensor) -> Tensor:
    return torch.full((len(x), 2), math.nan)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sigma": 0.0}, "sigma > 0.*got 0.0"),
        ({"sigma": math.nan}, "sigma > 0.*got nan"),
        ({"draws": (0, 10)}, "at least 1 draw"),
        ({"draws": (10, 0)}, "at least 1 draw"),
        ({"batch": 0}, "batch >= 1"),
        ({"alpha": 0.0}, "between 0 and 1, got 0.0"),
        ({"alpha": 1.0}, "between 0 and 1, got 1.0"),
        ({"x": torch.zeros(2, 3, dtype=torch.long)}, "got torch.int64"),
    ],
)
def test_settings_that_make_no_sense(change: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"x": torch.zeros(2, 3), "sigma": 0.5, "draws": (5, 5), "rng": seeded()} | change
    with pytest.raises(AssayError, match=words):
        smooth(halves, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "x", "kind", "words"),
    [
        (lambda x: x.sum(1), torch.zeros(2, 3), ShapeError, r"shape \(10,\) for 10 inputs"),
        (not_a_number, torch.zeros(2, 3), SubjectError, "NaN"),
        (halves, torch.zeros(0, 3), ShapeError, "at least one"),
    ],
)
def test_models_and_inputs_that_cannot_be_smoothed(
    model: Callable[[Tensor], Tensor], x: Tensor, kind: type[AssayError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        smooth(model, x, sigma=0.5, draws=(5, 5), rng=seeded())
