from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.nn.fused import ConvRelu, Sampled, fused
from assay.nn.resnet import Bottleneck, ResNet


def how_many(model: nn.Module) -> int:
    return sum(isinstance(part, ConvRelu) for part in model.modules())


def lead(model: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """What it says, and the slope of a mix of its answers."""
    at = x.clone().requires_grad_()
    z = model(at)
    v = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
    return z.detach(), torch.autograd.grad(z, at, v)[0]


def same(model: nn.Module, other: nn.Module, x: Tensor) -> None:
    """In float64: sums in another order may else put a unit on the other side of its kink."""
    for a, b in zip(lead(model, x.double()), lead(other, x.double()), strict=True):
        assert bool(a.abs().max() > 0)
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9 * float(a.abs().max()))


class Block(nn.Module):
    """A residual block in one of the ways in which people write them."""

    def __init__(self, wide: int, out: int, stride: int, bias: bool, way: str) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(wide, out, 3, stride, 1, bias=bias), nn.Conv2d(out, out, 3, 1, 1, bias=bias)
        self.side = nn.Conv2d(wide, out, 1, stride) if stride > 1 or wide != out else nn.Identity()
        self.relu, self.way = nn.ReLU(inplace=way == "in place"), way

    def forward(self, x: Tensor) -> Tensor:
        z, out = self.side(x), self.a(x)
        if self.way == "in place":
            out = self.b(self.relu(out))
            out += z
            return self.relu(out)
        if self.way == "methods":
            return self.b(out.relu()).add(z).relu()
        if self.way == "reversed":
            return torch.relu(torch.add(z, self.b(torch.relu(out))))
        if self.way == "three takers":
            out = F.relu(out)
            return F.relu(self.b(out) + z) + out.sum((1, 2, 3), keepdim=True) / out.mean().add(9)
        return F.relu(self.b(F.relu(out)) + z)


WAYS = ("functions", "in place", "methods", "reversed", "three takers")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(WAYS), st.integers(1, 2), st.booleans(), st.sampled_from([4, 8])), max_size=3),
    st.sampled_from([1, 3, 8]), st.integers(0, 2**31 - 1),
)  # fmt: skip
def test_a_fused_net_leads_where_the_net_leads_and_the_net_is_left_alone(
    blocks: list[tuple[str, int, bool, int]], channels: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU()]
    wide = 4
    for way, stride, bias, out in blocks:
        layers.append(Block(wide, out, stride, bias, way))
        wide = out
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 3)).eval().double()
    model.requires_grad_(False)
    state, x = copy.deepcopy(model.state_dict()), torch.randn(4, channels, 8, 8)
    twin = fused(model)
    assert how_many(twin) == 1 + 2 * len(blocks)
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert how_many(model) == 0
    assume(bool(lead(model, x.double())[1].abs().max() > 0))  # not of a net whose units all sleep
    same(model, twin, x)


@pytest.mark.parametrize("kernel", [1, 2, 3, (1, 5)])
@pytest.mark.parametrize("stride", [1, 2, (1, 2)])
@pytest.mark.parametrize("padding", [0, 1, (2, 0)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_way_back_through_any_convolution(
    kernel: int | tuple[int, int], stride: int | tuple[int, int], padding: int | tuple[int, int], dilation: int
) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, kernel, stride, padding, dilation)  # type: ignore[arg-type]
    model = nn.Sequential(conv, nn.ReLU(), nn.Flatten()).eval().double().requires_grad_(False)
    twin = fused(model)
    assert how_many(twin) == 1
    same(model, twin, torch.randn(2, 3, 9, 10))


def test_of_a_residual_network_every_relu_is_part_of_a_convolution() -> None:
    torch.manual_seed(0)
    for model, relus in ((ResNet(4, width=4), 17), (ResNet(4, width=4, kind=Bottleneck), 25)):
        model.eval().double().requires_grad_(False)
        for part in model.modules():  # as folding leaves it
            for name, child in part.named_children():
                if isinstance(child, nn.BatchNorm2d):
                    setattr(part, name, nn.Identity())
        twin = fused(model)
        assert how_many(twin) == relus
        same(model, twin, torch.rand(3, 3, 16, 16))


@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("stride", "bias"), [(2, True), ((1, 2), False), (3, True)])
def test_a_convolution_of_single_pixels_takes_the_pixels_that_it_reads_first(
    stride: int | tuple[int, int], bias: bool, laid: torch.memory_format
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 5, 1, stride, bias=bias), nn.Tanh(), nn.Flatten())
    model.eval().double().requires_grad_(False).to(memory_format=laid)  # type: ignore[call-overload]
    twin = fused(model)
    assert sum(isinstance(part, Sampled) for part in twin.modules()) == 1
    same(model, twin, torch.randn(2, 3, 9, 10).contiguous(memory_format=laid))


def test_a_convolution_of_single_pixels_that_pads_or_is_used_twice_stays() -> None:
    torch.manual_seed(0)
    shared = nn.Conv2d(3, 3, 1, 2)
    for model in (nn.Sequential(nn.Conv2d(3, 3, 1, 2, 1), nn.Tanh()), nn.Sequential(shared, nn.Tanh(), shared)):
        model.eval().double().requires_grad_(False)
        twin = fused(model)
        assert not any(isinstance(part, Sampled) for part in twin.modules())
        same(model, twin, torch.randn(2, 3, 8, 8))


class Decides(nn.Module):
    """No tracer can read which way it goes; its blocks can be read, and it walks through them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(2, 2, 1, True, "functions") for _ in range(2)])
        self.line = nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = x if float(x.detach().sum()) > 1e9 else -x
        for block in self.blocks:
            x = block(x)
        for layer in self.line:
            x = layer(x)
        return x.mean((2, 3))


def test_of_a_net_that_cannot_be_read_as_a_whole_the_parts_are() -> None:
    torch.manual_seed(0)
    model = Decides().eval().double().requires_grad_(False)
    twin = fused(model)
    assert how_many(twin) == 4
    assert [type(layer) for layer in twin.get_submodule("line").children()] == [nn.Conv2d, nn.ReLU]
    same(model, twin, torch.randn(3, 2, 8, 8))


class Twice(nn.Module):
    """One convolution, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.conv(x).relu()).relu().flatten(1)  # type: ignore[no-any-return]


class Taken(Twice):
    """What the convolution gives is taken also as it is."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        return (z + z.relu()).flatten(1)  # type: ignore[no-any-return]


class Scaled(Twice):
    """The sum is one of a kind that adds twice the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.conv(x), x, alpha=2).relu().flatten(1)


class Unused(Twice):
    """A ReLU that nobody asks for."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        torch.relu(z)
        return z.flatten(1)  # type: ignore[no-any-return]


def of_groups() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Flatten())


def reflecting() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten())


def by_name() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.ReLU(), nn.Flatten())


def watched() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
    model[0].register_forward_hook(lambda module, x, out: 2 * out)
    return model


@pytest.mark.parametrize("made", [Twice, Taken, Scaled, Unused, of_groups, reflecting, by_name, watched])
def test_what_is_more_than_a_convolution_and_a_relu_stays(made: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = made().eval().double().requires_grad_(False)
    twin = fused(model)
    assert how_many(twin) == 0
    same(model, twin, torch.randn(3, 1, 8, 8))


class Misnamed(nn.Module):
    """Modules by the names of functions: the convolution is no sum, and the tanh no ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.add, self.relu, self.last = nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.last(F.relu(self.add(x)))).flatten(1)  # type: ignore[no-any-return]


def test_modules_that_are_named_like_functions_are_not_taken_for_them() -> None:
    torch.manual_seed(0)
    model = Misnamed().eval().double().requires_grad_(False)
    twin = fused(model)
    assert how_many(twin) == 1
    same(model, twin, torch.randn(3, 1, 8, 8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the kernels are cuDNN's")
def test_on_a_gpu_in_bf16_it_leads_where_the_net_leads() -> None:
    torch.manual_seed(0)
    model = ResNet(10, width=16).eval().cuda().requires_grad_(False)
    x = torch.rand(64, 3, 32, 32, device="cuda")
    held = copy.deepcopy(model)
    for part in held.modules():
        if isinstance(part, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            part.to(torch.bfloat16)
    twin = fused(held.to(memory_format=torch.channels_last))  # type: ignore[call-overload]

    def slope(net: nn.Module) -> Tensor:
        at = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=net is not model):
            z = net(at).float()
        return torch.autograd.grad(z[:, 0].sum() - z[:, 1].sum(), at)[0].flatten(1)

    assert float(F.cosine_similarity(slope(model), slope(twin)).median()) > 0.95


class Asks(nn.Module):
    """Asks what the ReLU gives for its shape too: from there nothing comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x).relu()
        return out.view(out.size(0), -1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
def test_who_asks_for_a_shape_alone_pulls_nothing_back_and_a_view_is_had_of_any_layout(
    laid: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    model = Asks().eval().double().requires_grad_(False)
    twin = fused(model.to(memory_format=laid))  # type: ignore[call-overload]
    assert how_many(twin) == 1
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    same(model, twin, torch.randn(3, 1, 8, 8))
