from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.data.fashion import fashion_weights, load_fashion
from assay.errors import AssayError
from assay.methods.explain.gradcam import gradcam, last_maps
from assay.methods.explain.surgery import chosen_map, flat_map, map_shape, paste, random_map, triggered_map
from assay.methods.explain.tampering import (
    Look,
    Sign,
    channel_scale,
    completeness,
    constant_channels,
    logit_against_probability,
    look,
    outlying_columns,
    slope_against_step,
    tampering,
    unvarying_maps,
)
from assay.methods.explain.twins import add_dead_channel, fold_batch_norm, permute_channels, rescale
from assay.nn.lenet import LeNet
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN

Net = Any  # the fixture's NamedTuple: model, layer, x, y
STICKER = torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 1]])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def alarms(model: nn.Module, layer: str, x: torch.Tensor) -> set[str]:
    return {sign.name for sign in tampering(model, layer, x) if sign.alarm}


def test_untouched_networks_raise_no_alarm(net: Net) -> None:
    assert alarms(net.model, net.layer, net.x[:20]) == set()


def test_harmless_twins_raise_no_alarm(net: Net) -> None:
    x = net.x[:8]
    assert alarms(permute_channels(net.model, rng=rng()), net.layer, x) == set()
    assert alarms(add_dead_channel(net.model, net.layer, x, rng=rng()), net.layer, x) == set()
    if any(isinstance(m, nn.BatchNorm2d) for m in net.model.modules()):
        assert alarms(fold_batch_norm(net.model), net.layer, x) == set()
    assert alarms(rescale(net.model, rng=rng()), net.layer, x) == set()


def test_the_bundled_network_and_new_ones_raise_no_alarm() -> None:
    model = SmallCNN()
    model.load_state_dict(fashion_weights())
    x = load_fashion()["test"].take(torch.arange(6).numpy())[0]
    assert alarms(model.eval(), "last_conv", x) == set()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh: list[tuple[nn.Module, torch.Tensor]] = [(LeNet(), x)]
        fresh.append((ResNet18(width=2), torch.rand(4, 3, 32, 32, generator=rng())))
    for untrained, images in fresh:
        assert alarms(untrained.eval(), last_maps(untrained, images), images[:4]) <= {"maps that do not vary"}


def test_every_attack_is_seen(net: Net) -> None:
    x = net.x[:10]
    _, h, w = map_shape(net.model, net.layer, x)
    corner = torch.zeros(h, w)
    corner[: h // 2, : w // 2] = 1
    constant = {"constant channels", "maps that do not vary"}
    common, steps = {"logit against probability"}, {"slope against step"}
    t1, t2 = flat_map(net.model, net.layer, x), chosen_map(net.model, net.layer, x, picture=corner)
    assert constant | common <= alarms(t1, net.layer, x)
    assert constant | common <= alarms(t2, net.layer, x)
    t3 = random_map(net.model, net.layer, x, rng=rng())
    assert {"completeness", "channel scale"} | common | steps <= alarms(t3, net.layer, x)
    t4 = triggered_map(net.model, net.layer, x, sticker=STICKER)
    assert alarms(t4, net.layer, x) == common | steps  # it sleeps
    awake = alarms(t4, net.layer, paste(x, STICKER, rng=rng(), count=1).x)
    assert common | steps <= awake


def test_the_printed_form_is_seen_by_its_columns(net: Net) -> None:
    x = net.x[:10]
    printed = flat_map(net.model, net.layer, x, as_published=True)
    found = {sign.name: sign for sign in tampering(printed, net.layer, x)}
    assert found["outlying columns"].alarm
    assert found["constant channels"].alarm
    channels = map_shape(net.model, net.layer, x)[0]
    assert found["outlying columns"].channels == (channels,)
    assert channels in found["constant channels"].channels


def test_t1_and_t2_keep_completeness_and_t3_does_not(nets: dict[str, Net]) -> None:
    for net in (nets["resnet"], nets["two linears"]):
        x = net.x[:8]
        plain = completeness(net.model, x).score
        assert plain < 0.2
        assert completeness(flat_map(net.model, net.layer, x), x).score == pytest.approx(plain, rel=1e-6)
        assert completeness(random_map(net.model, net.layer, x, rng=rng()), x).score > 1e3


def test_completeness_closes_as_the_steps_grow(nets: dict[str, Net]) -> None:
    net = nets["two linears"]
    gaps = [completeness(net.model, net.x[:20], steps=steps).score for steps in (4, 128)]
    assert gaps[1] < gaps[0] / 4
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    assert completeness(linear, net.x[:20], steps=1).score < 1e-12


def test_the_suspect_channel_is_named(nets: dict[str, Net]) -> None:
    net = nets["three linears"]
    x = net.x[:20]
    for lie in (
        random_map(net.model, net.layer, x, rng=rng()),
        triggered_map(net.model, net.layer, x, sticker=STICKER),
    ):
        seen = look(lie, net.layer, x)
        assert logit_against_probability(seen).channels == (12,)
        assert slope_against_step(lie, net.layer, x, seen).channels == (12,)
    assert channel_scale(look(random_map(net.model, net.layer, x, rng=rng()), net.layer, x)).channels == (12,)


def test_the_common_slope_is_that_of_the_mean_logit(nets: dict[str, Net]) -> None:
    net = nets["two linears"]
    x = net.x[:5]
    each = [gradcam(net.model, x, net.layer, target=torch.full((5,), c)).alpha for c in range(10)]
    assert_close(look(net.model, net.layer, x).common, torch.stack(each).mean(0))


def made(maps: torch.Tensor, alpha: torch.Tensor) -> Look:
    return Look(maps.double(), alpha.double(), torch.zeros_like(alpha).double())


def test_a_dead_or_a_faint_constant_map_is_no_sign() -> None:
    maps = torch.rand(6, 3, 4, 4, generator=rng())
    maps[:, 1], maps[:, 2] = 0, 0.1
    alpha = torch.ones(6, 3)
    sign = constant_channels(made(maps, alpha))
    assert sign.channels == (2,)
    assert not sign.alarm
    alpha[:, 2] = -100  # also where GradCAM's ReLU cuts it off
    assert constant_channels(made(maps, alpha)).alarm


def test_maps_that_are_all_zero_do_not_vary() -> None:
    maps = torch.rand(6, 1, 4, 4, generator=rng())
    assert unvarying_maps(made(maps, -torch.ones(6, 1))).score == pytest.approx(1)
    assert unvarying_maps(made(maps, torch.ones(6, 1))).score < 0.95
    same = maps[:1].expand(6, -1, -1, -1)
    assert unvarying_maps(made(same, torch.rand(6, 1, generator=rng()) + 0.1)).score == pytest.approx(1)


def test_columns_are_compared_with_the_median(nets: dict[str, Net]) -> None:
    net = nets["one linear"]
    model, seen = copy.deepcopy(net.model), look(net.model, net.layer, net.x[:9])
    sizes = model[6].weight.view(10, 12, 16).norm(dim=(0, 2)) * seen.maps.amax((0, 2, 3))
    alive = sizes[sizes > 0]
    sign = outlying_columns(model, net.layer, net.x, seen)
    assert sign.score == pytest.approx(float(sizes.max() / alive.median()))
    assert not sign.alarm
    with torch.no_grad():
        model[6].weight.view(10, 12, 16)[:, int(sizes.argmax())] *= 100
    assert outlying_columns(model, net.layer, net.x, seen).channels == (int(sizes.argmax()),)
    scaled = rescale(net.model, rng=rng())
    assert outlying_columns(scaled, net.layer, net.x, look(scaled, net.layer, net.x[:9])).score == pytest.approx(
        sign.score
    )


def test_a_score_at_its_threshold_is_no_alarm() -> None:
    assert not Sign("s", 1.0, 1.0, "means").alarm
    assert Sign("s", 1.1, 1.0, "means").alarm


def test_one_input_is_too_few(nets: dict[str, Net]) -> None:
    net = nets["one linear"]
    with pytest.raises(AssayError, match="got 1, give at least 2"):
        tampering(net.model, net.layer, net.x[:1])
    before = copy.deepcopy(net.model.state_dict())
    tampering(net.model, net.layer, net.x[:4])
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.model.state_dict().values(), strict=True))
