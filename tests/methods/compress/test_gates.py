"""Gates that close for good: their statistics, their cost, what they close, and that they leave no trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.compress.bill import Bill, bill, timed
from assay.methods.compress.dependency import Edge
from assay.methods.compress.gates import FALL, START, Gates, gate, gate_lr, logistic, may_vanish, remeasure, thin
from assay.methods.compress.price import flops, memory, parameters
from assay.methods.compress.surgery import cut, edges, masked
from assay.nn.resnet import Block, Bottleneck, ResNet, ResNet18


@cache
def residual() -> tuple[nn.Module, Tensor, tuple[Edge, ...]]:
    """Two residual blocks, the second with a shortcut, and statistics that are not 0 and 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), Block(4, 4, 1), Block(4, 6, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
        )  # fmt: skip
        x = torch.rand(8, 3, 7, 7)
        with torch.no_grad():
            for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_()
            net(x)
    return net.eval(), x, edges(net, x)


def two(costs: tuple[float, float] = (1.0, 1.0), size: int = 8) -> tuple[nn.Module, Tensor, tuple[Edge, ...], Bill]:
    """Two edges of which the network makes the same use, with whatever they are said to cost a channel."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, size), nn.Linear(4, size)
            self.heads = nn.ModuleList([nn.Linear(size, 2, bias=False) for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            return self.heads[0](self.one(x).relu()) + self.heads[1](self.other(x).relu())

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net, x = Branches(), torch.randn(64, 4)
        net.other.load_state_dict(net.one.state_dict())
        net.heads[1].load_state_dict(net.heads[0].state_dict())
    found = edges(net, x)
    assert [edge.size for edge in found] == [size, size]
    sizes = torch.full((2,), float(size), dtype=torch.float64)
    return net, x, found, Bill(sizes, torch.tensor(costs, dtype=torch.float64), torch.zeros(2, 2).double())


def slope(theta: float) -> float:
    """d E[sigmoid(theta + x)] / d theta by the density of a sum of two logistic variables."""
    e = math.exp(theta)
    return e * ((theta - 2) * e + theta + 2) / (e - 1) ** 3 if theta > 1e-2 else 1 / 6


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_a_gate_is_open_as_often_as_its_sigmoid_says(tau: float) -> None:
    theta, n = torch.tensor([-2.0, 0.0, 1.0, START]), 40_000
    values = gate(theta, logistic((n, 4)), tau)
    assert_close(values, values.round(), atol=1e-6, rtol=0)
    wanted = theta.sigmoid()
    sigma = (wanted * (1 - wanted) / n).sqrt()
    assert ((values.mean(0) - wanted).abs() < 3 * sigma).all()


def test_the_gradient_leads_to_open_and_is_that_of_two_logistic_variables() -> None:
    theta, n = torch.tensor([0.5, 2.0, START], requires_grad=True), 40_000
    noise = logistic((n, 3))
    gate(theta, noise).mean(0).sum().backward()  # type: ignore[no-untyped-call]
    assert theta.grad is not None
    soft = (theta.detach() + noise).sigmoid()
    sigma = (soft * (1 - soft)).std(0) / math.sqrt(n)
    wanted = torch.tensor([slope(t) for t in theta.tolist()])
    assert (theta.grad > 0).all()
    assert ((theta.grad - wanted).abs() < 3 * sigma).all()


def test_where_gates_begin_and_how_long_they_take_to_close() -> None:
    assert round(START, 4) == 5.2933
    assert torch.tensor(START).sigmoid().item() == pytest.approx(0.995)
    assert quad(lambda t: 1 / slope(t), 0, START)[0] == pytest.approx(FALL, rel=2e-3)
    _, _, found, costs = two()
    assert Gates(found, costs, alpha=1.0, lr=1.0).theta.unique().tolist() == [pytest.approx(START)]
    half_shut = Gates(found, costs, alpha=1.0, lr=1.0, closed_at_first=0.05)
    assert half_shut.theta.sigmoid().unique().tolist() == [pytest.approx(0.95)]
    steps = 300
    gates = Gates(found, costs, alpha=2.0, lr=gate_lr(steps, 2.0, rate=0.5, momentum=0.0), rate=0.5, momentum=0.0)
    taken = 0
    while gates.open.all() and taken < 2 * steps:  # on the mean gradient, by hand
        taken += 1
        gates.nudge.grad = torch.tensor([2.0 * slope(t) / 16 for t in gates.theta.tolist()])
        gates.step()
    assert taken == pytest.approx(steps, rel=0.05)
    assert gates.counts().tolist() == [1, 1]  # all but those without which the network would be none


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_what_is_closed_never_opens(seed: int) -> None:
    _, _, found, costs = two()
    gates = Gates(found, costs, alpha=1.0, lr=1.0, rate=0.5)
    gates.theta.fill_(2.0)
    rng, before = torch.Generator().manual_seed(seed), gates.open.clone()
    for _ in range(6):
        gates.nudge.grad = torch.randn(16, generator=rng)
        gates.step()
        closed = ~before
        assert not (gates.open & closed).any()
        assert not gates.draw(50)[:, ~gates.open].any()
        before = gates.open.clone()
    if not before.all():
        gates.nudge.grad = torch.full((16,), -1e3)  # all must open, they hear
        gates.step()
        assert torch.equal(gates.open, before)
        gates.theta.fill_(1.0)
        gates.draw(9).sum().backward()  # type: ignore[no-untyped-call]
        assert not gates.nudge.grad[~before].any()
        assert gates.nudge.grad[before].all()


def test_the_cost_is_1_of_all_and_0_of_none_and_falls_with_each_channel() -> None:
    net, x, found = residual()
    for of in ("flops", "memory", "parameters"):
        gates = Gates(found, bill(net, found, x, of), alpha=1.0, lr=1.0)  # type: ignore[arg-type]
        gates.theta.fill_(1e9)
        seen = [gates.cost().item()]
        for i in torch.randperm(len(gates.open)):
            gates.open[i] = False
            seen.append(gates.cost().item())
        assert seen[0] == pytest.approx(1, abs=1e-5)
        assert seen[-1] == 0
        assert all(b <= a for a, b in pairwise(seen))
        assert all(b < a for a, b in pairwise(seen[:6]))


@given(st.data(), st.sampled_from(["flops", "memory", "parameters"]))
@settings(deadline=None, max_examples=12)
def test_whichever_gates_are_closed_one_more_makes_it_cheaper(data: st.DataObject, of: Any) -> None:
    """Closed for good, or by a draw: in each gate, from any state."""
    net, x, found = residual()
    costs = bill(net, found, x, of)
    gates = Gates(found, costs, alpha=1.0, lr=1.0)
    n = len(gates.open)
    gates.open.copy_(torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n))))
    says = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))  # of the noise
    gates.theta.copy_(torch.where(says, 1e9, -1e9))
    each = costs.per_channel(gates.counts())
    there = gates.open & says
    before = gates.cost().item()
    assert before == pytest.approx(float(each[gates.edge[there]].sum() / gates.whole), abs=1e-6)
    assert 0 <= before <= 1 + 1e-6
    for i in there.nonzero()[:, 0].tolist()[:6]:
        gates.theta[i] = -1e9
        drawn = gates.cost().item()
        gates.open[i] = False
        for_good = gates.cost().item()
        assert drawn <= before - 0.99 * float(each[gates.edge[i]] / gates.whole)
        assert for_good <= drawn + 1e-7  # its neighbours have one channel less to pay for
        gates.open[i], gates.theta[i] = True, 1e9


def test_the_cost_falls_as_gates_say_and_not_by_way_of_what_a_channel_costs() -> None:
    """dL/dg is the cost of the channel with what is closed for good, and with nothing of the draw."""
    net, x, found = residual()
    costs = bill(net, found, x, "flops")
    gates = Gates(found, costs, alpha=1.0, lr=1.0, tau=1.0)
    gates.open[0] = False
    gates.theta.fill_(0.3)
    noise_slopes = []
    for _ in range(400):
        gates.cost().backward()  # type: ignore[no-untyped-call]
        assert gates.nudge.grad is not None
        noise_slopes.append(gates.nudge.grad.clone())
        gates.nudge.grad = None
    each = (costs.per_channel(gates.counts()) / gates.whole).float()[gates.edge] * gates.open
    got = torch.stack(noise_slopes)
    assert not got[:, 0].any()
    sigma = got.std(0) / math.sqrt(len(got))
    assert ((got.mean(0) - each * slope(0.3)).abs() <= 4 * sigma).all()


@given(st.data())
@settings(deadline=None, max_examples=10)
def test_a_bill_is_what_the_network_costs_after_any_cut(data: st.DataObject) -> None:
    net, x, found = residual()
    keep = {
        e.name: torch.tensor(data.draw(st.lists(st.booleans(), min_size=e.size, max_size=e.size).filter(any)))
        for e in found
    }
    counts = torch.tensor([int(keep[e.name].sum()) for e in found]).double()
    small = cut(net, found, keep)
    for of, true in (("flops", flops(small, x)), ("memory", memory(small)), ("parameters", parameters(small))):
        assert bill(net, found, x, of).total(counts).item() == true  # type: ignore[arg-type]


def test_bills_of_flattened_maps_concatenations_and_what_follows() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 2, 1)
            self.depth = nn.Conv2d(4, 4, 3, padding=1, groups=4)
            self.up, self.head = nn.ConvTranspose2d(6, 5, 2, 2), nn.Linear(5 * 8 * 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            seen = torch.cat([self.depth(self.a(x)), self.b(x)], 1)
            out: Tensor = self.head(self.up(seen.relu()).flatten(1))
            return out

    net, x = Mixed().eval(), torch.rand(2, 3, 4, 4)
    found = edges(net, x)
    assert sorted(e.size for e in found) == [2, 4, 5]
    for few in (0, 1):
        keep = {e.name: torch.arange(e.size) >= few for e in found}
        counts = torch.tensor([e.size - few for e in found]).double()
        small = cut(net, found, keep)
        for of, true in (("flops", flops(small, x)), ("memory", memory(small)), ("parameters", parameters(small))):
            assert bill(net, found, x, of).total(counts).item() == true  # type: ignore[arg-type]


class Joined(nn.Module):
    """Two layers that are concatenated write one edge with a third, which is added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.head(torch.cat([self.a(x), self.b(x[..., 1:-1, 1:-1])], 1) + self.c(x))
        return said


def test_a_layer_that_writes_a_part_of_an_edge_costs_that_part() -> None:
    net, x = Joined().eval(), torch.rand(1, 3, 6, 6)
    (edge,) = found = edges(net, x)
    small = cut(net, found, {edge.name: torch.arange(8) % 2 == 0})  # of each part half
    for of, count in (("flops", lambda m: flops(m, x)), ("memory", memory), ("parameters", parameters)):
        costs = bill(net, found, x, of)  # type: ignore[arg-type]
        assert costs.total(costs.sizes).item() == count(net)
        assert costs.total(costs.sizes / 2).item() == count(small)


def test_each_layer_is_counted_once_for_each_side_that_can_be_cut() -> None:
    """By hand, layer by layer, for FLOPs of the true shapes: 7 x 7, and 4 x 4 after the stride."""
    net, x, found = residual()
    costs = bill(net, found, x, "flops")
    stem, head = 9 * 3 * 4 * 49, 6 * 5  # the image and the answer are not gated
    inner = 2 * 9 * 4 * 4 * 49 + 9 * 4 * 6 * 16 + 9 * 6 * 6 * 16 + 4 * 6 * 16
    assert costs.total(costs.sizes).item() == stem + inner + head == flops(net, x)
    assert (costs.sizes @ costs.per_channel(costs.sizes)).item() == 2 * (stem + inner + head) - stem - head


@pytest.mark.parametrize("net", [ResNet18(5, width=2), ResNet(5, width=2, blocks=(1, 2, 1, 1), kind=Bottleneck)])
def test_a_channel_costs_what_print_says_and_all_of_them_twice_but_for_both_ends(net: ResNet) -> None:
    """lambda_j by eq. 5 and 6, layer by layer: readers pay their outputs, writers their inputs, FLOPs 4^-s of it."""
    x = torch.rand(1, 3, 16, 16)
    found = edges(net.eval(), x)
    layers: dict[str, Any] = {n: m for n, m in net.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}

    def one(name: str, side: str, places: bool) -> float:
        """What a channel more on this side of a layer costs: kernel area times the other side."""
        layer = layers[name]
        area = math.prod(getattr(layer, "kernel_size", (1,)))
        halved = int(name.split(".")[1]) if name.startswith("stages") else 0  # s: stride-2 steps before its output
        if name.endswith("body.0") and layer.stride == (1, 1) and isinstance(net.stages[0][0], Bottleneck):  # type: ignore[index]
            halved -= int(halved > 0 and name.split(".")[2] == "0")  # a bottleneck strides in its second layer
        size = 1 if name == "head" else 16 * 16 / 4**halved
        return area * layer.weight.shape[0 if side == "in" else 1] * (size if places else 1)

    for of, places, total in (("memory", False, memory(net)), ("flops", True, flops(net, x))):
        costs = bill(net, found, x, of)  # type: ignore[arg-type]
        by_hand = [
            sum(one(n, "in", places) for n in edge.readers) + sum(one(n, "out", places) for n in edge.writers)
            for edge in found
        ]
        assert costs.per_channel(costs.sizes).tolist() == by_hand
        ends = 3 * one("stem.0", "in", places) + 5 * one("head", "out", places)
        assert (costs.sizes @ costs.per_channel(costs.sizes)).item() == 2 * total - ends


def test_a_channel_costs_what_the_network_is_smaller_by_without_it() -> None:
    net, x, found = residual()
    counts = torch.tensor([float(e.size) for e in found]).double()
    marginal = bill(net, found, x, "flops").per_channel(counts)
    for edge, each in zip(found, marginal.tolist(), strict=True):
        less = cut(net, found, {edge.name: torch.arange(edge.size) > 0})
        assert flops(net, x) - flops(less, x) == each


def test_as_coded_counts_the_network_once() -> None:
    net, x, found = residual()
    costs = bill(net, found, x, "flops")
    plain, coded = (Gates(found, costs, alpha=1.0, lr=1.0, as_coded=of) for of in (False, True))
    for gates in (plain, coded):
        gates.theta.fill_(1e9)
    share = (costs.sizes @ costs.per_channel(costs.sizes) / costs.total(costs.sizes)).item()
    assert 1.8 < share < 2
    assert coded.cost().item() == pytest.approx(share, rel=1e-5)
    each = costs.per_channel(costs.sizes)[coded.edge]
    for gates in (plain, coded):
        assert_close(gates.rates.double(), 0.2 * gates.whole / each, rtol=1e-5, atol=0)
    assert Gates(found, costs, alpha=1.0, lr=0.3, rate=None).rates.unique().tolist() == [pytest.approx(0.3)]


def test_seconds_are_those_that_were_measured() -> None:
    net, x, found = residual()
    costs = bill(net, found, x, "flops")
    half = (costs.sizes / 2).floor()
    alone = [costs.total(torch.where(torch.arange(len(half)) == j, half, costs.sizes)) for j in range(len(half))]
    saved = 1e-9 * (costs.total(costs.sizes) - torch.stack(alone))  # a device on which a FLOP is a nanosecond
    whole = 1e-9 * costs.total(costs.sizes).item() + 0.001  # and a millisecond passes in any case
    for as_coded in (False, True):
        seconds = timed(costs, whole, saved, costs.sizes - half, as_coded=as_coded)
        assert_close(seconds.per_channel(costs.sizes), 1e-9 * costs.per_channel(costs.sizes))
        assert_close(seconds.total(half), 0.001 + 1e-9 * costs.total(half))
        follows = torch.equal(seconds.per_channel(half), seconds.per_channel(costs.sizes))
        assert follows is not as_coded
    noisy = timed(costs, whole, saved * torch.tensor([-1.0] + [1.0] * (len(half) - 1)), costs.sizes - half)
    assert (noisy.per_channel(half) > 0).all()


def test_a_layer_between_a_dear_and_a_cheap_edge_takes_the_mean_of_both() -> None:
    sizes, nothing = torch.tensor([4.0, 6.0]).double(), torch.zeros(2).double()
    layer = Bill(sizes, nothing, torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double())  # 24 FLOPs, 6 and 4 a channel
    removed = sizes / 2
    seconds = timed(layer, 100.0, removed * torch.tensor([6.0, 12.0]), removed)  # a FLOP is worth 1 second, or 3
    assert seconds.per_channel(removed).tolist() == [6, 12]
    assert seconds.total(sizes).item() == 100
    assert seconds.total(removed).item() == 100 - 2 * (24 - 6)


def closing(
    net: nn.Module, x: Tensor, gates: Gates, steps: int, loss: Callable[[Tensor], Tensor]
) -> dict[int, int]:  # channel -> the step after which it was closed
    gone: dict[int, int] = {}
    with gates.on(net):
        net.train()
        for step in range(steps):
            gates.loss(lambda out, _: loss(out))(net(x), x).backward()  # type: ignore[no-untyped-call]
            gates.step()
            for i in (~gates.open).nonzero()[:, 0].tolist():
                gone.setdefault(i, step)
    net.eval()
    return gone


def taught(says: Tensor) -> tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]:  # 16
    """16 hidden units that say so much each, and the loss of answering otherwise than all of them together."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)), torch.randn(128, 16)
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(16))
        net[2].weight.copy_(says[None])
        whole = net(x)
    return net, x, lambda out: F.mse_loss(out, whole)


def test_what_says_nothing_goes_first() -> None:
    net, x, loss = taught(torch.tensor([1.0, 0.0] * 8))
    found = edges(net, x)
    gates = Gates(found, bill(net, found, x, "flops"), alpha=0.5, lr=gate_lr(40, 0.5))
    gone = closing(net, x, gates, 90, loss)
    assert len(gone) >= 8
    assert set(sorted(gone, key=gone.__getitem__)[:8]) == set(range(1, 16, 2))


def test_the_larger_alpha_the_fewer_are_left() -> None:
    left = []
    for alpha in (0.01, 1.0, 100.0):
        net, x, loss = taught(torch.logspace(-2, 0.5, 16))
        found = edges(net, x)
        gates = Gates(found, bill(net, found, x, "flops"), alpha=alpha, lr=gate_lr(40, 1.0))
        closing(net, x, gates, 60, loss)
        left.append(int(gates.open.sum()))
    assert left[0] > left[1] > left[2] >= 1


@pytest.mark.parametrize("rate", [0.2, None])
def test_of_two_of_equal_use_the_dear_edge_loses_more(rate: float | None) -> None:
    net, x, found, costs = two((1.0, 4.0))
    y = net(x).detach()
    lr = gate_lr(40, 0.02) if rate else 40 * gate_lr(40, 0.02) * 0.2
    gates = Gates(found, costs, alpha=0.02, lr=lr, rate=rate)
    closing(net, x, gates, 80, lambda out: F.mse_loss(out, y))
    cheap, dear = gates.counts().tolist()
    assert dear < cheap


def test_gates_stop_as_soon_as_the_price_is_met_and_no_channel_later() -> None:
    net, x, found = residual()
    costs = bill(net, found, x, "flops")
    whole = flops(net, x)
    gates = Gates(found, costs, alpha=1.0, lr=1.0, target=0.5 * whole, may_vanish=may_vanish(net, found, x))
    gates.theta.uniform_(-1, 0)
    gates.nudge.grad = torch.zeros_like(gates.theta)
    before = gates.theta.clone()
    gates.step()  # all of them want to close
    assert gates.settled
    gates.round_off()
    keep = gates.keep()
    left = flops(cut(net, found, keep), x)
    assert left <= 0.5 * whole
    last = int(torch.where(gates.open, -math.inf, before).argmax())  # who went last
    gates.open[last] = True
    assert costs.total(gates.counts()).item() > 0.5 * whole
    gates.open[last] = False
    value = gates.draw(30)
    assert torch.equal(value, gates.open.to(value).expand(30, -1))  # and noise has ended
    gates.nudge.grad = torch.ones_like(gates.theta)
    gates.step()
    assert torch.equal(gates.theta, before)


def test_channels_are_left_in_multiples() -> None:
    _, _, found, costs = two(size=24)
    gates = Gates(found, costs, alpha=1.0, lr=1.0, target=24.0, multiple=8)
    gates.theta.copy_(torch.linspace(-3, -0.1, 48)[torch.randperm(48)])
    gates.nudge.grad = torch.zeros(48)
    gates.step()
    assert gates.settled
    gates.round_off()
    counts = gates.counts().tolist()
    assert sum(counts) == 24
    assert all(count % 8 == 0 for count in counts)
    for which in gates.places.values():  # the likeliest to be open
        theta, open_ = gates.theta[which], gates.open[which]
        assert theta[open_].min() > theta[~open_].max()


def test_after_gates_masked_is_cut_with_a_block_that_is_gone_and_no_trace_is_left() -> None:
    net, x, found = residual()
    fresh = {name: t.clone() for name, t in net.state_dict().items()}
    vanish = may_vanish(net, found, x)
    gates = Gates(found, bill(net, found, x, "flops"), alpha=1.0, lr=1.0, may_vanish=vanish)
    assert [e.name for e, may in zip(found, vanish, strict=True) if may] == ["3.body.0", "4.body.0"]
    gates.theta.fill_(1.0)
    gates.open[gates.places["3.body.0"]] = False
    gates.open[gates.places["0"].start] = False
    gates.open[gates.places["4.body.3"].start + 1] = False
    plain = net(x)
    with torch.no_grad():
        with gates.on(net):
            gated = net(x)
            net.train()
            noisy = [net(x) for _ in range(2)]
            net.eval()
        assert not torch.equal(*noisy)
        net.load_state_dict(fresh)
        small = cut(net, found, gates.keep())
        assert_close(gated, masked(net, found, gates.keep())(x))
        assert_close(gated, small(x))
    assert_close(net(x), plain)
    assert not any(m._forward_pre_hooks for m in net.modules())
    assert set(net.state_dict()) == set(fresh)
    assert flops(small, x) < flops(net, x)


def test_only_what_the_answer_can_do_without_may_vanish() -> None:
    chain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert not may_vanish(chain, edges(chain, torch.rand(2, 3)), torch.rand(2, 3)).any()
    net, x, found, _ = two()
    assert may_vanish(net, found, x).sum() == 1  # either branch, but not both


def test_normalisations_are_measured_anew_and_nothing_else_changes() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    before = {name: t.clone() for name, t in net.state_dict().items() if "running" not in name and "num" not in name}
    batches = [torch.randn(16, 3) + k for k in range(3)]
    remeasure(net, batches)
    seen = torch.stack([net[0](x) for x in batches])
    assert_close(net[1].running_mean, seen.mean(1).mean(0).detach())
    assert_close(net[1].running_var, seen.var(1).mean(0).detach())
    assert net[1].momentum == 0.1
    assert not any(m.training for m in net.modules())
    for name, tensor in before.items():
        assert torch.equal(net.state_dict()[name], tensor)


def test_frozen_normalisations_are_not_measured_anew() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2)).eval()
    net[1].requires_grad_(False)
    remeasure(net, [torch.randn(16, 3) + 5])
    assert torch.equal(net[1].running_mean, torch.zeros(4))
    assert torch.equal(net[1].running_var, torch.ones(4))
    assert net[3].running_mean.abs().min() > 0
    assert not any(m.training for m in net.modules())


def test_rounds_go_on_from_where_they_were_with_a_larger_alpha() -> None:
    net, _, found, costs = two()
    gates = Gates(found, costs, alpha=0.5, lr=1.0)
    seen: list[tuple[float, float, int]] = []

    def train(of: Gates) -> None:
        seen.append((of.alpha, of.target, int(of.open.sum())))
        of.theta[of.open] -= torch.linspace(1, 6, 16)[of.open]
        of.nudge.grad = torch.zeros(16)
        of.step()

    def price(keep: Any) -> float:  # but for both ends the bill says too little
        left = sum(int(each.sum()) for each in keep.values())
        return left + (1.5 if 2 < left < 16 else 0)

    keep = thin(gates, net, train, price, 6.0)
    assert price(keep) <= 6
    assert [alpha for alpha, _, _ in seen] == [0.5, 1.0, 1.0]
    assert [target for _, target, _ in seen] == [6, 6, pytest.approx(2 + 4 * 4 / 5.5)]
    assert all(b[2] <= a[2] for a, b in pairwise(seen))
    idle = Gates(found, costs, alpha=0.5, lr=1.0)  # which no training moves
    idle.theta.copy_(torch.randperm(16))
    keep = thin(idle, net, lambda of: None, price, 6.0, rounds=2)
    assert [i for each in keep.values() for i in each.tolist()] == (idle.theta >= 12).tolist()
    with pytest.raises(AssayError, match=r"cannot be met: with one channel .* costs 0.125 of what it did"):
        thin(Gates(found, costs, alpha=0.5, lr=1.0), net, train, price, 1.0)
    assert not any(m._forward_pre_hooks for m in net.modules())


def test_settings_that_move_no_gate_are_refused_in_one_line() -> None:
    _, _, found, costs = two()
    for bad, words in (
        ({"alpha": 0.0}, "alpha=0.0 moves no gate"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"tau": math.nan}, "tau=nan"),
        ({"rate": 0.0}, "rate=0.0"),
        ({"multiple": 0}, "multiple=0 is no count"),
        ({"closed_at_first": 0.5}, "closed_at_first=0.5 is no chance"),
    ):
        with pytest.raises(AssayError, match=words):
            Gates(found, costs, **{"alpha": 1.0, "lr": 1.0, **bad})  # type: ignore[arg-type]


def test_the_same_seed_closes_the_same_channels() -> None:
    left = []
    for _ in range(2):
        net, x, loss = taught(torch.ones(16))
        found = edges(net, x)
        gates = Gates(found, bill(net, found, x, "flops"), alpha=50.0, lr=gate_lr(10, 50.0))
        closing(net, x, gates, 35, loss)
        left.append(gates.open)
    assert 0 < left[0].sum() < 16
    assert torch.equal(*left)


def test_gates_that_the_optimiser_of_the_weights_nudges_move_at_their_own_rates() -> None:
    _, _, found, costs = two((1.0, 4.0))
    ours, theirs = (Gates(found, costs, alpha=1.0, lr=0.5, momentum=0.0) for _ in range(2))
    slope = torch.randn(16) / 100
    ours.nudge.grad = slope.clone()
    ours.step()
    with torch.no_grad():
        theirs.nudge.sub_(0.1 * slope)
    theirs.nudged(0.1)
    assert_close(ours.theta, theirs.theta)
    assert not theirs.nudge.any()
    assert not torch.equal(ours.theta, torch.full((16,), START))
