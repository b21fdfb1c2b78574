from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.fit import reset
from assay.nn.members import Drawn
from assay.nn.variational import NORMALISED, MeanField, Variational, as_variational, gaussian_kl


def cnn() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        net(torch.randn(30, 1, 4, 4))
    return net.eval()


def inputs(n: int = 6) -> Tensor:
    return torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@settings(deadline=None, max_examples=40)
@given(
    mu=st.lists(st.floats(-3, 3), min_size=1, max_size=5),
    sigma=st.floats(0.01, 3),
    prior_mu=st.floats(-2, 2),
    prior_sigma=st.floats(0.05, 3),
)
def test_the_divergence_is_the_textbooks(mu: list[float], sigma: float, prior_mu: float, prior_sigma: float) -> None:
    m = torch.tensor(mu, dtype=torch.float64)
    s = torch.full_like(m, sigma)
    got = gaussian_kl(m, s, prior_mu, prior_sigma)
    prior = Normal(torch.full_like(m, prior_mu), torch.full_like(m, prior_sigma))
    assert_close(got, kl_divergence(Normal(m, s), prior).sum(), rtol=1e-9, atol=1e-9)
    assert float(got) >= -1e-9


def test_the_divergence_from_itself_is_zero() -> None:
    m, s = torch.full((7,), 0.3, dtype=torch.float64), torch.full((7,), 0.2, dtype=torch.float64)
    assert float(gaussian_kl(m, s, 0.3, 0.2)) == pytest.approx(0, abs=1e-12)
    layer = nn.Linear(4, 3)
    for p in layer.parameters():
        nn.init.zeros_(p)
    assert float(as_variational(layer, draws=1, sigma=0.7, prior=0.7).kl()) == pytest.approx(0, abs=1e-5)


def test_without_sigma_it_is_the_net_itself() -> None:
    net, x = cnn(), inputs()
    drawn = as_variational(net, draws=3, sigma=1e-30, prior=0.1).eval()
    members = drawn.members(x)
    assert float(members.std(0).max()) == 0
    assert_close(drawn(x), net(x))
    assert bool(drawn.kl().isfinite())


def test_spread_shrinks_with_sigma() -> None:
    spreads = [
        float(as_variational(cnn(), draws=20, sigma=sigma, prior=0.1).eval().members(inputs()).std(0).mean())
        for sigma in (0.3, 0.03, 0.003)
    ]
    assert spreads[0] > 3 * spreads[1] > 9 * spreads[2] > 0


def test_a_pass_draws_mu_plus_sigma_times_noise_for_the_whole_batch() -> None:
    layer, x = nn.Linear(6, 3), torch.rand(5, 6)
    drawn = as_variational(layer, draws=2, sigma=0.3, prior=1.0).eval()
    torch.manual_seed(4)
    got = drawn(x)
    torch.manual_seed(4)
    w = layer.weight + 0.3 * torch.randn(3, 6)
    b = layer.bias + 0.3 * torch.randn(3)
    assert_close(got, F.linear(x, w, b))
    torch.manual_seed(4)
    assert_close(drawn.members(x)[0], got)
    assert_close(drawn(x[:1].expand(4, 6)).std(0), torch.zeros(3))
    assert not torch.equal(drawn(x), drawn(x))


def test_its_moments_are_those_of_the_gaussian() -> None:
    layer, x = nn.Linear(8, 20_000), torch.rand(1, 8)  # each output has weights of its own
    with torch.no_grad():
        away = as_variational(layer, draws=1, sigma=0.2, prior=1.0).eval()(x) - layer(x)
    variance = 0.2**2 * (float(x.square().sum()) + 1)
    assert float(away.mean()) == pytest.approx(0, abs=5 * (variance / 20_000) ** 0.5)
    assert float(away.var()) == pytest.approx(variance, rel=0.05)


def test_weights_are_doubled_and_the_given_net_stays() -> None:
    net = cnn()
    before = copy.deepcopy(net.state_dict())
    drawn = as_variational(net, draws=2, sigma=0.1, prior=0.5)
    assert isinstance(drawn, Drawn)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    gaussian = sum(p.numel() for k in (0, 4) for p in net[k].parameters())
    assert sum(p.numel() for p in drawn.parameters()) == sum(p.numel() for p in net.parameters()) + gaussian
    naive = sum(
        float(kl_divergence(Normal(p, torch.full_like(p, 0.1)), Normal(torch.zeros(()), torch.tensor(0.5))).sum())
        for k in (0, 4)
        for p in net[k].parameters()
    )
    assert float(drawn.kl()) == pytest.approx(naive, rel=1e-5)


def test_means_and_sigmas_both_learn() -> None:
    drawn = as_variational(cnn(), draws=2, sigma=0.1, prior=0.5).train()
    torch.autograd.backward(F.cross_entropy(drawn(inputs()), torch.arange(6) % 5))
    for name, p in drawn.named_parameters():
        assert p.grad is not None, name
        assert float(p.grad.abs().sum()) > 0 or "0.layer.bias" in name, name  # batch normalisation cancels that bias


def test_it_can_be_started_afresh() -> None:
    drawn = as_variational(cnn(), draws=2, sigma=0.1, prior=0.5)
    with torch.no_grad():
        for p in drawn.parameters():
            p.add_(1)
    fresh = reset(drawn, torch.Generator().manual_seed(0))
    for layer in fresh.modules():
        if isinstance(layer, MeanField):
            assert_close(layer.sigma("weight"), torch.full_like(layer.sigma("weight"), 0.1))
            assert float(layer.layer.weight.abs().max()) < 1


@pytest.mark.parametrize(("sigma", "prior"), [(0.0, 1.0), (-1.0, 1.0), (0.1, 0.0), (float("nan"), 1.0)])
def test_standard_deviations_must_be_positive(sigma: float, prior: float) -> None:
    with pytest.raises(AssayError, match="both are standard deviations"):
        as_variational(cnn(), draws=2, sigma=sigma, prior=prior)


def test_nets_without_such_layers_are_refused() -> None:
    with pytest.raises(AssayError, match="no Linear or Conv2d layer"):
        as_variational(nn.Sequential(nn.ReLU()), draws=2, sigma=0.1, prior=1.0)


def robust(net: nn.Module | None = None, sigma: float = 0.1, prior: float = 0.5) -> Variational:
    kinds = NORMALISED
    return as_variational(cnn() if net is None else net, draws=2, sigma=sigma, prior=prior, kinds=kinds, spread="exp")


def test_batch_normalisation_can_have_gaussian_weights_too() -> None:
    drawn = robust()
    layers = [m for m in drawn.modules() if isinstance(m, MeanField)]
    assert [type(m.layer) for m in layers] == [nn.Conv2d, nn.BatchNorm2d, nn.Linear]
    prior = Normal(torch.zeros(()), torch.tensor(0.5))
    naive = sum(
        kl_divergence(Normal(mu, torch.full_like(mu, 0.1)), prior).sum() for m in layers for mu in m.layer.parameters()
    )
    assert_close(drawn.kl(), naive, rtol=1e-5, atol=0)
    norm = layers[1].layer
    assert isinstance(norm, nn.BatchNorm2d)
    before = norm.running_mean.clone()  # type: ignore[union-attr]
    drawn.train()(inputs())
    assert not torch.equal(norm.running_mean, before)  # the statistics of all draws are one, and move
    drawn.eval()
    moved = norm.running_mean.clone()  # type: ignore[union-attr]
    assert not torch.equal(drawn(inputs()), drawn(inputs()))
    assert torch.equal(norm.running_mean, moved)  # type: ignore[arg-type]


def test_what_is_no_such_layer_or_has_no_weights_stays_as_it_is() -> None:
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, groups=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 4, 1, groups=2)),
        *(nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(16, 2)),
    ).eval()
    drawn = robust(net, sigma=1e-12).eval()
    kinds = [type(m.layer) for m in drawn.modules() if isinstance(m, MeanField)]
    assert kinds == [nn.Conv2d, nn.Conv2d, nn.Linear]
    assert_close(drawn(inputs()), net(inputs()))


@pytest.mark.parametrize("s", [-2.0, -0.5, 0.3])
def test_the_slope_of_the_divergence_is_the_textbooks(s: float) -> None:
    """d KL / d mu = mu / s0^2 and d KL / d s = exp(2s) / s0^2 - 1, with sigma = exp(s)."""
    layer = MeanField(nn.Linear(3, 2), sigma=float(torch.tensor(s).exp()), prior=0.7, spread="exp")
    torch.autograd.backward(layer.kl())
    mu, rho = layer.layer.weight, layer.rho_weight
    assert_close(rho, torch.full_like(rho, s))
    assert_close(mu.grad, mu.detach() / 0.7**2)
    assert_close(rho.grad, (2 * rho.detach()).exp() / 0.7**2 - 1, rtol=1e-4, atol=1e-5)


def test_gradients_through_a_draw_are_those_of_differences_with_the_noise_held() -> None:
    drawn = robust(cnn()).double().eval()
    x, y = inputs().double(), torch.arange(6) % 5

    def loss() -> Tensor:
        torch.manual_seed(3)  # the same noise each time
        return F.cross_entropy(drawn(x), y)

    torch.autograd.backward(loss())
    for p in drawn.parameters():
        flat, slope = p.data.view(-1), p.grad.view(-1)  # type: ignore[union-attr]
        at = int(slope.abs().argmax())
        with torch.no_grad():
            flat[at] += 1e-6
            up = float(loss())
            flat[at] -= 2e-6
            down = float(loss())
            flat[at] += 1e-6
        assert (up - down) / 2e-6 == pytest.approx(float(slope[at]), rel=1e-3, abs=1e-7)


class Own(nn.Module):
    """Reads a weight, calls by keyword, comes by a layer twice, and has a layer's weight without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.tied = nn.Linear(16, 16), nn.Linear(16, 5, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z = x.flatten(1).to(self.fc.weight.dtype)
        return self.fc(input=z), self.fc(z), F.linear(z, self.tied.weight), self.tied(z)


def test_a_pass_is_one_net_however_it_uses_its_layers() -> None:
    net, x = Own(), inputs()
    drawn = as_variational(net, draws=2, sigma=0.3, prior=1.0).eval()
    torch.manual_seed(4)
    first, again, read, called = drawn(x)
    assert torch.equal(first, again)
    assert torch.equal(read, called)
    torch.manual_seed(4)
    w, b = net.fc.weight + 0.3 * torch.randn(16, 16), net.fc.bias + 0.3 * torch.randn(16)
    assert_close(first, F.linear(x.flatten(1), w, b))
    assert not torch.equal(drawn(x)[0], first)
    assert not torch.equal(drawn(x)[2], read)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        drawn(x[:, :, :3])
    layer = drawn.net.fc
    assert not torch.equal(layer(x.flatten(1)), layer(x.flatten(1)))  # by itself each call is a draw
    assert torch.equal(layer.weight, net.fc.weight)  # and what is read are the means
    assert layer.in_features == 16
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'kernel_size'"):
        layer.kernel_size  # noqa: B018


def test_an_encoder_whose_kernel_reads_the_weights_is_one_net_a_pass_too() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    drawn = as_variational(layer, draws=2, sigma=0.3, prior=1.0).eval()
    x, said = torch.rand(3, 4, 16), list[Tensor]()
    for _ in range(2):
        torch.manual_seed(4)
        said.append(drawn(x).detach())  # with gradients: layer by layer
        torch.manual_seed(4)
        with torch.no_grad():  # without: torch's own kernel, which is given the weights
            said.append(drawn(x))
    assert_close(said[1], said[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(said[1], said[3])
    with torch.no_grad():
        assert not torch.equal(drawn(x), drawn(x))


def test_what_is_frozen_stays_a_point_where_something_learns() -> None:
    net = cnn()
    net[0].requires_grad_(False)
    drawn = robust(net).eval()
    assert [type(m.layer) for m in drawn.modules() if isinstance(m, MeanField)] == [nn.BatchNorm2d, nn.Linear]
    assert torch.equal(drawn.net[0](inputs()), net[0](inputs()))
    assert [name for name, p in drawn.named_parameters() if not p.requires_grad] == ["net.0.weight", "net.0.bias"]
    net.requires_grad_(False)  # nothing learns: then nothing counts as frozen
    assert sum(isinstance(m, MeanField) for m in robust(net).modules()) == 3
    net[1].requires_grad_(True)
    with pytest.raises(AssayError, match="no Linear or Conv2d layer that is not frozen"):
        as_variational(net, draws=2, sigma=0.1, prior=1.0)


def test_gaussian_weights_begin_again_around_their_means() -> None:
    once = as_variational(cnn(), draws=2, sigma=0.3, prior=1.0)  # its batch normalisation is a point
    twice = robust(once, sigma=0.01).eval()
    layers = [m for m in twice.modules() if isinstance(m, MeanField)]
    assert [type(m.layer) for m in layers] == [nn.Conv2d, nn.BatchNorm2d, nn.Linear]
    assert_close(layers[0].sigma("weight"), torch.full((4, 1, 3, 3), 0.01))
    assert_close(robust(once, sigma=1e-30).eval()(inputs()), cnn()(inputs()))
    torch.manual_seed(4)
    want = robust(cnn(), sigma=0.01).eval()(inputs())
    torch.manual_seed(4)
    assert_close(twice(inputs()), want)
    again = robust(Again(once)).eval()
    assert torch.equal(*again(inputs()))  # one draw for the whole pass, not one for each use of the inner net


class Again(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.net(x)


def test_an_exponential_starts_afresh_where_it_began() -> None:
    drawn = robust(sigma=0.05)
    with torch.no_grad():
        for p in drawn.parameters():
            p.add_(1)
    fresh = reset(drawn, torch.Generator().manual_seed(0))
    for layer in fresh.modules():
        if isinstance(layer, MeanField):
            assert_close(layer.sigma("weight"), torch.full_like(layer.sigma("weight"), 0.05))
    with pytest.raises(AssayError, match="spread='relu'"):
        as_variational(cnn(), draws=2, sigma=0.1, prior=1.0, spread="relu")  # type: ignore[arg-type]
