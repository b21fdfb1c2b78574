"""Weights as integers: how far they are off, what stays exact, what is really stored, and what slopes are left."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.compress.quantise import (
    GROUP,
    TOP,
    Bits,
    InIntegers,
    Rounded,
    RoundedByItself,
    in_floats,
    layers,
    packed,
    quantise,
    restored,
    seen_ranges,
    unpacked,
    whole,
)
from assay.methods.compress.weighed import stored


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    """Every kind of layer that is stored as integers, and some that are not."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1, groups=3)),
            *(nn.ConvTranspose2d(6, 4, 2, stride=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 5)),
        ).eval()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), rows=st.integers(1, 5), width=st.integers(1, 40), bits=st.sampled_from([8, 4]),
    group=st.sampled_from([None, 1, 3, 32]), power=st.integers(-100, 100),
)  # fmt: skip
def test_a_weight_is_off_by_half_a_step_and_zero_by_nothing(
    seed: int, rows: int, width: int, bits: Bits, group: int | None, power: int
) -> None:
    w = 2.0**power * drawn(rows, width, seed=seed)
    w[:, ::3] = 0
    made = whole(w, bits, group)
    back = in_floats(made.q, made.scale, group)
    step = made.scale.repeat_interleave(group or width, 1)[:, :width]
    assert ((w - back).abs() <= step / 2 * (1 + 1e-5)).all()
    assert (back[w == 0] == 0).all()
    assert int(made.q.abs().max()) <= TOP[bits]
    # the largest of each group takes the last step, so that no step is given away
    whole_rows = whole(w, bits)
    assert (whole_rows.q.abs().amax(1) == TOP[bits]).logical_or((w == 0).all(1)).all()


def test_integers_are_those_of_the_formula_written_plainly() -> None:
    w = drawn(3, 7)
    for c in range(3):
        scale = max(abs(float(v)) for v in w[c]) / 127
        wanted = [round(float(v) / scale) for v in w[c]]
        made = whole(w)
        assert made.q[c].tolist() == wanted
        assert float(made.scale[c, 0]) == pytest.approx(scale, rel=1e-6)


def test_a_scale_for_each_channel_is_never_coarser_than_one_for_all() -> None:
    w = drawn(4, 9) * torch.tensor([[1.0], [0.1], [0.01], [10.0]])
    each, one, groups = whole(w), whole(w.reshape(1, -1)), whole(w, group=3)
    assert (each.scale <= one.scale).all()
    assert (groups.scale <= each.scale).all()
    errors = [
        float((w - back.reshape(4, 9)).square().sum())
        for back in (in_floats(*groups, 3), in_floats(*each), in_floats(*one))
    ]
    assert errors[0] < errors[1] < errors[2]


def test_other_units_have_the_same_integers() -> None:
    w = drawn(4, 9)
    for bits in (8, 4):
        one, other = whole(w, bits, 4), whole(1024 * w, bits, 4)
        assert torch.equal(one.q, other.q)
        assert_close(other.scale, 1024 * one.scale)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 4), width=st.integers(1, 17))
def test_two_to_a_byte_come_back(seed: int, rows: int, width: int) -> None:
    q = torch.randint(-8, 8, (rows, width), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))
    bytes_ = packed(q)
    assert bytes_.dtype == torch.uint8
    assert bytes_.shape == (rows, (width + 1) // 2)
    assert torch.equal(unpacked(bytes_, width), q)


def test_weights_are_those_that_torch_rounds_to() -> None:
    """torch's own fake quantisation, with our scales."""
    w = drawn(5, 8)
    made = whole(w)
    theirs = torch.fake_quantize_per_channel_affine(
        w, made.scale[:, 0], torch.zeros(5, dtype=torch.int32), 0, -127, 127
    )
    assert_close(in_floats(*made), theirs)


@pytest.mark.parametrize(("bits", "share"), [(8, 0.40), (4, 0.33)])
def test_what_is_stored_is_really_smaller_and_loads_again(net: nn.Module, bits: Bits, share: float) -> None:
    before = {name: t.clone() for name, t in net.state_dict().items()}
    made = quantise(net, bits)
    assert stored(made) < share * stored(net)  # BatchNorm, biases and a scale for each small row stay floats
    sizes = []
    for each in (net, made):
        file = io.BytesIO()
        torch.save(each.state_dict(), file)
        sizes.append(len(file.getvalue()))
    assert sizes[1] < sizes[0]
    again = quantise(net, bits)
    for layer in layers(again).values():
        layer.stored.zero_()  # type: ignore[operator,union-attr]
    again.load_state_dict(made.state_dict())
    x = drawn(3, 1, 4, 4)
    assert torch.equal(again(x), made(x))
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert type(made[0]) is not type(net[0])  # type: ignore[index]
    assert isinstance(made[0], nn.Conv2d)  # type: ignore[index]


def test_a_network_in_integers_is_the_network_with_the_weights_they_stand_for(net: nn.Module) -> None:
    x = drawn(3, 1, 4, 4).requires_grad_()
    made = quantise(net, 4)
    plain = restored(made)
    assert not any(isinstance(m, InIntegers) for m in plain.modules())
    for a, b in zip(layers(made).values(), layers(net).values(), strict=True):
        assert a.weight.shape == b.weight.shape  # type: ignore[union-attr]
        apart = (a.weight - b.weight).detach().abs().max()  # type: ignore[operator,union-attr]
        assert 0 < float(apart) < 0.1 * float(b.weight.detach().abs().max())  # type: ignore[operator,union-attr]
    # transposed convolutions keep their output channels second: one scale for each of the four, of all it reads
    assert made[4].scale.shape == (4, -(-6 * 4 // GROUP))  # type: ignore[index,union-attr]
    assert_close(made(x), plain(x))
    slopes = [torch.autograd.grad(each(x).logsumexp(1).sum(), x)[0] for each in (made, plain)]
    assert_close(*slopes)  # weights alone: the gradient is the true one
    assert isinstance(quantise(made, 8)[0], InIntegers)  # type: ignore[index]
    assert_close(copy.deepcopy(made)(x), made(x))


def test_the_same_network_gives_the_same_integers(net: nn.Module) -> None:
    one, other = (quantise(net, 4, ranges="dynamic").state_dict() for _ in range(2))
    assert all(torch.equal(t, other[name]) for name, t in one.items())


class Own(nn.Conv2d):
    """A user's own layer, whose forward is not its base's."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


def test_a_layer_of_somebodys_own_still_does_what_it_does() -> None:
    net = nn.Sequential(Own(1, 2, 3)).eval()
    x = drawn(2, 1, 5, 5)
    made = quantise(net)
    assert made(x).shape == net(x).shape
    with torch.no_grad():
        assert float((made(x) - net(x)).abs().max()) < 0.02 * float(net(x).abs().max())


def test_words_are_looked_up_in_integers() -> None:
    net = nn.Sequential(nn.Embedding(50, 8, padding_idx=0), nn.Flatten(), nn.Linear(24, 2)).eval()
    x = torch.tensor([[1, 2, 0], [4, 49, 0]])
    made = quantise(net, ranges=seen_ranges(net, [x]))
    assert made[0].stored.dtype == torch.int8  # type: ignore[index,union-attr]
    assert_close(made(x), net(x), atol=0.05, rtol=0)


def test_activations_are_the_steps_of_the_range() -> None:
    part = Rounded(-1.0, 3.0)
    x = torch.tensor([[-9.0, -1.0, -0.5, 0.0, 0.7, 3.0, 9.0]], requires_grad=True)
    soft = part(x)
    out, step = soft.detach(), 4 / 255
    assert float(part.zero) == round(1 / step)
    inside = out[0, 1:-1] / step
    assert_close(inside, inside.round(), atol=1e-3, rtol=0)
    assert float(out[0, 3]) == 0
    assert ((out - x.detach())[0, 1:-1].abs() <= step * (1 / 2 + 1e-4) + abs(round(1 / step) * step - 1)).all()
    assert_close(out[0, 0], out[0, 1], atol=step, rtol=0)  # clipped
    (slope,) = torch.autograd.grad(soft.sum(), x)
    assert slope[0, 2:5].tolist() == [1.0, 1.0, 1.0]
    assert (float(slope[0, 0]), float(slope[0, -1])) == (0.0, 0.0)
    theirs = torch.fake_quantize_per_tensor_affine(x.detach(), float(part.scale), int(part.zero), 0, 255)
    assert_close(out, theirs)


def test_by_itself_an_input_does_not_hang_on_its_company() -> None:
    part, x = RoundedByItself(), drawn(4, 2, 3)
    x[0] *= 100
    assert_close(part(x)[1:], part(x[1:]))
    assert ((part(x) - x).abs().flatten(1).amax(1) <= (x.flatten(1).amax(1) - x.flatten(1).amin(1)) / 255).all()
    (slope,) = torch.autograd.grad(part(x.requires_grad_()).sum(), x)
    assert (slope == 1).all()
    assert (part(torch.zeros(2, 3)) == 0).all()  # a range of nothing


@pytest.mark.parametrize("how", ["static", "dynamic"])
def test_slopes_through_rounded_activations_are_finite_and_lead_uphill(net: nn.Module, how: str) -> None:
    """A step along the straight-through gradient raises the loss; along the true one, which is zero, nothing would."""
    x = drawn(16, 1, 4, 4).requires_grad_()
    made = quantise(net, ranges=seen_ranges(net, [x.detach()]) if how == "static" else "dynamic")
    y = made(x).argmax(1)
    loss = F.cross_entropy(made(x), y, reduction="none")
    (slope,) = torch.autograd.grad(loss.sum(), x)
    assert slope.isfinite().all()
    assert (slope.flatten(1).abs().amax(1) > 0).all()
    after = F.cross_entropy(made(x + 0.2 * slope.sign()), y, reduction="none")
    assert float((after > loss).float().mean()) > 0.9
    (before,) = torch.autograd.grad(F.cross_entropy(net(x), y, reduction="sum"), x)
    assert float(F.cosine_similarity(slope.flatten(), before.flatten(), 0)) > 0.95


def test_more_bits_are_nearer(net: nn.Module) -> None:
    x = drawn(16, 1, 4, 4)
    with torch.no_grad():
        off = [
            float((quantise(net, bits, group=group, ranges=ranges)(x) - net(x)).abs().mean())
            for bits, group, ranges in ((8, None, None), (8, None, seen_ranges(net, [x])), (4, 4, None), (4, 400, None))
        ]  # type: ignore[arg-type]
    assert off == sorted(off)


def test_ranges_are_the_least_and_the_largest_of_all_batches() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).eval()
    x = drawn(6, 2)
    ranges = seen_ranges(net, [x[:2], x[2:]])
    inner = net[1](net[0](x)).detach()
    assert ranges == {"0": (float(x.min()), float(x.max())), "2": (float(inner.min()), float(inner.max()))}
    assert not net[0]._forward_pre_hooks


def test_what_cannot_be_is_refused_in_one_line(net: nn.Module) -> None:
    broken = copy.deepcopy(net)
    with torch.no_grad():
        broken[3].weight[0, 0, 0, 0] = torch.nan  # type: ignore[index,operator]
    for call, words in (
        (lambda: quantise(broken), "The weights of '3' hold NaN"),
        (lambda: quantise(nn.Sequential(nn.ReLU())), "has no linear layer, convolution or embedding"),
        (lambda: quantise(net, group=0), "group=0 holds no weight"),
        (lambda: seen_ranges(net, []), "no input to calibrate on"),
        (lambda: seen_ranges(net, [torch.full((1, 1, 4, 4), torch.nan)]), "What goes into '0' is from nan"),
    ):
        with pytest.raises(AssayError, match=words) as e:
            call()
        assert "\n" not in str(e.value)
    assert not broken[0]._forward_pre_hooks  # type: ignore[index]
