from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.certify.layers import Affine, Mean, layers
from assay.nn.lenet import LeNet
from assay.nn.small_cnn import SmallCNN


class Normalised(nn.Module):
    """As the one in front of subjects: the method knows it by its fields."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: float = 0.3, std: float = 0.2, *, channels: int = 2) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.full((channels, 1, 1), mean))
        self.register_buffer("std", torch.full((channels, 1, 1), std))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model((x - self.mean) / self.std)
        return out


class Turned(Normalised):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x * self.std + self.mean)
        return out


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter and running statistic random, so that nothing is 0 or 1 by chance."""
    rng = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and name not in ("mean", "std"):
            noise = torch.randn(tensor.shape, generator=rng)
            tensor.copy_(noise.abs() + 0.5 if "var" in name else noise * 0.4)
    return model.eval()


MODELS = {
    "dense": (nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Dropout(), nn.Linear(7, 3)), (4,), 2),
    "normed": (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Identity(), nn.Linear(6, 3)), (4,), 2),
    "stacked": (nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5)), (4,), 1),
    "shared": ((lambda r: nn.Sequential(nn.Linear(4, 4), r, nn.Linear(4, 4), r, nn.Linear(4, 2)))(nn.ReLU()), (4,), 3),
    "edges": (nn.Sequential(nn.ReLU(), nn.Linear(4, 3), nn.ReLU()), (4,), 3),
    "parametrised": (nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 2)), (4,), 2),
    "conv": (
        Normalised(
            nn.Sequential(
                nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
                nn.Conv2d(4, 6, (2, 3), groups=2, dilation=(1, 2), padding=(0, 2)),
                nn.ReLU(),
                nn.AvgPool2d(2),
                nn.Flatten(),
                nn.Linear(24, 3),
            )
        ),
        (2, 9, 7),
        3,
    ),
    "pooled": (
        nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)),
        (1, 5, 6),
        2,
    ),
    "shipped": (SmallCNN(), (1, 28, 28), 5),
}


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[int, ...], int]:
    model, shape, count = MODELS[request.param]
    return shaken(copy.deepcopy(model)), shape, count


def run(chain: tuple[Affine, ...], x: Tensor) -> Tensor:
    for affine in chain[:-1]:
        x = affine(x).relu()
    return chain[-1](x)


def test_the_chain_is_the_model(case: tuple[nn.Module, tuple[int, ...], int]) -> None:
    model, shape, count = case
    before = {name: t.clone() for name, t in model.state_dict().items()}
    chain = layers(model, shape)
    assert len(chain) == count
    assert chain[0].in_shape == shape
    x = torch.randn(5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = run(chain, x)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(
        ours, copy.deepcopy(model).double()(x), rtol=1e-6, atol=1e-6
    )  # a parametrisation is float32's
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


def test_linear_transpose_dense_and_spread_are_one_matrix(case: tuple[nn.Module, tuple[int, ...], int]) -> None:
    model, shape, _ = case
    for affine in layers(model, shape):
        if math.prod(affine.in_shape) > 1000:
            continue  # the shipped net's maps as matrices take seconds
        w, b = affine.dense()
        rng = torch.Generator().manual_seed(2)
        x = torch.randn(3, *affine.in_shape, dtype=torch.float64, generator=rng)
        g = torch.randn(3, *affine.out_shape, dtype=torch.float64, generator=rng)
        assert w.shape == (math.prod(affine.out_shape), math.prod(affine.in_shape))
        torch.testing.assert_close(affine.linear(x).flatten(1), x.flatten(1) @ w.T)
        torch.testing.assert_close(affine(x).flatten(1), x.flatten(1) @ w.T + b)
        torch.testing.assert_close(affine.transpose(g).flatten(1), g.flatten(1) @ w)
        torch.testing.assert_close(affine.spread(x.abs()).flatten(1), x.abs().flatten(1) @ w.abs().T)


def test_spread_of_two_convolutions_without_a_relu_is_an_upper_bound() -> None:
    model = shaken(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 2, 3), nn.Flatten()))
    (affine,) = layers(model, (1, 6, 6))
    r = torch.rand(4, 1, 6, 6, dtype=torch.float64)
    assert (affine.spread(r) >= r.flatten(1) @ affine.dense()[0].abs().T - 1e-12).all()


def test_batch_normalisation_is_folded() -> None:
    model = shaken(copy.deepcopy(MODELS["conv"][0]))
    assert [len(affine.parts) for affine in layers(model, (2, 9, 7))] == [
        2,
        1,
        3,
    ]  # normalise conv; conv; pool flat dense


def test_the_width_of_a_first_linear_is_the_shape() -> None:
    assert layers(MODELS["dense"][0].eval())[0].in_shape == (4,)
    with pytest.raises(ShapeError, match=r"cannot be read from Conv2d; give shape=, for instance \(1, 28, 28\)"):
        layers(MODELS["pooled"][0].eval())


@settings(max_examples=20, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    size=st.tuples(st.integers(5, 8), st.integers(5, 8)),
)
def test_any_convolution_and_its_transpose_are_adjoint(
    kernel: tuple[int, int], stride: int, padding: int, dilation: int, groups: int, size: tuple[int, int]
) -> None:
    model = shaken(nn.Sequential(nn.Conv2d(2, 4, kernel, stride, padding, dilation, groups)))
    (affine,) = layers(model, (2, *size))
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, *affine.in_shape, dtype=torch.float64, generator=rng)
    g = torch.randn(2, *affine.out_shape, dtype=torch.float64, generator=rng)
    torch.testing.assert_close((affine.linear(x) * g).sum(), (x * affine.transpose(g)).sum())


@pytest.mark.parametrize(
    "module",
    [
        nn.AvgPool2d(2),
        nn.AvgPool2d((3, 2), stride=2, padding=1, ceil_mode=True),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        nn.AvgPool2d(3, stride=(1, 2), divisor_override=5),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d((3, None)),
        nn.Flatten(),
        nn.Flatten(2),
    ],
    ids=repr,
)
def test_the_transpose_of_an_average_is_its_gradient(module: nn.Module) -> None:
    at = torch.zeros(2, 3, 8, 7, dtype=torch.float64, requires_grad=True)
    out = module(at)
    g = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Mean(module).transpose(g, (3, 8, 7)), torch.autograd.grad(out, at, g)[0])


def test_what_cannot_be_read_is_named() -> None:
    linear = nn.Linear(4, 4)
    with pytest.raises(SubjectError, match=r"Layer '1.0' \(MaxPool2d\) is not affine and no ReLU; .* build the model"):
        layers(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Sequential(nn.MaxPool2d(2))), (1, 4, 4))
    with pytest.raises(SubjectError, match=r"The model \(LeNet\) is not affine"):
        layers(LeNet(), (1, 28, 28))
    with pytest.raises(SubjectError, match=r"Layer '1' \(Flatten\) is not affine"):
        layers(nn.Sequential(linear, nn.Flatten(0)), (4,))
    with pytest.raises(SubjectError, match=r"Layer '1' \(BatchNorm1d\) is in training mode, .* call model.eval\(\)"):
        layers(nn.Sequential(linear, nn.BatchNorm1d(4)).train())
    with pytest.raises(SubjectError, match=r"Layer '1' \(Dropout\) is in training mode"):
        layers(nn.Sequential(linear, nn.Dropout()).train())
    with pytest.raises(SubjectError, match=r"pads by 'same', 'zeros'; give numbers and 'zeros'"):
        layers(nn.Sequential(nn.Conv2d(1, 1, 3, padding="same")), (1, 4, 4))
    with pytest.raises(SubjectError, match=r"keeps no running statistics"):
        layers(nn.Sequential(linear, nn.BatchNorm1d(4, track_running_stats=False)).eval())
    with pytest.raises(ShapeError, match=r"Layer '0' \(Linear\) cannot take an input of shape \(5,\)"):
        layers(nn.Sequential(linear), (5,))
    hooked = nn.Sequential(nn.Linear(4, 2))
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(SubjectError, match=r"Layer '0' \(Linear\) has forward hooks"):
        layers(hooked)
    with pytest.raises(SubjectError, match=r"\(Turned\) answers otherwise than its layers in order do"):
        layers(Turned(nn.Sequential(nn.Flatten(), nn.Linear(8, 2))), (2, 2, 2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        next(model[2].parameters())[1, 0] = bad
    with pytest.raises(AssayError, match=rf"Layer '2' \(Linear\) has the weight {bad} at \(1, 0\)"):
        layers(model)
