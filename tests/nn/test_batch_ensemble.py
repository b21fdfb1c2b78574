from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.fit import reset
from assay.nn.batch_ensemble import BatchEnsemble, RankOne, as_batch_ensemble

LAYERS: dict[str, tuple[Callable[[], nn.Linear | nn.Conv2d], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "linear of sequences": (lambda: nn.Linear(6, 5, bias=False), (3, 6)),
    "conv": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 7, 7)),
    "conv in groups, wrapped round": (
        lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2, padding_mode="circular", bias=False),
        (4, 5, 5),
    ),
}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cnn() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        net(torch.randn(30, 1, 4, 4))
    return net.eval()


def plain_weight(layer: RankOne, i: int) -> Tensor:
    """W * (s_i r_i^T), each output filter and each input channel in plain loops."""
    w = layer.layer.weight.detach().clone()
    out, per_group = w.shape[:2]
    groups = getattr(layer.layer, "groups", 1)
    for o in range(out):
        first = o // (out // groups) * per_group
        for c in range(per_group):
            w[o, c] *= layer.s[i, o] * layer.r[i, first + c]
    return w


@pytest.mark.parametrize("kind", LAYERS)
def test_member_i_is_a_plain_layer_with_weight_w_times_s_r(kind: str) -> None:
    make, shape = LAYERS[kind]
    plain = make()
    layer = RankOne(plain, 3, rng(), spread=0.5)
    if layer.b is not None:
        layer.b.data = torch.randn(layer.b.shape, generator=rng(1))
    x = torch.randn(4, *shape, generator=rng(2))
    got = layer(x.repeat(3, *[1] * len(shape))).unflatten(0, (3, 4))
    for i in range(3):
        member = copy.deepcopy(plain)
        member.weight.data = plain_weight(layer, i)
        if layer.b is not None:
            member.bias = nn.Parameter(layer.b[i].detach())
        assert_close(got[i], member(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_vectors_of_one_are_the_plain_layer(kind: str) -> None:
    make, shape = LAYERS[kind]
    plain = make()
    x = torch.randn(7, *shape, generator=rng())
    assert_close(RankOne(plain, 3, rng(), spread=0.0)(x), plain(x))


def test_a_whole_net_without_spread_is_that_net() -> None:
    net, x = cnn(), torch.randn(6, 1, 4, 4, generator=rng())
    many = as_batch_ensemble(net, 4, rng(), spread=0.0).eval()
    assert_close(many(x), net(x).log_softmax(-1))
    assert float(many.members(x).detach().std(0).max()) < 1e-6


def test_members_of_a_net_are_nets_of_their_own_weights() -> None:
    net, x = cnn(), torch.randn(6, 1, 4, 4, generator=rng())
    many = as_batch_ensemble(net, 3, rng()).eval()
    for i, said in enumerate(many.members(x)):
        alone = copy.deepcopy(net)
        for k in (0, 4):
            alone[k].weight.data = plain_weight(many.net[k], i)  # type: ignore[index]
        assert_close(said, alone(x), rtol=1e-4, atol=1e-5)
    probabilities = many.members(x).softmax(-1).mean(0)
    assert_close(many(x).exp(), probabilities)


@settings(deadline=None, max_examples=25)
@given(n=st.integers(1, 23), m=st.integers(1, 5))
def test_training_splits_the_batch_evenly(n: int, m: int) -> None:
    many = as_batch_ensemble(nn.Sequential(nn.Linear(3, 4)), m, rng())
    x = torch.randn(n, 3, generator=rng(1))
    belongs = [j * m // n for j in range(n)]
    sizes = [belongs.count(i) for i in range(m)]
    assert max(sizes) - min(sizes) <= 1
    each = many.members(x)
    assert_close(many.train()(x), torch.stack([each[belongs[j], j] for j in range(n)]))
    assert many.eval()(x).shape == (n, 4)


def test_a_member_learns_only_from_its_part_of_the_batch() -> None:
    many = as_batch_ensemble(nn.Sequential(nn.Linear(3, 2)), 2, rng())
    torch.autograd.backward(many.train()(torch.randn(8, 3, generator=rng()))[:4].sum())
    layer = many.net[0]  # type: ignore[index]
    assert float(layer.r.grad[0].abs().min()) > 0
    assert float(layer.r.grad[1].abs().max()) == 0
    assert float(layer.layer.weight.grad.abs().min()) > 0  # shared


def test_the_order_of_members_does_not_matter_and_one_has_no_spread() -> None:
    x = torch.randn(6, 1, 4, 4, generator=rng())
    many = as_batch_ensemble(cnn(), 3, rng()).eval()
    turned = copy.deepcopy(many)
    for layer in turned.modules():
        if isinstance(layer, RankOne):
            for p in (layer.r, layer.s, layer.b):
                p.data = p.data[[2, 0, 1]]  # type: ignore[union-attr]
    assert_close(turned.members(x), many.members(x)[[2, 0, 1]])
    assert_close(turned(x), many(x))
    assert float(as_batch_ensemble(cnn(), 1, rng()).eval().members(x).std(0, correction=0).max()) == 0


def test_the_mean_has_no_larger_loss_than_the_members() -> None:
    x, y = torch.randn(200, 1, 4, 4, generator=rng()), torch.randint(5, (200,), generator=rng())
    many = as_batch_ensemble(cnn(), 4, rng(), spread=0.7).eval()
    each = torch.stack([F.cross_entropy(z, y) for z in many.members(x)])
    assert float(F.cross_entropy(many(x), y)) < float(each.mean())


def test_vectors_start_near_one_by_the_generator_and_the_given_net_stays() -> None:
    net = nn.Sequential(nn.Linear(2000, 3))
    before = copy.deepcopy(net.state_dict())
    many, again, other = (as_batch_ensemble(net, 4, rng(seed)) for seed in (0, 0, 1))
    r = many.net[0].r  # type: ignore[index]
    assert float(r.mean()) == pytest.approx(1, abs=0.01)
    assert float(r.std()) == pytest.approx(0.2, rel=0.05)
    assert torch.equal(r, again.net[0].r)  # type: ignore[index]
    assert not torch.equal(r, other.net[0].r)  # type: ignore[index]
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert net[0].bias is not None


def test_it_can_be_started_afresh() -> None:
    many = as_batch_ensemble(cnn(), 4, rng())
    fresh = reset(many, rng(3))
    assert isinstance(fresh, BatchEnsemble)
    for new, old in zip(fresh.modules(), many.modules(), strict=True):
        if isinstance(new, RankOne) and isinstance(old, RankOne):
            assert not torch.equal(new.r, old.r)
            assert not torch.equal(new.layer.weight, old.layer.weight)
            assert float(new.b.abs().max()) == 0  # type: ignore[union-attr]
            assert 0.05 < float(new.s.std()) < 0.4


def test_bad_settings_are_refused() -> None:
    with pytest.raises(AssayError, match="at least one member, got 0"):
        as_batch_ensemble(cnn(), 0, rng())
    with pytest.raises(AssayError, match="spread=-1"):
        as_batch_ensemble(cnn(), 2, rng(), spread=-1.0)
    with pytest.raises(AssayError, match="no Linear or Conv2d layer"):
        as_batch_ensemble(nn.Sequential(nn.ReLU()), 2, rng())
