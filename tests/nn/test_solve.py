"""The equation step by step: exact where it is known, its strong orders, its jumps, and what each noise is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest, poisson
from torch import Tensor
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn.solve import JUMPS, KINDS, DepthNoise, Kind, solve

A = torch.tensor([[0.1, -1.0, 0.3], [0.8, -0.2, 0.0], [0.0, 0.5, -0.4]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def linear(h: Tensor, t: float) -> Tensor:
    return h @ A.T


def nothing(h: Tensor, t: float) -> Tensor:
    return torch.zeros_like(h)


def by_hand(h: Tensor, steps: int, span: float, pace: float = 1.0) -> Tensor:
    """Euler, one row and one step at a time."""
    rows = [row.clone() for row in h]
    for _ in range(steps):
        rows = [row + pace * span / steps * (A @ row) for row in rows]
    return torch.stack(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_it_is_eulers_ode(kind: Kind) -> None:
    h = torch.randn(4, 3, dtype=torch.float64)
    still = DepthNoise(kind, sigma=0.0, rate=0.0)
    assert not still.is_random
    expected = by_hand(h, 7, 1.5, 0.5 if kind in JUMPS else 1.0)
    assert_close(solve(linear, h, still, steps=7, span=1.5), expected)
    off = DepthNoise(kind, sigma=2.0, drop=0.5).quiet()
    assert_close(solve(linear, h, off, steps=7, span=1.5), expected)


@pytest.mark.parametrize("scheme", ["euler", "milstein"])
def test_a_linear_drift_goes_to_its_exponential_and_the_error_halves_with_the_step(scheme: str) -> None:
    h = torch.randn(5, 3, dtype=torch.float64)
    exact = h @ torch.linalg.matrix_exp(A * 1.5).T
    errors = [
        float((solve(linear, h, DepthNoise(), steps=k, span=1.5, scheme=scheme) - exact).norm())  # type: ignore[arg-type]
        for k in (50, 100, 200, 400)
    ]
    for coarse, fine in pairwise(errors):
        assert coarse / fine == pytest.approx(2, abs=0.1)
    assert errors[-1] < 0.01


def test_the_drift_is_told_the_depth() -> None:
    """dh = 2 t dt from 0 to 1 in k steps: the sum of 2 j / k^2 for j < k."""
    for k in (1, 4, 10):
        got = solve(lambda h, t: torch.full_like(h, 2 * t), torch.zeros(1, 1), DepthNoise(), steps=k)
        assert float(got) == pytest.approx((k - 1) / k)


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_additive_noise_alone_is_a_gaussian_of_the_depth_whatever_the_step(steps: int) -> None:
    end = solve(nothing, torch.full((20000, 1), 3.0), DepthNoise("additive", sigma=0.7), steps=steps, span=2.5)
    spread = 0.7 * np.sqrt(2.5)
    assert kstest((end[:, 0].numpy() - 3.0) / spread, "norm").pvalue > 1e-3
    assert float(end.std()) == pytest.approx(spread, rel=0.03)


def strong_errors(scheme: str, sigma: float, coarser: tuple[int, ...]) -> list[float]:
    """E |x_T - the solution on the same path| of dx = x dt + sigma x dB, for steps of so many fine increments."""
    fine, paths = 256, 4000
    db = torch.randn(fine, paths, 1, dtype=torch.float64) / fine**0.5
    exact = ((1 - sigma**2 / 2) + sigma * db.sum(0)).exp()
    start, noise = torch.ones(paths, 1, dtype=torch.float64), DepthNoise("multiplicative", sigma=sigma)
    return [
        float(
            (
                solve(
                    lambda h, t: h,
                    start,
                    noise,
                    steps=fine // k,
                    scheme=scheme,  # type: ignore[arg-type]
                    driven_by=db.unflatten(0, (-1, k)).sum(1),
                )
                - exact
            )
            .abs()
            .mean()
        )
        for k in coarser
    ]


@pytest.mark.parametrize(("scheme", "order"), [("euler", 0.5), ("milstein", 1.0)])
def test_the_strong_orders_are_a_half_and_one(scheme: str, order: float) -> None:
    coarser = (4, 8, 16, 32, 64)
    errors = strong_errors(scheme, 1.0, coarser)
    slope = np.polyfit(np.log(coarser), np.log(errors), 1)[0]
    assert slope == pytest.approx(order, abs=0.12)


def test_for_additive_noise_the_schemes_are_one() -> None:
    h, db = torch.randn(6, 3, dtype=torch.float64), torch.randn(9, 6, 3, dtype=torch.float64)
    noise = DepthNoise("additive", sigma=0.4)
    assert_close(*(solve(linear, h, noise, steps=9, driven_by=db, scheme=s) for s in ("euler", "milstein")))  # type: ignore[arg-type]


@given(p=st.floats(0.05, 0.95))
@settings(deadline=None, max_examples=25)
def test_what_gaussian_dropout_puts_a_gaussian_for_has_mean_nought_and_variance_one(p: float) -> None:
    """z = sqrt((1 - p) / p) (gamma / (1 - p) - 1), gamma 0 with probability p: the two moments, exactly."""
    z = np.sqrt((1 - p) / p) * (np.array([0.0, 1.0]) / (1 - p) - 1)
    chance = np.array([p, 1 - p])
    assert chance @ z == pytest.approx(0, abs=1e-12)
    assert chance @ z**2 == pytest.approx(1)
    f = 0.7
    assert f * np.array([0.0, 1.0]) / (1 - p) == pytest.approx(f + np.sqrt(p / (1 - p)) * f * z)


@pytest.mark.parametrize("kind", ["additive", "multiplicative", "gaussian-dropout"])
def test_the_mean_of_a_noisy_step_is_the_quiet_one_and_its_spread_is_g(kind: Kind) -> None:
    h, f, sigma, dt, n = torch.tensor([[1.5, -0.5]]), torch.tensor([[0.8, 2.0]]), 0.6, 0.25, 100_000
    noise = DepthNoise(kind, sigma=sigma)
    wide = h.expand(n, 2).clone()
    step = noise.step(wide, f.expand(n, 2), dt, noise.draw(wide, dt))
    g = {"additive": torch.ones(1, 2), "multiplicative": h, "gaussian-dropout": f}[kind].abs() * sigma
    away = (step.mean(0, keepdim=True) - (h + f * dt)).abs() / (g * dt**0.5 / n**0.5)
    assert float(away.max()) < 4.5
    assert_close(step.std(0, keepdim=True), g * dt**0.5, rtol=0.02, atol=0)
    assert torch.equal(wide, h.expand(n, 2))  # what comes in is left alone


@pytest.mark.parametrize("rate", [0.7, 3.0])
def test_jumps_are_counted_as_poisson(rate: float) -> None:
    n, steps, span = 4000, 400, 2.0
    noise = DepthNoise("dropout", rate=rate, drop=0.3)
    h = torch.zeros(n, 1)
    drawn = torch.stack([noise.draw(h, span / steps) for _ in range(steps)])[..., 0]  # type: ignore[misc]
    counts = drawn.abs().sum(0).numpy().astype(int)
    most = int(poisson.ppf(0.995, rate * span))
    seen = np.bincount(np.minimum(counts, most), minlength=most + 1)
    expected = n * np.append(poisson.pmf(np.arange(most), rate * span), poisson.sf(most - 1, rate * span))
    assert chisquare(seen, expected).pvalue > 1e-3
    assert float((drawn == -1).sum() / drawn.abs().sum()) == pytest.approx(0.3, abs=0.03)


def test_one_jump_in_a_unit_step_is_dropout_with_a_half() -> None:
    h, f, n = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, -3.0]]), 20000
    end = solve(lambda at, t: f.expand_as(at), h.expand(n, 2), DepthNoise("dropout"), steps=1)
    kept = (end - (h + f)).abs() < 1e-6
    dropped = (end - h).abs() < 1e-6
    assert bool((kept ^ dropped).all())
    assert_close(end.mean(0), (h + f / 2)[0], rtol=0, atol=0.05)
    assert abs(np.corrcoef(kept.numpy().T)[0, 1]) < 0.04  # each feature has a Z of its own
    rare = solve(lambda at, t: f.expand_as(at), h.expand(n, 2), DepthNoise("dropout", drop=0.2), steps=1)
    assert_close(rare.mean(0), (h + 0.8 * f)[0], rtol=0, atol=0.05)
    quiet = solve(lambda at, t: f.expand_as(at), h, DepthNoise("dropout", drop=0.2).quiet(), steps=1)
    assert_close(quiet, h + 0.8 * f)  # without noise the mean is left


def test_all_features_of_an_input_share_the_jump_of_stochastic_depth() -> None:
    h = torch.randn(500, 3, 2, 2)
    end = solve(lambda at, t: torch.ones_like(at), h, DepthNoise("stochastic-depth"), steps=1)
    moved = (end - h).flatten(1)
    assert_close(moved, moved[:, :1].expand_as(moved), rtol=0, atol=1e-6)
    assert 0.4 < float(moved[:, 0].mean()) < 0.6
    assert_close(moved[:, 0], moved[:, 0].round(), rtol=0, atol=1e-6)  # h or h + f, and nothing between


def test_the_jump_as_it_is_printed_is_no_dropout() -> None:
    """gamma = (1 + Z) / 2: f gamma = f/2 + 2 f (gamma - 1/2)/2, the quarter that the last line of eq. 2.31 loses."""
    gamma, f, h = torch.tensor([[0.0], [1.0]]), 0.8, 1.0
    z = 2 * gamma - 1
    ours, printed = (
        DepthNoise("dropout", as_published=p).step(torch.full((2, 1), h), torch.full((2, 1), f), 1.0, z)
        for p in (False, True)
    )
    assert_close(ours, h + f * gamma)
    assert_close(ours, h + f / 2 + 2 * f * (gamma - 0.5) / 2)
    assert_close(printed, torch.tensor([[h - 1.5 * f], [h + 2.5 * f]]))


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("drop", [0.0, 0.2, 0.5, 0.9])
def test_the_mean_of_all_jumps_is_the_quiet_step(as_published: bool, drop: float) -> None:
    """Over dN of 0 and 1 and Z of -1 and +1, each with its chance."""
    noise, f, dt = DepthNoise("dropout", drop=drop, rate=1.6, as_published=as_published), 0.8, 0.5
    chance = torch.tensor([1 - 1.6 * dt, 1.6 * dt * drop, 1.6 * dt * (1 - drop)], dtype=torch.float64)
    z = torch.tensor([[0.0], [-1.0], [1.0]], dtype=torch.float64)
    ends = noise.step(torch.ones_like(z), torch.full_like(z, f), dt, z)
    still = noise.quiet().step(torch.ones_like(z), torch.full_like(z, f), dt)
    assert_close((chance @ ends), still[0])


def test_given_increments_drive_it_and_a_narrow_one_is_shared_by_all_features() -> None:
    h, noise = torch.randn(5, 3, dtype=torch.float64), DepthNoise("multiplicative", sigma=0.8)
    db = torch.randn(6, 5, 1, dtype=torch.float64)
    one, again = (solve(nothing, h, noise, steps=6, driven_by=db) for _ in range(2))
    assert torch.equal(one, again)
    assert_close(one / h, (one / h)[:, :1].expand_as(h))
    assert_close(one, h * (1 + 0.8 * db).prod(0))


def test_every_state_passes_by() -> None:
    seen: list[Tensor] = []

    def keep(h: Tensor) -> Tensor:
        seen.append(h)
        return h

    h = torch.randn(2, 3, dtype=torch.float64)
    end = solve(linear, h, DepthNoise(), steps=4, passing=keep)
    assert len(seen) == 5
    assert seen[0] is h
    assert seen[-1] is end
    assert_close(seen[2], by_hand(h, 2, 0.5))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: DepthNoise("salt"), "no noise 'salt' in depth; choose one of none, additive"),  # type: ignore[arg-type]
        (lambda: DepthNoise("additive", sigma=-0.1), r"sigma=-0\.1; it is a standard deviation"),
        (lambda: DepthNoise("additive", sigma=float("nan")), "sigma=nan"),
        (lambda: DepthNoise("dropout", drop=1.5), r"drop=1\.5, rate=1\.0; the first is from 0 to 1"),
        (lambda: DepthNoise("dropout", rate=-1.0), r"rate=-1\.0"),
        (lambda: solve(linear, A, DepthNoise(), steps=0), "steps=0"),
        (lambda: solve(linear, A, DepthNoise(), steps=2, span=float("inf")), "span=inf"),
        (lambda: solve(linear, A, DepthNoise("dropout", rate=3.0), steps=2), "3 jumps .* are 1.5 in a step of 0.5"),
        (lambda: solve(linear, A, DepthNoise(), steps=2, scheme="heun"), "no scheme 'heun'"),  # type: ignore[arg-type]
        (lambda: solve(linear, A, DepthNoise("gaussian-dropout"), steps=2, scheme="milstein"), "use 'euler'"),
        (lambda: solve(linear, A, DepthNoise("additive"), steps=2, driven_by=[A]), "1 increments for 2 steps"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(wrong, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(AssayError, match=words) as told:
        wrong()
    assert "\n" not in str(told.value)


def test_parity_with_torchsde_on_the_same_path() -> None:
    torchsde = pytest.importorskip("torchsde")

    class Toy(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return y @ A.T

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return 0.5 * y

    h, steps = torch.randn(4, 3, dtype=torch.float64), 8
    at = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    motion = torchsde.BrownianInterval(t0=0.0, t1=1.0, size=(4, 3), dtype=torch.float64, entropy=3)
    db = torch.stack([motion(a, b) for a, b in pairwise(at)])
    for scheme in ("euler", "milstein"):
        theirs = torchsde.sdeint(Toy(), h, at[[0, -1]], bm=motion, method=scheme, dt=1 / steps)[-1]
        ours = solve(linear, h, DepthNoise("multiplicative", sigma=0.5), steps=steps, driven_by=db, scheme=scheme)
        assert_close(ours, theirs)
