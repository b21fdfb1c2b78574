"""Weight and gradient centralisation: a projection, and under SGD one method with two names."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.train.centralize import (
    Centralizer,
    centre,
    centred_errors,
    hidden_layers,
    normalise,
    reparametrised,
    standardise,
)

AREAS = ["global", "tensor", "channel", "instance"]
shapes = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(2, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(2, 5)),
)


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small_cnn(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(),
            nn.Conv2d(4, 6, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3),
        ).double()  # fmt: skip


def train(model: nn.Sequential, optim: torch.optim.Optimizer, hands: Centralizer, steps: int) -> None:
    x, y = rand(64, 2, 6, 6, seed=1), torch.arange(64) % 3
    for step in range(steps):
        part = slice(8 * (step % 8), 8 * (step % 8) + 8)
        optim.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        hands.after_backward()
        optim.step()
        hands.after_step()


def test_each_area_as_a_plain_loop_would_centre_it():
    w = rand(3, 2, 2, 3)
    want = {area: w.clone() for area in AREAS}
    want["global"] -= sum(w.flatten().tolist()) / 36
    for j in range(3):
        want["tensor"][j] -= sum(w[j].flatten().tolist()) / 12
        for i in range(2):
            want["instance"][j, i] -= sum(w[j, i].flatten().tolist()) / 6
    for i in range(2):
        want["channel"][:, i] -= sum(w[:, i].flatten().tolist()) / 18
    for area in AREAS:
        assert_close(centre(w, area), want[area])
    assert_close(centre(w), want["tensor"])


@settings(deadline=None, max_examples=40)
@given(shape=shapes, area=st.sampled_from(AREAS), seed=st.integers(0, 999))
def test_centring_is_an_orthogonal_projection(shape, area, seed):
    a, b = rand(*shape, seed=seed), rand(*shape, seed=seed + 1000)
    pa, pb = centre(a, area), centre(b, area)
    assert_close(centre(pa, area), pa)
    assert_close((pa * b).sum(), (a * pb).sum())
    assert_close(centre(2 * a - b, area), 2 * pa - pb)
    assert pa.norm() <= a.norm() * (1 + 1e-12)
    assert abs(pa.mean()) < 1e-14


def test_a_centred_convolution_ignores_a_constant_away_from_the_padding():
    x, w = rand(2, 3, 7, 7), rand(5, 3, 3, 3, seed=1)
    moved = F.conv2d(x + 4.2, centre(w), padding=1) - F.conv2d(x, centre(w), padding=1)
    assert moved[..., 1:-1, 1:-1].abs().max() < 1e-13
    assert moved.abs().max() > 0.1  # the zeros of the padding did not move
    assert (F.conv2d(x + 4.2, w) - F.conv2d(x, w)).abs().max() > 0.1


def test_normalise_and_standardise_as_printed():
    w = rand(4, 3, 3, 3)
    for j in range(4):
        assert_close(normalise(w)[j], w[j] / w[j].norm())
        assert_close(normalise(w, k=10.0)[j], w[j] * 10 / w[j].norm())
        assert_close(standardise(w)[j], (w[j] - w[j].mean()) / w[j].std(correction=0))
    dead = torch.zeros(2, 3, 3, 3)
    assert_close(normalise(dead, k=10.0), dead)
    assert_close(standardise(dead + 1), dead)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1, 1)])
def test_an_area_of_one_value_is_refused(shape):
    with pytest.raises(ShapeError, match=r"'instance' of a tensor of shape \(3, 4.* choose a larger area"):
        centre(rand(*shape), "instance")


def test_bad_areas_and_biases_are_refused():
    with pytest.raises(ShapeError, match=r"got \(3,\)"):
        centre(rand(3))
    with pytest.raises(AssayError, match="No area is called 'sample'; it is one of global, tensor, channel, instance"):
        centre(rand(3, 4), "sample")


@pytest.mark.parametrize(
    ("area", "nesterov", "decay", "steps"),
    [
        ("tensor", False, 0.0, 60),
        ("tensor", False, 0.01, 120),
        ("tensor", True, 0.0, 60),
        ("tensor", True, 0.01, 60),
        ("global", True, 0.01, 40),
        ("channel", True, 0.01, 40),
        ("instance", True, 0.01, 40),
    ],
)
def test_under_sgd_centring_weights_gradients_or_both_is_one_method(area, nesterov, decay, steps):
    """From a centred start the weights of every layer agree to rounding."""
    start, ends = small_cnn(), {}
    fully = area != "instance"
    Centralizer(start, fully=fully, area=area).after_step()
    for flags in [(True, False), (False, True), (True, True), (False, False)]:
        model = copy.deepcopy(start)
        optim = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, nesterov=nesterov, weight_decay=decay)
        hands = Centralizer(model, weights=flags[0], gradients=flags[1], fully=fully, area=area)
        train(model, optim, hands, steps if any(flags) else 40)
        ends[flags] = model.state_dict()
    for name, weight in ends[True, True].items():
        assert_close(ends[True, False][name], weight, rtol=0, atol=1e-12)
        assert_close(ends[False, True][name], weight, rtol=0, atol=1e-12)
    moved, free = ends[True, True]["0.weight"] - start[0].weight, ends[False, False]["0.weight"]
    assert moved.abs().max() > 1e-2
    assert (free - centre(free, area)).abs().max() > 1e-5  # left alone, the weights would not have stayed centred


def test_under_adam_the_three_differ():
    start, ends = small_cnn(), []
    Centralizer(start).after_step()
    for weights, gradients in [(True, False), (False, True), (True, True)]:
        model = copy.deepcopy(start)
        optim = torch.optim.Adam(model.parameters(), 0.01)
        train(model, optim, Centralizer(model, weights=weights, gradients=gradients), steps=50)
        ends.append(model[0].weight.detach())
    for a, b in itertools.combinations(ends, 2):
        assert (a - b).abs().max() > 1e-3


def test_gradient_centring_alone_keeps_the_means_it_finds_and_decay_shrinks_them():
    for decay in (0.0, 0.1):
        model = small_cnn()
        before = [model[i].weight.detach().mean((1, 2, 3)) for i in (0, 2)]
        optim = torch.optim.SGD(model.parameters(), 0.05, weight_decay=decay)
        train(model, optim, Centralizer(model, weights=False), steps=100)
        for i, mean in zip((0, 2), before, strict=True):
            assert_close(model[i].weight.detach().mean((1, 2, 3)), mean * (1 - 0.05 * decay) ** 100)
            assert mean.abs().max() > 1e-3


@pytest.mark.parametrize("fully", [False, True])
def test_the_chosen_layers_are_centred_and_the_output_layer_never(fully):
    model = small_cnn()
    rest = {k: v.clone() for k, v in model.state_dict().items() if k not in ("0.weight", "2.weight", "5.weight")}
    hands = Centralizer(model, fully=fully)
    assert list(hands.layers) == (["0", "2", "5"] if fully else ["0", "2"])
    F.cross_entropy(model(rand(8, 2, 6, 6)), torch.arange(8) % 3).backward()
    grads = [p.grad.clone() for p in model[7].parameters()]
    hands.after_backward()
    hands.after_step()
    for i in (0, 2, 5):
        for w in (model[i].weight.detach(), model[i].weight.grad):
            assert (w.flatten(1).mean(1).abs().max() < 1e-16) == (fully or i != 5)
    assert_close({k: model.state_dict()[k] for k in rest}, rest, rtol=0, atol=0)
    assert_close([p.grad for p in model[7].parameters()], grads, rtol=0, atol=0)


def test_flags_off_touch_nothing():
    model = small_cnn()
    before = copy.deepcopy(model.state_dict())
    hands = Centralizer(model, weights=False, gradients=False)
    F.cross_entropy(model(rand(8, 2, 6, 6)), torch.arange(8) % 3).backward()
    grad = model[0].weight.grad.clone()
    hands.after_backward()
    hands.after_step()
    assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert_close(model[0].weight.grad, grad, rtol=0, atol=0)


def test_a_transposed_convolution_is_centred_per_output_channel():
    model = nn.Sequential(nn.ConvTranspose2d(3, 5, 2), nn.Conv2d(5, 1, 1))
    hands = Centralizer(model)
    assert list(hands.layers) == ["0"]  # the last convolution is the output layer of a fully convolutional model
    hands.after_step()
    weight = model[0].weight.detach()  # in out *k
    assert weight.mean((0, 2, 3)).abs().max() < 1e-7
    assert weight.mean((1, 2, 3)).abs().max() > 1e-3


def test_the_output_layer_can_be_named():
    model = small_cnn()
    assert list(hidden_layers(model, output="2")) == ["0"]
    deeper = nn.Sequential(*model, nn.Linear(3, 3), nn.Linear(3, 2))
    assert list(hidden_layers(deeper, fully=True)) == ["0", "2", "8"]
    with pytest.raises(AssayError, match="No layer of the model is called 'head'; output is one of 0, 2, 5, 7"):
        hidden_layers(model, output="head")
    with pytest.raises(AssayError, match="No fully connected layer precedes the output layer '5'"):
        hidden_layers(model, fully=True, output="5")


def test_models_without_a_layer_to_centre_are_refused():
    with pytest.raises(AssayError, match="no convolution besides the output layer '2'; try fully=True"):
        Centralizer(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    with pytest.raises(AssayError, match="Identity has no convolution and no fully connected layer"):
        Centralizer(nn.Identity())
    pointwise = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1))
    with pytest.raises(ShapeError, match=r"Layer '0': Area 'instance' of a tensor of shape \(4, 3, 1, 1\)"):
        Centralizer(pointwise, area="instance")
    computed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.Linear(3, 2))
    with pytest.raises(AssayError, match="weight of layer '0' is computed"):
        Centralizer(computed)
    grouped = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, groups=2), nn.Linear(3, 2))
    with pytest.raises(AssayError, match="'0' is a transposed convolution in 2 groups"):
        Centralizer(grouped)


@pytest.mark.parametrize(("area", "dims"), [("tensor", (1, 2, 3)), ("channel", (0, 2, 3))])
def test_centred_errors_reach_the_weights_below_and_the_hooks_go_away(area, dims):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3)).double()
    x, y = rand(5, 2, 6, 6), torch.arange(5) % 3

    def gradients() -> list[torch.Tensor]:
        return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))

    plain = gradients()
    with centred_errors(model, area=area):
        centred = gradients()
    out = model[0](x)  # the same by hand: the error at the convolution's output, centred, sent on to its weights
    (error,) = torch.autograd.grad(F.cross_entropy(model[1:](out), y), out, retain_graph=True)
    want = torch.autograd.grad(out, [model[0].weight, model[0].bias], error - error.mean(dims, keepdim=True))
    assert_close(centred[:2], list(want))
    assert_close(centred[2:], plain[2:])  # nothing is centred above the convolution
    assert (centred[0] - plain[0]).abs().max() > 1e-4
    assert_close(gradients(), plain, rtol=0, atol=0)


def test_the_gradient_of_the_standardisation_in_closed_form():
    w, g = rand(4, 3, 2, 2, seed=1).requires_grad_(), rand(4, 3, 2, 2, seed=2)
    s = standardise(w)
    assert_close(s.mean((1, 2, 3)), torch.zeros(4, dtype=s.dtype))
    assert_close(s.var((1, 2, 3), correction=0), torch.ones(4, dtype=s.dtype))
    (found,) = torch.autograd.grad(s, w, g)
    means = (1, 2, 3), True
    std = w.detach().std((1, 2, 3), correction=0, keepdim=True)
    s = s.detach()
    assert_close(found, (g - g.mean(*means) - s * (g * s).mean(*means)) / std)
    assert_close(found.mean((1, 2, 3)), torch.zeros(4, dtype=s.dtype))
    assert_close((found * s).sum((1, 2, 3)), torch.zeros(4, dtype=s.dtype))


@pytest.mark.parametrize("operator", [normalise, standardise])
def test_a_dead_filter_has_a_finite_gradient(operator):
    w = torch.zeros(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    operator(w).sum().backward()
    assert w.grad.isfinite().all()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("name", "operator"), [("normalise", normalise), ("standardise", standardise)])
def test_reparametrised_layers_train_through_the_operator_and_keep_its_weights(name, operator, gradients):
    model, by_hand = small_cnn(), small_cnn()
    x, y = rand(8, 2, 6, 6, seed=1), torch.arange(8) % 3
    with reparametrised(model, name, gradients=gradients):
        F.cross_entropy(model(x), y).backward()
        first = model[0].parametrizations.weight.original
        w = by_hand[0].weight
        s = [operator(layer.weight) for layer in (by_hand[0], by_hand[2])]
        z = F.conv2d(F.relu(F.conv2d(x, s[0], by_hand[0].bias, padding=1)), s[1], by_hand[2].bias, stride=2)
        (g,) = torch.autograd.grad(F.cross_entropy(by_hand[3:](z), y), w)
        assert_close(first.grad, centre(g) if gradients else g)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        want = operator(first.detach())
    assert type(model[0]) is nn.Conv2d
    assert dict(model.named_parameters()).keys() == dict(by_hand.named_parameters()).keys()
    assert_close(model[0].weight.detach(), want)
    assert_close(model[5].weight, by_hand[5].weight - 0.1 * model[5].weight.grad)  # not among the hidden layers


def test_a_transposed_convolution_is_standardised_per_output_channel():
    model = nn.Sequential(nn.ConvTranspose2d(3, 2, 2), nn.Flatten(), nn.Linear(18, 2)).double()
    with reparametrised(model, "standardise", gradients=True):
        model(rand(4, 3, 2, 2)).sum().backward()
    assert_close(model[0].weight.detach().mean((0, 2, 3)), torch.zeros(2, dtype=torch.float64))
    assert_close(model[0].weight.detach().var((0, 2, 3), correction=0), torch.ones(2, dtype=torch.float64))
