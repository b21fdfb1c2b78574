"""Features of all domains brought together: MK-MMD, CORAL, gradient reversal, as losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.errors import AssayError, ShapeError
from assay.methods.shift.mk_mmd import mk_mmd
from assay.methods.train.alignment import Alignment, Beside, WithFeatures
from assay.methods.train.coral import coral
from assay.methods.train.fit import fit
from assay.methods.train.gradient_reversal import GradientReversal, WithCritic, reversed_gradient


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_coral_is_the_distance_of_numpys_covariances(rng: torch.Generator) -> None:
    a, b = (torch.randn(n, 3, generator=rng, dtype=torch.float64) for n in (9, 14))
    apart = np.cov(a.numpy(), rowvar=False) - np.cov(b.numpy(), rowvar=False)
    assert_close(float(coral(a, b)), float((apart**2).sum() / 36))
    assert_close(coral(a, b), coral(b, a))
    assert_close(coral(a + 5, b - 2), coral(a, b))  # it does not see means
    assert float(coral(a, a.flip(0))) == pytest.approx(0, abs=1e-12)
    assert torch.autograd.gradcheck(coral, (a.requires_grad_(), b.requires_grad_()))
    with pytest.raises(AssayError, match="1 and 14 rows; a covariance wants at least 2"):
        coral(a[:1], b)
    with pytest.raises(ShapeError, match=r"shapes \(9, 3\) and \(14, 2\)"):
        coral(a, b[:, :2])


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize("distance", [mk_mmd, coral])
def test_the_loss_is_right_answers_and_the_mean_over_pairs_of_domains(distance: object, rng: torch.Generator) -> None:
    own = net()
    both = WithFeatures(own, "2")
    x, y = torch.randn(18, 2, generator=rng), torch.arange(12) % 3  # two labelled domains of 6, and one without labels
    out = both(x)
    z = own[:2](x).split(6)
    d = distance
    assert callable(d)
    wanted = F.cross_entropy(own(x)[:12], y) + 0.5 * (d(z[0], z[1]) + d(z[0], z[2]) + d(z[1], z[2])) / 3
    assert_close(Alignment(d, 0.5, classes=3, each=6).loss(out, y), wanted)
    assert_close(Alignment(d, 0.0, classes=3, each=6).loss(both(x[:12]), y), F.cross_entropy(own(x[:12]), y))
    assert_close(both.eval()(x), own(x))
    both.close()
    assert not own[2]._forward_pre_hooks
    with pytest.raises(ShapeError, match="18 inputs does not hold two domains or more, 7 of each"):
        Alignment(d, 1.0, classes=3, each=7).loss(out, y)
    with pytest.raises(AssayError, match="weight=nan is none"):
        Alignment(d, float("nan"), classes=3, each=6)


def test_unlabelled_inputs_come_behind_the_batch_and_bring_no_label(rng: torch.Generator) -> None:
    x, y = torch.zeros(4, 2), torch.arange(4)
    there = [Arrays(torch.full((5, 2), v), torch.zeros(5, dtype=torch.long)) for v in (1.0, 2.0)]
    more, labels = Beside(there, 3).augment(x, y, rng)
    assert more[:, 0].tolist() == [0.0] * 4 + [1.0] * 3 + [2.0] * 3
    assert labels is y


def test_forwards_it_is_nothing_and_backwards_it_turns_the_gradient() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    out = reversed_gradient(x, 0.5)
    assert_close(out, x)
    (grad,) = torch.autograd.grad((out * torch.tensor([3.0, 4.0])).sum(), x)
    assert grad.tolist() == [-1.5, -2.0]


def test_the_net_climbs_what_the_critic_descends(rng: torch.Generator) -> None:
    own = net()
    both = WithCritic(own, "2", 2, torch.zeros(2, 2), weight=0.3, rng=rng)
    assert both.critic[0].in_features == 5  # type: ignore[union-attr]
    x, y = torch.randn(8, 2, generator=rng), torch.arange(4) % 3
    domain = torch.arange(2).repeat_interleave(4)
    GradientReversal(classes=3, domains=2, each=4).loss(both(x), y).backward()
    right = F.cross_entropy(own(x)[:4], y)
    told = F.cross_entropy(both.critic(own[:2](x)), domain)
    first, critics = own[0].weight, both.critic[2].weight  # type: ignore[union-attr]
    assert isinstance(first, Tensor)
    assert isinstance(critics, Tensor)
    wanted = torch.autograd.grad(right - 0.3 * told, first, retain_graph=True)[0]
    assert first.grad is not None
    assert_close(first.grad, wanted)
    assert critics.grad is not None
    assert_close(critics.grad, torch.autograd.grad(told, critics)[0])
    with pytest.raises(ShapeError, match=r"shape \(7, 5\) for 2 domains of 4"):
        GradientReversal(classes=3, domains=2, each=4).loss(both(x)[:7], y)
    with pytest.raises(AssayError, match="weight=-1 is none"):
        WithCritic(own, "2", 2, x, weight=-1, rng=rng)


def test_a_linear_map_learns_to_bring_means_together_and_to_mix_classes_where_their_shares_differ(
    rng: torch.Generator,
) -> None:
    """The failure that the theory of HIR predicts for invariant features: prior shift."""
    right = {}
    for share in (0.5, 0.1):  # of class 1 in the unlabelled domain
        y = torch.arange(200) % 2
        there = (torch.arange(200) < 200 * share).long()
        x, moved = (
            torch.stack([4.0 * c - 2, torch.full((200,), at)], 1) + torch.randn(200, 2, generator=rng)
            for c, at in ((y, 0.0), (there, 3.0))
        )
        torch.manual_seed(0)
        own = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
        both = WithFeatures(own, "1")
        more = Beside([Arrays(moved, torch.zeros(200, dtype=torch.long))], 100)
        loss = Alignment(mk_mmd, 20.0, classes=2, each=100).loss
        fit(
            both,
            Arrays(x, y),
            epochs=60,
            batch=100,
            lr=0.05,
            optimiser="adam",
            augment=more.augment,
            loss=loss,
            rng=rng,
        )
        with torch.no_grad():
            z, w = own[0](x), own[0](moved)
            right[share] = float((own(moved).argmax(1) == there).float().mean())
        if share == 0.5:
            assert float((z.mean(0) - w.mean(0)).norm() / z.std()) < 0.3
    assert right[0.5] > 0.9
    assert right[0.1] < right[0.5] - 0.1
