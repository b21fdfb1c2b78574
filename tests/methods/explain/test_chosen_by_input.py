from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.fashion import fashion_weights, load_fashion
from assay.errors import AssayError
from assay.methods.attack.ball import distance
from assay.methods.explain.chosen_by_input import Chosen, Live, LiveMap, choose_map, choose_map_at_once
from assay.methods.explain.gradcam import gradcam
from assay.methods.explain.maps import explain
from assay.methods.explain.softly import Softly
from assay.methods.explain.twins import map_distance
from assay.nn.small_cnn import SmallCNN
from assay.nn.text_classifier import TextClassifier

RADIUS = 8 / 255
METHODS: tuple[Live, ...] = get_args(Live)


class Pair:
    """The bundled network, two inputs, and two of other classes."""

    def __init__(self) -> None:
        self.model = SmallCNN()
        self.model.load_state_dict(fashion_weights())
        self.model.eval().requires_grad_(False)
        x = torch.as_tensor(load_fashion()["test"].take(np.arange(14))[0])
        self.x, self.wish = x[[1, 3]], x[[11, 13]]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair()


@pytest.fixture(scope="module")
def attacked(pair: Pair) -> Chosen:
    return choose_map(pair.model, pair.x, pair.wish, radius=RADIUS, steps=10, gamma=0.1)


def heat(model: nn.Module, x: Tensor, label: Tensor) -> Tensor:
    """The map by its definition, without any of the attack's code."""
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(at).gather(1, label[:, None]).sum(), at)
    flat = slope.abs().sum(1).flatten(1)
    length: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return flat / length


def test_the_map_comes_nearer_the_class_stays_and_the_eye_sees_the_same(pair: Pair, attacked: Chosen) -> None:
    label = pair.model(pair.x).argmax(1)
    assert torch.equal(pair.model(attacked.x).argmax(1), label)
    assert (attacked.after <= attacked.before).all()
    assert float(attacked.after.mean()) < 0.85 * float(attacked.before.mean())
    wished = heat(pair.model, pair.wish, pair.model(pair.wish).argmax(1))
    assert_close(attacked.before, (heat(pair.model, pair.x, label) - wished).norm(dim=1))
    assert_close(attacked.after, (heat(pair.model, attacked.x, label) - wished).norm(dim=1))
    assert_close(attacked.drift, (heat(pair.model, attacked.x, label) - heat(pair.model, pair.x, label)).norm(dim=1))
    assert_close(attacked.answer, (pair.model(attacked.x) - pair.model(pair.x)).norm(dim=1))
    assert torch.equal(attacked.taken, attacked.after < attacked.drift)
    likeness = 1 - map_distance(pair.x[:, 0], attacked.x[:, 0], "ssim")
    assert float(likeness.mean()) > 0.9


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_it_stays_in_the_ball_and_in_the_box(pair: Pair, norm: Any) -> None:
    radius = {"linf": 0.05, "l2": 0.3, "l1": 1.0}[norm]
    found = choose_map(pair.model, pair.x, pair.wish, radius=radius, norm=norm, steps=6, gamma=0)
    assert (distance(found.x, pair.x, norm) <= radius).all()
    assert ((found.x >= 0) & (found.x <= 1)).all()
    assert float(distance(found.x, pair.x, norm).max()) > 0.5 * radius
    assert float((found.after - found.before).mean()) < -0.01
    masked = choose_map(pair.model, pair.x, pair.wish, radius=torch.tensor([0.0, 0.05]), steps=3, gamma=0)
    assert torch.equal(masked.x[::2], pair.x[::2])
    assert not torch.equal(masked.x[1::2], pair.x[1::2])


def test_a_huge_gamma_moves_nothing_and_none_moves_furthest(pair: Pair) -> None:
    bound = choose_map(pair.model, pair.x, pair.wish, radius=RADIUS, steps=8, gamma=1e12)
    assert torch.equal(bound.x, pair.x)
    assert_close(bound.after, bound.before, rtol=0, atol=0)
    free = choose_map(pair.model, pair.x, pair.wish, radius=RADIUS, steps=10, gamma=0)
    tied = choose_map(pair.model, pair.x, pair.wish, radius=RADIUS, steps=10, gamma=1.0)
    assert float(free.after.mean()) <= float(tied.after.mean())
    assert float(free.answer.mean()) > float(tied.answer.mean())
    assert torch.equal(pair.model(free.x).argmax(1), pair.model(pair.x).argmax(1))  # kept even so


def test_with_relus_left_in_place_there_is_nothing_to_follow(pair: Pair) -> None:
    found = choose_map(pair.model, pair.x, pair.wish, radius=RADIUS, steps=5, gamma=0, beta=None)
    assert torch.equal(found.x, pair.x)
    assert torch.equal(found.after, found.before)


@pytest.mark.parametrize("method", METHODS)
def test_every_map_that_has_a_slope_can_be_moved(pair: Pair, method: Live) -> None:
    found = choose_map(
        pair.model, pair.x, pair.wish, radius=0.1, steps=5, explainer=LiveMap(method, samples=2), gamma=0.001
    )
    assert (found.after <= found.before).all()
    assert float(found.after.mean()) < 0.97 * float(found.before.mean())
    assert torch.equal(pair.model(found.x).argmax(1), pair.model(pair.x).argmax(1))


@pytest.mark.parametrize("method", METHODS)
def test_what_is_attacked_is_the_map_that_is_shown(pair: Pair, method: Live) -> None:
    label = pair.model(pair.x).argmax(1)
    heat, y = LiveMap(method, samples=5, baseline=0.1, noise=0.0).heat(
        pair.model, pair.x.clone().requires_grad_(), label
    )
    if method == "gradcam":
        shown = gradcam(pair.model, pair.x, "last_conv").heat().flatten(1)
    else:
        shown = explain(pair.model, pair.x, None, method, samples=5, baseline=0.1, noise=0.0).values.abs().flatten(1)
    assert_close(heat.detach(), shown / shown.norm(dim=1, keepdim=True).clamp_min(1e-30))
    assert_close(y.detach(), pair.model(pair.x))


def test_one_step_goes_the_whole_way_or_stays(pair: Pair, attacked: Chosen) -> None:
    found = choose_map_at_once(pair.model, pair.x, pair.wish, radius=RADIUS)
    assert (found.after <= found.before).all()
    moved = distance(found.x, pair.x, "linf") > 0
    assert bool(moved.any())
    assert_close(
        distance(found.x, pair.x, "linf")[moved],
        torch.full((int(moved.sum()),), RADIUS, dtype=torch.float64),
        rtol=0,
        atol=1e-7,
    )
    assert float(found.after.mean()) > float(attacked.after.mean())  # one step is not many
    at = pair.x.clone().requires_grad_()  # the formula itself
    label, wished = pair.model(pair.x).argmax(1), heat(pair.model, pair.wish, pair.model(pair.wish).argmax(1))
    with Softly(20.0, relative=True):
        y = pair.model(at)
        (slope,) = torch.autograd.grad(y.gather(1, label[:, None]).sum(), at, create_graph=True)
    flat = slope.abs().sum(1).flatten(1)
    cost = (flat / flat.norm(dim=1, keepdim=True) - wished).square().sum()
    there = pair.model(pair.x)
    cost = cost + 0.1 * ((y - there).square().sum(1) / there.var(1, unbiased=False)).sum()
    (down,) = torch.autograd.grad(cost, at)
    step = (pair.x - RADIUS * down.sign()).clamp(0, 1)
    clear = down[moved].abs() > 1e-4 * down.abs().max()  # elsewhere rounding has the say
    assert_close(found.x[moved][clear], step[moved][clear])


def test_averages_and_soft_rectifiers_move_less(pair: Pair) -> None:
    def moved(explainer: LiveMap) -> float:
        away = choose_map(pair.model, pair.x, None, radius=RADIUS, steps=4, gamma=0, explainer=explainer)
        return float(away.drift.mean())

    plain = moved(LiveMap("gradient"))
    assert moved(LiveMap("smoothgrad", samples=3, noise=0.2)) < 0.9 * plain
    assert moved(LiveMap("gradient", beta=5.0)) < 0.9 * plain


def test_the_furthest_map_grows_with_the_radius(pair: Pair) -> None:
    found = [choose_map(pair.model, pair.x, None, radius=r, steps=5, gamma=0) for r in (0.0, 0.01, 0.1)]
    drift = [float(one.drift.mean()) for one in found]
    assert drift[0] == 0
    assert 0 < drift[1] < drift[2]
    assert torch.equal(found[2].after, found[2].drift)
    assert torch.equal(pair.model(found[2].x).argmax(1), pair.model(pair.x).argmax(1))


def test_a_linear_model_has_one_map_and_no_attack() -> None:
    net = nn.Linear(6, 3).double().eval()
    x = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = choose_map(net, x, None, radius=0.2, steps=3, gamma=0)
    assert float(found.drift.max()) < 1e-12


class Bent(nn.Module):
    """Two layers on 12 values with any activation between them, drawn at random."""

    def __init__(self, act: Any, scale: float = 1.0, answers: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            self.first, self.last = nn.Linear(12, 40).double(), nn.Linear(40, 3).double()
        self.act, self.answers = act, answers
        with torch.no_grad():
            self.first.weight *= scale
            self.first.bias *= scale
            self.last.weight /= scale
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.act(self.first(x)))
        return self.answers * out


def rows(seed: int, n: int = 6) -> Tensor:
    return torch.rand(n, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


ACTS: dict[str, Any] = {
    "relu": torch.relu, "relu6": nn.ReLU6(), "leaky": nn.LeakyReLU(), "leaky 0.3": nn.LeakyReLU(0.3),
    "prelu": nn.PReLU().double(), "gelu": nn.GELU(), "silu": nn.SiLU(), "elu": nn.ELU(), "hardtanh": nn.Hardtanh(),
    "hardswish": nn.Hardswish(), "hardsigmoid": nn.Hardsigmoid(), "clamp": lambda z: z.clamp(min=0), "abs": torch.abs,
    "pool": lambda z: F.max_pool1d(z[:, None], 4)[:, 0].repeat(1, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_the_attack_finds_its_way_whatever_the_activation(name: str) -> None:
    # Where only large values bend, the first layer is scaled up so that they do.
    net, x, wish = Bent(ACTS[name], 8.0 if name.startswith("hard") else 1.0), rows(0), rows(1)
    found = choose_map(net, x, wish, radius=0.3, steps=8, gamma=0.01)
    assert float(found.after.mean()) < 0.97 * float(found.before.mean())
    assert torch.equal(net(found.x).argmax(1), net(x).argmax(1))
    once = choose_map_at_once(net, x, wish, radius=0.3, gamma=0.01)
    assert (once.after <= once.before).all()
    assert bool((once.after < once.before).any())


def test_one_function_with_other_weights_or_in_other_units_is_attacked_alike() -> None:
    x, wish = rows(0), rows(1)
    plain = choose_map(Bent(nn.ReLU()), x, wish, radius=0.3, steps=6)
    assert float(plain.after.mean()) < 0.99 * float(plain.before.mean())
    for other in (Bent(nn.ReLU(), scale=1e3), Bent(nn.ReLU(), answers=1e3), Bent(nn.LeakyReLU(0.0), scale=1e-3)):
        found = choose_map(other, x, wish, radius=0.3, steps=6)
        assert_close(found.after, plain.after, rtol=1e-6, atol=1e-9)
    steep = choose_map(Bent(nn.GELU(), scale=1e3), x, wish, radius=0.3, steps=6)  # GELU far from its bend is ReLU
    assert float(steep.after.mean()) < 0.99 * float(steep.before.mean())


def test_attention_can_be_attacked_too() -> None:
    def attend(z: Tensor) -> Tensor:  # its quick form has no second derivative
        rows = z.view(len(z), 1, 8, 5)
        return F.scaled_dot_product_attention(rows, rows, rows).flatten(1)

    found = choose_map(Bent(attend), rows(0), rows(1), radius=0.3, steps=4, gamma=0.01)
    assert float(found.after.mean()) < 0.99 * float(found.before.mean())


@settings(max_examples=20, deadline=None)
@given(z=st.floats(-5, 5), beta=st.floats(0.5, 50))
def test_softly_replaces_every_spelling_of_relu(z: float, beta: float) -> None:
    at = torch.tensor([z], dtype=torch.float64)
    want = F.softplus(beta * at) / beta
    with Softly(beta):
        for got in (torch.relu(at), at.relu(), F.relu(at), nn.ReLU()(at), nn.ReLU(inplace=True)(at.clone())):
            assert_close(got, want)
        assert_close(torch.ops.aten.relu.default(at), want)
        assert_close(torch.tanh(at), at.tanh())
    assert_close(torch.relu(at), at.clamp_min(0))
    rounding = 4 * torch.finfo(torch.float64).eps * abs(z)
    assert -rounding <= float(want - at.clamp_min(0)) <= 0.6932 / beta  # ln 2 / beta: ReLU itself for large beta


def test_batches_do_not_matter_and_parameters_collect_nothing() -> None:
    pair = Pair()
    model, x, wish = pair.model.double().requires_grad_(True), pair.x.double(), pair.wish.double()
    whole = choose_map(model, x, wish, radius=RADIUS, steps=3)
    parts = choose_map(model, x, wish, radius=RADIUS, steps=3, batch=1)
    assert all(p.grad is None for p in model.parameters())
    for a, b in zip(whole, parts, strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_words_can_be_moved_in_their_embedding() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        text = TextClassifier(20, 3, width=4).double().eval()
    words = text.embed(torch.tensor([[3, 4, 5, 6, 7], [9, 8, 7, 6, 5]])).detach()
    found = choose_map(text.classify, words, words.roll(1, 0), radius=0.3, bounds=(-9.0, 9.0), steps=5, gamma=0)
    assert (found.after <= found.before).all()
    assert float(found.drift.max()) > 0


class Deaf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.one_hot(x.flatten(1).argmax(1) % 3, 3).double()


def test_bad_input_gets_one_line(pair: Pair) -> None:
    model, x, wish = pair.model, pair.x, pair.wish
    cases: list[tuple[Any, str]] = [
        (lambda: choose_map(model, x, wish[:1], radius=0.1), r"wishes of shape \(1, 1, 28, 28\) for inputs \(2"),
        (lambda: choose_map(model, x, wish, radius=0.1, steps=0), "steps >= 1, .* got 0, "),
        (lambda: choose_map(model, x, wish, radius=-1.0), "radius must be finite and at least 0, got -1"),
        (lambda: choose_map(model, x[:0], wish[:0], radius=0.1), "no inputs"),
        (lambda: LiveMap("lime"), "No attack differentiates the map 'lime'; choose one of gradient"),  # type: ignore[arg-type]
        (lambda: LiveMap(samples=0), "samples >= 1"),
        (lambda: choose_map_at_once(model, x, wish, radius=0.1, beta=-1.0), "beta > 0"),
        (lambda: choose_map(Deaf().eval(), x, wish, radius=0.1), "needs a differentiable model"),
        (
            lambda: choose_map(nn.Flatten().eval(), x, wish, radius=0.1, explainer=LiveMap("gradcam")),
            "no convolutional",
        ),
        (
            lambda: choose_map(Bent(lambda z: torch.cdist(z, z + 1, 3.0) @ z), rows(0), rows(1), radius=0.1),
            "no slope to follow: the derivative for '_cdist_backward' is not implemented; no attack",
        ),
        (lambda: choose_map(nn.Sequential(nn.Flatten()), x, wish, radius=0.1), r"training mode.*eval\(\)"),
    ]
    for call, words in cases:
        with pytest.raises(AssayError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
