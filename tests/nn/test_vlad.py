"""One descriptor from many: what attention weighs, what it takes away, and what does not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.nn.vlad import VARIANTS, PlaceNet, Vlad, normalised


def made(variant: str, seed: int = 0) -> tuple[Vlad, torch.Tensor, torch.Tensor]:
    """A layer of 3 clusters in float64, descriptors of 2 images at 7 places, and weights of these."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = Vlad(5, 3, variant=variant).double()  # type: ignore[arg-type]
        if layer.score is not None:
            nn.init.normal_(layer.score.weight)
        return layer, torch.randn(2, 5, 7).double(), 2 * torch.rand(2, 7).double()


def as_printed(layer: Vlad, x: torch.Tensor, w: torch.Tensor, second: bool) -> torch.Tensor:  # d p, p -> k d
    """V_A1, or V_A2, of one image: one place and one cluster at a time."""
    kernel, bias = layer.assign.weight[:, :, 0], layer.assign.bias
    total = torch.zeros_like(layer.centres).detach()
    for i in range(x.shape[1]):
        at = w[i] * x[:, i] if second else x[:, i]
        share = torch.softmax(kernel @ at + bias, 0)
        for k in range(len(total)):
            total[k] = total[k] + w[i] * share[k] * (at - layer.centres[k])
    return total


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_streams_are_the_printed_sums(seed):
    for variant in VARIANTS:
        layer, x, w = made(variant, seed)
        found = layer.aggregate(x, w)
        for n in range(2):
            right = as_printed(layer, x[n], w[n], False)
            if variant == "ours":
                right = right + as_printed(layer, x[n], w[n], True)
            assert_close(found[n], right)


def test_weights_of_one_are_plain_vlad():
    ours, x, w = made("ours")
    plain, _, _ = made("vlad")
    one = torch.ones_like(w)
    assert_close(ours.residuals(x, one), plain.aggregate(x, one))
    assert_close(ours.aggregate(x, one), 2 * plain.aggregate(x, one))
    assert_close(normalised(ours.aggregate(x, one)), normalised(plain.aggregate(x, one)))
    assert not torch.allclose(normalised(ours.aggregate(x, w)), normalised(plain.aggregate(x, one)))


@pytest.mark.parametrize("variant", ["a1", "ours"])
def test_a_weight_of_0_takes_the_place_away(variant):
    layer, x, w = made(variant)
    w[:, 3] = 0
    rest = [0, 1, 2, 4, 5, 6]
    assert_close(layer.aggregate(x, w), layer.aggregate(x[..., rest], w[:, rest]))
    # which no weight on the descriptor alone would do: 0 has a residual too
    unweighted = layer.residuals(w[:, None] * x, torch.ones_like(w))
    assert not torch.allclose(
        unweighted, layer.residuals((w[:, None] * x)[..., rest], torch.ones_like(w[:, rest])), atol=1e-3
    )


def test_a_place_twice_with_half_its_weight_changes_the_second_stream_alone():
    layer, x, w = made("ours")
    twice, halved = torch.cat([x, x[..., 3:4]], 2), torch.cat([w, w[:, 3:4] / 2], 1)
    halved[:, 3] /= 2
    assert_close(layer.residuals(twice, halved), layer.residuals(x, w))
    second = layer.residuals(w[:, None] * x, w)
    assert not torch.allclose(layer.residuals(halved[:, None] * twice, halved), second, atol=1e-3)


def test_the_first_stream_is_linear_in_the_weights_and_the_sum_is_not():
    other = torch.rand(2, 7, generator=torch.Generator().manual_seed(5)).double()
    for variant, linear in (("a1", True), ("ours", False)):
        layer, x, w = made(variant)
        together = layer.aggregate(x, 2 * w + 3 * other)
        apart = 2 * layer.aggregate(x, w) + 3 * layer.aggregate(x, other)
        assert torch.allclose(together, apart) == linear


@pytest.mark.parametrize("variant", VARIANTS)
def test_where_a_descriptor_stands_does_not_matter(variant):
    layer, x, _ = made(variant)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(1))
    tall, wide = x[:, :, :, None], x[:, :, order][:, :, None, :]
    assert_close(layer(tall), layer(wide))
    assert_close(layer(tall).norm(dim=1), torch.ones(2).double())
    each = layer(tall).view(2, 3, 5).norm(dim=2)  # every cluster counts as much
    assert_close(each, torch.full_like(each, 3**-0.5))


def test_attention_is_softplus_of_a_score_and_reaches_the_loss():
    layer, x, _ = made("ours")
    assert layer.score is not None
    maps = x[..., None]
    score = (layer.score.weight[0, :, 0, 0, None] * x.clamp_min(0)).sum(1) + layer.score.bias
    assert_close(layer.attention(maps)[..., 0], torch.log1p(score.exp()))
    assert float(layer.attention(-1e3 * maps.abs()).detach().min()) > 0  # what is below 0 is not seen: the bias alone
    layer(maps)[:, 0].sum().backward()
    assert layer.score.weight.grad is not None
    assert float(layer.score.weight.grad.abs().sum()) > 0
    plain, _, _ = made("vlad")
    assert plain.score is None
    assert_close(plain.attention(maps), torch.ones(2, 7, 1).double())


def test_before_training_all_variants_are_plain_vlad():
    maps = torch.rand(2, 5, 3, 2, generator=torch.Generator().manual_seed(0))
    found = []
    for variant in VARIANTS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layer = Vlad(5, 3, variant=variant)
        assert_close(layer.attention(maps).detach(), torch.ones(2, 3, 2))
        found.append(layer(maps))
    assert_close(found[1], found[0])
    assert_close(found[2], found[0])


def test_it_starts_at_clusters_that_are_there_and_assigns_to_the_nearest():
    middle = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    rng = torch.Generator().manual_seed(2)
    rows = (middle.repeat(40, 1) + 0.1 * torch.randn(120, 2, generator=rng)).T.reshape(1, 2, 10, 12)
    layer = Vlad(2, 3)
    layer.start(rows, rng)
    nearest = torch.cdist(middle, layer.centres)
    assert_close(nearest.min(1).values, torch.zeros(3), atol=0.1, rtol=0)
    assert sorted(nearest.argmin(1).tolist()) == [0, 1, 2]
    share = layer.assign(middle.T[None]).softmax(1)[0]  # k 3
    assert (share.argmax(0) == nearest.argmin(1)).all()
    # softmax of -a d^2, by distances: its log-odds are a times their difference
    square = torch.cdist(layer.centres, middle).square()
    odds, gap = share.log()[0] - share.log()[1], square[1] - square[0]
    assert_close(odds / odds[0], gap / gap[0], rtol=1e-3, atol=1e-3)


def test_a_small_network_gives_one_descriptor_of_length_1():
    net, x = PlaceNet(8, 3), torch.rand(2, 1, 32, 32)
    assert net.features(x).shape == (2, 8, 8, 8)
    assert net.attention(x).shape == (2, 8, 8)
    assert_close(net(x).norm(dim=1), torch.ones(2))
    assert net(x).shape == (2, 24)
    taught = net.classifier(4)
    assert taught(x).shape == (2, 4)
    assert taught[0] is net.features
    assert isinstance(taught[-1], nn.Linear)


def test_what_is_wrong_is_said():
    with pytest.raises(AssayError, match=r"There is no Vlad 'a3'; choose from vlad, a1, ours\."):
        Vlad(4, 2, variant="a3")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="clusters=0; give at least 1"):
        Vlad(4, 0)
    with pytest.raises(ShapeError, match=r"a map of shape \(2, 3, 4, 4\); give \(n, 4, height, width\)"):
        Vlad(4, 2)(torch.zeros(2, 3, 4, 4))
    with pytest.raises(AssayError, match="9 clusters of 4 descriptors"):
        Vlad(4, 9).start(torch.zeros(1, 4, 2, 2), torch.Generator())
