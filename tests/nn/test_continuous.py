"""Networks of continuous depth: the net itself without noise, which modules are blocks, draws that are one batch."""

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

from assay.data.arrays import Arrays
from assay.data.digits import load_digits
from assay.errors import AssayError, ShapeError
from assay.methods.train.fit import fit, reset
from assay.nn.continuous import (
    Continuous,
    ContinuousNet,
    as_continuous,
    blocks,
    quiet,
    with_draws,
)
from assay.nn.members import log_mean, passes
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN
from assay.nn.solve import KINDS, DepthNoise, Kind


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


RANDOM = [kind for kind in KINDS if kind != "none"]


def small(noise: DepthNoise, grid: float = 0.25) -> ContinuousNet:
    return ContinuousNet((1, 8, 8), 3, noise, grid=grid, width=4)


def residual() -> ResNet18:
    net = ResNet18(width=2)
    net(torch.rand(8, 3, 8, 8))  # the batch normalisations have seen something
    return net.eval()


def test_a_net_without_noise_is_eulers_loop_written_out() -> None:
    net, x = small(DepthNoise()).eval(), torch.rand(3, 1, 8, 8)
    h = net.stem(2 * x - 1)
    for t in (0.0, 0.25, 0.5, 0.75):
        z = h
        for k in range(3):
            conv = net.depth.drift.convs[k]
            z = F.relu(net.depth.drift.norms[k](z))
            z = conv(torch.cat([torch.full((3, 1, 8, 8), t), z], 1))
        h = h + 0.25 * net.depth.drift.norms[3](z)
    assert_close(net(x), net.head(h))


def test_depth_is_cut_in_equal_steps_of_at_most_the_grid() -> None:
    for grid, steps in ((1.0, 1), (0.5, 2), (0.3, 4), (0.1, 10)):
        assert Continuous(nn.Identity(), DepthNoise(), grid=grid).steps == steps


@pytest.mark.parametrize("kind", RANDOM)
def test_noise_is_there_in_both_modes_until_it_is_turned_off(kind: Kind) -> None:
    net, x = small(DepthNoise(kind, sigma=0.5)), torch.rand(3, 1, 8, 8)
    for mode in (True, False):
        net.train(mode)
        assert not torch.equal(net(x), net(x))
    still = quiet(net)
    assert torch.equal(still(x), still(x))
    assert net.depth.noise.on
    if kind not in ("dropout", "stochastic-depth"):
        plain = small(DepthNoise()).eval()
        plain.load_state_dict(net.state_dict())
        assert torch.equal(still(x), plain(x))


@pytest.mark.parametrize("kind", RANDOM)
def test_all_of_it_is_trained_through_the_solver(kind: Kind) -> None:
    net = small(DepthNoise(kind, sigma=0.3)).train()
    torch.autograd.backward(F.cross_entropy(net(torch.rand(6, 1, 8, 8)), torch.arange(6) % 3))
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())
    assert float(net.depth.drift.convs[0].weight.grad.abs().max()) > 0


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 20), (3, 65, 40), (1, 1, 1), (2, 16, 16)])
def test_images_of_any_size_are_brought_to_small_maps(shape: tuple[int, int, int]) -> None:
    net = ContinuousNet(shape, 5, DepthNoise(), grid=1.0, width=2).eval()
    sides: list[torch.Size] = []
    net.depth.state.register_forward_hook(lambda _, args, __: sides.append(args[0].shape))
    assert net(torch.rand(2, *shape)).shape == (2, 5)
    assert max(sides[0][2:]) <= 16
    assert len(sides) == 2  # of one step: before and after


def test_values_of_any_range_are_brought_to_the_same() -> None:
    span = torch.tensor([255.0, 0.0])[:, None, None].expand(2, 4, 4)
    net = ContinuousNet((2, 4, 4), 2, DepthNoise(), width=2, low=torch.full((2, 4, 4), 10.0), span=span)
    seen: list[Tensor] = []
    net.stem.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(torch.stack([torch.full((1, 2, 4, 4), v) for v in (10.0, 265.0)])[:, 0])
    assert_close(seen[0][:, 0, 0, 0], torch.tensor([-1.0, 1.0]))
    assert float(seen[0][0, 1, 0, 0]) == 0  # a value that never changes


def test_a_residual_net_has_its_blocks_and_without_noise_stays_itself() -> None:
    net, x = residual(), torch.rand(4, 3, 8, 8)
    before = copy.deepcopy(net.state_dict())
    assert blocks(net, x) == ["stages.0.0", "stages.0.1", "stages.1.1", "stages.2.1", "stages.3.1"]
    same = as_continuous(net, x, DepthNoise(), grid=1.0)
    assert_close(same(x), net(x))
    finer = as_continuous(net, x, DepthNoise(), grid=0.5)
    assert not torch.allclose(finer(x), net(x))
    block = net.stages[0][0]
    h = net.stem((x - net.mean) / net.std)
    half = h + 0.5 * (block(h) - h)
    assert_close(finer.get_submodule("stages.0.0")(h), half + 0.5 * (block(half) - half))
    assert all(torch.equal(t, before[key]) for key, t in net.state_dict().items())
    assert not any(m._forward_hooks for m in (*net.modules(), *same.modules()))


class Chain(nn.Module):
    """No shortcut, and its layers keep the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.norm(self.conv(x)))
        return out


class Around(nn.Module):
    """A shortcut, in front of which the norm stands as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(self.norm(x))
        return out


def test_which_modules_are_blocks() -> None:
    x = torch.rand(2, 3, 6, 6)
    tail = (nn.Flatten(), nn.Linear(108, 2))
    assert blocks(nn.Sequential(Chain(), *tail), x) == []  # alone, without a shortcut
    assert blocks(nn.Sequential(Chain(), Chain(), *tail), x) == ["0", "1"]  # a stack of one class
    assert blocks(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), *tail), x) == []  # layers are no blocks
    assert blocks(nn.Sequential(Around(6), Chain(), *tail), x) == ["0"]
    twice = Around(6)
    assert blocks(nn.Sequential(twice, twice, *tail), x) == []  # used again, it has two depths
    assert blocks(SmallCNN(), torch.rand(2, 1, 28, 28)) == []
    rows = nn.Sequential(nn.Linear(5, 7), Around(7), Around(7), nn.Linear(7, 2))
    assert blocks(rows, torch.rand(2, 5)) == ["1", "2"]


class Gate(nn.Module):
    """Squeeze and excite: what comes in, scaled, with nothing around it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 3, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.inner(x)
        return out


class Shifted(Around):
    """A shortcut, and a shift that is no parameter."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x) + 5
        return out


class Told(nn.Module):
    """Tells its encoder, by keyword, what to look away from."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True)
        self.block = Around(4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(self.encoder(x, src_key_padding_mask=x[..., 0] < -9)).flatten(1)
        return out


def test_a_gate_is_no_block_nor_what_is_called_with_keywords() -> None:
    x, tail = torch.rand(2, 3, 6, 6), (nn.Flatten(), nn.Linear(108, 2))
    assert blocks(nn.Sequential(Gate(), Shifted(6), *tail), x) == ["1"]
    rows = torch.rand(2, 5, 4)
    net = Told().eval()
    assert blocks(net, rows) == ["block"]
    assert_close(as_continuous(net, rows, DepthNoise())(rows), net(rows))


def test_draws_are_one_batch_and_their_mean_settles_as_one_over_n() -> None:
    """The variance of a mean of m softmaxes is that of one divided by m."""
    x = torch.rand(8, 1, 8, 8)
    net = with_draws(small(DepthNoise("gaussian-dropout", sigma=1.0), 0.5), x, 40).eval()
    assert net.rows_apart
    sizes: list[int] = []
    net.net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    with torch.no_grad():
        assert net.members(x).shape == (40, 8, 3)
        assert sizes == [320]
        p = passes(net, x, 1600).softmax(-1).double()  # 1600 n c
    spread = [float(p.unflatten(0, (-1, m)).mean(1).var(0).mean()) for m in (1, 4, 16)]
    for wide, narrow in pairwise(spread):
        assert wide / narrow == pytest.approx(4, rel=0.25)


def test_a_net_that_is_random_besides_is_asked_pass_by_pass() -> None:
    class Wave(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn(())

    net = nn.Sequential(small(DepthNoise("additive", sigma=0.1)), Wave())
    assert not with_draws(net, torch.rand(2, 1, 8, 8), 3).rows_apart


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


def test_noise_in_depth_helps_on_corrupted_digits_with_and_without_noise_at_test_time() -> None:
    """Three trainings each on 600 clean digits, asked of noisy and of masked ones: 0.67 of them right after the same
    net without noise, 0.70 after Gaussian dropout; that noise at test time adds to that does not show here."""
    digits = load_digits()
    x, y = digits["train"].take(np.arange(600))
    new, truth = digits["test"].take(np.arange(450))
    x, new, draw = x.flatten(1), new.flatten(1), torch.Generator().manual_seed(9)
    noisy = (new + 0.45 * torch.randn(new.shape, generator=draw)).clamp(0, 1)
    spoilt = torch.cat([noisy, new * (torch.rand(new.shape, generator=draw) < 0.6)])

    def right(net: nn.Module, draws: int) -> float:
        torch.manual_seed(1)
        with torch.no_grad():
            said = log_mean(passes(net, spoilt, draws)).argmax(-1)
        return float((said == truth.repeat(2)).float().mean())

    told: dict[str, list[float]] = {"ode": [], "noise in training": [], "at test time too": []}
    for seed in range(3):
        for noise in (DepthNoise(), DepthNoise("gaussian-dropout", sigma=1.5)):
            torch.manual_seed(seed)
            plain = nn.Sequential(nn.Linear(64, 32), Shortcut(), Shortcut(), nn.ReLU(), nn.Linear(32, 10))
            net = as_continuous(plain, x[:2], noise, grid=0.5)
            fit(net, Arrays(x, y), epochs=12, lr=0.05, batch=50, rng=torch.Generator().manual_seed(seed))
            told["noise in training" if noise.is_random else "ode"].append(right(quiet(net).eval(), 1))
            if noise.is_random:
                told["at test time too"].append(right(net.eval(), 20))
    mean = {name: sum(each) / len(each) for name, each in told.items()}
    assert mean["noise in training"] > mean["ode"] + 0.02
    assert mean["at test time too"] > mean["ode"] + 0.02
    assert mean["at test time too"] > mean["noise in training"] - 0.02


def test_the_state_of_each_step_can_be_watched() -> None:
    net, seen = small(DepthNoise("multiplicative", sigma=0.2)).eval(), list[Tensor]()
    net.depth.state.register_forward_hook(lambda _, args, out: seen.append(out))
    net(torch.rand(2, 1, 8, 8))
    assert len(seen) == 5
    assert len({h.shape for h in seen}) == 1


def test_it_begins_anew() -> None:
    """Every module that holds parameters knows how to draw them."""
    net, rng = small(DepthNoise("additive", sigma=0.1)), torch.Generator().manual_seed(1)
    fresh = reset(net, rng)
    assert not torch.equal(fresh.depth.drift.convs[0].weight, net.depth.drift.convs[0].weight)  # type: ignore[union-attr,index]
    assert_close(fresh.middle, net.middle)


def test_what_cannot_be_is_refused_in_a_line() -> None:
    with pytest.raises(AssayError, match=r"steps of grid=1\.5; the grid is above 0 and at most the depth"):
        Continuous(nn.Identity(), DepthNoise(), grid=1.5)
    with pytest.raises(AssayError, match=r"grid=0\.0"):
        Continuous(nn.Identity(), DepthNoise(), grid=0.0)
    with pytest.raises(AssayError, match="grid=1e-12 cuts a depth of 1 in more than 1000 steps; take a coarser"):
        Continuous(nn.Identity(), DepthNoise(), grid=1e-12)
    with pytest.raises(AssayError, match="2 jumps .* take more steps"):
        Continuous(nn.Identity(), DepthNoise("dropout", rate=2.0), grid=1.0)
    with pytest.raises(ShapeError, match=r"inputs of shape \(13,\); it is for images"):
        ContinuousNet((13,), 2, DepthNoise())
    with pytest.raises(ShapeError, match="vanishes"):
        ContinuousNet((1, 2, 600), 2, DepthNoise())
    with pytest.raises(AssayError, match="width=0"):
        ContinuousNet((1, 8, 8), 2, DepthNoise(), width=0)
    with pytest.raises(AssayError, match="SmallCNN has no block that keeps its shape around a shortcut"):
        as_continuous(SmallCNN(), torch.rand(2, 1, 28, 28), DepthNoise())
    with pytest.raises(AssayError, match="no part of continuous depth"):
        quiet(SmallCNN())
