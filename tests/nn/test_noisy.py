"""Noise in front of convolutions: nothing at 0, the Gaussian that it says, in any net, and draws that are one batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn import members
from assay.nn.members import Drawn, log_mean, passes
from assay.nn.noisy import Noise, with_noise
from assay.nn.variational import MeanField, as_variational


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def cnn(act: nn.Module | None = None, norm: type[nn.Module] = nn.BatchNorm2d, groups: int = 1) -> nn.Sequential:
    normal = nn.GroupNorm(2, 4) if norm is nn.GroupNorm else nn.BatchNorm2d(4)
    net = nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), normal, act or nn.ReLU()),
        *(nn.Conv2d(4, 4, 3, groups=groups), act or nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
    )
    net(torch.rand(20, 2, 4, 4))
    return net.eval()


class Other(nn.Module):
    """Its convolutions are registered from the last to the first, and a shortcut goes around one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.last = nn.Conv2d(4, 4, 3, padding=1)
        self.stem = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # n 2 4 4 -> n 3
        z = self.stem((x - 0.5) / 0.25)
        out: Tensor = self.head((z + 0 * self.last(z)).flatten(1))
        return out


NETS = {
    "relu": lambda: cnn(),
    "tanh": lambda: cnn(nn.Tanh()),
    "groupnorm": lambda: cnn(norm=nn.GroupNorm),
    "groups": lambda: cnn(groups=2),
    "own class": Other,
}


def inputs(n: int = 5) -> Tensor:
    return torch.rand(n, 2, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NETS)
def test_without_noise_it_is_the_net_to_the_bit_and_with_it_no_two_passes_agree(name: str) -> None:
    net, x = NETS[name]().eval(), inputs()
    before = copy.deepcopy(net.state_dict())
    quiet = with_noise(net, x, first=0.0, inner=0.0, draws=3).eval()
    assert torch.equal(quiet(x), net(x))
    assert float(quiet.members(x).detach().std(0).max()) == 0
    loud = with_noise(net, x, first=0.2, inner=0.1, draws=3).eval()
    assert not torch.equal(loud(x), loud(x))
    assert all(torch.equal(t, before[key]) for key, t in net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in (*net.modules(), *loud.modules()))


def stds(net: Drawn, conv: nn.Module) -> float:
    """The standard deviation of the noise right before that convolution."""
    around = next(m for m in net.modules() if isinstance(m, nn.Sequential) and len(m) == 2 and m[1] is conv)
    assert isinstance(around[0], Noise)
    return float(around[0].std)


def test_the_first_that_is_called_has_the_inputs_noise_whatever_the_order_they_are_held_in() -> None:
    noisy = with_noise(Other(), inputs(), first=0.2, inner=0.1, draws=2)
    entry = noisy.net[0]
    body = noisy.net[1]
    assert isinstance(entry, Noise)
    assert float(entry.std) == pytest.approx(0.2)
    assert stds(noisy, body.stem[1]) == 0
    assert stds(noisy, body.last[1]) == pytest.approx(0.1)


def test_each_convolution_sees_its_input_with_noise_of_that_size_and_a_shortcut_sees_none() -> None:
    net, x = Other().eval(), torch.zeros(400, 2, 4, 4)
    noisy = with_noise(net, x[:1], first=0.0, inner=0.3, draws=2).eval()
    with torch.no_grad():
        assert_close(noisy(x), net(x))  # the noisy branch counts for nothing, and z itself was not touched
    seen: list[Tensor] = []
    noisy.net[1].last[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        noisy(x)
        away = seen[0] - net.stem((x - 0.5) / 0.25)
    assert float(away.std()) == pytest.approx(0.3, rel=0.05)
    assert float(away.mean()) == pytest.approx(0, abs=0.02)


def test_noise_leaves_its_input_alone_and_is_there_in_both_modes() -> None:
    x, noise = torch.zeros(50, 1000), Noise(torch.linspace(0, 1, 1000))
    for mode in (True, False):
        got = noise.train(mode)(x)
        assert torch.equal(x, torch.zeros(50, 1000))
        assert not torch.equal(got, noise(x))
    assert float(got[:, 0].abs().max()) == 0
    assert float(got[:, 900:].std()) == pytest.approx(float(noise.std[900:].square().mean().sqrt()), rel=0.03)


def test_the_share_of_the_range_is_in_the_inputs_own_units() -> None:
    span = torch.tensor([255.0, 1.0])[:, None, None].expand(2, 4, 4)
    noisy = with_noise(cnn(), inputs(), first=0.2, inner=0.0, draws=2, span=span)
    assert_close(noisy.net[0].std[:, 0, 0], torch.tensor([51.0, 0.2]))


def test_draws_of_an_input_are_one_batch_and_stand_for_as_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = cnn(), inputs(3)
    noisy = with_noise(net, x, first=0.3, inner=0.2, draws=40).eval()
    assert noisy.rows_apart
    sizes: list[int] = []
    noisy.net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    with torch.no_grad():
        assert noisy.members(x).shape == (40, 3, 3)
        assert sizes == [120]
        monkeypatch.setattr(members, "AT_ONCE", 50)
        assert noisy.members(x).shape == (40, 3, 3)
        assert sizes[1:] == [48, 48, 24]
        monkeypatch.undo()
        batched = torch.cat([noisy.members(x) for _ in range(25)])  # 1,000 draws of each kind
        looped = torch.stack([noisy(x) for _ in range(1000)])
        noisy.train()
        sizes.clear()
        passes(noisy, x, 4)
    assert sizes == [3, 3, 3, 3]  # in training mode a batch normalisation would mix them
    far = (batched.mean(0) - looped.mean(0)).abs() / (batched.var(0) / 1000 + looped.var(0) / 1000).sqrt()
    assert float(far.max()) < 4.5
    assert_close(batched.std(0), looped.std(0), rtol=0.15, atol=0)
    draws = batched[:, 0, 0]  # independent: the mean of two halves of a batch does not move together
    assert abs(float(np.corrcoef(draws[0::2], draws[1::2])[0, 1])) < 0.15


def test_a_net_that_is_random_in_itself_is_asked_pass_by_pass() -> None:
    class Wave(nn.Module):
        """One random number for the whole batch."""

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn(())

    net = nn.Sequential(nn.Conv2d(2, 3, 4), Wave(), nn.Flatten()).eval()
    noisy = with_noise(net, inputs(), first=0.0, inner=0.0, draws=4).eval()
    assert not noisy.rows_apart
    assert len({float(z) for z in noisy.members(inputs(1)).detach()[:, 0, 0]}) == 4


def test_jensen_holds_for_each_input_and_any_number_of_draws() -> None:
    """mean -log p_y >= -log mean p_y >= -log mean p_argmax, exactly: eq. 2.9."""
    x, y = inputs(8), torch.arange(8) % 3
    for draws in (1, 2, 7, 50):
        said = with_noise(cnn(), x, first=0.8, inner=0.5, draws=draws).eval().members(x).double().detach()
        each = torch.stack([F.cross_entropy(z, y, reduction="none") for z in said]).mean(0)
        together = F.nll_loss(log_mean(said), y, reduction="none")
        answered = -log_mean(said).amax(1)
        assert (each >= together - 1e-12).all()
        assert (together >= answered).all()
        if draws > 1:
            assert float((each - together).min()) > 0


def test_the_mean_settles_as_the_root_of_the_draws() -> None:
    x = inputs(20)
    noisy = with_noise(cnn(), x, first=0.5, inner=0.3, draws=1).eval()
    with torch.no_grad():
        p = passes(noisy, x, 1600).softmax(-1)  # 1600 n c
    spread = [float(p.unflatten(0, (-1, m)).mean(1).std(0).mean()) for m in (1, 4, 16)]
    for wide, narrow in pairwise(spread):
        assert wide / narrow == pytest.approx(2, rel=0.15)


def test_training_moves_the_weights_of_a_noisy_net() -> None:
    noisy = with_noise(cnn(), inputs(), first=0.2, inner=0.1, draws=2).train()
    torch.autograd.backward(F.cross_entropy(noisy(inputs()), torch.arange(5) % 3))
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in noisy.parameters())


class Down(nn.Module):
    """Reads a layer's weight before it calls it, and hands another one the size that it should give."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # n 2 h w -> n 3 h w
        z = self.down(input=x.to(self.down.weight.dtype))
        assert z.shape[-1] * self.down.stride[0] == x.shape[-1]
        out: Tensor = self.up(z.tanh(), output_size=x.shape[-2:])
        return out


def test_a_net_reads_and_calls_its_convolutions_as_it_did() -> None:
    net, x = Down().eval(), inputs()
    quiet = with_noise(net, x, first=0.0, inner=0.0, draws=2).eval()
    assert torch.equal(quiet(x), net(x))
    loud = with_noise(net, x, first=0.0, inner=0.5, draws=2).eval()
    assert not torch.equal(loud(x), loud(x))
    assert list(loud.state_dict()) == list(quiet.state_dict())
    assert {name for name in loud.state_dict() if "up" in name} == {
        "net.1.up.0.std",
        "net.1.up.1.weight",
        "net.1.up.1.bias",
    }


class Twice(nn.Module):
    """Its first convolution is its last as well."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.between = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # n 2 h w -> n 2
        out: Tensor = self.conv(self.conv(x).relu()).mean((2, 3))
        return out


def test_a_first_convolution_that_is_used_again_is_noisy_from_its_second_use_on() -> None:
    net, x = Twice().eval(), torch.zeros(300, 2, 8, 8)
    noisy = with_noise(net, x[:1], first=0.0, inner=0.3, draws=2).eval()
    seen: list[Tensor] = []
    noisy.net[1].conv[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for _ in range(2):  # the second pass begins as the first did
        seen.clear()
        with torch.no_grad():
            assert not torch.equal(noisy(x), net(x))
            assert torch.equal(seen[0], x)
            away = seen[1] - net.conv(x).relu()
        assert float(away.std()) == pytest.approx(0.3, rel=0.05)
    assert_close(with_noise(net, x[:1], first=0.0, inner=0.0, draws=2).eval()(x), net(x))
    with pytest.raises(RuntimeError, match="to have 2 channels"):
        noisy(torch.zeros(1, 3, 8, 8))
    seen.clear()
    noisy(x)  # a pass that broke off leaves nothing behind
    assert torch.equal(seen[0], x)


def test_noise_stands_in_front_of_gaussian_weights() -> None:
    net, x = cnn(), inputs()
    gaussian = as_variational(net, draws=2, sigma=1e-30, prior=0.1)
    noisy = with_noise(gaussian, x, first=0.2, inner=0.1, draws=2).eval()
    assert_close(with_noise(gaussian, x, first=0.0, inner=0.0, draws=2).eval()(x), net(x))
    second = noisy.net[1].net[3]
    assert isinstance(second[1], MeanField)
    assert float(second[0].std) == pytest.approx(0.1)
    assert isinstance(second[1].layer, nn.Conv2d)


@pytest.mark.parametrize("noise", [(-0.1, 0.1), (0.1, -0.1), (float("nan"), 0.1), (0.1, float("inf"))])
def test_a_standard_deviation_is_finite_and_at_least_zero(noise: tuple[float, float]) -> None:
    with pytest.raises(AssayError, match=r"with_noise got first=.*finite and at least 0"):
        with_noise(cnn(), inputs(), first=noise[0], inner=noise[1], draws=2)


def test_nets_and_inputs_that_noise_does_not_fit_are_refused_in_a_line() -> None:
    with pytest.raises(AssayError, match="Sequential has no convolution"):
        with_noise(nn.Sequential(nn.Flatten(), nn.Linear(32, 2)), inputs(), first=0.1, inner=0.1, draws=2)
    idle = Other()
    idle.forward = lambda x: idle.head(x.repeat(1, 2, 1, 1).flatten(1))  # type: ignore[method-assign]
    with pytest.raises(AssayError, match="Other calls none of its convolutions"):
        with_noise(idle, inputs(), first=0.1, inner=0.1, draws=2)
    with pytest.raises(AssayError, match="not to words or indices"):
        with_noise(cnn(), torch.zeros(1, 2, 4, 4, dtype=torch.int64), first=0.1, inner=0.1, draws=2)
    with pytest.raises(AssayError, match="draws >= 1"):
        with_noise(cnn(), inputs(), first=0.1, inner=0.1, draws=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the one kernel is for CUDA, and there is no such device")
@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
def test_noise_that_a_gpu_adds_in_one_pass_is_gaussian_and_repeats(laid: torch.memory_format) -> None:
    x = torch.linspace(-3, 3, 1_500_003 // 3 * 3, device="cuda").view(3, 1, -1, 1).expand(-1, 2, -1, -1)
    x = x.contiguous(memory_format=laid).requires_grad_()  # type: ignore[call-overload]
    noise = Noise(0.5).cuda()
    torch.manual_seed(3)
    first, second = noise(x), noise(x)
    torch.manual_seed(3)
    assert torch.equal(noise(x), first)
    assert "Added" in type(first.grad_fn).__name__
    for seen in (first, second):
        e = ((seen - x) / 0.5).detach().double().flatten()
        wanted = torch.distributions.Normal(0.0, 1.0).cdf(e.sort().values)
        steps = torch.arange(1, len(e) + 1, device="cuda") / len(e)
        assert float((wanted - steps).abs().max()) < 1.95 / len(e) ** 0.5  # Kolmogorov and Smirnov, level .001
        for lag in (1, 512, 1024, 2048):  # neighbours, and the four that come from one block
            assert abs(float((e[lag:] * e[:-lag]).mean())) < 4 / len(e) ** 0.5
    assert abs(float(((first - x) * (second - x)).mean()) / 0.25) < 4 / x.numel() ** 0.5
    (slope,) = torch.autograd.grad((first * 3).sum(), x)
    assert_close(slope, torch.full_like(x, 3.0))
