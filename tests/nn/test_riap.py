"""RIAP: the printed numbers, equality with an image that is padded once, and where it is put."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import comb
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn.lenet import LeNet
from assay.nn.resnet import ResNet18
from assay.nn.riap import paddings, runs, why_not, with_riap
from assay.nn.small_cnn import SmallCNN
from assay.nn.unet import UNet
from assay.nn.vgg import Vgg16


def ones(layers: int, *, axes: int = 1) -> nn.Sequential:
    """Convolutions of three ones, without bias or activation, in float64."""
    kind = nn.Conv1d if axes == 1 else nn.Conv2d
    net = nn.Sequential(*(kind(1, 1, 3, padding=1, bias=False) for _ in range(layers))).double()
    for layer in net:
        nn.init.ones_(layer.weight)  # type: ignore[arg-type]
    return net


def influence(net: nn.Module, size: int, axes: int = 1) -> Tensor:
    """d out(r) / d in(q) over all places: rows r, columns q."""
    places = size**axes
    with torch.no_grad():  # the nets are linear: the answers to single pixels are the columns
        return net(torch.eye(places, dtype=torch.float64).view(places, 1, *(size,) * axes)).view(places, places).T


def motzkin(k: int) -> int:
    return sum(comb(k, 2 * i) * comb(2 * i, i) // (i + 1) for i in range(k // 2 + 1))


def trinomial(k: int) -> int:
    return sum(comb(k, 2 * i) * comb(2 * i, i) for i in range(k // 2 + 1))


PRINTED: dict[int, tuple[list[int], list[int]]] = {
    4: ([9, 18, 19, 19, 19], [9, 12, 9, 4]),
    5: ([21, 46, 51, 51, 51, 51], [21, 30, 25, 14]),
    10: ([2188, 6103, 8338, 8898, 8952, 8953], [2188, 3610, 3915, 3288]),
}


@pytest.mark.parametrize("k", PRINTED)
def test_zero_padding_weakens_and_moves_the_border_and_riap_does_neither(k: int) -> None:
    diagonal, row = PRINTED[k]
    size, net = 2 * k + 1, ones(k)
    plain, ours = influence(net, size), influence(with_riap(net), size)
    assert plain.diag()[: len(diagonal)].tolist() == diagonal
    assert plain[0, :4].tolist() == row
    assert (diagonal[0], diagonal[-1]) == (motzkin(k), trinomial(k))
    assert ours.diag().tolist() == [trinomial(k)] * size
    assert int(plain[0].argmax()) == (2 if k == 10 else 1)
    assert ours.argmax(1).tolist() == list(range(size))
    # what is equal is the influence on a pixel's own place; that on all places together stays smaller at the border
    assert float(ours[:, 0].sum()) < float(ours[:, size // 2].sum())


def test_in_two_dimensions_the_numbers_are_products() -> None:
    k, size = 4, 9
    for net in (ones(k), with_riap(ones(k))):
        flat = ones(k, axes=2) if net[0].padding == (1,) else with_riap(ones(k, axes=2))  # type: ignore[index]
        assert_close(influence(flat, size, axes=2), torch.kron(influence(net, size), influence(net, size)))


def test_the_printed_paddings_and_those_of_mixed_reaches() -> None:
    assert [paddings([1] * l) for l in range(1, 6)] == [[1], [2, 0], [2, 1, 0], [2, 2, 0, 0], [2, 2, 1, 0, 0]]
    assert paddings([2, 2, 2]) == [4, 2, 0]
    assert paddings([1, 2, 3, 1]) == [2, 4, 1, 0]  # the map goes 1, 3, 1 and 0 pixels beyond the border
    with pytest.raises(AssayError, match=r"reaches \[1, -1\]"):
        paddings([1, -1])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_a_run_pads_as_much_as_before_never_more_than_twice_and_goes_out_and_back(reaches: list[int]) -> None:
    pads = paddings(reaches)
    assert sum(pads) == sum(reaches)
    beyond = 0
    for p, n in zip(pads, reaches, strict=True):
        assert 0 <= p <= 2 * n
        beyond += p - n
        assert beyond >= 0
    assert beyond == 0


layers = st.lists(
    st.tuples(st.sampled_from([1, 3, 5]), st.sampled_from([1, 3]), st.integers(1, 2)), min_size=2, max_size=5
)


@settings(max_examples=25, deadline=None)
@given(layers, st.integers(0, 99))
def test_without_bias_it_is_the_image_padded_once(kinds: list[tuple[int, int, int]], seed: int) -> None:
    """Kernels of any odd size along either axis, dilated or not, with ReLUs between."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential()
        for high, wide, dilation in kinds:
            pad = (dilation * (high - 1) // 2, dilation * (wide - 1) // 2)
            net += nn.Sequential(nn.Conv2d(2, 2, (high, wide), dilation=dilation, padding=pad, bias=False), nn.ReLU())
        x = torch.randn(2, 2, 6, 7, dtype=torch.float64)
    net.double()
    if why_not(net) is not None:
        assert sum(k[0] * k[1] > 1 for k in kinds) < 2
        return
    ours = with_riap(net)
    bare, around = copy.deepcopy(net), [0, 0]
    for layer in bare:
        if isinstance(layer, nn.Conv2d):
            around = [a + int(p) for a, p in zip(around, layer.padding, strict=True)]
            layer.padding = (0, 0)
    once = bare(F.pad(x, (around[1], around[1], around[0], around[0])))
    assert_close(ours(x), once)
    assert ours(x).shape == x.shape


def test_with_a_bias_the_equality_breaks() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = [nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1) for _ in range(l))).double() for l in (2, 3)]
        x = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    for l, net in zip((2, 3), nets, strict=True):
        bare = copy.deepcopy(net)
        for layer in bare:
            layer.padding = (0, 0)  # type: ignore[assignment]
        gap = (with_riap(net)(x) - bare(F.pad(x, (l, l, l, l)))).detach().abs()[0, 0]
        assert float(gap[1:-1, 1:-1].max()) < 1e-12  # only as far in as the ring of padded zeros is seen
        assert (float(gap.max()) > 1e-3) is (l > 2)  # two layers are padded once, and need no more


def test_the_same_object_gets_the_same_response_at_the_border_and_in_the_middle() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(*(m for _ in range(3) for m in (nn.Conv2d(1, 1, 3, padding=1, bias=False), nn.ReLU())))
        for layer in net[::2]:
            nn.init.uniform_(layer.weight, 0.1, 1)  # type: ignore[arg-type]
        thing = torch.rand(3, 3)
    corner, middle = torch.zeros(2, 1, 1, 15, 15).unbind()
    corner[..., :3, :3], middle[..., 6:9, 6:9] = thing, thing
    ours = with_riap(net)
    assert_close(ours(corner)[..., :3, :3], ours(middle)[..., 6:9, 6:9])
    assert float((net(corner)[..., :3, :3] - net(middle)[..., 6:9, 6:9]).detach().abs().max()) > 0.1


class Branching(nn.Module):
    """Cannot be followed without running it; its parts can."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding="same"))
        self.more = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self.body(x)) if x.sum() > 0 else self.body(x)


class Twice(nn.Module):
    """One convolution in two places, and one whose output is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(1, 1, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(self.one(self.one(x)))


class Skipping(Twice):
    def forward(self, x: Tensor) -> Tensor:
        first = self.one(x).relu()
        return first + self.two(first)


def test_runs_end_where_a_map_is_pooled_strided_joined_or_used_twice() -> None:
    assert [len(run) for run in runs(Vgg16(width=1))] == [2, 2, 3, 3, 3]
    assert runs(SmallCNN()) == [["body.4.0", "last_conv.0"]]
    body = [[f"stages.{s}.{b}.body.{c}" for c in (0, 3)] for s, b in ((0, 0), (0, 1), (1, 1), (2, 1), (3, 1))]
    assert runs(ResNet18(width=1)) == body
    assert runs(UNet(1, 2, width=1, levels=2)) == [
        ["down.0.0.0", "down.0.1.0"],
        ["down.1.0.0", "down.1.1.0"],
        ["up.0.0.0", "up.0.1.0", "head"],
    ]
    assert runs(Branching()) == [["body.0", "body.2"]]
    assert runs(Twice()) == runs(Skipping()) == []


@pytest.mark.parametrize(
    "make",
    [lambda: Vgg16(width=4), SmallCNN, lambda: UNet(1, 2, width=8), Branching],
    ids=("Vgg16", "SmallCNN", "UNet", "Branching"),
)
def test_the_copy_keeps_shapes_and_weights_and_the_net_is_left_alone(make: Callable[[], nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = make()
    x = torch.rand(2, 3 if isinstance(net, Vgg16) else 1, 32, 32, dtype=torch.float64)
    before, said = copy.deepcopy(net.double().state_dict()), net.eval()(x)
    ours = with_riap(net)
    assert ours(x).shape == said.shape
    assert float((ours(x) - said).detach().abs().max()) > 1e-9
    assert_close(net(x), said)
    assert_close(ours.state_dict(), before)
    assert_close(net.state_dict(), before)
    with pytest.raises(AssayError, match="RIAP has nothing to pad"):
        with_riap(ours)  # what pads so already does not keep the size at each layer


def refused(*parts: Any) -> str:
    with pytest.raises(AssayError) as caught:
        with_riap(nn.Sequential(*parts))
    return str(caught.value)


def test_what_has_no_run_is_refused_in_one_line() -> None:
    head = "RIAP has nothing to pad in Sequential: "
    apart = head + "no two of its convolutions follow one another at one size"
    assert refused(nn.Linear(2, 2)) == head + "it has no convolution."
    strided = [nn.Conv2d(1, 1, 3, stride=2, padding=1) for _ in range(2)]
    assert refused(*strided) == apart + " (2 of its 2 convolutions have a stride)."
    assert refused(*(nn.Conv2d(1, 1, 3) for _ in range(2))) == apart + " (2 of 2 do not pad zeros to the same size)."
    assert refused(nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(1, 1, 3, padding=1)) == apart + "."
    assert refused(nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 1)) == apart + "."
    mirrored = [nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect") for _ in range(2)]
    assert "2 of 2 do not pad zeros" in refused(*mirrored)
    assert "1 of 2 do not pad zeros" in str(why_not(LeNet()))
    with pytest.raises(AssayError, match="levels=0"):
        UNet(1, 2, levels=0)


def test_a_stride_that_is_a_list_is_read() -> None:
    net = nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1) for _ in range(2)))
    assert why_not(net) is None
    net[0].stride = [2, 2]  # as some libraries set it behind a constructor
    assert "1 of its 2 convolutions have a stride" in str(why_not(net))
