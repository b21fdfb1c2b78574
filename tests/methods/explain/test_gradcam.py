from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.explain.gradcam import CAM, Score, gradcam, last_maps, normalise
from assay.nn.lenet import LeNet
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN


def small(seed: int = 0) -> nn.Sequential:
    """Conv, ReLU, pool, two Linears; float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(45, 7), nn.ReLU(),
            nn.Linear(7, 3))  # fmt: skip
    return net.double().eval()


def images(n: int = 6, seed: int = 0) -> Tensor:
    return torch.rand(n, 2, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_differences(net: nn.Sequential, x: Tensor, target: int, score: Score) -> tuple[Tensor, Tensor]:
    """alpha of one input, one pixel at a time: (s(A + h) - s(A - h)) / 2h, averaged over the pixels of each map."""
    maps = net[:2](x[None])[0].detach()

    def value(a: Tensor) -> float:
        y = net[2:](a[None])[0].detach()
        if score == "softmax":
            return float(y.exp()[target] / y.exp().sum())
        return float(y[target] - y.mean()) if score == "centred" else float(y[target])

    alpha = torch.zeros(len(maps), dtype=torch.float64)
    for k in range(len(maps)):
        for i in range(maps.shape[1]):
            for j in range(maps.shape[2]):
                step = torch.zeros_like(maps)
                step[k, i, j] = 1e-6
                alpha[k] += (value(maps + step) - value(maps - step)) / 2e-6 / maps[k].numel()
    return alpha, maps


@pytest.mark.parametrize("score", ["logit", "softmax", "centred"])
def test_it_is_the_equation_by_finite_differences(score: Score) -> None:
    net, x = small(), images(2)
    got = gradcam(net, x, "1", target=torch.tensor([2, 0]), score=score)
    for row, target in enumerate([2, 0]):
        alpha, maps = by_differences(net, x[row], target, score)
        assert_close(got.alpha[row], alpha, rtol=0, atol=1e-8)
        heat = sum(alpha[k] * maps[k] for k in range(5))
        assert isinstance(heat, Tensor)
        assert_close(got.heat()[row], heat.clamp_min(0), rtol=0, atol=1e-7)
        assert_close(got.heat(relu=False)[row], heat, rtol=0, atol=1e-7)


def test_a_head_of_averages_and_one_linear_gives_its_weights() -> None:
    """Then alpha_k^c = w_kc / N_A, and GradCAM is CAM."""
    head = nn.Linear(5, 3)
    net = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).double().eval()
    got = gradcam(net, images(), "1", target=torch.full((6,), 1))
    assert_close(got.alpha, (head.weight[1] / 16).expand(6, -1).detach())
    whole = gradcam(net, images(), "1", target=torch.full((6,), 1), score="centred")
    weight = head.weight.detach()
    assert_close(whole.alpha, ((weight[1] - weight.mean(0)) / 16).expand(6, -1))


@given(batch=st.integers(1, 8), seed=st.integers(0, 50))
@settings(deadline=None, max_examples=10)
def test_batches_change_nothing(batch: int, seed: int) -> None:
    net, x = small(seed), images(7, seed)
    whole, parts = gradcam(net, x, "1"), gradcam(net, x, "1", batch=batch)
    assert_close(parts.alpha, whole.alpha)
    assert_close(parts.maps, whole.maps)


def test_the_likeliest_class_is_the_default() -> None:
    net, x = small(), images()
    assert_close(gradcam(net, x, "1").alpha, gradcam(net, x, "1", target=net(x).argmax(1)).alpha)


def test_layers_that_write_in_place_do_not_disturb_the_maps() -> None:
    net = small()
    inplace = copy.deepcopy(net)
    inplace[1] = nn.ReLU(inplace=True)
    x = images()
    before = gradcam(inplace, x, "0")
    assert_close(before.maps, net[0](x).detach())
    assert (before.maps < 0).any()
    assert_close(before.alpha, gradcam(net, x, "0").alpha)


def test_float32_and_float64_agree_and_keep_their_type() -> None:
    net, x = small(), images()
    wide, narrow = gradcam(net, x, "1").heat(), gradcam(copy.deepcopy(net).float(), x.float(), "1").heat()
    assert wide.dtype == torch.float64
    assert narrow.dtype == torch.float32
    assert_close(narrow.double(), wide, rtol=1e-4, atol=1e-6)


def test_what_is_added_to_all_logits_shows_in_the_logit_alone() -> None:
    class Lifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, x: Tensor) -> Tensor:
            maps = self.net[:2](x)
            out: Tensor = self.net[2:](maps) + 5 * maps[:, 0].sum((1, 2))[:, None]
            return out

    lifted, x = Lifted().eval(), images()
    plain = lifted.net
    target = plain(x).argmax(1)
    for score, same in (("logit", False), ("softmax", True), ("centred", True)):
        a = gradcam(lifted, x, "net.1", target=target, score=score)  # type: ignore[arg-type]
        b = gradcam(plain, x, "1", target=target, score=score)  # type: ignore[arg-type]
        assert torch.allclose(a.alpha, b.alpha, rtol=0, atol=1e-12) is same


def test_the_model_is_left_as_it_was() -> None:
    net = small()
    gradcam(net, images(), "1")
    assert all(p.grad is None for p in net.parameters())
    assert not any(m._forward_hooks for m in net.modules())
    with torch.no_grad():
        gradcam(net, images(), "1")  # also where gradients are switched off


def test_channels_can_be_left_out() -> None:
    cam = gradcam(small(), images(), "1")
    keep = torch.tensor([True, False, True, True, False])
    assert_close(cam.heat(relu=False, keep=keep), CAM(cam.alpha[:, keep], cam.maps[:, keep]).heat(relu=False))


def test_a_map_of_zeros_stays_zero_when_normalised() -> None:
    heat = torch.stack([torch.zeros(3, 3), torch.arange(9.0).view(3, 3)])
    got = normalise(heat)
    assert (got[0] == 0).all()
    assert_close(got[1], heat[1] / 8)


@pytest.mark.parametrize(
    ("net", "shape", "layer"),
    [
        (small().float(), (2, 6, 6), "1"),
        (SmallCNN(), (1, 28, 28), "last_conv"),
        (LeNet(), (1, 28, 28), "body.4"),
        (ResNet18(width=2), (3, 32, 32), "stages"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            (1, 8, 8),
            "1",
        ),
    ],
    ids=["vgg", "small", "lenet", "resnet", "late relu"],
)
def test_the_layer_to_explain_is_found(net: nn.Module, shape: tuple[int, ...], layer: str) -> None:
    assert last_maps(net.eval(), torch.zeros(1, *shape)) == layer


def test_bad_input_is_refused_in_one_line() -> None:
    net, x = small(), images(2)
    with pytest.raises(AssayError, match="no class 3; the model has 3"):
        gradcam(net, x, "1", target=torch.tensor([0, 3]))
    with pytest.raises(ShapeError, match=r"shape \(3,\) for 2 inputs"):
        gradcam(net, x, "1", target=torch.zeros(3, dtype=torch.long))
    with pytest.raises(AssayError, match="no module 'conv'"):
        gradcam(net, x, "conv")
    with pytest.raises(ShapeError, match="Module '4' gave .* name a convolutional layer"):
        gradcam(net, x, "4")
    with pytest.raises(AssayError, match="no inputs"):
        gradcam(net, x[:0], "1")
    with pytest.raises(AssayError, match="score='odds'"):
        gradcam(net, x, "1", score="odds")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="training mode"):
        gradcam(copy.deepcopy(net).train(), x, "1")
    with pytest.raises(AssayError, match="no convolutional layer"):
        last_maps(nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).double(), x)

    class Rounded(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return y.detach()

    with pytest.raises(SubjectError, match="No gradient leads"):
        gradcam(nn.Sequential(*net, Rounded()).eval(), x, "1")
    shared = nn.Conv2d(2, 2, 3, padding=1).double()
    twice = nn.Sequential(shared, nn.ReLU(), shared, nn.Flatten(), nn.Linear(72, 3).double()).eval()
    with pytest.raises(AssayError, match="ran 2 times"):
        gradcam(twice, x, "0")


def test_parity_with_captum() -> None:
    captum = pytest.importorskip("captum.attr")
    net, x = small(), images()
    target = net(x).argmax(1)
    theirs = captum.LayerGradCam(net, net[1]).attribute(x, target=target, relu_attributions=True)
    assert_close(gradcam(net, x, "1").heat(), theirs[:, 0].detach())
