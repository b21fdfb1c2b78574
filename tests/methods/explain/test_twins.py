from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.explain.gradcam import gradcam
from assay.methods.explain.surgery import paste
from assay.methods.explain.twins import (
    Distance,
    Gaps,
    add_dead_channel,
    chains,
    compare,
    convolutions,
    correlation,
    fold_batch_norm,
    invariant,
    map_distance,
    permute_channels,
    rescale,
    twins,
)

Net = Any  # the fixture's NamedTuple: model, layer, x, y
STICKER = torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 1]])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def occlusion(model: nn.Module, x: Tensor, *, of_probability: bool = False) -> Tensor:  # n 1 8 8 -> n 4 4
    """What the top class loses when a 2 x 2 patch is blackened: answers alone."""
    shown = torch.ones(17, 1, 1, 8, 8, dtype=x.dtype)  # the first hides nothing
    for i in range(4):
        for j in range(4):
            shown[1 + 4 * i + j, :, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = 0
    with torch.no_grad():
        y = model((shown * x).flatten(0, 1)).view(17, len(x), -1)
    y = y.softmax(2) if of_probability else y
    top = y[0].argmax(1)
    lost: Tensor = (y[0] - y[1:])[:, torch.arange(len(x)), top]  # 16 n
    return lost.T.reshape(-1, 4, 4)


def by_gradcam(net: Net) -> Any:
    return lambda model, x: gradcam(model, x, net.layer).heat()


def by_gradient(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).amax(1).sum(), x)
    return slope.abs().sum(1)


def test_every_twin_answers_as_the_model_does(net: Net) -> None:
    names = []
    for twin in twins(net.model, net.layer, net.x[:40], rng=rng(), sticker=STICKER):
        names.append(twin.name)
        y, other = net.model(net.x), twin.model(net.x)
        assert (y - other).abs().max() < (1e-8 if twin.keeps == "scores" else 0.01)
        assert_close(y.softmax(1), other.softmax(1), rtol=0, atol=1e-10)
        assert not twin.model.training
        assert gradcam(twin.model, net.x[:2], net.layer).maps.ndim == 4  # the layer has kept its name
    assert names[:4] == ["T1 flat map", "T2 chosen map", "T3 random map", "T4 triggered map"]
    assert names[4:6] == ["channels permuted", "layers rescaled"]
    assert ("batch normalisation folded" in names) == (net.model[1].__class__ is nn.BatchNorm2d)
    assert names[-1] == "dead channel added"


def test_gradcam_is_fooled_by_the_lies_and_not_by_the_harmless_twins(net: Net) -> None:
    x = net.x[:60]
    for twin in twins(net.model, net.layer, x, rng=rng(), sticker=STICKER):
        gap = compare(net.model, twin.model, by_gradcam(net), x)
        if twin.benign or twin.name.startswith("T4"):
            assert gap.explanation < 1e-10
        else:
            assert gap.explanation > (0.2 if twin.name.startswith("T3") else 0.3)
            assert gap.fooling_ratio > 20
    stuck = paste(x, STICKER, rng=rng(), count=1).x
    t4 = next(t for t in twins(net.model, net.layer, x, rng=rng(), sticker=STICKER) if t.name.startswith("T4"))
    assert compare(net.model, t4.model, by_gradcam(net), stuck).explanation > 0.03


def test_occlusion_cannot_tell_the_twins_apart(net: Net) -> None:
    x = net.x[:6]
    for twin in twins(net.model, net.layer, x, rng=rng(), sticker=STICKER):
        gap = compare(net.model, twin.model, occlusion, x)
        moved = (occlusion(net.model, x) - occlusion(twin.model, x)).abs().max()
        if twin.keeps == "scores":
            assert gap.explanation < 1e-8
        else:
            assert moved <= 0.01  # at most eps on logits, and nothing on probabilities
        chances = compare(net.model, twin.model, lambda m, x: occlusion(m, x, of_probability=True), x)
        assert chances.explanation < 1e-6


def test_input_gradients_are_moved_by_t3_alone(net: Net) -> None:
    x = net.x[:20]
    for twin in twins(net.model, net.layer, x, rng=rng(), sticker=STICKER):
        gap = compare(net.model, twin.model, by_gradient, x).explanation
        assert gap > 0.05 if twin.name.startswith("T3") else gap < 1e-8


@given(seed=st.integers(0, 100))
@settings(deadline=None, max_examples=4)
def test_reordered_and_rescaled_networks_are_equal_functions_of_other_weights(nets: dict[str, Net], seed: int) -> None:
    for net in nets.values():
        for build in (permute_channels, rescale):
            twin = build(net.model, rng=rng(seed))
            x = torch.randn(5, 1, 8, 8, dtype=torch.float64, generator=rng(seed))
            assert_close(twin(x), net.model(x), rtol=1e-9, atol=1e-9)
            assert any(not torch.equal(a, b) for a, b in zip(twin.parameters(), net.model.parameters(), strict=True))


def test_rescaling_scales_maps_up_and_their_weights_down(nets: dict[str, Net]) -> None:
    net = nets["two linears"]
    a, b = (gradcam(m, net.x[:20], net.layer) for m in (net.model, rescale(net.model, rng=rng())))
    s = b.maps.amax((0, 2, 3)) / a.maps.amax((0, 2, 3)).clamp_min(1e-300)
    alive = a.maps.amax((0, 2, 3)) > 0
    assert (s[alive].log().abs() > 0.1).any()
    assert_close(b.alpha[:, alive], a.alpha[:, alive] / s[alive])


def test_permuting_reorders_the_maps(nets: dict[str, Net]) -> None:
    net = nets["two linears"]
    a, b = (gradcam(m, net.x[:5], net.layer).maps for m in (net.model, permute_channels(net.model, rng=rng())))
    one, other = a.sum((0, 2, 3)), b.sum((0, 2, 3))
    assert_close(one.sort().values, other.sort().values)
    assert not torch.allclose(one, other)


def test_chains_are_those_of_the_network(nets: dict[str, Net]) -> None:
    assert [tuple(c) for c in chains(nets["three linears"].model)] == [("0", None, "2"), ("2", None, "6")]
    inside = [tuple(c) for c in chains(nets["resnet"].model)]
    # Not the stem, nor what is added to a shortcut: other layers see those maps too.
    assert inside == [("3.body.0", "3.body.1", "3.body.3"), ("4.body.0", "4.body.1", "4.body.3")]


def test_what_mixes_maps_or_scales_them_behind_the_relu_ends_a_chain() -> None:
    def found(*layers: nn.Module) -> list[tuple[str | None, ...]]:
        return [tuple(c) for c in convolutions(nn.Sequential(nn.Conv2d(1, 4, 3), *layers).eval())]

    norm, free = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)
    assert found(norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)) == [("0", "1", "4")]
    assert found(nn.ReLU(), norm, nn.Flatten(), nn.Linear(16, 2)) == [("0", None, None)]
    assert found(free, nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)) == [("0", None, None)]
    assert found(nn.Flatten(2), nn.Linear(4, 2)) == [("0", None, None)]
    assert found(nn.Linear(4, 2)) == [("0", None, None)]
    assert found(nn.Sigmoid(), nn.Flatten(), nn.Linear(16, 2)) == [("0", None, None)]
    assert found(nn.ReLU(), nn.Conv2d(4, 4, 1, groups=4))[0] == ("0", None, None)


def test_folding_leaves_no_batch_normalisation(nets: dict[str, Net]) -> None:
    folded = fold_batch_norm(nets["resnet"].model)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    assert any(isinstance(m, nn.BatchNorm2d) for m in nets["resnet"].model.modules())


def test_a_dead_channel_is_weighed_and_shows_nothing(net: Net) -> None:
    twin = add_dead_channel(net.model, net.layer, net.x[:4], rng=rng())
    cam = gradcam(twin, net.x, net.layer)
    assert (cam.alpha[:, -1] != 0).any()
    assert (cam.maps[:, -1] == 0).all()


def test_the_verdict() -> None:
    def gap(scores: float, maps: float) -> Gaps:
        return Gaps(scores, 0.0, torch.tensor([maps, maps]), 1e-6)

    assert invariant([gap(0.0, 0.0), gap(1e-9, 0.01), gap(0.01, 0.9)]) is True
    assert invariant([gap(0.0, 0.0), gap(1e-9, 0.5)]) is False
    assert invariant([gap(0.01, 0.9)]) is None
    assert gap(0.0, 0.5).fooling_ratio == pytest.approx(0.5e6)
    assert gap(0.01, 0.5).fooling_ratio == pytest.approx(50)


def test_the_prediction_gap_is_the_largest_change() -> None:
    one, other = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    x = torch.rand(9, 3, dtype=torch.float64, generator=rng())
    gap = compare(one, other, lambda m, x: x[:, None], x)
    a, b = one(x).detach(), other(x).detach()
    assert gap.scores == pytest.approx(max(abs(float(p - q)) for p, q in zip(a.flatten(), b.flatten(), strict=True)))
    assert gap.posteriors == pytest.approx(float((a.softmax(1) - b.softmax(1))[:, 0].abs().mean()))


maps = st.integers(0, 10_000).map(
    lambda s: (torch.rand(4, 9, 9, generator=rng(s)) * 4).floor().double() + (torch.arange(4) == 0).view(-1, 1, 1)
)


@given(a=maps, b=maps, distance=st.sampled_from(["l1", "spearman", "top", "ssim"]))
@settings(deadline=None, max_examples=40)
def test_distances_are_symmetric_scale_free_and_zero_for_equal_maps(a: Tensor, b: Tensor, distance: Distance) -> None:
    assert_close(map_distance(a, b, distance), map_distance(b, a, distance))
    if distance != "top":
        assert_close(map_distance(3 * a, b, distance), map_distance(a, b, distance))
    assert_close(map_distance(a, a, distance), torch.zeros(4, dtype=torch.float64))
    assert (map_distance(a, b, distance) >= -1e-12).all()


@given(a=maps, b=maps)
@settings(deadline=None, max_examples=20)
def test_rank_correlation_is_scipys(a: Tensor, b: Tensor) -> None:
    want = [1 - spearmanr(p.flatten(), q.flatten()).statistic for p, q in zip(a.numpy(), b.numpy(), strict=True)]
    np.testing.assert_allclose(map_distance(a, b, "spearman"), want, atol=1e-12)


@given(a=maps, b=maps)
@settings(deadline=None, max_examples=20)
def test_structural_similarity_is_scikit_images(a: Tensor, b: Tensor) -> None:
    metrics = pytest.importorskip("skimage.metrics")
    a, b = a + 1, b + 1
    top = [m.amax((1, 2), keepdim=True) for m in (a, b)]
    want = [
        1 - metrics.structural_similarity(p, q, data_range=1.0)
        for p, q in zip((a / top[0]).numpy(), (b / top[1]).numpy(), strict=True)
    ]
    # They leave out the windows that hang over the edge, as here.
    np.testing.assert_allclose(map_distance(a, b, "ssim"), want, atol=1e-10)


def test_top_is_the_share_of_the_highest_fifth() -> None:
    a = torch.arange(100.0).view(1, 10, 10)
    shifted = a.roll(10, 2).flatten(1).roll(10, 1).view(1, 10, 10)  # the highest row becomes the lowest
    assert float(map_distance(a, a, "top")) == 0
    assert float(map_distance(a, shifted, "top")) == pytest.approx(0.5)


def test_a_constant_map_correlates_with_nothing_but_another() -> None:
    flat, ramp = torch.ones(1, 9), torch.arange(9.0)[None]
    assert float(correlation(flat, ramp)) == 0
    assert float(correlation(flat, 2 * flat)) == 1
    assert float(correlation(ramp, -ramp)) == pytest.approx(-1)


def test_bad_input_is_refused_in_one_line(nets: dict[str, Net]) -> None:
    with pytest.raises(ShapeError, match="cannot be compared"):
        map_distance(torch.zeros(2, 3, 3), torch.zeros(2, 4, 4))
    with pytest.raises(AssayError, match="no distance 'l2'"):
        map_distance(torch.zeros(2, 3, 3), torch.zeros(2, 3, 3), "l2")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="nothing to fold"):
        fold_batch_norm(nets["one linear"].model)
    with pytest.raises(AssayError, match="nothing to reorder"):
        rescale(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval(), rng=rng())
    with pytest.raises(AssayError, match="training mode"):
        permute_channels(copy.deepcopy(nets["resnet"].model).train(), rng=rng())

    class Decides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(SubjectError, match="torch.fx cannot read"):
        rescale(Decides().eval(), rng=rng())
