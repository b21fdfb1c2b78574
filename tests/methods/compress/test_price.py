"""What a network costs by hand, and the largest part of it that is paid for by brute force."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.compress.price import Kind, Per, Price, affordable, cost, flops, latency, memory, parameters, within
from assay.methods.compress.surgery import Edge, cut, edges
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN


@pytest.mark.parametrize(
    ("model", "x", "by_hand"),
    [
        (nn.Linear(5, 3), (2, 5), 15),
        (nn.Linear(5, 3), (2, 7, 5), 7 * 15),  # a row for each of seven words
        (nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 6), 36 * 9 * 3 * 4),
        (nn.Conv2d(3, 4, 3, stride=2), (1, 3, 7, 7), 9 * 9 * 3 * 4),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (1, 4, 6, 6), 36 * 9 * 4),
        (nn.ConvTranspose2d(3, 4, 2, stride=2), (1, 3, 5, 5), 25 * 4 * 3 * 4),
        (nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(8, 3)), (4, 1, 6), 4 * 6 + 24),
    ],
)
def test_multiply_adds_by_hand(model: nn.Module, x: tuple[int, ...], by_hand: int) -> None:
    assert flops(model, torch.rand(x)) == by_hand


def test_a_layer_that_is_called_twice_counts_twice_and_looking_changes_nothing() -> None:
    one = nn.Linear(4, 4)
    model = nn.Sequential(one, nn.BatchNorm1d(4), one).train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    assert flops(model, torch.rand(3, 4)) == 32
    assert (memory(model), parameters(model)) == (16, 16 + 4 + 8)
    assert model.training
    assert model[1].training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not one._forward_hooks


class ByKeyword(nn.Module):
    """Layers that are given their input by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.last = nn.ConvTranspose2d(3, 4, 2, stride=2), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(input=self.up(input=x))
        return out


def test_layers_that_are_called_by_keyword_count() -> None:
    assert flops(ByKeyword(), torch.rand(1, 3, 5, 5)) == 25 * 4 * 3 * 4 + 100 * 4 * 2


def test_the_example_comes_to_where_the_network_is() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    x, scores = torch.rand(2, 4), {"0": torch.arange(6.0)}
    there = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)).to("meta")
    assert flops(there, x) == flops(model, x) == 36
    kept = affordable(there, edges(model, x), scores, Price("flops", 0.5), x)
    assert kept["0"].tolist() == [False] * 3 + [True] * 3


def test_a_residual_network_by_hand() -> None:
    model = ResNet18()
    by_hand, size = 9 * 3 * 64 * 32**2 + 4 * 9 * 64**2 * 32**2 + 512 * 10, 32
    for wide in (128, 256, 512):
        size //= 2
        by_hand += (9 * wide // 2 * wide + wide // 2 * wide + 3 * 9 * wide**2) * size**2
    assert flops(model, torch.rand(1, 3, 32, 32)) == by_hand
    assert parameters(model) == 11_173_962  # as is told of this network everywhere


class Slow(nn.Module):
    """Takes longer for its first answers, and once in between."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += 1
        time.sleep(0.05 if self.asked <= 2 or self.asked == 5 else 0.002)
        return x


def test_the_median_leaves_out_warming_up_and_the_odd_one() -> None:
    model = Slow()
    assert 0.002 <= latency(model, torch.rand(1, 2), warm=2, repeats=7) < 0.04
    assert model.asked == 0  # a copy was asked


@pytest.mark.parametrize("kind", ["flops", "latency", "parameters", "memory"])
def test_prices_are_read(kind: Kind) -> None:
    assert within(f"{kind}=0.5") == Price(kind, 0.5)
    assert str(Price(kind, 0.25)) == f"{kind}=0.25"


@pytest.mark.parametrize(
    "price", ["flops=0", "flops=1.01", "flops=nan", "flops", "FLOPs=0.5", "=0.5", "", "flops=0.5x"]
)
def test_what_is_no_price_is_one_line(price: str) -> None:
    with pytest.raises(AssayError, match=r"The price .* (flops=0\.5|as in)") as e:
        within(price)
    assert "\n" not in str(e.value)


@pytest.fixture(scope="module")
def net() -> tuple[nn.Module, tuple[Edge, ...], Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    model, x = SmallCNN().eval(), torch.rand(2, 1, 28, 28)
    found = edges(model, x)
    return model, found, x, {edge.name: torch.rand(edge.size) for edge in found}


@pytest.mark.parametrize("price", ["flops=0.5", "parameters=0.3", "memory=0.1", "flops=1"])
@pytest.mark.parametrize("per", ["network", "layer"])
def test_it_is_the_most_that_the_price_pays_for(
    net: tuple[nn.Module, tuple[Edge, ...], Tensor, dict[str, Tensor]], price: str, per: Per
) -> None:
    model, found, x, scores = net
    want = within(price)
    keep = affordable(model, found, scores, want, x, per=per)
    small = cut(model, found, keep)
    whole = cost(want.kind, model, x)
    assert cost(want.kind, small, x) <= want.share * whole
    assert all(of.any() for of in keep.values())
    for edge in found:  # nothing that was dropped is worth more than what stayed
        if not keep[edge.name].all():
            assert scores[edge.name][~keep[edge.name]].max() < scores[edge.name][keep[edge.name]].min()
    dropped = [
        (float(scores[e.name][c]), e.name, c) for e in found for c in (~keep[e.name]).nonzero().flatten().tolist()
    ]
    if want.share == 1:
        assert not dropped
        return
    if per == "network":
        floor = min(float(scores[e.name][keep[e.name]].min()) for e in found if keep[e.name].sum() > 1)
        assert max(dropped)[0] < floor
        _, name, c = max(dropped)  # one more, and it is too dear
        more = {n: of.clone() for n, of in keep.items()}
        more[name][c] = True
        assert cost(want.kind, cut(model, found, more), x) > want.share * whole
    else:
        shares = [float(of.float().mean()) for of in keep.values()]
        assert max(shares) - min(shares) <= 1 / min(edge.size for edge in found) + 1e-9


class Beside(nn.Module):
    """2 * 6 + 6 * 3 + 3 * 6 + 6 * 2 = 60 multiply-adds; 24 without the branch, 36 with one channel of it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = nn.Linear(2, 6), nn.Linear(6, 3), nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        out: Tensor = self.head(x + self.b(torch.relu(self.a(x))))
        return out


def test_an_edge_is_emptied_only_where_it_may(
    net: tuple[nn.Module, tuple[Edge, ...], Tensor, dict[str, Tensor]],
) -> None:
    model, x = Beside().eval(), torch.rand(1, 2)
    found = edges(model, x)
    scores = {edge.name: torch.full((edge.size,), float(edge.name == "stem")) for edge in found}
    price = within("flops=0.5")
    keep = affordable(model, found, scores, price, x, may_empty=True)
    assert {name: int(of.sum()) for name, of in keep.items()} == {"stem": 6, "a": 0}
    keep = affordable(model, found, scores, price, x)
    assert {name: int(of.sum()) for name, of in keep.items()} == {"stem": 5, "a": 1}
    plain, few, z, flat = net  # a chain hangs on every one of its edges
    keep = affordable(plain, few, flat, within("flops=0.01"), z, may_empty=True)
    assert all(of.any() for of in keep.values())


def test_a_latency_is_measured_on_the_network_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)), torch.rand(2, 4)
    found = edges(model, x)
    asked: list[int] = []

    def timed(net: nn.Module, *_: object) -> float:
        first = net.get_submodule("0")
        assert isinstance(first, nn.Linear)
        asked.append(first.out_features)
        return 1e-3 * first.out_features

    monkeypatch.setattr("assay.methods.compress.price.latency", timed)
    keep = affordable(model, found, {"0": torch.rand(32)}, within("latency=0.3"), x)
    assert int(keep["0"].sum()) == 9  # of 32
    assert len(asked) < 12


@pytest.mark.parametrize(
    ("price", "scores", "says"),
    [
        ("flops=0.01", torch.rand(8), r"flops=0.01 cannot be met: with one channel of each.*0\.125 .*ask for 0\.13 or"),
        ("flops=0.5", torch.rand(7), r"The scores of edge '0' are shape \(7,\).*give 8 numbers"),
        ("flops=0.5", torch.full((8,), torch.nan), "or one that is no number"),
        ("flops=0.5", None, "The scores of edge '0' are none"),
    ],
)
def test_what_cannot_be_paid_is_one_line(price: str, scores: Tensor | None, says: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.rand(2, 4)
    found = edges(model, x)
    with pytest.raises(AssayError, match=says) as e:
        affordable(model, found, {} if scores is None else {"0": scores}, within(price), x)
    assert "\n" not in str(e.value)
