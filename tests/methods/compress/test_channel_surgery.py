"""A channel that is zeroed wherever it is read can as well be gone: masked and cut networks answer alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.methods.compress.surgery import (
    Edge,
    closed,
    cut,
    edges,
    lifeless,
    masked,
    read,
    shaped_like,
    through_readers,
)
from assay.nn.emptied import Emptied
from assay.nn.resnet import Block, Bottleneck, ResNet, ResNet18
from assay.nn.small_cnn import SmallCNN
from assay.nn.unet import UNet

KINDS = ("conv", "stride", "grouped", "depthwise", "wider depthwise", "transposed", "grouped transposed", "residual",
         "dense", "gate", "chunk", "pool", "enlarge", "group norm", "prelu", "sigmoid", "norm", "again")  # fmt: skip


class Drawn(nn.Module):
    """A network of these parts in this order, each of which changes the map, adds to it or stands beside it."""

    def __init__(self, kinds: list[str], *, flat: bool) -> None:
        super().__init__()
        self.kinds, self.flat = kinds, flat
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        parts, wide = [], 8
        for kind in kinds:
            part, wide = drawn(kind, wide)
            parts.append(part)
        self.parts = nn.ModuleList(parts)
        self.last = nn.Conv2d(wide, 4, 3, padding=1)
        with torch.no_grad():
            size = self.last(self.body(torch.zeros(1, 2, 8, 8))).numel() if flat else 4
        self.head = nn.Linear(size, 3)

    def body(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for kind, part in zip(self.kinds, self.parts, strict=True):
            if kind == "residual":
                x = F.relu(x + part(x))
            elif kind == "dense":
                x = torch.cat([x, part(x)], 1)
            elif kind == "gate":
                x = x * part(x.mean((2, 3))).sigmoid().view(x.size(0), -1, 1, 1)
            elif kind == "chunk":
                a, b = part(x).chunk(2, dim=1)
                x = a * torch.sigmoid(b)
            elif kind == "again":
                x = part(torch.tanh(part(x)))
            else:
                x = part(x)
        return x

    def forward(self, x: Tensor) -> Tensor:  # n 2 8 8 -> n 3
        x = F.silu(self.last(self.body(x)))
        out: Tensor = self.head(x.view(x.size(0), -1) if self.flat else F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


def drawn(kind: str, wide: int) -> tuple[nn.Module, int]:
    """The part, and how many channels there are after it."""
    plain: dict[str, Callable[[], nn.Module]] = {
        "conv": lambda: nn.Sequential(nn.Conv2d(wide, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Sigmoid()),
        "stride": lambda: nn.Sequential(nn.Conv2d(wide, 4, 3, stride=2, padding=1), nn.ELU()),
        "grouped": lambda: nn.Conv2d(wide, 8, 3, padding=1, groups=2),
        "transposed": lambda: nn.ConvTranspose2d(wide, 4, 3, stride=2, padding=1, output_padding=1),
        "grouped transposed": lambda: nn.ConvTranspose2d(wide, 8, 2, stride=2, groups=4),
    }
    if kind in plain:
        return plain[kind](), 8 if "grouped" in kind else 4
    if kind == "dense":
        return nn.Sequential(nn.BatchNorm2d(wide), nn.Sigmoid(), nn.Conv2d(wide, 4, 3, padding=1)), wide + 4
    if kind == "wider depthwise":
        return nn.Conv2d(wide, 2 * wide, 3, padding=1, groups=wide), 2 * wide
    if kind == "chunk":
        return nn.Conv2d(wide, 8, 1), 4
    same: dict[str, Callable[[], nn.Module]] = {
        "depthwise": lambda: nn.Conv2d(wide, wide, 3, padding=1, groups=wide),
        "residual": lambda: nn.Sequential(
            *(nn.Conv2d(wide, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, wide, 3, padding=1))
        ),
        "gate": lambda: nn.Sequential(nn.Linear(wide, 4), nn.ReLU(), nn.Linear(4, wide)),
        "pool": lambda: nn.AvgPool2d(3, 1, 1),
        "enlarge": lambda: nn.Upsample(scale_factor=2),
        "group norm": lambda: nn.GroupNorm(wide // 2, wide),
        "prelu": lambda: nn.PReLU(wide),
        "sigmoid": lambda: nn.Sigmoid(),
        "norm": lambda: nn.BatchNorm2d(wide, affine=False),
        "again": lambda: nn.Conv2d(wide, wide, 3, padding=1),
    }
    return same[kind](), wide


def stirred(model: nn.Module, seed: int = 0) -> nn.Module:
    """In float64, with statistics and offsets that no constant could hide behind."""
    rng = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
                for t in (getattr(m, "running_mean", None), m.weight, m.bias):
                    if t is not None:
                        t.copy_(torch.randn(t.shape, generator=rng))
            if isinstance(m, nn.PReLU):
                m.weight.copy_(torch.rand(m.weight.shape, generator=rng))
    return model


def some(found: tuple[Edge, ...], share: float, seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {edge.name: torch.rand(edge.size, generator=rng) < share for edge in found}


def inputs(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([0.1, 0.5, 0.8]),
    st.integers(0, 99),
)
@example(["dense", "gate"], False, 0.1, 0)  # all that one writer of an edge gives is dropped, and not all of the edge
def test_masked_is_cut_for_any_network(kinds: list[str], flat: bool, share: float, seed: int) -> None:
    while kinds.count("enlarge") + kinds.count("transposed") + kinds.count("grouped transposed") > 2:
        kinds.remove(next(k for k in kinds if k in ("enlarge", "transposed", "grouped transposed")))
    torch.manual_seed(seed)
    model, x = stirred(Drawn(kinds, flat=flat), seed), inputs(2, 2, 8, 8)
    found = edges(model, x)
    assert {"stem", "last"} & {name for edge in found for name in edge.writers}
    keep = some(found, share, seed)
    small = cut(model, found, keep)
    assert_close(small(x), masked(model, found, keep)(x), rtol=1e-9, atol=1e-9)
    again = shaped_like(model, small.state_dict())
    again.load_state_dict(small.state_dict())
    assert_close(again(x), small(x))


def test_the_channel_that_stays_for_its_shape_is_not_read() -> None:
    """One of two that are concatenated is gone; what a sigmoid makes of its 0 must not reach the next layer."""
    torch.manual_seed(0)
    model, x = stirred(Drawn(["dense", "sigmoid"], flat=False)), inputs(2, 2, 8, 8)
    found = edges(model, x)
    keep = {"parts.0.2": torch.zeros(4, dtype=torch.bool)}
    assert_close(cut(model, found, keep)(x), masked(model, found, keep)(x))


@pytest.mark.parametrize(("kind", "count", "inner"), [(Bottleneck, 37, 32), (Block, 20, 16)])
def test_the_residual_networks_have_the_edges_of_print(kind: type[Block], count: int, inner: int) -> None:
    model = ResNet(5, width=2, blocks=(3, 4, 6, 3), kind=kind)
    found = edges(model, torch.rand(1, 3, 8, 8))
    assert len(found) == count
    assert sum(len(edge.writers) == 1 and ".body." in edge.name for edge in found) == inner
    layers = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    sides = [("out", name) for edge in found for name in edge.writers]
    sides += [("in", name) for edge in found for name in edge.readers]
    ends = {("in", "stem.0"), ("out", "head")}  # the image and the classes
    assert sorted(sides) == sorted({(side, name) for side in ("in", "out") for name in layers} - ends)
    highways = [edge for edge in found if len(edge.readers) > 1]  # but those within blocks
    assert [(set(edge.writers), set(edge.readers)) for edge in highways] == streams(kind)
    assert [edge.size for edge in highways] == ([2] if kind is Bottleneck else []) + [
        kind.gives * 2 * 2**stage for stage in range(4)
    ]


def streams(kind: type[Block]) -> list[tuple[set[str], set[str]]]:
    """By hand, who writes and who reads the sums of each stage; with bottlenecks the stem has an edge of its own."""
    last = 6 if kind is Bottleneck else 3  # the place of the last convolution of a block
    counts = (3, 4, 6, 3)
    heads = [{f"stages.{s}.0.body.0", f"stages.{s}.0.shortcut.0"} for s in range(4)]  # of the first block of a stage
    found = []
    for s, count in enumerate(counts):
        writes = {f"stages.{s}.{b}.body.{last}" for b in range(count)} | {f"stages.{s}.0.shortcut.0"}
        reads = {f"stages.{s}.{b}.body.0" for b in range(1, count)} | (heads[s + 1] if s < 3 else {"head"})
        found.append((writes, reads))
    if kind is Bottleneck:
        return [({"stem.0"}, heads[0]), *found]
    writes, reads = found[0]  # no shortcut is put in the first stage: the stem writes into it
    return [(writes - {"stages.0.0.shortcut.0"} | {"stem.0"}, reads | {"stages.0.0.body.0"}), *found[1:]]


@pytest.mark.parametrize(
    ("model", "x", "count"),
    [(SmallCNN(), inputs(2, 1, 28, 28), 4), (ResNet18(width=4), inputs(2, 3, 16, 16), 12),
     (UNet(1, 3, width=4), inputs(2, 1, 8, 8), 12)],
)  # fmt: skip
@torch.no_grad()
def test_networks_of_the_house(model: nn.Module, x: Tensor, count: int) -> None:
    model = stirred(model)
    found, before = edges(model, x), copy.deepcopy(model.state_dict())
    assert len(found) == count
    keep = some(found, 0.5)
    small = cut(model, found, keep)
    assert_close(small(x), masked(model, found, keep)(x))
    assert float((small(x) - model(x)).abs().max()) > 1e-3  # something was taken
    assert sum(p.numel() for p in small.parameters()) < 0.5 * sum(p.numel() for p in model.parameters())
    assert type(small) is type(model)
    assert_close(model.state_dict(), before)
    assert_close(cut(model, found, {})(x), model(x))


class Blocked(nn.Module):
    """A residual block of three convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.a, self.b, self.c = nn.Conv2d(4, 3, 1), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.BatchNorm2d(4)])
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = torch.sigmoid(self.norms[0](self.a(x)))
        y = torch.sigmoid(self.norms[1](self.b(y)))
        x = torch.relu(x + self.norms[2](self.c(y)))
        out: Tensor = self.head(x.mean([2, 3]))
        return out


@pytest.mark.parametrize("emptied", ["a", "b"])
def test_an_emptied_edge_takes_its_block_along(emptied: str) -> None:
    model, x = stirred(Blocked()), inputs(3, 1, 5, 5)
    found = edges(model, x)
    keep = {emptied: torch.zeros(3, dtype=torch.bool)}
    assert [name for name, of in closed(found, keep).items() if not of.any()] == ["a", "b"]
    small = cut(model, found, keep)
    assert all(isinstance(small.get_submodule(name), Emptied) for name in "abc")
    assert_close(small(x), masked(model, found, keep)(x))
    norm = model.norms[2]  # type: ignore[index]
    stays = norm(model.c.bias.reshape(1, 4, 1, 1).expand(3, 4, 5, 5))  # type: ignore[operator,union-attr]
    by_hand = model.head(torch.relu(model.stem(x) + stays).mean([2, 3]))  # type: ignore[operator]
    assert_close(small(x), by_hand)
    small.train()(x).sum().backward()  # what is left can be trained
    assert not lifeless(found, keep)
    assert lifeless(found, {"stem": torch.zeros(4, dtype=torch.bool)})
    with torch.no_grad():
        gone = cut(model, found, {edge.name: torch.zeros(edge.size, dtype=torch.bool) for edge in found})
        assert_close(gone(x), model.head.bias.expand(3, 2))  # type: ignore[operator,union-attr]


def test_a_constant_does_not_leak_and_padding_stays_zero() -> None:
    """sigmoid(beta) of a dropped channel would be read as a constant, and by a padded convolution not even as one."""
    model = stirred(nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sigmoid(), nn.Conv2d(2, 1, 3, padding=1), nn.Flatten(),
        nn.Linear(9, 1)))  # fmt: skip
    x = inputs(2, 1, 3, 3)
    keep = {"0": torch.tensor([True, False])}
    found = edges(model, x)
    act = torch.sigmoid(model[1](model[0](x)))[:, :1]  # type: ignore[index]
    read_ = F.conv2d(act, model[3].weight[:, :1], model[3].bias, padding=1)  # type: ignore[index,union-attr,arg-type]
    wanted = model[5](read_.flatten(1))  # type: ignore[index]
    assert_close(masked(model, found, keep)(x), wanted)
    assert_close(cut(model, found, keep)(x), wanted)


def test_an_infinite_channel_that_was_dropped_is_not_read() -> None:
    model, x = stirred(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))), inputs(2, 2)
    found = edges(model, x)
    with torch.no_grad():
        model[0].bias[1] = torch.inf  # type: ignore[index,operator]
    keep = {"0": torch.tensor([True, False, True])}
    assert_close(masked(model, found, keep)(x), cut(model, found, keep)(x))
    assert cut(model, found, keep)(x).isfinite().all()


def test_a_flattened_map_is_as_many_inputs_as_it_has_pixels() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2))
    (edge,) = edges(model, torch.rand(2, 1, 5, 5))
    assert edge.inputs["3"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (edge.writers, edge.readers, edge.norms, edge.size) == (("0",), ("3",), (), 3)
    small = cut(model, [edge], {"0": torch.tensor([False, True, True])})
    assert small[3].weight.shape == (2, 8)  # type: ignore[index,union-attr]
    assert_close(small[3].weight, model[3].weight[:, 4:])  # type: ignore[index,union-attr]


def test_a_gate_is_read_with_its_gradient() -> None:
    model, x = stirred(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))), inputs(4, 2)
    found = edges(model, x)
    gate = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    wanted = model[2](gate * torch.tanh(model[0](x)))  # type: ignore[index]
    handles = through_readers(model, found, lambda edge, seen: gate)
    out = model(x)
    assert_close(out, wanted)
    assert torch.autograd.grad(out.sum(), gate)[0].abs().min() > 0
    with pytest.raises(AssayError, match="'2' reads through a mask or a gate"):
        cut(model, found, {})
    for handle in handles:
        handle.remove()
    assert_close(model(x), model[2](torch.tanh(model[0](x))))  # type: ignore[index]


class Net(nn.Module):
    """Modules by name, and a forward that is written beside them."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.written = forward

    def forward(self, x: Tensor) -> Any:
        return self.written(self, x)


@pytest.mark.parametrize(
    ("layer", "shape", "pool"),
    [(partial(nn.Conv2d, kernel_size=1), (3, 4, 2, 2), nn.AdaptiveAvgPool2d(1)), (nn.Linear, (3, 4), nn.Identity())],
)
def test_what_an_emptied_layer_gives_may_be_changed_in_place(
    layer: Any, shape: tuple[int, ...], pool: nn.Module
) -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        out = net.c(net.act(net.a(x)))
        out += x
        answer: Tensor = net.head(net.pool(net.act(out)).flatten(1))
        return answer

    parts = {"stem": layer(4, 4), "a": layer(4, 3), "c": layer(3, 4), "head": nn.Linear(4, 2)}
    model = stirred(Net(forward, **parts, act=nn.ReLU(inplace=True), pool=pool))
    x, keep = inputs(*shape), {"a": torch.zeros(3, dtype=torch.bool)}
    found = edges(model, x)
    small = cut(model, found, keep)
    assert isinstance(small.a, Emptied)
    assert isinstance(small.c, Emptied)
    assert_close(small(x), masked(model, found, keep)(x))
    small(x).sum().backward()
    assert small.c.bias.grad is not None


def tied() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.head(F.relu(net.up(F.relu(net.down(F.relu(net.first(x)))))))
        return out

    net = Net(forward, first=nn.Linear(4, 6), down=nn.Linear(6, 6), up=nn.Linear(6, 6), head=nn.Linear(6, 2))
    net.up.weight = net.down.weight  # type: ignore[assignment,union-attr]
    return net


def by_itself(net: Any, x: Tensor) -> Tensor:
    out: Tensor = net.head(F.relu(net.b(F.relu(F.linear(x, net.a.weight)))))
    return out


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


MIXED: Mapping[str, tuple[nn.Module, tuple[int, ...], set[str], str]] = {
    # network, an input, the writers that can be cut, and why another one cannot
    "the sum with the image": (
        Net(lambda n, x: n.head((x + n.a(x)).mean((2, 3))), a=nn.Conv2d(2, 2, 1), head=nn.Linear(2, 2)),
        (2, 2, 4, 4), set(), "they meet the input itself"),
    "the answer": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (2, 3), {"0"}, "they are the answer"),
    "depthwise on the image": (
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 3, 1), nn.Conv2d(3, 2, 1)), (2, 2, 4, 4), {"1"},
        "they are the answer"),
    "a weight that two share": (tied(), (2, 4), set(), "'down' and 'up' share a weight"),
    "a weight that forward reads": (
        Net(by_itself, a=nn.Linear(4, 3), b=nn.Linear(3, 5), head=nn.Linear(5, 2)), (2, 4), {"b"},
        "they are the answer"),
    "weight norm": (
        nn.Sequential(nn.Linear(3, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 4),
                      nn.ReLU(), nn.Linear(4, 2)), (2, 3), {"2"}, "remove its parametrisation first"),
    "spectral norm": (
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 5), nn.Linear(5, 2)),
        (2, 3), {"1"}, "they are the answer"),
    "layer norm": (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 5), nn.Linear(5, 2)), (2, 3), {"2"},
                   "module '1' reads them and has no rule"),
    "a number that is written in": (
        Net(lambda n, x: n.head(n.b(n.a(x)).view(-1, 4)), a=nn.Linear(3, 4), b=nn.Linear(4, 4), head=nn.Linear(4, 2)),
        (2, 3), {"a"}, "view() has their number 4 written in; write -1 or x.size(1)"),
    "channels by number": (
        Net(lambda n, x: n.head(n.b(n.a(x))[:, :2]), a=nn.Linear(3, 4), b=nn.Linear(4, 4), head=nn.Linear(2, 2)),
        (2, 3), {"a"}, "getitem() picks some of them by number"),
    "a module that decides": (
        nn.Sequential(nn.Linear(3, 4), Decides(), nn.Linear(4, 5), nn.Linear(5, 2)), (2, 3), {"2"},
        "module '1' reads them and has no rule"),
    "a softmax over channels": (
        nn.Sequential(nn.Linear(3, 4), nn.Softmax(1), nn.Linear(4, 5), nn.Linear(5, 2)), (2, 3), {"2"},
        "module '1' mixes them"),
    "a scale for each channel": (
        Net(lambda n, x: n.head(n.b(n.a(x) * torch.arange(4.0))), a=nn.Linear(3, 4), b=nn.Linear(4, 5),
            head=nn.Linear(5, 2)), (2, 3), {"b"}, "which cannot be cut"),
    "one map for all channels": (
        Net(lambda n, x: n.head((n.a(x) * n.one(x).sigmoid()).mean((2, 3))), a=nn.Conv2d(2, 4, 1),
            one=nn.Conv2d(2, 1, 1), head=nn.Linear(4, 2)), (2, 2, 4, 4), {"a"}, "mul() spreads the one channel"),
    "the sum of two such maps": (
        Net(lambda n, x: n.head((n.a(x) * (n.one(x) + n.two(x)).sigmoid()).mean((2, 3))), a=nn.Conv2d(2, 4, 1),
            one=nn.Conv2d(2, 1, 1), two=nn.Conv2d(2, 1, 1), head=nn.Linear(4, 2)), (2, 2, 4, 4), {"a"},
        "add() spreads the one channel"),
    "a layer of one channel that forward asks": (
        Net(lambda n, x: n.head(F.pad(n.one(x), (n.one.kernel_size[0], 0)).mean((2, 3))), one=nn.Conv2d(2, 1, 1),
            head=nn.Linear(1, 2)), (2, 2, 4, 4), set(), "the forward pass fails"),
    "what nobody reads": (
        Net(lambda n, x: (n.head(n.a(x)), n.idle(x))[0], a=nn.Linear(3, 4), idle=nn.Linear(3, 5),
            head=nn.Linear(4, 2)), (2, 3), {"a"}, "no layer reads them"),
}  # fmt: skip


@pytest.mark.parametrize("which", MIXED)
def test_what_cannot_be_cut_is_left_and_said(which: str) -> None:
    model, shape, names, why = MIXED[which]
    x = torch.rand(shape)
    found = read(model.eval(), x)
    assert {name for edge in found.edges for name in edge.writers} == names
    assert any(why in said for said in found.fixed.values()), found.fixed
    for last in (9, -1):  # every second channel, or none
        keep = {edge.name: (c := torch.arange(edge.size)).le(last) & (c % 2 == 0) for edge in found.edges}
        assert_close(cut(model, found.edges, keep)(x), masked(model, found.edges, keep)(x), rtol=1e-4, atol=1e-5)
    if not names:
        with pytest.raises(SubjectError, match=r"No channel of the network can be cut: '\w+' must keep its own"):
            edges(model, x)


CUTTABLE: Mapping[str, tuple[nn.Module, tuple[int, ...]]] = {
    "rows": (nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6), nn.Linear(6, 2)), (3, 5)),
    "a norm without weights": (nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6, affine=False), nn.Conv2d(6, 4, 1), nn.InstanceNorm2d(4),
        nn.Flatten(), nn.Linear(36, 2)), (2, 1, 5, 5)),
    "signals": (nn.Sequential(
        nn.Conv1d(1, 6, 3), nn.BatchNorm1d(6), nn.MaxPool1d(2), nn.Conv1d(6, 4, 3, groups=2),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2)), (2, 1, 12)),
    "the same layer under two names": (
        Net(lambda n, x: n.head(n.b(F.relu(n.a(F.relu(n.first(x)))))), first=nn.Linear(3, 6),
            a=(shared := nn.Linear(6, 6)), b=shared, head=nn.Linear(6, 2)), (2, 3)),
    "functions": (
        Net(lambda n, x: n.head(torch.flatten(F.max_pool2d(F.leaky_relu(n.a(F.pad(x, (1, 1, 1, 1)))), 2), 1)),
            a=nn.Conv2d(1, 4, 3), head=nn.Linear(16, 2)), (2, 1, 4, 4)),
    "channels last": (
        Net(lambda n, x: n.head(n.b(F.gelu(n.a(x)).permute(0, 2, 3, 1)).mean((1, 2))), a=nn.Conv2d(1, 4, 3),
            b=nn.Linear(4, 6), head=nn.Linear(6, 2)), (2, 1, 5, 5)),
    "two answers": (
        Net(lambda n, x: {"a": n.p(F.relu(n.a(x))), "b": (n.q(F.relu(n.a(x))),)}, a=nn.Linear(3, 6), p=nn.Linear(6, 2),
            q=nn.Linear(6, 1)), (2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("which", CUTTABLE)
@pytest.mark.parametrize("share", [0.6, 0.0])
def test_what_can_be_cut(which: str, share: float) -> None:
    model, shape = CUTTABLE[which]
    model, x = stirred(copy.deepcopy(model)), inputs(*shape)
    found = edges(model, x)
    keep = some(found, share)
    assert_close(cut(model, found, keep)(x), masked(model, found, keep)(x))
    fewer = sum(p.numel() for p in cut(model, found, keep).parameters())
    assert fewer < sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("dims", [2, 3])
def test_what_lies_with_channels_last_lies_so_when_it_is_cut(dims: int) -> None:
    """Else a smaller network is timed in another layout than the whole one."""
    conv, last = (nn.Conv2d, torch.channels_last) if dims == 2 else (nn.Conv3d, torch.channels_last_3d)
    plain = nn.Sequential(conv(3, 6, 3), nn.ReLU(), conv(6, 4, 3), nn.Flatten(), nn.Linear(4, 2)).eval()
    x = torch.rand(2, 3, *(5,) * dims)
    for model, wanted in ((plain, False), (copy.deepcopy(plain).to(memory_format=last), True)):  # type: ignore[call-overload]
        found = edges(model, x)
        small = cut(model, found, some(found, 0.5))
        for net in (small, shaped_like(model, small.state_dict())):
            for weight in (net[0].weight, net[2].weight):  # type: ignore[index,union-attr]
                assert weight.is_contiguous() is not wanted  # type: ignore[operator]
                assert weight.is_contiguous(memory_format=last) is wanted  # type: ignore[operator]
        assert_close(small(x), masked(model, found, some(found, 0.5))(x))


def test_modes_and_kinds_stay_as_they_were() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 6), nn.Linear(6, 2))
    model[0].requires_grad_(False)
    model = model.train().to(torch.bfloat16)
    before = copy.deepcopy(model.state_dict())
    found = edges(model, torch.rand(2, 1, 5, 5, dtype=torch.bfloat16))
    small = cut(model, found, some(found, 0.5))
    assert model.training
    assert small.training
    assert_close(model.state_dict(), before)  # no running mean was moved by looking
    assert all(p.dtype is torch.bfloat16 for p in small.parameters())
    frozen = [name for name, p in small.named_parameters() if not p.requires_grad]
    assert frozen == ["0.weight", "0.bias"]


def test_a_smaller_network_is_cut_again() -> None:
    model, x = stirred(ResNet18(width=4)), inputs(2, 3, 8, 8)
    found = edges(model, x)
    small = cut(model, found, {edge.name: torch.arange(edge.size) % 2 == 0 for edge in found})
    again = edges(small, x)
    assert [edge.size for edge in again] == [edge.size // 2 for edge in found]
    keep = some(again, 0.5)
    assert_close(cut(small, again, keep)(x), masked(small, again, keep)(x))


class Undecided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        out: Tensor = self.b(h if h.sum() > 0 else -h)
        return out


@pytest.mark.parametrize(
    ("model", "x", "says"),
    [
        (Undecided(), torch.rand(2, 3), r"torch.fx cannot read the forward pass of Undecided \(TraceError.*decisions"),
        (nn.Sequential(nn.Linear(3, 2)), torch.rand(2, 3), "No channel of the network can be cut: '0' must keep its"),
        (nn.Flatten(), torch.rand(2, 3), "it has no convolution and no Linear"),
        (nn.Sequential(nn.Linear(3, 2)), torch.rand(2, 5), r"fails on the example of shape \(2, 5\)"),
        (nn.Sequential(nn.Linear(3, 2)), torch.rand(3), r"the example \(3,\); it wants a tensor"),
        (nn.Sequential(nn.Linear(3, 2)), "x", r"the example str; it wants a tensor"),
    ],
)
def test_what_cannot_be_read_is_one_line(model: nn.Module, x: Any, says: str) -> None:
    with pytest.raises(AssayError, match=says) as e:
        edges(model, x)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        ({"stem": torch.ones(4, dtype=torch.bool)}, "There is no edge 'stem' to cut; the network has 1: '0'"),
        ({"0": torch.ones(3, dtype=torch.bool)}, r"of shape \(3,\); it wants bool of shape \(4,\)"),
        ({"0": torch.ones(4)}, "is torch.float32 of shape"),
    ],
)
def test_a_keep_that_is_none_is_one_line(keep: dict[str, Tensor], says: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    found = edges(model, torch.rand(2, 3))
    for smaller in (masked, cut):
        with pytest.raises(AssayError, match=says):
            smaller(model, found, keep)


def test_groups_are_those_of_torch_pruning() -> None:
    pruning = pytest.importorskip("torch_pruning")
    model, x = ResNet18(width=4).eval(), torch.rand(1, 3, 8, 8)
    graph = pruning.DependencyGraph().build_dependency(model, x)
    names = {module: name for name, module in model.named_modules()}
    for edge in edges(model, x):
        root = model.get_submodule(edge.name)
        group = graph.get_pruning_group(root, pruning.prune_conv_out_channels, idxs=[1])
        theirs = {(names.get(dep.target.module, ""), dep.handler.__name__.removeprefix("prune_")) for dep, _ in group}
        sides = {(name, "out_channels") for name in (*edge.writers, *edge.norms)}
        sides |= {(name, "in_channels") for name in edge.readers}
        kinds = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
        met = {(n, "in_channels" if "in_channels" in h else "out_channels") for n, h in theirs
               if n and isinstance(model.get_submodule(n), kinds)}  # fmt: skip
        assert met == sides
