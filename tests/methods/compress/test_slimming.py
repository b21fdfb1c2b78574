"""Scales under a price: the score and what it does not see, schedule, soft mask, and who loses which channels."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.compress import slimming as method
from assay.methods.compress.slimming import Slimming, Writer, batch_norms, counts, least, lowest, own_lowest, soft_mask
from assay.methods.compress.surgery import Edge, cut, edges
from assay.methods.train.fit import fit


class Block(nn.Module):
    """`first` and `second` write the residual stream, `inner` lies between; `after` reads the sum."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.first, self.a = nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6, eps=eps)
        self.inner, self.b = nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8, eps=eps)
        self.second, self.c = nn.Conv2d(8, 6, 1, bias=False), nn.BatchNorm2d(6, eps=eps)
        self.after, self.d = nn.Conv2d(6, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5, eps=eps)
        self.head = nn.Linear(5 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(self.first(x)).relu()
        x = (x + self.c(self.second(self.b(self.inner(x)).relu()))).relu()
        out: Tensor = self.head(self.d(self.after(x)).relu().flatten(1))
        return out


def block(eps: float = 1e-5) -> Block:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Block(eps)
        for norm in batch_norms(net):
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    return net


@functools.cache
def edges_of() -> tuple[Edge, ...]:
    return edges(block(), torch.rand(2, 2, 4, 4))


@pytest.fixture
def x() -> Tensor:
    return torch.rand(16, 2, 4, 4, generator=torch.Generator().manual_seed(0))


def test_a_filter_that_is_scaled_does_nothing_and_theta_thinks_it_does(x: Tensor) -> None:
    """With next to no eps, in training mode: the normalisation takes any scale out again."""
    net = block(eps=1e-12).train()
    before, worth = net(x), method.theta(net.b.weight, net.inner.weight)
    with torch.no_grad():
        net.inner.weight[2] *= 7
    assert_close(net(x), before, rtol=1e-4, atol=1e-4)
    after = method.theta(net.b.weight, net.inner.weight)
    assert_close(after / worth, torch.tensor([1, 1, 7, 1, 1, 1, 1, 1.0]))
    assert_close(method.theta(net.b.weight, net.inner.weight, "gamma"), net.b.weight.detach().abs())


def test_a_channel_that_is_made_smaller_by_its_scale_has_the_same_theta(x: Tensor) -> None:
    net = block(eps=1e-12).train()
    heard: list[Tensor] = []
    net.b.register_forward_hook(lambda module, given, out: heard.append(out.detach() - net.b.bias[:, None, None]))
    net(x)
    worth = method.theta(net.b.weight, net.inner.weight)
    with torch.no_grad():
        net.inner.weight[2] *= 4
        net.b.weight[2] /= 4
    net(x)
    assert_close(method.theta(net.b.weight, net.inner.weight), worth)
    assert_close(heard[1][:, 2], heard[0][:, 2].detach() / 4, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(heard[1][:, 2], heard[0][:, 2], rtol=0.1)


def test_the_price_rises_then_falls_to_its_end() -> None:
    done = torch.linspace(0, 1, 201, dtype=torch.float64)
    for warm_up, end in ((0.05, 0.0), (0.1, 0.2), (0.0, 0.2)):
        each = method.price(done, most=3.0, warm_up=warm_up, end=end)
        top = int(each.argmax())
        assert float(done[top]) == pytest.approx(warm_up, abs=0.006)
        assert float(each.max()) == pytest.approx(3.0, rel=1e-3)
        assert (each[: top + 1].diff() >= 0).all()
        assert (each[top:].diff() <= 0).all()
        assert float(each[-1]) == pytest.approx(3 * end, abs=1e-9)
    code = 0.1 * (0.8 * (1 + torch.cos(torch.pi * done)) / 2 + 0.2)
    assert_close(method.price(done, most=0.1, warm_up=0, end=0.2), code)
    for wrong in ({"most": -1.0}, {"most": 1.0, "warm_up": 1.0}, {"most": 1.0, "end": 2.0}):
        with pytest.raises(AssayError, match="The price on scales got"):
            method.price(done, **wrong)


def test_a_soft_mask_leaves_what_is_large_and_takes_the_rest_to_zero_by_tenths() -> None:
    norm = nn.BatchNorm1d(5)
    start = torch.tensor([1.0, -1.0, 0.5, 0.05, -0.02])
    for n in range(1, 5):
        other = nn.BatchNorm1d(3)  # one mean over all: (2.57 + 3) / 8 / 5 = 0.139
        if n == 1:
            norm.weight.data.copy_(start)
        assert soft_mask([norm, other]) == 2
        assert torch.equal(norm.weight[:3], start[:3])
        assert torch.equal(other.weight, torch.ones(3))
        assert_close(norm.weight[3:].detach(), start[3:] * 10.0**-n)
    assert torch.equal(norm.bias, torch.zeros(5))
    assert torch.equal(norm.running_var, torch.ones(5))  # type: ignore[arg-type]
    assert soft_mask([norm], "off") == soft_mask([]) == 0


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.floats(-8, 2), min_size=2, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12),
    st.integers(1, 4),
)  # fmt: skip
@example([0.0, 0.0, 0.0, 0.0, -0.854, -0.796], [False, True] * 6, 2)  # 0.14 and 0.16, a fifth of the mean is 0.143
def test_whatever_the_scales_a_soft_mask_tells_low_from_high_once_and_for_all(
    powers: list[float], below: list[bool], times: int
) -> None:
    """Of any signs and sizes: who was high stays to the bit, who was low has 10^-n of it, in either layer."""
    start = torch.tensor([10.0**p * (-1 if minus else 1) for p, minus in zip(powers, below, strict=False)])
    norms = [nn.BatchNorm1d(1), nn.BatchNorm1d(len(start) - 1)]
    norms[0].weight.data.copy_(start[:1])
    norms[1].weight.data.copy_(start[1:])
    low = start.abs() < start.abs().mean() / 5
    assume(bool(((start.abs() / start.abs().mean() * 5 - 1).abs() > 1e-5).all()))  # no rounding decides
    assert [soft_mask(norms) for _ in range(times)] == [int(low.sum())] * times
    now = torch.cat([norm.weight.detach() for norm in norms])
    assert torch.equal(now[~low], start[~low])
    assert_close(now[low], start[low] * 10.0**-times, rtol=1e-5, atol=0)


def test_the_codes_soft_mask_takes_shift_and_moments_along() -> None:
    norm = nn.BatchNorm1d(2)
    norm.weight.data[0], norm.bias.data[:] = 0.01, 4.0
    norm.running_mean.fill_(3.0)  # type: ignore[union-attr]
    assert soft_mask([norm], "code") == 1
    for part, now in ((norm.weight, (1e-3, 1)), (norm.bias, (0.4, 4)), (norm.running_mean, (0.3, 3))):
        assert part.tolist() == pytest.approx(now)  # type: ignore[union-attr]
    assert norm.running_var.tolist() == pytest.approx((0.1, 1))  # type: ignore[union-attr]


def test_sum_and_mean_choose_different_channels_where_fans_differ(x: Tensor) -> None:
    net = block()
    found = edges_of()
    chosen = {}
    for by in ("sum", "mean"):
        ranked = method.writers(net, found, x, by)  # type: ignore[arg-type]
        assert {name: [w.layer for w in some] for name, some in ranked.items()} == {
            "first": ["first", "second"], "inner": ["inner"], "after": ["after"],
        }  # fmt: skip
        assert_close(ranked["inner"][0].worth, method.theta(net.b.weight, net.inner.weight, by))  # type: ignore[arg-type]
        chosen[by] = {name: each.tolist() for name, each in lowest(ranked, 0.5).items()}
    assert chosen["sum"] != chosen["mean"]
    same = {"a": [Writer("a", torch.tensor([1.0, 5, 2]))], "b": [Writer("b", torch.tensor([4.0, 3, 6]))]}
    fans = {name: [Writer(name, some[0].worth / 9)] for name, some in same.items()}  # one fan-in for all
    assert all(torch.equal(lowest(same, 0.5)[name], lowest(fans, 0.5)[name]) for name in same)


def test_a_group_loses_as_many_as_its_writers_have_below_the_threshold_divided_equally() -> None:
    groups = {
        "stream": [Writer("u", torch.arange(10.0)), Writer("v", torch.arange(10.0).flip(0) + 4)],
        "alone": [Writer("w", torch.full((10,), 100.0))],
    }
    # the nine lowest of thirty: 0..6 of u, 4, 5 of v (and u's 4, 5 tie): five to each
    assert counts(groups, 0.3) == {"stream": 5, "alone": 0}
    total = groups["stream"][0].worth + groups["stream"][1].worth
    assert (total == total[0]).all()  # a tie: the first go
    assert lowest(groups, 0.3)["stream"].tolist() == [True] * 5 + [False] * 5
    own = own_lowest(groups, 0.3)
    assert own["u"].tolist() == [True] * 5 + [False] * 5
    assert own["v"].tolist() == [False] * 5 + [True] * 5
    assert not own["w"].any()


def test_a_group_loses_what_is_lowest_in_sum_not_by_one_of_its_writers() -> None:
    groups = {"s": [Writer("u", torch.tensor([1.0, 2, 3, 4])), Writer("v", torch.tensor([9.0, 1, 1, 9]))]}
    assert lowest(groups, 0.25)["s"].tolist() == [False, True, False, False]  # 3 of 10, 3, 4, 13


def test_every_layer_keeps_a_tenth_and_two() -> None:
    assert [least(size) for size in (1, 2, 10, 21, 100)] == [1, 2, 2, 3, 10]
    groups = {"low": [Writer("low", torch.zeros(50))], "high": [Writer("high", torch.ones(50))]}
    assert counts(groups, 0.5) == {"low": 45, "high": 0}
    assert counts(groups, 0.5, at_least=0.4) == {"low": 30, "high": 0}
    for rate in (1.0, -0.1):
        with pytest.raises(AssayError, match="cannot go"):
            lowest(groups, rate)


def silenced(net: nn.Module, gone: dict[str, Tensor]) -> nn.Module:
    """A copy whose layers, by name, have scale and shift 0 where they are gone."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        for layer, norm in (("first", "a"), ("inner", "b"), ("second", "c"), ("after", "d")):
            net.get_parameter(f"{norm}.weight")[gone[layer]] = 0
            net.get_parameter(f"{norm}.bias")[gone[layer]] = 0
    return net


def test_scales_of_zero_are_channels_removed_where_a_sum_loses_one_set(x: Tensor) -> None:
    net = block().eval()
    found = edges_of()
    ranked = method.writers(net, found, x)
    gone = lowest(ranked, 0.5)
    assert gone["first"].any()
    by_layer = {w.layer: gone[name] for name, some in ranked.items() for w in some}
    small = cut(net, found, {name: ~each for name, each in gone.items()})
    assert_close(small(x), silenced(net, by_layer)(x))


class Unit(nn.Sequential):
    """YOLOv5's convolution, normalisation and activation."""

    def __init__(self, a: int, b: int, kernel: int = 1) -> None:
        super().__init__(nn.Conv2d(a, b, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(b), nn.SiLU())


class C3(nn.Module):
    def __init__(self, a: int, b: int, *, shortcut: bool) -> None:
        super().__init__()
        self.shortcut, self.cv1, self.cv2, self.cv3 = shortcut, Unit(a, 4), Unit(a, 4), Unit(8, b)
        self.one, self.two = Unit(4, 4), Unit(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv1(x)
        z = self.two(self.one(y))
        out: Tensor = self.cv3(torch.cat([y + z if self.shortcut else z, self.cv2(x)], 1))
        return out


class Yolo(nn.Module):
    """A C3 with shortcut, SPP, a way up and across, a C3 without, and what detects: n 2 h w -> n 7 h w."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = Unit(2, 6, 3), nn.MaxPool2d(2)
        self.sums, self.spp, self.after = C3(6, 6, shortcut=True), Unit(6, 4), Unit(12, 6)
        self.up, self.plain, self.detect = nn.Upsample(scale_factor=2), C3(12, 5, shortcut=False), nn.Conv2d(5, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        x = self.spp(self.sums(self.down(fine)))
        x = self.after(torch.cat([x, *(nn.functional.max_pool2d(x, k, 1, k // 2) for k in (3, 5))], 1))
        out: Tensor = self.detect(self.plain(torch.cat([self.up(x), fine], 1)))
        return out


def test_a_detector_is_cut_by_prints_rules(x: Tensor) -> None:
    """Each unit by itself, but for those that are added; SPP too; masks go up and across; the answer keeps its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Yolo().eval()
        for norm in batch_norms(net):
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    found = edges(net, x)
    together = [set(edge.writers) for edge in found]
    assert {"sums.cv1.0", "sums.two.0"} in together
    alone = ["stem", "sums.one", "sums.cv2", "sums.cv3", "spp", "after"]
    alone += [f"plain.{unit}" for unit in ("cv1", "one", "two", "cv2", "cv3")]
    assert all({f"{name}.0"} in together for name in alone)
    assert len(found) == len(alone) + 1  # and none of `detect`
    reads = {edge.writers[0]: set(edge.readers) for edge in found}
    assert reads["plain.cv3.0"] == {"detect"}
    assert reads["after.0"] == reads["stem.0"] - {"sums.cv1.0", "sums.cv2.0"} == {"plain.cv1.0", "plain.cv2.0"}
    ranked = method.writers(net, found, x)
    gone = lowest(ranked, 0.4)
    norms = {w.layer: gone[name] for name, some in ranked.items() for w in some}
    silent = copy.deepcopy(net)
    with torch.no_grad():
        for layer, away in norms.items():
            for part in ("weight", "bias"):  # SiLU leaves 0 as it is
                silent.get_parameter(f"{layer[:-1]}1.{part}")[away] = 0
    small = cut(net, found, {name: ~away for name, away in gone.items()})
    assert_close(small(x), silent(x), rtol=1e-4, atol=1e-5)
    assert small(x).shape == (16, 7, 4, 4)
    assert sum(int(away.sum()) for away in gone.values()) > 10


def test_where_each_writer_of_a_sum_loses_its_own_it_is_another_network(x: Tensor) -> None:
    """The public code's reading: what is left is added in its order, and was never added before."""
    net = block().eval()
    found = edges_of()
    own = own_lowest(method.writers(net, found, x), 0.5)
    assert not torch.equal(own["first"], own["second"])
    moved, keep = method.rearranged(net, found, own, x)
    small = cut(moved, found, keep)
    assert not torch.allclose(small(x), silenced(net, own)(x), atol=1e-3)
    assert {name: int(each.sum()) for name, each in keep.items()} == {
        edge.name: int((~own[edge.name]).sum()) for edge in found
    }
    assert torch.equal(small.get_parameter("first.weight"), net.first.weight[~own["first"]])
    assert torch.equal(small.get_parameter("c.weight"), net.c.weight[~own["second"]])
    assert torch.equal(
        small.get_parameter("after.weight"), net.after.weight[~own["after"]][:, ~own["second"]]
    )  # reads what `second` was added to
    assert torch.equal(small.get_parameter("inner.weight"), net.inner.weight[~own["inner"]][:, ~own["first"]])
    head = net.head.weight.view(3, 5, 16)[:, ~own["after"]].flatten(1)
    assert torch.equal(small.get_parameter("head.weight"), head)


def test_where_nothing_is_added_both_readings_are_one_network(x: Tensor) -> None:
    net = block().eval()
    found = [edge for edge in edges_of() if len(edge.writers) == 1]
    ranked = method.writers(net, found, x)
    moved, keep = method.rearranged(net, found, own_lowest(ranked, 0.5), x)
    shared = {name: ~each for name, each in lowest(ranked, 0.5).items()}
    assert_close(cut(moved, found, keep)(x), cut(net, found, shared)(x))


def data() -> Arrays:
    x = torch.rand(40, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    return Arrays(x.numpy(), (3 * x[:, 0, 0, 0]).long().numpy())


def slimmed(way: method.SoftMask = "off", most: float = 0.05, end: float = 0.0) -> Slimming:
    net = Slimming(block(), per_epoch=4, epochs=6, most=most, end=end, way=way)
    fit(
        net, data(), epochs=6, batch=10, lr=0.05, weight_decay=5e-4, rng=torch.Generator().manual_seed(0),
        loss=lambda out, y: nn.functional.cross_entropy(out, y) + net.penalty(), after_step=net.after_step,
    )  # fmt: skip
    return net


def test_the_gradient_of_a_scale_gets_the_price_times_its_sign() -> None:
    net = Slimming(block(), per_epoch=10, epochs=1, most=0.3, warm_up=0.0, way="off")
    torch.autograd.backward(net.penalty())
    for norm in net.norms:
        assert_close(norm.weight.grad, 0.3 * norm.weight.detach().sign())
    net.steps.fill_(10)
    assert float(net.price) == pytest.approx(0, abs=1e-7)


def test_a_soft_mask_makes_more_scales_near_zero_and_comes_when_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, masked = slimmed(), slimmed("paper")
    assert method.near_zero(masked.norms) > method.near_zero(plain.norms)
    when: dict[str, list[int]] = {"paper": [], "code": []}
    net = Slimming(block(), per_epoch=3, epochs=6, most=0.1, way="off")
    monkeypatch.setattr(method, "soft_mask", lambda norms, way: when[way].append(int(net.steps)))
    for way in when:
        net.way = way  # type: ignore[assignment]
        net.steps.zero_()
        for _ in range(18):
            net.after_step()
    assert when == {"paper": [3, 6, 9, 12, 15], "code": [6, 12]}


def test_papers_soft_mask_comes_before_the_first_epoch_too() -> None:
    net = block()
    with torch.no_grad():
        net.a.weight[0] = 1e-3
    assert float(Slimming(net, per_epoch=1, epochs=1, most=0.1).norms[0].weight[0].detach()) == pytest.approx(1e-4)
    assert float(
        Slimming(net, per_epoch=1, epochs=1, most=0.1, way="code").norms[0].weight[0].detach()
    ) == pytest.approx(1e-4)


def test_a_scale_that_is_frozen_is_neither_masked_nor_priced() -> None:
    net = block()
    with torch.no_grad():
        net.a.weight[0] = net.b.weight[0] = 1e-3
    net.a.requires_grad_(False)
    before = {name: t.clone() for name, t in net.a.state_dict().items()}
    slim = Slimming(net, per_epoch=1, epochs=1, most=1.0, warm_up=0.0, way="code")
    soft_mask(slim.norms, "code")
    assert slim.norms == [net.b, net.c, net.d]
    assert_close(slim.penalty(), sum(norm.weight.abs().sum() for norm in (net.b, net.c, net.d)))
    assert_close(dict(net.a.state_dict()), before, rtol=0, atol=0)
    assert float(net.b.weight[0].detach()) == pytest.approx(1e-4)
    assert len(batch_norms(block().requires_grad_(False))) == 4  # nothing is trained: nothing is frozen


def test_how_far_it_is_is_kept_with_its_weights() -> None:
    net = slimmed()
    again = Slimming(block(), per_epoch=4, epochs=6, most=0.05, way="off")
    again.load_state_dict(net.state_dict())
    assert int(again.steps) == 24
    assert float(again.price) == float(net.price)


def test_a_network_without_batch_normalisation_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="Sequential has no batch normalisation with a scale") as caught:
        Slimming(nn.Sequential(nn.Linear(2, 2)), per_epoch=1, epochs=1, most=0.1)
    assert "\n" not in str(caught.value)
    for wrong, call in (
        ("score", lambda: method.theta(torch.ones(2), torch.ones(2, 2), "max")),  # type: ignore[arg-type]
        ("soft mask", lambda: Slimming(block(), per_epoch=1, epochs=1, most=0.1, way="hard")),  # type: ignore[arg-type]
    ):
        with pytest.raises(AssayError, match=f"There is no {wrong}"):
            call()
    assert np.isfinite(method.near_zero(batch_norms(block())))
