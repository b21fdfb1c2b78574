"""Capacity against brute force, closed forms of linear maps and the printed chain of bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.channel_capacity import (
    CapacityPenalty,
    fake_inputs,
    linear_mic,
    mic_surrogate,
    output_trace,
    water_filling,
)
from assay.methods.train.fit import fit

gains = st.lists(st.floats(0.05, 5), min_size=1, max_size=5)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_example_that_was_worked_out_by_hand() -> None:
    poured = water_filling(double([1, 0.2, 3]), 2.0)  # in any order
    assert poured.used == 2
    assert float(poured.level) == pytest.approx(14 / 9)
    assert float(poured.mic) == pytest.approx(1.5404, abs=5e-5)
    assert float(linear_mic(torch.diag(double([3, 1, 0.2])), 2.0)) == pytest.approx(1.5404, abs=5e-5)


@settings(deadline=None, max_examples=15)
@given(gains, st.floats(0.1, 10))
def test_no_other_way_to_spend_the_power_tells_more(g: list[float], power: float) -> None:
    squares = np.square(g)

    def told(share: np.ndarray) -> float:
        p = power * np.exp(share) / np.exp(share).sum()
        return float(-0.5 * np.log1p(p * squares).sum())

    best = -minimize(told, np.zeros(len(g)), method="BFGS").fun
    mic = float(water_filling(double(g), power).mic)
    assert mic == pytest.approx(best, rel=1e-3, abs=1e-4)  # the search never reaches a share of 0
    assert mic >= best - 1e-9


@settings(deadline=None, max_examples=30)
@given(gains, st.floats(0.01, 10))
def test_the_water_is_all_the_power_and_stands_at_one_level(g: list[float], power: float) -> None:
    poured = water_filling(double(g), power)
    spent = (poured.level - double(g).pow(-2)).clamp(min=0)
    assert float(spent.sum()) == pytest.approx(power, rel=1e-9)
    assert int((spent > 0).sum()) == poured.used


@settings(deadline=None, max_examples=30)
@given(gains, st.floats(0.01, 10))
def test_the_printed_chain_of_bounds_holds(g: list[float], power: float) -> None:
    poured = water_filling(double(g), power)
    squares, d = np.sort(np.square(g))[::-1], len(g)
    used = squares[: poured.used]
    chain = [
        2 * float(poured.mic),
        np.prod(float(poured.level) * used) - 1,
        np.prod(power * used + 1) - 1,
        (power * squares.sum() + 1) ** d - 1,
        (power * d * squares.max() + 1) ** d - 1,
    ]
    for smaller, larger in itertools.pairwise(chain):
        assert smaller <= larger * (1 + 1e-9) + 1e-9


@settings(deadline=None, max_examples=20)
@given(gains, st.floats(0.01, 10))
def test_more_power_or_gain_tells_more_and_the_basis_does_not_matter(g: list[float], power: float) -> None:
    mic = float(water_filling(double(g), power).mic)
    assert mic > 0
    assert float(water_filling(double(g), 1.1 * power).mic) > mic
    assert float(water_filling(double([*g, 0.5]), power).mic) >= mic - 1e-12
    assert float(water_filling(1.1 * double(g), power).mic) > mic
    watered = (poured := water_filling(double(g), power)).level > double(g).pow(-2)
    for i in range(len(g)):  # each by itself; one that gets no power only where it comes to be above the water
        larger = double(g)
        larger[i] *= 1.1
        grown = float(water_filling(larger, power).mic)
        assert grown > mic if bool(watered[i]) else grown >= mic
    assert poured.used == int(watered.sum())
    n = len(g)
    turn, other = (torch.linalg.qr(torch.randn(n, n, generator=rng(s), dtype=torch.float64)).Q for s in (1, 2))
    assert float(linear_mic(turn @ torch.diag(double(g)) @ other, power)) == pytest.approx(mic, rel=1e-9, abs=1e-9)


def test_nothing_tells_nothing() -> None:
    assert float(linear_mic(torch.zeros(3, 2), 2.0)) == 0
    assert float(linear_mic(torch.eye(2), 0.0)) == 0
    with pytest.raises(AssayError, match="power=-1"):
        linear_mic(torch.eye(2), -1.0)


def test_of_a_linear_layer_the_trace_is_that_of_its_columns_and_on_average_three_quarters_of_weight_decay() -> None:
    weight = torch.randn(5, 7, generator=rng(1))
    drawn = rng(2)
    v = torch.rand(7, generator=drawn) / 2 + 0.5
    x = v.sqrt() * torch.randn(1, 200_000, 7, generator=drawn)
    assert float(output_trace(x @ weight.T)) == pytest.approx(float((v * weight.square().sum(0)).sum()), rel=0.01)
    x = fake_inputs((7,), "eic", rng(3), densities=20_000, inputs=8)
    decay = 0.75 * float(weight.square().sum())
    assert float(output_trace(x @ weight.T)) == pytest.approx(decay, rel=0.01)
    biased = float(output_trace(x @ weight.T, as_published=True))
    assert biased == pytest.approx(7 / 8 * decay, rel=0.01)  # print divides by the number of inputs


def test_fake_inputs_have_the_spread_that_print_and_code_say() -> None:
    for density, least, most, mean in (("eic", 0.5, 1.0, 0.75), ("mic", 1.0, 1.0, 1.0), ("coded", 0.0, 1.0, 1 / 3)):
        x = fake_inputs((400,), density, rng(), densities=1, inputs=4000)[0]  # type: ignore[arg-type]
        spread = x.var(0)
        assert float(spread.mean()) == pytest.approx(mean, abs=0.03)
        assert least - 0.1 < float(spread.min()) < float(spread.max()) < most + 0.15
        assert float(spread.std()) == pytest.approx({"eic": 0.146, "mic": 0.0224, "coded": 0.298}[density], abs=0.02)


def test_orthogonal_columns_have_no_variance_and_unequal_singular_values_a_price() -> None:
    x = fake_inputs((6,), "mic", rng(), densities=1, inputs=20_000).double()
    q = torch.linalg.qr(torch.randn(9, 6, generator=rng(1), dtype=torch.float64)).Q
    assert_close(mic_surrogate(x, x @ (2.5 * q).T), torch.tensor(2.5, dtype=torch.float64))
    weight = torch.randn(9, 6, generator=rng(2), dtype=torch.float64)
    y = x @ weight.T
    ratio = y.square().sum(-1) / x.square().sum(-1)
    assert float(ratio.mean()) == pytest.approx(float(weight.square().sum()) / 6, rel=0.02)
    length = y.norm(dim=-1) / x.norm(dim=-1)
    assert float(mic_surrogate(x, y)) == pytest.approx(float(length.mean() + length.var()), rel=1e-9)
    halved = float(mic_surrogate(x, y, squared=True))
    whole = float(ratio.mean() + ratio.var(correction=0))
    assert whole > 5
    assert 2.5 < halved <= 5
    assert math.log2(whole / halved) == pytest.approx(round(math.log2(whole / halved)), abs=1e-9)


def test_the_surrogate_of_a_network_that_says_nothing_has_a_finite_slope() -> None:
    x = fake_inputs((3,), "mic", rng())
    weight = torch.zeros(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(mic_surrogate(x, x @ weight.T), weight)
    assert slope.isfinite().all()


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 8), nn.Linear(8, 4)
    )


def test_blocks_are_the_whole_and_each_layer_with_the_shapes_that_they_are_given() -> None:
    net = small()
    priced = CapacityPenalty(net, torch.rand(2, 1, 4, 4), eic=1.0)
    assert [shape for _, shape in priced.layers] == [(1, 4, 4), (48,), (8,)]
    assert net.training
    traces, _ = priced.of_each(rng())
    with torch.no_grad():
        last = net[-1].weight.square().sum() * 0.75 / 4  # type: ignore[operator]
        mean = torch.stack([priced.of_each(rng(s))[0][-1] for s in range(80)]).mean()
    assert float(mean) == pytest.approx(float(last), rel=0.1)
    assert len(traces) == 4
    printed = CapacityPenalty(net, torch.rand(2, 1, 4, 4), eic=1.0, as_published=True).of_each(rng())[0]
    outputs = torch.tensor([4.0, 48.0, 8.0, 4.0])
    assert_close(torch.stack(printed), torch.stack(traces) * outputs * 15 / 16)


def test_fake_inputs_leave_no_trace_in_batch_normalisation_and_the_range_is_that_of_the_inputs() -> None:
    net = small()
    kept = {name: b.clone() for name, b in net.named_buffers()}
    CapacityPenalty(net, torch.rand(2, 1, 4, 4), eic=1.0, mic=1.0).penalty(rng())
    assert_close(dict(net.named_buffers()), kept, rtol=0, atol=0)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    narrow[1].load_state_dict({"weight": 255 * wide[1].weight.data, "bias": wide[1].bias.data})
    x = torch.rand(2, 1, 4, 4)
    one = CapacityPenalty(wide, 255 * x, eic=1.0, span=255.0).of_each(rng())[0][0]
    assert_close(one, CapacityPenalty(narrow, x, eic=1.0).of_each(rng())[0][0])


def digits(count: int) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))[:count]
    return torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])


class _Rows:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def test_training_with_a_price_lowers_trace_surrogate_and_spectral_norms() -> None:
    """And how much larger the loss is on new inputs than on those it learned. It does not forget the digits: at seed 0
    of 0.89 that are right 0.85 stay so under the first price."""
    x, y = digits(900)
    told = {}
    for name, prices in (("plain", {}), ("eic", {"eic": 0.3}), ("mic", {"mic": 0.2})):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
        priced = CapacityPenalty(net, x[:1], **prices)
        fit(
            net, _Rows(x[:300], y[:300]), epochs=15, lr=5e-3, batch=50, optimiser="adam", rng=rng(),
            loss=priced.loss, augment=priced.augment,
        )  # fmt: skip
        every = CapacityPenalty(net, x[:1], eic=1.0, mic=1.0)
        with torch.no_grad():
            trace, mics = (float(torch.stack(each).sum()) for each in every.of_each(rng(1)))
            spectral = math.prod(float(torch.linalg.matrix_norm(layer.weight, 2)) for layer in (net[0], net[2], net[4]))
            right = float((net(x[300:]).argmax(1) == y[300:]).float().mean())
            known, new = (float(nn.functional.cross_entropy(net(x[s]), y[s])) for s in (slice(300), slice(300, None)))
        told[name] = (trace, mics, spectral, right, new - known)
    for name in ("eic", "mic"):
        for less, plain in zip(told[name][:3], told["plain"], strict=False):  # the last bounds its Lipschitz constant
            assert less < 0.8 * plain
        assert told[name][3] > told["plain"][3] - 0.1
        assert told[name][4] < 0.9 * told["plain"][4]


class Named(nn.Module):
    """Calls its layers by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(input=self.first(input=x).relu())
        return out


@pytest.mark.skipif(torch.cuda.is_available(), reason="DataParallel wants its net on the GPU where there is one")
def test_a_net_in_data_parallel_pays_as_it_does_alone() -> None:
    net, x = small().train(), torch.rand(2, 1, 4, 4)
    alone = CapacityPenalty(net, x, eic=1.0, mic=1.0).penalty(rng())
    kept = {name: b.clone() for name, b in net.named_buffers()}
    both = CapacityPenalty(nn.DataParallel(net), x, eic=1.0, mic=1.0)
    assert_close(both.penalty(rng()), alone)
    torch.autograd.backward(both.penalty(rng()))
    assert net[0].weight.grad is not None
    assert_close(dict(net.named_buffers()), kept, rtol=0, atol=0)


def test_layers_may_be_called_by_keyword() -> None:
    priced = CapacityPenalty(Named(), torch.rand(2, 3), eic=1.0)
    assert [shape for _, shape in priced.layers] == [(3,), (5,)]
    assert float(priced.penalty(rng())) > 0


def test_what_cannot_be_is_refused_in_one_line() -> None:
    net, x = small(), torch.rand(2, 1, 4, 4)
    with pytest.raises(AssayError, match="eic=-1 is no price"):
        CapacityPenalty(net, x, eic=-1)
    with pytest.raises(AssayError, match="mic=nan is no price"):
        CapacityPenalty(net, x, mic=math.nan)
    with pytest.raises(AssayError, match="not words or indices"):
        CapacityPenalty(net, torch.ones(2, 3, dtype=torch.int64), eic=1)
    with pytest.raises(AssayError, match="pass its `augment` to fit too"):
        CapacityPenalty(net, x, eic=1).loss(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(AssayError, match="at least 2 inputs of each density, got 1"):
        output_trace(torch.zeros(3, 1, 2))
