"""Maps of a number: the weights of an answer's entries in the place of a class."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.methods.explain.faithfulness import importance, removal_curve
from assay.methods.explain.gradcam import gradcam
from assay.methods.explain.maps import explain
from assay.methods.explain.sanity import curve, map_needs_the_model
from assay.methods.explain.spoken import class_of
from assay.methods.explain.trial import faithfulness

EXACT = ("integrated-gradients", "gradient-input", "occlusion", "kernel-shap", "expected-gradients")


class Straight(nn.Module):
    """W x + b with two rows of three numbers: n 5 -> n 2 3."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x).view(-1, 2, 3)


class OnePatch(nn.Module):
    """Two classes at each pixel; what the second says hangs on the upper left quarter alone: n 1 4 4 -> n 2 4 4."""

    def forward(self, x: Tensor) -> Tensor:
        seen = x[:, :, :2, :2].square().sum((2, 3), keepdim=True).expand(-1, -1, 4, 4)
        return torch.cat([torch.zeros_like(seen), seen], 1)


@pytest.fixture(scope="module")
def straight() -> nn.Module:
    return Straight().eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(3, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", EXACT)
def test_of_a_linear_number_every_map_is_w_times_x_less_base(straight: nn.Module, x: Tensor, method: str) -> None:
    """With one weight for each entry of the answer: w = W^T weight, and the values add up exactly."""
    weight = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(2))
    base = torch.full((5,), 0.3)
    found = explain(straight, x, weight, method, baseline=base, background=base[None].expand(4, -1), samples=64)
    linear = straight.map
    assert isinstance(linear, nn.Linear)
    slope = weight.flatten(1) @ linear.weight.detach()  # n 5
    assert_close(found.values, slope * (x - base), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        promised = ((straight(x) - straight(base[None])) * weight).flatten(1).sum(1)
    assert_close(found.values.sum(1), promised, rtol=1e-4, atol=1e-5)
    if found.gap is not None:
        assert_close(found.gap, torch.zeros(3).double(), rtol=0, atol=1e-4)


def test_weights_of_one_logit_are_that_class(straight: nn.Module, x: Tensor) -> None:
    net = nn.Sequential(straight, nn.Flatten()).eval()
    one = torch.zeros(3, 6)
    one[:, 4] = 1.0
    for method in ("gradient", "integrated-gradients", "smoothgrad", "lime", "kernel-shap", "occlusion"):
        assert_close(explain(net, x, one, method).values, explain(net, x, 4, method).values)


def test_rise_of_a_number_has_a_sign_and_ranks_what_lowers_it_too() -> None:
    net = nn.Linear(3, 1, bias=False).eval()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[4.0, -4.0, 2.0]]))
    found = explain(net, torch.ones(1, 3), torch.ones(1, 1), "rise", samples=4000)
    assert found.signed
    up, down, little = found.values[0].tolist()
    assert up == pytest.approx(2.0, abs=0.2)  # half of the time it is there anyway
    assert down == pytest.approx(-2.0, abs=0.2)
    assert little == pytest.approx(1.0, abs=0.2)


def test_a_region_that_hangs_on_one_patch_is_found_there() -> None:
    net, x = OnePatch().eval(), torch.rand(2, 1, 4, 4) + 0.1
    weight = torch.zeros(2, 2, 4, 4)
    weight[:, 1] = 1 / 16  # the mean over its region, which is everywhere
    patches = (torch.arange(4)[:, None] // 2 * 2 + torch.arange(4) // 2)[None]  # 1 4 4
    for method in ("gradient", "integrated-gradients", "occlusion", "kernel-shap"):
        found = explain(net, x, weight, method, groups=patches)
        parts = importance(found.values, patches)
        assert_close(parts[:, 1:], torch.zeros(2, 3), rtol=0, atol=1e-5)
        assert (parts[:, 0] > 0).all()
    quarter = x[:, 0, :2, :2].square().sum((1, 2))
    assert_close(explain(net, x, weight, "occlusion", groups=patches).values.flatten(1).sum(1), quarter)


def test_gradcam_of_a_number_is_the_weighted_slope() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 2, 1)).eval()
    x, weight = torch.rand(2, 1, 4, 4), torch.rand(2, 2, 4, 4)
    cam = gradcam(net, x, "0", target=weight)
    kernel = net[1].weight.detach()[:, :, 0, 0]  # 2 3
    assert_close(cam.alpha, torch.einsum("nohw,ok->nk", weight, kernel) / 16)


def test_the_curves_of_a_number_are_how_far_it_moves() -> None:
    """Of w x with x = 1: what goes takes its weight along, in the order of the ranking."""
    net = nn.Linear(4, 1, bias=False).eval()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[8.0, -4.0, 2.0, 1.0]]))
    x, target, ranks = torch.ones(1, 4), torch.ones(1, 1), torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    gone = removal_curve(net, x, ranks, kind="gone", target=target, shares=shares)
    kept = removal_curve(net, x, ranks, kind="kept", target=target, shares=shares)
    assert gone.value[0].tolist() == pytest.approx([0.0, 8.0, 4.0, 6.0, 7.0])
    assert kept.value[0].tolist() == pytest.approx([7.0, 1.0, 3.0, 1.0, 0.0])
    assert (gone.better, kept.better) == ("higher", "lower")
    with pytest.raises(AssayError, match="'gone' is for a number: give its weights"):
        removal_curve(net, x, ranks, kind="gone")
    with pytest.raises(AssayError, match="'deletion' is for classes"):
        removal_curve(net, x, ranks, kind="deletion", target=target)


def test_the_best_ranking_of_a_linear_number_beats_chance_and_the_worst_does_not() -> None:
    net = nn.Linear(12, 1).eval()
    with torch.no_grad():
        net.weight.copy_(torch.arange(12.0)[None] ** 2)
    ranks = torch.stack([torch.arange(12.0), -torch.arange(12.0)])
    best, worst = faithfulness(
        net, torch.ones(12), ranks, groups=torch.arange(12), weights=torch.ones(1, 1), search=None, draws=39,
        rng=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert [s.name for s in best] == ["kept", "gone"]
    assert [s.beaten for s in best] == [39, 39]
    assert [s.beaten for s in worst] == [0, 0]


def test_a_map_that_ignores_the_model_is_found_out_and_one_that_does_not_is_not() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 1)).eval()
    x, weight = torch.rand(12, 24), torch.ones(12, 1)
    blind = curve(net, x, lambda _, at: at, rng=torch.Generator().manual_seed(0))[-1][1]
    seeing = curve(
        net, x, lambda f, at: explain(f, at, weight, "gradient").values, rng=torch.Generator().manual_seed(0)
    )[-1][1]
    assert map_needs_the_model(blind).says == "does not need the model"
    assert map_needs_the_model(seeing).says == "needs the model"


def test_of_one_score_it_is_what_tells_the_two_classes_apart() -> None:
    """The first logit is 0 whatever the input, and a map of it would be empty."""
    net = nn.Sequential(nn.Linear(3, 1, bias=False), nn.ZeroPad1d((1, 0))).eval()  # (0, w x)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
        x = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
        target = class_of(net(x))
    assert target.tolist() == [[1.0, -1.0], [0.0, 1.0]]
    found = explain(net, x, target, "gradient-input").values
    assert_close(found, torch.tensor([[-1.0, 2.0, -0.5], [1.0, 0.0, 0.5]]))
    assert class_of(torch.tensor([[0.0, -1.0, -2.0]])).tolist() == [0]  # of more classes it is the logit
    assert class_of(torch.tensor([[2.0, 1.0]])).tolist() == [0]


def test_answers_of_another_shape_are_told(straight: nn.Module, x: Tensor) -> None:
    with pytest.raises(SubjectError, match=r"answered \(3, 2, 3\) where its answers had the shape \(3, 4\)"):
        explain(straight, x, torch.ones(3, 4), "gradient")


def test_a_map_of_one_score_is_the_same_whatever_else_is_in_the_batch() -> None:
    out = torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.0, 3.0]])
    alone = torch.cat([class_of(row[None]) for row in out])
    assert alone.tolist() == class_of(out).tolist() == [[0.0, 1.0], [1.0, -1.0], [0.0, 1.0]]
    assert class_of(out.flip(1)).tolist() == [[1.0, 0.0], [-1.0, 1.0], [1.0, 0.0]]
    assert class_of(torch.tensor([[0.0, -1.0], [2.0, 1.0]])).tolist() == [0, 0]  # two logits, one of them 0 by chance
