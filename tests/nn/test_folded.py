from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.nn.folded import folded
from assay.nn.resnet import Bottleneck, ResNet


def norms(model: nn.Module) -> int:
    return sum(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules())


def lived(model: nn.Module, *shape: int) -> nn.Module:
    """Running moments and scales as a training might have left them, some of them near 0 and some below."""
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.running_mean.normal_()
            part.running_var.uniform_(0.01, 4)
            if part.affine:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
    return model.eval()


class Residual(nn.Module):
    """A block whose sum goes on into its own normalisation, which follows no layer."""

    def __init__(self, width: int, groups: int, bias: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=bias), nn.BatchNorm2d(width)
        self.last = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x + self.norm(self.conv(x)).relu())
        return out


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["plain", "depthwise", "strided", "residual", "bare"]), min_size=1, max_size=4),
    st.booleans(), st.booleans(), st.integers(0, 2**31 - 1),
)  # fmt: skip
def test_a_folded_net_says_what_the_net_says_and_the_net_is_left_alone(
    kinds: list[str], bias: bool, affine: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, padding=1, bias=bias), nn.BatchNorm2d(4, affine=affine), nn.ReLU()]
    for kind in kinds:
        if kind == "residual":
            layers.append(Residual(4, 2, bias))
        elif kind == "bare":
            layers += [nn.ReLU(), nn.BatchNorm2d(4)]  # follows no layer: it stays
        else:
            groups, stride = (4 if kind == "depthwise" else 1), (2 if kind == "strided" else 1)
            layers += [nn.Conv2d(4, 4, 3, stride, 1, groups=groups, bias=bias), nn.BatchNorm2d(4), nn.ReLU()]
    rows = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5, bias=bias), nn.BatchNorm1d(5), nn.Linear(5, 3)]
    model = lived(nn.Sequential(*layers, *rows))
    state, x = copy.deepcopy(model.state_dict()), torch.randn(6, 2, 8, 8)
    twin = folded(model, x[:3])
    left = sum({"residual": 1, "bare": 1}.get(kind, 0) for kind in kinds)
    assert norms(twin) == left
    scale = float(model(x).detach().abs().max())
    torch.testing.assert_close(twin(x), model(x), rtol=0, atol=1e-3 * scale)
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())


def test_a_bottleneck_network_loses_all_its_norms() -> None:
    torch.manual_seed(0)
    model = lived(ResNet(4, width=4, blocks=(1, 1, 1, 1), kind=Bottleneck))
    x = torch.rand(4, 3, 32, 32)
    assert norms(folded(model, x)) == 0


class Decides(nn.Module):
    """No tracer can read which way it goes; its parts can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = x if float(x.sum()) > 1e9 else -x
        return self.body(x).mean((2, 3))  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One convolution, called twice, with a normalisation behind one of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(self.conv(x))).flatten(1)  # type: ignore[no-any-return]


class Taken(nn.Module):
    """What the convolution gives is normalised and also taken as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        return (z + self.norm(z)).flatten(1)  # type: ignore[no-any-return]


class Alias(Twice):
    """The convolution has a second name, by which it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self.conv

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.other(x)).flatten(1)  # type: ignore[no-any-return]


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Rows(nn.Module):
    """Behind a Linear over n l f this normalises l, not f; here the two are as many."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x[:, 0, :4, :4])).flatten(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (Decides(), 0),
        (Twice(), 1),
        (Taken(), 1),
        (Alias(), 1),
        (Rows(), 1),
        (nn.Sequential(nn.Conv2d(1, 2, 3), OwnNorm(2)), 1),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False)), 1),
        (nn.Sequential(nn.ConvTranspose2d(1, 2, 3), nn.BatchNorm2d(2)), 1),
    ],
    ids=lambda of: type(of).__name__ if isinstance(of, nn.Module) else str(of),
)
def test_what_cannot_be_folded_stays(model: nn.Module, left: int) -> None:
    torch.manual_seed(0)
    model, x = lived(model), torch.randn(5, 1, 8, 8)
    twin = folded(model, x)
    assert norms(twin) == left
    torch.testing.assert_close(twin(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_layer_with_a_hook_is_not_folded() -> None:
    model = lived(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    model[0].register_forward_hook(lambda module, x, out: 2 * out)
    x = torch.randn(3, 1, 8, 8)
    assert norms(folded(model, x)) == 1
    torch.testing.assert_close(folded(model, x)(x), model(x))
