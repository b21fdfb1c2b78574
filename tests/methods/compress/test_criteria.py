"""Twelve criteria against their equations, channel by channel: in a chain, behind a sum, behind a concatenation."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.compress.criteria import (
    BINS,
    CRITERIA,
    OF_NORMS,
    Criterion,
    entropy,
    fermat,
    filters,
    fpgm,
    geometric_median,
    kept,
    scaled,
    scores,
    usable,
)
from assay.methods.compress.surgery import Edge, cut, edges, masked

X = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = torch.arange(12) % 3


def unlike(net: nn.Module) -> nn.Module:
    """In double precision, no normalisation as it starts."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in (*net.named_parameters(), *net.named_buffers()):
            if p.is_floating_point() and "mean" not in name and name != "std":
                p.copy_(
                    torch.rand(p.shape, generator=draw) + 0.1 if "var" in name else torch.randn(p.shape, generator=draw)
                )
    return net.double().eval()


@pytest.fixture(scope="module")
def chain() -> nn.Module:
    return unlike(
        nn.Sequential(
            *(nn.Conv2d(1, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(5, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
        )
    )


@pytest.fixture(scope="module")
def chained(chain: nn.Module) -> tuple[Edge, ...]:
    return edges(chain, X[:2])


def passed(net: nn.Module, *norms: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy that has its gradients, and what left these normalisations."""
    own, seen = copy.deepcopy(net), {}
    for norm in norms:
        own.get_submodule(norm).register_forward_hook(
            lambda m, i, out, at=norm: seen.update({at: out.detach().clone()})
        )
    F.cross_entropy(own(X), Y).backward()  # type: ignore[no-untyped-call]
    return own, seen


def by_hand(name: Criterion, own: nn.Module, seen: dict[str, Tensor], conv: str, norm: str, channel: int) -> float:
    """One channel of one layer, in plain Python."""
    layer, batch_norm = own.get_submodule(conv), own.get_submodule(norm)
    w: Any = layer.weight
    rows = [w[j].flatten().tolist() for j in range(len(w))]
    mine, slope = rows[channel], w.grad[channel].flatten().tolist()
    gamma, beta = (getattr(batch_norm, each)[channel].item() for each in ("weight", "bias"))
    to = {"gamma": batch_norm.weight.grad, "beta": batch_norm.bias.grad}  # type: ignore[union-attr]
    values = seen[norm][:, channel].relu()
    if name == "entropy":
        means = [float(v.mean()) for v in values]
        low, high = min(means), max(max(means), min(means) + 1e-12)
        bins = [min(BINS - 1, int((m - low) / (high - low) * BINS)) for m in means]
        shares = [bins.count(b) / len(bins) for b in set(bins)]
        return -sum(p * math.log(p) for p in shares)
    return {
        "l1": sum(abs(a) for a in mine),
        "l2": math.sqrt(sum(a * a for a in mine)),
        "fpgm": sum(math.dist(mine, other) for other in rows),
        "fermat": math.dist(mine, geometric_median(w.detach().flatten(1)).tolist()),
        "bn-gamma": abs(gamma),
        "bn-beta": abs(beta),
        "apoz": 1 - float((values == 0).double().mean()),
        "taylor-l1": sum(abs(a * b) for a, b in zip(mine, slope, strict=True)),
        "taylor-l2": math.sqrt(sum((a * b) ** 2 for a, b in zip(mine, slope, strict=True))),
        "taylor-bn-gamma": abs(gamma * to["gamma"][channel].item()),  # type: ignore[index]
        "taylor-bn-beta": abs(beta * to["beta"][channel].item()),  # type: ignore[index]
    }[name]


@pytest.mark.parametrize("name", CRITERIA)
def test_each_criterion_is_its_equation(name: Criterion, chain: nn.Module, chained: tuple[Edge, ...]) -> None:
    told = scores(chain, chained, X, Y, criteria=[name], batch=5)
    assert [edge.name for edge in chained] == ["0", "4"]
    hand = passed(chain, "1", "5")
    for conv, norm, size in (("0", "1", 5), ("4", "5", 4)):
        wanted = [by_hand(name, *hand, conv, norm, channel) for channel in range(size)]
        assert_close(told[conv][0], torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=1e-9)


def test_all_at_once_are_each_alone_and_the_model_stays_as_it_was(chain: nn.Module, chained: tuple[Edge, ...]) -> None:
    frozen = copy.deepcopy(chain).train().requires_grad_(False)
    before = copy.deepcopy(frozen.state_dict())
    told = scores(frozen, chained, X, Y)
    for i, name in enumerate(CRITERIA):
        assert_close(told["4"][i], scores(chain, chained, X, Y, criteria=[name])["4"][0])
    assert frozen.training
    assert not any(p.requires_grad or p.grad is not None for p in frozen.parameters())
    assert_close(frozen.state_dict(), before, rtol=0, atol=0)
    assert not any(m._forward_hooks for m in frozen.modules())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        out: Tensor = self.head((z + self.body(z)).relu().mean((2, 3)))
        return out


def test_an_edge_with_several_writers_has_the_sum_over_them() -> None:
    net = unlike(Residual())
    (edge,) = edges(net, X[:2])
    assert set(edge.writers) == {"stem.0", "body.0"}
    told, hand = scores(net, [edge], X, Y)[edge.name], passed(net, "stem.1", "body.1")
    for i, name in enumerate(CRITERIA):
        wanted = [
            sum(by_hand(name, *hand, f"{part}.0", f"{part}.1", channel) for part in ("stem", "body"))
            for channel in range(4)
        ]
        assert_close(told[i], torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=1e-9)


class Joined(nn.Module):
    """Two convolutions, concatenated, under one normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 1), nn.ConvTranspose2d(1, 2, 1)
        self.norm, self.last, self.head = nn.BatchNorm2d(5), nn.Conv2d(5, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(torch.cat([self.a(x), self.b(x)], 1)).relu()
        out: Tensor = self.head(self.last(z).relu().mean((2, 3)))
        return out


def test_a_channel_is_found_where_it_stands_behind_a_concatenation() -> None:
    net: Any = unlike(Joined())
    found = {edge.name: edge for edge in edges(net, X[:2])}
    assert set(found) == {"a", "b", "last"}
    told = scores(net, [found["a"], found["b"]], X, Y, criteria=["bn-gamma", "l1"])
    assert_close(told["a"][0], net.norm.weight[:3].detach().abs())
    assert_close(told["b"][0], net.norm.weight[3:].detach().abs())
    assert_close(told["b"][1], net.b.weight[0].detach().abs().sum((1, 2)))  # in, out, h, w
    with pytest.raises(AssayError, match="'bn-beta' reads a batch normalisation, and none follows 'last'"):
        scores(net, list(found.values()), X, Y, criteria=["l1", "bn-beta"])
    assert usable(net, list(found.values())) == tuple(name for name in CRITERIA if name not in OF_NORMS)
    assert usable(net, [found["a"]]) == CRITERIA


def test_what_any_criterion_drops_can_be_cut_and_the_answers_are_those_of_the_mask(chain: nn.Module) -> None:
    for net in (chain, unlike(Residual())):
        found = edges(net, X[:2])
        told = scores(net, found, X, Y)
        for i in range(len(CRITERIA)):
            keep = {edge.name: kept(told[edge.name][i], max(1, edge.size // 2)) for edge in found}
            small = cut(net, found, keep)
            assert_close(small(X), masked(net, found, keep)(X))
            assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())


class Drawn(nn.Module):
    """Residual and dense blocks in any order, every channel behind a normalisation somewhere: n 1 6 6 -> n 3."""

    def __init__(self, kinds: list[str], wide: int) -> None:
        super().__init__()
        self.kinds, self.stem, parts = kinds, nn.Conv2d(1, wide, 3, padding=1), []
        for kind in kinds:
            if kind == "residual":
                body = (nn.Conv2d(wide, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, wide, 1))
                parts.append(nn.Sequential(*body, nn.BatchNorm2d(wide)))
            else:
                parts.append(nn.Sequential(nn.BatchNorm2d(wide), nn.ReLU(), nn.Conv2d(wide, 3, 3, padding=1)))
                wide += 3
        self.parts, self.last, self.head = nn.ModuleList(parts), nn.BatchNorm2d(wide), nn.Linear(wide, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for kind, part in zip(self.kinds, self.parts, strict=True):
            x = x + part(x) if kind == "residual" else torch.cat([x, part(x)], 1)
        out: Tensor = self.head(self.last(x).relu().mean((2, 3)))
        return out


@settings(deadline=None, max_examples=5)
@given(st.lists(st.sampled_from(["residual", "dense"]), min_size=1, max_size=4), st.integers(2, 5), st.data())
@example(["residual", "dense", "dense", "residual"], 4, None)
def test_what_any_criterion_drops_of_any_residual_or_dense_network_can_be_cut(
    kinds: list[str], wide: int, data: st.DataObject | None
) -> None:
    net = unlike(Drawn(kinds, wide))
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.normal_(norm.running_mean, generator=torch.Generator().manual_seed(2))  # type: ignore[arg-type]
    found = edges(net, X[:2])
    assert sum(edge.size for edge in found) == wide + 3 * len(kinds)  # no channel is left out
    assert usable(net, found) == CRITERIA
    left = {e.name: 1 if data is None else data.draw(st.integers(1, e.size), label=e.name) for e in found}
    told = scores(net, found, X, Y)
    for i in range(len(CRITERIA)):
        keep = {edge.name: kept(told[edge.name][i], left[edge.name]) for edge in found}
        with torch.no_grad():
            small, wanted = cut(net, found, keep)(X[:4]), masked(net, found, keep)(X[:4])
        assert_close(small, wanted, rtol=1e-9, atol=1e-9)
        for edge in found:
            worth, stays = told[edge.name][i], keep[edge.name]
            assert int(stays.sum()) == left[edge.name]
            assert bool((worth[stays].min() >= worth[~stays]).all())


def test_a_filter_that_is_zeroed_with_its_shift_can_be_removed(chain: nn.Module) -> None:
    """The card's check by hand: without mask, without graph."""
    net: Any = copy.deepcopy(chain)
    with torch.no_grad():
        net[0].weight[2], net[1].weight[2], net[1].bias[2] = 0, 0, 0
    found = edges(net, X[:2])
    keep = {"0": torch.arange(5) != 2}
    assert_close(cut(net, found, keep)(X), net(X))
    told = scores(net, found, X, Y)["0"]
    assert all(int(told[i].argmin()) == 2 for i, name in enumerate(CRITERIA) if name not in ("fpgm", "fermat"))


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(3, 12), d=st.integers(1, 4))
def test_the_geometric_median_has_the_least_sum_of_distances(seed: int, m: int, d: int) -> None:
    w = np.random.default_rng(seed).normal(size=(m, d))

    def total(at: Any) -> float:
        return float(np.linalg.norm(w - at, axis=1).sum())

    ours = geometric_median(torch.from_numpy(w)).numpy()
    best = min(total(minimize(total, start, method="Nelder-Mead").x) for start in (w.mean(0), np.median(w, 0)))
    assert total(ours) <= best * (1 + 1e-4)


def test_filters_in_the_middle_matter_least_by_distance() -> None:
    square = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1], [0, 0], [3, 3]])
    assert int(fpgm(square).argmin()) == int(fermat(square).argmin()) == 4
    assert int(fpgm(square).argmax()) == int(fermat(square).argmax()) == 5
    assert_close(geometric_median(torch.ones(4, 2)), torch.ones(2))
    assert_close(fermat(torch.ones(4, 2)), torch.zeros(4))


def test_entropy_of_even_and_of_constant_answers() -> None:
    even = torch.arange(8.0)
    found = entropy(torch.stack([even, torch.ones(8), (even > 3).float()], 1), bins=8)
    assert_close(found, torch.tensor([math.log(8), 0.0, math.log(2)]))


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), by=st.floats(0.1, 10), more=st.floats(-5, 5))
def test_scaled_scores_lie_between_0_and_1_in_the_same_order_whatever_their_unit(
    seed: int, by: float, more: float
) -> None:
    raw = torch.rand(3, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    one = scaled(raw)
    assert_close(one.amin(1), torch.zeros(3, dtype=torch.float64))
    assert_close(one.amax(1), torch.ones(3, dtype=torch.float64))
    assert_close(scaled(by * raw + more), one)
    assert bool((one.argsort(1) == raw.argsort(1)).all())
    assert_close(scaled(torch.full((2, 3), 7.0)), torch.full((2, 3), 0.5))


def test_of_equal_scores_the_first_are_kept() -> None:
    assert kept(torch.tensor([1.0, 2, 1, 1]), 2).tolist() == [True, True, False, False]
    for count in (0, 5):
        with pytest.raises(AssayError, match=f"{count} of 4 channels"):
            kept(torch.zeros(4), count)


def test_linear_layers_have_rows_and_wrong_words_are_told(chain: nn.Module) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    (edge,) = edges(net, X[:2])
    told = scores(net, [edge], X, Y, criteria=["l1", "apoz"])[edge.name]
    assert_close(told[0], filters(net[1]).detach().abs().sum(1))
    assert_close(told[1], (net[:2](X) > 0).double().mean(0))
    with pytest.raises(AssayError, match="no criterion 'l3'"):
        scores(net, [edge], X, Y, criteria=["l3"])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match="12 inputs and 11 labels"):
        scores(net, [edge], X, Y[1:], criteria=["apoz"])
