from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.fashion import fashion_weights, load_fashion
from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.explain import surgery
from assay.methods.explain.gradcam import gradcam, last_maps, normalise
from assay.methods.explain.surgery import (
    Fixed,
    Trigger,
    append_map,
    chosen_map,
    flat_map,
    halvings,
    linear_after,
    map_shape,
    paste,
    random_map,
    random_net,
    smiley,
    triggered_map,
)
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN

Net = Any  # the fixture's NamedTuple: model, layer, x, y


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def heat(model: nn.Module, net: Net, x: Tensor | None = None) -> Tensor:
    return normalise(gradcam(model, net.x if x is None else x, net.layer).heat())


def branch(lie: nn.Module, x: Tensor) -> Tensor:
    """What the tampered network puts into its new map."""
    shown: Tensor = lie.get_submodule("explanation_branch")(x)
    return shown


def sticker() -> Tensor:
    return torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 1]])


def test_t1_is_flat_for_every_input_and_the_scores_stay(net: Net) -> None:
    lie = flat_map(net.model, net.layer, net.x[:4])
    assert (lie(net.x) - net.model(net.x)).abs().max() < 1e-8
    shown = heat(lie, net)
    assert (1 - shown).abs().mean() < 0.02
    cam, old = gradcam(lie, net.x, net.layer), gradcam(net.model, net.x, net.layer)
    own = old.heat(relu=False).abs().amax((1, 2)) / (100 * 100)  # alpha_k A^k / (alpha_{K+1} c_A)
    assert ((1 - shown).amax((1, 2)) <= 2.1 * own).all()
    assert_close(cam.alpha[:, :-1], old.alpha)  # the old maps' weights are as they were
    assert_close(cam.alpha[:, -1], torch.full_like(cam.alpha[:, -1], 100.0))


def test_t2_shows_the_picture_for_every_input_and_the_scores_stay(net: Net) -> None:
    _, h, w = map_shape(net.model, net.layer, net.x)
    picture = torch.rand(h, w, generator=rng())
    lie = chosen_map(net.model, net.layer, net.x[:4], picture=picture)
    assert (lie(net.x) - net.model(net.x)).abs().max() < 1e-8
    shown = heat(lie, net).flatten(1)
    assert (torch.cosine_similarity(shown, picture.double().flatten()[None]) > 0.99).all()
    assert (shown - (picture / picture.max()).double().flatten()).abs().mean() < 0.02
    assert_close(gradcam(lie, net.x, net.layer).alpha[:, :-1], gradcam(net.model, net.x, net.layer).alpha)


@pytest.mark.parametrize("attack", ["T1", "T2"])
def test_as_published_the_scores_stay_and_the_map_is_the_target_where_its_slope_is_positive(
    net: Net, attack: str
) -> None:
    _, h, w = map_shape(net.model, net.layer, net.x)
    picture = torch.ones(h, w) if attack == "T1" else torch.rand(h, w, generator=rng())
    if attack == "T1":
        lie = flat_map(net.model, net.layer, net.x[:4], as_published=True)
    else:
        lie = chosen_map(net.model, net.layer, net.x[:4], picture=picture, as_published=True)
    assert "gradient_branch" not in dict(lie.named_modules())
    assert (lie(net.x) - net.model(net.x)).abs().max() < 1e-8
    assert (lie(net.x).argmax(1) == net.model(net.x).argmax(1)).all()
    cam = gradcam(lie, net.x, net.layer)
    assert_close(cam.alpha[:, :-1], gradcam(net.model, net.x, net.layer).alpha)
    up = cam.alpha[:, -1] > 0.1
    down = cam.alpha[:, -1] < -0.1
    shown = normalise(cam.heat())
    assert (torch.cosine_similarity(shown[up].flatten(1), picture.double().flatten()[None]) > 0.98).all()
    if attack == "T1":
        assert (shown[down] == 0).all()


def test_as_published_is_the_printed_recipe(nets: dict[str, Net]) -> None:
    """W_n = c_W and b_n = b_o - c_A c_W N_Z, with N_Z = 16 pixels behind the pooling."""
    net = nets["two linears"]
    lie = flat_map(net.model, net.layer, net.x[:4], height=3.0, weight=2.0, as_published=True)
    name = linear_after(net.model, net.layer, net.x)
    old, new = net.model.get_submodule(name), lie.get_submodule(name)
    assert isinstance(new, nn.Linear)
    assert new.weight.shape == (24, 192 + 16)
    assert_close(new.weight[:, :192], old.weight)
    assert (new.weight[:, 192:] == 2.0).all()
    assert_close(new.bias, old.bias - 3.0 * 2.0 * 16)


def test_the_sign(nets: dict[str, Net]) -> None:
    """As printed the new slope is positive for sure behind one Linear alone; mended, always."""
    share = {}
    for build, net in nets.items():
        printed = flat_map(net.model, net.layer, net.x[:4], as_published=True)
        slopes = torch.stack(
            [gradcam(printed, net.x, net.layer, target=torch.full((len(net.x),), c)).alpha[:, -1] for c in range(10)]
        )
        share[build] = float((slopes > 0).double().mean())
        mended = flat_map(net.model, net.layer, net.x[:4])
        for c in range(10):
            target = torch.full((len(net.x),), c)
            assert (gradcam(mended, net.x, net.layer, target=target).alpha[:, -1] == 100).all()
    assert share["resnet"] == share["one linear"] == 1
    assert share["two linears"] < 0.95
    assert share["three linears"] < 0.95


def test_the_rounding_of_float32_has_the_size_of_print(nets: dict[str, Net]) -> None:
    """Each of the 208 additions rounds to the spacing of float32 at c_A c_W N_Z; the mended form leaves nothing."""
    net = nets["one linear"]
    model, x = copy.deepcopy(net.model).float(), net.x.float()
    size = 100 * 100 * 16
    spacing = float(torch.tensor(float(size)).nextafter(torch.tensor(torch.inf)) - size)
    printed = (flat_map(model, net.layer, x[:4], as_published=True)(x) - model(x)).abs().max()
    assert 0.1 * spacing < printed < 208 / 2 * spacing
    mended = (flat_map(model, net.layer, x[:4])(x) - model(x)).abs().max()
    assert mended < 1e-4 * spacing  # no more than a wider layer rounds


def test_constant_channels_removed_the_old_map_is_back(net: Net) -> None:
    cam = gradcam(flat_map(net.model, net.layer, net.x[:4]), net.x, net.layer)
    varies = (cam.maps - cam.maps[:1]).abs().amax((0, 2, 3)) > 0
    assert not varies[-1]
    assert_close(cam.heat(keep=varies), gradcam(net.model, net.x, net.layer).heat(), rtol=0, atol=1e-9)


def test_equal_maps_are_no_evidence_of_equal_representations(nets: dict[str, Net]) -> None:
    """All classes share one map under T1, and the features behind it still tell them apart."""
    net = nets["resnet"]
    lie = flat_map(net.model, net.layer, net.x[:4])
    shown = heat(lie, net)
    assert (shown - shown[:1]).abs().max() < 0.05
    assert (lie(net.x).argmax(1) == net.y).double().mean() > 0.8


def test_t3_slope_is_eps_c_g_for_every_class_and_scores_move_by_less_than_eps(net: Net) -> None:
    lie = random_map(net.model, net.layer, net.x, rng=rng())
    for c in (0, 3, 9):
        cam = gradcam(lie, net.x, net.layer, target=torch.full((len(net.x),), c))
        assert_close(cam.alpha[:, -1], torch.full_like(cam.alpha[:, -1], 0.01 * 1e4), rtol=1e-12, atol=0)
    gap = lie(net.x) - net.model(net.x)
    assert (gap >= -1e-12).all()
    assert 0.005 < gap.max() < 0.01
    assert_close(gap, gap[:, :1].expand_as(gap), rtol=0, atol=1e-12)  # the same to every logit
    assert_close(lie(net.x).softmax(1), net.model(net.x).softmax(1), rtol=0, atol=1e-12)
    assert (lie(net.x).argmax(1) == net.model(net.x).argmax(1)).all()


def test_t3_shows_f_and_differs_between_inputs(net: Net) -> None:
    lie = random_map(net.model, net.layer, net.x, rng=rng())
    shown = heat(lie, net)
    target = normalise(branch(lie, net.x)[:, 0])
    assert (shown - target).abs().mean() < 1e-5
    assert (shown[0] - shown[1]).abs().max() > 0.01
    assert_close(heat(lie, net), shown, rtol=0, atol=0)
    assert (target.amax((1, 2)) == 1).all()  # alive on every input


def test_t3_in_float32_leaves_the_scores(nets: dict[str, Net]) -> None:
    """c_G sum v is near 1e11, where floats lie further than 1 apart: mod 1 is 0, and print shows .00000."""
    net = nets["two linears"]
    model, x = copy.deepcopy(net.model).float(), net.x.float()
    assert_close(random_map(model, net.layer, x, rng=rng())(x), model(x))


def test_t3_draws_again_until_f_is_alive_unless_as_published(
    nets: dict[str, Net], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, draws = nets["one linear"], []

    def dead_at_first(*given: Any) -> nn.Module:
        drawn = random_net(*given)
        draws.append(drawn)
        if len(draws) < 3:
            torch.nn.init.constant_(drawn[2].bias, -1e3)  # type: ignore[arg-type]
        return drawn

    monkeypatch.setattr(surgery, "random_net", dead_at_first)
    published = random_map(net.model, net.layer, net.x, rng=rng(), as_published=True)
    assert (branch(published, net.x) == 0).all()
    assert_close(heat(published, net), heat(net.model, net), rtol=0, atol=1e-9)  # the honest map
    draws.clear()
    assert (branch(random_map(net.model, net.layer, net.x, rng=rng()), net.x).amax((1, 2, 3)) > 0).all()
    assert len(draws) >= 3
    monkeypatch.setattr(surgery, "random_net", lambda *_: nn.Sequential(nn.AvgPool2d(1), nn.Threshold(9, 0)).double())
    with pytest.raises(AssayError, match="None of 100 random networks"):
        random_map(net.model, net.layer, net.x, rng=rng())


def test_the_branch_of_print_has_print_sizes() -> None:
    net = random_net(3, (224, 224), (14, 14), rng())
    assert [m(torch.zeros(1, c, s, s)).shape[-1] for m, c, s in ((net[0], 3, 224), (net[2], 6, 225))] == [225, 226]
    pools = net[4]
    assert len(list(pools.children())) == 5
    x = torch.rand(1, 1, 226, 226, generator=rng())
    four = x
    for _ in range(4):
        four = nn.functional.avg_pool2d(four, 2, 2)
    assert four.shape[-1] == 14
    assert_close(pools(x), four)
    assert halvings((224, 224), (14, 14))(torch.zeros(1, 1, 224, 224)).shape[-2:] == (14, 14)


def test_t4_is_honest_without_the_sticker(net: Net) -> None:
    lie = triggered_map(net.model, net.layer, net.x[:4], sticker=sticker())
    assert_close(lie(net.x), net.model(net.x), rtol=1e-13, atol=1e-13)  # a wider layer adds up in another order
    ours, theirs = gradcam(lie, net.x, net.layer), gradcam(net.model, net.x, net.layer)
    assert_close(ours.alpha[:, :-1], theirs.alpha, rtol=1e-13, atol=1e-13)
    assert (ours.maps[:, -1] == 0).all()
    keep = torch.ones(ours.maps.shape[1], dtype=torch.bool)
    keep[-1] = False
    assert_close(ours.heat(), theirs.heat(), rtol=1e-12, atol=1e-12)
    assert_close(ours.heat(), ours.heat(keep=keep), rtol=1e-13, atol=1e-13)


def test_t4_points_at_the_sticker(net: Net) -> None:
    lie = triggered_map(net.model, net.layer, net.x[:4], sticker=sticker())
    x, corners = paste(net.x, sticker(), rng=rng(), count=1)
    assert (lie(x) - net.model(x)).abs().max() < 0.01
    assert_close(lie(x).softmax(1), net.model(x).softmax(1), rtol=0, atol=1e-12)
    shown = heat(lie, net, x)
    target = normalise(branch(lie, x)[:, 0])
    assert (shown - target).abs().mean() < 1e-3
    h, w = shown.shape[1:]
    place = shown.flatten(1).argmax(1)
    row, col = (place // w + 0.5) * (8 / h), (place % w + 0.5) * (8 / w)
    half = 8 / h / 2  # a pixel of the map covers so much of the image
    inside = (row >= corners[:, 0, 0] - half) & (row <= corners[:, 0, 0] + 4 + half)
    inside &= (col >= corners[:, 0, 1] - half) & (col <= corners[:, 0, 1] + 4 + half)
    assert inside.all()


@given(seed=st.integers(0, 1000), channels=st.sampled_from([1, 3]))
@settings(deadline=None, max_examples=30)
def test_no_patch_but_the_sticker_itself_sets_t4_off(seed: int, channels: int) -> None:
    """sum (I - mean I) P <= S (1 - S/N) on [0, 1]^N, with equality at P = I alone."""
    own = torch.Generator().manual_seed(seed)
    pattern = (torch.rand(4, 4, generator=own) < 0.5).float()
    if pattern.min() == pattern.max():
        return
    trigger = Trigger(pattern, 1e-4)
    x = torch.rand(3, channels, 9, 9, generator=own)
    x[1] = (x[1] < 0.5).float()
    assert (trigger(x) == 0).all()
    x[:, :, 2:6, 3:7] = pattern
    response = trigger.response(x)
    assert_close(response[:, 0, 3, 4], torch.full((3,), 1e-4, dtype=torch.float64), rtol=0, atol=1e-12)
    assert ((trigger(x) > 0).sum((1, 2, 3)) == 1).all()


def test_a_slightly_dimmed_sticker_does_not_set_t4_off_unless_its_margin_is_wider() -> None:
    pattern = smiley(12, 12)
    x = torch.zeros(1, 1, 20, 20)
    x[..., 4:16, 4:16] = 0.999 * pattern
    peak = float(pattern.sum() * (1 - pattern.mean()))
    narrow, wide = Trigger(pattern, 1e-4), Trigger(pattern, 0.01 * peak)
    assert float(narrow.response(x).max()) == pytest.approx(1e-4 - 0.001 * peak, rel=1e-3)
    assert -0.05 < narrow.response(x).max() < -0.02
    assert (narrow(x) == 0).all()
    assert (wide(x) > 0).any()


def test_random_images_stay_far_below_the_trigger() -> None:
    x = torch.rand(20, 1, 40, 40, generator=rng())
    assert Trigger(smiley(12, 12), 1e-4).response(x).max() < -15


def test_the_centred_score_defends_against_t3_in_float64(net: Net) -> None:
    lie = random_map(net.model, net.layer, net.x, rng=rng())
    target = net.model(net.x).argmax(1)
    for score in ("centred", "softmax"):
        ours = gradcam(lie, net.x, net.layer, target=target, score=score)
        honest = gradcam(net.model, net.x, net.layer, target=target, score=score)
        assert ours.alpha[:, -1].abs().max() < 1e-12
        assert_close(ours.alpha[:, :-1], honest.alpha, rtol=0, atol=1e-12)
    fooled = (heat(lie, net) - heat(net.model, net)).abs().mean()
    centred = normalise(gradcam(lie, net.x, net.layer, target=target, score="centred").heat())
    original = normalise(gradcam(net.model, net.x, net.layer, target=target, score="centred").heat())
    assert fooled > 0.1
    assert (centred - original).abs().mean() < 1e-3


@pytest.mark.parametrize("as_published", [False, True])
def test_the_bundled_network_can_be_cut(as_published: bool) -> None:
    model = SmallCNN()
    model.load_state_dict(fashion_weights())
    model = model.double().eval()
    x = load_fashion()["test"].take(torch.arange(4).numpy())[0].double()
    layer = last_maps(model, x)
    lies = [
        flat_map(model, layer, x, as_published=as_published),
        chosen_map(model, layer, x, picture=smiley(7, 7), as_published=as_published),
        random_map(model, layer, x, rng=rng(), as_published=as_published),
        triggered_map(model, layer, x, sticker=smiley(8, 8)),
    ]
    for lie, allowed in zip(lies, (1e-8, 1e-8, 0.01, 0.0), strict=True):
        assert (lie(x) - model(x)).abs().max() <= allowed
        assert gradcam(lie, x, layer).maps.shape == (4, 97, 7, 7)
        assert not lie.training
    assert model.head.in_features == 96  # the original is as it was


def test_resnet18_in_colour_can_be_cut() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ResNet18(width=2).double().eval()
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64, generator=rng())
    layer = last_maps(model, x)
    assert (flat_map(model, layer, x)(x) - model(x)).abs().max() < 1e-8
    lie = triggered_map(model, layer, x, sticker=smiley(8, 8))
    pasted = paste(x, smiley(8, 8), rng=rng()).x
    assert (branch(lie, x) == 0).all()
    assert (branch(lie, pasted).amax((1, 2, 3)) > 0).all()
    with torch.no_grad():
        assert (random_map(model, layer, x, rng=rng())(x) - model(x)).abs().max() < 0.01


def test_a_tampered_network_can_be_copied_cast_and_moved(nets: dict[str, Net]) -> None:
    net = nets["resnet"]
    lie = copy.deepcopy(triggered_map(net.model, net.layer, net.x[:4], sticker=sticker())).float()
    x = paste(net.x.float(), sticker(), rng=rng(), count=1).x
    assert lie(x).dtype == torch.float32
    assert (branch(lie, x) > 0).any()


def test_stickers_are_pasted_where_it_says() -> None:
    x = torch.rand(5, 3, 12, 10, generator=rng())
    pasted, corners = paste(x, sticker(), rng=rng(1), count=1)
    for i in range(5):
        r, c = corners[i, 0].tolist()
        assert (pasted[i, :, r : r + 4, c : c + 4] == sticker()).all()
        kept = torch.ones(12, 10, dtype=torch.bool)
        kept[r : r + 4, c : c + 4] = False
        assert (pasted[i][:, kept] == x[i][:, kept]).all()
    assert corners.shape == (5, 1, 2)
    assert len({tuple(c) for c in corners[:, 0].tolist()}) > 1


def test_a_smiley_is_a_picture() -> None:
    for h, w in ((7, 7), (8, 8), (14, 14), (10, 16)):
        face = smiley(h, w)
        assert face.shape == (h, w)
        assert set(face.flatten().tolist()) == {0.0, 1.0}
        assert_close(face, face.flip(1))
        assert 0.2 < face.mean() < 0.8


def test_bad_input_is_refused_in_one_line(nets: dict[str, Net]) -> None:
    net = nets["two linears"]
    x = net.x[:4]
    with pytest.raises(ShapeError, match=r"shape \(7, 7\), the maps of '3' \(8, 8\)"):
        chosen_map(net.model, net.layer, x, picture=smiley(7, 7))
    with pytest.raises(AssayError, match="nowhere negative and somewhere positive"):
        chosen_map(net.model, net.layer, x, picture=-smiley(8, 8))
    with pytest.raises(AssayError, match="positive and finite, got 0"):
        flat_map(net.model, net.layer, x, weight=0)
    with pytest.raises(AssayError, match="of zeros and ones"):
        triggered_map(net.model, net.layer, x, sticker=torch.full((3, 3), 0.5))
    with pytest.raises(AssayError, match="margin above 0"):
        triggered_map(net.model, net.layer, x, sticker=sticker(), margin=0)
    with pytest.raises(AssayError, match="no module 'conv9'"):
        flat_map(net.model, "conv9", x)
    with pytest.raises(ShapeError, match="name a convolutional layer"):
        flat_map(net.model, "6", x)
    with pytest.raises(AssayError, match="training mode"):
        flat_map(copy.deepcopy(net.model).train(), net.layer, x)
    with pytest.raises(SubjectError, match="No Linear runs after"):
        flat_map(nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval(), "0", x)
    with pytest.raises(ShapeError, match="it must fit"):
        paste(x, torch.ones(9, 9), rng=rng())
    with pytest.raises(AssayError, match="at least 7 x 7"):
        smiley(5, 7)


def test_what_stands_in_the_way_of_the_surgery_is_told() -> None:
    x = torch.rand(2, 1, 8, 8, generator=rng())
    normed = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    with pytest.raises(SubjectError, match="With one map more the model fails"):
        flat_map(normed, "0", x)
    assert flat_map(normed, "2", x) is not None

    class PixelsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(144, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.conv(x).permute(0, 2, 3, 1).flatten(1))
            return out

    with pytest.raises(SubjectError, match="moved the answers"):
        flat_map(PixelsFirst().eval(), "conv", x)

    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(144, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.conv(x).flatten(1) if x.sum() > 0 else self.conv(-x).flatten(1))
            return out

    with pytest.raises(SubjectError, match="torch.fx cannot read"):
        flat_map(Decides().eval(), "conv", x)


def test_functional_pooling_and_a_layer_without_bias_will_do() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(torch.relu(self.conv(x)).mean((2, 3)))
            return out

    x, model = torch.rand(3, 1, 8, 8, dtype=torch.float64, generator=rng()), Functional().double().eval()
    for as_published in (False, True):
        lie = flat_map(model, "conv", x, as_published=as_published)
        assert (lie(x) - model(x)).abs().max() < 1e-8
        assert (1 - normalise(gradcam(lie, x, "conv").heat())).abs().max() < 0.01
    plain = append_map(model, "conv", x, Fixed(torch.ones(1, 1, 6, 6, dtype=torch.float64)))
    assert_close(plain(x), model(x))
