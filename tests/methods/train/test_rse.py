"""What noise in training is worth: the trace by brute force, and the expansion as far as it reaches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.attack.attacked import EotMode
from assay.methods.attack.pgd import pgd
from assay.methods.train.fit import fit
from assay.methods.train.rse import curvature_price, noise_price
from assay.nn.members import Drawn, log_mean, passes
from assay.nn.noisy import with_noise


def noisy(first: float, inner: float, act: type[nn.Module] = nn.Tanh) -> tuple[Drawn, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 2, 2), act(), nn.Conv2d(2, 2, 2), act(), nn.Flatten(), nn.Linear(2, 3)
        ).double()
        x, y = torch.rand(4, 1, 3, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    return with_noise(net, x, first=first, inner=inner, draws=2).eval(), x, y


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def by_hand(first: float, inner: float, act: type[nn.Module] = nn.Tanh) -> Tensor:
    """Half the sum over both layers of s^2 times the trace of a Hessian that is written out, one input at a time."""
    model, x, y = noisy(first, inner, act)
    conv, other, head = (m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    prices = []
    for i in range(len(x)):

        def loss(e: Tensor, f: Tensor, i: int = i) -> Tensor:
            z = act()(conv(x[i : i + 1] + e))
            return F.cross_entropy(head(act()(other(z + f)).flatten(1)), y[i : i + 1])

        zeros = (torch.zeros(1, 1, 3, 3, dtype=torch.float64), torch.zeros(1, 2, 2, 2, dtype=torch.float64))
        hessian = torch.autograd.functional.hessian(loss, zeros)
        traces = [hessian[k][k].reshape(zeros[k].numel(), -1).trace() for k in range(2)]
        prices.append((first**2 * traces[0] + inner**2 * traces[1]) / 2)
    return torch.stack(prices)


@pytest.mark.parametrize("act", [nn.Tanh, nn.Softplus])
def test_the_price_is_half_the_trace_of_the_hessian(act: type[nn.Module]) -> None:
    model, x, y = noisy(0.2, 0.1, act)
    seen = curvature_price(model, x.repeat(4000, 1, 1, 1), y.repeat(4000), probes=1, rng=rng()).view(4000, 4)
    error = seen.std(0) / 4000**0.5
    exact = by_hand(0.2, 0.1, act)
    assert ((seen.mean(0) - exact).abs() < 5 * error + 1e-12).all()
    assert float(error.sum() / exact.abs().sum()) < 0.05  # the test could tell
    assert not any(m._forward_hooks for m in model.modules())


def test_one_layer_alone_is_exact_where_it_has_one_value() -> None:
    """A sign squared is 1: with one noisy value a single probe is the second derivative itself."""
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten()).double()
    x, y = torch.rand(3, 1, 1, 1, dtype=torch.float64), torch.tensor([0, 1, 0])
    got = curvature_price(with_noise(net, x, first=0.3, inner=0.0, draws=2).eval(), x, y, probes=1, rng=rng())
    w = net[0].weight.flatten()
    p = net(x).softmax(1)[:, 0]
    assert_close(got, 0.3**2 / 2 * p * (1 - p) * (w[0] - w[1]) ** 2)


def test_the_mean_loss_under_noise_is_the_loss_and_that_price_to_second_order() -> None:
    """The ratio of both goes to 1 as the square of the noise: measured 0.999, 0.998 and 0.989 on another net."""
    ratios = []
    for s in (0.05, 0.1, 0.2):
        model, x, y = noisy(s, s)
        price, at = by_hand(s, s).abs().max(0)
        many = x[at].expand(10_000, 1, 3, 3)
        gap, error = noise_price(model, many, y[at].expand(10_000), draws=4, rng=rng())
        assert float(error.norm() / 10_000 / price) < 0.012  # the test could tell
        ratios.append(float(gap.mean().abs() / price))
    assert ratios[0] == pytest.approx(1, abs=0.04)
    assert ratios[1] == pytest.approx(1, abs=0.04)
    assert ratios[2] == pytest.approx(1, abs=0.08)


def test_pairs_of_draws_cancel_what_is_linear() -> None:
    """Without curvature there is no price: two classes far apart have a loss that is linear in the noise."""
    net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.Flatten()).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([60.0, -60.0]).reshape(2, 1, 1, 1))
    x, y = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.tensor([1])
    model = with_noise(net, x, first=0.1, inner=0.0, draws=2).eval()
    gap, _ = noise_price(model, x, y, draws=20, rng=rng())
    assert float(gap.abs()) < 1e-9
    assert not torch.equal(model(x), net(x))


def test_nets_without_noise_and_single_draws_are_refused() -> None:
    model, x, y = noisy(0.0, 0.0)
    with pytest.raises(AssayError, match="no noise layer that is on"):
        curvature_price(model, x, y, rng=rng())
    with pytest.raises(AssayError, match="draws=1"):
        noise_price(noisy(0.1, 0.1)[0], x, y, draws=1, rng=rng())


def smooth_templates(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """Ten smooth pictures of 12 x 12, under a little noise."""
    coarse = torch.rand(10, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    templates = F.interpolate(coarse, (12, 12), mode="bicubic", align_corners=False).clamp(0, 1)
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (n,), generator=draw)
    return (templates[y] + 0.05 * torch.randn(n, 1, 12, 12, generator=draw)).clamp(0, 1), y


def test_noise_holds_longer_than_none_and_under_a_strong_attack_the_mean_of_many_passes_is_worse_than_one() -> None:
    """PGD-20 in l_inf: at 0.1 whatever the attacker averages; at 0.15 one pass is right more often than their mean.

    Here 0.33 and 0.55 of the images hold, and 0.13 and 0.19; with four other seeds it was the same way round, by 0 to
    0.27 and by 0.02 to 0.13.
    """
    x, y = smooth_templates(1, 400)
    new, truth = smooth_templates(2, 60)

    def net() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )

    def answers(model: nn.Module, at: Tensor, draws: int) -> Tensor:  # draws n c
        torch.manual_seed(3)
        with torch.no_grad():
            return passes(model, at, draws)

    def attacked(model: nn.Module, radius: float, eot: int = 1, eot_mode: EotMode = "loss") -> Tensor:
        torch.manual_seed(2)
        return pgd(
            model, new, truth, radius=radius, steps=20, step=2.5 * radius / 20, eot=eot, eot_mode=eot_mode, leave=False,
            as_published=True, rng=rng(),
        ).x  # fmt: skip

    def share(said: Tensor) -> float:
        return float((said.argmax(-1) == truth).float().mean())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = net()
        noisy = with_noise(net(), x[:1], first=0.2, inner=0.1, draws=50)
        noisy.net[1].load_state_dict({**noisy.net[1].state_dict(), **renamed(plain)})  # the same beginning
        for model in (plain, noisy):
            torch.manual_seed(1)
            fit(model, Arrays(x, y), epochs=20, lr=0.1, batch=100, rng=rng())
            model.eval().requires_grad_(False)
        alone = share(answers(plain, attacked(plain, 0.1), 1))
        told = {}
        for name, way in {
            "one draw": attacked(noisy, 0.1),
            "five": attacked(noisy, 0.1, 5),
            "the mean": attacked(noisy, 0.1, 5, "mean_prob"),
        }.items():
            told[name] = share(log_mean(answers(noisy, way, 50)))
        far = answers(noisy, attacked(noisy, 0.15, 5), 50)
    assert min(told.values()) > alone
    assert max(told["five"], told["the mean"]) <= told["one draw"] + 0.02  # more draws a step are no weaker attack
    assert share(far) > share(log_mean(far))


def renamed(net: nn.Sequential) -> dict[str, Tensor]:
    """The weights of `net` by the names that its convolutions have behind noise."""
    found = {}
    for name, t in net.state_dict().items():
        at, kind = name.split(".")
        found[f"{at}.1.{kind}" if isinstance(net[int(at)], nn.Conv2d) else name] = t
    return found
