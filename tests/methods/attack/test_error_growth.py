"""Errors on their way through the depth: rates that are known, where the bound holds and where not, and the tracer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.attack.error_growth import exponent, norms, repeats, stages
from assay.nn.continuous import ContinuousNet
from assay.nn.resnet import ResNet18
from assay.nn.solve import DepthNoise, solve


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def grows(h: Tensor, t: float) -> Tensor:
    return h


@pytest.mark.parametrize(
    ("sigma", "span", "theory", "off"), [(0.0, 2.0, 1.0, 0.002), (1.0, 10.0, 0.5, 0.06), (2.8, 10.0, -2.92, 0.1)]
)
def test_the_toy_grows_at_one_minus_half_the_variance(sigma: float, span: float, theory: float, off: float) -> None:
    """dx = x dt + sigma x dB; the spread of a path's rate is sigma / sqrt(span)."""
    h = torch.ones(1000, 1, dtype=torch.float64)
    noise = DepthNoise("multiplicative", sigma=sigma)
    rate = exponent(grows, noise, h, 1e-3 * h, steps=1000, span=span, scheme="milstein")
    assert float(rate.mean()) == pytest.approx(theory, abs=off)
    assert float(rate.median()) == pytest.approx(theory, abs=1.5 * off)
    assert float(rate.std()) == pytest.approx(sigma / span**0.5, rel=0.1)
    if sigma == 2.8:
        assert float((rate < 0).double().mean()) > 0.995


def rate_of_tanh(sigma: float, scalar: bool) -> float:
    rng = torch.Generator().manual_seed(0)
    w = torch.randn(8, 8, dtype=torch.float64, generator=rng)
    w = w / torch.linalg.matrix_norm(w, 2)
    h, e = (size * torch.randn(250, 8, dtype=torch.float64) for size in (1.0, 1e-6))
    noise = DepthNoise("multiplicative", sigma=sigma)
    rate = exponent(lambda h, t: (h @ w.T).tanh(), noise, h, e, steps=600, span=6.0, scalar=scalar)
    return float(rate.median())


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_under_one_brownian_motion_for_all_features_the_rate_keeps_to_the_bound(sigma: float) -> None:
    assert rate_of_tanh(sigma, scalar=True) < 1 - sigma**2 / 2 - 0.1


def test_with_one_for_each_feature_as_networks_have_it_the_bound_does_not_hold() -> None:
    """Why the corollary is never printed as a guarantee: -0.3 where it says -1."""
    assert -0.6 < rate_of_tanh(2.0, scalar=False) < -0.1


def test_the_mean_is_ruled_by_rare_paths_and_the_median_is_not() -> None:
    """E x_T = e^T for every sigma, while the median is exp((1 - sigma^2 / 2) T)."""
    h = torch.ones(20000, 1, dtype=torch.float64)
    end = solve(grows, h, DepthNoise("multiplicative", sigma=1.0), steps=100, scheme="milstein")
    assert float(end.mean()) == pytest.approx(math.e, rel=0.05)
    assert float(end.median()) == pytest.approx(math.exp(0.5), rel=0.05)


def test_additive_noise_leaves_the_error_of_a_linear_drift_alone() -> None:
    a = torch.tensor([[0.3, -1.0], [0.5, 0.1]], dtype=torch.float64)
    h, e = torch.randn(2, 6, 2, dtype=torch.float64)
    db = torch.randn(20, 6, 2, dtype=torch.float64)
    errors = []
    for noise in (DepthNoise(), DepthNoise("additive", sigma=3.0)):
        near, far = (solve(lambda s, t: s @ a.T, at, noise, steps=20, driven_by=db) for at in (h, h + e))
        errors.append(far - near)
    assert_close(errors[0], errors[1])


def test_no_error_stays_none_and_only_shared_noise_lets_one_die() -> None:
    h, noise = torch.randn(500, 3, dtype=torch.float64), DepthNoise("additive", sigma=1.0)
    rate = exponent(lambda s, t: -s, noise, h, torch.zeros_like(h), steps=5)
    assert torch.equal(rate, torch.full((500,), -math.inf, dtype=torch.float64))
    shared, other = torch.randn(2, 400, 500, 3, dtype=torch.float64) * (8 / 400) ** 0.5
    ends = {}
    for name, db in (("same", shared), ("another", other)):
        clean = solve(lambda s, t: -s, h, noise, steps=400, span=8.0, driven_by=shared)
        near = solve(lambda s, t: -s, h + 0.1, noise, steps=400, span=8.0, driven_by=db)
        ends[name] = float((near - clean).norm(dim=1).median())
    assert ends["same"] < 1e-3
    assert ends["another"] > 0.5


def test_the_exponent_does_not_depend_on_the_size_of_the_error_nor_underflow() -> None:
    h = torch.ones(3, 2, dtype=torch.float32)
    for size in (1e-3, 1.0):
        rate = exponent(lambda s, t: -2 * s, DepthNoise(), h, size * h, steps=1000, span=50.0)
        assert_close(rate, torch.full((3,), 20 * math.log(0.9)), rtol=1e-3, atol=0)  # (1 - 2 dt) each step of 1/20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6)
        self.around = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.act(self.first(x)))
        out += self.around(x)  # in place, as many write it
        return out


def test_stages_are_where_everything_flows() -> None:
    """The ends of blocks and no place inside them; a container has its own name, not that of its last layer."""
    net = nn.Sequential(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True)), Block(), nn.Sequential(Block(), Block()), nn.Linear(6, 3)
    )
    found = stages(net.eval(), torch.rand(4, 4))
    assert [str(s) for s in found] == ["0.0", "0", "1", "2.0", "2"]
    assert [s.size for s in found] == [6] * 5
    assert not any(m._forward_hooks for m in net.modules())
    resnet = ResNet18(width=1)
    resnet(torch.rand(8, 3, 16, 16))
    names = [str(s) for s in stages(resnet.eval(), torch.rand(3, 3, 16, 16))]
    assert names == [
        *("stem.0", "stem.1", "stem", "stages.0.0", "stages.0", "stages.1.0", "stages.1", "stages.2.0", "stages.2"),
        *("stages.3.0", "stages", "features"),
    ]


def test_a_module_that_is_called_again_has_a_stage_for_each_call_and_noise_does_not_hide_it() -> None:
    net = ContinuousNet((1, 4, 4), 2, DepthNoise("gaussian-dropout", sigma=1.0), grid=0.5, width=2).eval()
    names = [str(s) for s in stages(net, torch.rand(3, 1, 4, 4))]
    assert names[:3] == ["stem", "depth.state (2)", "depth"]


class Lost(nn.Module):
    """Its answer needs the input itself besides."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * x
        return out


def test_where_nothing_is_passed_by_all_there_are_no_stages() -> None:
    assert stages(Lost().eval(), torch.rand(3, 4)) == ()
    still = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    for p in still.parameters():
        nn.init.zeros_(p)
    assert stages(still, torch.rand(3, 4)) == ()


def test_norms_are_those_of_states_and_errors_written_out() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)).eval()
    x, other = torch.rand(6, 4), torch.rand(6, 4)
    at = stages(net, x)
    assert [str(s) for s in at] == ["0", "1"]
    got = norms(net, x, [other, x], at)
    with torch.no_grad():
        states = [(z, net[0](z), net[0](z).relu(), net(z)) for z in (x, other)]
    assert_close(got.state, torch.stack([s.double().norm(dim=1) for s in states[0]], 1))
    gaps = torch.stack([(b - a).double().norm(dim=1) for a, b in zip(*states, strict=True)], 1)
    assert_close(got.error[0], gaps, rtol=1e-5, atol=1e-6)
    assert float(got.error[1].abs().max()) == 0
    assert norms(net, x, [], at).error.shape == (0, 6, 4)


def test_a_linear_net_multiplies_the_error_at_each_stage() -> None:
    net = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(4)))
    for layer in net:
        layer.weight.data = 2 * torch.linalg.qr(torch.randn(3, 3)).Q
    x = torch.rand(5, 3)
    got = norms(net, x, [x + 0.01 * torch.rand(5, 3)], stages(net, x)).error[0]
    assert_close(got[:, 1:] / got[:, :-1], torch.full((5, 4), 2.0, dtype=torch.float64), rtol=1e-3, atol=0)


def test_passes_are_under_the_same_noise_and_another_seed_is_other_noise() -> None:
    net = ContinuousNet((1, 4, 4), 2, DepthNoise("additive", sigma=1.0), grid=0.5, width=2).eval()
    x = torch.rand(3, 1, 4, 4)
    at, before = stages(net, x), torch.random.get_rng_state()
    got = norms(net, x, [x.clone()], at)
    assert float(got.error.max()) == 0
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(norms(net, x, [], at, seed=1).state, got.state)


class OwnNoise(nn.Module):
    """Noise from a generator of its own, which no seed of ours reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=self.rng)


def test_noise_that_no_seed_reaches_is_noticed() -> None:
    x = torch.rand(4, 3)
    assert not repeats(OwnNoise(), x)
    assert repeats(nn.Dropout(0.5), x)
    assert repeats(nn.Linear(3, 2), x)
    assert repeats(nn.Linear(3, 2), x[:1])


def test_what_makes_no_sense_is_refused_in_a_line() -> None:
    h = torch.ones(2, 2)
    for wrong in ({"steps": 0}, {"steps": 1, "span": 0.0}):
        with pytest.raises(AssayError, match=f"{next(reversed(wrong))}=0"):
            exponent(grows, DepthNoise(), h, h, **wrong)
    with pytest.raises(AssayError, match="an error for each state"):
        exponent(grows, DepthNoise(), h, h[:1], steps=1)
